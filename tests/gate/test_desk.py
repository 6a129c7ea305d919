"""Requests are opened once, kept, carried on, and found again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from tests.gate.house import PEOPLE, RUN, again, ask, ask_of, call, desk, events, say
from workflows.gate.desk import CLOSED, Desk
from workflows.people import Approvals, Asking, Remember, Request


def test_a_request_says_all_that_a_person_needs() -> None:
    at = desk("two", deadline_seconds=60, warn_seconds=20)
    request = ask(at, now=100)
    assert request.model_dump(exclude={"digest"}) == {
        **{"id": "r1", "kind": "approval", "run": RUN, "machine": "react", "state": "act", "step": 1},
        **{"place": "act#1:1", "text": "May it pay?", "tool": "pay", "arguments": {"amount": 5}},
        **{"because": "effects.unsafe", "options": ("approve", "reject", "edit", "abort")},
        **{"created": 100, "deadline": 160, "at_deadline": "reject", "warn_at": 140, "escalate_to": ()},
        **{"group": "two", "approvers": ("ann", "bob", "cy"), "signed": False, "quorum": 2},
        **{"votes": (), "outcome": "open", "closed": None, "settled": None},
    }
    assert len(request.digest) == 32
    assert (at.open, at.closed, at.get("r1")) == ((request,), (), request)
    told = at.told[0]
    assert (told.event, told.by, told.reason, told.moment) == ("Requested", "kernel", "May it pay?", "opened")
    assert told.request == request


def test_the_same_is_not_asked_twice_also_when_it_was_decided_or_has_expired() -> None:
    at = desk("team", deadline_seconds=60)
    first = ask(at)
    assert ask(at, now=5) == first
    at.decide(say(first, "reject"), 6)
    assert ask(at, now=7) == at.get("r1")
    assert ask(again(at), now=7) == at.get("r1")
    other = ask(at, "act#1:2", now=8)
    at.due(68)
    assert ask(at, "act#1:2", now=70).id == other.id
    assert events(at) == ["Requested", "Decided", "Requested", "Expired"]


@pytest.mark.parametrize(
    "change",
    [{"place": "act#2"}, {"kind": "limit"}, {"tool": "send"}, {"arguments": {"x": 1}}, {"arguments": None}],
)
def test_another_place_kind_tool_or_argument_is_another_request(change: dict[str, Any]) -> None:
    at = desk()
    what: dict[str, Any] = {"kind": "trouble", "place": "act#1", "tool": "pay", "arguments": {}}
    requests = [ask_of(at, each.pop("kind"), "abort", **each) for each in (dict(what), {**what, **change})]
    assert [one.id for one in requests] == ["r1", "r2"]
    assert requests[0].digest != requests[1].digest


def test_what_was_withdrawn_is_asked_anew_and_the_old_decision_does_not_count_for_it() -> None:
    at = desk("team")
    first = ask(at)
    at.withdraw(1, "a rollback")
    second = ask(at, now=2)
    assert (second.id, second.digest, second.outcome) == ("r2", first.digest, "open")
    assert ask(at, now=3) == second
    at.decide(say(second), 4)
    assert ask(at, now=5).outcome == "approved"


def test_a_request_with_an_option_that_there_is_not_is_refused() -> None:
    at = desk()
    with pytest.raises(ValidationError, match="options"):
        ask_of(at, "question", "perhaps")
    assert at.open == ()
    assert ask_of(at, "question", "answer").id == "r1"


def test_a_group_that_there_is_not_cannot_be_asked() -> None:
    at = desk()
    with pytest.raises(ValueError, match="there is no group 'nobody'"):
        ask_of(at, "question", "answer", asking=Asking(group="nobody"))
    assert at.dump() == desk().dump()


def test_the_next_run_of_the_chain_knows_what_this_one_knew() -> None:
    at = desk("two", Approvals.model_validate({"tools": {"send": "first_time"}}), deadline_seconds=60)
    for number in range(3):
        ask(at, f"act#{number}")
    at.decide(say(at.get("r1"), id="d-1", remember=Remember(same=True)), 1)
    at.decide(say(at.get("r1"), by="bob", remember=Remember(same=True)), 1)
    at.decide(say(at.get("r2")), 2)
    later = again(at)
    assert json.loads(json.dumps(at.dump())) == at.dump() == later.dump()
    assert (later.open, later.closed, later.decided(), later.told) == (
        at.open,
        at.closed,
        at.decided(),
        at.told,
    )
    assert later.asks(call(amount=5), spent_usd=0) is None
    assert ask(later, "act#9", amount=6).id == "r4"
    assert later.decide(say(at.get("r2"), by="cy"), 3).by == ("ann", "cy")


def test_what_is_no_dump_of_a_desk_is_refused() -> None:
    at = desk()
    with pytest.raises(ValueError, match="tickets"):
        type(at).load({"tickets": [{}]}, PEOPLE, Approvals(), workflow_id="w", origin="o", specs={})
    empty = type(at).load({}, PEOPLE, Approvals(), workflow_id="w", origin="o", specs={})
    assert empty.dump() == at.dump()


def later(at: Desk, step: int) -> Request:
    """A request of another step."""
    return at.ask(
        "trouble", "p", now=step, text="?", options=("abort",), machine="react", state="s", step=step,
        arguments={"time": step},
    )  # fmt: skip


def test_old_closed_requests_are_forgotten_but_none_of_the_step_at_hand() -> None:
    at = desk()
    for number in range(CLOSED + 20):
        at.decide(say(ask(at, f"act#1:{number}")), number)
    assert len(at.closed) == CLOSED + 20, "calls of one effect may wait for each other"
    assert [one.request for one in at.decided()] == [f"r{number}" for number in range(21, CLOSED + 21)]
    waiting = ask_of(at, "question", "answer", place="old")
    for step in range(500, 505):
        at.decide(say(later(at, step), "abort"), step)
    assert len(at.closed) == CLOSED + 1, "those of past steps, and the one of the step at hand"
    assert at.closed[0].id == "r25"
    assert at.get(waiting.id).outcome == "open", "an open one is never forgotten"
    with pytest.raises(KeyError):
        at.get("r24")


def test_long_arguments_are_kept_as_long_as_the_step_is_at_hand() -> None:
    """Carried on a hundred times, they would be most of what a run hands to the next one."""
    at = desk()
    long, short = ask(at, "act#1:1", amount=5, to="x" * 3000), ask(at, "act#1:2", amount=6)
    edited = {"amount": 7, "to": "y" * 3000}
    decision = say(long, "edit", arguments=edited)
    first = at.decide(decision, 1)
    at.decide(say(short), 1)
    ask(at, "act#1:3")
    kept = at.get("r1").settled
    assert kept is not None
    assert kept.arguments == edited
    later(at, 2)
    past = at.get("r1")
    assert past.settled is not None
    assert (past.arguments, past.settled.arguments, past.votes[0].arguments) == (None, None, None)
    assert (past.digest, past.settled.digest, at.decided()[0]) == (long.digest, first.digest, first)
    assert (at.get("r2").arguments, at.get("r3").arguments) == ({"amount": 6}, {"amount": 5})
    assert at.decide(decision, 3) == first


def test_closed_requests_are_in_the_order_in_which_they_were_closed() -> None:
    at = desk()
    requests = [ask(at, f"act#1:{number}") for number in range(3)]
    for moment, number in enumerate((2, 0, 1)):
        at.decide(say(requests[number]), moment)
    assert [one.request for one in at.decided()] == ["r3", "r1", "r2"]
