"""One stage run, step by step (R-002-7): each test takes two steps of the list that could both refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.machines.driver import Play
from tests.machines.scripts_staged import ANSWER, MORE, NOTHING, run, stages
from workflows.kernel.errors import name_of
from workflows.machines.staged_context import Action, Observation, Thought

DONE = Observation(summary="s", final_answer="42", need_loop=False)
AGAIN = Observation(summary="s")


def broken(play: Play) -> tuple[str, str]:
    """Code and stage of the error that ended the run."""
    error = play.context.last_error
    assert name_of(play.last.snapshot.state) == "Failed"
    return error.code, error.stage


def hooked(name: str, execute: Any, check: Any = None, **keys: Any) -> Any:
    """The stages with one of them a pure function, and that function."""
    declared = stages(**{name: {"flow_type": "hook", "hook": "execute", **keys}})
    hooks: dict[str, Any] = {"execute": execute}
    if check:
        declared = [{**s, "check": "check"} if s["name"] == name else s for s in declared]
        hooks["check"] = check
    return {"declared": declared, "hooks": hooks}


OBSERVE: dict[str, Any] = {"reads": ["thought", "iteration"], "writes": ["observation"]}


def test_checks_come_before_the_work_and_what_it_does_comes_behind() -> None:
    """R-002-7: steps 2 to 4: the stage of the lifecycle is picked, asked for its precondition, run."""
    trace: list[str] = []

    def noting(word: str, answer: Any) -> Any:
        def hook(view: Any) -> Any:
            trace.append(word)
            return answer

        return hook

    work = noting("execute", ({"observation": DONE}, "Finished"))
    play = run(NOTHING, **hooked("observe", work, noting("check", True), **OBSERVE))
    assert trace == ["check", "execute"]
    assert play.exit.answer == "42"


def test_the_invariant_of_the_state_is_asked_before_the_stages_check() -> None:
    """R-002-7: step 1 before step 3: the check is never asked where the state is not sound."""
    asked: list[str] = []

    def check(view: Any) -> bool:
        asked.append("check")
        return False

    play = run(
        **hooked("think", lambda view: {}, check, reads=["user_input"], writes=["thought"]),
        changed={"user_input": None},
    )
    assert (broken(play), asked) == (("InvariantViolation", "orchestrator"), [])


def test_a_failed_check_keeps_the_stage_from_running() -> None:
    """R-002-7: step 3 before step 4."""
    ran: list[str] = []
    play = run(
        NOTHING, **hooked("observe", lambda view: ran.append("ran"), lambda view: "not now", **OBSERVE)
    )
    assert (broken(play), ran) == (("PreconditionFailed", "observe"), [])
    assert "not now" in play.context.last_error.message


def test_the_write_set_is_asked_before_the_exits() -> None:
    """R-002-7: step 5 before step 7: both are broken here, and the write is what is named."""
    play = run(NOTHING, **hooked("observe", lambda view: ({"thought": None}, "Nowhere"), **OBSERVE))
    assert broken(play) == ("PermissionViolation", "observe")


def test_a_patch_is_dropped_as_a_whole() -> None:
    """R-002-7: step 5: the field that it may write is not written either."""
    play = run(NOTHING, **hooked("observe", lambda view: {"observation": DONE, "thought": None}, **OBSERVE))
    assert broken(play) == ("PermissionViolation", "observe")
    assert play.context.observation is None
    assert play.context.thought is not None


def test_the_patch_is_merged_before_the_next_lifecycle_is_looked_at() -> None:
    """R-002-7: step 6 before step 7: a patch that does not fit is named, not the exit behind it."""
    play = run(NOTHING, **hooked("observe", lambda view: ({"observation": 7}, "Nowhere"), **OBSERVE))
    assert broken(play) == ("StageError", "observe")


def test_the_exits_are_asked_before_the_orchestrator_does_its_part() -> None:
    """R-002-7: step 7 before step 8: where the exit is wrong nothing is counted, cleared or kept."""
    play = run(NOTHING, **hooked("observe", lambda view: ({"observation": AGAIN}, "Acting"), **OBSERVE))
    assert broken(play) == ("InvalidTransition", "observe")
    context = play.context
    assert (context.iteration, context.observation, context.thought is None) == (0, None, False)


def test_a_stage_with_several_exits_must_say_which() -> None:
    """R-002-7: step 7."""
    play = run(NOTHING, **hooked("observe", lambda view: {"observation": DONE}, **OBSERVE))
    assert broken(play) == ("InvalidTransition", "observe")
    message = play.context.last_error.message
    assert "does not say where the run goes; by its exits it may lead to Finished or Thinking" in message


@pytest.mark.parametrize(("said", "goes"), [("Finished", "Thinking"), ("Acting", "Finished")])
def test_a_patch_that_sets_the_lifecycle_must_agree_with_where_the_stage_goes(said: str, goes: str) -> None:
    """R-002-7: step 7."""
    patch = {"observation": DONE, "lifecycle": said}
    play = run(NOTHING, **hooked("observe", lambda view: (patch, goes), **OBSERVE))
    assert broken(play) == ("InvalidTransition", "observe")
    assert play.context.observation is None


def test_a_patch_may_set_the_lifecycle_and_goes_there() -> None:
    """R-002-7: step 7: the two agree, also when the patch alone says it."""
    patch = {"observation": DONE, "lifecycle": "Finished"}
    for execute in (lambda view: patch, lambda view: (patch, "Finished")):
        assert run(NOTHING, **hooked("observe", execute, **OBSERVE)).exit.answer == "42"


def test_the_orchestrator_does_its_part_before_the_new_state_is_checked() -> None:
    """R-002-7: step 8 before step 9: a pass begins in Observing here, so the way back from Acting clears
    the action that Observing then lacks."""
    declared = [
        {"name": "observe", "enters": "Observing", "exits": ["Acting", "Finished"], "writes": ["thought"]},
        {"name": "act", "enters": "Acting", "exits": ["Observing"], "writes": ["action"]},
    ]
    declared = [{**stage, "flow_type": "hook", "hook": str(stage["name"])} for stage in declared]
    thought = Thought(intent="diagnosis")
    hooks = {
        "observe": lambda view: ({"thought": thought}, "Acting"),
        "act": lambda view: {"action": Action()},
    }
    play = run(declared=declared, hooks=hooks)
    assert broken(play) == ("InvariantViolation", "act")
    assert "`action` is not set, although Acting came before" in play.context.last_error.message
    assert play.context.thought == thought


def test_a_state_that_is_not_sound_is_not_kept() -> None:
    """R-002-7: step 9: the state before the patch is kept."""
    empty = Observation(summary="s", need_loop=False)
    play = run(NOTHING, **hooked("observe", lambda view: ({"observation": empty}, "Finished"), **OBSERVE))
    assert broken(play) == ("InvariantViolation", "observe")
    assert play.context.observation is None
    assert "no final answer" in play.context.last_error.message


def test_the_event_is_appended_last_and_tells_what_was_kept() -> None:
    """R-002-7: step 10: the record of a transition has the stage's patch and the orchestrator's part."""
    play = run(NOTHING, MORE, NOTHING, ANSWER)
    back = next(record for record in play.records if (record.state, record.to) == ("Observing", "Thinking"))
    assert set(back.patch) == {"observation", "iteration", "lifecycle"}
    assert set(back.reset) == {"thought", "action", "working"}


def test_reading_what_was_not_declared_ends_the_run_at_once() -> None:
    """R-002-7: step 4: a view shows nothing else (R-002-3)."""
    play = run(NOTHING, **hooked("observe", lambda view: {"observation": view.user_input}, **OBSERVE))
    assert broken(play) == ("PermissionViolation", "observe")
    assert "'user_input' was read" in play.context.last_error.message
