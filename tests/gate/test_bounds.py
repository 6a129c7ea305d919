"""What passes unasked within the bounds of a rule, and what does not."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts import ToolSpec
from tests.gate.gatekit import ask, call, carried, requests, say, spec
from workflows.gate.approvals import problems
from workflows.gate.bounds import Bounds
from workflows.gate.decisions import Refused
from workflows.people import Approvals, People, Request

RULE = {"tools": ["pay"], "ask": "never", "at_most": {"calls": 3, "sum": {"amount": 100}}}


def rules(*given: Any) -> dict[str, Any]:
    """The approvals with these rules."""
    return {"rules": list(given)}


def bounded(at_most: Any, share: Any = None) -> Bounds:
    """The bounds of one rule."""
    return Bounds(Approvals.model_validate(rules({"ask": "never", "at_most": at_most})), share)


def passes(bounds: Bounds, name: str, **arguments: Any) -> bool:
    """A call that takes its share if it may."""
    return bounds.take(name, "rules.0", arguments)


def used(bounds: Bounds) -> list[str]:
    """How far the bounds are used."""
    return [one.text for one in bounds.state()]


# -- counting --------------------


def test_calls_pass_until_one_would_pass_the_bound() -> None:
    bounds = bounded({"calls": 3, "sum": {"amount": 100}})
    assert [passes(bounds, str(amount), amount=amount) for amount in (60, 50, 40, 0, 1)] == [
        True, False, True, True, False,
    ]  # fmt: skip
    assert used(bounds) == ["3 of 3 calls", "100 of 100 amount"]


@pytest.mark.parametrize(
    "arguments",
    [
        {}, {"amount": None}, {"amount": "5"}, {"amount": True}, {"amount": [5]}, {"amount": -1},
        {"amount": -0.01}, {"amount": float("nan")}, {"amount": float("inf")}, {"amount": 10**400},
    ],
    ids=str,
)  # fmt: skip
def test_amount_that_cannot_be_counted_passes_every_bound(arguments: Any) -> None:
    bounds = bounded({"sum": {"amount": 100}})
    assert passes(bounds, "a", amount=90)
    assert not passes(bounds, "b", **arguments)
    assert not passes(bounds, "c", amount=11), "it made no room"


def test_sums_are_exact() -> None:
    bounds = bounded({"sum": {"amount": 0.3}})
    assert passes(bounds, "a", amount=0.1)
    assert passes(bounds, "b", amount=0.2)
    assert not passes(bounds, "c", amount=5e-324)
    large = bounded({"sum": {"amount": 1e15}})
    assert passes(large, "a", amount=10**15 - 1)
    assert passes(large, "b", amount=5e-324)
    assert not passes(large, "c", amount=1)


def test_share_is_given_back_only_for_call_not_begun() -> None:
    bounds = bounded({"calls": 5})
    for name in ("never begun", "not made", "begun", "made again"):
        assert passes(bounds, name)
    for name, *times in (("not made", 1, -1), ("begun", 1), ("made again", 1, 1, -1)):
        for more in times:
            bounds.begin(str(name), int(more))
    bounds.give_back("begun")
    assert used(bounds) == ["4 of 5 calls"]
    bounds.settle()
    assert used(bounds) == ["2 of 5 calls"]


def test_share_follows_the_rule_and_the_amounts() -> None:
    rule = {"ask": "never", "at_most": {"calls": 9, "sum": {"amount": 100}}}
    bounds = Bounds(Approvals.model_validate(rules(rule, rule)))
    assert bounds.take("a", "rules.0", {"amount": 30})
    assert not bounds.take("a", "rules.0", {"amount": 30}), "it has just this one"
    assert bounds.take("a", "rules.0", {"amount": 50})
    assert bounds.take("a", "rules.1", {"amount": 20})
    assert used(bounds) == ["0 of 9 calls", "0 of 100 amount", "1 of 9 calls", "20 of 100 amount"]
    bounds.begin("a")
    assert not bounds.take("a", "rules.1", {"amount": 10}), "what was begun stays counted"
    assert bounds.take("a", "rules.1", {"amount": 40})
    assert bounds.take("a", "rules.0", {"amount": 40})
    whole = ["1 of 9 calls", "40 of 100 amount", "1 of 9 calls", "40 of 100 amount"]
    assert used(bounds) == whole
    bounds.settle()
    assert used(bounds) == whole


@pytest.mark.parametrize(("rule", "amount"), [("tools.pay", 5), ("rules.0", 10)])
def test_share_is_given_back_where_no_bound_lets_call_pass(rule: str, amount: int) -> None:
    bounds = bounded({"sum": {"amount": 9}})
    assert passes(bounds, "a", amount=5)
    assert not bounds.take("a", rule, {"amount": amount})
    assert used(bounds) == ["0 of 9 amount"]


def test_call_that_is_judged_again_keeps_its_share() -> None:
    bounds = bounded({"calls": 1})
    assert passes(bounds, "a")
    assert bounds.passed("rules.0", {}, besides="a") is None
    assert bounds.passed("rules.0", {}, besides="b") is not None
    assert not passes(bounds, "a"), "it has one"
    assert used(bounds) == ["1 of 1 call"]


def test_new_execution_keeps_the_count() -> None:
    bounds = bounded({"calls": 4, "sum": {"amount": 1.5}})
    assert passes(bounds, "a", amount=0.1)
    bounds.begin("a")
    bounds.settle()
    assert passes(bounds, "b", amount=0.2)
    again = bounded({"calls": 4, "sum": {"amount": 1.5}})
    again.load(json.loads(json.dumps(bounds.dump())))
    assert again.state() == bounds.state()
    again.settle()
    assert used(again) == ["1 of 4 calls", "0.1 of 1.5 amount"]


# -- inner runs --------------------


@given(
    calls=st.integers(1, 20),
    amount=st.decimals(0, 1000, places=2).filter(bool),
    runs=st.integers(1, 8),
    taken=st.decimals(0, 1, places=2),
)
def test_inner_runs_have_together_what_is_left(
    calls: int, amount: Decimal, runs: int, taken: Decimal
) -> None:
    at_most = {"calls": calls, "sum": {"amount": float(amount)}}
    bounds = bounded(at_most)
    passes(bounds, "own", amount=float(taken))
    left = [one.most - one.used for one in bounds.state()]
    parts = [bounds.lend(f"run {n}", runs - n) for n in range(runs)]
    assert [sum(part[key] for part in parts) for key in parts[0]] == left
    assert not passes(bounds, "late", amount=0)
    for number, part in enumerate(parts):
        inner = bounded(at_most, part)
        passes(inner, "one", amount=0)
        bounds.return_from(f"run {number}", inner.state())
    of_calls = bounds.state()[0]
    assert of_calls.used == min(calls, calls - left[0] + runs)


def test_part_of_an_inner_run_without_a_result_stays_used() -> None:
    bounds = bounded({"calls": 4})
    bounds.lend("lost", 2)
    bounds.settle()
    assert used(bounds) == ["2 of 4 calls"]


# -- the gate --------------------


def test_rule_asks_beyond_its_bound_and_the_request_says_why() -> None:
    at = requests("team", rules({**RULE, "request": {"group": "boss"}}))
    for number, amount in enumerate((60, 30)):
        assert at.approval_for(call(amount=amount), spent_usd=0)[0] is None
        assert at.policy.bounds.take(str(number), "rules.0", {"amount": amount})
    request = ask(carried(at), amount=11)
    assert (request.rule, request.group) == ("rules.0", "boss")
    assert request.bound is not None
    why = "rules.0 allows at most 100 amount unasked; 90 used, and this call has 11"
    assert request.bound.passed_text == why
    assert request.bound.model_dump(mode="json") == {
        "rule": "rules.0", "of": "sum.amount", "most": 100, "used": 90, "is_share": False, "wanted": 11,
    }  # fmt: skip


def use_up(at: Any) -> None:
    """No call passes by the first rule any more."""
    assert at.policy.bounds.take("a", "rules.0", {"amount": 100})


def test_standing_approval_lets_calls_pass_beyond_the_bound_uncounted() -> None:
    at = requests("team", rules(RULE))
    use_up(at)
    at.decide(say(ask(at), standing_approval={}), 1)
    assert at.approval_for(call(amount=6), spent_usd=0)[0] is None
    assert not at.policy.bounds.take("b", "rules.0", {"amount": 6})


def test_first_time_asks_again_beyond_the_bound() -> None:
    at = requests("team", rules({**RULE, "ask": "first_time"}))
    at.decide(say(ask(at)), 1)
    assert at.approval_for(call(amount=6), spent_usd=0)[0] is None
    use_up(at)
    assert at.approval_for(call(amount=6), spent_usd=0)[0] is not None


def test_nobody_is_asked_where_the_rule_rejects() -> None:
    at = requests("team", rules({**RULE, "then": "reject"}, {"tools": ["pay"]}))
    use_up(at)
    required = at.approval_for(call(amount=6), spent_usd=0)[0]
    assert required is not None
    assert required.mode == "reject"


@pytest.mark.parametrize(("then", "group"), [("reject", None), ("always", {"group": "boss"})])
def test_edit_does_not_bring_a_call_past_a_bound(then: str, group: Any) -> None:
    small = {**RULE, "arguments": {"amount": {"maximum": 100}}, "then": then, "request": group}
    at = requests("team", rules(small))
    use_up(at)
    request: Request = ask(at, amount=500)
    with pytest.raises(Refused, match=r"would not be made: rules\.0 allows" if group is None else "of boss"):
        at.decide(say(request, "edit", arguments={"amount": 6}), 1)


# -- what is wrong with a bound --------------------


@pytest.mark.parametrize(
    ("at_most", "place", "text"),
    [
        ({"calls": 1}, None, ""),
        ({"sum": {"amount": 5}}, None, ""),
        ({"sum": {"amout": 5}}, "amout", "no argument 'amout'; its arguments are: amount, to"),
        ({"sum": {"to": 5}}, "to", "pay: to may be string; only an argument that is a number"),
    ],
)
def test_sum_of_what_is_no_number_is_found(at_most: Any, place: str | None, text: str) -> None:
    approvals = Approvals.model_validate(rules({**RULE, "at_most": at_most}))
    specs: list[ToolSpec] = [spec(), spec("read", "read")]
    found = problems(approvals, People(), tools=["pay", "read"], specs=specs)
    assert [(where, text in what) for where, what in found] == (
        [(("approvals", "rules", 0, "at_most", "sum", place), True)] if place else []
    )
