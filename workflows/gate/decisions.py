"""Does a decision or a command count? Each rule says why not, to the person who sent it. Pure.

What is signed (Ed25519) is a line that names the purpose, and canonical JSON: the run's workflow id, and the
message without its signature and without fields at their default. The digest binds a decision to one request
of one run; a command is bound by `origin`, the first run id of the chain, since workflow ids are used again.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from activities.contracts import Frozen, JsonObject
from workflows.gate.approvals import ApprovalPolicy, RequiredApproval, person_label, reaches
from workflows.gate.arguments import TooMuch, argument_problem, arguments_for, condition_problem
from workflows.gate.texts import utc_text
from workflows.kernel.canonical import canonical, digest_of
from workflows.kernel.labels import names
from workflows.people import Command, Decision, Group, People, Request, StandingApproval, same_person

__all__ = [
    "CommandGate",
    "DecisionRules",
    "IMMEDIATE",
    "Refused",
    "check_signature",
    "content_digest",
    "request_list",
    "sign",
    "signature_fits",
    "signed_content",
    "unchanged",
]

IMMEDIATE = ("reject", "abort")
"""Decisions of one person that close a request, whatever its quorum."""
VOTES_LIMIT = 100
"""Votes on one request that do not agree; then only `reject` and `abort` are left."""
AMOUNT_LIMIT = 10**12
"""The largest top-up."""
MAX_NAMED_REQUESTS = 5
"""Open requests that a refusal names."""
MAX_NAMED_PEOPLE = 10
"""People and groups that a refusal names."""


class Refused(Exception):
    """A decision or a command that does not count; `reason` is for the person who sent it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# -- signatures --------------------


def content_digest(message: Decision | Command) -> str:
    """Digest of what a message says, without id, time and signature: equal content is a repeat."""
    envelope = {"id", "made_at", "signature"}
    return digest_of(message.model_dump(mode="json", exclude=envelope, exclude_defaults=True))


def signed_content(run: str, message: Decision | Command, origin: str = "") -> bytes:
    """The bytes that a signature is over. `run` is the workflow id, `origin` the first run id of its chain.

    Raises ValueError for a command without `origin`.
    """
    said = message.model_dump(mode="json", exclude={"signature"}, exclude_defaults=True)
    if isinstance(message, Decision):
        return b"ratchet decision v1\n" + canonical({"run": run, "message": said})
    if not origin:
        raise ValueError("a command is signed for one run: give `origin`, its first run id")
    return b"ratchet command v1\n" + canonical({"run": run, "origin": origin, "message": said})


def sign(key: Ed25519PrivateKey, content: bytes) -> str:
    """The signature in base64, for the message's `signature`."""
    return base64.b64encode(key.sign(content)).decode()


def check_signature(
    message: Decision | Command, keys: Mapping[str, str], contents: Sequence[bytes], what: str
) -> None:
    """Raises Refused for a message that has no id, or no signature of its sender over one of the contents."""
    if not any(signature_fits(keys, message.by, content, message.signature) for content in contents):
        wrong = "the signature does not fit" if message.signature else "there is no signature"
        raise Refused(
            f"{what} must be signed with the key of {message.by}; {wrong}. Sign it, for example with "
            "`ratchet ... --key FILE`."
        )
    if not message.id:
        raise Refused(f"{what}, when signed, needs an `id`, so that it counts once. Add one and sign again.")


def signature_fits(keys: Mapping[str, str], by: str, content: bytes, signature: str) -> bool:
    """The signature is `by`'s over the content. Never raises: junk is not a signature."""
    if by not in keys:
        return False
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(keys[by], validate=True))
        key.verify(base64.b64decode(signature, validate=True), content)
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


# -- decisions --------------------


@dataclass(frozen=True, slots=True)
class DecisionRules:
    """The rules for decisions, and what they need to know of the run."""

    policy: ApprovalPolicy
    workflow_id: str

    def check(
        self, request: Request, decision: Decision, required: RequiredApproval | None, now: float
    ) -> JsonObject | None:
        """The new arguments of an edit, fitted to the tool; None for other decisions.

        `required` is how an approval was opened. Raises Refused with the first rule that is broken.
        """
        _check_still_asked(request, decision, now)
        _check_in_time(request, decision, now)
        self._check_sender(request, decision)
        _check_fields(request, decision)
        if len(request.votes) >= VOTES_LIMIT and decision.decision not in IMMEDIATE:
            raise Refused(
                f"{VOTES_LIMIT} people disagree on {request.id}; it can only be rejected or aborted."
            )
        if decision.decision == "topup":
            _check_amounts(request, decision)
        if decision.standing_approval is not None:
            self._check_standing(request, decision.standing_approval)
        if decision.decision == "edit":
            return self._edited_arguments(request, decision, required)
        return None

    def _check_sender(self, request: Request, decision: Decision) -> None:
        name = decision.by
        if not name and (request.approvers or request.quorum > 1):
            raise Refused(f"{request.id} is decided by {_deciders(request)}; say who you are (`by`).")
        if request.approvers and name not in request.approvers:
            raise Refused(f"{name} may not decide on {request.id}; {_deciders(request)} may.")
        if request.signed:
            keys = self.policy.people.group_named(request.group).keys
            content = signed_content(self.workflow_id, decision)
            check_signature(decision, keys, [content], f"A decision on {request.id}")
        if name and any(same_person(vote.by, name) for vote in request.votes):
            raise Refused(f"{name} has decided on {request.id} already; each person has one vote.")

    def _check_standing(self, request: Request, standing: StandingApproval) -> None:
        spec = self.policy.specs.get(request.tool or "")
        for name, condition in standing.arguments.items():
            problem = condition_problem(condition)
            if not problem and spec is not None:
                problem = argument_problem(name, condition, spec)
            if problem:
                raise Refused(f"standing_approval.arguments.{name}: {problem}.")

    def _edited_arguments(
        self, request: Request, decision: Decision, required: RequiredApproval | None
    ) -> JsonObject:
        spec = self.policy.specs.get(request.tool or "")
        if spec is None:
            raise Refused(f"The run has no tool {request.tool!r} any more; reject {request.id} or abort.")
        if decision.arguments is None:
            raise Refused(f"An edit of {request.id} needs `arguments`: all new ones, as a JSON object.")
        fitted = arguments_for(spec, decision.arguments)
        if isinstance(fitted, str):
            raise Refused(f"{request.id}: {fitted}. Correct them and send the edit again.")
        self._check_same_people(request, fitted, required)
        return fitted

    def _check_same_people(
        self, request: Request, arguments: JsonObject, required: RequiredApproval | None
    ) -> None:
        """Who may approve a small payment may not turn it into one that others must approve."""
        spent_usd = required.spent_usd if required else 0
        labels = required.labels if required else names(request.labels)
        try:
            after = self.policy.required_approval(
                request.tool or "", arguments, spent_usd=spent_usd, labels=labels
            )
        except TooMuch as problem:
            raise Refused(
                f"These arguments cannot be judged: {problem} against the approval rules. Give shorter ones."
            ) from None
        if after is None:
            return
        if after.mode == "reject":
            why = after.bound.passed_text if after.bound else f"{after.rule} rejects it"
            raise Refused(
                f"With these arguments the call would not be made: {why}. Give others, or reject it."
            )
        first = required.settings.group if required else request.group
        group = after.settings.group
        same = group is not None and reaches(after.settings, first, request.group)
        # After an escalation, the present group decides as it would on such a call.
        settings = after.settings.model_copy(update={"group": request.group}) if same else after.settings
        needed = self.policy.people.quorum_for(settings)
        if not (same or group is None) or needed > request.quorum:
            raise Refused(
                f"With these arguments, {needed} of {group or 'all people'} must approve the call "
                f"({after.rule}). Reject {request.id} with a comment, so that the agent asks again."
            )


def unchanged(request_id: str, before: JsonObject | None, after: JsonObject) -> str:
    """Why arguments that fit the tool are no edit of the call that is asked about; empty: they change it."""
    if before is None or canonical(after) != canonical(before):
        return ""
    return f"{request_id}: these are the arguments that the model gave; change them, or approve the call."


def request_list(requests: Sequence[Request]) -> str:
    """Open requests with what a decision must name: `r1 (digest ...), r2 (digest ...), 3 more`."""
    named = [f"{request.id} (digest {request.digest})" for request in requests[:MAX_NAMED_REQUESTS]]
    more = len(requests) - len(named)
    return ", ".join([*named, f"{more} more"] if more else named) or "none"


def _check_still_asked(request: Request, decision: Decision, now: float) -> None:
    if request.closed is not None:
        vote = request.deciding_vote
        by = f" by {vote.by or 'somebody'}" if vote else ""
        ago = f"{max(now - request.closed, 0):.0f} s ago"
        raise Refused(f"{request.id} is closed: {request.outcome}{by} at {utc_text(request.closed)} ({ago}).")
    if decision.digest != request.digest:
        raise Refused(
            f"{request.id} has the digest {request.digest}, and the decision names "
            f"{decision.digest or 'none'}: it is mistyped, or the request changed after you saw it. Reload "
            "the request and decide again."
        )
    if decision.decision not in request.options:
        raise Refused(
            f"{request.id} cannot be decided by {decision.decision!r}; options: {', '.join(request.options)}."
        )


def _check_in_time(request: Request, decision: Decision, now: float) -> None:
    """A request is still open after its deadline if no worker ran. Temporal does not tell a run when a
    message came, so the sender's clock decides: what lets something happen counts if it was made in time,
    and says so.
    """
    if request.deadline is None or now < request.deadline:
        return  # heard in time, whatever the sender's clock says
    made_at = decision.made_at
    if decision.decision in IMMEDIATE:
        return
    late = f"{request.id} was to be decided before {utc_text(request.deadline)}"
    if made_at is None:
        raise Refused(
            f"{late}; the run heard this decision later, and it does not say when it was made. A decision "
            "that was made in time says so in `made_at` (seconds since 1970)."
        )
    if made_at >= request.deadline:
        raise Refused(f"{late}; this decision was made {made_at - request.deadline:.1f} s later.")
    if made_at < request.created:
        raise Refused(
            f"{late}; this decision says that it was made {request.created - made_at:.1f} s before "
            f"{request.id} was opened: set the clock of the computer that sends it."
        )


def _check_fields(request: Request, decision: Decision) -> None:
    """A field of another verb is refused: who sends new arguments does not mean `approve`."""
    verb, standing = decision.decision, decision.standing_approval
    for name, there, owner in (
        ("arguments", decision.arguments is not None, "edit"),
        ("amounts", bool(decision.amounts), "topup"),
        ("standing_approval", standing is not None, "approve"),
    ):
        if there and verb != owner:
            raise Refused(f"`{name}` belongs to {owner}, not to {verb}; leave it out.")
    if standing is not None and request.kind != "approval":
        raise Refused("`standing_approval` belongs to the approval of a call; leave it out.")
    if verb == "answer" and not decision.text.strip():
        raise Refused(f"An answer to {request.id} needs a `text` that is not blank.")


def _check_amounts(request: Request, decision: Decision) -> None:
    subject = request.arguments or {}
    counter, cap = subject.get("counter"), subject.get("cap")
    example = f'for example {{"{counter or "model_calls"}": 10}}'
    if not decision.amounts:
        raise Refused(f"A top-up needs `amounts`: counter and how much more, {example}.")
    for name, amount in decision.amounts.items():
        if counter is not None and name != counter:
            raise Refused(
                f"{request.id} is about {counter}, not about {name!r}; top that up ({example}). "
                "The command `limits` changes other limits."
            )
        if not 0 < amount <= AMOUNT_LIMIT:
            raise Refused(f"{name} {amount:.15g}: expected an amount above 0 and at most {AMOUNT_LIMIT:g}.")
        # A float has 15 digits: a smaller amount would not raise the cap, and the run would ask again.
        if isinstance(cap, int | float) and not cap < float(cap) + amount:
            raise Refused(f"{amount:.15g} more {name} does not raise the limit of {cap:.15g}; give more.")


def _deciders(request: Request) -> str:
    if not request.approvers:
        return f"{request.quorum} different people"
    more = len(request.approvers) - MAX_NAMED_PEOPLE
    names = ", ".join(request.approvers[:MAX_NAMED_PEOPLE]) + (f" and {more} more" if more > 0 else "")
    return f"{names} ({request.group})"


# -- commands --------------------

UNSIGNED_IDS = 1_000
"""Ids of unsigned commands that are known. Of signed ones all are: an old one could be sent again."""
PASSED_DOWN = ("pause", "resume")
"""Commands that a run passes to its child run, with the signature for the run above."""


class _CommandsDump(Frozen):
    accepted: dict[str, str]
    refused: tuple[str, ...]


class CommandGate:
    """The commands of one run: who may give them, and which came already."""

    def __init__(
        self,
        people: People,
        workflow_id: str,
        origin: str,
        *,
        parents: Sequence[tuple[str, str]] = (),
        old_ids: Sequence[str] = (),
    ) -> None:
        """`origin` is the first run id of the chain. `parents` are the runs above this child run, as workflow
        id and first run id: what was signed for them may pause and resume this run too, but not the commands
        with `old_ids`, which they had accepted before it began."""
        self.people = people
        self._runs = ((workflow_id, origin), *parents)
        self._old_ids = tuple(old_ids)
        self._accepted: dict[str, str] = {}
        """Id -> digest of the content."""
        self._refused: list[str] = []
        """Ids of accepted commands that were not obeyed."""

    def dump(self) -> JsonObject:
        """All that `load` needs, as JSON."""
        carried = _CommandsDump(accepted=self._accepted, refused=tuple(self._refused))
        return carried.model_dump(mode="json")

    def load(self, carried: JsonObject) -> None:
        """Take over the commands of the execution before. Raises ValueError for what is not a dump."""
        known = _CommandsDump.model_validate(carried)
        self._accepted, self._refused = dict(known.accepted), list(known.refused)

    @property
    def signed_ids(self) -> tuple[str, ...]:
        """The `old_ids` of a child run that begins now."""
        return (*self._old_ids, *self._accepted) if self._group.keys else ()

    @property
    def _group(self) -> Group:
        return self.people.group_named(self.people.commands)

    def check(self, command: Command) -> None:
        """Raises Refused for a person who may not command, a signature that does not fit, or an id that was
        used for another command. A repeat passes."""
        group, name = self._group, command.by
        if group.approvers and name not in group.approvers:
            may = ", ".join(group.approvers[:MAX_NAMED_PEOPLE])
            raise Refused(
                f"{name or 'A sender without a name'} may not command this run; {may} may "
                f"({self.people.commands}). Name one of them in `by`."
            )
        self._check_not_around_approval(command)
        if group.keys:
            passed_down = command.command in PASSED_DOWN and command.id not in self._old_ids
            runs = self._runs if passed_down else self._runs[:1]
            contents = [signed_content(run, command, origin) for run, origin in runs]
            check_signature(command, group.keys, contents, "A command to this run")
        if command.id in self._accepted and not self.is_repeat(command):
            raise Refused(f"Another command has the id {command.id!r}; give each its own id.")

    def _check_not_around_approval(self, command: Command) -> None:
        """What a group must approve, nobody else may cause by a command."""
        causes = "limits" if command.command == "limits" else "compensate" if command.compensate else ""
        groups = [name for name, group in self.people.groups.items() if group.approvers]
        if causes and groups and self.people.commands is None:
            raise Refused(
                f"`{causes}` does what people must approve here, but anybody may command this run. Set "
                f"`people.commands` in the agent file to a group ({', '.join(groups[:MAX_NAMED_PEOPLE])})."
            )

    def is_repeat(self, command: Command) -> bool:
        """This command was accepted before; a command without id is always new."""
        return command.id in self._accepted and self._accepted[command.id] == content_digest(command)

    def accept(self, command: Command) -> str:
        """Remember its id; who gave it, as the log shows it. Raises Refused as `check` does."""
        self.check(command)
        if command.id:
            self._accepted[command.id] = content_digest(command)
            if not self._group.keys and len(self._accepted) > UNSIGNED_IDS:
                del self._accepted[next(iter(self._accepted))]
        return person_label(command.by, bool(self._group.keys))

    def refuse(self, command: Command) -> None:
        """Remember that an accepted command was not obeyed, for the answer to a repeat."""
        if self.is_repeat(command):
            self._refused = [id for id in (*self._refused, command.id) if id in self._accepted]

    def was_refused(self, command: Command) -> bool:
        """It is a repeat of a command that was not obeyed; the log says why."""
        return self.is_repeat(command) and command.id in self._refused
