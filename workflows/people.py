"""What people and runs exchange: who may decide, which calls are asked about, requests, decisions, commands.

`Approvals` and `People` stand in the agent file and travel with the task; a `Request` is what a run asks,
a `Decision` answers it, a `Command` steers the run. All of it is plain data: no text of a model or a tool
can change it. `workflows/gate/` holds what is done with it, and in `rules` what the agent's author writes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from activities.contracts import Frozen, JsonObject, Strict, ToolEffect
from workflows.gate.canonical import unwritable
from workflows.gate.rules import (
    EFFECTS_ASKED,
    ApprovalRule,
    Approvals,
    Asking,
    AtDeadline,
    Condition,
    Group,
    Kind,
    Mode,
    Moment,
    Path,
    People,
    Person,
    Verb,
)

__all__ = [
    "Approvals", "ApprovalRule", "Asking", "AtDeadline", "Command", "CommandDone", "Condition", "Decided",
    "Decision", "DoneCall", "EffectsPage", "Group", "Kind", "Mode", "Moment", "Outcome", "People",
    "Person", "Remember", "Request", "RequestsPage", "Verb", "Vote", "EFFECTS_ASKED",
]  # fmt: skip

# -- what a run asks --------------------


class Remember(Strict):
    """Approve later calls of the same tool, too, for the rest of this run: those whose arguments fit."""

    arguments: dict[Path, Condition] = Field(
        default_factory=dict, max_length=100, description="an argument that is not named may be anything"
    )
    same: bool = Field(default=False, description="exactly the arguments of this request, and no others")


class Vote(Frozen):
    """One decision that counts for a request, as it came."""

    id: str
    verb: Verb
    by: str
    verified: bool
    """The signature was checked against the group's key; else the name is only claimed."""
    at: float
    text: str = ""
    arguments: JsonObject | None = None
    digest: str = ""
    """Of what was decided upon; for an edit, of the new arguments."""
    amounts: dict[str, float] = {}
    remember: Remember | None = None


Outcome = Literal[
    "open", "approved", "rejected", "edited", "answered", "resumed", "retried", "topped_up", "finished",
    "aborted", "expired", "withdrawn",
]  # fmt: skip
"""expired: nobody decided in time. withdrawn: a rollback, an abort or the end of the run came first."""


class Request(Frozen):
    """What a run asks people."""

    id: str
    """`r1`, `r2`, ... in the order in which they were opened; unique in the run."""
    kind: Kind
    run: str
    """Workflow id."""
    machine: str
    state: str
    step: int
    place: str
    """Activity id of what waits, such as `action#3:1`."""
    text: str
    """What is asked, for a person."""
    tool: str | None = None
    arguments: JsonObject | None = None
    """What the tool is to be called with."""
    digest: str
    """32 hexadecimal characters over run, place, kind, tool and arguments, and the group once another one is
    asked: a decision must name it."""
    because: str = ""
    """approval: the entry of `approvals` that asks, such as `rules.0` or `effects.unsafe`."""
    options: tuple[Verb, ...]
    created: float
    """Seconds since 1970, as all times here."""
    deadline: float | None = None
    at_deadline: AtDeadline = "reject"
    group: str | None = None
    approvers: tuple[str, ...] = ()
    """Empty: anybody."""
    signed: bool = False
    """Only decisions signed by one of the approvers count."""
    quorum: int = 1
    escalate_to: tuple[str, ...] = ()
    """Groups that are asked next."""
    warn_at: float | None = None
    votes: tuple[Vote, ...] = ()
    outcome: Outcome = "open"
    closed: float | None = None
    settled: Vote | None = None
    """The vote that decided: verb, text, arguments, amounts; None when nobody did."""


class RequestsPage(Frozen):
    """Requests: those that are open, then the newest closed ones."""

    open: tuple[Request, ...]
    closed: tuple[Request, ...] = ()
    next: int
    """Of the open ones, where to ask on from."""
    total: int
    """How many are open."""
    paused: bool = False


class Decided(Frozen):
    """A closed request, as the result and the updates tell of it."""

    request: str
    kind: Kind
    outcome: Outcome
    text: str = ""
    tool: str | None = None
    by: tuple[str, ...] = ()
    verified: bool = False
    """All who decided had signed."""
    digest: str = ""
    at: float = 0
    votes: int = 0
    at_deadline: AtDeadline | None = None
    """expired: what that came to."""
    needed: int = 1
    """As long as `outcome` is open: so many must say the same."""


# -- what people say --------------------

Id = Annotated[str, StringConstraints(max_length=200)]
Name = Annotated[str, StringConstraints(max_length=100)]
Words = Annotated[str, StringConstraints(max_length=20_000)]


def _writable(arguments: JsonObject) -> JsonObject:
    if fault := unwritable(arguments):
        raise ValueError(fault)
    return arguments


Arguments = Annotated[JsonObject, AfterValidator(_writable)]
"""Of a tool; they can be written into the log, also when the decision is refused."""


class Decision(Strict):
    """An answer to a request; signal and update `decide`."""

    request: str = Field(max_length=100)
    digest: str = Field(max_length=64, description="the request's: what you saw is what you decide upon")
    decision: Verb
    id: Id = Field(default="", description="of this decision; a repeat of it is harmless")
    by: str = Field(default="", max_length=100)
    text: Words = Field(default="", description="comment, answer or result")
    arguments: Arguments | None = Field(default=None, description="for `edit`: all of the new ones")
    amounts: dict[Name, float] = Field(
        default_factory=dict, max_length=100, description="for `topup`: counter -> how much more"
    )
    remember: Remember | None = None
    signature: str = Field(default="", max_length=200, description="Ed25519, base64; see `gate/signing.py`")


class Command(Strict):
    """An order to a run; signal and update `command`."""

    command: Literal["pause", "resume", "abort", "steer", "rollback", "limits"]
    id: Id = ""
    by: str = Field(default="", max_length=100)
    text: Words = Field(default="", description="steer: the message; else the reason")
    at_once: bool = Field(default=False, description="pause: do not wait for the current effect")
    step: int | None = Field(
        default=None, ge=0, description="rollback: the step to begin again; 0: the start"
    )
    compensate: bool = Field(default=False, description="rollback: undo what can be undone since then")
    limits: dict[Name, float | None] = Field(
        default_factory=dict, max_length=100, description="counter -> new cap of the run; null: none"
    )
    signature: str = Field(default="", max_length=200)


class CommandDone(Frozen):
    """What became of a command."""

    command: str
    text: str
    """For a person."""
    step: int = 0
    branch: int = 0
    paused: bool = False
    undone: tuple[str, ...] = ()
    """What compensations did."""


# -- what was done --------------------


class DoneCall(Frozen):
    """A call that changed something outside, or may have; for the report before a rollback."""

    step: int
    branch: int
    place: str
    tool: str
    arguments: JsonObject
    effect: ToolEffect
    output: str = ""
    """Cut."""
    error: str | None = None
    key: str = ""
    """Its idempotency key."""
    undoable: bool = False
    """The tool declares a compensation."""
    undone: str | None = None
    """What the compensation said."""


class EffectsPage(Frozen):
    """Calls with outside effects since a step, oldest first."""

    since_step: int
    calls: tuple[DoneCall, ...]
    next: int
    total: int
