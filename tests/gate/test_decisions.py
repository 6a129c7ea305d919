"""Which decisions and commands count."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gate.gatekit import (
    ORIGIN,
    PEOPLE,
    RUN,
    ask,
    ask_topic,
    carried,
    requests,
    say,
    signed,
    signed_command,
)
from workflows.gate.decisions import CommandGate, Refused, signature_fits, signed_content
from workflows.gate.requests import Requests
from workflows.gate.texts import Topic, limit
from workflows.people import Command, Decision

LARGE = {"arguments": {"amount": {"minimum": 100, "maximum": 999}}, "request": {"group": "boss"}}
HUGE = {"arguments": {"amount": {"minimum": 1000}}, "request": {"group": "team", "quorum": 2}}


def refusal(at: Requests, decision: Decision, now: float = 1) -> str:
    """Why it does not count; nothing changes."""
    before = at.dump()
    with pytest.raises(Refused) as check:
        at.check(decision, now)
    with pytest.raises(Refused) as decide:
        at.decide(decision, now)
    assert at.dump() == before
    assert decide.value.reason == check.value.reason
    return check.value.reason


@pytest.mark.parametrize(
    ("group", "verb", "fields", "culprit"),
    [
        (None, "approve", {"request": "r9"}, "r9"),
        (None, "approve", {"digest": "0" * 32}, f"names {'0' * 32}: it is mistyped, or the request changed"),
        (None, "approve", {"digest": ""}, "names none: it is mistyped"),
        (None, "answer", {"text": "x"}, "answer"),
        ("team", "approve", {"by": "eve"}, "eve"),
        ("team", "approve", {"by": "Ann"}, "Ann"),
        ("team", "approve", {"by": ""}, "by"),
        ("two", "approve", {"by": ""}, "by"),
        (None, "approve", {"arguments": {"amount": 1}}, "arguments"),
        (None, "approve", {"amounts": {"cost_usd": 1}}, "amounts"),
        (None, "reject", {"standing_approval": {}}, "standing_approval"),
        (None, "approve", {"standing_approval": {"arguments": {"amout": True}}}, "amout"),
        (None, "approve", {"standing_approval": {"arguments": {"amount": {"max": 1}}}}, "max"),
        (None, "edit", {}, "arguments"),
        (None, "edit", {"arguments": {"amount": "x"}}, "amount"),
        (None, "edit", {"arguments": {"amount": 500}}, "boss"),
        ("team", "edit", {"arguments": {"amount": 5000}}, "2 of team"),
    ],
)
def test_a_decision_that_breaks_a_rule_is_refused(
    group: str | None, verb: str, fields: Any, culprit: str
) -> None:
    at = requests(group, {"rules": [LARGE, HUGE]})
    assert culprit in refusal(at, say(ask(at), verb, **fields))


@pytest.mark.parametrize(
    ("amounts", "culprit"),
    [
        ({}, "amounts"),
        ({"tokens": 5}, "tokens"),
        ({"cost_usd": 0}, "above 0"),
        ({"cost_usd": 1e-12}, "raise"),
    ],
)
def test_a_top_up_must_raise_the_limit(amounts: Any, culprit: str) -> None:
    at = requests()
    assert culprit in refusal(at, say(ask_topic(at, limit("cost_usd", 9e6, 9e6)), "topup", amounts=amounts))


def test_an_answer_needs_words() -> None:
    at = requests()
    request = ask_topic(at, Topic(kind="question", text="?", options=("answer",)))
    assert "text" in refusal(at, say(request, "answer", text=" \n"))


def test_closed_request_says_who_closed_it_and_what_is_open() -> None:
    at = requests()
    request, other = ask(at), ask(at, "act#2:1")
    at.decide(say(request), 10)
    reason = refusal(at, say(request, "reject", by="bob"), 100)
    assert all(part in reason for part in ("approved", "ann", "90 s ago", other.digest))


def test_a_repeat_is_harmless_in_every_execution() -> None:
    at = requests("two")
    request = ask(at)
    decision = say(request, id="d1")
    first = at.decide(decision, 1)
    at = carried(at)
    assert at.decide(decision, 2) == first
    assert at.decide(say(request, by="bob", id="d1"), 3).outcome == "approved", "the id is another person's"
    assert at.decide(decision, 4).outcome == "approved"
    assert "d1" in refusal(at, say(request, "reject", id="d1"))


def test_an_id_of_a_refused_decision_is_free() -> None:
    at = requests()
    request = ask(at)
    refusal(at, say(request, digest="x", id="d1"))
    assert at.decide(say(request, id="d1"), 1).outcome == "approved"


def test_one_person_has_one_vote_in_any_spelling() -> None:
    at = requests(quorum=2)
    request = ask(at)
    at.decide(say(request, by="Ann"), 1)
    assert "already" in refusal(at, say(request, "edit", by="\uff41nn", arguments={"amount": 1}))


def test_disagreement_ends_with_a_refusal() -> None:
    at = requests(quorum=90)
    request = ask(at)
    for number in range(100):
        at.decide(say(request, "edit", by=f"p{number}", arguments={"amount": number}), 1)
    assert "100" in refusal(at, say(request, by="late"))
    assert at.decide(say(request, "reject", by="late"), 1).outcome == "rejected"


def test_a_signed_group_needs_the_senders_signature_and_an_id() -> None:
    at = requests("signed")
    request = ask(at)
    good = signed(say(request))
    for wrong in (
        say(request, id="d1"),
        signed(say(request), key="bob"),
        signed(say(request), run="run-2"),
        good.model_copy(update={"text": "changed"}),
        good.model_copy(update={"id": "other"}),
        good.model_copy(update={"signature": "junk"}),
    ):
        assert "sign" in refusal(at, wrong)
    decided = at.decide(good, 1)
    assert (decided.outcome, decided.verified) == ("approved", True)


CHANGES: dict[str, Any] = {
    "request": "r2", "digest": "e", "decision": "edit", "id": "i", "by": "bob", "text": "t", "step": 1,
    "arguments": {"a": 2**60}, "amounts": {"a": 1.0}, "standing_approval": {"same": True}, "command": "abort",
    "at_once": True, "compensate": True, "limits": {"a": None}, "made_at": 5.5,
}  # fmt: skip


@pytest.mark.parametrize(
    "message", [Decision(request="r1", digest="d", decision="topup"), Command(command="pause")]
)
def test_every_field_of_a_message_is_signed(message: Any) -> None:
    fields = set(type(message).model_fields) - {"signature"}
    changed = [type(message).model_validate({**message.model_dump(), f: CHANGES[f]}) for f in fields]
    contents = {signed_content(RUN, one, ORIGIN) for one in (message, *changed)}
    contents |= {signed_content("run-2", message, ORIGIN)}
    assert len(contents) == len(fields) + 2


@pytest.mark.parametrize(("key", "signature"), [("", ""), ("A" * 44, "A" * 88), ("é", "é"), ("AAAA", "====")])
def test_junk_is_not_a_signature(key: str, signature: str) -> None:
    assert not signature_fits({"ann": key}, "ann", b"x", signature)


# -- commands --------------------


def commands(group: str | None = None, **more: Any) -> CommandGate:
    people = PEOPLE.model_copy(update={"commands": group})
    return CommandGate(people, RUN, ORIGIN, **more)


PAUSE = Command(command="pause", by="ann", id="c1")


@pytest.mark.parametrize(
    ("group", "command", "culprit"),
    [
        ("team", Command(command="pause", by="eve"), "eve"),
        ("team", Command(command="pause"), "by"),
        (None, Command(command="limits", limits={"tokens": 1}), "people.commands"),
        (None, Command(command="rollback", step=1, compensate=True), "people.commands"),
        ("signed", PAUSE, "signed"),
        ("signed", signed_command(PAUSE, key="bob"), "signed"),
        ("signed", signed_command(PAUSE, origin="other"), "signed"),
        ("signed", signed_command(PAUSE, run="above"), "signed"),
        ("signed", signed_command(PAUSE.model_copy(update={"id": ""})), "id"),
    ],
)
def test_only_those_who_may_command_do(group: str | None, command: Command, culprit: str) -> None:
    at = commands(group)
    with pytest.raises(Refused) as caught:
        at.accept(command)
    assert culprit in caught.value.reason
    assert not at.is_repeat(command)


def test_anybody_may_command_where_nobody_is_named() -> None:
    assert commands().accept(Command(command="steer", text="hello")) == "somebody (claimed)"
    assert commands("signed").accept(signed_command(PAUSE)) == "ann (verified)"


def test_a_command_counts_once_and_a_repeat_hears_the_same() -> None:
    before = commands()
    before.accept(PAUSE)
    before.refuse(PAUSE)
    at = commands()
    at.load(before.dump())
    assert at.is_repeat(PAUSE)
    assert at.was_refused(PAUSE)
    other = PAUSE.model_copy(update={"command": "resume"})
    with pytest.raises(Refused):
        at.check(other)
    assert not at.was_refused(other)
    anonymous = PAUSE.model_copy(update={"id": ""})
    at.accept(anonymous)
    assert not at.is_repeat(anonymous)


@pytest.mark.parametrize(("group", "known"), [(None, False), ("signed", True)])
def test_only_unsigned_ids_are_forgotten(group: str | None, known: bool) -> None:
    at = commands(group)
    each = [PAUSE.model_copy(update={"id": str(n)}) for n in range(1001)]
    for command in each:
        signed_one = signed_command(command)
        at.accept(signed_one)
        at.refuse(signed_one)
    assert at.is_repeat(each[0]) is known
    assert (at.was_refused(each[0]), at.was_refused(each[1000])) == (known, True)


def test_signature_for_run_above_pauses_but_does_not_abort() -> None:
    at = commands("signed", parents=[("above", "o2")], old_ids=["old"])
    above = {"run": "above", "origin": "o2"}
    at.accept(signed_command(PAUSE, **above))
    for command in (Command(command="abort", by="ann", id="a"), PAUSE.model_copy(update={"id": "old"})):
        with pytest.raises(Refused):
            at.accept(signed_command(command, **above))
    assert at.signed_ids == ("old", "c1")


def test_edit_that_takes_too_long_to_judge_is_refused() -> None:
    rule = {"tools": ["pay"], "arguments": {"to": {"anyOf": [{"pattern": f"a{n}$"} for n in range(40)]}}}
    at = requests("team", {"rules": [rule]})
    request = ask(at)
    with pytest.raises(Refused, match="too much to check"):
        at.decide(say(request, "edit", arguments={"amount": 1, "to": "b" * 1_000_000}), 0)
