"""Counters, caps, scopes, and the line that a model reads."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import CallTools, ToolResult, ToolRun, ToolsReturned
from tests.kernel.puppet import CALM
from workflows.kernel.ledger import Breach, Ledger, plain, price_of, spent_by


def test_what_is_left_is_never_below_zero_and_without_a_cap_infinite() -> None:
    ledger = Ledger(caps={"tools": 2}).charge({"tools": 5, "reads": 1})
    assert (ledger.left("tools"), ledger.used("tools")) == (0, 5)
    assert (ledger.left("reads"), ledger.used("unknown")) == (math.inf, 0)


def test_charging_gives_a_new_ledger() -> None:
    ledger = Ledger(caps={"tools": 2})
    assert ledger.charge({"tools": 1}) != ledger
    assert ledger.used("tools") == 0


def test_a_charge_goes_to_each_scope_that_is_named() -> None:
    ledger = Ledger(caps={"explore": 4, "answer/explore": 2}).charge({"explore": 1}, "", "answer")
    assert (ledger.used("explore"), ledger.used("answer/explore")) == (1, 1)
    assert ledger.charge({"explore": 1}, "answer").left("explore") == 3


@pytest.mark.parametrize(
    ("spent", "amount", "breached"),
    [(2, 1, False), (3, 1, True), (2, 0, False), (3, 0, True), (4, 0, True), (0, 4, True), (0, 3, False)],
)
def test_a_breach_is_what_the_next_call_would_pass(spent: float, amount: float, breached: bool) -> None:
    """An amount of 0 asks whether the cap is reached already."""
    ledger = Ledger(caps={"n": 3}, spent={"n": spent})
    assert (ledger.breach({"n": amount}) is not None) == breached
    assert ledger.breach({"other": 99}) is None


def test_sums_of_prices_do_not_pass_a_cap_by_a_hair() -> None:
    ledger = Ledger(caps={"cost_usd": 0.3}).charge({"cost_usd": 0.1}).charge({"cost_usd": 0.1})
    assert ledger.breach({"cost_usd": 0.1}) is None
    assert ledger.left("cost_usd") == 0.1


@settings(CALM)
@given(st.lists(st.decimals(min_value=0, max_value=1, places=6), max_size=50))
def test_a_sum_of_prices_is_the_price_of_the_sum(prices: list[object]) -> None:
    ledger = Ledger()
    for price in prices:
        ledger = ledger.charge({"cost_usd": float(str(price))})
    assert ledger.used("cost_usd") == pytest.approx(float(sum(map(float, map(str, prices)))), abs=1e-9)


def test_a_counter_raised_to_an_amount_never_falls() -> None:
    ledger = Ledger().at_least("seconds", 12.34567).at_least("seconds", 3)
    assert ledger.used("seconds") == 12.346


def test_a_top_up_raises_the_cap_and_needs_one() -> None:
    ledger = Ledger(caps={"cost_usd": 0.1}).credit("cost_usd", 0.2)
    assert ledger.caps == {"cost_usd": 0.3}
    assert ledger.credit("tools", 5) == ledger


def test_a_cap_that_is_advice_is_no_breach_but_is_printed() -> None:
    ledger = Ledger(caps={"explore": 1}, advice=("explore",)).charge({"explore": 3})
    assert ledger.breach({"explore": 1}) is None
    assert ledger.line(["explore"]) == "explore left 0/1"


GLOBAL = ["decisions", "tools", "explore", "exploit", "render", "decision_reruns", "context_reads"]
STAGE = ["explore", "exploit", "render", "context_reads"]


def test_the_line_is_that_of_the_budget_example() -> None:
    """Spec 5.14: slot `answer` with explore 1, exploit 2, render 1, ctx_reads 1, at the start."""
    caps = dict(zip(GLOBAL, (4, 4, 1, 2, 1, 2, 3), strict=True))
    caps |= {f"answer/{name}": cap for name, cap in zip(STAGE, (1, 2, 1, 1), strict=True)}
    ledger = Ledger(caps=caps)
    text = (
        f"BUDGET_STATE: global({ledger.line(GLOBAL)})\n        stage[answer]({ledger.line(STAGE, 'answer')})"
    )
    assert text == (
        "BUDGET_STATE: global(decisions left 4/4, tools left 4/4, explore left 1/1, exploit left 2/2, "
        "render left 1/1, decision_reruns left 2/2, context_reads left 3/3)\n"
        "        stage[answer](explore left 1/1, exploit left 2/2, render left 1/1, context_reads left 1/1)"
    )
    spent = ledger.charge({"decisions": 1, "explore": 2}, "", "answer")
    assert spent.line(GLOBAL[:3]) == "decisions left 3/4, tools left 4/4, explore left 0/1"
    assert spent.line(["explore", "never capped"], "answer") == "explore left 0/1"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (4, "4"),
        (1_200_000, "1200000"),
        (0.25, "0.25"),
        (1 / 3, "0.333333"),
        (10, "10"),
        (math.inf, "inf"),
    ],
)
def test_numbers_are_written_as_people_write_them(number: float, text: str) -> None:
    assert plain(number) == text


def test_a_breach_says_what_was_spent_of_what() -> None:
    breach = Breach(counter="tokens", spent=1_234_567, cap=1_000_000)
    assert str(breach) == "tokens: 1234567 of 1000000 spent"


def test_tools_are_reserved_one_by_one_and_their_cost_is_settled() -> None:
    runs = (ToolRun(id="1", tool="a"), ToolRun(id="2", tool="b"))
    assert price_of(CallTools(runs=runs))["tool_calls"] == 2
    results = tuple(ToolResult(id=r.id, tool=r.tool, output="", cost_usd=0.25) for r in runs)
    assert spent_by(ToolsReturned(results=results)) == {"cost_usd": 0.5}
