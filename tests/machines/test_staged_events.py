"""The log as transition events, and the state out of them alone (spec 3.10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines.answers import failed, tool_failed, tool_said
from tests.machines.driver import Play
from tests.machines.scripts_staged import ANSWER, MORE, NOTHING, SCRIPTS, TOOLS, asks, run, stages
from tests.machines.test_all_machines import random_run
from workflows.kernel.errors import name_of
from workflows.kernel.step import Cause, close, note, reenter
from workflows.machines.staged import DESIGN
from workflows.machines.staged_context import AgentState
from workflows.machines.staged_options import STANDARD, Stage
from workflows.machines.staged_result import TransitionEvent, transition_events

CALL = asks("tool", q="x")


def events(play: Play, declared: Sequence[Any] = STANDARD) -> tuple[TransitionEvent, ...]:
    """The events of a run."""
    return transition_events(play.records, [Stage.model_validate(stage) for stage in declared])


def rebuilt(told: Sequence[TransitionEvent]) -> AgentState:
    """The state out of the events alone: each field by its own small rule."""
    state: dict[str, Any] = {}
    defaults = AgentState(session_id="").model_dump(mode="json")
    for event in told:
        state |= {name: defaults[name] for name in event.cleared}
        for name, delta in event.patch.items():
            old: Any = state.get(name)
            grown: Any = delta
            if name == "iteration" and old is not None:
                grown = old + grown
            elif name == "degraded" and old is not None:
                grown = [*old, *grown]
            elif name == "extensions" and old is not None:
                grown = {**old, **{k: {**old.get(k, {}), **v} for k, v in grown.items()}}
            state[name] = grown
        state["lifecycle"] = event.to
        if event.err:
            state["last_error"] = event.err.model_dump(mode="json")
    return AgentState.model_validate(state)


def test_there_is_one_event_per_stage_run_and_one_of_the_orchestrator() -> None:
    """R-002-9: in order; the first is the way from Initialized to Thinking."""
    told = events(run(TOOLS, CALL, tool_said(), MORE, NOTHING, ANSWER))
    assert [(event.stage, event.from_, event.to) for event in told] == [
        ("orchestrator", "Initialized", "Thinking"),
        ("think", "Thinking", "Acting"),
        ("act", "Acting", "Observing"),
        ("observe", "Observing", "Thinking"),
        ("think", "Thinking", "Observing"),
        ("observe", "Observing", "Finished"),
    ]
    assert {event.session_id for event in told} == {"trace-1"}


def test_an_event_tells_what_was_read_and_written_and_when() -> None:
    acted = events(run(TOOLS, CALL, tool_said(), ANSWER))[2]
    assert set(acted.read_set) == {"thought", "iteration", "extensions"}
    assert acted.write_set == ("action",)
    assert set(acted.patch) == {"action"}
    assert acted.finished_at - acted.started_at == 2  # two effects, a second each
    assert acted.err is None


def test_the_way_back_tells_what_was_cleared() -> None:
    back = events(run(NOTHING, MORE))[3 - 1]
    assert (back.from_, back.to) == ("Observing", "Thinking")
    assert set(back.cleared) == {"thought", "action"}
    assert set(back.patch) == {"observation", "iteration"}


def test_an_event_goes_through_json_under_the_names_of_the_spec() -> None:
    text = events(run(NOTHING, ANSWER))[1].model_dump_json(by_alias=True)
    assert TransitionEvent.model_validate_json(text) == events(run(NOTHING, ANSWER))[1]
    for name in ("session_id", "stage", "from", "to", "read_set", "write_set", "patch", "err"):
        assert f'"{name}":' in text


@pytest.mark.parametrize(
    ("declared", "answers", "code", "words"),
    [
        (stages(think={"writes": []}), (NOTHING,), "PermissionViolation", "'thought'"),
        (stages(), (failed("fatal"),), "StageError", "server is down"),
    ],
)
def test_a_refused_patch_is_empty_and_the_error_names_the_field(
    declared: Any, answers: Any, code: str, words: str
) -> None:
    """R-002-8: the event of the stage that failed carries from, to and err, and is the last one."""
    last = events(run(*answers, declared=declared), declared)[-1]
    assert (last.stage, last.from_, last.to, last.patch) == ("think", "Thinking", "Failed", {})
    assert last.write_set == ()
    assert last.err is not None
    assert last.err.code == code
    assert words in last.err.message


def test_a_run_that_cannot_begin_has_one_event() -> None:
    """R-002-9: of the orchestrator, and it leads to Failed."""
    (only,) = events(run(changed={"user_input": None}))
    assert (only.stage, only.from_, only.to) == ("orchestrator", "Initialized", "Failed")
    assert only.err is not None
    assert only.err.code == "InvariantViolation"


def test_a_stage_that_fails_after_its_work_keeps_what_it_did() -> None:
    play = run(TOOLS, CALL, tool_failed("unknown_outcome"))
    last = events(play)[-1]
    assert (last.to, set(last.patch)) == ("Failed", {"action"})
    assert rebuilt(events(play)) == play.context


def test_the_error_handler_is_a_stage_run_too() -> None:
    declared = stages(rescue={"flow_type": "error_handler", "enters": "Failed", "hook": "rescue"})
    play = run(failed("fatal"), declared=declared, hooks={"rescue": lambda view: {"message": "sorry"}})
    last = events(play, declared)[-1]
    assert (last.stage, last.from_, last.to, last.write_set) == (
        "rescue",
        "Failed",
        "Failed",
        ("last_error",),
    )
    assert rebuilt(events(play, declared)) == play.context


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_final_state_can_be_rebuilt_from_the_events_of_every_script(script: Any) -> None:
    play = script.run(DESIGN)
    assert rebuilt(events(play)) == play.context


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_the_final_state_can_be_rebuilt_from_the_events_of_any_run(data: Any) -> None:
    """Where the run has ended: in the middle of a stage its working memory is no event yet."""
    play = random_run(DESIGN, data)
    if play.last.exit is not None:
        assert rebuilt(events(play)) == play.context
    runs = [record for record in play.records[1:] if record.to]
    assert [event.to for event in events(play)] == [record.to for record in runs]


def test_what_people_cause_is_the_orchestrators() -> None:
    """A message changes the user's input, a cancellation ends the run; a note is no event."""
    play = run(NOTHING, MORE)
    machine = play.machine
    noted = note(machine, play.last, Cause("UnusableSignal", by="signal"), now=2000)
    patch = {"user_input": "and hurry"}
    steered = reenter(machine, noted, Cause("Steered", by="ann"), now=2001, patch=patch)
    ended = close(machine, steered, "cancelled", now=2002, by="ann")
    whole = Play(machine, (*play.steps, noted, steered, ended))
    told = events(whole)
    assert [(event.stage, event.from_, event.to) for event in told[-2:]] == [
        ("orchestrator", "Thinking", "Thinking")
    ] * 2
    assert told[-2].patch == patch
    assert told[-1].write_set == ("last_error",)
    assert rebuilt(told) == ended.snapshot.context
    assert name_of(ended.snapshot.state) == "Thinking"


def test_without_records_there_are_no_events() -> None:
    assert transition_events((), STANDARD) == ()
