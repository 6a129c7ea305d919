"""All requests of one run: open, decide, escalate, expire, withdraw. Pure.

Nothing here waits or reads a clock: the loop brings the time, and takes the events into the log. The order in
which messages and deadlines are brought decides, and nothing else does.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, NamedTuple, Self

from activities.contracts import Frozen, JsonObject, Label, LabelSource, NoticeMoment, ToolCall
from workflows.gate.approvals import (
    ApprovalPolicy,
    Grant,
    RequiredApproval,
    agreeing_votes,
    granted,
    person_label,
    problem_text,
    problems,
    vote_content,
)
from workflows.gate.arguments import Budget
from workflows.gate.decisions import (
    IMMEDIATE,
    DecisionRules,
    Refused,
    content_digest,
    request_list,
    unchanged,
)
from workflows.gate.texts import Topic, outcome_text
from workflows.kernel.canonical import canonical, digest_of
from workflows.people import Decided, Decision, Kind, Request, RequestOutcome, RequestSettings, Verb, Vote

__all__ = ["OUTCOMES", "RequestPlace", "RequestEvent", "RequestState", "Requests"]

MAX_CLOSED_REQUESTS = 100
"""Closed requests of earlier steps that are kept; those of the newest step are all kept."""
SHORT_ARGUMENTS_BYTES = 2_000
"""Bytes of JSON up to which arguments are written into the log, and kept after their step. The digest always
is."""
COMMENT_CHARS = 1_000
"""Characters of a comment in a `Decided`, and in what the log says of a vote beside its reason."""
FACTS = {
    "kind", "activity_id", "tool", "digest", "rule", "bound", "labels", "options", "group", "approvers",
    "quorum", "deadline", "at_deadline",
}  # fmt: skip
"""Fields of a request that the log shows."""

OUTCOMES: dict[Verb, RequestOutcome] = {
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


class CallNeeds(NamedTuple):
    """What a call needs."""

    required: RequiredApproval | None
    """The approval that it needs; None: it may be made."""
    earlier: Grant | None
    """The approval of such calls, given earlier in the run, by which it may be made."""
    policy: RequiredApproval
    """What the policy says of it, whoever has approved such calls."""


class RequestPlace(Frozen):
    """Where a run is when it opens a request."""

    machine: str
    state: str
    step: int
    activity_id: str
    """Of what waits; unique in the run, also after a rollback. A request is opened once for each activity,
    kind, tool and arguments, or words of a machine's question."""
    labels: tuple[LabelSource, ...] = ()
    """Of the run."""


EventName = Literal["Requested", "Voted", "Decided", "Warned", "Escalated", "Expired", "Withdrawn"]
MOMENTS: dict[EventName, NoticeMoment] = {
    "Requested": "opened",
    "Escalated": "opened",
    "Warned": "expiring",
    "Decided": "closed",
    "Expired": "closed",
    "Withdrawn": "closed",
}


class RequestEvent(Frozen):
    """Something that happened to a request, for the log and for the notification hook."""

    event: EventName
    by: str
    """`ann (claimed)`, `kernel` or `deadline`."""
    reason: str
    about: JsonObject
    """Facts for the log."""
    request: Request
    """As it is afterwards."""

    @property
    def moment(self) -> NoticeMoment | None:
        """When the notification hook is called; None: it is not."""
        return MOMENTS.get(self.event)


class RequestState(Frozen):
    """A request, and what only the run needs to know of it."""

    request: Request
    settings: RequestSettings
    required: RequiredApproval | None = None
    """How the call needs approval; also of the outcome of such a call."""
    first_digest: str
    """The request's digest before any escalation."""


class _Dump(Frozen):
    """What one execution hands to the next."""

    opened: int = 0
    states: tuple[RequestState, ...] = ()
    grants: tuple[Grant, ...] = ()
    events: tuple[RequestEvent, ...] = ()
    bounds: JsonObject = {}


class Requests:
    """The requests of one run. Times are seconds since 1970."""

    def __init__(self, policy: ApprovalPolicy, *, workflow_id: str, origin: str) -> None:
        """`origin` is the first run id of the chain. Raises ValueError for a policy that cannot work."""
        if found := problems(policy.approvals, policy.people):
            raise ValueError(problem_text(found))
        self.policy = policy
        self._run = (workflow_id, origin)
        self._rules = DecisionRules(policy, workflow_id)
        self._grants: list[Grant] = []
        """Oldest first."""
        self._states: dict[str, RequestState] = {}
        self._opened = 0
        self._events: list[RequestEvent] = []

    def dump(self) -> JsonObject:
        """All that `load` needs, as JSON."""
        carried = _Dump(
            opened=self._opened,
            states=tuple(self._states.values()),
            grants=tuple(self._grants),
            events=tuple(self._events),
            bounds=self.policy.bounds.dump(),
        )
        return carried.model_dump(mode="json")

    @classmethod
    def load(cls, carried: JsonObject, policy: ApprovalPolicy, *, workflow_id: str, origin: str) -> Self:
        """The requests of the execution before. Raises ValueError for what is not a dump."""
        requests = cls(policy, workflow_id=workflow_id, origin=origin)
        known = _Dump.model_validate(carried)
        policy.bounds.load(known.bounds)
        requests._opened, requests._events = known.opened, list(known.events)
        requests._states = {state.request.id: state for state in known.states}
        requests._grants = list(known.grants)
        return requests

    # -- which calls need approval --------------------

    def approval_for(
        self, call: ToolCall, *, spent_usd: float, labels: tuple[Label, ...] = (), activity_id: str = ""
    ) -> CallNeeds:
        """What approval this call needs, with fitted arguments. Raises TooMuch if that takes too long to say.

        It is about calls that were not asked about yet: what was decided on this very call is in its request.
        `spent_usd` includes what the runs above a child run had spent; `labels` are those of the run.
        """
        facts: Any = {"spent_usd": spent_usd, "labels": labels, "activity_id": activity_id}
        budget = Budget()
        judged = self.policy.judge(call.tool, call.arguments, budget=budget, **facts)
        if judged.passes:
            return CallNeeds(None, None, judged)
        wanted = (call.tool, call.arguments, self.policy.people.quorum_for(judged.settings), budget)
        earlier = next((one for one in self._grants if one.holds(judged, *wanted)), None)
        return CallNeeds(None if earlier else judged, earlier, judged)

    # -- opening --------------------

    def open(
        self, topic: Topic, place: RequestPlace, *, now: float, required: RequiredApproval | None = None
    ) -> Request:
        """Ask people. `required` says how, for a call that needs approval and for its outcome; otherwise the
        people's settings for the kind do.

        What was asked before at this activity is not asked again: that request is returned, open or closed,
        unless it was withdrawn. Raises ValueError for an unknown group.
        """
        activity_id = place.activity_id
        digest = self._digest(activity_id, topic.kind, topic.tool, topic.bound_to)
        for state in reversed(self._states.values()):
            if state.first_digest == digest and state.request.outcome != "withdrawn":
                return state.request
        settings = required.settings if required else self.policy.people.settings_for(topic.kind)
        request = Request(
            id=f"r{self._opened + 1}",
            run=self._run[0],
            digest=digest,
            rule=required.rule if required else "",
            bound=required.bound if required else None,
            created=now,
            at_deadline=settings.at_deadline,
            escalate_to=settings.escalate_to,
            **dict(topic),
            **dict(place),
        )
        request = self._put_to(settings.group, request, settings, now)
        self._opened += 1
        self._states[request.id] = RequestState(
            request=request, settings=settings, required=required, first_digest=digest
        )
        self._forget_old(request)
        self._tell("Requested", request, by="kernel", reason=request.text)
        return request

    def _digest(self, activity_id: str, kind: Kind, tool: str | None, arguments: JsonObject | None) -> str:
        """What a decision is bound to: the run, the activity, what is to be done."""
        return digest_of([*self._run, activity_id, kind, tool, arguments])

    def _put_to(self, name: str | None, request: Request, settings: RequestSettings, now: float) -> Request:
        """The request as this group gets it, with the whole time from now on."""
        group = self.policy.people.group_named(name)
        deadline = None if settings.deadline_seconds is None else now + settings.deadline_seconds
        warn_at = None
        if deadline is not None and settings.warn_seconds is not None:
            warn_at = deadline - settings.warn_seconds
        return request.model_copy(
            update={
                "group": name,
                "approvers": group.approvers,
                "signed": bool(group.keys),
                "quorum": settings.quorum or group.quorum,
                "deadline": deadline,
                "warn_at": warn_at,
                "votes": (),
            }
        )

    def _forget_old(self, newest: Request) -> None:
        """Old closed requests go. Those of the newest step stay: calls may still wait for others there."""
        past = [
            one for one in self.closed_requests if (one.machine, one.step) != (newest.machine, newest.step)
        ]
        for request in past[: max(len(past) - MAX_CLOSED_REQUESTS, 0)]:
            del self._states[request.id]
        for request in past[-MAX_CLOSED_REQUESTS:]:
            self._update(_with_short_arguments(request))

    # -- deciding --------------------

    def is_next(self, request_id: str) -> bool:
        """The request that is opened next will have this id."""
        return request_id == f"r{self._opened + 1}"

    def knows(self, digest: str) -> bool:
        """A request has this digest, or had it."""
        return any(digest in (one.request.digest, one.first_digest) for one in self._states.values())

    def check(self, decision: Decision, now: float) -> None:
        """Raises Refused, with the reason, for a decision that would not count, and for an edit that changes
        nothing. A repeat passes. Changes nothing."""
        state = self._state_for(decision)
        if self._is_repeat(decision):
            return
        request, edited = state.request, self._checked_arguments(state, decision, now)
        # only here: a history may have such an edit, and no replay asks this
        if edited is not None and (problem := unchanged(request.id, request.arguments, edited)):
            raise Refused(problem)

    def counts(self, decision: Decision, now: float) -> bool:
        """`decide` would count it now: it is neither refused nor a repeat. Changes nothing."""
        try:
            state = self._state_for(decision)
            if self._is_repeat(decision):
                return False
            self._checked_arguments(state, decision, now)
        except Refused:
            return False
        return True

    def decide(self, decision: Decision, now: float) -> Decided:
        """Count a decision; the state of its request afterwards. A repeat counts once. Raises Refused, and
        changes nothing then."""
        state = self._state_for(decision)
        if self._is_repeat(decision):
            return decision_summary(state.request)
        vote = self._vote(state.request, decision, self._checked_arguments(state, decision, now), now)
        request = state.request.model_copy(update={"votes": (*state.request.votes, vote)})
        self._update(request)
        if vote.verb in IMMEDIATE or len(agreeing_votes(request, vote)) >= request.quorum:
            request = self._close(request, OUTCOMES[vote.verb], now)
            if state.required is not None:
                self._grants += granted(request, state.required, self._grants)
            self._tell("Decided", request, reason=outcome_text(request), vote=vote)
        else:
            self._tell("Voted", request, reason=f"{request.id} {request.kind}: {vote.text}", vote=vote)
        return decision_summary(request)

    def _state_for(self, decision: Decision) -> RequestState:
        state = self._states.get(decision.request)
        if state is None:
            others = request_list(self.open_requests)
            raise Refused(f"This run has no request {decision.request!r}; open requests: {others}.")
        return state

    def _checked_arguments(self, state: RequestState, decision: Decision, now: float) -> JsonObject | None:
        try:
            return self._rules.check(state.request, decision, state.required, now)
        except Refused as refused:
            if state.request.is_open or not self.open_requests:
                raise
            others = request_list(self.open_requests)
            raise Refused(f"{refused.reason} Open requests: {others}.") from None

    def _is_repeat(self, decision: Decision) -> bool:
        """It counted before. Raises Refused when another decision of this person came under its id; nobody
        can use up the ids of another person."""
        content = content_digest(decision)
        sender = (decision.by, decision.id or content)
        votes = [(one.request.id, vote) for one in self._states.values() for vote in one.request.votes]
        for request_id, vote in votes:
            if (vote.by, vote.id) == sender:
                if vote.content != content:
                    raise Refused(
                        f"A decision on {request_id} has the id {decision.id!r} already; use a new one."
                    )
                return True
        return False

    def _vote(self, request: Request, decision: Decision, arguments: JsonObject | None, now: float) -> Vote:
        digest, content = request.digest, content_digest(decision)
        if arguments is not None:
            digest = self._digest(request.activity_id, request.kind, request.tool, arguments)
        return Vote(
            id=decision.id or content,
            content=content,
            verb=decision.decision,
            by=decision.by,
            verified=request.signed,
            at=now,
            made_at=decision.made_at,
            text=decision.text,
            arguments=arguments,
            digest=digest,
            amounts=decision.amounts,
            standing_approval=decision.standing_approval,
        )

    # -- time --------------------

    @property
    def next_deadline(self) -> float | None:
        """When `keep_deadlines` has something to do; None: never, as things are."""
        times = [
            time for one in self.open_requests for time in (one.deadline, one.warn_at) if time is not None
        ]
        return min(times, default=None)

    def keep_deadlines(self, now: float) -> None:
        """Warn, escalate and expire what is due."""
        for request in self.open_requests:
            if request.deadline is not None and now >= request.deadline:
                self._escalate(request, now) if request.escalate_to else self._expire(request, now)
            elif request.warn_at is not None and now >= request.warn_at:
                warned = request.model_copy(update={"warn_at": None})
                self._update(warned)
                self._tell("Warned", warned, reason=f"{request.id} {request.kind}: {request.text}")

    def _escalate(self, before: Request, now: float) -> None:
        """Pass it to the next group. The digest changes, so what was decided and signed before is void."""
        state = self._states[before.id]
        name, *others = before.escalate_to
        values = {
            "digest": digest_of([state.first_digest, *before.escalate_to]),
            "escalate_to": tuple(others),
            "at_deadline": "escalate" if others else "reject",
        }
        request = self._put_to(name, before.model_copy(update=values), state.settings, now)
        self._update(request)
        reason = f"{request.id} {request.kind}: nobody decided in time; now asks {name}"
        self._tell("Escalated", request, reason=reason)

    def _expire(self, before: Request, now: float) -> None:
        request = self._close(before, "expired", now)
        reason = (
            f"{request.id} {request.kind}: nobody decided in time; at the deadline: {request.at_deadline}"
        )
        self._tell("Expired", request, reason=reason)

    def withdraw(self, now: float, reason: str, kind: Kind | None = None, only: str | None = None) -> None:
        """Close all open requests, those of one kind, or `only` that one: a command or the end of the run
        came first."""
        for request in self.open_requests:
            if kind in (None, request.kind) and only in (None, request.id):
                withdrawn = self._close(request, "withdrawn", now)
                text = f"{request.id} {request.kind}: {reason}"
                self._tell("Withdrawn", withdrawn, by="kernel", reason=text, why=reason)

    # -- reading --------------------

    def get(self, request_id: str) -> Request:
        """The request, open or closed. Raises KeyError for one that is not kept."""
        return self._states[request_id].request

    def approval_of(self, request_id: str) -> RequiredApproval | None:
        """How a call needed approval; None for other requests, and for those that are not kept."""
        state = self._states.get(request_id)
        return state.required if state else None

    @property
    def open_requests(self) -> tuple[Request, ...]:
        """Oldest first."""
        return tuple(state.request for state in self._states.values() if state.request.is_open)

    @property
    def closed_requests(self) -> tuple[Request, ...]:
        """In the order in which they were closed."""
        closed = [state.request for state in self._states.values() if not state.request.is_open]
        return tuple(sorted(closed, key=lambda request: request.closed or 0))

    def decisions(self) -> tuple[Decided, ...]:
        """The newest closed requests, oldest first; for the run's result."""
        return tuple(decision_summary(request) for request in self.closed_requests[-MAX_CLOSED_REQUESTS:])

    def take_events(self) -> tuple[RequestEvent, ...]:
        """What has happened since this was called last, in order."""
        events, self._events = tuple(self._events), []
        return events

    # -- writing --------------------

    def _update(self, request: Request) -> None:
        self._states[request.id] = self._states[request.id].model_copy(update={"request": request})

    def _close(self, before: Request, outcome: RequestOutcome, now: float) -> Request:
        request = before.model_copy(update={"outcome": outcome, "closed": now, "warn_at": None})
        self._update(request)
        return request

    def _tell(
        self,
        event: EventName,
        request: Request,
        *,
        reason: str,
        by: str = "deadline",
        vote: Vote | None = None,
        why: str = "",
    ) -> None:
        about = _vote_facts(request, vote) if vote else _request_facts(request)
        self._events.append(
            RequestEvent(
                event=event,
                by=person_label(vote.by, vote.verified) if vote else by,
                reason=reason,
                about={**about, "text": why} if why else about,
                request=request,
            )
        )


def decision_summary(request: Request) -> Decided:
    """A request in short. While it is open, `votes` is how many agree by now, at most."""
    vote = request.deciding_vote
    votes = agreeing_votes(request, vote) if vote else request.votes if request.is_open else ()
    return Decided(
        request=request.id,
        kind=request.kind,
        outcome=request.outcome,
        text=vote.text[:COMMENT_CHARS] if vote else "",
        tool=request.tool,
        by=tuple(one.by for one in votes if one.by),
        verified=bool(votes) and all(one.verified for one in votes),
        digest=vote.digest if vote else request.digest,
        at=request.closed or 0,
        votes=max(Counter(map(vote_content, votes)).values(), default=0),
        needed=request.quorum,
        at_deadline=request.expiry,
    )


def _request_facts(request: Request) -> JsonObject:
    facts: JsonObject = request.model_dump(mode="json", include=FACTS, exclude_defaults=True)
    facts |= {"request": request.id, "outcome": request.outcome}
    arguments = _short(request.arguments)
    return facts if arguments is None else {**facts, "arguments": arguments}


def _vote_facts(request: Request, vote: Vote) -> JsonObject:
    facts: JsonObject = vote.model_dump(
        mode="json", exclude={"arguments", "at", "text", "content"}, exclude_defaults=True
    )
    facts |= {
        "request": request.id,
        "kind": request.kind,
        "activity_id": request.activity_id,
        "tool": request.tool,
        "asked": request.digest,
        "votes": len(agreeing_votes(request, vote)),
        "needed": request.quorum,
        "outcome": request.outcome,
        "arguments": _short(vote.arguments),
        "text": vote.text[:COMMENT_CHARS] or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _with_short_arguments(request: Request) -> Request:
    """A closed request without long arguments: nobody needs them any more, and their digest stays."""
    votes = tuple(vote.model_copy(update={"arguments": _short(vote.arguments)}) for vote in request.votes)
    return request.model_copy(update={"arguments": _short(request.arguments), "votes": votes})


def _short(arguments: JsonObject | None) -> JsonObject | None:
    return arguments if arguments is not None and len(canonical(arguments)) <= SHORT_ARGUMENTS_BYTES else None
