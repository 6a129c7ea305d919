"""`call_tool` when a tool fails, hangs, or is cancelled: told in words, or raised for another try."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, NoReturn

import httpx2
import pytest
from temporalio.exceptions import ApplicationError

from activities.contracts import TRANSIENT, ToolEffect
from activities.toolbox import Tool, ToolCallContext, TransientError
from tests.activities.toolkit import (
    NoParams,
    activities_of,
    called,
    environment,
    probe,
    raising,
    request_for,
    returning,
)


@pytest.mark.parametrize(
    "error",
    [TransientError("busy"), ConnectionResetError("busy"), TimeoutError("busy"), httpx2.ReadError("busy")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("effect", ["pure", "read", "idempotent", "keyed"])
async def test_a_transient_failure_of_a_repeatable_tool_is_raised_for_temporal(
    error: Exception, effect: ToolEffect
) -> None:
    activities = activities_of(raising(error, effect))
    for attempt in (1, 2):
        with pytest.raises(ApplicationError) as raised:
            await environment(attempt).run(activities.call_tool, request_for("probe"))
        assert (raised.value.type, raised.value.non_retryable) == (TRANSIENT, False)
        assert raised.value.message == "busy"
    result = await environment(attempt=3).run(activities.call_tool, request_for("probe"))
    assert (result.error, result.attempts) == ("transient", 3)
    assert result.output == "Error after 3 attempts: busy"


async def test_the_request_says_which_attempt_is_the_last() -> None:
    activities = activities_of(raising(TransientError("busy")))
    with pytest.raises(ApplicationError):
        await environment(4).run(activities.call_tool, request_for("probe", attempts=5))
    result = await environment(1).run(activities.call_tool, request_for("probe", attempts=1))
    assert result.output == "Error after 1 attempt: busy"


async def test_a_transient_failure_of_an_unsafe_tool_is_returned_at_once() -> None:
    result = await called(activities_of(raising(TransientError("busy"), "unsafe")), "probe")
    assert (result.error, result.attempts) == ("transient", 1)
    assert result.output == "Error after 1 attempt: busy"


async def test_an_unsafe_tool_is_never_started_a_second_time() -> None:
    ran: list[object] = []
    activities = activities_of(probe(ran.append, "unsafe"))
    result = await environment(attempt=2).run(activities.call_tool, request_for("probe"))
    assert result.error == "unknown_outcome"
    assert "nobody knows whether it took effect" in result.output
    assert not ran


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "output"),
    [
        (ValueError("no such thing"), "ValueError: no such thing"),
        (KeyError(), "KeyError"),
        (SystemExit(3), "SystemExit: 3"),
        (StopIteration("end"), "RuntimeError: coroutine raised StopIteration"),
        (Unreadable(), "Unreadable: (its text cannot be read: RuntimeError)"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("kind", ["thread", "loop"])
async def test_any_other_failure_is_told_in_words(error: BaseException, output: str, kind: str) -> None:
    async def run(params: NoParams) -> NoReturn:
        raise error

    failing = probe(run) if kind == "loop" else raising(error)
    result = await called(activities_of(failing), "probe")
    assert (result.output, result.error, result.attempts) == (output, "failed", 1)


async def test_a_tool_that_cancels_itself_has_failed() -> None:
    async def run(params: NoParams) -> None:
        raise asyncio.CancelledError

    result = await called(activities_of(probe(run)), "probe")
    assert (result.output, result.error) == ("RuntimeError: the tool cancelled itself", "failed")


@pytest.mark.parametrize(("effect", "error"), [("read", "timeout"), ("unsafe", "unknown_outcome")])
async def test_a_tool_that_hangs_is_given_up_and_told_so(effect: ToolEffect, error: str) -> None:
    told = threading.Event()

    def run(params: NoParams, call: ToolCallContext) -> None:
        while not call.cancelled():
            time.sleep(0.01)
        told.set()

    result = await called(activities_of(probe(run, effect, timeout_seconds=0.1)), "probe")
    assert result.error == error
    assert "probe did not finish within 0.1 s" in result.output
    assert await asyncio.to_thread(told.wait, 10)


async def test_an_asynchronous_tool_that_hangs_is_cancelled() -> None:
    ended: list[str] = []

    async def run(params: NoParams) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    result = await called(activities_of(probe(run, timeout_seconds=0.05)), "probe")
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


async def test_a_huge_error_message_is_cut_too() -> None:
    result = await called(activities_of(raising(ValueError("x" * 100_000))), "probe")
    assert len(result.output) < 20_000
    with pytest.raises(ApplicationError) as raised:
        await called(activities_of(raising(TransientError("x" * 100_000))), "probe")
    assert len(raised.value.message) == 2000


class Stubborn(Exception):
    """Its text, and that of what is returned, ends the program."""

    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (raising(Stubborn()), "Stubborn: (its text cannot be read: SystemExit)"),
        (returning({"a": Stubborn()}), "TypeError: the tool ran, but what it returned cannot be shown"),
        (raising(KeyboardInterrupt()), "RuntimeError: the tool raised KeyboardInterrupt"),
    ],
)
async def test_nothing_that_a_tool_raises_ends_the_worker(tool: Tool[Any], said: str) -> None:
    result = await called(activities_of(tool), "probe")
    assert (result.error, result.output[: len(said)]) == ("failed", said)
