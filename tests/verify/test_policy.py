"""What a policy lets pass, by the solver: held against all calls of small domains, judged by production."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

from activities.contracts import Label, ToolSpec
from workflows.gate.approvals import ApprovalPolicy
from workflows.gate.arguments import arguments_for
from workflows.people import ApprovalRule, Approvals, AtMost, Group, People, RequestSettings
from workflows.verify.policy.call_sets import LEVELS, CallSet, JudgedCall, Level, level_of
from workflows.verify.policy.deciders import people_grown
from workflows.verify.policy.ranges import Cell

z3 = pytest.importorskip("z3")

from workflows.verify.policy.questions import (  # noqa: E402  # behind the skip
    RunPolicy,
    SymbolicCalls,
    Undecided,
    after_label,
    call_sets,
    newly_allowed,
    useless_rules,
)  # fmt: skip

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
    sends="external",
)
LOOK = ToolSpec(name="look", description="", effect="read", parameters={"properties": {}})
SPECS = {"pay": PAY, "look": LOOK}
SPENT = (0.5, 2.0, 2.5)
"""At each cost that a rule names, and above."""
HELD: tuple[tuple[Label, ...], ...] = ((), ("untrusted",), ("private",), ("untrusted", "private"))


def every_call() -> list[JudgedCall]:
    fast: tuple[dict[str, Any], ...] = ({}, {"fast": True}, {"fast": False})
    calls = [
        JudgedCall("pay", {"cents": cents, "to": to, **more, "note": note}, spent, labels)
        for cents, to, more, note, spent, labels in product(
            range(7), ("ann", "bob", "bank"), fast, (None, "a"), SPENT, HELD
        )
    ]
    return calls + [JudgedCall("look", {}, spent, labels) for spent, labels in product(SPENT, HELD)]


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
    bounded = {"at_most": at_most, "then": then} if at_most and ask not in ("always", "reject") else {}
    if ask in ("never", "reject") and bounded.get("then") != "always":
        given["request"] = None
    return ApprovalRule(ask=ask, **bounded, **given)


RULE = st.builds(
    rule,
    st.sampled_from(["always", "never", "never", "first_time", "reject"]),
    st.sampled_from(
        [None, None, AtMost(calls=2), AtMost(sum={"cents": 4}), AtMost(calls=1, sum={"cents": 2})]
    ),
    st.sampled_from(["always", "reject"]),
    tools=st.sampled_from([(), ("pay",), ("p*",), ("look",)]),
    effects=st.sampled_from([(), (), ("unsafe",), ("read",)]),
    arguments=CONDITIONS,
    sends=st.sampled_from([(), (), ("external",), ("internal", "nowhere")]),
    after=st.sampled_from([*HELD, (), ()]),
    cost_above=st.sampled_from([None, None, 0.5, 2.0]),
    request=st.sampled_from([None, None, ASKS, EXPIRES]),
)
MODE = st.sampled_from(["always", "never", "first_time", "rules", "reject"])
APPROVALS = st.builds(
    Approvals,
    rules=st.lists(RULE, max_size=4).map(tuple),
    tools=st.one_of(st.just({}), st.builds(lambda mode: {"pay": mode}, MODE)),
    effects=st.one_of(st.just({}), st.builds(lambda mode: {"unsafe": mode, "read": mode}, MODE)),
)
PEOPLE = People(groups={"boss": Group(members=("ann",))})


LABELLED = st.builds(
    lambda held: {"sometimes": frozenset(held[0]), "always": frozenset(held[1])},
    st.sampled_from([(HELD[3], ()), (HELD[3], ()), (HELD[1], ()), ((), ()), (HELD[3], HELD[1])]),
)
"""What runs of an agent can have, and have from their beginning."""


def policy_of(approvals: Approvals, held: Any = None) -> RunPolicy:
    return RunPolicy(ApprovalPolicy(approvals, PEOPLE, SPECS), **held or {})


def levels(policy: RunPolicy, call: JudgedCall) -> set[Level]:
    """What may become of a call: at once, and when the bound of its rule is used up."""
    held = [label for label in HELD[3] if label in {*policy.always, *call.labels}]
    facts: Any = {
        "spent_usd": call.spent_usd,
        "labels": tuple(label for label in held if label in policy.always | policy.sometimes),
    }
    required = policy.policy.required_approval(call.tool, call.arguments, **facts)
    first: Level = "unasked" if required is None else level_of(required.mode, required.settings)
    name = policy.policy.entry(call.tool, call.arguments, **facts)
    rules = {f"rules.{number}": rule for number, rule in enumerate(policy.policy.approvals.rules)}
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
    sets: Iterable[CallSet], calls: list[JudgedCall], policy: RunPolicy, kinds: Iterable[Level] = LEVELS
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


def calls_of(policy: RunPolicy, tool: str) -> list[JudgedCall]:
    """The calls that runs under this policy can make."""
    can = policy.always | policy.sometimes
    return [one for one in EVERY if one.tool == tool and policy.always <= set(one.labels) <= can]


SOLVED = profile(max_examples=profile().max_examples * 2 // 5)
"""Each example asks the solver some hundred times."""


@SOLVED
@given(APPROVALS, LABELLED)
def test_solver_finds_what_enumeration_finds(approvals: Approvals, held: Any) -> None:
    policy = policy_of(approvals, held)
    for spec in SPECS.values():
        calls = calls_of(policy, spec.name)
        sets = call_sets(policy, spec)
        if spec is PAY:
            assert_same(sets, calls, policy)
        else:
            assert {one.level for one in sets} == {kind for call in calls for kind in levels(policy, call)}
        for one in sets:
            deciding = [call for call in calls if policy.entry(call) == one.entry]
            for label, has in one.after.items():
                assert all((label in call.labels) is has for call in deciding)


@SOLVED
@given(APPROVALS, LABELLED, st.sampled_from(HELD[3]))
def test_what_passes_after_a_label_is_what_enumeration_finds(
    approvals: Approvals, held: Any, label: Label
) -> None:
    policy = policy_of(approvals, held)
    calls = [call for call in calls_of(policy, "pay") if label in call.labels]
    found, unknown = after_label(policy, PAY, label)
    assert not unknown
    loosest = max((LEVELS.index(kind) for call in calls for kind in levels(policy, call)), default=None)
    assert (None if found is None else LEVELS.index(found.level)) == loosest
    if found is not None:
        assert found.example is not None
        assert label in found.example.labels
        assert found.level in levels(policy, found.example)


@SOLVED
@given(APPROVALS, APPROVALS, LABELLED, LABELLED)
def test_change_allows_what_enumeration_finds(
    new: Approvals, old: Approvals, held: Any, held_before: Any
) -> None:
    now, then = policy_of(new, held), policy_of(old, held_before)
    calls = calls_of(now, "pay")
    sets = newly_allowed(now, then, PAY)
    for kind in LEVELS[1:]:
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
        required = policy.required_approval(call)
        kinds = tuple(sorted(levels(policy, call)))
        asked: Any = None
        if required is not None and required.bound is None and required.mode != "reject":
            asked = (required.mode, required.settings, set(required.after))
        found.append((kinds, required and required.bound is None, asked))
    return found


@SOLVED
@given(APPROVALS)
def test_useless_rule_is_one_without_which_all_is_decided_alike(approvals: Approvals) -> None:
    useless = useless_rules(policy_of(approvals), list(SPECS.values()))
    whole, rules = decisions(approvals), approvals.rules
    for number, one in enumerate(rules):
        without = approvals.model_copy(update={"rules": (*rules[:number], *rules[number + 1 :])})
        same = decisions(without) == whole
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
    now, then = (RunPolicy(ApprovalPolicy(one, PEOPLE, specs)) for one in (new, old))
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


@pytest.mark.parametrize("kinds", [["interrupt"], ["stuck"], ["trouble", "question"]])
@pytest.mark.parametrize(
    "before",
    [
        {"deadline_seconds": 60, "at_deadline": "reject"},
        {"deadline_seconds": 60, "at_deadline": "abort"},
        {"at_deadline": "approve"},
        {},
    ],
)
def test_run_that_newly_goes_on_without_an_answer_is_named(kinds: list[Any], before: dict[str, Any]) -> None:
    old = People(kinds=dict.fromkeys(kinds, RequestSettings(**before)))
    new = People(kinds=dict.fromkeys(kinds, EXPIRES))
    (said,) = people_grown(new, old)
    assert said.startswith("people: requests of the kind")
    assert all(kind in said for kind in kinds)
    assert said.endswith("are newly approved after 60 s without an answer")
    assert [*people_grown(old, new), *people_grown(new, new)] == []


def test_deadline_at_which_nothing_goes_on_is_not_named() -> None:
    new = People(kinds={"limit": EXPIRES, "outcome": EXPIRES})
    assert [*people_grown(new, People())] == []


def test_rule_behind_one_deciding_all_of_it_is_never_reached() -> None:
    policy = RunPolicy(ApprovalPolicy(rules(small(100), small(50)), PEOPLE, {"pay": CENTS_SPEC}))
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
    sets = call_sets(RunPolicy(ApprovalPolicy(approvals, PEOPLE, {"pay": CENTS_SPEC})), CENTS_SPEC)
    assert {one.entry for one in sets} == {"rules.0", "rules.1"}
    assert [one.unknown for one in sets if one.entry == "rules.1"] != [()]


def test_pattern_that_cannot_be_said_is_unknown_and_never_proven() -> None:
    """`\\\\b` is none of z3's: whether the rule lets anything pass is not known, and is said so."""
    word = {"tools": ("pay",), "arguments": {"to": {"pattern": r"^\b\B"}}, "ask": "never"}
    policy = RunPolicy(ApprovalPolicy(rules(word), PEOPLE, {"pay": CENTS_SPEC}))
    first, last = call_sets(policy, CENTS_SPEC)
    assert first.entry == "rules.0"
    assert first.example is None
    assert first.unknown
    assert first.held["to"], "what is not known may be"
    assert last.level == "asked"


def test_call_that_passes_after_a_label_says_so() -> None:
    """The example has no label that it does not need."""
    quiet = {"tools": ("pay",), "after": "untrusted", "ask": "never"}
    policy = RunPolicy(ApprovalPolicy(rules(quiet), PEOPLE, {"pay": CENTS_SPEC}))
    passing, asked = call_sets(policy, CENTS_SPEC)
    assert passing.example is not None
    assert passing.example.labels == ("untrusted",)
    assert passing.example.title.endswith("after untrusted")
    assert (passing.after_text, asked.after_text) == ("after untrusted", "before untrusted")


# -- a tool's schema --------------------

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
LONG = "(?i)^(" + "|".join(f"customer{number:03}" for number in range(20))
ABOVE = "\U00030000"


def decided(parameters: dict[str, Any], approvals: Any, call: dict[str, Any]) -> tuple[str, list[CallSet]]:
    """The entry that decides on the call in production, and what the solver says of this entry. The values
    that it names are checked."""
    spec = ToolSpec(name="pay", description="", effect="unsafe", parameters=parameters)
    policy = ApprovalPolicy(Approvals.model_validate(approvals), PEOPLE, {"pay": spec})
    fitted = arguments_for(spec, call)
    assert isinstance(fitted, dict), fitted
    entry = policy.entry("pay", fitted, spent_usd=0)
    sets = [one for one in call_sets(RunPolicy(policy), spec) if one.entry == entry]
    for one in sets:
        for name, cells in one.held.items():
            assert any(has(cell, fitted, name) for cell in cells), (entry, name, cells)
    return entry, sets


def has(cell: Cell, arguments: dict[str, Any], name: str) -> bool:
    value = arguments.get(name)
    if cell.kind == "numbers" and isinstance(value, float):
        return (cell.low is None or value > cell.low) and (cell.high is None or value < cell.high)
    if cell.kind in ("list", "object") and name in arguments:
        return isinstance(value, list if cell.kind == "list" else dict)
    return within(cell, arguments, name)


def one_of(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"properties": {"x": True}, "required": ["x"], **more, "allOf": list(parts)}


@pytest.mark.parametrize(
    ("parameters", "approvals", "call"),
    [
        pytest.param(
            {
                "properties": {
                    "cents": {"type": "integer"},
                    "account": {"type": "string", "default": "main"},
                    "iban": {"type": "string"},
                },
                "required": ["cents"],
                "not": {"required": ["iban", "account"]},
            },
            {"rules": [{"arguments": {"iban": {"type": "string"}}, "ask": "never"}]},
            {"cents": 1, "iban": "DE1"},
            id="a default that the schema forbids beside another argument",
        ),
        pytest.param(
            {
                "properties": {"cents": {"type": "integer"}, "n": {"type": "integer", "default": 1}},
                "maxProperties": 1,
            },
            {"rules": [{"arguments": {"cents": {"minimum": 100}}, "ask": "never"}]},
            {"cents": 500},
            id="a default for which there is no room",
        ),
        pytest.param(
            {"properties": {"o": {"properties": {"x": {"type": "integer", "default": 5}}, "enum": [{}]}}},
            {"rules": [{"arguments": {"o": {"maxProperties": 0}}, "ask": "never"}]},
            {"o": {}},
            id="a default inside a value that the schema names",
        ),
        pytest.param(
            {
                "properties": {
                    "to.name": {"type": "string"},
                    "to": {"type": "object", "properties": {"name": {"type": "string"}}},
                },
            },
            {"rules": [{"arguments": {"to.name": False, "to": {"required": ["name"]}}, "ask": "never"}]},
            {"to": {"name": "eve"}},
            id="a name with a dot",
        ),
        pytest.param(
            {"properties": {"to": {"type": "string"}}, "required": ["to"]},
            {
                "rules": [
                    {"arguments": {"to": {"pattern": f"{LONG}|x)$"}}},
                    {"arguments": {"to": {"pattern": f"{LONG}|eve)$"}}, "ask": "never"},
                ]
            },
            {"to": "eve"},
            id="two long patterns with the same beginning",
        ),
        pytest.param(
            {"properties": {"o": {"type": "object", "additionalProperties": {"maximum": 5}}}},
            {
                "rules": [{"arguments": {"o": {"additionalProperties": {"maximum": 5}}}}],
                "tools": {"pay": "never"},
            },
            {"o": {"odd": "text"}},
            id="a keyword that a condition reads otherwise, of other properties",
        ),
        pytest.param(
            {"properties": {"o": {"type": "array", "minItems": 4, "items": {"maximum": 5}}}},
            {"rules": [{"arguments": {"o": {"items": {"maximum": 5}}}}], "tools": {"pay": "never"}},
            {"o": [1, 1, 1, "text"]},
            id="a keyword that a condition reads otherwise, of a long list",
        ),
        pytest.param(
            {"properties": {"o": {"type": "array", "contains": {"const": 1}, "minContains": 2}}},
            {"rules": [{"arguments": {"o": {"contains": {"const": 1}}}}], "tools": {"pay": "never"}},
            {"o": [1, 1, 2, 2]},
            id="contains with a number of items",
        ),
        *(
            pytest.param(
                {"properties": {"to": {"type": "string"}}},
                {"rules": [{"arguments": {"to": {"pattern": pattern}}}], "tools": {"pay": "never"}},
                {"to": ABOVE},
                id=f"a character that the solver does not know in {pattern!a}",
            )
            for pattern in (r"^[\x{0}-\x{2FFFF}]*$", r"^[^\x{30000}]*$", f"^[^{ABOVE}]*$")
        ),
        pytest.param(
            {
                "$schema": DRAFT_7,
                "definitions": {"m": {"type": "number"}},
                "properties": {"cents": {"$ref": "#/definitions/m", "type": "integer"}},
                "required": ["cents"],
            },
            {"rules": [{"arguments": {"cents": {"const": 1.5}}, "ask": "never"}]},
            {"cents": 1.5},
            id="beside a reference in draft 7",
        ),
        pytest.param(
            {
                "$schema": "https://json-schema.org/draft/2019-09/schema",
                "properties": {"o": {"type": "array", "prefixItems": [{"const": 1}]}},
            },
            {"rules": [{"arguments": {"o": {"contains": {"const": 2}}}, "ask": "never"}]},
            {"o": [2]},
            id="a keyword of a later draft",
        ),
        pytest.param(
            {
                "$schema": DRAFT_7.replace("http", "https"),
                "definitions": {"m": {"type": "integer"}},
                "properties": {
                    "cents": {
                        "oneOf": [
                            {"$ref": "#/definitions/m", "maximum": 5},
                            {"$ref": "#/definitions/m", "minimum": 100},
                        ]
                    }
                },
                "required": ["cents"],
            },
            {"rules": [{"arguments": {"cents": {"minimum": 100}}, "ask": "never"}]},
            {"cents": 500},
            id="a draft that production does not know by this name",
        ),
        pytest.param(
            {
                "$schema": "https://json-schema.org/draft/2019-09/schema",
                "properties": {"x": {"type": "integer"}, "o": {"not": {"$recursiveRef": "#"}}},
            },
            {"rules": [{"arguments": {"o": {"type": "number"}}, "ask": "never"}]},
            {"o": 5},
            id="a reference of draft 2019-09",
        ),
        pytest.param(
            {"properties": {"amount": {"type": "number"}}},
            {
                "rules": [
                    {"arguments": {"amount": {"multipleOf": 2**53 + 1, "minimum": 1, "maximum": 2**53}}},
                    {"arguments": {"amount": {"minimum": 1}}, "ask": "never"},
                ]
            },
            {"amount": float(2**53)},
            id="a divisor that production rounds",
        ),
        pytest.param(
            {"properties": {"x": {"required": True, "type": ["object", "integer"]}}},
            {"rules": [{"arguments": {"x": {"type": "number"}}, "ask": "never"}]},
            {"x": 5},
            id="required as in draft 3",
        ),
        pytest.param(
            {
                "$defs": {"a/b": {"type": "integer"}, "a~1b": {"type": "string"}, "a b": {"minimum": 5}},
                "properties": {"x": {"allOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/a%20b"}]}},
            },
            {"rules": [{"arguments": {"x": {"type": "number"}}, "ask": "never"}]},
            {"x": 5},
            id="references with escapes",
        ),
        pytest.param(
            {"properties": {"x": {"type": "string", "not": {"format": "relative-path"}}}},
            {"rules": [{"arguments": {"x": {"type": "string"}}, "ask": "never"}]},
            {"x": "a\tb"},
            id="what is no path",
        ),
    ],
)
def test_call_that_production_takes_is_in_what_the_solver_finds(
    parameters: dict[str, Any], approvals: Any, call: dict[str, Any]
) -> None:
    entry, sets = decided(parameters, approvals, call)
    assert sets, f"{entry} fits no call, it is said"


ONE = [{"required": ["a"]}, {"required": ["b"]}]


@pytest.mark.parametrize("with_default", ["a", "ab", "abc"])
@pytest.mark.parametrize(
    "more",
    [
        {"required": ["a"]},
        {"not": {"required": ["a", "b"]}},
        {"not": {"properties": {"a": {"const": 1}}}},
        {"maxProperties": 2},
        {"oneOf": ONE},
        {"oneOf": [{"maxProperties": 1}, {"required": ["c"]}], "minProperties": 1},
        {"dependentRequired": {"a": ["b"], "b": ["a"]}},
    ],
    ids=str,
)
def test_calls_without_a_default_are_those_that_production_makes(more: Any, with_default: str) -> None:
    """Each name is 1 or 2, or left out; 1 is the default."""
    each = {n: {"enum": [1, 2], **({"default": 1} if n in with_default else {})} for n in "abc"}
    spec = ToolSpec(name="pay", description="", parameters={"properties": each, **more})
    given_calls: list[dict[str, Any]] = [
        {name: value for name, value in zip("abc", values, strict=True) if value}
        for values in product((0, 1, 2), repeat=3)
    ]
    fitted = [one for one in (arguments_for(spec, call) for call in given_calls) if isinstance(one, dict)]
    assert all(arguments_for(spec, one) == one for one in fitted)
    tool = SymbolicCalls(spec, [RunPolicy(ApprovalPolicy(Approvals(), PEOPLE, {"pay": spec}))])
    for name in "abc":
        there = tool.call.has(name)
        for formula, found in ((there, True), (z3.Not(there), False)):
            made = any((name in one) is found for one in fitted)
            try:
                assert tool.exists(formula) == made
            except Undecided:
                assert "dependentRequired" in more
