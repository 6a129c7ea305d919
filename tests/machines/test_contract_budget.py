"""Budgets: caps, charges, the gate, overdraft and the budget line (spec 5.5, 5.6, 5.8, 5.14)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from activities.contracts import ModelReplied
from tests.machines.answers import tool_failed
from tests.machines.contractkit import (
    TOOL,
    call,
    clarify,
    contract,
    done,
    events,
    made,
    rerun,
    say,
)
from tests.machines.driver import Play
from tests.machines.scripts_contract import REPLIES, answers
from workflows.kernel.design import Brief, Parts
from workflows.kernel.ledger import Ledger
from workflows.kernel.rebuild import rebuild
from workflows.kernel.step import advance, start
from workflows.machines.contract import DESIGN
from workflows.machines.contract_budget import (
    Caps,
    budget_line,
    derived,
    must_finish,
    overdraft_rounds,
    stage_caps,
)
from workflows.machines.contract_context import Options

WIDE = {"name": "answer", "budget": {"explore": 9, "exploit": 9, "render": 9, "ctx_reads": 9}}


def spent(run: Play) -> dict[str, float]:
    """What was charged, without zeros."""
    return {name: n for name, n in run.context.budget.spent.items() if n}


def lines(run: Play) -> list[str]:
    """The global part of each round's budget line."""
    found = [p.transcript.messages[-1].content.split("\n")[1] for p in run.prompts]
    return [line.removeprefix("BUDGET_STATE: ") for line in found]


# -- caps (5.5) --------------------


@pytest.mark.parametrize(
    ("hint", "caps"),
    [
        (None, (2, 3, 0, 0)),
        ({}, (2, 3, 0, 0)),
        ({"explore": 1, "exploit": 2, "render": 3, "ctx_reads": 4}, (1, 2, 3, 4)),
        ({"explore": -1, "exploit": -2, "render": -3, "ctx_reads": -4}, (0, 0, 0, 0)),
        ({"explore": "5", "exploit": None, "render": True, "ctx_reads": [1]}, (2, 3, 0, 0)),
        ({"explore": 1.9, "exploit": 0, "render": math.inf}, (1, 0, 0, 0)),
    ],
)
def test_the_caps_of_a_slot_come_from_its_hint(hint: Any, caps: tuple[int, ...]) -> None:
    assert tuple(stage_caps(hint).values()) == caps


def test_global_caps_are_the_sums_over_the_slots() -> None:
    one = {"explore": 1, "exploit": 2, "render": 3, "ctx_reads": 4}
    ledger = derived({"a": one, "b": None}, Caps())
    assert {name: cap for name, cap in ledger.caps.items() if "/" not in name} == {
        "decisions": 11,
        "tools": 11,
        "explore": 3,
        "exploit": 5,
        "render": 3,
        "context_reads": 4,
        "decision_reruns": 2,
    }
    assert ledger.caps["a/context_reads"] == 4
    assert ledger.advice == tuple(name for name in ledger.caps if "/" in name)


def test_without_any_rounds_there_are_twelve_and_at_least_three_reads() -> None:
    nothing = {"explore": 0, "exploit": 0}
    for stages in ({}, {"a": nothing}):
        caps = derived(stages, Caps()).caps
        assert (caps["decisions"], caps["tools"], caps["context_reads"]) == (12, 12, 3)
        assert (caps["explore"], caps["exploit"], caps["render"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("knob", "counter"),
    [
        ("decision_rounds", "decisions"),
        ("tool_calls", "tools"),
        ("explore", "explore"),
        ("exploit", "exploit"),
        ("render", "render"),
        ("context_reads", "context_reads"),
        ("decision_reruns", "decision_reruns"),
    ],
)
@pytest.mark.parametrize("cap", [0, 7])
def test_each_global_cap_can_be_set(knob: str, counter: str, cap: int) -> None:
    """R-004-1: every global cap can be set explicitly."""
    knobs = Options.model_validate({"slots": [{"name": "a"}], "caps": {knob: cap}})
    expected = {**Options.model_validate({"slots": [{"name": "a"}]}).ledger().caps, counter: cap}
    if knob == "decision_rounds":
        expected["tools"] = cap  # tool calls are as many as decision rounds
    assert knobs.ledger().caps == expected


def test_a_cap_below_zero_and_a_slot_named_twice_are_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        Options.model_validate({"caps": {"explore": -1}})
    with pytest.raises(ValidationError, match="slots are named twice: a; give each a name of its own"):
        Options.model_validate({"slots": [{"name": "a"}, {"name": "b"}, {"name": "a"}]})


def test_max_iterations_is_the_decision_round_cap_and_bounds_the_node_visits() -> None:
    """5.13: node visits are limited to max(25, 4 * max_iterations + 10)."""
    for rounds, visits in ((3, 25), (4, 26), (10, 50)):
        knobs = DESIGN.options.model_validate({"caps": {"decision_rounds": rounds}})
        # The first visit needs no transition.
        assert DESIGN.build(knobs, Parts()).max_transitions == visits - 1


# -- charges (5.6): every row of the table --------------------

TOOL_ROUND = {"decisions": 1, "tools": 1}


def on_stage(**amounts: float) -> dict[str, float]:
    """These amounts on the run and on the stage."""
    return {**amounts, **{f"answer/{name}": n for name, n in amounts.items()}}


@pytest.mark.parametrize(
    ("strategy", "more"),
    [("explore", {"explore": 1}), ("exploit", {"exploit": 1}), ("render", {"render": 1})],
)
@pytest.mark.parametrize("tool_does", [made("x"), tool_failed("failed")])
def test_a_tool_round_is_charged(strategy: str, more: dict[str, float], tool_does: Any) -> None:
    """Also when the tool fails (5.12)."""
    run = contract(call(strategy=strategy), tool_does, slots=[WIDE])
    assert spent(run) == {**TOOL_ROUND, **on_stage(**more)}


@pytest.mark.parametrize(
    ("strategy", "more"),
    [("explore", {"explore": 1, "render": 1}), ("render", {"render": 1})],
)
def test_a_write_tool_is_charged_as_render_too_but_once(strategy: str, more: dict[str, float]) -> None:
    run = contract(call(strategy=strategy), made("x"), slots=[WIDE], write_tools=["tool"])
    assert spent(run) == {**TOOL_ROUND, **on_stage(**more)}


@pytest.mark.parametrize(
    ("strategy", "more"),
    [("explore", {"explore": 1}), ("exploit", {"exploit": 1}), ("render", {"render": 1})],
)
def test_a_protocol_violation_is_charged_without_a_tool(strategy: str, more: dict[str, float]) -> None:
    run = contract(call(strategy=strategy, tool_id="nosuch"), slots=[WIDE])
    assert spent(run) == {"decisions": 1, **on_stage(**more)}


@pytest.mark.parametrize(
    ("strategy", "more"), [("explore", {"explore": 1}), ("exploit", {"exploit": 1}), ("render", {})]
)
def test_a_rerun_is_charged_with_one_rerun_and_one_read(strategy: str, more: dict[str, float]) -> None:
    run = contract(say("decision", strategy, show_skills=["a", "b"]), slots=[WIDE])
    assert spent(run) == {"decisions": 1, "decision_reruns": 1, **on_stage(context_reads=1, **more)}


@pytest.mark.parametrize(
    ("before", "more"),
    [("", {"exploit": 1}), ("explore", {"explore": 1}), ("exploit", {"exploit": 1}), ("render", {})],
)
def test_a_forced_rerun_is_charged_as_the_last_strategy_else_exploit(
    before: str, more: dict[str, float]
) -> None:
    run = contract(say("complete", None), slots=[WIDE], changed={"last_strategy": before})
    assert spent(run) == {"decisions": 1, "decision_reruns": 1, **on_stage(**more)}


@pytest.mark.parametrize("action", ["exit", "complete", "clarify"])
@pytest.mark.parametrize(
    ("strategy", "more"),
    [("explore", {"explore": 1}), ("exploit", {"exploit": 1}), ("render", {}), ("exit", {})],
)
def test_an_exit_is_charged(action: str, strategy: str, more: dict[str, float]) -> None:
    run = contract(say(action, strategy), slots=[WIDE])
    assert spent(run) == {"decisions": 1, **on_stage(**more)}


def test_a_blocked_round_is_charged_as_an_exit() -> None:
    """Here: a rerun that shows nothing, and an overdraft round that is blocked."""
    run = contract(say("decision", "explore"), slots=[WIDE])
    assert spent(run) == {"decisions": 1, **on_stage(explore=1)}
    run = contract(call(strategy="explore"), slots=[WIDE], caps={"tool_calls": 0})
    assert run.exit.reason == "exploit_overdraft_blocked"
    assert spent(run) == {"decisions": 1, **on_stage(explore=1)}


WRAPPED = {"is_wrapup_round": True, "wrapup_round_used": True}


@pytest.mark.parametrize(
    "reply", [done(), clarify(), say("exit", "exploit"), call(strategy="render"), say("complete", None)]
)
def test_nothing_is_charged_in_the_wrap_up_round(reply: ModelReplied) -> None:
    assert spent(contract(reply, slots=[WIDE], changed=WRAPPED)) == {}


def test_context_reads_are_charged_in_the_wrap_up_round_too() -> None:
    run = contract(rerun("a"), slots=[WIDE], changed=WRAPPED)
    assert spent(run) == on_stage(context_reads=1)


@pytest.mark.parametrize("reply", [call(show_skills=["a"]), clarify(), done(show_artifacts=["a", "b"])])
def test_showing_costs_one_read_for_the_round_with_any_action(reply: ModelReplied) -> None:
    run = contract(reply, slots=[WIDE])
    assert run.context.budget.used("context_reads") == ("show" in reply.text)


def test_a_round_that_the_gate_refuses_is_charged_to_nothing() -> None:
    """Neither without a model call, nor with the one of `map_only`."""
    none = {"slots": [{"name": "answer", "budget": {"exploit": 0}}], "caps": {"decision_rounds": 0}}
    run = contract(**none, exhausted_round="skip")  # type: ignore[arg-type]  # knobs by name
    assert (len(run.prompts), run.exit.reason, spent(run)) == (0, "max_iterations", {})
    run = contract(call(show_artifacts=["a"]), **none)  # type: ignore[arg-type]  # knobs by name
    assert (len(run.prompts), run.exit.reason, spent(run)) == (1, "max_iterations", {})


TWO = ({**WIDE, "name": "one"}, {**WIDE, "name": "two"})


def test_a_read_is_charged_to_the_stage_as_it_was_and_the_rest_to_the_new_one() -> None:
    run = contract(call(focus_slot="two", show_skills=["a"]), made("x"), slots=TWO)
    assert spent(run) == {
        "context_reads": 1, "one/context_reads": 1,
        **TOOL_ROUND, "explore": 1, "two/explore": 1,
    }  # fmt: skip


def test_an_unknown_focus_is_ignored_and_the_stage_stays() -> None:
    run = contract(call(focus_slot="two"), made("x"), call(focus_slot="three"), made("x"), slots=TWO)
    assert run.context.stage == "two"
    assert run.context.budget.used("two/explore") == 2


def test_without_slots_there_is_no_stage_to_charge() -> None:
    run = contract(call(), made("x"), slots=[])
    assert (run.context.stage, spent(run)) == (None, {**TOOL_ROUND, "explore": 1})


def test_stage_caps_are_advice() -> None:
    small = {"name": "answer", "budget": {"explore": 1, "exploit": 3}}
    run = contract(*[call(), made("x")] * 3, done(), done(), slots=[small])
    assert run.context.budget.used("answer/explore") == 3
    assert run.exit.reason == "incomplete_contract"


# -- the gate (5.5) and overdraft (5.8) --------------------


@pytest.mark.parametrize(
    ("used", "finish"),
    [
        ({}, False),
        ({"decisions": 2}, True),
        ({"tools": 2}, True),
        ({"decisions": 9}, True),
        ({"explore": 9}, False),
    ],
)
def test_the_hard_gate_is_no_decisions_or_no_tools(used: dict[str, float], finish: bool) -> None:
    assert must_finish(Ledger(caps={"decisions": 2, "tools": 2, "explore": 2}, spent=used)) == finish


@pytest.mark.parametrize(
    ("left", "stage_left", "stage", "rounds"),
    [(3, 2, "a", 2), (2, 3, "a", 2), (0, 3, "a", 0), (3, 0, "a", 0), (3, 0, None, 3)],
)
def test_overdraft_has_the_smaller_of_what_run_and_stage_have_left(
    left: int, stage_left: int, stage: str | None, rounds: int
) -> None:
    assert overdraft_rounds(Ledger(caps={"exploit": left, "a/exploit": stage_left}), stage) == rounds


SPENT_OUT: dict[str, Any] = {
    "slots": [{"name": "answer", "budget": {"explore": 1, "exploit": 2}}],
    "caps": {"decision_rounds": 1, "tool_calls": 1},
}
"""One ordinary round, then two of overdraft."""


def test_overdraft_rounds_print_one_of_two_and_two_of_two() -> None:
    """R-004-5: the total is what was used before plus what is available now: 1/2, 2/2."""
    exploits = [call("a", strategy="exploit"), made("x")] * 2
    run = contract(call(), made("x"), *exploits, done(), done(), **SPENT_OUT)
    assert ["exploit_overdraft" in line for line in lines(run)] == [False, True, True, False, False]
    assert lines(run)[1].endswith(", exploit_overdraft 1/2)")
    assert lines(run)[2].endswith(", exploit_overdraft 2/2)")
    # Charged as usual: used passes the maximum, what is left is never below 0.
    assert run.context.budget.used("tools") == 3
    assert lines(run)[2].startswith("global(decisions left 0/1, tools left 0/1,")


def test_overdraft_is_decided_before_wrap_up() -> None:
    """R-004-6: with exploit rounds left the exhausted budget does not end the run, so nothing wraps up."""
    run = contract(call(), made("x"), call(strategy="exploit"), made("y"), **SPENT_OUT)
    assert events(run, "wrapup_activated") == []
    assert run.context.allow_exploit_overdraft
    assert len(run.context.artifacts) == 2


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (call(strategy="explore"), "exploit_overdraft_blocked"),
        (call(strategy="render"), "exploit_overdraft_blocked"),
        (done(), "incomplete_contract"),
        (clarify(), "clarify"),
        (say("exit", "explore"), "incomplete_contract"),
    ],
)
def test_what_an_overdraft_round_may_do(reply: ModelReplied, reason: str) -> None:
    run = contract(reply, slots=[WIDE], caps={"tool_calls": 0})
    assert run.exit.reason == reason


def test_an_overdraft_round_may_ask_to_see_something() -> None:
    run = contract(rerun("a"), slots=[WIDE], caps={"tool_calls": 0})
    assert run.visited == "decision decision"
    # The rerun was a round too: its own is the second.
    assert lines(run)[1].endswith("exploit_overdraft 2/10)")


def test_the_overdraft_flag_is_dropped_at_a_block_and_when_a_round_is_none() -> None:
    blocked = contract(call(strategy="explore"), slots=[WIDE], caps={"tool_calls": 0})
    assert not blocked.context.allow_exploit_overdraft
    exploit = [call(strategy="exploit"), made("x", kind="search")]
    run = contract(call(), made("x", kind="search"), *exploit, *exploit, done(), **SPENT_OUT)
    assert (run.exit.reason, run.context.allow_exploit_overdraft) == ("max_iterations", False)
    assert run.context.exploit_overdraft_used == 2


def test_wrap_up_forgets_the_overdraft() -> None:
    run = contract(call(), made("x"), call(strategy="explore"), done(), **SPENT_OUT)
    c = run.context
    assert c.wrapup_trigger_reason == "exploit_overdraft_blocked"
    used = (c.allow_exploit_overdraft, c.exploit_overdraft_used, c.exploit_overdraft_total)
    assert used == (False, 0, 0)
    begun = contract(call(), made("x"), done(), **SPENT_OUT).context
    assert (begun.is_wrapup_round, begun.allow_exploit_overdraft) == (True, False)


def test_exhausted_tool_calls_do_not_stop_overdraft_tool_calls() -> None:
    run = contract(call(strategy="exploit"), made("x"), slots=[WIDE], caps={"tool_calls": 0})
    assert [effect.kind for effect in run.effects] == ["call_model", "call_tools", "call_model"]


# -- the budget line (5.14) --------------------

EXAMPLE = (
    "BUDGET_STATE: global(decisions left 4/4, tools left 4/4, explore left 1/1, exploit left 2/2, "
    "render left 1/1, decision_reruns left 2/2, context_reads left 3/3)\n"
    "        stage[answer](explore left 1/1, exploit left 2/2, render left 1/1, context_reads left 1/1)"
)


def test_the_line_of_the_example() -> None:
    run = contract()
    assert EXAMPLE in run.told


def ledger(**budget: int) -> Ledger:
    """One slot `answer` with this hint."""
    return derived({"answer": budget}, Caps())


def test_parts_without_a_cap_are_left_out_but_decisions_and_tools_never() -> None:
    assert budget_line(ledger(explore=1, exploit=0), "answer") == (
        "BUDGET_STATE: global(decisions left 1/1, tools left 1/1, explore left 1/1, "
        "decision_reruns left 2/2, context_reads left 3/3)\n        stage[answer](explore left 1/1)"
    )
    none = Caps(decision_rounds=0, decision_reruns=0, context_reads=0)
    assert budget_line(derived({}, none), None) == (
        "BUDGET_STATE: global(decisions left 0/0, tools left 0/0)"
    )


def test_without_a_stage_there_is_no_second_line() -> None:
    assert "\n" not in budget_line(ledger(), None)


def test_what_is_left_is_clipped_at_zero() -> None:
    over = ledger(explore=1, exploit=1).charge({"decisions": 5, "explore": 3, "answer/explore": 3})
    assert budget_line(over, "answer").startswith(
        "BUDGET_STATE: global(decisions left 0/2, tools left 2/2, explore"
    )
    assert "stage[answer](explore left 0/1" in budget_line(over, "answer")


def test_the_wrap_up_round_shows_zero_left_everywhere_and_never_overdraft() -> None:
    assert budget_line(ledger(explore=1, exploit=1), "answer", wrapup=True, overdraft=(1, 2)) == (
        "BUDGET_STATE: global(decisions left 0/2, tools left 0/2, explore left 0/1, exploit left 0/1, "
        "decision_reruns left 0/2, context_reads left 0/3, wrapup active)\n"
        "        stage[answer](explore left 0/1, exploit left 0/1)"
    )


def test_overdraft_is_appended_inside_the_brackets() -> None:
    line = budget_line(ledger(explore=1, exploit=1), None, overdraft=(0, 0))
    assert line.endswith("context_reads left 3/3, exploit_overdraft 0/0)")


def test_the_line_of_a_wrap_up_round_is_what_the_model_is_told() -> None:
    run = contract(call(), made("x"), done(), slots=[WIDE])
    assert "context_reads left 0/9, wrapup active)" in run.told


# -- any run --------------------


@settings(deadline=None, max_examples=80)
@given(data=st.data(), decisions=st.integers(0, 4), tools=st.integers(0, 4))
def test_what_is_left_is_never_below_zero_and_runs_are_bounded(
    data: st.DataObject, decisions: int, tools: int
) -> None:
    slot = {"name": "answer", "budget": {"explore": 2, "exploit": data.draw(st.integers(0, 3))}}
    caps = {"decision_rounds": decisions, "tool_calls": tools}
    knobs = DESIGN.options.model_validate({"slots": [slot], "caps": caps})
    machine = DESIGN.build(knobs, Parts())
    step = start(machine, DESIGN.begin(Brief("g", "t", tools=(TOOL,)), knobs), now=0)
    rounds, records = 0, list(step.records)
    while step.effect is not None:
        budget = step.snapshot.context.budget
        assert all(budget.left(name) >= 0 for name in budget.caps)
        rounds += step.effect.kind == "call_model"
        own = answers(step.effect)
        answer = data.draw(REPLIES if own is None else own)
        step = advance(machine, step, answer, now=1)
        records += step.records
    assert step.exit is not None
    assert rebuild(machine, records) == (step.snapshot.state, step.snapshot.context)
    assert step.exit.reason in (*DESIGN.exits, "max_transitions")
    # Ordinary rounds, overdraft, the exhausted round and wrap-up.
    assert rounds <= decisions + 3 + 2
    assert step.exit.ok == (step.snapshot.context.pending_slots == ())


def test_a_text_that_was_read_is_not_charged_when_it_fills_a_slot() -> None:
    run = contract(call(), made("x"), done(("answer", "found")), slots=[WIDE])
    assert run.exit.ok
    assert run.context.budget.used("context_reads") == 0


@pytest.mark.parametrize("name", [" answer", "answer\n", " "])
def test_a_slot_name_with_blanks_around_it_is_refused(name: str) -> None:
    """What a model says is stripped, so nothing could ever fill such a slot."""
    with pytest.raises(ValueError, match="slot names with blanks around them can never be filled"):
        contract(slots=[{"name": name}])
