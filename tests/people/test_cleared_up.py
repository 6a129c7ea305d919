"""What became of a call: what the tool finds out, what people know, and the list of what was done outside."""

from __future__ import annotations

from typing import Any

import pytest

from activities.contracts import CallModel, Effect, ToolResult
from activities.contracts_people import Reconciled
from tests.machines.answers import act, final, tool_failed, tool_said
from tests.machines.driver import Reaction
from tests.machines.scripts_tools import calls
from tests.people.bench import Bench, unsafe
from tests.people.test_loose_ends import nobody_knows
from workflows.people import ApprovalRule, Approvals, Asking, Group, People, Remember

FREELY = Approvals(effects={"unsafe": "never"})
CALL = act("tool", q="x")
BOOKED = ToolResult(id="0", tool="tool", output="booking 42")


def lost(*behind: Reaction, times: int = 1, **more: Any) -> Bench:
    """A run whose call's outcome nobody knows, so many times, and then what comes behind."""
    return Bench("react", (CALL, *[nobody_knows] * times, *behind), **{"approvals": FREELY, **more})


# -- what the tool finds out --------------------


async def test_a_call_of_which_the_tool_says_that_it_happened_is_taken_as_made() -> None:
    run = lost(final(), tool=unsafe(compensates=True))
    run.found = Reconciled(outcome="happened", result=BOOKED, text="it is in the books")
    async with run:
        assert run.exit.ok
        assert len(run.called) == 1
        assert run.loop.desk.closed == ()
        assert "happened, it is in the books" in run.record("Reconciled").reason
        (call,) = run.loop.calls.since(0)
        assert (call.output, call.error) == ("booking 42", None)


async def test_a_call_of_which_the_tool_says_that_it_did_not_happen_is_made_three_times_more() -> None:
    run = lost(tool_said(), final(), times=4, tool=unsafe())
    run.found = Reconciled(outcome="not_happened")
    async with run:
        assert len(run.called) == 4
        assert len(run.asked_after) == 4
        (asked,) = run.open
        assert (asked.kind, asked.place) == ("outcome", f"{run.called[0][0]}+3")
        await run.decide("retry")
        assert len(run.called) == 5
        assert run.exit.ok


@pytest.mark.parametrize("answer", [None, Reconciled(outcome="unknown", text="the books are closed")])
async def test_where_the_tool_cannot_tell_people_are_asked_and_the_tool_not_again(answer: Any) -> None:
    run = lost(final(), tool=unsafe())
    run.found = answer
    async with run:
        assert [request.kind for request in run.open] == ["outcome"]
        await run.command("pause")
        await run.command("resume")
        assert len(run.asked_after) == 1
        assert run.events.count("Reconciled") == (answer is not None)
        await run.decide("answer", text="it happened")
        assert len(run.called) == 1


async def test_what_is_not_known_again_is_asked_again() -> None:
    async with lost(tool_said(), final(), times=2, tool=unsafe()) as run:
        (first,) = run.open
        await run.decide("retry")
        (second,) = run.open
        assert (first.place, second.place) == (run.called[0][0], f"{run.called[0][0]}+1")
        assert len(run.asked_after) == 2
        await run.decide("retry")
        assert run.exit.ok


async def test_an_abort_at_a_call_of_unknown_outcome_ends_the_run() -> None:
    async with lost(tool=unsafe()) as run:
        await run.decide("abort", text="leave it")
        assert run.exit.reason == "aborted"


async def test_who_is_named_for_unknown_outcomes_is_asked_before_those_who_let_the_call_pass() -> None:
    people = People(
        groups={"board": Group(members=("bea",)), "ops": Group(members=("ann",))},
        kinds={"outcome": Asking(group="ops")},
    )
    approvals = Approvals(rules=(ApprovalRule(asking=Asking(group="board")),))
    async with lost(tool=unsafe(), people=people, approvals=approvals) as run:
        await run.decide("approve", by="bea")
        assert (run.open[0].kind, run.open[0].approvers) == ("outcome", ("ann",))


# -- what was done outside --------------------


async def test_a_call_that_did_not_happen_is_in_no_list_while_it_is_made_again() -> None:
    async with lost(tool_said(), tool=unsafe()) as run:
        assert len(run.loop.calls.since(0)) == 1
        run.blocked = True
        await run.decide("retry")
        assert run.loop.calls.since(0) == ()


async def test_a_call_that_was_cut_off_is_in_the_list() -> None:
    async with Bench("react", (CALL,), tool=unsafe()) as run:
        run.blocked = True
        await run.decide("approve")
        await run.command("abort")
        (call,) = run.loop.calls.since(0)
        assert call.error == "cut off: nobody knows whether it took effect"


@pytest.mark.parametrize("effect", ["pure", "read"])
async def test_a_call_that_changes_nothing_outside_is_in_no_list(effect: Any) -> None:
    async with Bench("react", (CALL, tool_said(), final()), tool=unsafe(effect=effect)) as run:
        assert run.called
        assert run.loop.calls.since(0) == ()


async def test_a_call_that_was_not_made_is_in_no_list_and_in_no_log() -> None:
    async with Bench("tools", (calls("tool", "tool"), tool_said()), tool=unsafe()) as run:
        first, second = run.open
        await run.decide("reject", first)
        run.blocked = True
        await run.decide("approve", second)
        await run.command("abort")
        assert "CallMade" not in run.events
        assert [call.place for call in run.loop.calls.since(0)] == [run.called[0][0]]


@pytest.mark.parametrize("compensates", [True, False])
async def test_the_list_has_all_that_a_compensation_needs_and_cuts_the_rest(compensates: bool) -> None:
    answers = (act("tool", q="x" * 900), tool_said("y" * 900), final())
    async with Bench("react", answers, tool=unsafe(compensates=compensates), approvals=FREELY) as run:
        (call,) = run.loop.calls.since(0)
        assert len(call.output) == (900 if compensates else 500)
        assert (call.arguments["q"] == "x" * 900) is compensates


async def test_calls_of_a_later_step_alone_are_undone_and_only_those_that_can_be() -> None:
    twice = (CALL, tool_said(), act("tool", q="y"), tool_said())
    async with Bench("react", twice, tool=unsafe(compensates=True), approvals=FREELY) as run:
        _, second = run.loop.calls.since(1)
        await run.command("rollback", step=2, compensate=True)
        assert run.compensated == [second.place]
    async with Bench("react", twice, tool=unsafe(), approvals=FREELY) as run:
        order = await run.command("rollback", step=1, compensate=True)
        assert (order.done is not None and order.done.undone, run.compensated) == ((), [])


# -- what people said of calls --------------------


async def test_a_call_that_was_rejected_stays_so_when_a_later_approval_would_let_it_pass() -> None:
    async with Bench("tools", (calls("tool", "tool"), tool_said()), tool=unsafe(parameters={})) as run:
        first, second = run.open
        await run.command("pause")
        await run.decide("reject", first)
        await run.decide("approve", second, remember=Remember())
        await run.command("resume")
        assert [name for name, _ in run.called] == [second.place]
        assert "ApprovedBefore" not in run.events


async def test_the_log_says_once_who_approved_a_call_beforehand() -> None:
    def calls_again(effect: Effect) -> Any:
        run.blocked = True
        return act("tool", q="y")

    always = Approvals(effects={"keyed": "always"})
    answers = (CALL, tool_said(), calls_again, tool_said(), final())
    run = Bench("react", answers, tool=unsafe(effect="keyed"), approvals=always)
    async with run:
        await run.decide("approve", remember=Remember())
        await run.command("pause", at_once=True)
        run.blocked = False
        await run.command("resume")
        assert run.exit.ok
        assert len(run.called) == 3, "the second was stopped and made anew"
        assert run.events.count("ApprovedBefore") == 1
        assert "ann" in run.record("ApprovedBefore").reason


async def test_a_call_asks_for_what_the_run_has_spent_by_then() -> None:
    dear = (act("tool", q="x", cost=0.3), tool_said(), final())
    approvals = Approvals(effects={"unsafe": "never"}, rules=(ApprovalRule(cost_above=0.2),))
    async with Bench("react", dear, tool=unsafe(), approvals=approvals) as run:
        assert [request.kind for request in run.open] == ["approval"]
    async with Bench("react", (CALL, *dear[1:]), tool=unsafe(), approvals=approvals) as run:
        assert run.exit.ok


async def test_output_that_machines_may_read_stays_json_behind_an_edit() -> None:
    for output in ("[1]", "found"):
        async with Bench("react", (CALL, tool_said(output), final()), tool=unsafe()) as run:
            await run.decide("edit", arguments={"q": "z"})
            assert ("A person changed" in str(run.records)) is (output == "found")


async def test_an_unknown_tool_is_asked_about_by_nobody() -> None:
    async with Bench("tools", (calls("rm"), tool_failed("unknown_tool")), tool=unsafe()) as run:
        assert run.exit.reason == "failed"
        assert "Requested" not in run.events


# -- commands --------------------


def asking(**more: Any) -> Bench:
    """A run in the middle of a model call."""
    run = Bench("react", (CALL, tool_said(), final()), **more)
    run.blocked = True
    return run


async def test_a_pause_lets_a_model_call_end_which_is_not_made_again() -> None:
    async with asking() as run:
        order = await run.command("pause")
        assert order.done is not None
        assert order.done.text == "the run stands still when what is under way has ended: think #1"
        run.blocked = False
        await run.settled()
        assert (run.loop.paused, len(run.performed)) == (True, 1)


async def test_a_pause_at_once_stops_what_a_pause_has_let_go_on() -> None:
    async with asking() as run:
        await run.command("pause")
        order = await run.command("pause", at_once=True)
        assert order.done is not None
        assert run.blocked
        again = await run.command("pause", at_once=True)
        assert again.refused == "the run is paused already"


async def test_what_could_not_be_obeyed_is_refused_while_a_model_call_is_under_way() -> None:
    async with asking() as run:
        assert "there is no limit 'calls'" in (await run.command("limits", limits={"calls": 1})).refused
        assert "is not paused" in (await run.command("resume")).refused
        assert (await run.command("limits", limits={"model_calls": 50})).done
        assert len(run.performed) == 1


async def test_a_message_stops_a_model_call_which_is_asked_anew_with_it() -> None:
    async with asking() as run:
        assert (await run.command("steer", text="be quick")).over
        first, second = (effect for _, effect in run.performed)
        assert ("be quick" in str(prompt(first)), "be quick" in str(prompt(second))) == (False, True)


async def test_a_message_waits_for_a_model_call_that_could_not_be_paid_for_twice() -> None:
    async with asking(limits={"model_calls": 1}) as run:
        order = await run.command("steer", text="be quick")
        assert (order.over, len(run.performed)) == (False, 1)
        run.blocked = False
        await run.settled()
        assert (order.over, len(run.called)) == (True, 1)


def prompt(effect: Effect) -> list[Any]:
    assert isinstance(effect, CallModel)
    return [message.content for message in effect.transcript.messages]


async def test_a_refused_rollback_leaves_open_requests_as_they_are() -> None:
    async with Bench("react", (CALL,), tool=unsafe()) as run:
        (asked,) = run.open
        assert (await run.command("rollback", step=99)).refused
        assert run.open == (asked,)


async def test_a_message_behind_the_call_at_hand_leaves_its_request_open() -> None:
    async with Bench("react", (CALL,), tool=unsafe()) as run:
        (asked,) = run.open
        await run.command("steer", text="be quick")
        assert run.open == (asked,)
        assert "blank" in (await run.command("steer", text=" \n")).refused


async def test_a_model_call_that_a_rollback_stopped_is_paid_for() -> None:
    run = Bench("react", (CALL, tool_said()))
    run.blocked = True
    async with run:
        await run.command("rollback", step=1)
        assert run.loop.stack.ledger.used("model_calls") == 2


async def test_limits_leave_a_request_open_that_is_about_another_limit() -> None:
    people = People(on_limit="ask")
    async with Bench("react", (CALL, tool_said()), people=people, limits={"model_calls": 1}) as run:
        (asked,) = run.open
        await run.command("limits", limits={"tokens": 9})
        assert run.open == (asked,)
        await run.command("limits", limits={"model_calls": 50})
        assert run.loop.desk.get(asked.id).outcome == "withdrawn"
        assert len(run.performed) == 3


async def test_a_limit_that_was_changed_and_is_still_reached_is_asked_about_anew() -> None:
    people = People(on_limit="ask")
    async with Bench("react", (CALL, tool_said()), people=people, limits={"model_calls": 1}) as run:
        (asked,) = run.open
        await run.command("limits", limits={"model_calls": 0})
        assert run.loop.desk.get(asked.id).outcome == "withdrawn"
        (again,) = run.open
        assert again.arguments == {"counter": "model_calls", "cap": 0}


async def test_limits_leave_a_request_open_that_is_about_a_call() -> None:
    people = People(on_limit="ask")
    async with Bench("react", (CALL, tool_said()), tool=unsafe(), people=people) as run:
        (asked,) = run.open
        await run.command("pause")
        await run.command("limits", limits={"tool_calls": 0})
        await run.command("limits", limits={"tool_calls": 5})
        assert run.open == (asked,)
