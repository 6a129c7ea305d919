"""Small promises of the staged machine that whole runs hardly show (spec 3.3 to 3.11)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activities.contracts import MachineEnded
from tests.machines.answers import failed, said, tool_said
from tests.machines.driver import Play, run_script
from tests.machines.scripts_staged import ANSWER, MORE, NOTHING, TOOLS, asks, run, stages
from workflows.kernel.design import Parts
from workflows.kernel.errors import name_of
from workflows.kernel.step import close
from workflows.machines.staged import DESIGN
from workflows.machines.staged_context import AgentState, Observation, Thought
from workflows.machines.staged_invariants import invariant
from workflows.machines.staged_options import STANDARD, Options
from workflows.machines.staged_reply import read_observation, read_thought
from workflows.machines.staged_result import transition_events

CALL = asks("tool", q="x")
PASS = (TOOLS, CALL, tool_said(), MORE)
DONE = Observation(summary="s", final_answer="42", need_loop=False)
MODEL: dict[str, Any] = {
    "flow_type": "model",
    "enters": "Checking",
    "exits": ["Finished"],
    "writes": ["extensions"],
    "extension": {"verdict": "is it so?"},
}
CHECKED = stages(observe={"exits": ["Checking", "Thinking"]}, check=MODEL)


# -- the table and the states --------------------


def test_a_patch_must_agree_with_the_way_to_failed_too() -> None:
    """R-002-7: step 7."""
    declared = stages(observe={"flow_type": "hook", "hook": "observe", "writes": ["observation"]})
    patch = {"observation": DONE, "lifecycle": "Finished"}
    play = run(NOTHING, declared=declared, hooks={"observe": lambda view: (patch, "Failed")})
    assert (play.context.last_error.code, play.context.observation) == ("InvalidTransition", None)


@pytest.mark.parametrize("key", ["check", "hook"])
def test_half_a_character_pair_in_what_a_function_says_does_not_keep_the_run_from_failing(key: str) -> None:
    """What cannot be written is shown as a question mark."""
    keys = {"flow_type": "hook", "hook": "hook", "check": "check", "writes": ["observation"]}
    wrong = {"check": lambda view: "no: \ud800", "hook": lambda view: ({"\ud800": 1}, "\ud800")}
    hooks: dict[str, Any] = {"check": lambda view: True, "hook": lambda view: {}, key: wrong[key]}
    error = run(NOTHING, declared=stages(observe=keys), hooks=hooks).context.last_error
    assert error.code == ("PreconditionFailed" if key == "check" else "PermissionViolation")
    error.message.encode()


def test_a_stage_is_granted_the_tools_that_it_declared() -> None:
    """The kernel refuses any other, whatever the stage's own code offers."""
    options = Options.model_validate({"stages": stages(act={"tools": ["search"]})})
    machine = DESIGN.build(options, Parts())
    assert machine.states[machine.state_named("Acting")].tools == frozenset({"search"})
    assert machine.states[machine.state_named("Thinking")].tools is None


def test_the_longest_run_is_not_cut_off_by_the_kernels_bound() -> None:
    """Ten passes through every stage, and the way to the end."""
    play = run(*PASS * 9, TOOLS, CALL, tool_said(), ANSWER, on_max_iterations="last_observation")
    assert (play.exit.answer, play.last.snapshot.transitions) == ("42", 31)


def test_a_failure_tells_in_which_lifecycle_and_pass() -> None:
    details = run(NOTHING, MORE, NOTHING, failed("fatal")).context.last_error.details
    assert (details["lifecycle"], details["iteration"]) == ("Observing", 1)
    options: Any = {"max_iterations": 2, "on_max_iterations": "fail"}
    details = run(NOTHING, MORE, NOTHING, MORE, **options).context.last_error.details
    assert details == {"lifecycle": "Observing", "iteration": 1, "max_iterations": 2}


def test_a_failed_state_without_an_error_is_not_sound() -> None:
    """R-002-4: should anything lead there without one."""
    state = AgentState(session_id="s", lifecycle="Failed")
    assert invariant("Failed", Options())(state, None) == "`last_error` is not set"


# -- the stages --------------------


def test_in_the_last_pass_no_tool_is_used_whoever_suggested_it() -> None:
    """Also where a function thinks, which nobody told of the last pass."""
    declared = stages(think={"flow_type": "hook", "hook": "think", "writes": ["thought"]})
    thought = Thought(intent="diagnosis", suggested_tools=("tool",))
    hooks = {"think": lambda view: ({"thought": thought}, "Acting")}
    play = run(ANSWER, declared=declared, hooks=hooks, max_iterations=1)
    assert [output.output for output in play.context.action.tool_outputs] == ["no tool needed"]
    assert play.exit.answer == "42"


def test_the_log_tells_what_a_model_stage_said_but_not_twice_where_it_went() -> None:
    reply = said(json.dumps({"lifecycle": "Finished", "extensions": {"verdict": "yes"}}))
    play = run(NOTHING, ANSWER, reply, declared=CHECKED)
    assert play.records[-1].reason == '{"extensions": {"verdict": "yes"}}'


def test_a_model_stage_with_one_exit_is_not_asked_for_it() -> None:
    call = run(NOTHING, ANSWER, declared=CHECKED).prompts[-1]
    schema: Any = call.response_schema
    assert set(schema["properties"]) == {"extensions"}
    assert "lifecycle" not in call.transcript.messages[0].content


@pytest.mark.parametrize(("answer", "need"), [("", True), (None, True), ("found", False)])
def test_an_empty_answer_of_an_inner_machine_needs_another_pass(answer: str | None, need: bool) -> None:
    machine = {"name": "react", "merge": "observation"}
    keys = {"flow_type": "machine", "writes": ["observation"], "exits": ["Checking"], "machine": machine}
    ended = MachineEnded(machine="react", ok=True, exit_reason="done", answer=answer)
    play = run(NOTHING, ended, declared=stages(observe=keys, check=MODEL))
    assert name_of(play.last.snapshot.state) == "Checking"
    assert play.context.observation.need_loop is need


# -- what models write --------------------


@pytest.mark.parametrize("text", ['{"final_answer": "a"}', '{"summary": "s"}'])
def test_an_observation_that_does_not_ask_for_another_pass_needs_none(text: str) -> None:
    assert read_observation(text).need_loop is False


def test_a_thought_suggests_at_most_50_tools() -> None:
    names = [f"tool{n}" for n in range(60)]
    thought = read_thought(json.dumps({"intent": "change", "suggested_tools": names}), ["change"])
    assert isinstance(thought, Thought)
    assert thought.suggested_tools == tuple(names[:50])


# -- the end, and the events --------------------


def test_a_run_that_is_cancelled_raises_nothing() -> None:
    """R-002-8: only one that failed does."""
    play = run(TOOLS, CALL, raise_on_failure=True)
    ended = close(play.machine, play.last, "cancelled", now=2000, by="person")
    assert ended.exit is not None
    assert (ended.exit.reason, ended.exit.raises) == ("cancelled", None)


def test_what_a_machine_inside_did_is_no_event_of_the_stages() -> None:
    """R-002-9: its records stand in the same log, and its stages are others."""
    play = run(NOTHING, ANSWER)
    inside = [record.model_copy(update={"within": "3.1"}) for record in _other().records]
    whole = (*play.records[:2], *inside, *play.records[2:])
    assert transition_events(whole, STANDARD) == transition_events(play.records, STANDARD)


def _other() -> Play:
    return run(TOOLS, CALL, tool_said(), ANSWER)


# -- acting without a thought --------------------

GATHER = {"name": "gather", "flow_type": "act", "enters": "Gathering", "exits": ["Judging"]}
JUDGE = {"name": "judge", "flow_type": "observe", "enters": "Judging", "exits": ["Finished"]}


def test_a_stage_that_acts_cannot_be_the_first() -> None:
    with pytest.raises(ValueError, match="stage gather: flow_type: act needs a thought"):
        Options.model_validate({"stages": [GATHER, JUDGE]})


def test_a_stage_that_acts_where_nobody_thought_fails_the_run_in_words() -> None:
    look = {**MODEL, "name": "look", "enters": "Looking", "exits": ["Gathering"]}
    reply = said(json.dumps({"extensions": {"verdict": "yes"}}))
    play = run_script("staged", (reply,), options={"stages": [look, GATHER, JUDGE]})
    error = play.context.last_error
    assert (error.code, error.stage) == ("StageError", "gather")
    assert "`thought` is not set" in error.message
