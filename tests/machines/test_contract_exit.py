"""How a run ends: wrap-up, the last override, the result (spec 5.9, 5.13)."""

from __future__ import annotations

from typing import Any

import pytest

from activities.contracts import ModelReplied, ToolsReturned
from tests.machines.answers import failed, said, tool_failed
from tests.machines.contractkit import call, clarify, contract, done, events, made, rerun, say
from tests.machines.driver import Play
from workflows.kernel.step import close
from workflows.machines.contract import DESIGN

MAKES = (call(), made("42"))
WRAPPED = {"is_wrapup_round": True, "wrapup_round_used": True}


def wraps_up(run: Play) -> bool:
    """Was there a wrap-up round?"""
    return bool(run.context.wrapup_round_used)


# -- wrap-up (5.9, 3) --------------------


def test_an_exit_with_open_slots_and_loose_artifacts_is_held_back_once() -> None:
    run = contract(*MAKES, done(), done(("answer", "found")))
    assert run.visited.endswith("tool_execution decision decision exit")
    assert (run.exit.reason, run.exit.ok, run.exit.answer) == ("complete", True, "42")
    assert events(run, "wrapup_activated") == [
        {
            "event": "wrapup_activated", "round": 2, "trigger": "complete",
            "pending_slots": ["answer"], "unmapped_artifacts": ["found"],
        }
    ]  # fmt: skip
    assert "This is the wrap-up round" in run.told


def test_there_is_one_wrap_up_round_also_when_it_mapped_nothing() -> None:
    run = contract(*MAKES, done(), done())
    assert (run.exit.reason, run.exit.ok) == ("incomplete_contract", False)
    assert run.exit.error == (
        "the model is done, but slots are open; the outcome names them; these slots are not filled: answer"
    )


@pytest.mark.parametrize(
    ("makes", "mappable"),
    [
        (made("42"), True),
        (made(0), True),
        (made("42", kind="search"), False),
        (made("42", error="half of it"), False),
        (made(None), False),
        (tool_failed("failed"), False),
    ],
)
def test_only_mappable_artifacts_are_worth_a_wrap_up(makes: Any, mappable: bool) -> None:
    """Not of kind search, no error, a value; a bare value counts."""
    assert wraps_up(contract(call(), makes, done(), *([done()] if mappable else []))) == mappable


def test_a_run_that_had_its_wrap_up_round_gets_no_other() -> None:
    run = contract(*MAKES, done(), changed={"wrapup_round_used": True})
    assert (run.exit.reason, events(run, "wrapup_activated")) == ("incomplete_contract", [])


def test_without_an_open_slot_there_is_nothing_to_wrap_up() -> None:
    assert not wraps_up(contract(*MAKES, done(), slots=[]))
    assert not wraps_up(contract(*MAKES, call("more"), made("x"), done(("answer", "found"))))


def test_artifacts_that_fill_a_slot_are_not_loose() -> None:
    slots = [{"name": "answer"}, {"name": "other"}]
    run = contract(*MAKES, done(("answer", "found")), slots=slots)
    assert not wraps_up(run)
    assert run.exit.reason == "incomplete_contract"


ALL_REASONS: list[tuple[ModelReplied, dict[str, Any], str]] = [
    (done(), {}, "complete"),
    (clarify(), {}, "clarify"),
    (say("decision"), {}, "decision_no_progress"),
    (rerun("a"), {"caps": {"context_reads": 0}}, "context_reads_exhausted"),
    (rerun("a"), {"caps": {"decision_reruns": 0}}, "decision_reruns_exhausted"),
    (call(strategy="explore"), {"caps": {"tool_calls": 1}}, "exploit_overdraft_blocked"),
    (done(), {"caps": {"tool_calls": 1, "exploit": 0}}, "max_iterations"),
]


@pytest.mark.parametrize(("reply", "options", "reason"), ALL_REASONS)
def test_every_exit_reason_may_be_held_back_and_is_kept_as_the_trigger(
    reply: ModelReplied, options: dict[str, Any], reason: str
) -> None:
    run = contract(*MAKES, reply, done(("answer", "found")), **options)
    assert run.context.wrapup_trigger_reason == reason
    assert (run.exit.reason, run.exit.ok) == ("complete", True)
    assert run.exit.outcome["wrapup_trigger_reason"] == reason


def test_the_exhausted_round_may_be_skipped_before_a_wrap_up() -> None:
    caps = {"tool_calls": 1, "exploit": 0}
    run = contract(*MAKES, done(("answer", "found")), caps=caps, exhausted_round="skip")
    assert (run.context.wrapup_trigger_reason, run.exit.reason, len(run.prompts)) == (
        "max_iterations", "complete", 2,
    )  # fmt: skip


def test_another_reason_that_the_wrap_up_round_sets_stays() -> None:
    assert contract(*MAKES, done(), rerun("found")).exit.reason == "wrapup_no_decision_rerun"
    assert contract(*MAKES, done(), clarify()).exit.reason == "clarify"


def test_questions_outlive_the_wrap_up_round() -> None:
    run = contract(*MAKES, clarify("which year?", "which land?"), done())
    assert run.exit.outcome["clarification_questions"] == ["which year?", "which land?"]
    assert run.exit.answer == "which year?\nwhich land?"


def test_a_run_that_failed_is_not_held_back() -> None:
    run = contract(*MAKES, failed("fatal"))
    assert (run.exit.reason, wraps_up(run)) == ("error", False)


def test_a_run_that_the_wrap_up_round_completed_has_no_error() -> None:
    run = contract(*MAKES, done(), done(("answer", "found")), caps={"tool_calls": 1, "exploit": 0})
    assert run.context.wrapup_trigger_reason == "max_iterations"
    assert (run.exit.reason, run.exit.ok, run.exit.outcome["error"]) == ("complete", True, None)
    run = contract(done(), caps={"tool_calls": 0, "exploit": 0})
    assert run.exit.outcome["error"]["code"] == "budget_exhausted"  # type: ignore[index,call-overload]  # it is an object


def test_rounds_around_a_wrap_up_follow_each_other_without_a_gap() -> None:
    timings = contract(*MAKES, done(), done(("answer", "found"))).context.round_timings
    assert [timing.round for timing in timings] == [1, 2, 3]
    assert timings[2].started == timings[1].ended


def test_only_questions_of_a_decision_to_clarify_are_kept() -> None:
    run = contract(done(clarification_questions=["which?"]), slots=[])
    assert run.exit.outcome["clarification_questions"] == []
    assert run.exit.answer == "all done"


def test_a_wrap_up_round_is_always_marked_as_used() -> None:
    with pytest.raises(Exception, match="a wrap-up round is not marked as used"):
        contract(done(), changed={"is_wrapup_round": True})


# -- the result (5.13) --------------------


def test_complete_with_open_slots_is_an_incomplete_contract() -> None:
    slots = [{"name": "a"}, {"name": "b"}]
    run = contract(*MAKES, done(("a", "found")), slots=slots)
    assert run.exit.reason == "incomplete_contract"
    assert events(run, "contract_validation_failed") == [
        {
            "event": "contract_validation_failed", "round": 2,
            "declared": ["a", "b"], "missing": ["b"], "filled": ["a"],
        }
    ]  # fmt: skip
    assert (run.exit.outcome["missing"], run.exit.answer) == (["b"], "a:\n42")


@pytest.mark.parametrize("reply", [clarify(), say("decision")])
def test_only_complete_is_overridden(reply: ModelReplied) -> None:
    run = contract(reply)
    assert run.exit.reason in ("clarify", "decision_no_progress")
    assert not run.exit.ok
    assert events(run, "contract_validation_failed") == []


def test_ok_means_that_all_slots_are_filled_whatever_the_reason() -> None:
    filled = rerun("found", map_slots=[{"slot_name": "answer", "source_path": "found"}])
    for end in (clarify(), say("decision"), failed("fatal")):
        run = contract(*MAKES, filled, end)
        assert run.exit.reason in ("clarify", "decision_no_progress", "error")
        assert run.exit.ok


def test_without_slots_every_end_but_a_failure_is_ok() -> None:
    assert contract(clarify(), slots=[]).exit.ok
    assert contract(done(summary="it rained"), slots=[]).exit.answer == "it rained"
    assert not contract(failed("fatal"), slots=[]).exit.ok


@pytest.mark.parametrize("kind", ["transient", "recoverable", "fatal", "unknown_outcome"])
def test_a_model_that_fails_ends_the_run_and_raises_nothing(kind: Any) -> None:
    run = contract(failed(kind))
    assert (run.exit.reason, run.exit.raises) == ("error", None)
    assert run.context.error == {"code": "graph_error", "message": "HTTP503: server is down"}
    assert run.exit.error == "HTTP503: server is down"
    assert run.visited == "decision exit"


def test_a_tool_that_crashes_the_node_ends_the_run() -> None:
    run = contract(call(), failed("fatal", "the worker is gone"))
    assert (run.exit.reason, run.visited.split()[-2:]) == ("error", ["tool_execution", "exit"])


def test_a_tool_call_without_a_result_ends_the_run() -> None:
    run = contract(call(), ToolsReturned(results=()))
    assert (run.exit.reason, run.exit.error) == ("error", "tool: no result came back")


def test_an_unknown_outcome_of_an_unsafe_tool_ends_the_run_naming_it() -> None:
    run = contract(call(), tool_failed("unknown_outcome", "nobody knows"))
    assert (run.exit.reason, run.exit.error) == ("error", "tool: nobody knows")
    assert len([e for e in run.effects if e.kind == "call_tools"]) == 1


def test_a_run_that_is_closed_in_the_middle_says_so() -> None:
    run = contract(call())
    step = close(run.machine, run.last, "cancelled", now=2000)
    assert step.exit is not None
    assert (step.exit.reason, step.exit.ok) == ("cancelled", False)
    assert step.exit.outcome["session_log"][-1] == {"event": "exit", "round": 1, "reason": "cancelled"}  # type: ignore[index]  # it is a list


def test_too_many_node_visits_end_the_run() -> None:
    """More than 25 visits of a small budget need many overdraft rounds."""
    slots = [{"name": "answer", "budget": {"explore": 1, "exploit": 40}}]
    rounds = [call(strategy="exploit"), made("x")] * 9
    run = contract(*rounds, slots=slots, caps={"decision_rounds": 1})
    assert run.exit.reason == "max_transitions"


def test_every_exit_reason_of_the_specification_is_explained() -> None:
    assert set(DESIGN.exits) == {
        "complete", "clarify", "max_iterations", "context_reads_exhausted", "decision_no_progress",
        "decision_reruns_exhausted", "wrapup_no_decision_rerun", "exploit_overdraft_blocked",
        "incomplete_contract", "error",
    }  # fmt: skip


def test_the_outcome_has_what_there_is_to_know() -> None:
    run = contract(said("?"), *MAKES, done(("answer", "found")))
    outcome = run.exit.outcome
    assert outcome["iterations"] == 3
    assert outcome["protocol_violations"] == 1
    assert outcome["budget"]["spent"]["tools"] == 1  # type: ignore[index,call-overload]  # it is an object
    assert list(outcome["artifacts"]) == ["found"]  # type: ignore[arg-type]  # it is an object
    assert outcome["missing"] == []
