"""`reconcile_tool` and `compensate_tool`, whatever a tool does when it is asked after a call."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import structlog
from pydantic import BaseModel
from temporalio.exceptions import ApplicationError

from activities.contracts import TRANSIENT, ArtifactSpec, ToolEffect
from activities.contracts_people import Compensated, CompensateRequest, Reconciled, ReconcileRequest
from activities.settings import Settings
from activities.tool_after import AfterActivities
from activities.toolbox import (
    Happened,
    NotHappened,
    Tool,
    Toolbox,
    ToolCallContext,
    ToolReturn,
    TransientError,
)
from tests.activities.toolkit import environment

KEY = "run/0/action#1:0"


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


def after(*tools: Tool[Any], **more: Any) -> AfterActivities:
    return AfterActivities(Toolbox(tools), Settings(**more))


def wanting(**arguments: Any) -> ReconcileRequest:
    return ReconcileRequest(id="call-1", tool="pay", arguments=arguments or {"cents": 5}, key=KEY)


def undoing(output: str = "paid", **arguments: Any) -> CompensateRequest:
    return CompensateRequest(tool="pay", arguments=arguments or {"cents": 5}, output=output, key=KEY)


async def reconciled(said: object) -> Reconciled:
    """What the activity answers when a tool's reconcile returns or raises this."""
    return await environment().run(after(payer(reconcile=saying(said))).reconcile_tool, wanting())


async def compensated(said: object, effect: ToolEffect = "unsafe", attempt: int = 1) -> Compensated:
    """What the activity answers when a tool's compensate returns or raises this."""
    activities = after(payer(compensate=saying(said), effect=effect))
    return await environment(attempt).run(activities.compensate_tool, undoing())


def saying(said: object) -> Callable[[object, object], object]:
    def answer(first: object, second: object) -> object:
        if isinstance(said, BaseException):
            raise said
        return said

    return answer


# -- did it happen? -------------------------------------------------------------------------------


async def test_a_call_that_happened_has_the_result_that_its_worker_could_not_give() -> None:
    found = await reconciled(Happened(ToolReturn({"n": 1}, cost_usd=0.5, marks=("paid",))))
    assert found.outcome == "happened"
    assert found.result is not None
    assert (found.result.id, found.result.tool, found.result.output) == ("call-1", "pay", '{"n":1}')
    assert (found.result.ok, found.result.cost_usd, found.result.marks) == (True, 0.5, ("paid",))


async def test_what_the_call_was_to_keep_is_kept() -> None:
    kept: list[bytes] = []

    async def keep(whole: bytes) -> str:
        kept.append(whole)
        return f"{len(kept):064}"

    tool = payer(reconcile=saying(Happened("x" * 100)))
    activities = AfterActivities(Toolbox([tool]), Settings(output_cap=10), keep)
    request = wanting().model_copy(update={"artifacts": (ArtifactSpec(name="receipt"),)})
    found = await environment().run(activities.reconcile_tool, request)
    assert found.result is not None
    assert found.result.output == "x" * 10 + "\n[90 of 100 characters left out; the whole is kept]"
    assert [artifact.name for artifact in found.result.artifacts] == ["receipt"]
    assert kept == [b"x" * 100] * 2


@pytest.mark.parametrize(
    ("said", "outcome", "text"),
    [
        (NotHappened("no such payment"), "not_happened", "no such payment"),
        (NotHappened(), "not_happened", "the call took no effect"),
        (None, "unknown", "pay cannot tell whether the call took effect"),
        (True, "unknown", "reconcile returned bool, expected Happened(output), NotHappened() or None"),
        (NotHappened, "unknown", "reconcile returned type, expected Happened(output)"),
        (ValueError("no statement"), "unknown", "pay did not find out: ValueError: no statement"),
        (SystemExit(3), "unknown", "pay did not find out: SystemExit: 3"),
        (asyncio.CancelledError(), "unknown", "RuntimeError: the tool cancelled itself"),
    ],
    ids=str,
)
async def test_all_else_that_a_tool_says_is_no_result(said: object, outcome: str, text: str) -> None:
    found = await reconciled(said)
    assert (found.outcome, found.result) == (outcome, None)
    assert text in found.text


async def test_a_call_happened_even_if_what_it_gave_cannot_be_shown() -> None:
    found = await reconciled(Happened(iter([1])))
    assert (found.outcome, found.result and found.result.error) == ("happened", "failed")
    assert found.result is not None
    assert "the tool ran, but what it returned cannot be shown" in found.result.output


async def test_the_tool_is_asked_with_the_key_and_the_arguments_of_the_call() -> None:
    asked: list[object] = []

    async def reconcile(key: str, params: Pay, call: ToolCallContext) -> Happened:
        asked.extend([key, params, call.key, call.undoes, call.attempt])
        return Happened("paid")

    activities = after(payer(reconcile=reconcile))
    # After a crash the question is asked again: it only looks.
    found = await environment(attempt=2).run(activities.reconcile_tool, wanting(cents=7))
    assert (found.outcome, asked) == ("happened", [KEY, Pay(cents=7), KEY, "", 2])


@pytest.mark.parametrize("error", [TransientError("busy"), ConnectionResetError("busy")], ids=str)
async def test_a_transient_failure_to_find_out_is_raised_and_in_the_end_told(error: Exception) -> None:
    activities = after(payer(reconcile=saying(error)))
    for attempt in (1, 2):
        with pytest.raises(ApplicationError) as raised:
            await environment(attempt).run(activities.reconcile_tool, wanting())
        assert (raised.value.type, raised.value.message, raised.value.non_retryable) == (
            TRANSIENT,
            "busy",
            False,
        )
    found = await environment(attempt=3).run(activities.reconcile_tool, wanting())
    assert (found.outcome, found.text.endswith(": busy")) == ("unknown", True)


async def test_a_tool_that_does_not_find_out_in_time_is_given_up() -> None:
    told = threading.Event()

    def reconcile(key: str, params: Pay, call: ToolCallContext) -> None:
        while not call.cancelled():
            time.sleep(0.01)
        told.set()

    activities = after(payer(reconcile=reconcile, timeout_seconds=0.1))
    found = await environment().run(activities.reconcile_tool, wanting())
    assert (found.outcome, found.text) == ("unknown", "pay did not find out within 0.1 s")
    assert await asyncio.to_thread(told.wait, 10)


@pytest.mark.parametrize(
    ("tools", "arguments", "text"),
    [
        ((), {"cents": 5}, "this worker has no tool pay; name its module with RATCHET_MODULES"),
        ((payer(),), {"cents": 5}, "pay declares no `reconcile`"),
        ((payer(reconcile=saying(Happened(""))),), {"euros": 5}, "cents: Field required"),
    ],
    ids=["no tool", "no reconcile", "other arguments"],
)
async def test_what_cannot_be_asked_is_unknown(
    tools: tuple[Tool[Any], ...], arguments: dict[str, Any], text: str
) -> None:
    found = await environment().run(after(*tools).reconcile_tool, wanting(**arguments))
    assert found.outcome == "unknown"
    assert text in found.text
    assert "was not run" not in found.text


# -- undo it --------------------------------------------------------------------------------------


async def test_a_call_is_undone_with_its_arguments_its_output_and_both_keys() -> None:
    seen: list[object] = []

    async def compensate(params: Pay, output: str, call: ToolCallContext) -> str:
        seen.extend([params, output, call.key, call.undoes])
        return "5 cents are back"

    activities = after(payer(compensate=compensate))
    done = await environment().run(activities.compensate_tool, undoing("paid 5"))
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
        (TransientError("busy"), False, "pay: TransientError: busy"),
        (asyncio.CancelledError(), False, "pay: RuntimeError: the tool cancelled itself"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_what_a_tool_says_of_the_undoing_is_told(said: object, ok: bool, text: str) -> None:
    done = await compensated(said)
    assert (done.ok, done.text) == (ok, text)


async def test_what_undoing_costs_is_told() -> None:
    assert await compensated(ToolReturn("back", cost_usd=0.1)) == Compensated(
        ok=True, text="back", cost_usd=0.1
    )


@pytest.mark.parametrize("effect", ["idempotent", "keyed"])
async def test_undoing_is_repeated_for_a_tool_that_may_be_repeated(effect: ToolEffect) -> None:
    for attempt in (1, 2):
        with pytest.raises(ApplicationError) as raised:
            await compensated(TransientError("busy"), effect, attempt)
        assert raised.value.type == TRANSIENT
    assert (await compensated(TransientError("busy"), effect, attempt=3)).ok is False
    assert (await compensated("back", effect, attempt=2)).ok is True


async def test_undoing_with_an_unsafe_tool_is_never_started_a_second_time() -> None:
    ran: list[object] = []
    activities = after(payer(compensate=lambda params, output: ran.append(params)))
    done = await environment(attempt=2).run(activities.compensate_tool, undoing())
    assert not done.ok
    assert "nobody knows whether the call is undone" in done.text
    assert not ran


async def test_undoing_that_hangs_is_given_up_and_told_so() -> None:
    ended: list[str] = []

    async def compensate(params: Pay, output: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    activities = after(payer(compensate=compensate, timeout_seconds=0.05))
    done = await environment().run(activities.compensate_tool, undoing())
    assert (done.ok, ended) == (False, ["cancelled"])
    assert "did not end within 0.05 s; nobody knows whether the call is undone" in done.text


@pytest.mark.parametrize(
    ("tools", "arguments", "text"),
    [
        ((), {"cents": 5}, "this worker has no tool pay"),
        ((payer(),), {"cents": 5}, "pay declares no `compensate`"),
        ((payer(compensate=saying("")),), {"cents": "many"}, "cents: Input should be a valid integer"),
    ],
    ids=["no tool", "no compensate", "other arguments"],
)
async def test_what_cannot_be_undone_says_why(
    tools: tuple[Tool[Any], ...], arguments: dict[str, Any], text: str
) -> None:
    done = await environment().run(after(*tools).compensate_tool, undoing(**arguments))
    assert not done.ok
    assert text in done.text


# -- both -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["reconcile", "compensate"])
async def test_cancelling_the_activity_cancels_the_tool(way: str) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def work(first: object, second: object) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    activities = after(payer(reconcile=work, compensate=work))
    place = environment()
    running: asyncio.Future[object] = asyncio.ensure_future(
        place.run(activities.reconcile_tool, wanting())
        if way == "reconcile"
        else place.run(activities.compensate_tool, undoing())
    )
    await started.wait()
    place.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()


async def test_people_see_what_the_tool_reports() -> None:
    async def reconcile(key: str, params: Pay, call: ToolCallContext) -> None:
        call.heartbeat("reading the statement")
        await asyncio.sleep(1.5)

    beats: list[tuple[Any, ...]] = []
    place = environment()
    place.on_heartbeat = lambda *details: beats.append(details)
    await place.run(after(payer(reconcile=reconcile)).reconcile_tool, wanting())
    assert beats[0] == ("pay: did the call take effect?",)
    assert ("reading the statement",) in beats


async def test_the_log_names_the_tool_and_no_content() -> None:
    tool = payer(reconcile=saying(NotHappened("secret")), compensate=saying("secret"))
    with structlog.testing.capture_logs() as logs:
        await environment().run(after(tool).reconcile_tool, wanting())
        await environment().run(after(tool).compensate_tool, undoing("secret"))
    assert [log["event"] for log in logs] == ["tool.reconciled", "tool.compensated"]
    assert (logs[0]["outcome"], logs[1]["ok"]) == ("not_happened", True)
    assert "secret" not in str(logs)


# -- declarations ---------------------------------------------------------------------------------


def test_a_tool_says_what_it_can_do_after_a_call() -> None:
    assert (payer().spec().reconciles, payer().spec().compensates) == (False, False)
    both = payer(reconcile=saying(None), compensate=saying(None)).spec()
    assert (both.reconciles, both.compensates) == (True, True)


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        (
            {"reconcile": lambda key: None},
            r"reconcile must be a function of \(key, params\) or \(key, params, call\)",
        ),
        ({"reconcile": 5}, "reconcile must be a function"),
        ({"compensate": lambda params: None}, r"compensate must be a function of \(params, output\) or"),
        ({"compensate": lambda a, b, c, d: None}, "compensate must be a function"),
        (
            {"reconcile": lambda key, params: None, "effect": "keyed"},
            "reconcile is for unsafe tools; one that is keyed is run again instead",
        ),
        (
            {"compensate": lambda params, output: None, "effect": "pure"},
            "nothing to undo of a tool that is pure",
        ),
        (
            {"compensate": lambda params, output: None, "effect": "read"},
            "nothing to undo of a tool that is read",
        ),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(declaration: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"tool 'pay': .*{words}"):
        payer(**declaration)
