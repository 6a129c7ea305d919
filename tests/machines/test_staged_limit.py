"""The pass limit of the staged machine and its three modes (spec 3.8)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.machines.answers import said, tool_said
from tests.machines.driver import Play
from tests.machines.scripts_staged import ANSWER, MORE, NOTHING, TOOLS, asks, observed, run, stages
from workflows.machines.staged_options import Options

CALL = asks("tool", q="x")
PASS = (TOOLS, CALL, tool_said(), MORE)


def passes(play: Play) -> int:
    """How many passes began."""
    count: int = play.last.snapshot.step
    return count


def test_the_default_is_ten_passes_and_a_forced_answer() -> None:
    options = Options()
    assert (options.max_iterations, options.on_max_iterations) == (10, "force_answer")


@pytest.mark.parametrize("most", [0, -1])
def test_the_limit_is_greater_than_0(most: int) -> None:
    with pytest.raises(ValidationError):
        Options(max_iterations=most)


# -- force_answer --------------------


def test_a_limit_of_three_means_two_passes_with_tools_and_one_that_answers() -> None:
    play = run(*PASS, *PASS, TOOLS, ANSWER, max_iterations=3)
    assert [effect.kind for effect in play.effects].count("call_tools") == 2
    assert play.visited.split()[-3:] == ["Thinking", "Observing", "Finished"]
    assert (passes(play), play.context.iteration, play.exit.answer) == (3, 2, "42")


def test_in_the_last_pass_no_tools_are_offered_and_none_are_kept() -> None:
    play = run(*PASS, TOOLS, ANSWER, max_iterations=2)
    last = play.prompts[-2]
    assert "- tool: does tool" not in last.transcript.messages[0].content
    assert "no tools can be used any more" in last.transcript.messages[0].content
    assert play.context.thought.suggested_tools == ()
    first = play.prompts[0].transcript.messages[0].content
    assert "- tool: does tool" in first


def test_in_the_last_pass_the_need_of_a_loop_is_ignored() -> None:
    play = run(NOTHING, observed("41", need_loop=True), max_iterations=1)
    assert (play.exit.reason, play.exit.answer) == ("answered", "41")
    assert play.exit.outcome["fallback_used"] is False


@pytest.mark.parametrize("last", [MORE, observed(), said(""), said("{}")])
def test_an_empty_answer_is_replaced_by_the_fallback_text(last: Any) -> None:
    """The run is not counted as a success, and says so."""
    play = run(NOTHING, last, max_iterations=1, fallback_text="Ask Ann.")
    ended = play.exit
    assert (ended.ok, ended.reason, ended.answer) == (False, "no_answer", "Ask Ann.")
    assert ended.error == "no answer within 1 passes"
    assert (ended.outcome["fallback_used"], ended.outcome["degraded"]) == (True, True)
    events: Any = ended.outcome["degrade_events"]
    assert [(event["code"], event["stage"]) for event in events] == [("fallback_used", "observe")]
    assert play.visited.split()[-1] == "Finished"


def test_with_one_pass_the_only_pass_is_the_one_that_answers() -> None:
    play = run(TOOLS, ANSWER, max_iterations=1)
    assert play.visited == "Initialized Thinking Observing Finished"
    assert play.exit.answer == "42"


@pytest.mark.parametrize("last", [MORE, observed(), said("")])
def test_in_an_earlier_pass_an_empty_answer_leads_to_the_next_one(last: Any) -> None:
    for mode in ("force_answer", "fail", "last_observation"):
        play = run(NOTHING, last, NOTHING, ANSWER, max_iterations=2, on_max_iterations=mode)
        assert (passes(play), play.exit.answer) == (2, "42")


def test_acting_that_was_entered_anyway_uses_no_tools_in_the_last_pass() -> None:
    """A lifecycle in which nothing leads around Acting."""
    declared = stages(think={"exits": ["Acting"]})
    play = run(TOOLS, ANSWER, declared=declared, max_iterations=1)
    assert [output.output for output in play.context.action.tool_outputs] == ["no tool needed"]
    assert play.exit.answer == "42"


# -- fail --------------------


def test_with_fail_the_last_pass_is_a_normal_one() -> None:
    play = run(*PASS, TOOLS, CALL, tool_said(), ANSWER, max_iterations=2, on_max_iterations="fail")
    assert [effect.kind for effect in play.effects].count("call_tools") == 2
    assert play.exit.answer == "42"


@pytest.mark.parametrize("last", [MORE, observed(), observed("41", need_loop=True), said("")])
def test_with_fail_a_wish_for_another_pass_fails_the_run(last: Any) -> None:
    play = run(NOTHING, last, max_iterations=1, on_max_iterations="fail")
    error = play.context.last_error
    assert (error.code, error.stage) == ("MaxIterationsExceeded", "observe")
    assert error.details["max_iterations"] == 1
    assert (play.exit.ok, play.exit.reason) == (False, "max_iterations")
    assert play.context.observation is not None


# -- last_observation --------------------


def test_with_last_observation_the_last_pass_is_a_normal_one() -> None:
    mode = "last_observation"
    play = run(*PASS, TOOLS, CALL, tool_said(), ANSWER, max_iterations=2, on_max_iterations=mode)
    assert [effect.kind for effect in play.effects].count("call_tools") == 2
    assert play.exit.answer == "42"


@pytest.mark.parametrize(
    ("last", "answer"),
    [
        (observed(summary="nearly", need_loop=True), "nearly"),
        (observed("41", summary="nearly", need_loop=True), "41"),
        (observed(summary="nearly"), "nearly"),
    ],
)
def test_with_last_observation_the_summary_is_the_answer_where_there_is_none(last: Any, answer: str) -> None:
    play = run(NOTHING, last, max_iterations=1, on_max_iterations="last_observation")
    assert (play.exit.reason, play.exit.answer) == ("answered", answer)
    assert play.exit.outcome["fallback_used"] is False


def test_with_last_observation_and_nothing_at_all_there_is_the_fallback_text() -> None:
    play = run(NOTHING, said("{}"), max_iterations=1, on_max_iterations="last_observation")
    assert (play.exit.reason, play.exit.outcome["fallback_used"]) == ("no_answer", True)


# -- stages of users' own at the limit --------------------

REVIEW = {"flow_type": "hook", "hook": "review", "enters": "Reviewing", "exits": ["Finished", "Thinking"]}


def reviewed(*answers: Any, **options: Any) -> Play:
    """A run with a review that is never content."""
    declared = stages(observe={"exits": ["Reviewing", "Thinking"]}, review=REVIEW)
    hooks = {"review": lambda view: {"lifecycle": "Thinking"}}
    return run(*answers, declared=declared, hooks=hooks, **options)


def test_a_custom_stage_that_wants_another_pass_gets_one_while_there_is_one() -> None:
    play = reviewed(NOTHING, ANSWER, NOTHING, ANSWER, max_iterations=2)
    assert play.visited.split() == [
        *("Initialized", "Thinking", "Observing", "Reviewing"),
        *("Thinking", "Observing", "Reviewing", "Finished"),
    ]
    assert play.context.lifecycle == "Finished"


def test_a_custom_stage_that_wants_too_many_fails_the_run_with_fail() -> None:
    play = reviewed(NOTHING, ANSWER, max_iterations=1, on_max_iterations="fail")
    error = play.context.last_error
    assert (error.code, error.stage) == ("MaxIterationsExceeded", "review")


def test_a_stage_that_can_only_go_back_fails_the_run_at_the_limit() -> None:
    declared = stages(
        observe={"exits": ["Finished", "Reviewing"]},
        review={**REVIEW, "exits": ["Thinking"], "hook": "review"},
    )
    hooks = {"review": lambda view: {"lifecycle": "Thinking"}}
    play = run(NOTHING, MORE, declared=declared, hooks=hooks, max_iterations=1, on_max_iterations="fail")
    assert play.context.last_error.code == "MaxIterationsExceeded"
    assert play.context.last_error.stage == "review"


def test_no_run_is_longer_than_its_passes() -> None:
    """Whatever the models say, the kernel's own bound is never what ends a run."""
    never = [NOTHING, observed(need_loop=True)] * 10
    play = run(*never)
    assert (passes(play), play.exit.reason) == (10, "no_answer")
    assert play.last.snapshot.transitions < play.machine.max_transitions
