"""What comes after a call: did it take effect, and undo it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from pydantic import BaseModel

from activities.contracts import (
    Compensated,
    CompensateInput,
    Reconciled,
    ReconcileInput,
    ToolEffect,
)
from activities.tools import Happened, NotHappened, Tool, ToolCallContext, ToolReturn, TransientError
from tests.activities.toolkit import KEY, runner_of


class Pay(BaseModel, frozen=True, extra="forbid"):
    """Pay somebody."""

    cents: int


def never(params: Pay) -> NoReturn:
    raise AssertionError


def payer(
    *,
    reconcile: Callable[..., object] | None = None,
    compensate: Callable[..., object] | None = None,
    effect: ToolEffect = "unsafe",
    timeout_seconds: float = 10,
) -> Tool[Pay]:
    """A tool whose `run` must not be called."""
    return Tool(
        "pay",
        Pay,
        never,
        effect=effect,
        timeout_seconds=timeout_seconds,
        reconcile=reconcile,
        compensate=compensate,
    )


def question(**arguments: Any) -> ReconcileInput:
    return ReconcileInput(id="call-1", tool="pay", arguments=arguments or {"cents": 5}, key=KEY)


def undoing(output: str = "paid", **arguments: Any) -> CompensateInput:
    return CompensateInput(tool="pay", arguments=arguments or {"cents": 5}, output=output, key=KEY)


def saying(said: object) -> Callable[[object, object], object]:
    """A function of a tool that returns or raises this."""

    def answer(first: object, second: object) -> object:
        if isinstance(said, BaseException):
            raise said
        return said

    return answer


async def reconciled(said: object, attempt: int = 1) -> Reconciled:
    return await runner_of(payer(reconcile=saying(said))).reconcile_tool(question(), attempt)


async def compensated(said: object, effect: ToolEffect = "unsafe", attempt: int = 1) -> Compensated:
    runner = runner_of(payer(compensate=saying(said), effect=effect))
    return await runner.compensate_tool(undoing(), attempt)


# -- did it happen? -------------------------------------------------------------------------------


async def test_call_that_happened_has_the_result_of_run() -> None:
    found = await reconciled(Happened(ToolReturn({"n": 1}, cost_usd=0.5, marks=("paid",))))
    assert found.outcome == "happened"
    assert found.result is not None
    assert (found.result.id, found.result.tool, found.result.output) == ("call-1", "pay", '{"n":1}')
    assert (found.result.ok, found.result.cost_usd, found.result.marks) == (True, 0.5, ("paid",))


@pytest.mark.parametrize(
    ("said", "outcome", "text"),
    [
        (NotHappened("no such payment"), "not_happened", "no such payment"),
        (NotHappened(), "not_happened", "the call took no effect"),
        (None, "unknown", "pay: it cannot tell"),
        (True, "unknown", "reconcile returned bool"),
        (NotHappened, "unknown", "reconcile returned type"),
        (ValueError("no statement"), "unknown", "ValueError: no statement"),
        (SystemExit(3), "unknown", "SystemExit: 3"),
        (asyncio.CancelledError(), "unknown", "CancelledError"),
    ],
    ids=str,
)
async def test_anything_else_is_not_a_result(said: object, outcome: str, text: str) -> None:
    found = await reconciled(said)
    assert (found.outcome, found.result) == (outcome, None)
    assert text in found.text


async def test_reconcile_gets_key_and_arguments_and_may_repeat() -> None:
    seen: list[object] = []

    async def reconcile(key: str, params: Pay, call: ToolCallContext) -> Happened:
        seen.extend([key, params, call.key, call.undoes, call.attempt])
        return Happened("paid")

    found = await runner_of(payer(reconcile=reconcile)).reconcile_tool(question(cents=7), 2)
    assert (found.outcome, seen) == ("happened", [KEY, Pay(cents=7), KEY, "", 2])


async def test_transient_failure_to_find_out_raises_until_last_attempt() -> None:
    for attempt in (1, 2):
        with pytest.raises(TransientError, match="busy"):
            await reconciled(ConnectionResetError("busy"), attempt)
    found = await reconciled(ConnectionResetError("busy"), 3)
    assert (found.outcome, found.text.endswith(": busy")) == ("unknown", True)


IMPOSSIBLE = [
    pytest.param((), {"cents": 5}, "Unknown tool", id="no tool"),
    pytest.param((payer(),), {"cents": 5}, "pay declares no ", id="no function"),
    pytest.param(
        (payer(reconcile=saying(Happened("")), compensate=saying("")),),
        {"euros": 5},
        "cents: ",
        id="arguments",
    ),
]


@pytest.mark.parametrize(("tools", "arguments", "text"), IMPOSSIBLE)
async def test_what_cannot_be_called_says_why(
    tools: tuple[Tool[Any], ...], arguments: dict[str, Any], text: str
) -> None:
    found = await runner_of(*tools).reconcile_tool(question(**arguments))
    done = await runner_of(*tools).compensate_tool(undoing(**arguments))
    assert (found.outcome, done.ok) == ("unknown", False)
    assert text in found.text
    assert text in done.text


# -- undo it --------------------------------------------------------------------------------------


async def test_call_is_undone_with_arguments_output_and_both_keys() -> None:
    seen: list[object] = []

    async def compensate(params: Pay, output: str, call: ToolCallContext) -> str:
        seen.extend([params, output, call.key, call.undoes])
        return "5 cents are back"

    done = await runner_of(payer(compensate=compensate)).compensate_tool(undoing("paid 5"))
    assert (done.ok, done.text) == (True, "5 cents are back")
    assert seen == [Pay(cents=5), "paid 5", f"{KEY}/undo", KEY]


@pytest.mark.parametrize(
    ("said", "ok", "text"),
    [
        (None, True, "undone"),
        ("", True, "undone"),
        ({"refund": 1}, True, '{"refund":1}'),
        ("x" * 5000, True, "x" * 2000),
        (ValueError("too late"), False, "pay: ValueError: too late"),
        (ValueError("x" * 5000), False, "pay: ValueError: " + "x" * 1983),
        (SystemExit(), False, "pay: SystemExit"),
        (TransientError("busy"), False, "pay: busy"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_what_a_tool_says_of_undoing_is_passed_on(said: object, ok: bool, text: str) -> None:
    done = await compensated(said)
    assert (done.ok, done.text) == (ok, text)


@pytest.mark.parametrize("effect", ["idempotent", "keyed"])
async def test_undoing_with_a_repeatable_tool_is_repeated(effect: ToolEffect) -> None:
    for attempt in (1, 2):
        with pytest.raises(TransientError):
            await compensated(TransientError("busy"), effect, attempt)
    assert (await compensated(TransientError("busy"), effect, attempt=3)).ok is False
    assert (await compensated("back", effect, attempt=2)).ok is True


async def test_undoing_with_an_unsafe_tool_never_starts_twice() -> None:
    ran: list[object] = []
    runner = runner_of(payer(compensate=lambda params, output: ran.append(params)))
    done = await runner.compensate_tool(undoing(), 2)
    assert (done.ok, ran) == (False, [])
    assert "unknown" in done.text


# -- the activities --------------------------------------------------------------------------------


async def test_undoing_that_hangs_is_cancelled_with_unknown_outcome() -> None:
    ended: list[str] = []

    async def compensate(params: Pay, output: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    runner = runner_of(payer(compensate=compensate, timeout_seconds=0.05))
    done = await runner.compensate_tool(undoing())
    assert (done.ok, ended) == (False, ["cancelled"])
    assert "the outcome is unknown" in done.text
