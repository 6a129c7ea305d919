"""Nothing is lost, and nothing stays open: what was found out, what was undone, what came too late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from activities.contracts import CallTools, EffectFailed, ToolEffect, ToolResult, ToolsReturned
from tests.machines.answers import act, final, tool_said
from tests.people.bench import Bench, unsafe
from workflows.api import PageQuery
from workflows.gate.ticket import Refused
from workflows.pages import details, requests_page
from workflows.people import Approvals, Decision, People
from workflows.retries import all_of

FREELY = Approvals(effects={"unsafe": "never"})
CALL = act("tool", q="x")
ANSWERS = (CALL, tool_said("paid", cost=0.5), final())


def nobody_knows(effect: CallTools) -> ToolsReturned:
    """The worker died in the middle."""
    run = effect.runs[0]
    result = ToolResult(id=run.id, tool=run.tool, output="nobody knows", error="unknown_outcome")
    return ToolsReturned(results=(result,))


def in_doubt(**more: Any) -> Bench:
    """A run that waits for somebody who looks what became of its call."""
    answers = (CALL, nobody_knows, *ANSWERS[1:])
    return Bench("react", answers, tool=unsafe(**more), approvals=FREELY)


async def test_the_report_of_effects_knows_what_people_found_out() -> None:
    async with in_doubt(compensates=True) as run:
        assert [call.error for call in run.loop.calls.since(0)] == ["unknown_outcome"]
        run.answers = iter(ANSWERS[2:])
        await run.decide("answer", text="it happened: booking 42")
        (call,) = run.loop.calls.since(0)
        assert (call.error, "booking 42" in call.output) == (None, True)


async def test_a_call_that_did_not_happen_is_no_effect_until_it_is_made() -> None:
    async with in_doubt() as run:
        await run.command("pause")
        await run.decide("retry")
        await run.command("resume")
        assert [call.error for call in run.loop.calls.since(0)] == [None]


async def test_what_could_not_be_undone_is_still_an_effect() -> None:
    tool = unsafe(compensates=True)
    async with Bench("react", ANSWERS[:2], tool=tool, approvals=FREELY) as run:
        run.undoes = False
        order = await run.command("rollback", step=1, compensate=True)
        assert order.done is not None
        assert "not undone" in order.done.undone[0]
        assert [call.undone for call in run.loop.calls.since(1)] == [None]
        assert "not undone" in run.record("Compensated").reason


def two_to_undo(effect: ToolEffect) -> Bench:
    """A run that has made two calls which can be undone."""
    answers = (*ANSWERS[:2], *ANSWERS[:2])
    return Bench("react", answers, tool=unsafe(effect=effect, compensates=True), approvals=FREELY)


async def test_an_abort_stops_an_undoing_and_lets_no_other_begin() -> None:
    async with two_to_undo("keyed") as run:
        run.slow = "compensate"
        back = run.order("rollback", step=1, compensate=True)
        await run.settled()
        await run.command("abort")
        assert "an abort came while tool at" in back.refused
        assert run.exit.reason == "aborted"
        assert len(run.compensated) == 1
        assert "nobody knows whether it is undone" in run.record("Compensated").reason
        assert "RolledBack" not in run.events
        assert [call.undone for call in run.loop.calls.history] == [None, None]


async def test_an_abort_lets_the_undoing_by_an_unsafe_tool_end_and_no_other_begin() -> None:
    async with two_to_undo("unsafe") as run:
        run.slow = "compensate"
        back = run.order("rollback", step=1, compensate=True)
        await run.settled()
        abort = await run.command("abort")
        assert not abort.over
        run.slow = ""
        await run.settled()
        assert "an abort came before tool at" in back.refused
        assert run.exit.reason == "aborted"
        assert len(run.compensated) == 1
        assert "undone: as asked" in run.record("Compensated").reason
        assert [call.undone is None for call in run.loop.calls.history] == [True, False]


@pytest.mark.parametrize("later", ["pause", "steer", "rollback", "limits"])
async def test_what_is_no_abort_waits_for_an_undoing(later: str) -> None:
    async with two_to_undo("keyed") as run:
        run.slow = "compensate"
        back = run.order("rollback", step=1, compensate=True)
        order = run.order(later, text="x", at_once=True, step=1, limits={"tokens": 1})
        await run.settled()
        assert not back.over
        run.slow = ""
        await run.settled()
        assert (back.refused, order.over) == ("", True)
        assert len(run.compensated) == 2


async def test_an_abort_does_not_wait_for_the_log_to_be_read() -> None:
    async with two_to_undo("keyed") as run:
        run.slow = "log"
        back = run.order("rollback", step=1, compensate=True)
        await run.settled()
        await run.command("abort")
        assert back.refused == "it was not done: an abort came while the log was read"
        assert run.exit.reason == "aborted"
        assert run.compensated == []


@pytest.mark.parametrize("slow", ["log", "compensate"])
@pytest.mark.parametrize("effect", ["keyed", "unsafe"])
async def test_a_cancellation_does_not_wait_for_a_rollback(slow: str, effect: ToolEffect) -> None:
    async with two_to_undo(effect) as run:
        run.slow = slow
        back = run.order("rollback", step=1, compensate=True)
        await run.settled()
        await run.cancel()
        assert run.exit.reason == "cancelled"
        assert back.refused == "the run is over"
        compensated = [record.reason for record in run.records if record.event == "Compensated"]
        assert ["nobody knows" in reason for reason in compensated] == [True] * (slow == "compensate")


@pytest.mark.parametrize("end", ["abort", "cancel"])
async def test_a_call_of_unknown_outcome_is_named_in_the_result_however_the_run_ends(end: str) -> None:
    async with in_doubt() as run:
        if end == "abort":
            await run.command("abort")
        else:
            await run.cancel()
        assert "nobody knows whether tool" in (run.exit.error or "")


async def test_a_call_that_was_made_before_an_abort_is_in_the_log_and_in_the_costs() -> None:
    from tests.machines.scripts_tools import calls

    answers = (calls("tool", "tool"), tool_said("paid", cost=0.5))
    run = Bench("tools", answers, tool=unsafe(), approvals=FREELY)
    async with run:
        assert run.called
    run = Bench("tools", (calls("tool", "tool"), tool_said("paid", cost=0.5)), tool=unsafe())
    async with run:
        first, second = run.open
        await run.decide("approve", first)
        run.blocked = True
        await run.decide("approve", second)
        run.order("pause", at_once=True)
        await run.settled()
        run.blocked = False
        await run.settled()
        await run.command("abort")
        assert "paid" in run.record("CallMade").reason
        assert run.loop.stack.ledger.used("cost_usd") == 0.5


async def test_commands_behind_an_abort_are_refused_and_in_the_log() -> None:
    async with Bench("react", ANSWERS, tool=unsafe()) as run:
        orders = [run.order("abort"), run.order("steer", text="hello"), run.order("pause")]
        await run.settled()
        assert [bool(order.refused) for order in orders] == [False, True, True]
        assert run.events.count("RefusedCommand") == 2


async def test_a_request_about_a_call_that_a_message_has_changed_takes_no_decision() -> None:
    refused = EffectFailed(error="fatal", type="HTTP401", message="no such key")
    people = People(on_trouble="ask")
    async with Bench("react", (refused, *ANSWERS), people=people) as run:
        (asked,) = run.open
        assert asked.kind == "trouble"
        await run.command("pause")
        await run.command("steer", text="be quick")
        with pytest.raises(Refused, match="withdrawn"):
            await run.decide("abort", asked)


async def test_a_model_that_refuses_is_not_asked_again_while_people_look_at_it() -> None:
    refused = EffectFailed(error="fatal", type="HTTP401", message="no such key")
    async with Bench("react", (refused, *ANSWERS), people=People(on_trouble="ask")) as run:
        await run.command("pause")
        await run.command("resume")
        assert len(run.performed) == 1
        (asked,) = run.open
        await run.decide("retry", asked)
        assert run.exit.ok


async def test_an_abort_by_a_decision_counts_also_while_the_run_is_paused() -> None:
    async with Bench("react", ANSWERS, tool=unsafe()) as run:
        await run.command("pause")
        await run.decide("abort")
        assert run.exit.reason == "aborted"


@pytest.mark.parametrize("kind", ["approval", "outcome", "limit"])
async def test_the_json_that_the_web_ui_shows_answers_the_request(kind: str) -> None:
    made: dict[str, Callable[[], Bench]] = {
        "approval": lambda: Bench("react", ANSWERS, tool=unsafe()),
        "outcome": in_doubt,
        "limit": lambda: Bench("react", ANSWERS, people=People(on_limit="ask"), limits={"model_calls": 1}),
    }
    async with made[kind]() as run:
        (asked,) = run.open
        assert asked.kind == kind
        text = details(run.status, "goal", run.records, run.open)
        given = json.loads(text.split("```json\n")[1].split("\n```")[0])
        run.loop.desk.check(Decision.model_validate(given), run.now())


async def test_a_page_says_which_arguments_it_leaves_out() -> None:
    many: dict[str, Any] = {f"a{n:02}": "x" * 300 for n in range(30)}
    async with Bench("react", (act("tool", **many), *ANSWERS[1:]), tool=unsafe(parameters={})) as run:
        (shown,) = requests_page(run.loop, PageQuery()).open
        assert shown.arguments is not None
        assert "10 more" in str(shown.arguments["..."])
        (whole,) = requests_page(run.loop, PageQuery(full=True)).open
        assert whole.arguments == many


async def test_a_top_up_counts_once_also_when_a_lower_limit_is_set_afterwards() -> None:
    people = People(on_limit="ask")
    async with Bench("react", ANSWERS, people=people, limits={"model_calls": 1}) as run:
        await run.command("pause")
        await run.decide("topup", amounts={"model_calls": 50})
        await run.command("limits", limits={"model_calls": 1})
        await run.command("resume")
        assert run.loop.stack.ledger.caps["model_calls"] == 1
        assert run.open[0].id != "r1"


async def test_who_may_let_a_call_happen_may_say_whether_it_did() -> None:
    from workflows.people import ApprovalRule, Asking, Group

    people = People(groups={"board": Group(members=("bea",))})
    rules = (ApprovalRule(tools=("tool",), asking=Asking(group="board")),)
    answers = (CALL, nobody_knows, final())
    async with Bench("react", answers, tool=unsafe(), people=people, approvals=Approvals(rules=rules)) as run:
        await run.decide("approve", by="bea")
        (asked,) = run.open
        assert (asked.kind, asked.approvers) == ("outcome", ("bea",))
        with pytest.raises(Refused, match="ann"):
            await run.decide("retry", asked, by="ann")


async def test_calls_side_by_side_are_all_over_before_the_run_goes_on() -> None:
    ended: list[int] = []

    async def call(number: int) -> int:
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.01 * number)
            ended.append(number)
        return number

    both = asyncio.ensure_future(all_of([call(0), call(1)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    assert ended == [0, 1]


async def test_a_call_that_two_rules_may_put_to_different_people_is_not_made() -> None:
    from workflows.people import ApprovalRule, Asking, Condition, Group

    people = People(
        groups={"clerks": Group(members=("ann",)), "board": Group(members=("bea", "cy"), quorum=2)}
    )
    rules = (
        ApprovalRule(arguments={"q": Condition(below=1000)}, asking=Asking(group="clerks")),
        ApprovalRule(asking=Asking(group="board")),
    )
    unclear = act("tool", q="about five thousand")
    answers = (unclear, final())
    async with Bench("react", answers, tool=unsafe(), people=people, approvals=Approvals(rules=rules)) as run:
        assert run.called == []
        assert run.open == ()
        assert run.exit.ok
        assert "q" in next(r.reason for r in run.records if r.event == "Acted")
