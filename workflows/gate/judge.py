"""Does a decision count? Each rule says for itself why not, in words for the person who sent it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from activities.contracts import ToolRun, ToolSpec
from workflows.gate.names import fault_of_name, same_person
from workflows.gate.policy import asking_for, reaches
from workflows.gate.schema import problem
from workflows.gate.signing import signed_content, verified
from workflows.gate.ticket import Refused, Ticket
from workflows.people import Approvals, Decision, Group, People, Request

__all__ = ["Judge", "ago"]

VOTES_LIMIT = 100
"""Votes on one request that do not agree; then only `reject` and `abort` are left."""
AMOUNT_LIMIT = 10**12
ONCE = ("reject", "abort")
"""Decide at once, whatever the quorum."""


def ago(then: float, now: float) -> str:
    """When something happened, for a person: `2026-05-01T12:00:00Z, 90 s ago`."""
    stamp = datetime.fromtimestamp(then, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"{stamp}, {max(now - then, 0):.0f} s ago"


@dataclass(frozen=True, slots=True)
class Judge:
    """The rules that a decision is held against, and what they need to know of the run."""

    people: People
    approvals: Approvals
    workflow_id: str
    specs: Mapping[str, ToolSpec]

    def check(self, ticket: Ticket, decision: Decision, now: float, waiting: str = "") -> None:
        """Raises Refused with the first rule that is broken: what it is about, who, what it says.

        `waiting` names the requests that are open, for who decides upon one that is not.
        """
        request = ticket.request
        _still_asked(request, decision, now, waiting)
        self._who(request, decision)
        _fits_the_verb(request, decision)
        if decision.decision == "edit":
            self._edit(ticket, decision)
        if decision.decision == "topup":
            _amounts(request, decision)
        if len(request.votes) >= VOTES_LIMIT and decision.decision not in ONCE:
            raise Refused(
                f"{request.id}: {VOTES_LIMIT} people do not agree; it can only be rejected or aborted"
            )

    def signed(self, request: Request, decision: Decision) -> bool:
        """The signature is one of the group's, by the person named."""
        content = signed_content(self.workflow_id, decision)
        return verified(self._group(request).keys, decision.by, content, decision.signature)

    def _group(self, request: Request) -> Group:
        return self.people.group_of(request.group)

    def _who(self, request: Request, decision: Decision) -> None:
        name = decision.by
        if (request.approvers or request.quorum > 1) and not name:
            who = f"by {_named(request)}" if request.approvers else f"by {request.quorum} different people"
            raise Refused(f"{request.id} is decided {who}; say who you are (`by`)")
        if fault := fault_of_name(name):
            raise Refused(f"`by`: {fault}")
        if request.approvers and name not in request.approvers:
            raise Refused(
                f"{name} is not among those who may decide on {request.id}: {_named(request)}; "
                "let one of them decide"
            )
        if request.signed and not self.signed(request, decision):
            came = "a signature that is not theirs" if decision.signature else "no signature"
            raise Refused(
                f"{request.id}: a decision by {name} must be signed with the key of {name}; this one has "
                f"{came}. Send it again, signed, such as with `ratchet ... --key FILE`"
            )
        if request.signed and not decision.id:
            raise Refused(
                f"{request.id}: a signed decision needs an `id`, so that it counts once; give it one, and "
                "sign it anew"
            )
        if name and any(same_person(vote.by, name) for vote in request.votes):
            raise Refused(f"{name} has decided on {request.id} already; each person has one vote")

    def _edit(self, ticket: Ticket, decision: Decision) -> None:
        request, arguments = ticket.request, decision.arguments
        spec = self.specs.get(request.tool or "")
        if spec is None:
            raise Refused(
                f"{request.id}: {request.tool or 'no tool'} is none of the run's tools; say abort or reject"
            )
        if arguments is None:
            raise Refused(f"{request.id}: an edit needs `arguments`: all of the new ones, as a JSON object")
        if fault := problem(spec.parameters, arguments):
            raise Refused(
                f"{request.id}: the arguments do not fit {spec.name}: {fault}; mend them and send again"
            )
        # Who may approve a small payment may not turn it into one that others must approve.
        run = ToolRun(id=request.place, tool=spec.name, arguments=arguments)
        asks = asking_for(self.approvals, self.people, spec, run, spent_usd=ticket.asking.spent_usd)
        if asks is None:
            return
        if asks.undecided:
            raise Refused(f"{request.id}: {asks.undecided}")
        # Who is asked after the silence of others says here what they would have to say of such a call.
        same = asks.group is not None and reaches(asks, ticket.asking.group, request.group)
        needed = self.people.quorum_of(asks.model_copy(update={"group": request.group}) if same else asks)
        if not (same or asks.group is None) or needed > request.quorum:
            raise Refused(
                f"{request.id}: with these arguments {needed} of {asks.group or 'all people'} must approve "
                f"the call ({asks.because}); reject it with a comment, so that it is asked for anew"
            )


def _named(request: Request) -> str:
    names = ", ".join(request.approvers[:10])
    more = len(request.approvers) - 10
    return f"{names}{f' and {more} more' if more > 0 else ''} ({request.group})"


def _still_asked(request: Request, decision: Decision, now: float, waiting: str) -> None:
    """The deadline itself is not looked at: what came while no worker ran still counts; what closes a
    request is its expiry, and that comes behind the messages that were there first."""
    if request.closed is not None:
        by = f" by {request.settled.by or 'somebody'}" if request.settled else ""
        others = f"; open are: {waiting}" if waiting else ""
        raise Refused(f"{request.id} is closed: {request.outcome}{by} ({ago(request.closed, now)}){others}")
    if decision.digest != request.digest:
        raise Refused(
            f"{request.id} asks about {request.digest}, the decision is on {decision.digest or 'nothing'}: "
            "what is asked is not what you saw; look at the request again and decide upon its digest"
        )
    if decision.decision not in request.options:
        raise Refused(
            f"{request.id} cannot be answered by {decision.decision!r}; "
            f"its options are {', '.join(request.options)}"
        )


def _fits_the_verb(request: Request, decision: Decision) -> None:
    """What belongs to another verb is refused: who sends new arguments does not mean `approve`."""
    verb = decision.decision
    stray = {
        "arguments": decision.arguments is not None and verb != "edit",
        "amounts": bool(decision.amounts) and verb != "topup",
        "remember": decision.remember is not None and (request.kind, verb) != ("approval", "approve"),
    }
    for name, there in stray.items():
        if there:
            goes = {"arguments": "edit", "amounts": "topup", "remember": "approve of a call"}[name]
            raise Refused(f"{request.id}: `{name}` goes with {goes}, not with {verb}; leave it out")
    if verb == "answer" and not decision.text.strip():
        raise Refused(f"{request.id}: an answer needs `text`, it is blank; write the answer there")


def _amounts(request: Request, decision: Decision) -> None:
    asked = request.arguments or {}  # as the loop puts a limit to people
    counter, cap = asked.get("counter"), asked.get("cap")
    example = f'for example {{"{counter or "model_calls"}": 10}}'
    if not decision.amounts:
        raise Refused(f"{request.id}: a top-up needs `amounts`: counter -> how much more, {example}")
    for name, amount in decision.amounts.items():
        if counter is not None and name != counter:
            raise Refused(
                f"{request.id} is about {counter}, not {name[:100]!r}; top that up ({example}); "
                "other limits are changed by the command `limits`"
            )
        if not (math.isfinite(amount) and 0 < amount <= AMOUNT_LIMIT):
            raise Refused(
                f"{request.id}: {name[:100]} {amount:g} is no amount; a number above 0 and at most "
                f"{AMOUNT_LIMIT:g} is expected"
            )
        # Floats have so many digits: what is too small to raise the cap would be asked about again at once.
        if isinstance(cap, int | float) and not cap < float(cap) + amount < math.inf:
            raise Refused(
                f"{request.id}: {amount:g} more {name[:100]} does not raise the limit of {cap:g}; "
                "give a larger amount"
            )
