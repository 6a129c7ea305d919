"""What happens when nobody decides: a warning, the next group, the end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gate.house import KEYS, PEOPLE, RUN, again, ask, ask_of, desk, events, say, signed
from workflows.gate.signing import sign, signed_content
from workflows.gate.ticket import Refused
from workflows.people import Asking, AtDeadline, People

UP: dict[str, Any] = {"deadline_seconds": 60, "at_deadline": "escalate", "escalate_to": ("two", "boss")}


@pytest.mark.parametrize("at_deadline", ["approve", "reject", "abort"])
def test_at_the_deadline_a_request_expires_and_nobody_has_decided(at_deadline: AtDeadline) -> None:
    at = desk("team", deadline_seconds=60, at_deadline=at_deadline)
    ask(at, now=100)
    at.due(159.9)
    assert at.get("r1").outcome == "open"
    at.due(160)
    closed = at.get("r1")
    assert (closed.outcome, closed.closed, closed.settled, closed.at_deadline) == (
        *("expired", 160, None, at_deadline),
    )
    assert (events(at), at.told[-1].by, at.told[-1].moment) == (
        ["Requested", "Expired"],
        "deadline",
        "closed",
    )
    assert at.told[-1].reason == f"nobody decided in time; at the deadline: {at_deadline}"
    decided = at.decided()[0]
    assert (decided.outcome, decided.by, decided.votes, decided.verified) == ("expired", (), 0, False)
    at.due(1000)
    assert len(at.told) == 2, "once"


def test_a_vote_does_not_stop_the_clock() -> None:
    at = desk("two", deadline_seconds=60)
    at.decide(say(ask(at)), 59)
    at.due(60)
    assert (at.get("r1").outcome, at.decided()[0].by) == ("expired", ())


def test_without_a_deadline_a_request_waits_for_ever() -> None:
    at = desk("team")
    ask(at)
    at.due(1e12)
    assert (at.get("r1").outcome, at.next_moment(), at.deadline) == ("open", None, None)


def test_the_next_groups_are_asked_one_after_the_other_each_with_the_whole_time() -> None:
    at = desk("team", **UP)
    first = ask(at, now=0)
    assert (first.approvers, first.at_deadline, first.escalate_to) == (
        ("ann", "bob"),
        "escalate",
        ("two", "boss"),
    )
    at.due(100)
    second = at.get("r1")
    assert (second.group, second.approvers, second.quorum) == ("two", ("ann", "bob", "cy"), 2)
    assert (second.deadline, second.at_deadline, second.escalate_to) == (160, "escalate", ("boss",))
    assert (second.id, second.outcome) == (first.id, "open")
    assert second.digest != first.digest
    assert ask(at, now=101).id == "r1", "it is not asked again"
    at.due(159)
    at = again(at)
    at.due(160)
    third = at.get("r1")
    assert (third.group, third.quorum, third.deadline, third.at_deadline) == ("boss", 1, 220, "reject")
    assert ask(at, now=161).id == "r1", "nor is it asked again when others are asked a second time"
    at.due(220)
    assert (at.get("r1").outcome, at.get("r1").at_deadline) == ("expired", "reject")
    assert events(at) == ["Requested", "Escalated", "Escalated", "Expired"]
    assert [one.moment for one in at.told] == ["opened", "opened", "opened", "closed"]
    assert at.told[1].reason == "team did not decide in time; two is asked"


@pytest.mark.parametrize("at_deadline", ["approve", "reject", "abort"])
def test_what_an_expired_request_came_to_is_in_what_was_decided(at_deadline: AtDeadline) -> None:
    at = desk("team", deadline_seconds=60, at_deadline=at_deadline)
    ask(at)
    at.decide(say(ask(at, "act#2")), 1)
    at.due(60)
    assert {one.request: one.at_deadline for one in at.decided()} == {"r1": at_deadline, "r2": None}


def test_anybody_may_be_asked_before_somebody() -> None:
    at = desk(**(UP | {"escalate_to": ("boss",)}))
    ask(at)
    at.due(60)
    assert at.told[-1].reason == "those who were asked did not decide in time; boss is asked"
    facts = at.told[-1].about
    assert (facts["group"], facts["deadline"], facts["at_deadline"]) == ("boss", 120, "reject")


def test_only_the_group_that_is_asked_now_decides_and_votes_of_others_are_gone() -> None:
    at = desk("team", quorum=2, **(UP | {"escalate_to": ("signed_two",)}))
    request = ask(at)
    at.decide(say(request), 1)
    at.due(60)
    assert at.get("r1").votes == ()
    request = at.get("r1")
    with pytest.raises(Refused, match="this one has no signature"):
        at.decide(say(request, by="bob"), 61)
    assert at.decide(signed(say(request, id="d-2")), 61).votes == 1
    assert at.decide(signed(say(request, by="bob")), 61).by == ("ann", "bob")


def test_who_is_in_both_groups_may_say_it_again_without_an_id() -> None:
    at = desk("team", quorum=2, **(UP | {"escalate_to": ("two",)}))
    request = ask(at)
    at.decide(say(request), 1)
    at.due(60)
    with pytest.raises(Refused, match="what is asked is not what you saw"):
        at.decide(say(request), 61)
    request = at.get("r1")
    at.decide(say(request), 61)
    at.decide(say(request), 62)
    assert [vote.at for vote in at.get("r1").votes] == [61]
    assert at.decide(say(request, by="cy"), 63).outcome == "approved"


def test_what_was_signed_for_one_group_does_not_count_for_the_next() -> None:
    at = desk("signed_two", **(UP | {"escalate_to": ("signed",)}))
    mine = signed(say(ask(at)))
    at.decide(mine, 1)
    at.due(60)
    assert at.decide(mine, 61).votes == 0, "a repeat, of what counts no more"
    later = say(at.get("r1"), id="another").model_copy(update={"signature": mine.signature})
    with pytest.raises(Refused, match="a signature that is not theirs"):
        at.decide(later, 61)
    with pytest.raises(Refused, match="what is asked is not what you saw"):
        at.decide(mine.model_copy(update={"id": "another"}), 61)
    assert at.get("r1").votes == ()


def test_a_signed_decision_needs_an_id() -> None:
    at = desk("signed")
    bare = say(ask(at))
    bare = bare.model_copy(update={"signature": sign(KEYS["ann"], signed_content(RUN, bare))})
    with pytest.raises(Refused, match="a signed decision needs an `id`"):
        at.decide(bare, 1)


def test_a_quorum_of_the_request_holds_for_every_group_that_is_asked() -> None:
    at = desk("team", quorum=2, **(UP | {"escalate_to": ("signed",)}))
    ask(at)
    at.due(60)
    assert (at.get("r1").quorum, at.get("r1").signed) == (2, True)


def test_it_warns_once_so_long_before_the_deadline_and_anew_for_each_group() -> None:
    at = desk("team", warn_seconds=10, **(UP | {"escalate_to": ("boss",)}))
    assert ask(at, now=0).warn_at == 50
    assert at.next_moment() == 50
    at.due(49)
    assert events(at) == ["Requested"]
    at.due(50)
    assert (events(at), at.next_moment()) == (["Requested", "Warned"], 60)
    at.due(55)
    assert events(at) == ["Requested", "Warned"]
    assert (at.told[-1].moment, at.told[-1].by, at.get("r1").warn_at) == ("expiring", "deadline", None)
    at.due(70)
    assert (at.get("r1").warn_at, at.next_moment()) == (120, 120)
    at.due(125)
    assert events(at) == ["Requested", "Warned", "Escalated", "Warned"]


def test_it_does_not_warn_of_what_has_come() -> None:
    at = desk("team", deadline_seconds=60, warn_seconds=10)
    ask(at)
    at.due(60)
    assert (events(at), at.get("r1").warn_at) == (["Requested", "Expired"], None)


def test_the_next_moment_is_the_earliest_of_all_open_requests() -> None:
    people = PEOPLE.model_copy(
        update={
            "kinds": {
                "question": Asking(deadline_seconds=100),
                "limit": Asking(deadline_seconds=50, warn_seconds=5),
                "trouble": Asking(),
            }
        }
    )
    at = desk(people=people)
    ask_of(at, "trouble", "retry", now=1)
    assert (at.next_moment(), at.deadline, at.waiting, at.since) == (None, None, "trouble", 1)
    ask_of(at, "question", "answer", now=2)
    limit = ask_of(at, "limit", "finish", now=3)
    assert (at.next_moment(), at.deadline, at.waiting, at.since) == (48, 53, "trouble", 1)
    at.decide(say(limit, "finish"), 4)
    assert (at.next_moment(), at.deadline) == (102, 102)
    at.withdraw(5, "over")
    assert (at.next_moment(), at.deadline, at.waiting, at.since) == (None, None, "", None)


def test_withdrawn_requests_are_closed_and_say_why() -> None:
    at = desk("two")
    first = ask(at, "act#1:1")
    ask(at, "act#1:2")
    at.decide(say(first), 1)
    at.decide(say(first, by="bob"), 1)
    at.withdraw(9, "the run is rolled back to step 2")
    assert [(one.outcome, one.closed) for one in at.closed] == [("approved", 1), ("withdrawn", 9)]
    assert (at.told[-1].event, at.told[-1].reason, at.told[-1].moment) == (
        *("Withdrawn", "the run is rolled back to step 2", "closed"),
    )
    with pytest.raises(Refused, match="r2 is closed: withdrawn"):
        at.decide(say(at.get("r2")), 10)
    at.withdraw(11, "again")
    assert events(at).count("Withdrawn") == 1


def test_kinds_are_asked_in_their_own_way() -> None:
    people = People.model_validate(
        {
            "groups": {"ops": {"members": ["zoe"]}},
            "asking": {"deadline_seconds": 5},
            "kinds": {"outcome": {"group": "ops"}},
        }
    )
    at = desk(people=people)
    outcome, question = ask_of(at, "outcome", "abort"), ask_of(at, "question", "answer")
    assert (outcome.approvers, outcome.deadline) == (("zoe",), None)
    assert (question.approvers, question.deadline) == ((), 5)


def test_a_group_may_be_asked_again_and_nothing_of_the_first_time_counts() -> None:
    """Ids, digests and notices differ, so that no decision is used twice and no person votes twice."""
    again_and_again = {**UP, "escalate_to": ("signed_two", "signed_two")}
    at = desk("signed_two", **again_and_again)
    seen: list[str] = []
    mine = signed(say(ask(at), id="d-0"))
    for level in range(3):
        request = at.get("r1")
        assert request.digest not in seen
        assert (request.group, request.votes) == ("signed_two", ())
        seen.append(request.digest)
        if level:
            assert at.decide(mine, 60 * level + 1).votes == 0, "a repeat, of what counts no more"
            with pytest.raises(Refused, match="another decision came under the id 'd-0'"):
                at.decide(signed(say(request, id="d-0")), 60 * level + 1)
            mine_again = mine.model_copy(update={"id": f"d-{level}", "digest": request.digest})
            with pytest.raises(Refused, match="a signature that is not theirs"):
                at.decide(mine_again, 60 * level + 1)
        fresh = signed(say(request, id=f"d-{level}"))
        assert at.decide(fresh, 60 * level + 1).votes == 1
        with pytest.raises(Refused, match="each person has one vote"):
            at.decide(signed(say(request, id=f"e-{level}")), 60 * level + 1)
        if level < 2:
            at = again(at)
            at.due(60 * (level + 1))
    opened = [(one.request.id, one.moment, len(one.request.escalate_to)) for one in at.told if one.moment]
    assert len(set(opened)) == len(opened) == 3, "notices are told apart"
    assert at.decide(signed(say(at.get("r1"), by="bob")), 130).outcome == "approved"
