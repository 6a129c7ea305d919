"""The planner machine's table (spec 4.2), its counting (4.6) and its results (4.7)."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from activities.contracts import CallModel, Message
from tests.machines.answers import failed, said, tool_failed, tool_said
from tests.machines.driver import Play
from tests.machines.plannerkit import path, planner
from tests.machines.script import Script
from tests.machines.scripts_planner import ANSWER, PLAN, SCRIPTS, calls, decision, plan
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import At
from workflows.kernel.step import Cause, advance, reenter
from workflows.machines.decisions import Policy
from workflows.machines.planner_context import Context, Options
from workflows.machines.planner_events import Stopped
from workflows.machines.planner_fsm import S
from workflows.machines.planner_nodes import Nodes
from workflows.machines.planner_schema import plan_schema
from workflows.registry import design

LOOKS = (calls(("look", '{"q": "x"}')), tool_said())


def history(run: Play) -> list[tuple[int, int, int]]:
    """The history as (from, to, iteration)."""
    entries: Any = run.exit.outcome["fsm_history"]
    return [(entry["from"], entry["to"], entry["iteration"]) for entry in entries]


# -- rows --------------------


def test_intake_always_leads_to_plan_and_asks_no_model() -> None:
    run = planner()
    assert path(run) == "I P"
    assert [message.content for message in run.context.transcript] == ["find out"]
    assert run.context.state == {"goal": "find out", "started_at": "1970-01-01T00:16:40+00:00"}
    assert [call.role for call in run.prompts] == ["planner"]


def test_a_valid_plan_leads_to_decide() -> None:
    assert path(planner(PLAN)) == "I P D E"


@pytest.mark.parametrize(("reply", "words"), [
    (failed("transient", "server is down"), "Plan failed: server is down"),
    (failed("fatal", ""), "Plan failed: HTTP503"),
    (said("I would look first"), "Plan failed: the plan cannot be read: it is not JSON"),
    (said(""), "Plan failed: the plan cannot be read: it is empty"),
    (said("[1]"), "Plan failed: the plan cannot be read: a JSON object is expected, a list came"),
    (said("{}"), "Plan failed: 'goal' is a required property"),
    (plan(None), "Plan failed: goal: None is not of type 'string'"),
])  # fmt: skip
def test_whatever_goes_wrong_with_the_plan_leads_to_halt(reply: Any, words: str) -> None:
    run = planner(reply)
    assert path(run) == "I P H"
    assert (run.exit.reason, run.exit.raises) == ("plan_failed", "ExecutionError")
    assert str(run.exit.error).startswith(f"Agent halted: {words}")


def test_the_default_decision_goes_on_without_a_model() -> None:
    run = planner(PLAN)
    assert run.context.state["decision"] == {"continue": True, "reason": ""}
    assert [call.role for call in run.prompts] == ["planner", "default"]


def test_a_decision_to_stop_leads_to_finalize() -> None:
    run = planner(PLAN, decision(False, "enough"), decide="model")
    assert path(run) == "I P D F"
    assert (run.exit.ok, run.exit.reason, run.exit.outcome["done"]) == (True, "stopped", True)
    assert run.context.history[-1]["reason"] == "enough"


def test_a_plan_without_a_goal_and_no_input_lead_to_halt() -> None:
    run = planner(said('{"goal": null}'), goal="", plan_schema={})
    assert path(run) == "I P D H"
    assert run.exit.error == "Agent halted: Invalid plan"


def test_an_empty_goal_counts_as_a_goal() -> None:
    assert path(planner(plan(""))) == "I P D E"


def test_a_reply_with_tool_calls_leads_to_observe_and_from_there_to_loop_check() -> None:
    assert path(planner(PLAN, *LOOKS)) == "I P D E O L E"


def test_a_reply_without_calls_is_appended_and_leads_to_finalize() -> None:
    run = planner(PLAN, ANSWER)
    assert path(run) == "I P D E F"
    assert run.context.transcript.messages[-1] == Message(role="assistant", content="forty-two")
    assert (run.exit.answer, run.exit.ok, run.exit.reason) == ("forty-two", True, "answered")


def test_an_answer_that_was_cut_is_no_answer() -> None:
    run = planner(PLAN, said("forty-t").model_copy(update={"finish_reason": "length"}))
    assert (path(run), run.exit.reason) == ("I P D E H", "execution_failed")
    text = "Execution failed: the reply was cut at its length limit (max_output_tokens)"
    assert run.exit.error == f"Agent halted: {text}"
    assert run.exit.outcome["iterations"] == 1


def test_halt_needs_a_reason() -> None:
    holds: Any = planner().machine.states[S.HALT].holds
    assert holds(Context(goal="g"), None) == "no reason was given"
    assert holds(Context(goal="g", error="broken"), None) == ""


@pytest.mark.parametrize("error", ["transient", "recoverable", "fatal", "unknown_outcome"])
def test_any_failure_of_the_chat_call_leads_from_execute_to_halt(error: Any) -> None:
    run = planner(PLAN, failed(error, "no luck"))
    assert path(run) == "I P D E H"
    assert run.exit.error == "Agent halted: Execution failed: no luck"
    assert run.exit.outcome["iterations"] == 1


def test_observe_leads_to_loop_check_also_after_a_failure() -> None:
    run = planner(PLAN, LOOKS[0], tool_failed("failed", "broken"))
    assert path(run) == "I P D E O L H"


# -- R-003-1 --------------------


@pytest.mark.parametrize("answer", [None, True, "continue", [], {}, {"continue": 1}, {"continue": "yes"}])
def test_r_003_1_a_hooks_answer_without_a_boolean_continue_halts(answer: Any) -> None:
    """R-003-1: an answer that is not a mapping or lacks a boolean `continue` means HALT."""
    run = planner(PLAN, decide="mine", hooks={"mine": lambda plan, state: answer})
    assert path(run) == "I P D H"
    assert str(run.exit.error).startswith("Agent halted: Invalid decision")
    assert run.exit.reason == "invalid_decision"


def test_r_003_1_a_hooks_answer_may_be_any_mapping() -> None:
    """R-003-1: `continue` and `reason` are what counts, whatever holds them."""
    answer = MappingProxyType({"continue": False, "reason": "enough"})
    run = planner(PLAN, decide="mine", hooks={"mine": lambda plan, state: answer})
    assert (path(run), run.context.history[-1]["reason"]) == ("I P D F", "enough")


@pytest.mark.parametrize(("confidence", "words"), [
    (0.1, "Low confidence"), (30, "outside its range"), (-1, "outside its range"),
])  # fmt: skip
def test_a_model_that_is_not_sure_of_its_decision_is_a_violation(confidence: float, words: str) -> None:
    reply = said(f'{{"continue": true, "confidence": {confidence}}}')
    run = planner(PLAN, reply, decide="model")
    assert (path(run), run.exit.reason) == ("I P D H", "policy_violation")
    assert words in str(run.exit.error)
    sure = said('{"continue": true, "confidence": 0.5}')
    assert path(planner(PLAN, sure, decide="model")) == "I P D E"


def test_a_decision_that_was_cut_names_the_length_limit() -> None:
    reply = said('{"continue": tr').model_copy(update={"finish_reason": "length"})
    run = planner(PLAN, reply, decide="model")
    assert "Invalid decision: the reply was cut at its length limit" in str(run.exit.error)


def test_r_003_1_a_hook_that_raises_halts() -> None:
    """R-003-1: so does a hook that fails; it says how."""

    def broken(plan: Any, state: Any) -> Any:
        return plan["nothing"]

    run = planner(PLAN, decide="broken", hooks={"broken": broken})
    assert run.exit.error == "Agent halted: Invalid decision: the hook failed: KeyError: 'nothing'"


@pytest.mark.parametrize(("reply", "words"), [
    (said("go"), "it is not JSON"),
    (said('{"continue": "true"}'), "expected a mapping with `continue`"),
    (failed("fatal", "bad key"), "bad key"),
])  # fmt: skip
def test_r_003_1_a_models_answer_that_cannot_be_used_halts(reply: Any, words: str) -> None:
    """R-003-1: the same holds where a model decides."""
    run = planner(PLAN, reply, decide="model")
    assert path(run) == "I P D H"
    assert words in str(run.exit.error)


def test_the_hook_gets_plan_and_state_and_decides() -> None:
    seen: list[Any] = []

    def mine(plan: Any, state: Any) -> Any:
        seen.append((plan["goal"], state["goal"], state["plan"]["goal"]))
        return {"continue": len(plan["initial_steps"]) > 1, "reason": "counted"}

    assert path(planner(plan(initial_steps=["a"]), decide="mine", hooks={"mine": mine})) == "I P D F"
    assert path(planner(plan(initial_steps=["a", "b"]), decide="mine", hooks={"mine": mine})) == "I P D E"
    assert seen == [("know it", "find out", "know it")] * 2


def test_the_model_that_decides_has_its_own_role_and_sees_goal_and_plan() -> None:
    run = planner(plan("see"), decide="model", instructions="Be brief.")
    call = run.prompts[-1]
    assert (call.role, call.attempts, call.offer) == ("decide", 1, ())
    system, user = call.transcript.messages
    assert system.content.startswith("Be brief.")
    assert '"continue": true or false' in system.content
    assert "The goal: find out" in user.content
    assert '"goal": "see"' in user.content


# -- R-003-2, R-003-3: EXECUTE --------------------


def test_r_003_2_every_model_call_has_one_attempt() -> None:
    """R-003-2: no retry here, so the model activity has one attempt."""
    run = planner(PLAN, decision(True), *LOOKS, ANSWER, said("short"), decide="model", finalize_summary=True)
    assert [call.role for call in run.prompts] == ["planner", "decide", "default", "default", "summary"]
    assert {call.attempts for call in run.prompts} == {1}


def test_r_003_3_the_assistant_message_with_the_calls_is_appended_too() -> None:
    """R-003-3: chat APIs need the calls in front of their results."""
    run = planner(PLAN, calls(("look", "{}"), text="I look"), tool_said("found"))
    asked, result = run.context.transcript.messages[-2:]
    assert (asked.role, asked.content, asked.tool_calls[0].name) == ("assistant", "I look", "look")
    assert (result.role, result.tool_call_id) == ("tool", asked.tool_calls[0].id)


def test_execute_sends_the_whole_history_and_the_tool_list() -> None:
    run = planner(PLAN, *LOOKS, instructions="Be brief.")
    call = run.prompts[-1]
    assert [m.role for m in call.transcript] == ["system", "user", "assistant", "user", "assistant", "tool"]
    assert call.transcript.messages[0].content == "Be brief."
    assert call.offer == ("look", "write")
    assert call.label == "execute #2"


# -- counting (4.6) --------------------


def test_three_iterations_are_three_model_calls_and_three_tool_turns_then_halt() -> None:
    run = planner(PLAN, *LOOKS, *LOOKS, *LOOKS, max_iterations=3)
    assert sum(isinstance(effect, CallModel) for effect in run.effects) == 1 + 3
    assert path(run) == "I P D E O L E O L E O L H"
    assert run.exit.error == "Agent halted: Max iterations exceeded"


def test_an_answer_in_the_last_allowed_call_is_a_normal_end() -> None:
    run = planner(PLAN, *LOOKS, *LOOKS, ANSWER, max_iterations=3)
    assert (run.exit.ok, run.exit.outcome["iterations"]) == (True, 3)


def test_with_a_maximum_of_0_execute_halts_before_any_chat_call() -> None:
    run = planner(PLAN, max_iterations=0)
    assert path(run) == "I P D E H"
    assert [call.role for call in run.prompts] == ["planner"]
    assert (run.exit.raises, run.exit.error) == (
        "MaxIterationsExceeded",
        "Agent halted: Max iterations exceeded",
    )
    assert run.exit.outcome["iterations"] == 0


@pytest.mark.parametrize(("answers", "knobs", "length"), [
    ((PLAN, ANSWER), {}, 4),
    ((PLAN, *LOOKS, ANSWER), {}, 7),
    ((PLAN, *LOOKS, *LOOKS, *LOOKS), {"max_iterations": 3}, 12),
    ((said("no"),), {}, 2),
])  # fmt: skip
def test_the_history_has_the_lengths_of_the_spec(answers: Any, knobs: Any, length: int) -> None:
    assert len(history(planner(*answers, **knobs))) == length


def test_the_history_has_numbers_and_the_iteration_of_the_moment() -> None:
    run = planner(PLAN, *LOOKS, ANSWER)
    assert history(run) == [
        (0, 1, 0), (1, 2, 0), (2, 3, 0), (3, 4, 1), (4, 5, 1), (5, 3, 1), (3, 6, 2),
    ]  # fmt: skip


def test_the_history_has_a_reason_for_every_move() -> None:
    run = planner(PLAN, *LOOKS, ANSWER)
    assert [entry["reason"] for entry in run.context.history] == [
        "Input normalized", "Plan created", "Decision: continue", 'Tool calls requested: look({"q": "x"})',
        "Tools executed: 1", "Continuing", "No tool calls requested",
    ]  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_history_tells_the_same_as_the_log(script: Script) -> None:
    run = script.run(design("planner"))
    moves = [(S[record.state].value, S[record.to].value) for record in run.records if record.to][1:]
    assert [(entry["from"], entry["to"]) for entry in run.context.history] == moves


def test_the_log_grows_linearly() -> None:
    """Deltas: no record holds what was there before."""
    size = {
        turns: sum(len(record.model_dump_json()) for record in planner(PLAN, *LOOKS * turns).records)
        for turns in (10, 20, 30)
    }
    assert abs((size[30] - size[20]) - (size[20] - size[10])) < 0.1 * (size[20] - size[10])


def test_the_default_maximum_is_50() -> None:
    run = planner(PLAN, *LOOKS * 50)
    assert run.exit.outcome["iterations"] == 50
    assert run.unused == 0


def test_r_003_8_there_is_no_hard_stop_at_100() -> None:
    """R-003-8: 101 iterations are made when they are allowed."""
    run = planner(PLAN, *LOOKS * 101, ANSWER, max_iterations=102)
    assert (run.exit.ok, run.exit.outcome["iterations"]) == (True, 102)
    halted = planner(PLAN, *LOOKS * 101, max_iterations=101)
    assert (halted.exit.reason, halted.exit.outcome["iterations"]) == ("max_iterations", 101)


def test_an_iteration_is_counted_once_also_when_a_person_spoke_in_between() -> None:
    run = planner(PLAN)
    patch = run.machine.fold_steer(run.context, "and hurry") if run.machine.fold_steer else {}
    step = reenter(run.machine, run.last, Cause("Steered", "ann"), now=1010, patch=patch)
    assert isinstance(step.effect, CallModel)
    assert step.effect.transcript.messages[-1].content == "and hurry"
    ended = advance(run.machine, step, ANSWER, now=1011)
    assert ended.exit is not None
    assert ended.exit.outcome["iterations"] == 1


# -- results (4.7) --------------------


def test_finalize_returns_the_result_of_the_spec() -> None:
    run = planner(plan("see"), *LOOKS, ANSWER)
    outcome: Any = run.exit.outcome
    assert (outcome["done"], outcome["iterations"], outcome["final_message"]) == (True, 2, "forty-two")
    assert outcome["state"]["plan"]["goal"] == "see"
    assert outcome["state"]["observations"] == [{"tool_call_id": "c0", "name": "look", "result": "found"}]
    assert outcome["state"]["pending_tool_calls"] is None
    assert "error" not in outcome
    assert run.exit.raises is None


def test_the_final_message_is_the_last_ones_content_whatever_its_role() -> None:
    run = planner(PLAN, *LOOKS, converged=["tool_called"])
    assert run.exit.answer == '{"name": "look", "result": "found"}'
    stopped = planner(PLAN, decision(False), decide="model")
    assert stopped.exit.outcome["final_message"] == PLAN.text


def test_halt_returns_the_result_of_the_spec_and_raises() -> None:
    run = planner(PLAN, LOOKS[0], tool_failed("failed", "broken"))
    outcome: Any = run.exit.outcome
    assert (outcome["done"], outcome["error"]) == (False, "Tool failure: look: broken")
    assert (outcome["iterations"], len(outcome["fsm_history"])) == (1, 6)
    assert "final_message" not in outcome
    assert (run.exit.ok, run.exit.raises) == (False, "ExecutionError")
    assert run.exit.error == "Agent halted: Tool failure: look: broken"


def test_r_003_9_the_iteration_limit_raises_its_own_class() -> None:
    """R-003-9: MaxIterationsExceeded, which is an ExecutionError, in LOOP_CHECK and in EXECUTE."""
    assert planner(PLAN, *LOOKS, max_iterations=1).exit.raises == "MaxIterationsExceeded"
    assert planner(PLAN, max_iterations=0).exit.raises == "MaxIterationsExceeded"


def test_there_is_one_audit_record_of_a_run_that_ends_well_or_badly() -> None:
    for run in (planner(plan("see"), ANSWER), planner(plan("see"), failed("fatal"))):
        audit: Any = run.exit.outcome["audit"]
        assert set(audit) == {"input", "decision", "result"}
        assert audit["input"] == "find out"
        assert (audit["decision"]["action"], audit["decision"]["params"]["goal"]) == ("plan", "see")
        assert audit["result"]["done"] is run.exit.ok
        assert audit["result"]["iterations"] == 1
    assert planner(said("no")).exit.outcome["audit"]["decision"] is None  # type: ignore[index,call-overload]  # a mapping


def test_a_limit_of_the_agent_ends_the_run_where_it_is() -> None:
    run = planner(PLAN, ledger=Ledger(caps={"model_calls": 1}))
    assert (run.exit.reason, run.exit.raises, run.exit.outcome["done"]) == ("limit", None, False)
    assert "model_calls: 1 of 1 spent" in str(run.exit.error)


# -- the summary (4.3) --------------------


def test_a_summary_is_one_more_call_without_tools_and_becomes_the_last_message() -> None:
    run = planner(PLAN, ANSWER, said("in short: 42"), finalize_summary=True)
    call = run.prompts[-1]
    assert (call.role, call.offer, call.attempts) == ("summary", (), 1)
    assert run.exit.answer == "in short: 42"
    assert run.context.transcript.messages[-1].content == "in short: 42"


def test_calls_in_a_summary_are_not_run() -> None:
    run = planner(PLAN, ANSWER, calls(("look", "{}"), text="done"), finalize_summary=True)
    assert run.exit.answer == "done"
    assert run.context.transcript.messages[-1].tool_calls == ()


def test_a_summary_that_fails_takes_nothing_away() -> None:
    run = planner(PLAN, ANSWER, failed("fatal", "bad key"), finalize_summary=True)
    assert (run.exit.ok, run.exit.answer) == (True, "forty-two")
    assert run.exit.outcome["summary_error"] == "bad key"


def test_a_summary_that_was_cut_takes_nothing_away() -> None:
    cut = said("in sho").model_copy(update={"finish_reason": "length"})
    run = planner(PLAN, ANSWER, cut, finalize_summary=True)
    assert (run.exit.ok, run.exit.answer) == (True, "forty-two")
    assert "cut at its length limit" in str(run.exit.outcome["summary_error"])


def test_a_summary_for_which_no_limit_leaves_room_is_left_out() -> None:
    run = planner(PLAN, ANSWER, finalize_summary=True, ledger=Ledger(caps={"model_calls": 2}))
    assert (run.exit.ok, run.exit.answer) == (True, "forty-two")
    assert "model_calls: 2 of 2 spent" in str(run.exit.outcome["summary_error"])


# -- LOOP_CHECK without observations (4.5, 6) --------------------


def checked(c: Context, **spent: float) -> Any:
    """What LOOP_CHECK says of a context."""
    nodes = Nodes(Options(max_iterations=3), Policy(), plan_schema(None))
    at = At(
        now=0,
        state=S.LOOP_CHECK,
        visit=1,
        call=0,
        step=1,
        transitions=5,
        ledger=Ledger(spent=spent),
        last=None,
    )
    return nodes.loop_check(c, at)


def test_without_observations_of_this_run_loop_check_finalizes() -> None:
    assert checked(Context(goal="g", iteration=1)) == (
        {"exit_reason": "no_observations"},
        Stopped("No observations"),
    )


def test_r_003_7_observations_are_those_of_this_run() -> None:
    """R-003-7: a second run of the same agent begins without the observations of the first."""
    first = planner(PLAN, *LOOKS, ANSWER)
    assert len(first.context.observations) == 1
    assert planner(PLAN).context.observations == ()


def test_what_a_person_says_as_the_run_ends_is_no_final_message() -> None:
    run = planner(PLAN, LOOKS[0], converged=["tool_called"])
    steer: Any = run.machine.fold_steer
    step = reenter(
        run.machine, run.last, Cause("Steered", "ann"), now=1010, patch=steer(run.context, "hurry")
    )
    step = advance(run.machine, step, tool_said("found")(step.effect), now=1011)  # type: ignore[arg-type]  # it asks for a tool
    assert step.exit is not None
    assert step.exit.reason == "converged"
    assert json.loads(str(step.exit.answer)) == {"name": "look", "result": "found"}
