"""Running a tool: whatever it returns, raises or does not do in time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from temporalio.exceptions import ApplicationError

from activities.contracts import TRANSIENT, ToolEffect, ToolInput, ToolsWanted
from activities.settings import Settings
from activities.tools import Tool, ToolCallContext, ToolReturn, TransientError, load_tools
from activities.tools.artifacts import MAX_KEPT_BYTES
from activities.tools.run import ToolRunner
from tests.activities.toolkit import (
    KEY,
    FullDisk,
    Memory,
    NoParams,
    activities_of,
    environment,
    probe,
    raising,
    request_for,
    result_of,
    returning,
    runner_of,
)
from tests.conftest import Environ
from tests.logs import captured_logs


class Colour(Enum):
    RED = "red"


class Shown(BaseModel):
    day: date


@dataclass
class Point:
    x: int


@pytest.mark.parametrize("kind", ["thread", "loop"])
@pytest.mark.parametrize(
    ("value", "output"),
    [
        pytest.param("héllo", "héllo", id="text"),
        pytest.param("x" * 200_000, "x" * 200_000, id="long text"),
        pytest.param(b"bytes", "bytes", id="bytes that are text"),
        pytest.param(b"\xff\xfe", "2 bytes that are not UTF-8 text; they start with ff fe", id="bytes"),
        pytest.param({"a": [1, None, True]}, '{"a":[1,null,true]}', id="JSON"),
        pytest.param({"a": b"\xff"}, '{"a":"_w=="}', id="bytes inside"),
        pytest.param(Shown(day=date(2026, 1, 2)), '{"day":"2026-01-02"}', id="model"),
        pytest.param([Point(1), Colour.RED, Decimal("1.10")], '[{"x":1},"red","1.10"]', id="values"),
        pytest.param({3}, "[3]", id="set"),
        pytest.param(None, "null", id="nothing"),
        pytest.param("\ud800", "\\ud800", id="surrogate"),
        pytest.param(["\ud800"], '["\\ud800"]', id="surrogate inside"),
        pytest.param(Exception, "\"<class 'Exception'>\"", id="no JSON form"),
    ],
)
async def test_whatever_a_tool_returns_becomes_text(value: object, output: str, kind: str) -> None:
    async def run(params: NoParams) -> object:
        return value

    tool = probe(run) if kind == "loop" else returning(value)
    result = await runner_of(tool, output_cap=300_000).run_tool(request_for("probe"))
    assert (result.output, result.error) == (output, None)
    assert result.model_dump_json()


async def test_rich_return_carries_cost_and_marks() -> None:
    result = await result_of(returning(ToolReturn({"n": 1}, cost_usd=0.5, marks=("half",))))
    assert (result.output, result.cost_usd, result.marks) == ('{"n":1}', 0.5, ("half",))
    assert (result.id, result.tool, result.attempts, result.bytes) == ("call-1", "probe", 1, 7)


def endless() -> Iterator[int]:
    while True:
        yield 1


def circle() -> list[object]:
    here: list[object] = []
    here.append(here)
    return here


@pytest.mark.parametrize("value", [endless(), circle()], ids=["endless", "circular"])
async def test_value_that_cannot_be_shown_is_a_failure(value: object) -> None:
    result = await result_of(returning(value))
    assert result.error == "failed"
    assert "the tool ran, but what it returned cannot be shown" in result.output


async def test_unknown_tool_is_a_result() -> None:
    result = await runner_of().run_tool(request_for("nope"))
    assert (result.output, result.error) == ("Unknown tool: nope", "unknown_tool")


class Strict(BaseModel, frozen=True, extra="forbid"):
    """Take numbers."""

    count: int = Field(le=5)
    name: str
    day: date | None = None


async def test_bad_arguments_name_each_field_and_nothing_runs() -> None:
    ran: list[Strict] = []
    result = await result_of(Tool("probe", Strict, ran.append), count=9, colour="red")
    assert (result.error, ran) == ("bad_arguments", [])
    for words in ("count: ", "equal to 5", "name: is missing", "colour: unknown key", "was not run"):
        assert words in result.output


async def test_synchronous_function_may_return_an_awaitable() -> None:
    async def later() -> str:
        return "later"

    assert (await result_of(probe(lambda params: later()))).output == "later"


async def test_tool_sees_its_call() -> None:
    async def run(params: NoParams, call: ToolCallContext) -> list[object]:
        return [
            call.key,
            call.attempt,
            call.undoes,
            call.cancelled(),
            call.files_root == call.settings.files_root,
        ]

    assert (await result_of(probe(run), attempt=2)).output == f'["{KEY}",2,"",false,true]'


# -- large outputs ---------------------------------------------------------------------------------


async def test_large_output_is_cut_and_kept_whole() -> None:
    blobs, text = Memory(), "0123456789" * 5_000_000
    runner = runner_of(returning(text), blobs=blobs, output_cap=1000)
    result = await runner.run_tool(request_for("probe"))
    assert result.output.startswith(text[:1000] + "\n[49,999,000 of 50,000,000 characters left out")
    assert (result.bytes, result.whole) == (50_000_000, sha256(text.encode()).hexdigest())
    assert blobs.bodies == {result.whole: text.encode()}


async def test_more_than_can_be_kept_is_shown_in_part() -> None:
    blobs = Memory()
    runner = runner_of(returning("x" * (MAX_KEPT_BYTES + 1)), blobs=blobs)
    result = await runner.run_tool(request_for("probe"))
    assert (result.error, result.whole, blobs.bodies) == (None, None, {})
    assert "it was not kept: it has 67,108,865 bytes" in result.output


async def test_full_store_does_not_lose_the_answer() -> None:
    runner = runner_of(returning("x" * 100), blobs=FullDisk(), output_cap=10)
    with captured_logs() as logs:
        result = await runner.run_tool(request_for("probe"))
    assert (result.whole, result.error) == (None, None)
    assert "could not be kept" in result.output
    assert "tool.output_not_kept" in [log["event"] for log in logs]


# -- failures --------------------------------------------------------------------------------------


async def test_place_of_a_tools_bug_is_in_the_workers_log() -> None:
    with captured_logs() as logs:
        await runner_of(raising(NameError("cal"))).run_tool(request_for("probe"))
    (raised,) = [log for log in logs if log["event"] == "tool.raised"]
    assert raised["error"] == "NameError"
    assert "toolkit.py, line" in raised["at"][-1]


REPEATABLE: tuple[ToolEffect, ...] = ("pure", "read", "idempotent", "keyed")


@pytest.mark.parametrize("effect", REPEATABLE)
@pytest.mark.parametrize(
    "error",
    [TransientError("busy"), ConnectionResetError("busy"), TimeoutError("busy"), httpx2.ReadError("busy")],
    ids=lambda error: type(error).__name__,
)
async def test_transient_failure_is_raised_until_the_last_attempt(
    error: Exception, effect: ToolEffect
) -> None:
    for attempt in (1, 2):
        with pytest.raises(TransientError, match="busy"):
            await result_of(raising(error, effect), attempt)
    result = await result_of(raising(error, effect), attempt=3)
    assert (result.error, result.attempts, result.output) == ("transient", 3, "Error after 3 attempts: busy")


async def test_transient_failure_of_an_unsafe_tool_is_returned_at_once() -> None:
    result = await result_of(raising(TransientError("busy"), "unsafe"))
    assert (result.error, result.attempts, result.output) == ("transient", 1, "Error after 1 attempt: busy")


async def test_unsafe_tool_is_never_started_twice() -> None:
    ran: list[object] = []
    result = await result_of(probe(ran.append, "unsafe"), attempt=2)
    assert (result.error, ran) == ("unknown_outcome", [])


class Unreadable(Exception):
    """Its text cannot be read, and reading it ends the program."""

    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("error", "output"),
    [
        (ValueError("no such thing"), "ValueError: no such thing"),
        (KeyError(), "KeyError"),
        (SystemExit(3), "SystemExit: 3"),
        (Unreadable(), "Unreadable: (its text cannot be read: SystemExit)"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("kind", ["thread", "loop"])
async def test_any_other_failure_is_a_result(error: BaseException, output: str, kind: str) -> None:
    async def run(params: NoParams) -> None:
        raise error

    result = await result_of(probe(run) if kind == "loop" else raising(error))
    assert (result.output, result.error, result.attempts) == (output, "failed", 1)


@pytest.mark.parametrize(
    "tool",
    [returning({"a": Unreadable()}), raising(KeyboardInterrupt()), raising(StopIteration("end"))],
    ids=["value", "interrupt", "stop"],
)
async def test_nothing_that_a_tool_does_ends_the_worker(tool: Tool[Any]) -> None:
    assert (await result_of(tool)).error == "failed"


async def test_errors_do_not_repeat_the_workers_secrets(environ: Environ) -> None:
    environ["SHOP_API_KEY"] = "sk-12345678"
    result = await result_of(raising(ValueError("wrong key sk-12345678 in header")))
    assert result.output == "ValueError: wrong key [SHOP_API_KEY] in header"
    with pytest.raises(TransientError) as raised:
        await result_of(raising(ConnectionError("cannot reach https://x:sk-12345678@shop")))
    assert "sk-12345678" not in str(raised.value)


# -- time and cancellation -------------------------------------------------------------------------


@pytest.mark.parametrize(("effect", "error"), [("read", "timeout"), ("unsafe", "unknown_outcome")])
async def test_tool_that_hangs_is_given_up(effect: ToolEffect, error: str) -> None:
    stopped = threading.Event()

    def run(params: NoParams, call: ToolCallContext) -> None:
        while not call.cancelled():
            time.sleep(0.01)
        stopped.set()

    result = await result_of(probe(run, effect, timeout_seconds=0.1))
    assert (result.error, "within 0.1 s" in result.output) == (error, True)
    assert await asyncio.to_thread(stopped.wait, 10)


async def test_asynchronous_tool_that_hangs_is_cancelled() -> None:
    ended: list[str] = []

    async def run(params: NoParams) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    result = await result_of(probe(run, timeout_seconds=0.05))
    assert (result.error, ended) == ("timeout", ["cancelled"])


async def test_cancelling_the_activity_cancels_the_tool() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def run(params: NoParams) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    place = environment()
    running = asyncio.ensure_future(place.run(activities_of(probe(run)).call_tool, request_for("probe")))
    await started.wait()
    place.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()


# -- the activities --------------------------------------------------------------------------------


async def test_only_failures_count_as_attempts() -> None:
    """Not attempts that were lost with their worker, or whose heartbeat was late: here four of seven."""
    activities = activities_of(raising(TransientError("busy")))
    newest: tuple[Any, ...] = ()
    for attempt, seconds in ((3, 1), (6, 2)):
        place = environment(attempt, newest)
        beats: list[tuple[Any, ...]] = []
        place.on_heartbeat = lambda *details, beats=beats: beats.append(details)
        with pytest.raises(ApplicationError) as raised:
            await place.run(activities.call_tool, request_for("probe"))
        error = raised.value
        assert (error.type, error.non_retryable, error.message) == (TRANSIENT, False, "busy")
        assert error.next_retry_delay == timedelta(seconds=seconds)
        newest = beats[-1]
    result = await environment(7, newest).run(activities.call_tool, request_for("probe"))
    assert (result.error, result.attempts) == ("transient", 7)
    assert result.output == "Error after 3 attempts: busy"


async def test_heartbeat_comes_after_its_pause_with_the_newest_words() -> None:
    beats: list[tuple[Any, ...]] = []
    beaten = asyncio.Event()

    async def run(params: NoParams, call: ToolCallContext) -> int:
        at_once = len(beats)
        call.heartbeat("begun")
        call.heartbeat("half way \ud800")
        await beaten.wait()
        return at_once

    def on_heartbeat(*details: Any) -> None:
        beats.append(details)
        beaten.set()

    place = environment()
    place.on_heartbeat = on_heartbeat
    result = await place.run(activities_of(probe(run)).call_tool, request_for("probe"))
    assert (result.output, beats[0]) == ("0", ("half way \\ud800",))


async def test_log_names_the_tool_and_no_content() -> None:
    strict = Tool("probe", Strict, lambda p: "secret output", effect="read")
    with captured_logs() as logs:
        await result_of(strict, count=1, name="secret argument")
    assert [(log["event"], log["tool"], log["error"]) for log in logs] == [("tool.returned", "probe", None)]
    assert "secret" not in str(logs)


async def test_log_has_no_words_of_what_a_tool_raises() -> None:
    with captured_logs() as logs:
        result = await runner_of(raising(ValueError("secret argument"))).run_tool(request_for("probe"))
    assert (result.output, "secret" in str(logs)) == ("ValueError: secret argument", False)


async def test_tools_are_described_in_order() -> None:
    a, b = Tool("a", Strict, lambda p: p.name, effect="pure", cache="run"), Tool("b", NoParams, lambda p: "")
    activities = activities_of(a, b)
    described = await environment().run(activities.describe_tools, ToolsWanted(names=("b", "a")))
    assert [spec.name for spec in described.tools] == ["b", "a"]
    spec = described.tools[1]
    assert (spec.description, spec.effect, spec.cache) == ("Take numbers.", "pure", "run")
    assert spec.parameters["required"] == ["count", "name"]


async def test_tools_that_a_worker_lacks_are_named() -> None:
    activities = activities_of(Tool("a", Strict, lambda p: p.name), Tool("b", NoParams, lambda p: ""))
    with pytest.raises(ApplicationError, match=r"unknown tools: c, d\. This worker has: a, b"):
        await environment().run(activities.describe_tools, ToolsWanted(names=("c", "a", "d")))


# -- shipped tools --------------------------------------------------------------------------------

SHIPPED = load_tools(Settings())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["", ".", "..", "/", "a/b", "\0", "9**9**9", "1/0", "UTC", "http://[::1]/", "(a+)+$"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(SHIPPED))
@given(data=st.data())
async def test_any_arguments_give_a_result_or_a_readable_error(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The names are right, so that values of every kind come to the tool itself."""
    tool = SHIPPED[name]
    fields = st.sampled_from(sorted(tool.params.model_fields) or ["x"]) | st.text(max_size=5)
    arguments = data.draw(st.dictionaries(fields, JSON, max_size=4))
    folder = tmp_path_factory.mktemp("files")
    (folder / "a").mkdir()
    (folder / "a" / "b").write_text("some text\n")
    runner = ToolRunner(SHIPPED, Settings(files_root=folder, data_dir=folder / ".ratchet"), Memory())
    request = ToolInput(id="c", tool=name, arguments=arguments, key=KEY, attempts=1)
    result = await runner.run_tool(request)
    assert isinstance(result.output, str)
    assert result.error in (None, "bad_arguments", "failed", "transient")
    assert result.error is None or (result.output and "Traceback" not in result.output)
    result.model_dump_json()
