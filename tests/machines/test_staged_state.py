"""Lifecycle, shared state, ownership and invariants of the staged machine (spec 3.2 to 3.5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from activities.contracts import CallModel
from tests.machines.answers import tool_said
from tests.machines.scripts_staged import (
    ANSWER,
    MORE,
    NOTHING,
    TOOLS,
    asks,
    observed,
    run,
    stages,
    thinks,
)
from tests.machines.test_all_machines import random_run
from workflows.kernel.design import Parts
from workflows.kernel.errors import name_of
from workflows.kernel.step import Cause, advance, reenter
from workflows.machines.staged import DESIGN
from workflows.machines.staged_context import (
    FIELDS,
    Action,
    AgentState,
    LastError,
    Observation,
    Thought,
)
from workflows.machines.staged_options import Options

CALL = asks("tool", q="x")
THOUGHT = Thought(intent="diagnosis", suggested_tools=("tool",))

# -- the lifecycle (3.2) --------------------

WAYS = [
    pytest.param((NOTHING, ANSWER), "Initialized Thinking Observing Finished", id="no tool"),
    pytest.param(
        (TOOLS, CALL, tool_said(), ANSWER), "Initialized Thinking Acting Observing Finished", id="a tool"
    ),
    pytest.param(
        (NOTHING, MORE, TOOLS, CALL, tool_said(), ANSWER),
        "Initialized Thinking Observing Thinking Acting Observing Finished",
        id="two passes",
    ),
    pytest.param(
        (NOTHING, observed(need_loop=False), NOTHING, ANSWER),
        "Initialized Thinking Observing Thinking Observing Finished",
        id="no need of a loop, but no answer either",
    ),
    pytest.param(
        (NOTHING, observed("42", need_loop=True), NOTHING, ANSWER),
        "Initialized Thinking Observing Thinking Observing Finished",
        id="an answer, but the need of a loop",
    ),
    pytest.param(
        (thinks("tool", intent="general_inquiry"), ANSWER),
        "Initialized Thinking Acting Observing Finished",
        id="tools suggested for a general inquiry",
    ),
]


@pytest.mark.parametrize(("answers", "way"), WAYS)
def test_the_lifecycle_is_walked_as_the_table_says(answers: Any, way: str) -> None:
    play = run(*answers)
    assert play.visited == way
    assert play.exit.answer == "42"


def test_the_table_has_the_rows_of_the_spec_and_no_other() -> None:
    machine = DESIGN.build(Options(), Parts())
    rows = {(name_of(row.source), name_of(row.target)) for row in machine.rows}
    assert rows == {
        ("Initialized", "Thinking"),
        ("Thinking", "Acting"),
        ("Thinking", "Observing"),
        ("Acting", "Observing"),
        ("Observing", "Finished"),
        ("Observing", "Thinking"),
        ("Thinking", "Failed"),
        ("Acting", "Failed"),
        ("Observing", "Failed"),
    }
    assert {name_of(state) for state in machine.final} == {"Finished", "Failed"}


# -- the state (3.3) --------------------


def test_the_shared_state_has_the_fields_of_the_spec() -> None:
    assert (
        *("lifecycle", "session_id", "user_input", "iteration", "thought", "action", "observation"),
        *("last_error", "extensions"),
    ) == FIELDS
    assert set(Thought.model_fields) == {"intent", "suggested_tools", "reasoning"}
    assert set(Action.model_fields) == {"requested_tools", "tool_outputs"}
    assert set(Observation.model_fields) == {"summary", "final_answer", "need_loop"}
    assert set(LastError.model_fields) == {"code", "stage", "message", "details"}


def test_each_stage_owns_one_key_of_the_extensions() -> None:
    """R-002-1: what a stage writes there lands under its own name, whatever it says."""
    declared = stages(
        think={"flow_type": "hook", "hook": "think", "writes": ["thought", "extensions"]},
        observe={"flow_type": "hook", "hook": "observe", "writes": ["observation", "extensions"]},
    )
    done = Observation(summary="s", final_answer="42", need_loop=False)
    hooks = {
        "think": lambda view: ({"thought": THOUGHT, "extensions": {"observe": "mine"}}, "Observing"),
        "observe": lambda view: ({"observation": done, "extensions": {"a": {"b": 1}}}, "Finished"),
    }
    play = run(declared=declared, hooks=hooks)
    assert play.exit.outcome["extensions"] == {"think": {"observe": "mine"}, "observe": {"a": {"b": 1}}}


def test_what_a_stage_keeps_is_merged_pass_by_pass() -> None:
    """R-002-1: the extensions outlive the way back."""
    declared = stages(
        observe={
            "flow_type": "hook",
            "hook": "observe",
            "reads": ["iteration"],
            "writes": ["extensions", "observation"],
        }
    )

    def observe(view: Any) -> Any:
        keeps: dict[str, Any] = {"extensions": {f"pass{view.iteration}": "seen"}}
        if view.iteration < 2:
            return keeps, "Thinking"
        return {**keeps, "observation": Observation(final_answer="42", need_loop=False)}, "Finished"

    play = run(NOTHING, NOTHING, NOTHING, declared=declared, hooks={"observe": observe})
    assert play.context.extensions == {"observe": {"pass0": "seen", "pass1": "seen", "pass2": "seen"}}


# -- ownership (3.4) --------------------


@pytest.mark.parametrize("field", ["session_id", "user_input", "iteration"])
@pytest.mark.parametrize("flow", ["model", "hook", "machine"])
def test_no_stage_may_write_what_the_orchestrator_owns(field: str, flow: str) -> None:
    """R-002-2: not even a stage of users' own may declare it."""
    keys: dict[str, Any] = {"flow_type": flow, "enters": "Checking", "exits": ["Finished"], "writes": [field]}
    with pytest.raises(ValidationError, match=rf"stage check: writes: '{field}' is not for a stage of type"):
        Options.model_validate({"stages": stages(check=keys)})


def test_the_orchestrator_is_who_counts_clears_and_says_where_the_run_is() -> None:
    """R-002-2: those changes stand in no stage's write set."""
    play = run(NOTHING, MORE, NOTHING, ANSWER)
    machine = play.machine
    writes = set().union(*(stage.writes for stage in machine.states.values()))
    assert writes & {"session_id", "user_input", "iteration", "material", "degraded"} == set()
    assert (play.context.iteration, play.context.session_id) == (1, "trace-1")


READS = {
    "think": {"session_id", "user_input", "iteration", "observation", "extensions"},
    "act": {"session_id", "iteration", "thought", "extensions"},
    "observe": {"session_id", "iteration", "thought", "action", "extensions"},
}
WRITES = {
    "think": {"thought", "extensions", "lifecycle"},
    "act": {"action", "extensions", "lifecycle"},
    "observe": {"observation", "extensions", "lifecycle"},
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("stage", READS)
@pytest.mark.parametrize(("key", "matrix"), [("reads", READS), ("writes", WRITES)])
def test_the_matrix_is_a_ceiling_for_the_three_shipped_stages(
    stage: str, key: str, matrix: Any, field: str
) -> None:
    """R-002-3: checked when the machine is built; among others observe may not read the user's input."""
    given = {"stages": stages(**{stage: {key: [field]}})}
    if field in matrix[stage]:
        Options.model_validate(given)
        return
    with pytest.raises(ValidationError, match=rf"stage {stage}: {key}: '{field}' is not for a stage of type"):
        Options.model_validate(given)


def test_a_shipped_stage_that_declares_less_may_not_do_what_it_did_not_declare() -> None:
    """R-002-3: the ceiling grants nothing, the declaration does."""
    play = run(TOOLS, declared=stages(act={"reads": ["iteration"]}))
    assert (play.context.last_error.code, play.context.last_error.stage) == ("PermissionViolation", "act")
    assert "'thought' was read" in play.context.last_error.message
    play = run(NOTHING, declared=stages(think={"writes": []}))
    assert (play.context.last_error.code, play.context.last_error.stage) == ("PermissionViolation", "think")
    assert "'thought' was written" in play.context.last_error.message


def test_observe_and_act_never_see_what_the_user_wrote() -> None:
    play = run(TOOLS, CALL, tool_said(), ANSWER, goal="the secret question")
    shown = ["the secret question" in str(call.transcript.messages) for call in play.prompts]
    assert shown == [True, False, False]


def test_think_sees_the_previous_observation_and_the_pass() -> None:
    play = run(NOTHING, MORE)
    assert "observation.summary: so far" in play.told
    assert "Pass 2 of 10." in play.told


def test_what_a_stage_really_read_is_in_the_log() -> None:
    play = run(TOOLS, CALL, tool_said(), ANSWER)
    reads: dict[str, set[str]] = {}
    for record in play.records:
        reads.setdefault(record.state, set()).update(set(record.reads) & set(FIELDS))
    assert reads["Thinking"] == {"user_input", "iteration", "observation", "extensions"}
    assert reads["Acting"] == {"thought", "iteration", "extensions"}
    assert reads["Observing"] == {"thought", "action", "iteration", "extensions"}


# -- invariants (3.5) --------------------


def failing(play: Any) -> str:
    """Message of the invariant that does not hold."""
    error = play.context.last_error
    assert error.code == "InvariantViolation"
    message: str = error.message
    return message


@pytest.mark.parametrize("text", [None, "", "  \n"])
def test_1_a_run_without_user_input_does_not_begin(text: str | None) -> None:
    assert "`user_input` is not set" in failing(run(changed={"user_input": text}))


@pytest.mark.parametrize(
    "changed", [{"thought": THOUGHT}, {"action": Action()}, {"observation": Observation()}]
)
def test_1_a_run_begins_empty(changed: Any) -> None:
    assert f"`{next(iter(changed))}` is set before any stage ran" in failing(run(changed=changed))


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({}, "`thought` is not set"),
        ({"thought": Thought(intent="fishing")}, "the intent 'fishing' is not defined"),
    ],
)
def test_2_acting_needs_a_thought_with_a_defined_intent(patch: Any, words: str) -> None:
    declared = stages(think={"flow_type": "hook", "hook": "think", "writes": ["thought"]})
    play = run(declared=declared, hooks={"think": lambda view: (patch, "Acting")})
    assert words in failing(play)
    assert name_of(play.last.snapshot.state) == "Failed"


def test_3_observing_after_acting_needs_an_action() -> None:
    declared = stages(act={"flow_type": "hook", "hook": "act", "writes": ["action"]})
    play = run(TOOLS, declared=declared, hooks={"act": lambda view: ({}, "Observing")})
    assert "`action` is not set, although Acting came before" in failing(play)


def test_3_observing_after_thinking_needs_none() -> None:
    assert run(NOTHING, ANSWER).context.action is None


@pytest.mark.parametrize("seen", [None, Observation(summary="s"), Observation(final_answer="  ")])
def test_4_finished_needs_a_final_answer(seen: Observation | None) -> None:
    declared = stages(observe={"flow_type": "hook", "hook": "o", "writes": ["observation"]})
    play = run(NOTHING, declared=declared, hooks={"o": lambda view: ({"observation": seen}, "Finished")})
    assert "`observation` has no final answer" in failing(play)


def test_5_the_first_pass_is_pass_0() -> None:
    """R-002-5: and a negative one cannot be."""
    assert run().context.iteration == 0
    with pytest.raises(ValidationError):
        AgentState(session_id="s", iteration=-1)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_5_each_move_back_to_thinking_raises_the_iteration_by_one_and_nothing_lowers_it(data: Any) -> None:
    play = random_run(DESIGN, data)
    counted = [record.patch.get("iteration", 0) for record in play.records[1:]]
    backs = [int((record.state, record.to) == ("Observing", "Thinking")) for record in play.records[1:]]
    assert counted == backs
    assert play.context.iteration == sum(backs)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_6_a_failed_run_has_a_last_error_and_no_other_has(data: Any) -> None:
    """R-002-4: whatever the models say."""
    play = random_run(DESIGN, data)
    ended = name_of(play.last.snapshot.state)
    assert (play.context.last_error is not None) == (ended == "Failed")
    assert play.context.lifecycle == ended


def test_7_thinking_needs_the_users_input() -> None:
    play = run(NOTHING, MORE)
    machine, cause = play.machine, Cause("Steered", by="ann")
    lost = reenter(machine, play.last, cause, now=2000, patch={"user_input": None})
    assert lost.snapshot.context.last_error.code == "InvariantViolation"


def test_the_way_back_clears_thought_and_action_and_keeps_the_observation() -> None:
    """R-002-6: and both are there again before they are asked for."""
    play = run(TOOLS, CALL, tool_said(), MORE)
    context = play.context
    assert (context.thought, context.action, context.iteration) == (None, None, 1)
    assert context.observation == Observation(summary="so far", final_answer="", need_loop=True)


def test_a_stale_action_does_not_stand_in_for_a_missing_one() -> None:
    """R-002-6: the action of the first pass is gone when Acting of the second one writes none."""
    declared = stages(act={"flow_type": "hook", "hook": "act", "reads": ["iteration"], "writes": ["action"]})
    hooks = {"act": lambda view: ({} if view.iteration else {"action": Action()}, "Observing")}
    play = run(TOOLS, MORE, TOOLS, declared=declared, hooks=hooks)
    assert "`action` is not set" in failing(play)


def test_a_persons_message_is_told_behind_the_users_input_and_apart_from_it() -> None:
    play = run(goal="find out")
    fold = play.machine.fold_steer
    assert fold is not None
    patch = fold(play.context, "in Bern")
    step = reenter(play.machine, play.last, Cause("Steered", by="ann"), now=2000, patch=patch)
    told = step.effect.transcript.messages[-1].content  # type: ignore[union-attr]  # it asks the model
    assert "find out" in told
    assert told.endswith("\n\nThe user says: in Bern")
    assert step.snapshot.context.user_input == "find out"


def test_a_stage_that_does_not_see_the_users_input_is_told_a_persons_message_too() -> None:
    """Once each, behind what the stage sees."""
    play = run(TOOLS)
    fold = play.machine.fold_steer
    assert fold is not None
    patch = fold(play.context, "in Bern")
    step = reenter(play.machine, play.last, Cause("Steered", by="ann"), now=2000, patch=patch)
    seen = []
    for answer in (CALL, tool_said(), MORE, NOTHING, None):
        if isinstance(step.effect, CallModel):
            seen.append(step.effect.transcript.messages[-1].content)
        effect: Any = step.effect
        reaction: Any = answer(effect) if callable(answer) else answer
        step = advance(play.machine, step, reaction, now=2001) if reaction else step
    assert [text.count("in Bern") for text in seen] == [1] * 4
    assert [text.endswith("The user says: in Bern") for text in seen] == [True] * 4
