"""A request is opened once, passed on, and closed once."""

from __future__ import annotations

from typing import Any

import pytest

from activities.contracts import EffectFailed
from tests.gate.gatekit import (
    RUN,
    ask,
    ask_topic,
    call,
    carried,
    events,
    policy,
    request_place,
    requests,
    say,
)
from workflows.gate.decisions import Refused
from workflows.gate.requests import Requests
from workflows.gate.texts import (
    Topic,
    approval,
    decided_by,
    interrupt,
    limit,
    outcome_unknown,
    rejection,
    result_without_call,
    trouble,
)
from workflows.people import Verb

FAILURE = EffectFailed(error="fatal", type="HTTP401", message="bad key")
TOPICS = {
    "approval": approval(call(amount=5)),
    "question": Topic(kind="question", text="Which?", options=("resume", "answer", "abort")),
    "interrupt": interrupt("act", 3, "thought"),
    "limit": limit("cost_usd", 2, 2.5),
    "outcome": outcome_unknown(call(amount=5), "its worker stopped"),
    "trouble": trouble(FAILURE),
}


@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
def test_each_kind_says_what_it_is_about(topic: Topic) -> None:
    about = {"approval": "pay", "question": "Which?", "interrupt": "act", "limit": "cost_usd 2 of 2.5"}
    text = {**about, "outcome": "pay(amount=5)", "trouble": "HTTP401"}[topic.kind]
    request = ask_topic(requests("team", deadline_seconds=60, warn_seconds=10), topic, now=100)
    assert text in request.text
    assert (request.id, request.run, request.state, request.step) == ("r1", RUN, "act", 1)
    assert (request.kind, request.options) == (topic.kind, topic.options)
    assert (request.group, request.approvers, request.quorum) == ("team", ("ann", "bob"), 1)
    assert (request.created, request.warn_at, request.deadline) == (100, 150, 160)


def test_the_same_is_asked_once() -> None:
    at = requests()
    first = ask(at)
    at.decide(say(first), 1)
    assert ask(at).outcome == "approved"
    others = [ask(at, amount=6), ask(at, "act#2:1"), ask_topic(at, TOPICS["outcome"], "act#1:1")]
    assert [one.id for one in others] == ["r2", "r3", "r4"]
    assert len({first.digest, *(one.digest for one in others)}) == 4


def test_decision_is_bound_to_the_words_of_a_question() -> None:
    """The worker that shows it may not be the one that goes on."""
    shown = ask_topic(requests(), TOPICS["question"])
    at = requests()
    ask_topic(at, TOPICS["question"].model_copy(update={"text": "Which other?"}))
    with pytest.raises(Refused, match="digest"):
        at.decide(say(shown, "answer", text="this one"), 1)


def test_a_withdrawn_request_is_asked_again() -> None:
    at = requests()
    before, limited = ask(at), ask_topic(at, TOPICS["limit"])
    at.withdraw(1, "the limits changed", kind="limit")
    assert [one.id for one in at.open_requests] == [before.id]
    at.withdraw(2, "rollback")
    assert ask(at).id == "r3"
    assert [one.id for one in at.closed_requests] == [limited.id, before.id]


@pytest.mark.parametrize(
    ("topic", "verb", "fields", "outcome"),
    [
        ("approval", "approve", {}, "approved"),
        ("approval", "reject", {"text": "no"}, "rejected"),
        ("approval", "edit", {"arguments": {"amount": "7"}}, "edited"),
        ("question", "answer", {"text": "this one"}, "answered"),
        ("interrupt", "resume", {}, "resumed"),
        ("limit", "topup", {"amounts": {"cost_usd": 5}}, "topped_up"),
        ("limit", "finish", {}, "finished"),
        ("outcome", "answer", {"text": "it did"}, "answered"),
        ("trouble", "retry", {}, "retried"),
        ("trouble", "abort", {}, "aborted"),
    ],
)
def test_each_verb_closes_with_its_own_outcome(topic: str, verb: Verb, fields: Any, outcome: str) -> None:
    at = requests("team")
    request = ask_topic(at, TOPICS[topic])
    decided = at.decide(say(request, verb, **fields), 5)
    assert (decided.outcome, decided.by, decided.verified, decided.at) == (outcome, ("ann",), False, 5)
    closed = at.get(request.id)
    assert closed.deciding_vote is not None
    assert closed.deciding_vote.verb == verb
    assert decided_by(closed) == "ann (claimed)"
    assert events(at) == ["Requested", "Decided"]
    if verb == "edit":
        assert closed.deciding_vote.arguments == {"amount": 7}, "as the tool takes it"
        assert closed.deciding_vote.digest != request.digest


def test_unchanged_arguments_are_no_edit() -> None:
    at = requests()
    request = ask(at, amount=5)
    for same in ({"amount": 5}, {"amount": "5.0"}):
        with pytest.raises(Refused, match=r"arguments that the model gave.*approve"):
            at.check(say(request, "edit", arguments=same), 1)
    at.check(say(request, "edit", arguments={"amount": 6}), 1)


def test_unchanged_edit_counts_once_it_is_in_the_run() -> None:
    """A plain signal is asked nothing before: a history may have such an edit, and is replayed."""
    at = requests()
    request = ask(at, amount=5)
    assert at.decide(say(request, "edit", arguments={"amount": 5}), 1).outcome == "edited"


def test_a_rejection_reaches_the_model_with_its_comment() -> None:
    at = requests()
    request = ask(at)
    at.decide(say(request, "reject", text="too much"), 1)
    result = result_without_call(call(), "rejected", rejection(at.get(request.id)))
    assert (result.tool, result.error, result.attempts) == ("pay", "rejected", 0)
    assert "too much" in result.output


@pytest.mark.parametrize("verb", ["reject", "abort"])
def test_one_person_is_enough_to_refuse(verb: Verb) -> None:
    at = requests("two")
    request = ask(at)
    assert at.decide(say(request), 1).outcome == "open"
    assert at.decide(say(request, verb, "bob"), 2).by == ("bob",)


@pytest.mark.parametrize(
    ("topic", "one", "other", "agree"),
    [
        ("approval", ("approve", {"text": "a"}), ("approve", {"text": "b"}), True),
        ("approval", ("approve", {}), ("edit", {"arguments": {"amount": 6}}), False),
        ("approval", ("edit", {"arguments": {"amount": 6}}), ("edit", {"arguments": {"amount": "6"}}), True),
        ("approval", ("edit", {"arguments": {"amount": 6}}), ("edit", {"arguments": {"amount": 7}}), False),
        ("question", ("answer", {"text": "a"}), ("answer", {"text": "b"}), False),
        ("limit", ("topup", {"amounts": {"cost_usd": 1}}), ("topup", {"amounts": {"cost_usd": 1.0}}), True),
        ("limit", ("topup", {"amounts": {"cost_usd": 1}}), ("topup", {"amounts": {"cost_usd": 2}}), False),
    ],
)
def test_a_quorum_must_decide_the_same(topic: str, one: Any, other: Any, agree: bool) -> None:
    at = requests("two")
    request = ask_topic(at, TOPICS[topic])
    at.decide(say(request, one[0], **one[1]), 1)
    decided = at.decide(say(request, other[0], "bob", **other[1]), 2)
    assert (decided.outcome != "open") is agree
    assert (decided.votes, decided.needed) == (2 if agree else 1, 2)


@pytest.mark.parametrize("at_deadline", ["approve", "reject", "abort"])
def test_nobody_has_decided_an_expired_request(at_deadline: str) -> None:
    at = requests(deadline_seconds=60, warn_seconds=10, at_deadline=at_deadline)
    request = ask(at, now=100)
    assert at.next_deadline == 150
    at.keep_deadlines(155)
    at.keep_deadlines(156)
    assert events(at) == ["Requested", "Warned"]
    assert at.next_deadline == 160
    at.keep_deadlines(160)
    closed = at.get(request.id)
    assert (closed.outcome, closed.deciding_vote, decided_by(closed)) == ("expired", None, "deadline")
    assert [one.at_deadline for one in at.decisions()] == [at_deadline]
    assert events(at) == ["Expired"]


LATE = "was to be decided before 1970-01-01 00:02:40 UTC"
"""How the refusal of a late decision begins, for a request with the deadline 160."""


@pytest.mark.parametrize(
    ("heard", "made_at", "verb", "refusal"),
    [
        pytest.param(159, None, "approve", "", id="heard in time, without its time"),
        pytest.param(159, 500, "approve", "", id="heard in time, from a clock that is ahead"),
        pytest.param(159, 5, "approve", "", id="heard in time, from a clock that is behind"),
        pytest.param(1000, 159.5, "approve", "", id="made in time, heard late"),
        pytest.param(1000, 160, "approve", rf"{LATE}; this decision was made 0\.0 s later", id="made late"),
        pytest.param(
            1000, 163.2, "approve", rf"{LATE}; this decision was made 3\.2 s later", id="much later"
        ),
        pytest.param(1000, 163.2, "reject", "", id="rejected late"),
        pytest.param(1000, 99, "approve", r"1\.0 s before r1 was opened: set the clock", id="made too early"),
        pytest.param(
            1000, None, "approve", rf"{LATE}; .* does not say when .*`made_at`", id="without its time"
        ),
        pytest.param(1000, None, "edit", rf"{LATE}; .* does not say when .*`made_at`", id="edited, no time"),
        pytest.param(1000, None, "reject", "", id="rejected without its time"),
        pytest.param(1000, None, "abort", "", id="aborted without its time"),
    ],
)
def test_what_was_decided_in_time_counts_whenever_it_is_heard(
    heard: float, made_at: float | None, verb: str, refusal: str
) -> None:
    at = requests(deadline_seconds=60)
    decision = say(
        ask(at, now=100), verb, made_at=made_at, arguments={"amount": 1} if verb == "edit" else None
    )
    if not refusal:
        assert at.decide(decision, heard).outcome != "open"
        return
    with pytest.raises(Refused, match=refusal):
        at.decide(decision, heard)
    assert at.get("r1").is_open


def test_same_decision_at_another_time_is_a_repeat() -> None:
    at = requests(deadline_seconds=60)
    first = at.decide(say(ask(at), id="d1", made_at=1), 2)
    assert at.decide(say(at.get("r1"), id="d1", made_at=3), 4) == first


def test_each_group_has_the_whole_time_and_its_own_digest() -> None:
    at = requests(
        "two", deadline_seconds=60, warn_seconds=10, at_deadline="escalate", escalate_to=("boss", "two")
    )
    first = ask(at)
    at.decide(say(first), 1)
    at.keep_deadlines(60)
    second = at.get(first.id)
    assert (second.group, second.votes, second.deadline, second.warn_at) == ("boss", (), 120, 110)
    at = carried(at)
    at.keep_deadlines(120)
    third = at.get(first.id)
    assert (third.group, third.quorum, third.at_deadline) == ("two", 2, "reject")
    assert len({first.digest, second.digest, third.digest}) == 3
    at.decide(say(third), 121)
    assert at.decide(say(third, by="bob"), 122).outcome == "approved"
    assert ask(at).id == first.id, "the call is still the one that was asked about"
    assert events(at) == ["Requested", "Voted", "Escalated", "Escalated", "Voted", "Decided"]


def test_events_have_facts_but_no_long_arguments() -> None:
    at = requests()
    at.decide(say(ask(at, to="x" * 5000, amount=5), standing_approval={"same": True}), 1)
    asked, decided = at.take_events()
    assert (asked.by, asked.moment, decided.by, decided.moment) == (
        "kernel",
        "opened",
        "ann (claimed)",
        "closed",
    )
    assert asked.about["rule"] == "effects.unsafe"
    assert decided.about["standing_approval"] == {"same": True}
    assert decided.about["asked"] == asked.about["digest"]
    assert "arguments" not in asked.about


def test_old_requests_go_but_none_of_the_newest_step() -> None:
    at = requests()
    for number in range(105):
        topic = Topic(
            kind="approval", text="?", options=("approve",), tool="pay", arguments={"to": "x" * 3000}
        )
        request = at.open(topic, request_place(f"act#{number}", step=number // 103), now=number)
        at.decide(say(request), number)
    kept = at.closed_requests
    assert (len(kept), kept[0].id) == (102, "r4")
    assert [one.arguments is None for one in kept[-3:]] == [True, False, False]
    assert len(at.decisions()) == 100


def test_a_policy_that_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="ghosts"):
        Requests(policy({"rules": [{"request": {"group": "ghosts"}}]}), workflow_id=RUN, origin="o")
    with pytest.raises(ValueError, match="opened"):
        Requests.load({"opened": "many"}, policy(), workflow_id=RUN, origin="o")
