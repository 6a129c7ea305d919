"""Which decisions count, and what is said of those that do not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from tests.gate.house import (
    ORIGIN,
    PEOPLE,
    RUN,
    again,
    ask,
    ask_of,
    call,
    desk,
    events,
    public,
    say,
    signed,
    spec,
)
from workflows.gate.canonical import digest
from workflows.gate.desk import Desk
from workflows.gate.judge import VOTES_LIMIT
from workflows.gate.ticket import Refused, content_of
from workflows.people import Approvals, Command, Decision, Group, People, Remember, Verb


def refusal(at: Desk, decision: Decision, now: float = 1) -> str:
    """Why it does not count; nothing has changed by it, and asking before says the same."""
    before = at.dump()
    with pytest.raises(Refused) as asked:
        at.check(decision, now)
    with pytest.raises(Refused) as refused:
        at.decide(decision, now)
    assert at.dump() == before
    assert asked.value.reason == refused.value.reason == str(refused.value)
    return refused.value.reason


# -- what is refused --------------------


@pytest.mark.parametrize(
    ("group", "change", "words"),
    [
        (None, {"request": "r9"}, "no request 'r9' in this run; open are: r1"),
        (None, {"digest": "0" * 32}, "the decision is on 0{32}: what is asked is not what you saw"),
        (None, {"digest": ""}, "the decision is on nothing"),
        (None, {"decision": "retry"}, "answered by 'retry'; its options are approve, reject, edit, abort"),
        (None, {"by": " ann"}, "printable characters"),
        (None, {"by": "a\nb"}, "printable characters"),
        (None, {"by": "ann (verified)"}, "printable characters"),
        (None, {"by": "ann, bob"}, "printable characters"),
        (None, {"by": "a\u202eb"}, "printable characters"),
        (None, {"arguments": {"amount": 6}}, "`arguments` goes with edit, not with approve"),
        (None, {"decision": "reject", "arguments": {}}, "`arguments` goes with edit"),
        (None, {"amounts": {"tokens": 1}}, "`amounts` goes with topup"),
        (None, {"decision": "reject", "remember": Remember()}, "`remember` goes with approve of a call"),
        (
            None,
            {"decision": "edit", "arguments": {"amount": 6}, "remember": Remember()},
            "`remember` goes with approve of a call",
        ),
        (None, {"decision": "edit"}, "an edit needs `arguments`"),
        (None, {"decision": "edit", "arguments": {}}, "do not fit pay: 'amount' is a required property"),
        (None, {"decision": "edit", "arguments": {"amount": "six"}}, "amount: 'six' is not of type 'number'"),
        (None, {"decision": "edit", "arguments": {"amount": -1}}, "less than the minimum of 0"),
        (None, {"decision": "edit", "arguments": {"amount": 6, "too": 1}}, "no argument too; it has amount"),
        (None, {"decision": "edit", "arguments": {"amount": 6, "to": "x" * 70_000}}, "at most 65,536"),
        ("team", {"by": ""}, r"decided by ann, bob \(team\); say who you are"),
        ("team", {"by": "cy"}, r"cy is not among those who may decide on r1: ann, bob \(team\)"),
        ("team", {"by": "Ann"}, "Ann is not among"),
        ("signed", {}, "signed with the key of ann; this one has no signature. Send it again"),
        ("signed", {"signature": "AAAA"}, "a signature that is not theirs"),
        ("signed", {"by": "eve"}, r"eve is not among those who may decide on r1: ann, bob \(signed\)"),
    ],
)
def test_a_decision_that_breaks_a_rule_is_refused_with_the_reason(
    group: str | None, change: dict[str, Any], words: str
) -> None:
    at = desk(group)
    decision = say(ask(at), **{"verb": change.pop("decision", "approve"), **change})
    assert re.search(words, refusal(at, decision)), refusal(at, decision)


def test_an_unknown_request_is_unknown_also_when_none_is_open() -> None:
    at = desk()
    request = ask(at)
    at.decide(say(request), 1)
    assert refusal(at, say(request, request="r9")) == "there is no request 'r9' in this run; open are: none"


def test_a_closed_request_says_how_it_was_closed() -> None:
    at = desk("team")
    request = ask(at)
    at.decide(say(request, "reject"), 100)
    assert refusal(at, say(request, by="bob"), 160) == (
        "r1 is closed: rejected by ann (1970-01-01T00:01:40Z, 60 s ago)"
    )


def test_an_unsigned_group_does_not_ask_for_a_signature_and_says_claimed() -> None:
    at = desk("team")
    assert not at.decide(say(ask(at), signature="junk"), 1).verified
    assert [one.by for one in at.told] == ["kernel", "ann (claimed)"]


def test_a_signed_decision_is_verified_and_only_its_owners() -> None:
    at = desk("signed")
    request = ask(at)
    assert "not theirs" in refusal(at, signed(say(request), key="bob"))
    assert "not theirs" in refusal(at, signed(say(request), run="another"))
    altered = signed(say(request, "reject")).model_copy(update={"decision": "approve"})
    assert "not theirs" in refusal(at, altered)
    assert at.decide(signed(say(request)), 1).verified
    assert at.told[-1].by == "ann (verified)"
    assert at.get("r1").votes[0].verified


def test_what_was_said_of_one_call_is_not_said_of_another() -> None:
    """Two requests at once: the id of one with the digest of the other fits neither."""
    at = desk()
    first, second = ask(at, "act#1:1", amount=5), ask(at, "act#1:2", amount=6)
    assert "not what you saw" in refusal(at, say(first, request="r2"))
    assert "not what you saw" in refusal(at, say(first, digest=second.digest))


def test_an_approval_fits_no_other_run_place_tool_or_arguments() -> None:
    """Of the same workflow id, too: a run that is started again has another origin."""
    request = ask(desk())
    others = [
        ask(desk(run=("another", ORIGIN))),
        ask(desk(run=(RUN, "another"))),
        ask(desk(), "act#2:1"),
        ask(desk(), amount=5.5),
        ask(desk(), amount=5, to="eve"),
        ask_of(desk(), "outcome", "abort", tool="pay", arguments={"amount": 5}, place="act#1:1"),
        ask_of(desk(), "approval", "abort", tool="send", arguments={"amount": 5}, place="act#1:1"),
    ]
    assert len({one.digest for one in (request, *others)}) == 8
    assert ask(desk()).digest == request.digest, "it does not depend on anything else"
    for other in others:
        at = desk()
        ask(at)
        assert "not what you saw" in refusal(at, say(request, digest=other.digest))


def nested(depth: int) -> Any:
    """A list so many levels deep."""
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("\ud800", "half of a character pair"),
        (nested(50), "nested more than 50 deep"),
        (float("nan"), "finite number"),
    ],
)
def test_arguments_that_cannot_be_written_into_the_log_are_no_decision(value: Any, words: str) -> None:
    """A refused decision is in the log, too."""
    with pytest.raises(ValidationError, match=words):
        say(ask(desk()), "edit", arguments={"a": value})
    assert say(ask(desk()), "edit", arguments={"a": nested(49)}).arguments


def test_no_number_comes_as_text_that_is_none() -> None:
    with pytest.raises(ValidationError, match="NaN and Infinity are no JSON"):
        Decision.model_validate_json(
            '{"request": "", "digest": "", "decision": "edit", "arguments": {"a": NaN}}'
        )


# -- the first that counts --------------------


@pytest.mark.parametrize(
    ("verb", "what", "outcome"),
    [
        ("approve", {}, "approved"),
        ("reject", {"text": "no"}, "rejected"),
        ("edit", {"arguments": {"amount": 1}}, "edited"),
        ("answer", {"text": "yes"}, "answered"),
        ("resume", {}, "resumed"),
        ("retry", {}, "retried"),
        ("topup", {"amounts": {"tokens": 5}}, "topped_up"),
        ("finish", {}, "finished"),
        ("abort", {"text": "stop"}, "aborted"),
    ],
)
def test_each_verb_comes_to_its_own_outcome(verb: Verb, what: dict[str, Any], outcome: str) -> None:
    at = desk()
    request = ask_of(at, "limit", verb, tool="pay")
    decided = at.decide(say(request, verb, **what), 7)
    closed = at.get("r1")
    assert (decided.outcome, closed.outcome, closed.closed, decided.at) == (outcome, outcome, 7, 7)
    assert closed.settled is not None
    assert (closed.settled.verb, closed.settled.text) == (verb, what.get("text", ""))
    assert (decided.by, decided.votes, decided.needed) == (("ann",), 1, 1)
    assert events(at) == ["Requested", "Decided"]
    assert at.open == ()


def test_an_edit_has_the_digest_of_what_it_says() -> None:
    at = desk()
    request = ask(at, amount=5)
    decided = at.decide(say(request, "edit", arguments={"amount": 6}), 1)
    assert decided.digest == ask(desk(), amount=6).digest != request.digest
    assert at.get("r1").arguments == {"amount": 5}, "what was asked stays as it was"
    assert at.told[-1].about["digest"] == decided.digest
    assert at.told[-1].about["arguments"] == {"amount": 6}
    assert at.decide(say(ask(at, "act#2:1")), 1).digest == at.get("r2").digest


def test_anybody_may_decide_without_a_name_where_nobody_is_named() -> None:
    at = desk()
    assert at.decide(say(ask(at), by=""), 1).by == ()
    assert at.told[-1].by == "somebody (claimed)"


def test_the_message_that_is_there_first_counts_also_behind_the_deadline() -> None:
    """It may have waited for a worker; the deadline closes a request only when it is kept."""
    at = desk(deadline_seconds=10)
    request = ask(at)
    assert at.decide(say(request), 11).outcome == "approved"
    late = desk(deadline_seconds=10)
    request = ask(late)
    late.due(10)
    assert "r1 is closed: expired (" in refusal(late, say(request), 11)


# -- repeats --------------------


@pytest.mark.parametrize("name", ["", "d-1"])
def test_a_repeat_is_harmless_and_answered_alike_also_when_the_request_is_closed(name: str) -> None:
    at = desk("team")
    decision = say(ask(at), id=name)
    first = at.decide(decision, 1)
    told = len(at.told)
    at.check(decision, 2)
    assert at.decide(decision, 2) == first == again(at).decide(decision, 3)
    assert len(at.told) == told
    assert len(at.get("r1").votes) == 1


def test_a_repeat_does_not_vote_twice() -> None:
    at = desk("two")
    decision = say(ask(at), id="d-1")
    assert (at.decide(decision, 1).votes, at.decide(decision, 2).votes) == (1, 1)
    assert at.get("r1").outcome == "open"


def test_an_id_with_other_content_is_refused_on_every_request_of_the_run() -> None:
    at = desk("two")
    first, second = ask(at, "act#1:1"), ask(at, "act#1:2")
    at.decide(say(first, id="d-1"), 1)
    assert "another decision came under the id 'd-1', on r1" in refusal(at, say(first, "reject", id="d-1"))
    assert "another decision" in refusal(at, say(second, id="d-1"))
    assert "another decision" in refusal(again(at), say(second, id="d-1"))


def test_an_id_of_a_decision_that_was_refused_is_free() -> None:
    at = desk("team")
    request = ask(at)
    refusal(at, say(request, by="cy", id="d-1"))
    assert at.decide(say(request, id="d-1"), 1).outcome == "approved"


# -- several people --------------------


def test_so_many_different_people_must_say_the_same() -> None:
    at = desk("two")
    request = ask(at)
    assert at.decide(say(request), 1).model_dump(include={"outcome", "votes", "needed", "by"}) == {
        **{"outcome": "open", "votes": 1, "needed": 2, "by": ("ann",)},
    }
    assert "ann has decided on r1 already" in refusal(at, say(request, text="again"))
    assert "ann has decided on r1 already" in refusal(at, say(request, "reject"))
    decided = at.decide(say(request, by="cy", text="fine"), 2)
    assert (decided.outcome, decided.by, decided.votes, decided.text) == (
        "approved",
        ("ann", "cy"),
        2,
        "fine",
    )
    assert events(at) == ["Requested", "Voted", "Decided"]
    assert [one.moment for one in at.told] == ["opened", None, "closed"]


@pytest.mark.parametrize("verb", ["reject", "abort"])
def test_one_person_of_several_can_say_no(verb: Verb) -> None:
    at = desk("two")
    request = ask(at)
    at.decide(say(request), 1)
    decided = at.decide(say(request, verb, by="bob"), 2)
    assert (decided.outcome, decided.by) == ("rejected" if verb == "reject" else "aborted", ("bob",))


def test_an_edit_needs_people_who_give_equal_arguments() -> None:
    at = desk("two")
    request = ask(at)
    at.decide(say(request, "edit", arguments={"amount": 1, "to": "x"}), 1)
    assert at.decide(say(request, "edit", by="bob", arguments={"amount": 2}), 1).votes == 1
    agreed = at.decide(say(request, "edit", by="cy", arguments={"to": "x", "amount": 1}), 1)
    assert (agreed.outcome, agreed.by) == ("edited", ("ann", "cy"))


@pytest.mark.parametrize(
    ("verb", "one", "other", "agree"),
    [
        ("answer", {"text": "a"}, {"text": "a"}, True),
        ("answer", {"text": "a"}, {"text": "b"}, False),
        ("resume", {"text": ""}, {"text": "but"}, False),
        ("retry", {"text": ""}, {"text": "mended"}, True),
        ("finish", {"text": ""}, {"text": "enough"}, True),
        ("topup", {"amounts": {"tokens": 5}, "text": "a"}, {"amounts": {"tokens": 5.0}}, True),
        ("topup", {"amounts": {"tokens": 5}}, {"amounts": {"tokens": 6}}, False),
    ],
)
def test_people_agree_when_what_counts_is_the_same(
    verb: Verb, one: dict[str, Any], other: dict[str, Any], agree: bool
) -> None:
    at = desk("two")
    request = ask_of(at, "limit", verb)
    at.decide(say(request, verb, **one), 1)
    assert (at.decide(say(request, verb, by="bob", **other), 1).outcome != "open") is agree


def test_approvals_and_edits_do_not_add_up() -> None:
    at = desk("two")
    request = ask(at, amount=5)
    at.decide(say(request), 1)
    assert at.decide(say(request, "edit", by="bob", arguments={"amount": 5}), 1).outcome == "open"


def test_two_who_sign_are_verified_together() -> None:
    at = desk("signed_two")
    request = ask(at)
    at.decide(signed(say(request)), 1)
    decided = at.decide(signed(say(request, by="bob")), 1)
    assert (decided.outcome, decided.by, decided.verified) == ("approved", ("ann", "bob"), True)


def test_several_of_anybody_must_give_different_names() -> None:
    at = desk(quorum=2)
    request = ask(at)
    assert "decided by 2 different people; say who you are" in refusal(at, say(request, by=""))
    at.decide(say(request, by="x"), 1)
    assert "x has decided" in refusal(at, say(request, by="x", text="again"))
    assert at.decide(say(request, by="y"), 1).outcome == "approved"


def test_one_name_in_two_spellings_is_one_person() -> None:
    at = desk(quorum=2)
    request = ask(at)
    at.decide(say(request, by="ann"), 1)
    for name in ("Ann", "ANN", "\uff41nn"):
        assert "has decided on r1 already" in refusal(at, say(request, by=name))


def test_nobody_uses_up_the_ids_of_another() -> None:
    at = desk("two")
    request = ask(at)
    at.decide(say(request, by="bob", id="d-1", text="first"), 1)
    assert at.decide(say(request, by="ann", id="d-1"), 1).outcome == "approved"


@pytest.mark.parametrize(
    "what",
    [
        {"amounts": {str(n): 1 for n in range(101)}},
        {"amounts": {"x" * 101: 1}},
        {"remember": {"arguments": {str(n): {} for n in range(101)}}},
        {"remember": {"arguments": {"x": {"one_of": [1] * 1001}}}},
    ],
)
def test_no_decision_is_larger_than_it_can_mean(what: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="at most 100"):
        Decision.model_validate({"request": "r1", "digest": "", "decision": "approve", **what})
    with pytest.raises(ValidationError, match="at most 100"):
        Command(command="limits", limits={str(n): 1 for n in range(101)})


def test_votes_that_never_agree_come_to_an_end() -> None:
    at = desk(quorum=2)
    request = ask_of(at, "question", "answer", "abort")
    for number in range(VOTES_LIMIT):
        at.decide(say(request, "answer", by=f"p{number}", text=str(number)), 1)
    assert "can only be rejected or aborted" in refusal(at, say(request, "answer", by="late", text="0"))
    assert at.decide(say(request, "abort", by="late"), 1).outcome == "aborted"


# -- edits and answers --------------------


def test_who_may_approve_a_small_payment_may_not_make_it_a_large_one() -> None:
    """An edit is held against the approvals, too."""
    approvals = Approvals.model_validate(
        {
            "rules": [
                {"arguments": {"amount": {"above": 1000}}, "asking": {"group": "boss"}},
                {"arguments": {"amount": {"above": 500}}, "asking": {"group": "team", "quorum": 2}},
                {"arguments": {"amount": {"below": 1}}, "ask": "never"},
                {"arguments": {"amount": {"below": 2}}},
            ]
        }
    )
    at = desk("team", approvals)
    request = ask(at, amount=5)
    assert refusal(at, say(request, "edit", arguments={"amount": 5000})) == (
        "r1: with these arguments 1 of boss must approve the call (rules.0); "
        "reject it with a comment, so that it is asked for anew"
    )
    assert "2 of team must approve" in refusal(at, say(request, "edit", arguments={"amount": 600}))
    for place, amount in (("a#1", 6), ("a#2", 0), ("a#3", 1)):
        edit = say(ask(at, place), "edit", arguments={"amount": amount})
        assert at.decide(edit, 1).outcome == "edited"
    boss = ask(at, "a#4", amount=5000)
    assert boss.approvers == ("eve",)
    assert "2 of team" in refusal(at, say(boss, "edit", by="eve", arguments={"amount": 600}))


def test_who_was_named_may_make_it_a_call_that_anybody_may_approve() -> None:
    approvals = Approvals.model_validate(
        {"rules": [{"arguments": {"amount": {"above": 10}}, "asking": {"group": "boss"}}]}
    )
    at = desk(approvals=approvals)
    assert (
        at.decide(say(ask(at, amount=50), "edit", by="eve", arguments={"amount": 1}), 1).outcome == "edited"
    )


def test_an_edit_to_what_cannot_be_judged_is_refused() -> None:
    loose = spec(parameters={"properties": {"amount": {}}})
    small = {"arguments": {"amount": {"below": 10}}, "asking": {"group": "team"}}
    at = desk("boss", Approvals.model_validate({"rules": [small]}), tools=[loose])
    request = ask(at, amount=5)
    said = refusal(at, say(request, "edit", arguments={"amount": "5,000"}))
    assert "it cannot be told who has to approve this call" in said
    assert at.decide(say(request, "edit", arguments={"amount": 6}), 1).outcome == "edited"


def test_money_that_was_spent_counts_for_an_edit_as_for_the_call() -> None:
    rule = {"rules": [{"cost_above": 5, "asking": {"group": "boss"}}, {"asking": {"group": "team"}}]}
    at = desk(approvals=Approvals.model_validate(rule))
    run = call(amount=5)
    asked = at.asks(run, spent_usd=9)
    request = at.ask(
        "approval", "act#1", now=0, asking=asked, text="?", options=("edit",), machine="m", state="s", step=1,
        tool="pay", arguments=run.arguments,
    )  # fmt: skip
    assert request.approvers == ("eve",)
    assert at.decide(say(request, "edit", by="eve", arguments={"amount": 6}), 1).outcome == "edited"


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_answer_needs_words(text: str) -> None:
    at = desk()
    assert "an answer needs `text`" in refusal(at, say(ask_of(at, "question", "answer"), "answer", text=text))


@pytest.mark.parametrize(
    ("amounts", "words"),
    [
        ({}, 'needs `amounts`: counter -> how much more, for example {"tokens": 10}'),
        ({"tokens": 0}, "tokens 0 is no amount"),
        ({"tokens": -1}, "tokens -1 is no amount"),
        ({"tokens": 1e13}, "at most 1e+12"),
        ({"tokens": 1e-20}, "1e-20 more tokens does not raise the limit of 5"),
        ({"cost_usd": 1}, "r1 is about tokens, not 'cost_usd'"),
        ({"tokens": 1, "cost_usd": 1}, "not 'cost_usd'"),
    ],
)
def test_a_top_up_says_how_much_more_of_what_ran_out(amounts: dict[str, float], words: str) -> None:
    at = desk()
    request = ask_of(at, "limit", "topup", arguments={"counter": "tokens", "cap": 5})
    assert words in refusal(at, say(request, "topup", amounts=amounts))
    assert at.decide(say(request, "topup", amounts={"tokens": 0.5}), 1).outcome == "topped_up"


def test_a_call_of_a_tool_that_is_gone_cannot_be_edited() -> None:
    at = desk(tools=(spec("read", "read"),))
    request = ask_of(at, "approval", "edit", tool="pay", arguments={"amount": 1})
    assert "pay is none of the run's tools" in refusal(at, say(request, "edit", arguments={"amount": 1}))


def test_facts_of_a_decision_are_in_what_is_told() -> None:
    at = desk("two")
    request = ask(at)
    at.decide(say(request, id="d-1", text="fine", remember=Remember(same=True)), 1)
    assert at.told[-1].about == {
        **{"request": "r1", "kind": "approval", "place": "act#1:1", "tool": "pay", "decision": "approve"},
        **{"id": "d-1", "by": "ann", "verified": False, "asked": request.digest, "digest": request.digest},
        **{"remember": {"same": True}, "votes": 1, "needed": 2, "outcome": "open"},
    }
    assert at.told[-1].reason == "fine"
    assert at.told[0].about == {
        **{"request": "r1", "kind": "approval", "place": "act#1:1", "tool": "pay"},
        **{"arguments": {"amount": 5}, "digest": request.digest, "because": "effects.unsafe"},
        **{"options": ["approve", "reject", "edit", "abort"]},
        **{"group": "two", "approvers": ["ann", "bob", "cy"], "quorum": 2, "outcome": "open"},
    }  # fmt: skip


def test_what_was_topped_up_is_in_what_is_told() -> None:
    at = desk()
    at.decide(say(ask_of(at, "limit", "topup"), "topup", amounts={"tokens": 5}), 1)
    assert at.told[-1].about["amounts"] == {"tokens": 5}


def test_what_a_decision_says_does_not_depend_on_fields_that_it_leaves_out() -> None:
    """A field that is added later changes no decision that was counted before."""
    request = ask(desk())
    short = {"request": "r1", "digest": request.digest, "decision": "approve", "by": "ann"}
    assert content_of(say(request, id="d-1", signature="s")) == digest(short)


def test_long_arguments_are_in_the_log_by_their_digest_alone() -> None:
    at = desk()
    ask(at, amount=1, to="x" * 3000)
    assert "arguments" not in at.told[0].about
    assert at.get("r1").arguments == {"amount": 1, "to": "x" * 3000}


def test_people_are_named_by_ten() -> None:
    many = {"many": {"members": [f"p{n}" for n in range(12)]}}
    people = PEOPLE.model_validate({"groups": many, "asking": {"group": "many"}})
    at = desk(people=people)
    assert "p8, p9 and 2 more (many)" in refusal(at, say(ask(at)))


def test_who_decides_upon_what_is_not_asked_is_told_what_is() -> None:
    at = desk()
    asked = [ask(at, f"act#{number}") for number in range(8)]
    first = f"r1 (digest {asked[0].digest})"
    assert f"open are: {first}, r2 (digest" in refusal(at, say(asked[0], request="r9"))
    at.decide(say(asked[1]), 1)
    late = refusal(at, say(asked[1], "reject"))
    assert f"r2 is closed: approved by ann (1970-01-01T00:00:01Z, 0 s ago); open are: {first}, r3 (" in late
    assert late.endswith(", 2 more")
    assert late.count("digest") == 5
    other = refusal(at, say(asked[0], digest="1234"))
    assert f"r1 asks about {asked[0].digest}, the decision is on 1234" in other


ESCALATED: dict[str, Any] = {
    "group": "team", "deadline_seconds": 60, "at_deadline": "escalate", "escalate_to": ["boss"],
}  # fmt: skip


@pytest.mark.parametrize(("after", "who"), [(0, "ann"), (60, "eve")])
def test_who_is_asked_after_others_may_edit_to_what_would_come_to_them_in_the_same_way(
    after: float, who: str
) -> None:
    rules = [
        {"arguments": {"amount": {"above": 1000}}, "asking": {"group": "team"}},
        {"arguments": {"amount": {"above": 500}}, "asking": {**ESCALATED, "escalate_to": ["two", "boss"]}},
        {"asking": ESCALATED},
    ]
    at = desk(approvals=Approvals.model_validate({"rules": rules}))
    ask(at, amount=5)
    at.due(after)
    request = at.get("r1")
    large = say(request, "edit", by=who, arguments={"amount": 5000})
    if who == "eve":
        assert "1 of team must approve" in refusal(at, large), "a large one never comes to eve"
        large = say(request, "edit", by=who, arguments={"amount": 600})
    assert at.decide(large, 61).outcome == "edited"


def test_who_is_asked_after_several_others_may_edit_alone_where_they_may_approve_alone() -> None:
    at = desk(**{**ESCALATED, "group": "two"})
    ask(at)
    at.due(60)
    assert at.decide(say(at.get("r1"), "edit", by="eve", arguments={"amount": 1}), 61).outcome == "edited"


@pytest.mark.parametrize(
    "name", ["ann\ufe0f", "\u115fann", "a\u034fnn", "ann\u3164", "ann\u2800", "ann\U000e0100"]
)
def test_a_name_with_what_nobody_sees_is_no_second_person(name: str) -> None:
    at = desk(quorum=2)
    request = ask(at)
    at.decide(say(request, by="ann"), 1)
    assert "is no name" in refusal(at, say(request, by=name))


def test_who_would_be_asked_later_may_not_edit_before_those_who_are_asked_first() -> None:
    rules = [{"arguments": {"amount": {"above": 1000}}, "asking": ESCALATED}, {"asking": {"group": "boss"}}]
    at = desk(approvals=Approvals.model_validate({"rules": rules}))
    large = say(ask(at, amount=5), "edit", by="eve", arguments={"amount": 5000})
    assert "1 of team must approve" in refusal(at, large)


def test_a_key_that_another_group_lists_for_the_same_name_does_not_count() -> None:
    others = Group(keys={"ann": public("eve"), "bob": public("bob")})
    people = People(groups={"first": Group(keys={"ann": public("ann")}), "others": others})
    at = desk("first", people=people)
    request = ask(at)
    assert "a signature that is not theirs" in refusal(at, signed(say(request), key="eve"))
    assert at.decide(signed(say(request)), 1).verified


def test_an_id_under_which_other_calls_were_to_be_remembered_is_refused() -> None:
    at = desk("two")
    request = ask(at)
    at.decide(say(request, id="d-1"), 1)
    assert "another decision came under the id 'd-1'" in refusal(
        at, say(request, id="d-1", remember=Remember())
    )
