"""The log of steps and the metadata of the ReAct machine (spec 1.4)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from activities.contracts import CallModel, CallTools
from tests.machines.answers import act, decided, failed, final, said, thought, tool_failed, tool_said
from tests.machines.driver import Play, play, run_script, tool
from workflows.machines.react_context import S

SEARCH = tool("search", q={"type": "string"})

MODEL: list[Any] = [
    thought("a"), thought("probably so"), act("search", q="x"), act("nosuch"), act("finish", answer="1"),
    final(), said("?"), said("Thought: b\nAction: search\nAction Input: {}"), thought("c", cost=0.2),
    failed("transient"), failed("recoverable"), failed("fatal"),
]  # fmt: skip
TOOLS: list[Any] = [
    tool_said(), tool_said("", cost=0.1), tool_failed("failed"), tool_failed("transient"),
    tool_failed("unknown_outcome"), failed("recoverable"), failed("unknown_outcome"),
]  # fmt: skip
PEOPLE: list[Any] = [decided("resume"), decided("resume", "look"), decided("answer", "x"), decided("abort"),
                     decided("unavailable"), failed("fatal")]  # fmt: skip


def _reaction(dice: int) -> Any:
    """A random answer to whatever is asked."""

    def answer(effect: Any) -> Any:
        kinds: dict[type[Any], list[Any]] = {CallModel: MODEL, CallTools: TOOLS}
        choices = kinds.get(type(effect), PEOPLE)
        chosen = choices[dice % len(choices)]
        return chosen(effect) if callable(chosen) else chosen

    return answer


def random_run(dice: list[int], context: Any = None, **options: Any) -> Play:
    """A run over random answers, from its beginning or from a context."""
    reactions = [_reaction(n) for n in dice]
    if context is not None:
        return play(run_script("react", []).machine, context, reactions)
    return run_script("react", reactions, tools=(SEARCH,), options=options)


DICE = st.lists(st.integers(0, 419), max_size=60)


@settings(deadline=None, max_examples=150)
@given(DICE, st.integers(1, 12))
def test_R_000_3_the_log_only_grows_and_closed_steps_never_change(dice: list[int], most: int) -> None:
    run = random_run(dice, max_steps=most)
    for earlier, later in pairwise(step.snapshot.context.steps for step in run.steps):
        assert len(later) >= len(earlier)
        for old, new in zip(earlier, later, strict=False):
            assert old == new or not old.closed
            assert (old.id, old.thought, old.action) == (new.id, new.thought, new.action)
        assert [step.id for step in later] == list(range(len(later)))
        assert all(step.closed for step in later[:-1])


@settings(deadline=None, max_examples=150)
@given(DICE)
def test_any_run_ends_by_the_rules(dice: list[int]) -> None:
    run = random_run(dice, max_steps=8, max_retries_before_human=1)
    metadata = run.context.metadata
    closed = {"draft", "validated", "executed"}
    assert metadata["tool_history"] == [
        s.action for s in run.context.steps if s.action == "search" and s.status in {"executed", "committed"}
    ]
    assert metadata["total_cost"] == pytest.approx(run.last.ledger.used("cost_usd"))
    if run.last.exit is None:
        assert not run.context.terminated
        return
    assert run.last.snapshot.state is S.END
    assert run.context.terminated
    assert run.exit.reason == metadata["exit_reason"]
    assert run.exit.ok is (run.exit.reason == "goal_achieved") is (run.exit.answer is not None)
    assert (run.exit.error is None) is run.exit.ok
    if run.exit.reason not in {"fatal_error"}:
        assert not [s for s in run.context.steps if s.status in closed]


@settings(deadline=None, max_examples=60)
@given(DICE)
def test_the_same_answers_give_the_same_run(dice: list[int]) -> None:
    assert random_run(dice).records == random_run(dice).records


@settings(deadline=None, max_examples=100)
@given(DICE)
def test_the_prompts_of_any_run_only_grow(dice: list[int]) -> None:
    for earlier, later in pairwise(call.transcript.digests for call in random_run(dice).prompts):
        assert later[: len(earlier)] == earlier


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 419), min_size=120, max_size=120))
def test_random_answers_always_come_to_an_end(dice: list[int]) -> None:
    run = random_run(dice, max_steps=5, max_transitions=40)
    assert run.last.exit is not None


def test_a_run_begins_with_the_well_known_metadata() -> None:
    context = run_script("react", [], goal="count").context
    assert context.metadata == {"goal": "count", "retry_count": 0, "total_cost": 0, "tool_history": []}
    assert (context.trace_id, context.steps, context.terminated) == ("trace-1", (), False)


def test_metadata_is_merged_key_by_key() -> None:
    run = run_script("react", [thought("I guess")], changed={"metadata": {"mine": {"deep": 1}}})
    assert run.context.metadata["mine"] == {"deep": 1}
    assert run.context.metadata["retry_count"] == 1


def test_the_context_is_read_only_throughout() -> None:
    context = run_script("react", [act("search", q=["x"])], tools=(SEARCH,)).context
    for model, name in ((context, "terminated"), (context.steps[0], "thought")):
        with pytest.raises(ValidationError):
            setattr(model, name, "other")
    changes: tuple[Callable[[], Any], ...] = (
        lambda: context.metadata.update(goal="other"),
        lambda: context.metadata["tool_history"].append("x"),
        lambda: context.steps[0].action_input["q"].append("y"),
    )
    for change in changes:
        with pytest.raises(TypeError, match="read-only"):
            change()


def test_a_step_has_the_time_when_it_was_drafted() -> None:
    run = run_script("react", [thought("a"), thought("b")])
    assert [step.timestamp for step in run.context.steps] == [1001.0, 1002.0]


def test_the_outcome_of_a_run_is_its_metadata() -> None:
    run = run_script("react", [final(cost=0.1)])
    assert run.exit.outcome["exit_reason"] == "goal_achieved"
    assert run.exit.outcome["total_cost"] == 0.1
    assert run.exit.outcome["goal"] == "find out"
