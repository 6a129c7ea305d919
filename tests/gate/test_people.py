"""What the agent file may say about people, and what people may send."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from tests.gate.gatekit import PEOPLE, policy, public
from workflows.people import (
    ApprovalRule,
    Approvals,
    Command,
    Decision,
    Group,
    People,
    RequestSettings,
    same_person,
)

DECISION = {"request": "r1", "digest": "x", "decision": "approve"}
DEEP: Any = []
for _ in range(60):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("model", "values", "culprit"),
    [
        (Group, {"members": ["ann", "Ann"]}, "Ann"),
        (Group, {"members": ["ann"], "quorum": 2}, "quorum"),
        (Group, {"members": ["ann", "bob"], "keys": {"ann": public("ann")}}, "bob"),
        (Group, {"members": ["ann"], "keys": {"ann": public("ann"), "bob": public("bob")}}, "bob"),
        (Group, {"keys": {"ann": public("ann"), "bob": public("ann")}}, "same key"),
        (Group, {"keys": {"ann": "AAAA"}}, "44 characters"),
        (Group, {"keys": {"ann": "A" * 43 + "="}}, "small order"),
        (RequestSettings, {"at_deadline": "escalate"}, "escalate"),
        (RequestSettings, {"escalate_to": ["boss"], "deadline_seconds": 5}, "escalate_to"),
        (RequestSettings, {"warn_seconds": 5, "deadline_seconds": 5}, "warn_seconds"),
        (ApprovalRule, {"ask": "never", "request": {}}, "request"),
        (ApprovalRule, {"tols": ["pay"]}, "tols"),
        (ApprovalRule, {"ask": "never", "at_most": {}}, "at_most"),
        (ApprovalRule, {"ask": "never", "at_most": {"calls": 0}}, "at_most.calls"),
        (ApprovalRule, {"ask": "never", "at_most": {"calls": True}}, "at_most.calls"),
        (ApprovalRule, {"ask": "never", "at_most": {"sum": {"cents": -1}}}, "at_most.sum.cents"),
        (ApprovalRule, {"ask": "never", "at_most": {"sum": {"cents": "5"}}}, "at_most.sum.cents"),
        (ApprovalRule, {"at_most": {"calls": 1}}, "at_most: has no effect with `ask: always`"),
        (ApprovalRule, {"ask": "never", "then": "reject"}, "then"),
        (ApprovalRule, {"ask": "never", "at_most": {"calls": 1}, "then": "reject", "request": {}}, "request"),
        (Approvals, {"effects": {"safe": "never"}}, "safe"),
        (People, {"requests": {"group": "team"}}, "team"),
        (People, {"kinds": {"limit": {"group": "team"}}}, "kinds.limit"),
        (People, {"groups": {"a": {"members": ["ann"]}}, "requests": {"group": "a", "quorum": 2}}, "quorum"),
        (People, {"groups": {"a": {"quorum": 2}}, "commands": "a"}, "commands"),
        (Decision, {**DECISION, "by": "ann, bob"}, "by"),
        (Decision, {**DECISION, "made_at": True}, "made_at"),
        (Decision, {**DECISION, "made_at": 1_795_303_514_150}, "made_at"),
        (Decision, {**DECISION, "amounts": {"model_calls": True}}, "amounts"),
        (Command, {"command": "limits", "limits": {"model_calls": True}}, "limits"),
        (Command, {"command": "limits", "limits": {"model_calls": "5"}}, "limits"),
        (Command, {"command": "rollback", "step": True}, "step"),
        (Command, {"command": "rollback", "step": 1, "compensate": 1}, "compensate"),
        (Command, {"command": "pause", "at_once": "no"}, "at_once"),
        (Decision, {**DECISION, "arguments": {"a": float("nan")}}, "arguments"),
        (Decision, {**DECISION, "arguments": {"a": "\ud800"}}, "arguments"),
        (Decision, {**DECISION, "arguments": {"a": DEEP}}, "deep"),
        (Decision, {**DECISION, "arguments": {"a": "x" * 2_000_000}}, "bytes"),
        (Decision, {**DECISION, "text": "x" * 20_001}, "text"),
        (Decision, {**DECISION, "amounts": {"model_calls": float("inf")}}, "amounts"),
        (
            Decision,
            {**DECISION, "standing_approval": {"arguments": {str(n): True for n in range(101)}}},
            "100",
        ),
        (Command, {"command": "pause", "by": "a\u200bb"}, "by"),
        (Command, {"command": "limits", "limits": {str(n): 1 for n in range(101)}}, "100"),
    ],
)
def test_what_can_never_work_is_refused(model: type[BaseModel], values: Any, culprit: str) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(values)
    assert culprit in str(caught.value)


@pytest.mark.parametrize("name", ["", " ann", "ann (verified)", "ann,bob", "an\u3164n", "a" * 101, "\uff08x"])
def test_a_name_that_deceives_in_the_log_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        Group(members=(name,))


def test_case_and_width_make_no_second_person() -> None:
    assert same_person("Ann", "\uff41nn")
    assert not same_person("Ann", "Anna")


def test_people_and_approvals_survive_json() -> None:
    rules = {"rules": [{"tools": ["pay"], "arguments": {"amount": {"maximum": 5}, "to": False}}]}
    approvals = policy(rules).approvals
    assert Approvals.model_validate_json(approvals.model_dump_json()) == approvals
    assert People.model_validate_json(PEOPLE.model_dump_json()) == PEOPLE


@pytest.mark.parametrize(
    ("state", "begins_step", "done", "waits"),
    [("act", True, 4, True), ("act", True, 0, False), ("act", False, 4, False), ("pay", False, 1, True)],
)
def test_a_run_waits_every_n_steps_and_before_states(
    state: str, begins_step: bool, done: int, waits: bool
) -> None:
    people = People(interrupt_every=2, interrupt_states=("pay",))
    assert people.interrupts_before(state, begins_step=begins_step, steps_done=done) is waits
