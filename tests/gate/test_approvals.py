"""Which tool call needs whose approval."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from activities.contracts import JsonObject, Label, Sink, ToolSpec
from tests.gate.gatekit import PEOPLE, ask, call, carried, policy, requests, say, signed, spec
from workflows.gate.approvals import ApprovalPolicy, Grant, problems, unchecked_paths
from workflows.gate.decisions import Refused
from workflows.people import Approvals, RequestSettings

LARGE = {"arguments": {"amount": {"exclusiveMinimum": 100}}, "request": {"group": "boss"}}
SMALL = {"arguments": {"amount": {"maximum": 10}}, "ask": "never"}


@pytest.mark.parametrize(
    ("approvals", "tool", "arguments", "rule"),
    [
        ({}, "pay", {}, "effects.unsafe"),
        ({}, "read", {}, None),
        ({}, "send", {}, None),
        ({}, "gone", {}, None),
        ({"effects": {"keyed": "always"}}, "pay", {}, "effects.unsafe"),
        ({"effects": {"unsafe": "never"}}, "pay", {}, None),
        ({"tools": {"pay": "never"}}, "pay", {}, None),
        ({"tools": {"pay": "rules"}}, "pay", {}, None),
        ({"tools": {"read": "first_time"}}, "read", {}, "tools.read"),
        ({"tools": {"read": "reject"}}, "read", {}, "tools.read"),
        ({"rules": [SMALL, LARGE]}, "pay", {"amount": 10}, None),
        ({"rules": [SMALL, LARGE]}, "pay", {"amount": 11}, "effects.unsafe"),
        ({"rules": [SMALL, LARGE]}, "pay", {"amount": 101}, "rules.1"),
        ({"rules": [{"ask": "never"}, LARGE]}, "pay", {"amount": 101}, None),
        ({"rules": [{"tools": ["p?y", "x*"]}]}, "pay", {}, "rules.0"),
        ({"rules": [{"effects": ["read"]}]}, "pay", {}, "effects.unsafe"),
        ({"rules": [{"arguments": {"to": False}, "ask": "never"}]}, "pay", {"to": "ann"}, "effects.unsafe"),
        ({"rules": [{"arguments": {"to": False}, "ask": "never"}]}, "pay", {}, None),
        ({"rules": [{"cost_above": 2}]}, "read", {}, None),
        ({"rules": [{"cost_above": 0.5}]}, "read", {}, "rules.0"),
    ],
)
def test_the_first_entry_that_fits_decides(
    approvals: Any, tool: str, arguments: Any, rule: str | None
) -> None:
    required = policy(approvals).required_approval(tool, arguments, spent_usd=1)
    assert (required and required.rule) == rule


SINKS = {"rules": [{"sends": "external", "after": ["untrusted", "private"]}], "effects": {"unsafe": "never"}}


@pytest.mark.parametrize(
    ("tool", "labels", "rule"),
    [
        ("pay", ("untrusted", "private"), "rules.0"),
        ("pay", ("private", "untrusted"), "rules.0"),
        ("pay", ("untrusted",), None),
        ("pay", (), None),
        ("note", ("untrusted", "private"), None),
    ],
)
def test_a_rule_may_wait_for_labels_and_name_sinks(
    tool: str, labels: tuple[Label, ...], rule: str | None
) -> None:
    sinks: dict[str, Sink] = {"pay": "external", "note": "internal"}
    specs = {name: spec(name).model_copy(update={"sends": sink}) for name, sink in sinks.items()}
    of = ApprovalPolicy(Approvals.model_validate(SINKS), PEOPLE, specs)
    required = of.required_approval(tool, {}, spent_usd=0, labels=labels)
    assert (required and required.rule) == rule


def test_nobody_can_let_a_call_pass_that_a_rule_rejects() -> None:
    rejected = {"arguments": {"amount": {"minimum": 9}}, "ask": "reject"}
    at = requests(approvals={"rules": [rejected, {"ask": "always"}]})
    at.decide(say(ask(at, amount=1), standing_approval={}), 0)
    assert not needs(at, amount=2)
    required = at.approval_for(call(amount=9), spent_usd=0)[0]
    assert required is not None
    assert required.mode == "reject"
    at = requests(approvals={"rules": [rejected]})
    with pytest.raises(Refused, match=r"rules\.0 rejects it"):
        at.decide(say(ask(at, amount=1), "edit", arguments={"amount": 9}), 0)


@pytest.mark.parametrize("given", [{"after": "rumour"}, {"sends": "mars"}, {"ask": "reject", "request": {}}])
def test_a_rule_with_unknown_labels_is_refused(given: JsonObject) -> None:
    with pytest.raises(ValidationError, match=r"untrusted|external|has no effect"):
        Approvals.model_validate({"rules": [given]})


def test_a_rule_may_name_its_own_people() -> None:
    of = policy({"rules": [LARGE]}, group="team", quorum=2)
    assert [
        required and required.settings
        for required in (of.required_approval("pay", {"amount": amount}, spent_usd=0) for amount in (500, 50))
    ] == [RequestSettings(group="boss"), RequestSettings(group="team", quorum=2)]


def needs(at: Any, **arguments: Any) -> bool:
    return at.approval_for(call(**arguments), spent_usd=0)[0] is not None


def earlier(at: Any, **arguments: Any) -> tuple[str, ...]:
    """Who has approved such a call before."""
    grant: Grant | None = at.approval_for(call(**arguments), spent_usd=0).earlier
    return grant.approvers if grant else ()


@pytest.mark.parametrize(("verb", "later"), [("approve", False), ("reject", True), ("edit", True)])
def test_first_time_ends_when_a_call_was_approved(verb: str, later: bool) -> None:
    at = requests("team", {"tools": {"pay": "first_time"}, "rules": [{**LARGE, "ask": "first_time"}]})
    fields: Any = {"arguments": {"amount": 6}} if verb == "edit" else {}
    at.decide(say(ask(at), verb, **fields), 1)
    assert needs(at, amount=7) is later
    assert needs(at, amount=700), "another rule asks about it"
    assert earlier(at, amount=7) == (() if later else ("ann (claimed)",))


@pytest.mark.parametrize(
    ("standing", "passes"),
    [
        (None, set()),
        ({}, {5, 6, 90}),
        ({"same": True}, {5}),
        ({"arguments": {"amount": {"maximum": 50}}}, {5, 6}),
        ({"arguments": {"amount": {"maximum": 50}}, "same": True}, {5}),
    ],
)
def test_a_standing_approval_lets_later_calls_pass(standing: Any, passes: set[int]) -> None:
    at = requests("team", {"rules": [LARGE]})
    at.decide(say(ask(at, amount=5), standing_approval=standing), 1)
    at = carried(at)
    assert {amount for amount in (5, 6, 90) if not needs(at, amount=amount)} == passes
    assert needs(at, amount=500), "the boss was not asked"


def test_one_persons_grant_is_not_enough_for_a_quorum() -> None:
    two = {"arguments": {"amount": {"exclusiveMinimum": 100}}, "request": {"group": "team", "quorum": 2}}
    at = requests("team", {"rules": [two]})
    at.decide(say(ask(at), standing_approval={}), 1)
    assert not needs(at, amount=6)
    assert needs(at, amount=600)


def test_all_who_approve_must_grant_the_same() -> None:
    for other, passes in (({"same": True}, True), ({}, False), (None, False)):
        at = requests("signed_two")
        request = ask(at)
        at.decide(signed(say(request, standing_approval={"same": True})), 1)
        at.decide(signed(say(request, by="bob", standing_approval=other)), 2)
        assert needs(at, amount=5) is not passes
        assert earlier(at, amount=5) == (("ann (verified)", "bob (verified)") if passes else ())


def test_a_grant_after_escalation_holds_for_calls_that_come_there() -> None:
    escalating = {"at_deadline": "escalate", "escalate_to": ("boss",), "deadline_seconds": 60}
    stays = {"arguments": {"amount": {"exclusiveMinimum": 100}}, "request": {"group": "team"}}
    at = requests("team", {"rules": [stays]}, **escalating)
    request = ask(at)
    at.keep_deadlines(60)
    at.decide(say(at.get(request.id), by="eve", standing_approval={}), 61)
    assert not needs(at, amount=6)
    assert needs(at, amount=600), "this call never comes to the boss"


@pytest.mark.parametrize(
    ("approvals", "places"),
    [
        ({"rules": [LARGE], "tools": {"pay": "always"}}, []),
        ({"rules": [{"request": {"group": "bos"}}]}, [(0, "request")]),
        ({"rules": [{"tools": ["pya"]}]}, [(0, "tools", 0)]),
        ({"tools": {"pya": "always"}}, [("pya",)]),
        ({"rules": [{"arguments": {"amout": {"minimum": 5}}}]}, [(0, "arguments", "amout")]),
        ({"rules": [{"arguments": {"amount": {"min": 5}}}]}, [(0, "arguments", "amount")]),
        ({"rules": [{"arguments": {"to": {"minimum": 5}}}]}, [(0, "arguments", "to")]),
        ({"rules": [{"arguments": {"path": {"const": "x"}}}]}, []),
        ({"rules": [{"tools": ["pay"], "arguments": {"path": True}}]}, [(0, "arguments", "path")]),
    ],
)
def test_rules_that_protect_nothing_are_found(approvals: Any, places: list[Any]) -> None:
    path: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}
    specs: list[ToolSpec] = [spec(), spec("read", "read", path)]
    found = problems(Approvals.model_validate(approvals), PEOPLE, tools=["pay", "read"], specs=specs)
    assert [place[2:] for place, _ in found] == places


@pytest.mark.parametrize(
    ("name", "schema", "condition", "warns"),
    [
        ("path", {"type": "string"}, {"pattern": "^reports/"}, True),
        ("target_file", {"type": "string"}, {"const": "a.txt"}, True),
        ("sourcePath", {"anyOf": [{"type": "string"}, {"type": "null"}]}, {"not": {"enum": ["a"]}}, True),
        ("paths", {"type": "array", "items": {"type": "string"}}, {"items": {"pattern": "^a/"}}, True),
        ("path", {"type": "string", "format": "relative-path"}, {"pattern": "^reports/"}, False),
        ("path", {"$ref": "#/$defs/P"}, {"pattern": "^reports/"}, False),
        ("path", {"type": "string"}, {"maxLength": 5}, False),
        ("profile", {"type": "string"}, {"pattern": "^a"}, False),
    ],
)
def test_rules_on_paths_that_nobody_checks_are_named(
    name: str, schema: Any, condition: Any, warns: bool
) -> None:
    parameters: JsonObject = {
        "type": "object",
        "properties": {name: schema},
        "$defs": {"P": {"type": "string", "format": "file-path"}},
    }
    approvals = Approvals.model_validate({"rules": [{"arguments": {name: condition}, "ask": "never"}]})
    found = unchecked_paths(approvals, [spec("read", "read", parameters), spec()])
    assert [place[2:] for place, _ in found] == ([(0, "arguments", name)] if warns else [])
    assert all(text.startswith("read: ") for _, text in found)
