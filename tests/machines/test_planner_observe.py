"""OBSERVE: tools one by one, records, marks, and what goes wrong (spec 4.3, 4.4)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activities.contracts import CallTools
from tests.machines.answers import failed, tool_failed, tool_said
from tests.machines.driver import Play
from tests.machines.plannerkit import path, planner, returned
from tests.machines.scripts_planner import ANSWER, PLAN, calls
from workflows.kernel.errors import PolicyViolation
from workflows.kernel.step import Cause, advance, reenter

TWO = calls(("look", '{"q": "a"}'), ("write", '{"text": "b"}'))
THREE = calls(("look", "{}"), ("look", '{"q": "bad"}'), ("write", "{}"))


def ran(run: Play) -> list[tuple[str, Any]]:
    """Tools that were run, with their arguments."""
    return [(e.runs[0].tool, e.runs[0].arguments) for e in run.effects if isinstance(e, CallTools)]


def observed(run: Play) -> list[Any]:
    """The records without their ids."""
    return [{k: v for k, v in record.items() if k != "tool_call_id"} for record in run.context.observations]


def forbid(decision: Any, state: Any) -> str | None:
    """A policy against one pair of arguments."""
    return "bad is not allowed" if decision.params.get("q") == "bad" else None


HOOKS = {"forbid": forbid}

# -- the good way --------------------


def test_calls_run_one_at_a_time_and_in_their_order() -> None:
    run = planner(PLAN, TWO, tool_said("A"), tool_said("B"), ANSWER)
    assert ran(run) == [("look", {"q": "a"}), ("write", {"text": "b"})]
    assert path(run) == "I P D E O L E F"
    assert all(len(e.runs) == 1 and e.attempts == 1 for e in run.effects if isinstance(e, CallTools))


def test_every_record_is_also_a_tool_message_with_json_content() -> None:
    run = planner(PLAN, TWO, tool_said("A"), tool_said('{"n": 1}'))
    assert run.context.observations == (
        {"tool_call_id": "c0", "name": "look", "result": "A"},
        {"tool_call_id": "c1", "name": "write", "result": {"n": 1}},
    )
    messages = [message for message in run.context.transcript if message.role == "tool"]
    assert [(m.tool_call_id, json.loads(m.content)) for m in messages] == [
        ("c0", {"name": "look", "result": "A"}),
        ("c1", {"name": "write", "result": {"n": 1}}),
    ]


def test_observations_grow_and_pending_calls_become_none() -> None:
    during = planner(PLAN, TWO)
    assert [call["name"] for call in during.context.shared["pending_tool_calls"]] == ["look", "write"]
    run = planner(PLAN, TWO, tool_said("A"), tool_said("B"), TWO, tool_said("C"), tool_said("D"))
    assert [record["result"] for record in run.context.observations] == ["A", "B", "C", "D"]
    assert run.context.shared["pending_tool_calls"] is None
    assert run.context.handled == 0


def test_missing_ids_are_made_without_chance_and_used_in_calls_and_results() -> None:
    replies = (PLAN, calls(("look", "{}"), ("look", "{}"), ids=False), tool_said(), tool_said())
    run, again = planner(*replies), planner(*replies)
    ids = [record["tool_call_id"] for record in run.context.observations]
    assert ids == [record["tool_call_id"] for record in again.context.observations]
    assert len(set(ids)) == 2
    assert all(ids)
    asked = next(m for m in run.context.transcript if m.tool_calls)
    assert [call.id for call in asked.tool_calls] == ids


def test_made_ids_differ_from_turn_to_turn_and_equal_ids_of_one_reply_are_told_apart() -> None:
    turn = (calls(("look", "{}"), ids=False), tool_said())
    run = planner(PLAN, *turn, *turn)
    assert len({record["tool_call_id"] for record in run.context.observations}) == 2
    same = TWO.model_copy(
        update={"tool_calls": tuple(c.model_copy(update={"id": "x"}) for c in TWO.tool_calls)}
    )
    twice = planner(PLAN, same, tool_said(), tool_said())
    assert len({record["tool_call_id"] for record in twice.context.observations}) == 2


def test_no_call_is_lost_to_an_id_that_looks_like_a_made_one() -> None:
    visit = planner(PLAN).last.snapshot.visit
    first, second = TWO.tool_calls
    tricky = (first.model_copy(update={"id": f"call_{visit}_1"}), second.model_copy(update={"id": ""}))
    run = planner(PLAN, TWO.model_copy(update={"tool_calls": tricky}), tool_said(), tool_said())
    assert [record["name"] for record in run.context.observations] == ["look", "write"]
    assert len({record["tool_call_id"] for record in run.context.observations}) == 2


def test_no_call_is_lost_to_a_made_id_that_came_before_as_well() -> None:
    one = calls(("look", "{}")).tool_calls[0]
    ids = tuple(one.model_copy(update={"id": name}) for name in ("x", "x_2", "x"))
    run = planner(PLAN, TWO.model_copy(update={"tool_calls": ids}), tool_said(), tool_said(), tool_said())
    assert len({record["tool_call_id"] for record in run.context.observations}) == 3


@pytest.mark.parametrize("text", ["", "  ", "null", "{}"])
def test_missing_arguments_are_no_arguments(text: str) -> None:
    assert ran(planner(PLAN, calls(("look", text)))) == [("look", {})]


def test_r_003_10_a_successful_tool_sets_the_two_marks_and_its_own() -> None:
    """R-003-10: `tool_called` and `step_completed`, like the simple executor, and the tool's marks."""
    run = planner(PLAN, calls(("look", "{}")), returned("x", "found", "tool_called"))
    assert run.context.marks == ("tool_called", "step_completed", "found")


@pytest.mark.parametrize("following", ["look", "nosuch"])
def test_r_003_10_marks_are_set_whatever_becomes_of_the_next_call(following: str) -> None:
    """R-003-10: with several calls in one reply, when the next one is asked for and when it halts."""
    run = planner(PLAN, calls(("look", "{}"), (following, "{}")), returned("x", "found"))
    assert run.context.marks == ("tool_called", "step_completed", "found")


def test_r_003_10_a_tool_that_failed_sets_no_mark() -> None:
    """R-003-10: marks are for successful tools."""
    run = planner(PLAN, calls(("look", "{}")), returned("x", "found", error="failed"), on_tool_error="record")
    assert run.context.marks == ()


# -- what goes wrong (4.4) --------------------


def test_r_003_5_a_failing_tool_halts_by_default_and_earlier_results_are_kept() -> None:
    """R-003-5: the seed names tool failure among the causes of HALT; R-003-4: through LOOP_CHECK."""
    run = planner(PLAN, THREE, tool_said("A"), tool_failed("failed", "broken"))
    assert path(run) == "I P D E O L H"
    assert (run.exit.reason, run.exit.error) == ("tool_failure", "Agent halted: Tool failure: look: broken")
    assert observed(run) == [{"name": "look", "result": "A"}]
    assert len(ran(run)) == 2


@pytest.mark.parametrize("error", ["failed", "transient", "timeout", "bad_arguments", "unknown_tool"])
def test_with_record_a_failing_tool_is_recorded_and_the_next_call_goes_on(error: Any) -> None:
    run = planner(
        PLAN, THREE, tool_said("A"), tool_failed(error, "broken"), tool_said("C"), on_tool_error="record"
    )
    assert path(run) == "I P D E O L E"
    assert observed(run) == [
        {"name": "look", "result": "A"},
        {"name": "look", "error": "broken"},
        {"name": "write", "result": "C"},
    ]  # fmt: skip


@pytest.mark.parametrize("error", ["transient", "recoverable", "fatal"])
def test_a_tool_call_that_could_not_be_made_is_a_tool_that_failed(error: Any) -> None:
    halted = planner(PLAN, THREE, tool_said("A"), failed(error, "lost"))
    assert (halted.exit.reason, observed(halted)) == ("tool_failure", [{"name": "look", "result": "A"}])
    going = planner(PLAN, THREE, tool_said("A"), failed(error, "lost"), on_tool_error="record")
    assert observed(going)[1] == {"name": "look", "error": "lost"}


def test_an_unknown_tool_halts_as_a_tool_that_raises() -> None:
    run = planner(PLAN, calls(("look", "{}"), ("nosuch", "{}"), ("look", "{}")), tool_said("A"))
    assert run.exit.error == "Agent halted: Tool failure: nosuch: Unknown tool: nosuch"
    assert (len(ran(run)), observed(run)) == (1, [{"name": "look", "result": "A"}])


def test_with_record_an_unknown_tool_is_recorded_and_the_next_call_goes_on() -> None:
    run = planner(PLAN, calls(("nosuch", "{}"), ("look", "{}")), tool_said("A"), on_tool_error="record")
    assert observed(run) == [
        {"name": "nosuch", "error": "Unknown tool: nosuch"}, {"name": "look", "result": "A"},
    ]  # fmt: skip
    assert path(run) == "I P D E O L E"


def test_r_003_5_a_policy_violation_halts_by_default_and_the_tool_is_not_run() -> None:
    """R-003-5: the seed names policy violation among the causes of HALT."""
    run = planner(PLAN, THREE, tool_said("A"), policy="forbid", hooks=HOOKS)
    assert path(run) == "I P D E O L H"
    assert run.exit.error == "Agent halted: Policy violation: bad is not allowed"
    assert (run.exit.reason, run.exit.raises) == ("policy_violation", "ExecutionError")
    assert (len(ran(run)), observed(run)) == (1, [{"name": "look", "result": "A"}])


def test_with_record_a_policy_violation_is_recorded_as_its_text_and_the_next_call_goes_on() -> None:
    run = planner(
        PLAN, THREE, tool_said("A"), tool_said("C"),
        policy="forbid", hooks=HOOKS, on_policy_violation="record",
    )  # fmt: skip
    assert observed(run)[1] == {"name": "look", "error": "Policy violation: bad is not allowed"}
    assert ran(run) == [("look", {}), ("write", {})]
    assert path(run) == "I P D E O L E"


def test_the_two_knobs_are_apart() -> None:
    violation = planner(PLAN, THREE, tool_said("A"), policy="forbid", hooks=HOOKS, on_tool_error="record")
    assert violation.exit.reason == "policy_violation"
    broken = planner(
        PLAN, THREE, tool_failed("failed"), policy="forbid", hooks=HOOKS, on_policy_violation="record"
    )
    assert broken.exit.reason == "tool_failure"


@pytest.mark.parametrize("text", ["{oops", "[1]", '"a"', "1", "true", '{"a": NaN}', "{} {}"])
def test_arguments_that_are_no_json_object_halt_and_later_calls_are_not_run(text: str) -> None:
    run = planner(
        PLAN, calls(("look", "{}"), ("look", text), ("write", "{}")), tool_said("A"),
        on_tool_error="record", on_policy_violation="record",
    )  # fmt: skip
    assert path(run) == "I P D E O L H"
    assert str(run.exit.error).startswith(f"Agent halted: Invalid tool call arguments {text!r} for look")
    assert (run.exit.reason, len(ran(run)), observed(run)) == (
        "invalid_arguments", 1, [{"name": "look", "result": "A"}],
    )  # fmt: skip


def test_a_tool_whose_outcome_nobody_knows_ends_the_run_also_with_record() -> None:
    for lost in (tool_failed("unknown_outcome", "nobody knows"), failed("unknown_outcome", "nobody knows")):
        run = planner(PLAN, TWO, lost, on_tool_error="record")
        assert (run.exit.reason, path(run)) == ("unknown_outcome", "I P D E O L H")
        assert run.exit.error == "Agent halted: Tool failure: look: nobody knows"
        assert len(ran(run)) == 1


def test_r_003_4_the_halt_is_decided_in_loop_check_and_nothing_is_lost() -> None:
    """R-003-4: OBSERVE never leads to HALT; the results before the failure are in the result."""
    run = planner(PLAN, TWO, tool_said("A"), tool_failed("failed", "broken"))
    last = [(entry["from"], entry["to"]) for entry in run.context.history][-2:]
    assert last == [(4, 5), (5, 7)]
    state: Any = run.exit.outcome["state"]
    assert [record["result"] for record in state["observations"]] == ["A"]


def test_the_name_of_a_tool_that_there_is_not_is_cut() -> None:
    reply = calls(("x" * 1_000_000, "{}"), ("y" * 1_000_000, "{oops"))
    run = planner(PLAN, reply, on_tool_error="record")
    assert sum(len(record.model_dump_json()) for record in run.records) < 50_000
    assert str(run.exit.error).endswith("...: it is not JSON: Expecting property name enclosed in double "
        "quotes: line 1 column 2 (char 1)")  # fmt: skip
    assert run.context.observations[0]["error"] == f"Unknown tool: {'x' * 100}..."


def test_calls_that_were_cut_name_the_length_limit() -> None:
    reply = calls(("look", '{"q": "a"}'), ("look", '{"q": "b')).model_copy(update={"finish_reason": "length"})
    run = planner(PLAN, reply, tool_said("A"))
    assert (run.exit.reason, path(run)) == ("invalid_arguments", "I P D E O L H")
    assert "Invalid tool call arguments" in str(run.exit.error)
    assert "cut at its length limit (max_output_tokens)" in str(run.exit.error)


def test_that_a_reply_was_cut_is_forgotten_with_its_calls() -> None:
    reply = calls(("look", "{}")).model_copy(update={"finish_reason": "length"})
    run = planner(PLAN, reply, tool_said(), calls(("look", "{oops")))
    assert "length limit" not in str(run.exit.error)


# -- policy points --------------------


def test_the_policy_is_asked_for_the_plan_for_carrying_it_out_and_for_every_call() -> None:
    seen: list[tuple[str, int]] = []

    def watch(decision: Any, state: Any) -> None:
        seen.append((decision.action, len(state["observations"])))

    planner(PLAN, TWO, tool_said(), tool_said(), ANSWER, policy="watch", hooks={"watch": watch})
    assert seen == [("plan", 0), ("execute", 0), ("look", 0), ("write", 1)]


def test_a_call_is_judged_with_the_records_before_it_also_those_of_the_same_moment() -> None:
    seen: list[int] = []

    def watch(decision: Any, state: Any) -> None:
        seen.append(len(state["observations"]))

    turn = calls(("nosuch", "{}"), ("nosuch", "{}"), ("look", "{}"))
    planner(PLAN, turn, policy="watch", hooks={"watch": watch}, on_tool_error="record")
    assert seen[2:] == [0, 1, 2]


def test_r_003_11_a_violation_of_the_plan_is_halt_before_plan_is_left() -> None:
    """R-003-11: `policy.validate` on the plan decision before leaving PLAN; a violation is HALT."""

    def no_plans(decision: Any, state: Any) -> None:
        if decision.action == "plan":
            raise PolicyViolation(f"not {decision.params['goal']}")

    run = planner(PLAN, policy="no_plans", hooks={"no_plans": no_plans})
    assert path(run) == "I P H"
    assert run.exit.error == "Agent halted: Plan failed: Policy violation: not know it"
    assert run.exit.reason == "policy_violation"


def test_r_003_11_a_plan_that_is_not_sure_of_itself_is_a_violation() -> None:
    """R-003-11: the shipped check holds for the plan as well."""
    from tests.machines.scripts_planner import plan

    assert "Low confidence" in str(planner(plan(confidence=0.4), plan_schema={}).exit.error)
    assert path(planner(plan(confidence=0.5), plan_schema={})) == "I P D E"


def test_r_003_11_a_violation_of_carrying_the_plan_out_is_halt() -> None:
    """R-003-11: the second point is DECIDE -> EXECUTE."""
    rule = {"rule": lambda decision, state: "not today" if decision.action == "execute" else None}
    run = planner(PLAN, policy="rule", hooks=rule)
    assert path(run) == "I P D H"
    assert run.exit.error == "Agent halted: Policy violation: not today"


def test_a_decision_to_stop_is_not_judged() -> None:
    hooks: dict[str, Any] = {
        "rule": lambda decision, state: "no" if decision.action == "execute" else None,
        "stop": lambda plan, state: {"continue": False},
    }
    assert path(planner(PLAN, policy="rule", decide="stop", hooks=hooks)) == "I P D F"


# -- a person speaks while tools run --------------------


def test_what_a_person_says_while_tools_run_comes_behind_their_results() -> None:
    run = planner(PLAN, TWO, tool_said("A"))
    steer = run.machine.fold_steer
    assert steer is not None
    step = reenter(
        run.machine, run.last, Cause("Steered", "ann"), now=2000, patch=steer(run.context, "hurry")
    )
    assert isinstance(step.effect, CallTools)
    assert step.effect.tools == ("write",)
    step = advance(run.machine, step, tool_said("B")(step.effect), now=2001)
    messages = step.snapshot.context.transcript.messages
    assert [m.role for m in messages[-4:]] == ["assistant", "tool", "tool", "user"]
    assert messages[-1].content == "hurry"
    assert step.snapshot.context.steered == ()


def test_what_a_person_said_is_kept_when_the_run_halts() -> None:
    run = planner(PLAN, TWO)
    steer = run.machine.fold_steer
    assert steer is not None
    step = reenter(
        run.machine, run.last, Cause("Steered", "ann"), now=2000, patch=steer(run.context, "hurry")
    )
    step = advance(run.machine, step, failed("fatal"), now=2001)
    assert step.snapshot.context.transcript.messages[-1].content == "hurry"
