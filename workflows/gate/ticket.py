"""A request with what the desk knows of it besides, and what is told of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from pydantic import Field

from activities.contracts import Frozen, JsonObject
from workflows.gate.canonical import canonical, digest
from workflows.gate.policy import Asked
from workflows.people import Asking, Decided, Decision, Moment, Outcome, People, Request, Verb, Vote

__all__ = [
    "OUTCOMES",
    "Event",
    "Matter",
    "Refused",
    "Ticket",
    "Told",
    "agreeing",
    "content_of",
    "decided_of",
    "digest_for",
    "digest_of",
    "heard_as",
    "id_of",
    "listed",
    "named",
    "put_to",
    "thin",
    "told",
]

ARGUMENTS_LIMIT = 2_000
"""Characters of JSON up to which arguments are in the log's facts, and kept once a step is over; the digest
always is."""
LISTED = 5
"""Open requests that a refusal names."""
TEXT_LIMIT = 1_000
"""Characters of a comment in a `Decided`."""


class Refused(Exception):
    """A decision or a command that does not count; `reason` is for the person who sent it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Matter(TypedDict):
    """What is asked about, besides its kind and place."""

    text: str
    options: Sequence[str]
    machine: str
    state: str
    step: int
    tool: NotRequired[str | None]
    arguments: NotRequired[JsonObject | None]


Event = Literal["Requested", "Voted", "Decided", "Expired", "Escalated", "Warned", "Withdrawn"]


class Told(Frozen):
    """Something that happened to a request, for the log and for those who are notified."""

    event: Event
    by: str
    reason: str
    about: JsonObject
    moment: Moment | None
    """When the notification hook is called; None: only the log hears of it."""
    request: Request
    """As it is afterwards."""


class Ticket(Frozen):
    """A request, how it was put first, and the decisions that counted, by id."""

    request: Request
    asking: Asked
    heard: dict[str, str] = Field(default_factory=dict)
    """`heard_as` of a decision -> digest of its content."""
    mark: str = ""
    """The request's digest as it was put first; empty: as it is."""

    @property
    def level(self) -> int:
        """How often it was put to another group."""
        return len(self.asking.escalate_to) - len(self.request.escalate_to)


def digest_of(
    run: tuple[str, str], place: str, kind: str, tool: str | None, arguments: JsonObject | None
) -> str:
    """What a decision is bound to: the run (workflow id, origin), the place in it, what is to be done."""
    workflow_id, origin = run
    return digest([workflow_id, origin, place, kind, tool, arguments])


def digest_for(mark: str, level: int, group: str) -> str:
    """The digest once another group is asked: what was said, and signed, to those before counts no more."""
    return digest([mark, level, group])


def put_to(people: People, asking: Asking, name: str | None, now: float) -> dict[str, object]:
    """What of a request changes with the group that it is put to. Raises ValueError for an unknown one."""
    group = people.group_of(name)
    deadline = None if asking.deadline_seconds is None else now + asking.deadline_seconds
    warn = None if deadline is None or asking.warn_seconds is None else deadline - asking.warn_seconds
    return {
        "group": name,
        "approvers": group.approvers,
        "signed": bool(group.keys),
        "quorum": asking.quorum or group.quorum,
        "deadline": deadline,
        "warn_at": warn,
    }


def agreeing(request: Request, vote: Vote) -> tuple[Vote, ...]:
    """The votes that say the same as this one.

    The same: the verb; for `edit` with equal arguments, for `answer` and `resume` with the same text, for
    `topup` with the same amounts. Comments of others may differ.
    """
    return tuple(other for other in request.votes if _meaning(other) == _meaning(vote))


def _meaning(vote: Vote) -> str:
    said: object = None
    if vote.verb == "edit":
        said = vote.digest
    elif vote.verb == "topup":
        said = vote.amounts
    elif vote.verb in ("answer", "resume"):
        said = vote.text
    return canonical([vote.verb, said])


OUTCOMES: dict[Verb, Outcome] = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "edited",
    "answer": "answered",
    "resume": "resumed",
    "retry": "retried",
    "topup": "topped_up",
    "finish": "finished",
    "abort": "aborted",
}


def decided_of(request: Request) -> Decided:
    """A request in short. While it is open, `votes` is how many agree by now, at most."""
    settled = request.settled
    votes = agreeing(request, settled) if settled else ()
    if request.outcome == "open":
        votes = request.votes
    return Decided(
        request=request.id,
        kind=request.kind,
        outcome=request.outcome,
        text=settled.text[:TEXT_LIMIT] if settled else "",
        tool=request.tool,
        by=tuple(vote.by for vote in votes if vote.by),
        verified=bool(votes) and all(vote.verified for vote in votes),
        digest=settled.digest if settled else request.digest,
        at=request.closed or 0,
        votes=max((len(agreeing(request, vote)) for vote in votes), default=0),
        at_deadline=request.at_deadline if request.outcome == "expired" else None,
        needed=request.quorum,
    )


def listed(requests: Sequence[Request]) -> str:
    """Requests with what a decision must name: `r1 (digest ...), r2 (digest ...), 3 more`."""
    few = [f"{request.id} (digest {request.digest})" for request in requests[:LISTED]]
    more = len(requests) - len(few)
    return ", ".join([*few, f"{more} more"] if more else few)


def content_of(decision: Decision) -> str:
    """Digest of what a decision says; its id and its signature are no part of it."""
    return digest(decision.model_dump(mode="json", exclude={"id", "signature"}, exclude_defaults=True))


def id_of(ticket: Ticket, decision: Decision) -> str:
    """The decision's id; without one, its content is its id, anew for each group that is asked."""
    return decision.id or f"{content_of(decision)}.{ticket.level}"


def heard_as(ticket: Ticket, decision: Decision) -> str:
    """What a decision is known by: nobody can use up another person's ids."""
    return canonical([decision.by, id_of(ticket, decision)])


def named(by: str, verified: bool) -> str:
    """Who, and whether that is only claimed."""
    return f"{by or 'somebody'} ({'verified' if verified else 'claimed'})"


MOMENTS: dict[Event, Moment | None] = {
    "Requested": "opened",
    "Voted": None,
    "Decided": "closed",
    "Expired": "closed",
    "Escalated": "opened",
    "Warned": "expiring",
    "Withdrawn": "closed",
}


def told(
    event: Event, request: Request, *, by: str = "deadline", reason: str = "", vote: Vote | None = None
) -> Told:
    """What is told of an event; of a vote, who gave it and what was said."""
    return Told(
        event=event,
        by=named(vote.by, vote.verified) if vote else by,
        reason=vote.text if vote else reason or request.text,
        about=_vote_facts(request, vote) if vote else _facts(request),
        moment=MOMENTS[event],
        request=request,
    )


def _facts(request: Request) -> JsonObject:
    facts: JsonObject = {
        "request": request.id,
        "kind": request.kind,
        "place": request.place,
        "tool": request.tool,
        "arguments": _short(request.arguments),
        "digest": request.digest,
        "because": request.because,
        "options": list(request.options),
        "group": request.group,
        "approvers": list(request.approvers),
        "quorum": request.quorum,
        "deadline": request.deadline,
        "at_deadline": request.at_deadline if request.deadline is not None else None,
        "outcome": request.outcome,
    }
    return {name: value for name, value in facts.items() if value not in (None, "", [])}


def _vote_facts(request: Request, vote: Vote) -> JsonObject:
    facts: JsonObject = {
        "request": request.id,
        "kind": request.kind,
        "place": request.place,
        "tool": request.tool,
        "decision": vote.verb,
        "id": vote.id,
        "by": vote.by,
        "verified": vote.verified,
        "asked": request.digest,
        "digest": vote.digest,
        "arguments": _short(vote.arguments),
        "amounts": dict(vote.amounts) or None,
        "remember": vote.remember.model_dump(mode="json", exclude_defaults=True) if vote.remember else None,
        "votes": len(agreeing(request, vote)),
        "needed": request.quorum,
        "outcome": request.outcome,
    }
    return {name: value for name, value in facts.items() if value is not None}


def thin(request: Request) -> Request:
    """A closed request without long arguments: they are not needed any more, their digest stays."""
    votes = tuple(vote.model_copy(update={"arguments": _short(vote.arguments)}) for vote in request.votes)
    settled = request.settled and request.settled.model_copy(
        update={"arguments": _short(request.settled.arguments)}
    )
    return request.model_copy(
        update={"arguments": _short(request.arguments), "votes": votes, "settled": settled}
    )


def _short(arguments: JsonObject | None) -> JsonObject | None:
    """The arguments, when they are short enough to be kept once more."""
    return arguments if arguments is not None and len(canonical(arguments)) <= ARGUMENTS_LIMIT else None
