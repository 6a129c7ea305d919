"""What would be refused stops nothing; what ends a run ends it, whatever else is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from activities.contracts import MachineEnded, ModelsReplied, ToolResult, ToolsReturned
from activities.contracts_people import Reconciled
from tests.machines.answers import act, failed, final, said, tool_said
from tests.machines.scripts_code import block
from tests.machines.scripts_code import calls as code_calls
from tests.machines.scripts_tools import call, calls
from tests.people.bench import Bench, unsafe
from tests.people.test_child_runs import child_ends, with_a_child
from tests.people.test_loose_ends import two_to_undo
from workflows.gate.calls import Calls
from workflows.loop import Loop
from workflows.people import ApprovalRule, Approvals, Asking, Condition, Decision, DoneCall, People

CALL = act("tool", q="x")
TWO = (calls("tool", "tool"), tool_said("paid"))


@pytest.mark.parametrize("wrong", [{}, {"step": 99}])
async def test_a_rollback_that_is_refused_leaves_the_child_run_at_work(wrong: dict[str, Any]) -> None:
    async with with_a_child() as run:
        begun = len(run.performed)
        order = await run.command("rollback", **wrong)
        assert order.refused
        assert run.child(), "the child run was stopped"
        assert "ChildStopped" not in run.events
        await child_ends(run)
        assert [place for place, _ in run.performed[: begun + 1]].count("EXECUTING#3:2") == 1


async def test_a_rollback_that_is_refused_leaves_the_call_under_way() -> None:
    run = Bench("react", (final(),))
    run.blocked = True
    async with run:
        order = await run.command("rollback", step=7)
        assert "step 7" in order.refused
        run.blocked = False
        await run.settled()
        assert (run.exit.ok, len(run.performed)) == (True, 1)


async def test_a_blank_message_leaves_the_call_under_way() -> None:
    run = Bench("react", (CALL, tool_said("found"), final()))
    run.blocked = True
    async with run:
        order = await run.command("steer", text="  ")
        assert not order.over
        run.blocked = False
        await run.settled()
        assert "it is blank" in order.refused
        assert (run.exit.ok, len(run.performed)) == (True, 3)


async def test_an_abort_that_comes_while_a_rollback_is_looked_at_comes_first() -> None:
    run = Bench("react", (final(),))
    run.blocked, run.slow = True, "log"
    async with run:
        back = await run.command("rollback", step=1)
        assert not back.over
        await run.command("abort")
        assert run.exit.reason == "aborted"
        assert "an abort came" in back.refused


@pytest.mark.parametrize("paused", [False, True])
async def test_an_abort_that_is_decided_while_a_rollback_reads_the_log_ends_the_run(paused: bool) -> None:
    async with Bench("react", (CALL, CALL, tool_said("paid"), final()), tool=unsafe()) as run:
        if paused:
            await run.command("pause")
        run.slow = "log"
        back = await run.command("rollback", step=1)
        assert (await run.decide("abort", text="stop")).outcome == "aborted"
        run.slow = ""
        await run.settled()
        assert run.exit.error == "ann (claimed) ended the run at request r1: stop"
        assert "an abort came" in back.refused
        assert (back.done, run.events.count("RolledBack"), run.events.count("RefusedCommand")) == (None, 0, 1)


async def test_an_abort_at_one_of_two_requests_ends_the_run() -> None:
    async with Bench("tools", TWO, tool=unsafe()) as run:
        assert len(run.open) == 2
        await run.decide("abort", text="stop all")
        assert run.exit.error == "ann (claimed) ended the run at request r1: stop all"
        assert not run.open
        assert not run.called
        assert "RefusedCommand" not in run.events


async def test_a_deadline_that_aborts_does_not_wait_for_the_other_requests() -> None:
    soon = Asking(deadline_seconds=10, at_deadline="abort")
    rule = ApprovalRule(arguments={"q": Condition(equals="x")}, asking=soon)
    two = calls(call("tool", 1, q="x"), call("tool", 2, q="y"))
    approvals = Approvals(rules=(rule,))
    async with Bench("tools", (two,), tool=unsafe(), approvals=approvals) as run:
        assert [request.deadline is None for request in run.open] == [False, True]
        await run.wait(11)
        assert (run.exit.reason, run.open) == ("expired", ())


async def test_an_abort_that_is_said_twice_ends_the_run_once() -> None:
    async with Bench("react", (CALL, tool_said("paid"), final()), tool=unsafe()) as run:
        await run.command("pause")
        asked = run.open[0]
        twice = Decision(request=asked.id, digest=asked.digest, decision="abort", by="ann", id="d1")
        for _ in range(2):
            run.loop.hear(twice)
        await run.settled()
        assert run.exit.reason == "aborted"
        assert "RefusedCommand" not in run.events


async def test_an_aborted_run_says_what_its_child_run_left_in_doubt() -> None:
    doubt = "it was cancelled; nobody knows whether pay(5000) took effect"
    async with with_a_child() as run:
        run.stopped = MachineEnded(machine="code", ok=False, exit_reason="cancelled", error=doubt)
        await run.command("abort")
        assert run.exit.error == f"ann (claimed) ended the run; its child run: {doubt}"


async def test_what_a_child_run_did_outside_is_in_the_report_of_the_run_above() -> None:
    paid = DoneCall(
        step=4, branch=2, place="child: pay#1:1", tool="pay", arguments={"cents": 5}, effect="unsafe",
        output="paid", key="k",
    )  # fmt: skip
    async with with_a_child(code_calls("FINAL", 1)) as run:
        run.child_did = (paid,)
        await child_ends(run)
        (told,) = run.loop.calls.since(0)
        step = run.loop.stack.first.step.snapshot.step
        assert told == paid.model_copy(update={"step": step, "branch": 0})


@pytest.mark.parametrize("way", ["abort", "rollback"])
async def test_what_models_were_paid_side_by_side_is_spent_when_it_is_left(way: str) -> None:
    together = ModelsReplied(replies=(said("A", cost=7), failed("fatal")))
    answers = (block("llm_query_batched(['a', 'b'])"), code_calls("llm_query_batched", ["a", "b"]), together)
    async with Bench("code", answers, people=People(on_trouble="ask")) as run:
        assert run.open[0].kind == "trouble"
        if way == "abort":
            await run.decide("abort")
        else:
            await run.command("rollback", step=0)
        assert run.loop.stack.ledger.used("cost_usd") == 7


async def test_a_call_that_was_begun_before_the_run_went_on_as_new_is_paid() -> None:
    async with Bench("react", (failed("fatal"),), people=People(on_trouble="ask")) as run:
        again = Loop(run, run.loop.stack, run.loop.nesting, run.loop.desk, run.people)
        assert not again.begun
        again.load(run.loop.dump())
        assert again.begun


async def test_a_cancellation_lets_no_other_undoing_begin() -> None:
    async with two_to_undo("unsafe") as run:
        run.slow = "compensate"
        await run.command("rollback", step=1, compensate=True)
        assert len(run.compensated) == 1
        await run.cancel()
        assert (run.exit.reason, len(run.compensated)) == ("cancelled", 1)
        assert "nobody knows whether it is undone" in run.record("Compensated").reason


def test_what_an_older_run_carried_on_is_read() -> None:
    old = failed("fatal").model_dump(mode="json")
    asked = Calls.model_validate({"failures": [old], "mended": [old, old], "counted": ["a"]})
    assert (len(asked.failures), len(asked.mended)) == (3, 2)
    assert asked.refused == failed("fatal")
    retried = Calls.model_validate({"failures": [], "mended": [old]})
    assert (retried.refused, len(retried.mended)) == (None, 1)


def _lost(effect: Any) -> ToolsReturned:
    """Nobody knows what became of the call."""
    lost = ToolResult(id=effect.runs[0].id, tool="tool", output="?", error="unknown_outcome")
    return ToolsReturned(results=(lost,))


async def _paused_in_a_call(run: Bench, found: Reconciled | None) -> None:
    """An unsafe call is under way in a run that is paused; then nobody knows what became of it."""
    run.blocked = True
    await run.decide("approve")
    assert (await run.command("pause")).done
    run.found, run.blocked = found, False
    await run.settled()


async def test_a_paused_run_asks_no_tool_what_became_of_a_call_and_makes_none_again() -> None:
    async with Bench("react", (CALL, _lost, tool_said("paid"), final()), tool=unsafe()) as run:
        await _paused_in_a_call(run, Reconciled(outcome="not_happened"))
        assert (run.asked_after, len(run.called)) == ([], 1)
        await run.command("resume")
        assert (run.asked_after, len(run.called), run.exit.ok) == (["action#3:1"], 2, True)


async def test_a_call_that_a_person_wants_made_again_waits_for_a_paused_run_to_go_on() -> None:
    async with Bench("react", (CALL, _lost, tool_said("paid"), final()), tool=unsafe()) as run:
        run.blocked = True
        await run.decide("approve")
        run.blocked = False
        await run.settled()
        assert run.open[0].kind == "outcome"
        await run.command("pause")
        await run.decide("retry")
        assert len(run.called) == 1
        await run.command("resume")
        assert (len(run.called), run.exit.ok) == (2, True)


async def test_a_model_that_a_person_wants_asked_again_waits_for_a_paused_run_to_go_on() -> None:
    run = Bench("react", (failed("fatal"), final()), people=People(on_trouble="ask"))
    run.blocked = True
    async with run:
        await run.command("pause")
        run.blocked = False
        await run.settled()
        await run.decide("retry")
        assert len(run.performed) == 1
        await run.command("resume")
        assert (len(run.performed), run.exit.ok) == (2, True)


async def test_limits_that_are_set_while_a_limit_is_asked_about_make_no_call_again() -> None:
    two = calls(call("tool", 1, q="x"), call("tool", 2, q="y"))
    people, tool = People(on_limit="ask"), unsafe()
    answers, limits = (two, tool_said("paid")), {"tool_calls": 10}
    async with Bench("tools", answers, tool=tool, people=people, limits=limits) as run:
        run.blocked = True
        for request in run.open:
            await run.decide("approve", request)
        await run.command("pause", at_once=True)
        run.blocked = False
        await run.settled()
        await run.command("limits", limits={"tool_calls": 1})
        await run.command("resume")
        assert [request.kind for request in run.open] == ["limit"]
        await run.command("limits", limits={"tool_calls": 10})
        names = [name for name, _ in run.called]
        assert [name[-2:] for name in names] == [".0", ".1"]


async def test_at_once_says_nothing_of_a_command_that_is_no_pause() -> None:
    run = Bench("react", (final(),))
    run.blocked = True
    async with run:
        resumed, paused = run.order("resume", at_once=True), run.order("pause", at_once=True)
        await run.settled()
        assert "is not paused" in resumed.refused
        assert paused.done
