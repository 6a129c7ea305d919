"""What is wrong with people and approvals is said before a run begins."""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from activities.contracts import ToolSpec
from tests.gate.house import PEOPLE, desk, public
from workflows.gate.problems import problems, unknown_arguments, worded
from workflows.people import Approvals, Asking, Group, People

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
NEXT = dict(pairwise(LETTERS))
"""The last letter of a key holds two bits that count for nothing."""
GROUPS: dict[str, Any] = {
    "team": {"members": ["ann", "bob"]},
    "two": {"members": ["ann", "bob"], "quorum": 2},
}


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"members": ["ann", "ann"]}, "ann stands there twice"),
        ({"members": ["ann"], "quorum": 2}, "2 people must agree, the group has 1"),
        ({"keys": {"ann": public("ann")}, "quorum": 2}, "the group has 1"),
        ({"members": ["ann", "bob"], "keys": {"ann": public("ann")}}, "bob has none"),
        ({"members": ["ann"], "keys": {"ann": public("ann"), "eve": public("eve")}}, "eve is not among"),
        ({"keys": {"ann": public("ann"), "bob": public("ann")}}, "the same key"),
        (
            {"keys": {"ann": public("ann"), "bob": public("ann")[:-2] + NEXT[public("ann")[-2]] + "="}},
            "the same",
        ),
        ({"keys": {"ann": "AAAA"}}, "`ratchet key show FILE` prints"),
        ({"keys": {"ann": "!" * 43 + "="}}, "no Ed25519 public key"),
        ({"members": [" ann"]}, "is no name"),
        ({"members": ["ann (verified)"]}, "is no name"),
        ({"members": ["ann, bob"]}, "is no name"),
        ({"members": ["a\u202eb"]}, "is no name"),
        ({"members": ["ann", "Ann"]}, "Ann stands there twice"),
        ({"keys": {"ann": public("ann"), "ANN": public("bob")}}, "ANN stands there twice"),
        ({"keys": {"ann": base64.b64encode(bytes(31) + b"\x80").decode()}}, "small order"),
        ({"keys": {"ann": base64.b64encode(b"\x01" + bytes(31)).decode()}}, "small order"),
        ({"members": [""]}, "at least 1 character"),
        ({"quorum": 0}, "greater than"),
    ],
)
def test_a_group_that_could_never_decide_is_refused(group: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Group.model_validate(group)


@pytest.mark.parametrize(
    ("asking", "words"),
    [
        ({"at_deadline": "escalate", "escalate_to": ["team"]}, "needs `deadline_seconds`"),
        ({"at_deadline": "escalate", "deadline_seconds": 5}, "groups in `escalate_to`"),
        ({"deadline_seconds": 5, "escalate_to": ["team"]}, "write `at_deadline: escalate`"),
        ({"warn_seconds": 5}, "less than `deadline_seconds`"),
        ({"warn_seconds": 5, "deadline_seconds": 5}, "less than `deadline_seconds`"),
        ({"deadline_seconds": 0}, "greater than 0"),
    ],
)
def test_a_way_of_asking_that_cannot_end_as_written_is_refused(asking: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Asking.model_validate(asking)


@pytest.mark.parametrize(
    ("people", "words"),
    [
        ({"asking": {"group": "nobody"}}, "asking: there is no group 'nobody'; there is team, two"),
        ({"kinds": {"limit": {"group": "nobody"}}}, "kinds.limit: there is no group 'nobody'"),
        ({"asking": {"group": "team", "quorum": 3}}, "3 people must agree, team has 2"),
        (
            {
                "asking": {
                    "group": "team",
                    "deadline_seconds": 5,
                    "at_deadline": "escalate",
                    "escalate_to": ["boss"],
                }
            },
            "there is no group 'boss'",
        ),
        ({"commands": "nobody"}, "there is no group 'nobody'"),
        ({"commands": "two"}, "a command is one person's"),
    ],
)
def test_a_group_that_is_asked_must_be_there_and_large_enough(people: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        People.model_validate({"groups": GROUPS, **people})


def test_what_can_be_answered_is_accepted() -> None:
    people = {
        "groups": GROUPS,
        "asking": {"group": "team", "quorum": 2, "deadline_seconds": 5, "warn_seconds": 4.5},
        "kinds": {
            "approval": {"deadline_seconds": 5, "at_deadline": "escalate", "escalate_to": ["team", "two"]}
        },
        "commands": "team",
    }
    assert People.model_validate(people).kinds["approval"].escalate_to == ("team", "two")
    assert People.model_validate({"asking": {"quorum": 3}}).asking.quorum == 3, "three of anybody"


def test_rules_are_held_against_the_groups_and_names_against_the_tools() -> None:
    approvals = Approvals.model_validate(
        {
            "rules": [
                {"tools": ["pay"], "asking": {"group": "nobody"}},
                {"tools": ["p*", "sned"], "asking": {"group": "boss", "quorum": 2}},
            ],
            "tools": {"pay": "always", "raed": "never"},
        }
    )
    found = problems(approvals, PEOPLE, ["pay", "send"])
    assert [place for place, _ in found] == [
        ("approvals", "rules", 0, "asking"),
        ("approvals", "rules", 1, "asking"),
        ("approvals", "rules", 1, "tools", 1),
        ("approvals", "tools", "raed"),
    ]
    assert [text for _, text in found] == [
        "there is no group 'nobody'; there is team, two, signed, signed_two, boss",
        "quorum: 2 people must agree, boss has 1",
        "no tool fits 'sned'; the agent has pay, send",
        "there is no tool 'raed'; the agent has pay, send",
    ]
    assert len(problems(approvals, PEOPLE)) == 2, "without the tools, names are not looked at"
    with pytest.raises(ValueError, match="there is no group 'nobody'"):
        desk(approvals=approvals)


ORDER = {"type": "object", "properties": {"total": {"type": "number"}}}
MONEY = {"type": "object", "properties": {"to": {}, "amount": {}, "order": {"$ref": "#/$defs/Order"}}}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"tools": ["pay"], "arguments": {"amout": {"above": 5}}}, "pay has no argument amout (it has to,"),
        ({"arguments": {"order.totl": {"above": 5}}}, "pay has no argument totl (it has total)"),
        ({"arguments": {"order.total": {"above": 5}}}, ""),
        ({"arguments": {"text": {"matches": "x"}}}, ""),  # the other tool has it
        ({"tools": ["s*"], "arguments": {"anything": {"equals": 1}}}, ""),  # an open schema may
        ({"effects": ["unsafe"], "arguments": {"text": {"matches": "x"}}}, "the rule would never fit: pay"),
        ({"tools": ["gone"], "arguments": {"amout": {"above": 5}}}, ""),  # told of by its tool's name
    ],
)
def test_a_rule_on_an_argument_that_no_tool_has_is_named_since_it_would_protect_nothing(
    rule: dict[str, Any], words: str
) -> None:
    schema = {**MONEY, "$defs": {"Order": ORDER}}
    text = {"type": "object", "properties": {"text": {}}}
    tools = [
        ToolSpec(name="pay", description="", parameters=schema, effect="unsafe"),
        ToolSpec(name="send", description="", parameters=text, effect="read"),
        ToolSpec(name="store", description="", parameters={"type": "object"}),
    ]
    known = tools if "tools" in rule else tools[:2]
    found = worded(unknown_arguments(Approvals.model_validate({"rules": [rule]}), known))
    assert words in found
    assert bool(words) == bool(found)


def test_where_nothing_is_said_nobody_is_needed_but_for_unsafe_calls() -> None:
    people, approvals = People(), Approvals()
    assert (people.unattended, people.on_limit, people.on_trouble, people.commands) == (
        False,
        "stop",
        "fail",
        None,
    )
    assert (people.interrupt_every, people.interrupt_states, people.notify) == (None, (), ())
    assert approvals.effects == {"unsafe": "always"}
    assert (people.asking.group, people.quorum_of(people.asking), people.asking.deadline_seconds) == (
        None,
        1,
        None,
    )


def test_people_and_approvals_come_back_from_json_as_they_were() -> None:
    approvals = Approvals.model_validate({"rules": [{"arguments": {"a.b": {"equals": [1, "x", None]}}}]})
    assert Approvals.model_validate_json(approvals.model_dump_json()) == approvals
    assert People.model_validate_json(PEOPLE.model_dump_json()) == PEOPLE
    assert Approvals.model_validate({}) == Approvals()
