"""Whatever people send, in any order: a request closes once, by those who may, for what they saw."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.gate.gatekit import KEYS, ask, ask_topic, call, carried, requests, say, signed
from workflows.gate.decisions import Refused
from workflows.gate.requests import Requests
from workflows.gate.texts import Topic, limit
from workflows.people import Decision, Request, RequestsPage, StandingApproval

AMOUNTS = (1, 5, 5000)
LARGE = {"rules": [{"arguments": {"amount": {"exclusiveMinimum": 1000}}, "request": {"group": "boss"}}]}
CLOSING = {"Decided", "Expired", "Withdrawn"}

decisions = st.fixed_dictionaries(
    {
        "request": st.sampled_from(["r1", "r2", "r3", "r9"]),
        "digest_of": st.sampled_from(["r1", "r1", "r2", "r3"]),
        "decision": st.sampled_from(["approve", "approve", "approve", "reject", "edit", "abort", "topup"]),
        "by": st.sampled_from(["ann", "bob", "cy", "eve", ""]),
        "id": st.sampled_from(["", "", "d1", "d2"]),
        "arguments": st.sampled_from([None, None, {"amount": 1}, {"amount": 5000}, {"amount": "x"}]),
        "standing_approval": st.sampled_from([None, None, StandingApproval(), StandingApproval(same=True)]),
        "key": st.sampled_from(["own", "own", "own", "ann", "none"]),
    }
)
others = st.sampled_from([("time", 30), ("time", 100), ("carry", 0), ("ask", 0), ("withdraw", 0)])
scripts = st.lists(decisions | decisions | others, max_size=25)
groups = st.sampled_from(
    [
        {"group": None},
        {"group": None, "quorum": 2},
        {"group": "team", "deadline_seconds": 60, "warn_seconds": 20},
        {"group": "two"},
        {"group": "signed"},
        {
            "group": "signed_two",
            "deadline_seconds": 60,
            "at_deadline": "escalate",
            "escalate_to": ("signed", "two"),
        },
    ]
)


def decision_of(at: Requests, values: dict[str, Any]) -> Decision:
    """A decision that names one request, perhaps with another's digest, perhaps signed by somebody else."""
    values = dict(values)
    digest_of, key = values.pop("digest_of"), values.pop("key")
    digests = {one.id: one.digest for one in (*at.open_requests, *at.closed_requests)}
    decision = Decision(digest=digests.get(digest_of, ""), **values)
    signer = decision.by if key == "own" else key
    return signed(decision, key=signer) if signer in KEYS else decision


def played(
    group: dict[str, Any], script: list[Any], *, carry: bool = True
) -> tuple[Requests, list[tuple[Decision, str]]]:
    """The requests after the script, and each decision with its answer."""
    at, now, answers = requests(approvals=LARGE, **group), 0.0, []
    for number, amount in enumerate(AMOUNTS):
        ask(at, f"act#{number}", amount=amount)
    for step in script:
        now += 1
        if isinstance(step, dict):
            decision = decision_of(at, step)
            try:
                answers.append((decision, at.decide(decision, now).model_dump_json()))
            except Refused as refused:
                answers.append((decision, refused.reason))
        elif step[0] == "carry":
            at = carried(at) if carry else at
        else:
            now += step[1]
            happen(at, step[0], now)
    return at, answers


def happen(at: Requests, name: str, now: float) -> None:
    """Time passes, the calls are asked about again, or the run is rolled back."""
    if name == "time":
        at.keep_deadlines(now)
    elif name == "withdraw":
        at.withdraw(now, "a rollback")
    for number, amount in enumerate(AMOUNTS) if name == "ask" else ():
        if at.approval_for(call(amount=amount), spent_usd=0)[0]:
            ask(at, f"act#{number}", now=now, amount=amount)


@settings(deadline=None)
@given(groups, scripts)
def test_a_request_closes_once_by_those_who_may(group: dict[str, Any], script: list[Any]) -> None:
    at, answers = played(group, script)
    sent = [decision for decision, _ in answers]
    closings = [event.request for event in at.take_events() if event.event in CLOSING]
    assert sorted(closings, key=lambda one: one.id) == sorted(at.closed_requests, key=lambda one: one.id)
    for request in at.closed_requests:
        check_closed(request, sent)
    for request in at.open_requests:
        assert request.deciding_vote is None
        assert len({vote.by for vote in request.votes}) == len(request.votes)
        assert not any(vote.verb in ("reject", "abort") for vote in request.votes)
        assert sum(vote.verb == "approve" for vote in request.votes) < request.quorum


def check_closed(request: Request, sent: list[Decision]) -> None:
    """Enough different people who may have sent a decision with the digest of this request."""
    if request.deciding_vote is None:
        assert request.outcome in ("expired", "withdrawn")
        return
    verb = request.deciding_vote.verb
    voters = {vote.by: vote for vote in request.votes if vote.verb == verb}
    assert len(voters) >= (1 if verb in ("reject", "abort") else request.quorum)
    for name, vote in voters.items():
        assert not request.approvers or name in request.approvers
        assert vote.verified == request.signed
        key = (request.id, request.digest, name, verb)
        assert any((one.request, one.digest, one.by, one.decision) == key for one in sent)
    if verb == "edit" and request.group != "boss":
        assert request.deciding_vote.arguments != {"amount": 5000}


@settings(deadline=None)
@given(groups, scripts)
def test_a_chain_of_executions_decides_as_one(group: dict[str, Any], script: list[Any]) -> None:
    one, answers = played(group, script, carry=False)
    other, other_answers = played(group, script)
    assert other.dump() == one.dump()
    assert other_answers == answers


@settings(deadline=None)
@given(groups, st.lists(decisions, max_size=15))
def test_the_validator_says_what_the_handler_does(group: dict[str, Any], script: list[Any]) -> None:
    """And what counted is harmless the second time, with the same answer."""
    at, _ = played(group, [])
    for values in script:
        decision, before = decision_of(at, values), at.dump()
        try:
            at.check(decision, 1)
        except Refused:
            assert at.dump() == before
            continue
        assert at.dump() == before
        first = at.decide(decision, 1)
        after = at.dump()
        assert at.decide(decision, 2) == first
        assert at.dump() == after


@settings(deadline=None)
@given(groups, scripts, st.sampled_from(AMOUNTS))
def test_no_call_passes_that_nobody_approved(group: dict[str, Any], script: list[Any], amount: int) -> None:
    at, _ = played(group, script)
    required, by, _ = at.approval_for(call(amount=amount), spent_usd=0)
    assert bool(by) is (required is None)
    granting = [
        one
        for one in at.closed_requests
        if one.outcome == "approved" and one.deciding_vote and one.deciding_vote.standing_approval
    ]
    assert not by or any(
        (one.arguments == {"amount": 5000}) is (amount == 5000)
        and (one.arguments == {"amount": amount} or one.deciding_vote.standing_approval == StandingApproval())  # type: ignore[union-attr]  # all of these have one
        for one in granting
    )


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    st.sampled_from(["approve", "edit", "answer", "topup", "perhaps"]),
    st.fixed_dictionaries(
        {},
        optional={
            "by": anything,
            "id": anything,
            "text": anything,
            "arguments": st.dictionaries(st.sampled_from(["amount", "to", "x"]), anything),
            "amounts": st.dictionaries(st.sampled_from(["cost_usd", "x"]), st.floats() | anything),
            "standing_approval": st.fixed_dictionaries(
                {"arguments": st.dictionaries(st.sampled_from(["amount", "x"]), st.booleans() | anything)}
            ),
            "signature": anything,
        },
    ),
    st.sampled_from([None, "team", "signed"]),
)
def test_anything_is_refused_or_can_be_carried(verb: Any, values: dict[str, Any], group: str | None) -> None:
    at = requests(group)
    question = Topic(kind="question", text="?", options=("answer", "abort"))
    for request in (ask(at), ask_topic(at, question), ask_topic(at, limit("cost_usd", 1, 1))):
        try:
            at.decide(say(request, verb, **values), 1)
        except (Refused, ValidationError):
            continue
    page = RequestsPage(open=at.open_requests, closed=at.closed_requests, next=0, total=0)
    assert RequestsPage.model_validate_json(page.model_dump_json()) == page
    assert carried(at).dump() == at.dump() == json.loads(json.dumps(at.dump()))
