"""The ReAct machine's table (spec 1.3), its limits and every way in which a run ends (spec 1.7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.machines.answers import act, decided, failed, final, said, thought, tool_failed, tool_said
from tests.machines.driver import Play, play, run_script, tool
from workflows.kernel.design import Parts
from workflows.kernel.ledger import Ledger
from workflows.machines.react_context import S
from workflows.registry import design

SEARCH = tool("search", q={"type": "string"})
GUESS = thought("I guess it is 42")
STEP = "thought validate action observation commit"


def react(*answers: Any, tools: Any = (SEARCH,), **more: Any) -> Play:
    """A run with one tool at hand."""
    return run_script("react", answers, tools=tools, **more)


# -- the node-visit examples --------------------


def test_one_tool_step_then_an_answer() -> None:
    run = react(act("search", q="x"), tool_said("found"), final("42"))
    assert run.visited == f"{STEP} {STEP} __end__"
    assert (run.exit.ok, run.exit.reason, run.exit.answer, run.exit.error) == (
        True,
        "goal_achieved",
        "42",
        None,
    )
    assert run.unused == 0


def test_one_retryable_failure_first() -> None:
    run = react(GUESS, final("42"))
    assert run.visited == f"thought validate {STEP} __end__"


def test_a_terminal_rule() -> None:
    run = react(act("search", cost=0.51, q="x"))
    assert run.visited == "thought validate __end__"
    assert (run.exit.ok, run.exit.reason) == (False, "rule_violation")
    assert run.context.terminated
    assert run.context.steps[0].status == "failed"
    assert "cost_limit" in str(run.exit.error)


def test_a_step_without_an_action_passes_all_five_nodes() -> None:
    run = react(thought("let me think"), final())
    assert run.visited == f"{STEP} {STEP} __end__"
    assert [effect.kind for effect in run.effects] == ["call_model", "call_model"]


def test_an_error_observation_goes_the_same_way() -> None:
    run = react(act("search", q="x"), tool_failed("failed"), act("nosuch"), final())
    assert run.visited == f"{STEP} {STEP} {STEP} __end__"


# -- validate --------------------


def test_R_000_1_the_fourth_retryable_failure_asks_a_person() -> None:
    run = react(GUESS, GUESS, GUESS, GUESS)
    assert run.visited == " ".join(["thought validate"] * 4) + " human_approval"
    assert run.context.metadata["retry_count"] == 4
    assert run.last.effect is not None
    assert run.last.effect.kind == "ask_person"
    assert "4 thoughts were rejected" in run.last.effect.title


def test_R_000_1_failures_spread_over_several_steps_add_up() -> None:
    run = react(GUESS, thought("a"), GUESS, thought("b"), GUESS, thought("c"), GUESS)
    assert run.visited.endswith("thought validate human_approval")
    assert run.context.metadata["retry_count"] == 4


def test_R_000_1_a_count_above_the_knob_is_caught_at_commit() -> None:
    metadata = {"goal": "g", "retry_count": 4, "total_cost": 0}
    run = react(thought("fine"), changed={"metadata": metadata})
    assert run.visited == f"{STEP} human_approval"


def test_R_000_1_the_knob_may_be_reached_but_not_passed() -> None:
    assert react(GUESS, options={"max_retries_before_human": 0}).visited.endswith("human_approval")
    run = react(GUESS, GUESS, options={"max_retries_before_human": 1})
    assert run.visited == "thought validate thought validate human_approval"


def test_R_000_1_resume_clears_the_count_and_the_model_is_told_why_again() -> None:
    run = react(GUESS, GUESS, GUESS, GUESS, decided("resume", "look at the log"), GUESS)
    assert run.context.metadata["retry_count"] == 1
    assert run.visited.endswith("human_approval thought validate thought")
    before = run.prompts[-2].transcript.messages
    assert "look at the log" in [message.content for message in before]
    assert "rejected" in before[-1].content


def test_a_person_may_answer_instead_of_resume() -> None:
    run = react(*[GUESS] * 4, decided("answer", "it is 41"), final("41"))
    assert run.exit.answer == "41"


def test_a_person_may_abort() -> None:
    run = react(*[GUESS] * 4, decided("abort", "enough"))
    assert run.visited.endswith("human_approval __end__")
    assert (run.exit.reason, run.exit.ok, run.context.terminated) == ("aborted", False, True)


@pytest.mark.parametrize("nobody", [
    pytest.param(decided("unavailable"), id="unavailable"),
    pytest.param(failed("transient"), id="transient"),
    pytest.param(failed("recoverable"), id="recoverable"),
    pytest.param(failed("fatal"), id="fatal"),
    pytest.param(failed("unknown_outcome"), id="unknown outcome"),
])  # fmt: skip
def test_without_a_person_the_run_ends_with_retries_exhausted(nobody: Any) -> None:
    run = react(*[GUESS] * 4, nobody)
    assert run.visited.endswith("human_approval __end__")
    assert (run.exit.reason, run.exit.ok) == ("retries_exhausted", False)
    assert "forbid_guessing" in str(run.exit.error)


# -- commit: final answer before max_steps before flag before cost before retries --------------------


@pytest.mark.parametrize(("reply", "max_steps", "flag", "cost", "retries", "reason"), [
    pytest.param(final(), 1, True, 9.0, 9, "goal_achieved", id="final answer first"),
    pytest.param(thought("x"), 1, True, 9.0, 9, "max_steps", id="then max_steps"),
    pytest.param(thought("x"), 2, True, 9.0, 9, "flagged", id="then the flag"),
    pytest.param(thought("x"), 2, False, 9.0, 9, "cost_limit", id="then cost"),
    pytest.param(thought("x"), 2, False, 1.0, 9, "human_approval", id="then retries; cost at its limit"),
    pytest.param(thought("x"), 2, False, 1.0, 3, "thought", id="else on; retries at their limit"),
])  # fmt: skip
def test_commit_decides_in_this_order(
    reply: Any, max_steps: int, flag: bool, cost: float, retries: int, reason: str
) -> None:
    metadata = {"goal": "g", "retry_count": retries, "total_cost": cost}
    run = react(
        reply,
        options={"max_steps": max_steps, "rules": []},
        changed={"metadata": metadata, "terminated": flag},
    )
    ended = run.last.exit
    assert run.visited == f"{STEP} {'__end__' if ended else reason}"
    if ended:
        assert ended.reason == run.context.metadata["exit_reason"] == reason
        assert run.context.terminated


def test_the_final_answer_also_ends_a_step_whose_tool_failed() -> None:
    run = react(act("search", words="FINAL ANSWER: 7", q="x"), tool_failed("failed"))
    assert (run.exit.reason, run.exit.answer, run.context.steps[0].status) == ("goal_achieved", "7", "failed")


def test_the_final_answer_is_case_sensitive_and_may_stand_anywhere() -> None:
    run = react(thought("final answer: 1"), thought("Final Answer: 2"), thought("so the FINAL ANSWER is 3"))
    assert (len(run.context.steps), run.exit.answer) == (3, "is 3")


def test_max_steps_1_ends_after_one_step_and_says_so() -> None:
    run = react(act("search", q="x"), tool_said(), options={"max_steps": 1})
    assert run.visited == f"{STEP} __end__"
    assert run.exit.reason == "max_steps"
    assert "max_steps_reached" in run.records[-1].reason


def test_R_000_3_failed_drafts_count_as_steps() -> None:
    run = react(GUESS, GUESS, thought("a"), options={"max_steps": 3})
    assert (run.exit.reason, len(run.context.steps)) == ("max_steps", 3)


def test_R_000_12_cost_of_replies_and_tools_is_added_and_ends_the_run_at_commit() -> None:
    run = react(act("search", cost=0.2, q="x"), tool_said(cost=0.85), options={"cost_limit": 1.0})
    assert run.visited == f"{STEP} __end__"
    assert run.context.metadata["total_cost"] == 1.05
    assert run.exit.reason == "cost_limit"
    assert "1.05" in str(run.exit.error)


# -- every exit reason --------------------


@pytest.mark.parametrize("kind", ["fatal", "unknown_outcome"])
def test_a_fatal_failure_ends_the_run_with_its_text(kind: Any) -> None:
    run = react(failed(kind, "the key was refused"))
    assert run.visited == "thought __end__"
    assert (run.exit.reason, run.exit.ok) == ("fatal_error", False)
    assert "the key was refused" in str(run.exit.error)
    assert "the key was refused" in run.context.metadata["fatal_error"]
    assert run.context.terminated


def test_R_000_11_as_many_nodes_are_visited_as_ten_times_max_steps() -> None:
    """A machine of n moves visits n + 1 nodes."""
    for steps in (1, 7):
        options = design("react").options(max_steps=steps)
        assert design("react").build(options, Parts()).max_transitions == 10 * steps - 1


def test_R_000_11_the_transition_limit_ends_the_run_with_its_own_reason() -> None:
    run = react(thought("a"), thought("b"), options={"max_transitions": 6})
    assert (run.exit.reason, run.exit.ok) == ("max_transitions", False)
    assert len(run.visited.split()) == 6
    assert run.exit.outcome["exit_reason"] == "max_transitions"
    assert run.context.terminated, "a run that was closed is over, also for whoever reads its state"


def test_a_row_that_is_missing_ends_the_run_as_a_dead_end() -> None:
    made = design("react")
    knobs = made.options()
    whole = made.build(knobs, Parts())
    rows = tuple(row for row in whole.rows if (row.source, row.event.__name__) != (S.COMMIT, "Flagged"))
    context = run_script("react", []).context.model_copy(update={"terminated": True})
    run = play(replace(whole, table=rows), context, [thought("a")])
    assert (run.exit.reason, run.exit.ok) == ("dead_end", False)


def test_a_limit_on_money_of_the_whole_run_has_the_reason_cost_limit() -> None:
    run = react(thought("a", cost=0.3), final(), ledger=Ledger(caps={"cost_usd": 0.2}))
    assert run.exit.reason == "cost_limit"


def test_each_ending_says_in_words_what_happened() -> None:
    endings = {
        "max_steps": react(thought("a"), options={"max_steps": 1}),
        "cost_limit": react(thought("a", cost=2), options={"rules": []}),
        "aborted": react(*[GUESS] * 4, decided("abort")),
        "flagged": react(thought("a"), changed={"terminated": True}),
    }
    for reason, run in endings.items():
        assert run.exit.reason == reason
        assert len(str(run.exit.error).split()) > 3, run.exit.error


def test_R_000_2_terminated_is_set_exactly_at_the_end() -> None:
    for answers in ([final()], [GUESS] * 4, [thought("a"), act("search", q="x")], [failed("fatal")]):
        run = react(*answers)
        for step in run.steps:
            at_end = step.snapshot.state is S.END
            assert step.snapshot.context.terminated is at_end
            assert (step.exit is not None) is at_end


def test_R_000_16_the_machine_moves_along_its_table_alone() -> None:
    run = react(GUESS, act("search", q="x"), tool_failed("failed"), said("?"), final())
    rows = {(row.source.value, row.event.__name__, row.target.value) for row in run.machine.rows}
    moves = {(r.state, r.event, r.to) for r in run.records[1:] if r.to}
    assert moves <= rows


def test_a_run_out_of_steps_says_what_failed_last() -> None:
    down = failed("transient", "the server does not answer", "connection")
    run = react(thought("a"), down, options={"max_steps": 2})
    assert run.exit.reason == "max_steps"
    assert str(run.exit.error).endswith("the last step failed: connection: the server does not answer")
