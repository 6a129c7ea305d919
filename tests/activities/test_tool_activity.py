"""The activities `call_tool` and `describe_tools`, whatever a tool does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import Any

import pytest
import structlog
from pydantic import BaseModel, Field

from activities.contracts import ToolsWanted
from activities.tool_output import MAX_KEPT_BYTES
from activities.toolbox import Tool, ToolCallContext, ToolReturn
from tests.activities.toolkit import (
    NoParams,
    activities_of,
    called,
    environment,
    probe,
    request_for,
    returning,
)


class Colour(Enum):
    RED = "red"


class Shown(BaseModel):
    day: date


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "output"),
    [
        pytest.param("héllo", "héllo", id="text as it is"),
        pytest.param(b"bytes", "bytes", id="bytes that are text"),
        pytest.param(b"\xff\xfe", "2 bytes that are no UTF-8 text; they start with ff fe", id="bytes"),
        pytest.param({"a": [1, None, True]}, '{"a":[1,null,true]}', id="JSON"),
        pytest.param({"a": b"\xff"}, '{"a":"_w=="}', id="bytes inside"),
        pytest.param(Shown(day=date(2026, 1, 2)), '{"day":"2026-01-02"}', id="model"),
        pytest.param([Point(1), Colour.RED, Decimal("1.10")], '[{"x":1},"red","1.10"]', id="values"),
        pytest.param({3}, "[3]", id="set"),
        pytest.param(None, "null", id="nothing"),
        pytest.param("\ud800", "\\ud800", id="text that UTF-8 cannot write"),
        pytest.param(["\ud800"], '["\\ud800"]', id="such a text inside"),
        pytest.param(Exception, "\"<class 'Exception'>\"", id="no JSON form"),
    ],
)
async def test_whatever_a_tool_returns_becomes_text(value: object, output: str) -> None:
    result = await called(activities_of(returning(value)), "probe")
    assert (result.output, result.error) == (output, None)
    assert result.model_dump_json()


async def test_a_rich_return_carries_cost_and_marks() -> None:
    rich = ToolReturn({"n": 1}, cost_usd=0.5, marks=("half",))
    result = await called(activities_of(returning(rich)), "probe")
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
async def test_a_return_value_that_cannot_be_shown_is_an_error_in_words(value: object) -> None:
    result = await called(activities_of(returning(value)), "probe")
    assert result.error == "failed"
    assert "the tool ran, but what it returned cannot be shown" in result.output


async def test_an_unknown_tool_is_an_observation() -> None:
    result = await called(activities_of(), "nope")
    assert (result.output, result.error) == ("Unknown tool: nope", "unknown_tool")


class Strict(BaseModel, frozen=True, extra="forbid"):
    """Take numbers."""

    count: int = Field(le=5)
    name: str
    day: date | None = None


async def test_arguments_that_do_not_fit_name_each_field_and_the_tool_is_not_run() -> None:
    ran: list[Strict] = []
    strict = Tool("probe", Strict, ran.append, effect="read")
    result = await called(activities_of(strict), "probe", count=9, colour="red")
    assert result.error == "bad_arguments"
    assert not ran
    for words in ("count: ", "5, got 9", "name: Field required", "colour: Extra", "was not run"):
        assert words in result.output


async def test_arguments_are_read_as_json() -> None:
    strict = Tool("probe", Strict, lambda p: str(p.day), effect="read")
    result = await called(activities_of(strict), "probe", count=1, name="x", day="2026-02-03")
    assert result.output == "2026-02-03"


async def test_a_synchronous_tool_may_be_an_object_that_answers_later() -> None:
    async def later() -> str:
        return "later"

    result = await called(activities_of(probe(lambda params: later())), "probe")
    assert result.output == "later"


async def test_the_heartbeat_shows_what_the_tool_reports() -> None:
    async def run(params: NoParams, call: ToolCallContext) -> str:
        call.heartbeat("half way \ud800")
        await asyncio.sleep(1.5)
        return call.key

    beats: list[tuple[Any, ...]] = []
    place = environment()
    place.on_heartbeat = lambda *details: beats.append(details)
    result = await place.run(activities_of(probe(run)).call_tool, request_for("probe"))
    assert result.output == "run/0/action#1:0"
    assert ("half way \\ud800",) in beats


async def test_fifty_megabytes_are_cut_for_the_model_and_kept_whole() -> None:
    kept: list[bytes] = []

    async def keep(whole: bytes) -> str:
        kept.append(whole)
        return sha256(whole).hexdigest()

    text = "0123456789" * 5_000_000
    activities = activities_of(returning(text), output_cap=1000, keep_whole=keep)
    result = await called(activities, "probe")
    note = "[49,999,000 of 50,000,000 characters left out; the whole is kept]"
    assert result.output == text[:1000] + "\n" + note
    assert result.bytes == 50_000_000
    assert result.whole == sha256(text.encode()).hexdigest()
    assert kept == [text.encode()]


async def test_more_than_can_be_kept_is_kept_in_part() -> None:
    kept: list[int] = []

    async def keep(whole: bytes) -> str:
        kept.append(len(whole))
        return "digest"

    activities = activities_of(returning(b"x" * (MAX_KEPT_BYTES + 1)), keep_whole=keep)
    result = await called(activities, "probe")
    assert kept == [MAX_KEPT_BYTES]
    assert "the first 64 MiB are kept]" in result.output


async def test_an_output_that_fits_is_not_kept() -> None:
    async def keep(whole: bytes) -> str:
        raise AssertionError

    result = await called(activities_of(returning("short"), keep_whole=keep), "probe")
    assert (result.output, result.whole) == ("short", None)


async def test_bytes_that_are_no_text_are_described_and_kept() -> None:
    async def keep(whole: bytes) -> str:
        return whole.hex()

    result = await called(activities_of(returning(b"\xff\0"), keep_whole=keep), "probe")
    assert (result.whole, result.error, result.bytes) == ("ff00", None, 2)


async def test_a_full_store_does_not_lose_the_answer() -> None:
    async def keep(whole: bytes) -> str:
        raise OSError("disk full")

    activities = activities_of(returning("x" * 100), output_cap=10, keep_whole=keep)
    with structlog.testing.capture_logs() as logs:
        result = await called(activities, "probe")
    assert (result.whole, result.error) == (None, None)
    assert result.output.endswith("could not be kept]")
    assert "tool.output_not_kept" in [log["event"] for log in logs]


async def test_the_log_names_the_tool_and_no_content() -> None:
    strict = Tool("probe", Strict, lambda p: "secret output", effect="read")
    with structlog.testing.capture_logs() as logs:
        await called(activities_of(strict), "probe", count=1, name="secret argument")
    (log,) = logs
    assert (log["event"], log["tool"], log["error"]) == ("tool.returned", "probe", None)
    assert "secret" not in str(log)


async def test_tools_are_described_in_the_order_asked_and_missing_ones_are_named() -> None:
    a, b = Tool("a", Strict, lambda p: p.name, effect="pure", cache="run"), Tool("b", NoParams, lambda p: "")
    activities = activities_of(a, b)
    described = await environment().run(activities.describe_tools, ToolsWanted(names=("b", "c", "a")))
    assert [spec.name for spec in described.tools] == ["b", "a"]
    assert (described.missing, described.available) == (("c",), ("a", "b"))
    spec = described.tools[1]
    assert (spec.description, spec.effect, spec.cache) == ("Take numbers.", "pure", "run")
    assert spec.parameters["required"] == ["count", "name"]
    assert described.tools[0].effect == "unsafe"
    complete = await environment().run(activities.describe_tools, ToolsWanted(names=("a",)))
    assert (complete.missing, complete.available) == ((), ())
