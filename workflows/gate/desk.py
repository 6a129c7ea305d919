"""All requests of one run: what is open, who decided, what was remembered, what is due. Pure.

Nothing here waits or reads a clock: the loop brings the time, and takes `told` into the log. What is
decided is decided by the order in which messages and deadlines are brought, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Unpack

from pydantic import Field

from activities.contracts import Frozen, JsonObject, ToolRun, ToolSpec
from workflows.gate.commands import Commands
from workflows.gate.judge import ONCE, Judge
from workflows.gate.memory import Memory, Remembered
from workflows.gate.policy import Asked, asking_for, first_key
from workflows.gate.problems import problems, worded
from workflows.gate.ticket import (
    OUTCOMES,
    Matter,
    Refused,
    Ticket,
    Told,
    agreeing,
    content_of,
    decided_of,
    digest_for,
    digest_of,
    heard_as,
    id_of,
    listed,
    put_to,
    thin,
    told,
)
from workflows.people import (
    Approvals,
    Asking,
    Decided,
    Decision,
    Kind,
    Outcome,
    People,
    Request,
    Vote,
)

__all__ = ["Desk"]

CLOSED = 100
"""Closed requests of past steps that are kept; those of the step at hand all are."""


class _Kept(Frozen):
    """What a run of the chain hands to the next one."""

    opened: int = 0
    tickets: tuple[Ticket, ...] = ()
    remembered: tuple[Remembered, ...] = ()
    approved: tuple[str, ...] = ()
    first_by: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    commands: dict[str, str] = Field(default_factory=dict)
    refused: dict[str, str] = Field(default_factory=dict)
    told: tuple[Told, ...] = ()


class Desk:
    """The requests of one run. Times are seconds since 1970."""

    def __init__(
        self,
        people: People,
        approvals: Approvals,
        *,
        workflow_id: str,
        origin: str,
        specs: Mapping[str, ToolSpec],
    ) -> None:
        """`origin` is the first run id of the chain. Raises ValueError for a rule that asks nobody."""
        if faults := problems(approvals, people):
            raise ValueError(worded(faults))
        self.people, self.approvals = people, approvals
        self.run = (workflow_id, origin)
        self.specs = specs
        self.spent_before_usd = 0.0
        """What the runs above a child run had spent when it began; `cost_above` counts it."""
        self.told: list[Told] = []
        """What happened since the loop took it last, in order."""
        self._judge = Judge(people, approvals, workflow_id, specs)
        self.commands = Commands(people, workflow_id, origin)
        self._tickets: dict[str, Ticket] = {}
        self._opened = 0
        self._memory = Memory()

    # -- carried on --------------------

    def dump(self) -> JsonObject:
        """All that `load` needs, as JSON."""
        kept = _Kept(
            opened=self._opened,
            tickets=tuple(self._tickets.values()),
            remembered=tuple(self._memory.remembered),
            approved=tuple(self._memory.approved),
            first_by=self._memory.first_by,
            commands=self.commands.counted,
            refused=self.commands.refused,
            told=tuple(self.told),
        )
        return kept.model_dump(mode="json")

    @classmethod
    def load(
        cls,
        kept: JsonObject,
        people: People,
        approvals: Approvals,
        *,
        workflow_id: str,
        origin: str,
        specs: Mapping[str, ToolSpec],
    ) -> Desk:
        """The desk of the run before. Raises ValueError for what is no dump of a desk."""
        desk = cls(people, approvals, workflow_id=workflow_id, origin=origin, specs=specs)
        known = _Kept.model_validate(kept)
        desk._opened, desk.told = known.opened, list(known.told)
        desk._tickets = {ticket.request.id: ticket for ticket in known.tickets}
        desk._memory = Memory(known.remembered, known.approved, known.first_by)
        desk.commands.counted.update(known.commands)
        desk.commands.refused.update(known.refused)
        return desk

    # -- which calls ask --------------------

    def asks(self, run: ToolRun, *, spent_usd: float) -> Asked | None:
        """How this call is to be put to people; None: it may be made.

        It speaks of calls that were not asked about yet: what was decided on this very call is in its
        request, also when a later approval would let it pass.
        """
        asked = self._policy(run, spent_usd, self._memory.approved)
        return None if asked is None or self._covering(run, asked) else asked

    def remembered_by(self, run: ToolRun, *, spent_usd: float) -> tuple[str, ...]:
        """Who approved this call beforehand, or the first one of its kind, as the log says it; empty when
        nobody needs to, or somebody has to be asked."""
        asked = self._policy(run, spent_usd, self._memory.approved)
        if asked is not None:
            known = self._covering(run, asked)
            return known.names if known else ()
        first = self._policy(run, spent_usd, ())
        return self._memory.first_by.get(first_key(run.tool, first.because), ()) if first else ()

    def _policy(self, run: ToolRun, spent_usd: float, approved: Collection[str]) -> Asked | None:
        spec, spent = self.specs.get(run.tool), self.spent_before_usd + spent_usd
        return asking_for(self.approvals, self.people, spec, run, spent_usd=spent, approved=approved)

    def _covering(self, run: ToolRun, asked: Asked) -> Remembered | None:
        if asked.undecided:
            return None
        return self._memory.covering(run, self.specs[run.tool], asked, self.people.quorum_of(asked))

    # -- asking --------------------

    def ask(
        self, kind: Kind, place: str, *, now: float, asking: Asking | None = None, **matter: Unpack[Matter]
    ) -> Request:
        """Put a request to people; `asking` as `asks` said, else as `people` says of the kind.

        What was asked at this place already, with the same arguments, is not asked again: its request is
        returned, open or closed, unless it was withdrawn. Raises ValueError for a group that there is not.
        """
        tool, arguments = matter.get("tool"), matter.get("arguments")
        mark = digest_of(self.run, place, kind, tool, arguments)
        for ticket in reversed(self._tickets.values()):
            request = ticket.request
            if (request.kind, request.place, ticket.mark or request.digest) == (kind, place, mark):
                if request.outcome != "withdrawn":
                    return request
                break
        asked = Asked.model_validate((asking or self.people.asking_of(kind)).model_dump())
        values = {
            **matter,
            **put_to(self.people, asked, asked.group, now),
            "kind": kind, "place": place, "digest": mark, "run": self.run[0], "created": now,
            "id": f"r{self._opened + 1}", "because": asked.because,
            "at_deadline": asked.at_deadline, "escalate_to": asked.escalate_to,
        }  # fmt: skip
        request = Request.model_validate(values)
        self._opened += 1
        self._keep(Ticket(request=request, asking=asked))
        self._forget(request)
        self.told.append(told("Requested", request, by="kernel"))
        return request

    def _forget(self, newest: Request) -> None:
        """Old closed requests go; those of the step at hand stay, since calls may wait for others there."""
        past = [one for one in self.closed if (one.machine, one.step) != (newest.machine, newest.step)]
        for request in past[: max(len(past) - CLOSED, 0)]:
            del self._tickets[request.id]
        for request in past[-CLOSED:]:
            self._keep(self._tickets[request.id].model_copy(update={"request": thin(request)}))

    # -- deciding --------------------

    def check(self, decision: Decision, now: float) -> None:
        """Would it count, or is it a repeat? Raises Refused with the reason; changes nothing."""
        ticket = self._ticket(decision)
        if not self._repeats(ticket, decision):
            self._judge.check(ticket, decision, now, self.asked)

    def decide(self, decision: Decision, now: float) -> Decided:
        """Count it; what its request has come to by it. A repeat counts once. Raises Refused, and changes
        nothing then."""
        self.check(decision, now)
        ticket = self._ticket(decision)
        if self._repeats(ticket, decision):
            return decided_of(ticket.request)
        vote = self._vote(ticket, decision, now)
        heard = {**ticket.heard, heard_as(ticket, decision): content_of(decision)}
        request = ticket.request.model_copy(update={"votes": (*ticket.request.votes, vote)})
        ticket = ticket.model_copy(update={"heard": heard})
        agreed = agreeing(request, vote)
        if vote.verb in ONCE or len(agreed) >= request.quorum:
            request = self._close(ticket, request, OUTCOMES[vote.verb], now, vote)
            self._memory.learn(request, ticket.asking)
            self.told.append(told("Decided", request, vote=vote))
        else:
            self._keep(ticket.model_copy(update={"request": request}))
            self.told.append(told("Voted", request, vote=vote))
        return decided_of(request)

    def _ticket(self, decision: Decision) -> Ticket:
        ticket = self._tickets.get(decision.request)
        if ticket is None:
            none = f"there is no request {decision.request!r} in this run"
            raise Refused(f"{none}; open are: {self.asked or 'none'}")
        return ticket

    def _repeats(self, ticket: Ticket, decision: Decision) -> bool:
        """It came before. Raises Refused when another decision came under its id."""
        name, content = heard_as(ticket, decision), content_of(decision)
        for other in self._tickets.values():
            if name in other.heard:
                if other.heard[name] != content:
                    raise Refused(
                        f"another decision came under the id {decision.id!r}, on {other.request.id}; "
                        "give each its own id"
                    )
                return True
        return False

    def _vote(self, ticket: Ticket, decision: Decision, now: float) -> Vote:
        request, mark = ticket.request, ticket.request.digest
        if decision.arguments is not None:
            mark = digest_of(self.run, request.place, request.kind, request.tool, decision.arguments)
        return Vote(
            id=id_of(ticket, decision),
            verb=decision.decision,
            by=decision.by,
            verified=request.signed,
            at=now,
            text=decision.text,
            arguments=decision.arguments,
            digest=mark,
            amounts=decision.amounts,
            remember=decision.remember,
        )

    # -- time --------------------

    def due(self, now: float) -> None:
        """Whatever the time brings by now: warnings, other groups, expiry."""
        for request in self.open:
            ticket = self._tickets[request.id]
            if request.deadline is not None and now >= request.deadline:
                self._escalate(ticket, now) if request.escalate_to else self._expire(ticket, now)
            elif request.warn_at is not None and now >= request.warn_at:
                warned = request.model_copy(update={"warn_at": None})
                self._keep(ticket.model_copy(update={"request": warned}))
                self.told.append(told("Warned", warned))

    def next_moment(self) -> float | None:
        """When `due` has something to do next; None: never, as things are."""
        moments = [moment for r in self.open for moment in (r.deadline, r.warn_at) if moment is not None]
        return min(moments, default=None)

    def _escalate(self, ticket: Ticket, now: float) -> None:
        """The next group has the whole time, from now on; what others said counts no more."""
        before = ticket.request
        name, *others = before.escalate_to
        mark = ticket.mark or before.digest
        values = {
            **put_to(self.people, ticket.asking, name, now),
            "digest": digest_for(mark, ticket.level + 1, name),
            "escalate_to": tuple(others),
            "at_deadline": "escalate" if others else "reject",
            "votes": (),
        }
        request = before.model_copy(update=values)
        self._keep(ticket.model_copy(update={"request": request, "mark": mark}))
        reason = f"{before.group or 'those who were asked'} did not decide in time; {name} is asked"
        self.told.append(told("Escalated", request, reason=reason))

    def _expire(self, ticket: Ticket, now: float) -> None:
        request = self._close(ticket, ticket.request, "expired", now)
        reason = f"nobody decided in time; at the deadline: {request.at_deadline}"
        self.told.append(told("Expired", request, reason=reason))

    def withdraw(self, now: float, why: str, kind: str = "") -> None:
        """Close all open requests, or those of a `kind`: a command or the end of the run came first."""
        for request in self.open:
            if kind and request.kind != kind:
                continue
            withdrawn = self._close(self._tickets[request.id], request, "withdrawn", now)
            self.told.append(told("Withdrawn", withdrawn, by="kernel", reason=why))

    # -- what there is --------------------

    def get(self, request_id: str) -> Request:
        """The request, open or closed. Raises KeyError for one that is not kept."""
        return self._tickets[request_id].request

    def asking_of(self, request_id: str | None) -> Asked | None:
        """How the request was put to people at first; None where there is none."""
        ticket = self._tickets.get(request_id or "")
        return ticket.asking if ticket else None

    @property
    def open(self) -> tuple[Request, ...]:
        """Oldest first."""
        return tuple(t.request for t in self._tickets.values() if t.request.closed is None)

    @property
    def asked(self) -> str:
        """The open requests with what a decision must name, for who named another: `r1 (digest ...)`."""
        return listed(self.open)

    @property
    def closed(self) -> tuple[Request, ...]:
        """In the order in which they were closed."""
        closed = [t.request for t in self._tickets.values() if t.request.closed is not None]
        return tuple(sorted(closed, key=lambda request: request.closed or 0))

    def decided(self) -> tuple[Decided, ...]:
        """The newest 100 that are closed, oldest first."""
        return tuple(decided_of(request) for request in self.closed[-CLOSED:])

    @property
    def waiting(self) -> str:
        """Kind of the oldest open request, or the empty string."""
        return next((request.kind for request in self.open), "")

    @property
    def since(self) -> float | None:
        """When the oldest open request was made."""
        return next((request.created for request in self.open), None)

    @property
    def deadline(self) -> float | None:
        """The earliest of all open requests."""
        return min((r.deadline for r in self.open if r.deadline is not None), default=None)

    # -- writing it down --------------------

    def _keep(self, ticket: Ticket) -> None:
        self._tickets[ticket.request.id] = ticket

    def _close(
        self, ticket: Ticket, request: Request, outcome: Outcome, now: float, settled: Vote | None = None
    ) -> Request:
        values = {"outcome": outcome, "closed": now, "settled": settled, "warn_at": None}
        request = request.model_copy(update=values)
        self._keep(ticket.model_copy(update={"request": request}))
        return request
