"""What a policy lets pass, by the solver: held against all calls of small domains, judged by production."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts import ToolSpec
from workflows.gate.approvals import ApprovalPolicy
from workflows.people import ApprovalRule, Approvals, AtMost, Group, People, RequestSettings
from workflows.verify.policy.call_sets import LEVELS, Call, CallSet, Level, level_of
from workflows.verify.policy.ranges import Cell

pytest.importorskip("z3")

from workflows.verify.policy.questions import call_sets, newly_allowed, useless_rules  # behind the skip

PAY = ToolSpec(
    name="pay",
    description="",
    effect="unsafe",
    parameters={
        "properties": {
            "cents": {"type": "integer", "minimum": 0, "maximum": 6},
            "to": {"enum": ["ann", "bob", "bank"]},
            "fast": {"type": "boolean"},
            "note": {"type": ["string", "null"], "enum": [None, "a"], "default": None},
        },
        "required": ["cents", "to"],
    },
)
LOOK = ToolSpec(name="look", description="", effect="read", parameters={"properties": {}})
SPECS = {"pay": PAY, "look": LOOK}
SPENT = (0.0, 0.5, 1.0, 1.5, 2.5)
"""On both sides of each cost that a rule names."""


def every_call() -> list[Call]:
    fast: tuple[dict[str, Any], ...] = ({}, {"fast": True}, {"fast": False})
    calls = [
        Call("pay", {"cents": cents, "to": to, **more, "note": note}, spent)
        for cents, to, more, note, spent in product(
            range(7), ("ann", "bob", "bank"), fast, (None, "a"), SPENT
        )
    ]
    return calls + [Call("look", {}, spent) for spent in SPENT]


EVERY = every_call()
BOUND = st.integers(-1, 7)
CENTS = st.one_of(
    st.fixed_dictionaries({}, optional={"minimum": BOUND, "maximum": BOUND, "exclusiveMaximum": BOUND}),
    st.builds(lambda values: {"enum": values}, st.lists(BOUND, min_size=1, max_size=3)),
    st.builds(lambda bound: {"not": {"maximum": bound}}, BOUND),
    st.just({"multipleOf": 2}),
)
TO = st.one_of(
    st.builds(
        lambda names: {"enum": names},
        st.lists(st.sampled_from(["ann", "bob", "eve"]), min_size=1, max_size=2),
    ),
    st.sampled_from([{"pattern": "^b"}, {"minLength": 4}, {"const": "ann"}, {"not": {"const": "ann"}}, {}]),
)
CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "cents": CENTS,
        "to": TO,
        "fast": st.sampled_from([False, True, {"const": True}, {"type": "boolean"}]),
        "note": st.sampled_from([{"type": "null"}, {"type": "string"}, False]),
    },
)
ASKS = RequestSettings(group="boss")
EXPIRES = RequestSettings(deadline_seconds=60, at_deadline="approve")


def rule(ask: Any, at_most: AtMost | None, then: Any, **given: Any) -> ApprovalRule:
    bounded = {"at_most": at_most, "then": then} if at_most and ask != "always" else {}
    if ask == "never" and bounded.get("then") != "always":
        given["request"] = None
    return ApprovalRule(ask=ask, **bounded, **given)


RULE = st.builds(
    rule,
    st.sampled_from(["always", "never", "never", "first_time"]),
    st.sampled_from(
        [None, None, AtMost(calls=2), AtMost(sum={"cents": 4}), AtMost(calls=1, sum={"cents": 2})]
    ),
    st.sampled_from(["always", "reject"]),
    tools=st.sampled_from([(), ("pay",), ("p*",), ("look",)]),
    effects=st.sampled_from([(), (), ("unsafe",), ("read",)]),
    arguments=CONDITIONS,
    cost_above=st.sampled_from([None, None, 0.5, 2.0]),
    request=st.sampled_from([None, None, ASKS, EXPIRES]),
)
MODE = st.sampled_from(["always", "never", "first_time", "rules"])
APPROVALS = st.builds(
    Approvals,
    rules=st.lists(RULE, max_size=4).map(tuple),
    tools=st.one_of(st.just({}), st.builds(lambda mode: {"pay": mode}, MODE)),
    effects=st.one_of(st.just({}), st.builds(lambda mode: {"unsafe": mode, "read": mode}, MODE)),
)
PEOPLE = People(groups={"boss": Group(members=("ann",))})


def policy_of(approvals: Approvals) -> ApprovalPolicy:
    return ApprovalPolicy(approvals, PEOPLE, SPECS)


def levels(policy: ApprovalPolicy, call: Call) -> set[Level]:
    """What may become of a call: at once, and when the bound of its rule is used up."""
    required = policy.required_approval(call.tool, call.arguments, spent_usd=call.spent_usd)
    first: Level = "unasked" if required is None else level_of(required.mode, required.settings)
    name = policy.entry(call.tool, call.arguments, spent_usd=call.spent_usd)
    rules = {f"rules.{number}": rule for number, rule in enumerate(policy.approvals.rules)}
    if name not in rules or rules[name].at_most is None:
        return {first}
    return {first, level_of(rules[name].then, rules[name].request or PEOPLE.settings_for("approval"))}


def within(cell: Cell, arguments: dict[str, Any], name: str) -> bool:
    if name not in arguments:
        return cell.kind == "absent"
    value = arguments[name]
    if cell.kind == "value":
        return isinstance(value, bool) is isinstance(cell.value, bool) and value == cell.value
    if cell.kind == "numbers":
        low, high = cell.low, cell.high
        return type(value) is int and (low is None or value > low) and (high is None or value < high)
    return cell.kind == "text" and isinstance(value, str)


def assert_same(
    sets: Iterable[CallSet], calls: list[Call], policy: ApprovalPolicy, kinds: Iterable[Level] = LEVELS
) -> None:
    """The sets have these calls, and no others, as far as cells show it."""
    sets = list(sets)
    assert not [one.unknown for one in sets if one.unknown]
    for kind in kinds:
        mine = [one for one in sets if one.level == kind]
        held = [one for one in calls if kind in levels(policy, one)]
        assert bool(mine) == bool(held), kind
        for one in mine:
            assert one.example is not None
            assert kind in levels(policy, one.example)
        for name in ("cents", "fast"):
            cells = {cell for one in mine for cell in one.held.get(name, ())}
            for cell in {cell for one in mine for cell in one.possible.get(name, ())}:
                seen = any(within(cell, call.arguments, name) for call in held)
                assert (cell in cells) == seen, (kind, name, cell)


@given(APPROVALS)
def test_solver_finds_what_enumeration_finds(approvals: Approvals) -> None:
    policy = policy_of(approvals)
    for spec in SPECS.values():
        calls = [call for call in EVERY if call.tool == spec.name]
        sets = call_sets(policy, spec)
        if spec is PAY:
            assert_same(sets, calls, policy)
        else:
            assert {one.level for one in sets} == {kind for call in calls for kind in levels(policy, call)}


@given(APPROVALS, APPROVALS)
def test_change_allows_what_enumeration_finds(new: Approvals, old: Approvals) -> None:
    now, then = policy_of(new), policy_of(old)
    calls = [call for call in EVERY if call.tool == "pay"]
    sets = newly_allowed(now, then, PAY)
    for kind in LEVELS[2:]:
        rank = LEVELS.index(kind)
        easier = [
            call
            for call in calls
            if kind in levels(now, call) and max(map(LEVELS.index, levels(then, call))) < rank
        ]
        assert_same([one for one in sets if one.level == kind], easier, now, [kind])


def decisions(approvals: Approvals) -> list[Any]:
    """What becomes of each call, however the entry is called that decides it."""
    policy, found = policy_of(approvals), []
    for call in EVERY:
        required = policy.required_approval(call.tool, call.arguments, spent_usd=call.spent_usd)
        kinds = tuple(sorted(levels(policy, call)))
        found.append((kinds, required and required.bound is None and (required.mode, required.settings)))
    return found


@given(APPROVALS)
def test_useless_rule_is_one_without_which_all_is_decided_alike(approvals: Approvals) -> None:
    useless = useless_rules(policy_of(approvals), list(SPECS.values()))
    for number, one in enumerate(approvals.rules):
        rules = approvals.rules
        without = approvals.model_copy(update={"rules": (*rules[:number], *rules[number + 1 :])})
        same = decisions(without) == decisions(approvals)
        if f"rules.{number}" in useless:
            assert same
        else:  # which entry decides makes a difference where an approval covers its other calls
            assert not same or one.ask == "first_time"


def rules(*given: dict[str, Any], **more: Any) -> Approvals:
    return Approvals(rules=tuple(ApprovalRule(**one) for one in given), **more)


CENTS_SPEC = ToolSpec(
    name="pay",
    description="",
    parameters={
        "properties": {"cents": {"type": "integer", "exclusiveMinimum": 0}, "to": {"type": "string"}},
        "required": ["cents", "to"],
    },
)


def newly(new: Approvals, old: Approvals) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    specs = {"pay": CENTS_SPEC}
    now, then = ApprovalPolicy(new, PEOPLE, specs), ApprovalPolicy(old, PEOPLE, specs)
    for one in newly_allowed(now, then, CENTS_SPEC):
        yield one.level, list(one.narrowed)


def small(most: int) -> dict[str, Any]:
    return {"tools": ("pay",), "arguments": {"cents": {"maximum": most}}, "ask": "never"}


@pytest.mark.parametrize(
    ("now", "then", "expected"),
    [
        (5001, 5000, [("unasked", [("cents", "5001")])]),
        (5010, 5000, [("unasked", [("cents", "5001 to 5010")])]),
        (5000, 5001, []),
        (5000, 5000, []),
    ],
)
def test_bound_that_moved_prints_exactly_the_interval(now: int, then: int, expected: list[Any]) -> None:
    assert list(newly(rules(small(now)), rules(small(then)))) == expected


def test_rule_behind_one_that_decides_all_of_it_is_never_reached() -> None:
    policy = ApprovalPolicy(rules(small(100), small(50)), PEOPLE, {"pay": CENTS_SPEC})
    (problem,) = useless_rules(policy, [CENTS_SPEC]).items()
    assert problem[0] == "rules.1"
    assert "never reached" in problem[1]


class LaterRule(ApprovalRule):
    """A rule of a release that knows more."""

    weather: str = ""


def test_field_of_a_rule_that_is_not_translated_proves_nothing() -> None:
    """Whether the first rule asks depends on what nobody has translated: calls may pass by the second one."""
    later = LaterRule(tools=("pay",), weather="rain")
    approvals = Approvals(rules=(later, ApprovalRule(tools=("pay",), ask="never")))
    sets = call_sets(ApprovalPolicy(approvals, PEOPLE, {"pay": CENTS_SPEC}), CENTS_SPEC)
    assert {one.entry for one in sets} == {"rules.0", "rules.1"}
    assert [one.unknown for one in sets if one.entry == "rules.1"] != [()]


def test_pattern_that_cannot_be_said_is_unknown_and_never_proven() -> None:
    """`\\\\b` is none of z3's: whether the rule lets anything pass is not known, and is said so."""
    word = {"tools": ("pay",), "arguments": {"to": {"pattern": r"^\b\B"}}, "ask": "never"}
    policy = ApprovalPolicy(rules(word), PEOPLE, {"pay": CENTS_SPEC})
    first, last = call_sets(policy, CENTS_SPEC)
    assert first.entry == "rules.0"
    assert first.example is None
    assert first.unknown
    assert last.level == "asked"
