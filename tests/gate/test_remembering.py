"""Approvals given beforehand: for one tool, such arguments, and the group that said so."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.gate.house import again, ask, ask_of, call, desk, events, say, signed
from workflows.gate.desk import Desk
from workflows.gate.ticket import Refused
from workflows.people import Approvals, Remember, Verb

BELOW = {"arguments": {"amount": {"below": 10}}}


def remember(at: Desk, what: dict[str, Any], *by: str, verb: Verb = "approve", **arguments: Any) -> None:
    """People approve a call and say what of later ones."""
    request = ask(at, **arguments)
    for name in by or ("ann",):
        more = {"remember": Remember.model_validate(what)} if verb == "approve" else {}
        at.decide(say(request, verb, by=name, **more), 1)


def asked(at: Desk, tool: str = "pay", **arguments: Any) -> bool:
    """Whether such a call is put to people."""
    return at.asks(call(tool, **arguments), spent_usd=0) is not None


def test_later_calls_that_fit_are_not_asked_about_and_the_log_can_say_who_let_them() -> None:
    at = desk("team")
    remember(at, BELOW, amount=5)
    assert not asked(at, amount=9, to="whoever")
    assert at.remembered_by(call(amount=9), spent_usd=0) == ("ann (claimed)",)
    assert asked(at, amount=10)
    assert at.remembered_by(call(amount=10), spent_usd=0) == ()
    assert events(at) == ["Requested", "Decided"], "what is not asked is no request"


def test_a_plain_approval_is_for_one_call() -> None:
    at = desk("team")
    at.decide(say(ask(at)), 1)
    assert asked(at, amount=5)


def test_without_conditions_the_arguments_may_be_anything() -> None:
    at = desk("team")
    remember(at, {})
    assert not asked(at, amount=5000)


def test_it_is_for_the_tool_alone() -> None:
    at = desk("team", Approvals.model_validate({"effects": {"keyed": "always"}}))
    remember(at, {})
    assert asked(at, "send", amount=5)


def test_an_argument_that_cannot_be_judged_is_not_let_pass() -> None:
    at = desk("team")
    remember(at, BELOW, amount=5)
    assert asked(at, amount="nine")
    assert asked(at, amount=9, betrag=50)
    assert asked(at, to="x")


def test_equal_arguments_are_those_and_no_others() -> None:
    """`equals` on each says nothing of further arguments; `same` does."""
    at = desk("team")
    remember(at, {"arguments": {"amount": {"equals": 5}}}, amount=5)
    assert not asked(at, amount=5.0, to="eve")
    exact = desk("team")
    remember(exact, {"same": True}, amount=5)
    assert not asked(exact, amount=5)
    assert asked(exact, amount=5, to="eve")
    assert asked(exact, amount=6)
    assert asked(exact, amount=True)


def test_same_and_conditions_must_both_hold() -> None:
    at = desk("team")
    remember(at, {"same": True, **BELOW}, amount=50)
    assert asked(at, amount=50)


def test_it_does_not_speak_for_another_group_or_for_more_people() -> None:
    rules = [
        {"arguments": {"amount": {"above": 1000}}, "asking": {"group": "boss"}},
        {"arguments": {"amount": {"above": 100}}, "asking": {"group": "team", "quorum": 2}},
    ]
    at = desk("team", Approvals.model_validate({"rules": rules}))
    remember(at, {}, amount=5)
    assert not asked(at, amount=50)
    assert asked(at, amount=500)
    assert asked(at, amount=5000)
    remember(at, {}, "ann", "bob", amount=500)
    assert not asked(at, amount=500)
    assert asked(at, amount=5000)


def test_all_who_approve_must_have_said_so() -> None:
    at = desk("two")
    request = ask(at)
    at.decide(say(request, remember=Remember()), 1)
    at.decide(say(request, by="bob"), 1)
    assert at.get("r1").outcome == "approved"
    assert asked(at, amount=5)
    second = ask(at, "act#2")
    at.decide(say(second, remember=Remember()), 1)
    at.decide(say(second, by="bob", remember=Remember(same=True)), 1)
    assert asked(at, amount=5)
    third = ask(at, "act#3")
    at.decide(say(third, remember=Remember()), 1)
    assert asked(at, amount=5), "one of two is not enough"
    at.decide(say(third, by="bob", remember=Remember()), 1)
    assert at.remembered_by(call(amount=5), spent_usd=0) == ("ann (claimed)", "bob (claimed)")


def test_whom_an_unanswered_request_went_to_speaks_for_those_who_were_asked_first() -> None:
    up: dict[str, Any] = {"deadline_seconds": 60, "at_deadline": "escalate", "escalate_to": ("boss",)}
    at = desk("team", **up)
    ask(at)
    at.due(60)
    at.decide(say(at.get("r1"), by="eve", remember=Remember()), 61)
    assert not asked(at, amount=7)
    assert at.remembered_by(call(amount=7), spent_usd=0) == ("eve (claimed)",)


def test_an_expired_request_teaches_nothing() -> None:
    once = Approvals.model_validate({"tools": {"pay": "first_time"}})
    at = desk("team", once, deadline_seconds=60, at_deadline="approve")
    ask(at)
    at.due(60)
    assert asked(at, amount=5)


@pytest.mark.parametrize(("verb", "later"), [("approve", False), ("reject", True), ("edit", True)])
def test_first_time_is_over_when_a_person_approved_a_call_as_it_was(verb: Verb, later: bool) -> None:
    at = desk("team", Approvals.model_validate({"tools": {"pay": "first_time"}}))
    what: dict[str, Any] = {"arguments": {"amount": 1}} if verb == "edit" else {}
    at.decide(say(ask(at), verb, **what), 1)
    assert asked(at, amount=6) is later
    assert asked(again(at), amount=6) is later
    by = () if later else ("ann (claimed)",)
    assert at.remembered_by(call(amount=6), spent_usd=0) == by
    assert again(at).remembered_by(call(amount=6), spent_usd=0) == by


def test_who_had_signed_is_said_of_what_was_approved_beforehand() -> None:
    at = desk("signed")
    at.decide(signed(say(ask(at), remember=Remember())), 1)
    assert again(at).remembered_by(call(amount=6), spent_usd=0) == ("ann (verified)",)


def test_what_is_approved_twice_is_known_once() -> None:
    at = desk("team", Approvals.model_validate({"tools": {"pay": "first_time"}}))
    first, second = ask(at, "act#1:1"), ask(at, "act#1:2")
    at.decide(say(first), 1)
    at.decide(say(second), 1)
    assert at.dump()["approved"] == ["pay tools.pay"]


def test_only_the_approval_of_a_call_speaks_for_calls() -> None:
    at = desk("team")
    request = ask_of(at, "escalation", "approve", tool="pay", arguments={"amount": 5})
    with pytest.raises(Refused, match="`remember` goes with approve of a call"):
        at.decide(say(request, remember=Remember()), 1)
    at.decide(say(request), 1)
    assert at.dump()["approved"] == []


def test_names_that_nobody_gave_are_said_to_be_somebodys() -> None:
    at = desk()
    remember(at, {}, "")
    assert at.remembered_by(call(amount=5), spent_usd=0) == ("somebody (claimed)",)


def test_a_condition_that_cannot_be_read_is_refused_with_the_decision() -> None:
    with pytest.raises(ValidationError):
        say(ask(desk()), remember={"arguments": {"x": {"matches": "("}}})


MAYBE = {
    "rules": [{"arguments": {"amount": {"above": 100}}, "ask": "first_time"}],
    "tools": {"pay": "first_time"},
}


def test_a_call_that_only_may_fit_an_entry_is_no_first_time_of_it() -> None:
    at = desk("team", Approvals.model_validate(MAYBE))
    doubtful = ask(at, amount="lots")
    assert doubtful.because == "rules.0"
    at.decide(say(doubtful), 1)
    for knows in (at, again(at)):
        assert asked(knows, amount=500)
        assert asked(knows, amount="lots")
        assert asked(knows, amount=5), "nor of the entry behind it"
    at.decide(say(ask(at, "act#2", amount=500)), 1)
    assert not asked(at, amount=600)
    assert asked(at, amount="lots"), "what cannot be told asks always"
    assert asked(at, amount=5)


def test_who_is_asked_after_others_does_not_speak_for_calls_that_never_come_to_them() -> None:
    up = {"group": "team", "deadline_seconds": 60, "at_deadline": "escalate", "escalate_to": ["boss"]}
    rules = [
        {"arguments": {"amount": {"above": 1000}}, "asking": {"group": "team"}},
        {"arguments": {"amount": {"above": 500}}, "asking": {**up, "deadline_seconds": 5}},
        {"asking": up},
    ]
    at = desk(approvals=Approvals.model_validate({"rules": rules}))
    ask(at, amount=5)
    at.due(60)
    at.decide(say(at.get("r1"), by="eve", remember=Remember()), 61)
    for knows in (at, again(at)):
        assert not asked(knows, amount=6)
        assert not asked(knows, amount=600)
        assert asked(knows, amount=5000), "only team is ever asked about such a call"
    at.decide(say(ask(at, "act#2", now=70, amount=5000), remember=Remember()), 71)
    assert not asked(at, amount=5001)


@pytest.mark.parametrize("other", [True, 1.0, "1"])
def test_people_who_would_remember_different_things_remember_nothing(other: object) -> None:
    at = desk("two")
    request = ask(at)
    for name, value in (("ann", 1), ("bob", other)):
        wanted = Remember.model_validate({"arguments": {"amount": {"equals": value}}})
        at.decide(say(request, by=name, remember=wanted), 1)
    assert at.get("r1").outcome == "approved"
    assert asked(at, amount=1)


def test_what_was_approved_beforehand_lets_no_call_pass_of_which_nobody_knows_who_decides() -> None:
    rules = [
        {"arguments": {"amount": {"above": 1000}}, "asking": {"group": "boss"}},
        {"asking": {"group": "team"}},
    ]
    at = desk(approvals=Approvals.model_validate({"rules": rules}))
    remember(at, {}, amount=5)
    assert not asked(at, amount=6)
    doubtful = at.asks(call(amount="lots"), spent_usd=0)
    assert doubtful is not None
    assert doubtful.undecided
    assert at.remembered_by(call(amount="lots"), spent_usd=0) == ()


def test_who_wanted_something_else_is_not_named_and_does_not_stand_in_the_way() -> None:
    at = desk("two", Approvals.model_validate({"tools": {"pay": "first_time"}}))
    request = ask(at)
    at.decide(say(request, "edit", by="ann", arguments={"amount": 1}), 1)
    for name in ("bob", "cy"):
        at.decide(say(request, by=name, remember=Remember(same=True)), 1)
    by = ("bob (claimed)", "cy (claimed)")
    assert at.remembered_by(call(amount=9), spent_usd=0) == by, "the first time"
    plain = desk("two")
    request = ask(plain)
    plain.decide(say(request, "edit", by="ann", arguments={"amount": 1}), 1)
    for name in ("bob", "cy"):
        plain.decide(say(request, by=name, remember=Remember(same=True)), 1)
    assert plain.remembered_by(call(amount=5), spent_usd=0) == by
