"""Going back to an earlier step of a ReAct run by its state alone (spec 1.8)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines.answers import act, failed, final, said, thought, tool_said
from tests.machines.driver import Play, play, run_script
from tests.machines.test_react_steps import DICE, SEARCH, random_run
from workflows.kernel.errors import FatalError, RecoverableError
from workflows.machines.react import design
from workflows.machines.react_context import S
from workflows.machines.react_prompt import ReplyFormat
from workflows.machines.react_reply import read_reply
from workflows.machines.react_rollback import rollback_to_step, went_back

GUESS = thought("I guess so")
ROUND = (act("search", q="x"), tool_said("found"))


def react(*answers: Any, **options: Any) -> Play:
    """A run with one tool."""
    return run_script("react", answers, tools=(SEARCH,), options=options)


def messages(context: Any) -> list[str]:
    """What was said, behind system message and goal."""
    return [message.content for message in context.transcript][2:]


def test_the_steps_up_to_the_one_that_is_named_stay_and_the_change_is_noted() -> None:
    done = react(*ROUND, *ROUND, final()).context
    back = rollback_to_step(done, 1)
    assert back.steps == done.steps[:2]
    noted = (back.metadata["rolled_back_from"], back.metadata["rolled_back_to"])
    assert noted == (3, 1)
    assert {**back.metadata, "exit_reason": "goal_achieved"} == {
        **done.metadata, "rolled_back_from": 3, "rolled_back_to": 1
    }  # fmt: skip
    assert back.trace_id == done.trace_id


@pytest.mark.parametrize("step_id", [3, 4, 99, -1, -3])
def test_R_000_14_a_step_that_there_is_not_is_refused(step_id: int) -> None:
    done = react(*ROUND, *ROUND, final()).context
    with pytest.raises(ValueError, match=rf"step {step_id}; there are the steps 0 to 2"):
        rollback_to_step(done, step_id)


def test_R_000_14_a_run_without_steps_has_nowhere_to_go_back_to() -> None:
    with pytest.raises(ValueError, match="no steps yet"):
        rollback_to_step(react().context, 0)


def test_R_000_14_a_finished_run_is_open_again_and_has_no_exit_reason() -> None:
    done = react(*ROUND, final()).context
    assert (done.terminated, done.metadata["exit_reason"]) == (True, "goal_achieved")
    for step_id in (0, 1):
        back = rollback_to_step(done, step_id)
        assert (back.terminated, "exit_reason" in back.metadata) == (False, False)


def test_the_metadata_stays_read_only() -> None:
    back = rollback_to_step(react(*ROUND, final()).context, 0)
    with pytest.raises(TypeError):
        back.metadata["goal"] = "another"


def test_the_conversation_goes_back_to_what_was_said_by_then() -> None:
    run = react(
        act("search", q="x"), tool_said("A"), said("?"), act("search", q="y"), tool_said("B"), final()
    )
    kept = messages(rollback_to_step(run.context, 0))
    assert kept == messages(run.context)[:2]
    assert kept[-1] == "Observation: A"
    twice = messages(rollback_to_step(run.context, 1))
    assert (len(twice), twice[-1]) == (6, "Observation: B")


def test_a_rejected_step_keeps_its_reason_only_where_nothing_came_behind_it() -> None:
    """R-000-6: the reason is for the visit that follows the failed validation."""
    run = react(thought("a"), GUESS)
    assert str(rollback_to_step(run.context, 1).metadata["retry_reason"]).startswith("forbid_guessing")
    assert rollback_to_step(run.context, 0).metadata["retry_reason"] is None


def test_a_step_that_was_still_open_counts_as_failed_so_that_the_next_thought_may_come() -> None:
    open_step = react(act("search", q="x"))
    assert open_step.context.steps[0].status == "validated"
    back = rollback_to_step(open_step.context, 0)
    assert back.steps[0].status == "failed"
    again = play(open_step.machine, back, [final("7")])
    assert (again.exit.answer, [step.status for step in again.context.steps]) == (
        "7",
        ["failed", "committed"],
    )


def _without_times(context: Any) -> Any:
    metadata = {k: v for k, v in context.metadata.items() if not k.startswith("rolled_back")}
    steps = tuple(step.model_copy(update={"timestamp": 0}) for step in context.steps)
    return context.model_copy(update={"steps": steps, "metadata": metadata})


def test_with_the_same_answers_the_run_comes_to_the_same_state() -> None:
    rest = (act("search", q="y"), tool_said("B"), said("?"), final("42"))
    whole = react(*ROUND, *rest)
    again = play(whole.machine, rollback_to_step(whole.context, 0), rest)
    history = {"tool_history": ["search", "search", "search"]}
    expected = whole.context.model_copy(update={"metadata": {**whole.context.metadata, **history}})
    assert _without_times(again.context) == _without_times(expected)
    assert [m.content for m in again.context.transcript] == [m.content for m in whole.context.transcript]


def test_what_came_behind_is_thought_anew_and_not_read_from_the_cache() -> None:
    run = react(*ROUND, final("42"))
    back = rollback_to_step(run.context, 0)
    assert (len(run.context.cache), len(back.cache)) == (2, 1)
    assert play(run.machine, back, [final("7")]).exit.answer == "7"


@pytest.mark.parametrize("error", [RecoverableError("lost"), FatalError("lost")])
def test_a_step_that_the_parser_failed_on_keeps_the_reply_that_made_it(error: Exception) -> None:
    def read(text: str) -> Any:
        if text == "?":
            raise error
        return read_reply(text)

    own = design("own", ReplyFormat(read=read, words="say it"))
    run = run_script(own, (said("?"), thought("b"), final()), tools=(SEARCH,))
    if isinstance(error, FatalError):
        assert run.context.steps == ()
        return
    kept = messages(rollback_to_step(run.context, 0))
    assert kept == ["?", "Observation: RecoverableError: lost"]


def test_a_step_whose_model_could_not_be_asked_keeps_what_was_said_of_it() -> None:
    run = react(thought("a"), failed("transient", "down"), final())
    assert messages(rollback_to_step(run.context, 1)) == messages(run.context)[:3]


@settings(deadline=None, max_examples=150)
@given(DICE, st.integers(0, 12), st.lists(st.integers(0, 419), max_size=20))
def test_from_any_step_of_any_run_it_can_be_gone_on(dice: list[int], step_id: int, later: list[int]) -> None:
    run = random_run(dice, max_steps=12)
    context = run.context
    if step_id >= len(context.steps):
        return
    back = rollback_to_step(context, step_id)
    conversation = [m.content for m in context.transcript]
    assert [m.content for m in back.transcript] == conversation[: len(back.transcript)]
    assert all(step.closed for step in back.steps)
    on = random_run(later, context=back)
    assert on.context.steps[: step_id + 1] == back.steps
    assert [record.error for record in on.records if record.error] == []
    if on.last.exit is None:
        assert on.last.snapshot.state is not S.END


def test_a_rollback_by_the_log_is_noted_in_the_same_words() -> None:
    long, short = react(*ROUND, *ROUND, final()).context, react(*ROUND).context
    assert went_back(long, short) == {"metadata": {"rolled_back_from": 3, "rolled_back_to": 0}}
    assert went_back(long, react().context) == {"metadata": {"rolled_back_from": 3, "rolled_back_to": -1}}
