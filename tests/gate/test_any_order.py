"""Whatever people send, in any order: requests close once, by those who may, for what they saw."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.gate.house import APPROVAL, KEYS, again, ask, ask_of, call, desk, say, signed
from workflows.gate.desk import Desk
from workflows.gate.ticket import Refused, named
from workflows.people import Approvals, Decision, Remember, Request, RequestsPage

GROUPS = (None, "team", "two", "signed", "signed_two", "boss")
CLOSING = {"Decided", "Expired", "Withdrawn"}
AMOUNTS = (1, 5, 5000)

decisions: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    request=st.sampled_from(["r1", "r2", "r3", "r9"]),
    of=st.sampled_from(["r1", "r1", "r2", "r3"]),
    decision=st.sampled_from([*APPROVAL, "approve", "approve", "topup", "answer"]),
    by=st.sampled_from(["ann", "bob", "cy", "eve", ""]),
    id=st.sampled_from(["", "", "d-1", "d-2", "d-3"]),
    text=st.sampled_from(["", "why"]),
    arguments=st.sampled_from([None, None, {"amount": 1}, {"amount": 5000}, {"amount": "x"}]),
    remember=st.sampled_from([None, None, Remember(), Remember(same=True)]),
    key=st.sampled_from(["own", "own", "own", "ann", "none"]),
)
steps = st.lists(
    st.one_of(
        decisions,
        decisions,
        decisions,
        st.sampled_from([("due", 30), ("due", 100), ("again", 0), ("ask", 0), ("ask", 1), ("ask", 2)]),
        st.just(("withdraw", 0)),
    ),
    max_size=25,
)
ways: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    group=st.sampled_from(GROUPS),
    more=st.sampled_from(
        [
            {},
            {"quorum": 2},
            {"deadline_seconds": 60, "warn_seconds": 20},
            {"deadline_seconds": 60, "at_deadline": "escalate", "escalate_to": ("signed_two", "team")},
        ]
    ),
)


def first_desk(way: dict[str, Any]) -> Desk:
    """A desk at which three calls are asked about, the largest of them put to eve."""
    more = dict(way["more"])
    if way["group"] == "boss":
        more.pop("quorum", None)
    rule = {"arguments": {"amount": {"above": 1000}}, "asking": {"group": "boss"}}
    return desk(way["group"], Approvals.model_validate({"rules": [rule]}), **more)


def ask_all(at: Desk, place: int, now: float) -> None:
    """Ask about the call at each place."""
    ask(at, f"act#{place}", now=now, amount=AMOUNTS[place])


def decision_of(at: Desk, values: dict[str, Any]) -> Decision:
    """A decision that names one request, perhaps with the digest of another, signed by somebody."""
    values = dict(values)
    of, key = values.pop("of"), values.pop("key")
    digests = {one.id: one.digest for one in (*at.open, *at.closed)}
    decision = Decision(digest=digests.get(of, ""), **values)
    signer = decision.by if key == "own" else key
    return signed(decision, key=signer) if signer in KEYS else decision


def played(at: Desk, script: list[Any], *, carried: bool = True) -> tuple[Desk, list[tuple[Decision, str]]]:
    """The desk after all that, with each decision and what it came to; `carried`: in runs of a chain."""
    now, answers = 0.0, []
    for place in range(3):
        ask_all(at, place, now)
    for step in script:
        now += 1
        if isinstance(step, dict):
            decision = decision_of(at, step)
            try:
                answers.append((decision, at.decide(decision, now).model_dump_json()))
            except Refused as refused:
                answers.append((decision, refused.reason))
            continue
        name, value = step
        if name == "due":
            now += value
            at.due(now)
        elif name == "again":
            at = again(at) if carried else at
        elif name == "ask":
            ask_all(at, value, now)
        else:
            at.withdraw(now, "a rollback")
    return at, answers


@settings(max_examples=300, deadline=None)
@given(ways, steps)
def test_a_request_closes_once_and_only_as_its_people_said(way: dict[str, Any], script: list[Any]) -> None:
    at, answers = played(first_desk(way), script)
    for request in at.closed:
        closings = [one for one in at.told if one.event in CLOSING and one.request.id == request.id]
        assert len(closings) == 1
        assert closings[0].request == request, "and never changes after"
        check_closed(request, [decision for decision, _ in answers])
    for request in at.open:
        assert request.outcome == "open"
        assert request.settled is None
        assert len({vote.by for vote in request.votes}) == len(request.votes)
        assert not any(vote.verb in ("reject", "abort") for vote in request.votes)
        assert len([vote for vote in request.votes if vote.verb == "approve"]) < request.quorum


def check_closed(request: Request, sent: list[Decision]) -> None:
    """Decided by enough different people who may, each of whom sent a decision that names it."""
    if request.settled is None:
        assert request.outcome in ("expired", "withdrawn")
        return
    verb = request.settled.verb
    voters = {vote.by: vote for vote in request.votes if vote.verb == verb}
    needed = 1 if verb in ("reject", "abort") else request.quorum
    assert len(voters) >= needed
    for name, vote in voters.items():
        assert not request.approvers or name in request.approvers
        assert vote.verified == request.signed
        assert vote.digest == request.digest or verb == "edit"
        assert any(
            (one.request, one.digest, one.by, one.decision) == (request.id, request.digest, name, verb)
            for one in sent
        )
    if verb == "edit" and request.group != "boss":
        assert request.settled.arguments != {"amount": 5000}


@settings(max_examples=200, deadline=None)
@given(ways, steps)
def test_a_chain_of_runs_decides_as_one_run_does(way: dict[str, Any], script: list[Any]) -> None:
    one, answers = played(first_desk(way), script, carried=False)
    other, told = played(first_desk(way), script)
    assert other.dump() == one.dump()
    assert told == answers


@settings(max_examples=200, deadline=None)
@given(ways, steps)
def test_the_validator_says_what_the_handler_will_do(way: dict[str, Any], script: list[Any]) -> None:
    """And what was accepted once is harmless the second time, with the same answer."""
    at = first_desk(way)
    for place in range(3):
        ask_all(at, place, 0)
    for step in script:
        if not isinstance(step, dict):
            continue
        decision = decision_of(at, step)
        before = at.dump()
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


@settings(max_examples=200, deadline=None)
@given(ways, steps, st.sampled_from(AMOUNTS), st.sampled_from(["", "eve"]))
def test_nothing_is_let_pass_that_nobody_approved(
    way: dict[str, Any], script: list[Any], amount: int, to: str
) -> None:
    """A call goes without asking only by an approval that was to be remembered, of enough of those who
    would be asked."""
    at, _ = played(first_desk(way), script)
    run = call(amount=amount, **({"to": to} if to else {}))
    if at.asks(run, spent_usd=0) is not None:
        assert at.remembered_by(run, spent_usd=0) == ()
        return
    by = at.remembered_by(run, spent_usd=0)
    asked = "boss" if amount > 1000 else way["group"]
    source = [
        one
        for one in at.closed
        if one.outcome == "approved"
        and one.settled is not None
        and one.settled.remember is not None
        and {named(vote.by, vote.verified) for vote in one.votes if vote.verb == "approve"} == set(by)
        and asked == ("boss" if one.arguments == {"amount": 5000} else way["group"])
        and (one.settled.remember == Remember() or one.arguments == run.arguments)
    ]
    assert source
    if asked == "boss":
        assert by == ("eve (claimed)",)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("amount"), inner)
    ),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([*APPROVAL, "answer", "topup", "perhaps", 1]),
    st.fixed_dictionaries(
        {},
        optional={
            "by": anything,
            "id": anything,
            "text": anything,
            "arguments": st.dictionaries(st.sampled_from(["amount", "to", "x"]), anything) | anything,
            "amounts": st.dictionaries(st.text(max_size=3), st.floats() | anything) | anything,
            "remember": st.fixed_dictionaries({"arguments": st.dictionaries(st.text(max_size=3), anything)}),
            "signature": anything,
            "other": anything,
        },
    ),
    st.sampled_from([None, "team", "signed"]),
)
def test_whatever_comes_is_refused_or_can_be_carried_on(
    verb: Any, values: dict[str, Any], group: str | None
) -> None:
    """Nothing else is raised, and what was accepted can be written down and read again."""
    at = desk(group)
    asked = [ask(at), ask_of(at, "question", "answer", "abort"), ask_of(at, "limit", "topup")]
    for request in asked:
        try:
            at.decide(say(request, verb, **values), 1)
        except (Refused, ValidationError):
            continue
    page = RequestsPage(open=at.open, closed=at.closed, next=0, total=len(at.open))
    assert RequestsPage.model_validate_json(page.model_dump_json()) == page
    assert again(at).dump() == at.dump() == json.loads(json.dumps(at.dump(), ensure_ascii=False).encode())
