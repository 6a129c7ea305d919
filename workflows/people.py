"""What people and runs exchange: who may decide, which calls need approval, requests, decisions, commands.

`Approvals` and `People` are sections of the agent file and travel with the task. A run opens a `Request`, a
`Decision` answers it, a `Command` steers the run. All of it is plain data: no text of a model or a tool can
change it. `workflows/gate/` holds the rules that act on it. All times are seconds since 1970.
"""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections import Counter
from decimal import Decimal
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    model_validator,
)

from activities.contracts import (
    Frozen,
    JsonObject,
    Label,
    LabelSource,
    NoticeMoment,
    Sink,
    Strict,
    ToolEffect,
    ToolSpec,
    all_visible,
    as_tuple,
)
from workflows.status import (
    MAX_PLAIN,
    Amount,
    AtDeadline,
    Bound,
    Decided,
    DoneCall,
    RequestOutcome,
    bound_text,
)
from workflows.temporal_names import Kind, Verb

__all__ = [
    "Kind",
    "Verb",
    "AtDeadline",
    "RequestOutcome",
    "Amount",
    "ApprovalMode",
    "AtMost",
    "Bound",
    "DEFAULT_EFFECT_MODES",
    "MaybePerson",
    "Person",
    "Group",
    "RequestSettings",
    "ApprovalRule",
    "Approvals",
    "People",
    "StandingApproval",
    "Vote",
    "Request",
    "RequestsPage",
    "Decision",
    "Decided",
    "Command",
    "CommandDone",
    "DoneCall",
    "EffectsPage",
    "json_problem",
    "same_person",
]

ApprovalMode = Literal["always", "never", "first_time", "rules", "reject"]
"""rules: a call needs approval only if a rule says so. reject: it is not made, and nobody is asked."""

DEFAULT_EFFECT_MODES: dict[ToolEffect, ApprovalMode] = {"unsafe": "always"}
"""Effects that the agent file does not name, and that are not named here, need no approval."""

# -- names and JSON --------------------

NAME_LIMIT = 100
"""Characters of a person's name."""
JSON_DEPTH = 50
"""Levels of nested lists and objects."""
CONDITION_VALUES = 1000
"""Values in the schemas of conditions: to check one takes up to a millisecond."""
IN_RULES = {"tools": 500, "arguments": 200, "values in schemas": CONDITION_VALUES, "bounds": 100}
"""The most that all approval rules of an agent may name: each name is compared with each tool."""
JSON_BYTES = 2**20
"""The most JSON that a person may give in one field."""


def _name(name: str) -> str:
    """Commas and brackets are refused in any width: the log uses them to list names and to mark verified
    ones. So are hidden characters: two names that look the same could both vote."""
    marks = any(mark in unicodedata.normalize("NFKC", name) for mark in ",()")
    printable = all_visible(name) and name == name.strip()
    if marks or not printable or len(name) > NAME_LIMIT:
        raise ValueError(
            f"{name[:NAME_LIMIT]!r} is not a name: expected at most {NAME_LIMIT} printable characters, "
            "without commas, brackets and outer blanks"
        )
    return name


def same_person(one: str, other: str) -> bool:
    """People would read both as one name: case and compatible spellings make no difference."""
    return _folded(one) == _folded(other)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def json_problem(value: object) -> str:
    """Why this value cannot be written as JSON text; empty when it can."""
    if not _fits_depth(value, JSON_DEPTH):
        return f"nested more than {JSON_DEPTH} levels deep"
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "a lone surrogate (half of a character pair) is not text"
    except ValueError:
        return "NaN and Infinity are not JSON"
    return ""


def _fits_depth(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list | tuple):
        return True
    items = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_fits_depth(item, levels - 1) for item in items)


def values_in(given: object) -> int:
    """How many values these lists and maps hold, at any depth."""
    count, waiting = 0, [given]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            count += len(value)
            waiting += value.values()
        elif isinstance(value, list | tuple):
            count += len(value)
            waiting += value
    return count


J = TypeVar("J")


def _json(value: J) -> J:
    if problem := json_problem(value):
        raise ValueError(problem)
    if (size := len(json.dumps(value).encode())) > JSON_BYTES:
        raise ValueError(f"{size:,} bytes as JSON, at most {JSON_BYTES:,} are allowed")
    return value


def _public_key(key: str) -> str:
    # here, as few commands read keys, and loading it takes a tenth of their start
    from activities.evidence.verify_evidence import SMALL_ORDER, is_of_small_order

    if not re.fullmatch(r"[A-Za-z0-9+/]{43}=", key):
        raise ValueError(
            "not an Ed25519 public key: expected 32 bytes in base64 (44 characters): "
            "of the line that `ratchet key show FILE` prints, the part after the name"
        )
    if is_of_small_order(key):
        raise ValueError(SMALL_ORDER)
    return key


MaybePerson = Annotated[str, AfterValidator(_name)]
"""A person's name, as the log shows it; or empty."""
Person = Annotated[MaybePerson, StringConstraints(min_length=1)]
PublicKey = Annotated[str, AfterValidator(_public_key)]
"""An Ed25519 public key: its 32 bytes in base64."""
GroupName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
ToolPattern = Annotated[str, StringConstraints(pattern=r"^[^\s\[\]]{1,100}$")]
"""A tool's name; `*` is any characters, `?` one."""
Seconds = Annotated[float, Field(gt=0, le=10 * 366 * 86_400)]
Number = Annotated[float, Field(strict=True)]
"""No text, and no `true`: that is no 1."""
BoundNumber = Annotated[Number, Field(gt=0, le=MAX_PLAIN)]
Switch = Annotated[bool, Field(strict=True)]
Moment = Annotated[Number, Field(ge=0, le=1e11)]
"""Seconds since 1970; milliseconds are out of range."""
Id = Annotated[str, StringConstraints(max_length=200)]
CounterName = Annotated[str, StringConstraints(max_length=100)]
Text = Annotated[str, StringConstraints(max_length=20_000)]
Json = Annotated[JsonObject, AfterValidator(_json)]
"""JSON that can be written into the log, also when the decision is refused."""


def _few(value: J) -> J:
    if (count := values_in(value)) > CONDITION_VALUES:
        raise ValueError(f"{count:,} values in the schemas, at most {CONDITION_VALUES:,} are allowed")
    return value


def _condition(value: object) -> object:
    """0 and 1 are true and false for pydantic; here they are meant as numbers."""
    if isinstance(value, dict | bool):
        return value
    if isinstance(value, int | float):
        example = f"{{const: {value:.15g}}} or {{maximum: {value:.15g}}}"
    else:
        example = "{enum: [a, b]}" if isinstance(value, list | tuple) else "{const: VALUE}"
    raise ValueError(f"expected a JSON schema, such as {example}, or false (absent)")


Conditions = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=200)],
        Annotated[JsonObject | bool, BeforeValidator(_condition)],
    ],
    Field(max_length=100),
    AfterValidator(_json),
    AfterValidator(_few),
]
"""Argument name -> JSON schema that its value must fit; `false`: the argument must be absent.
`gate/approvals.py` checks the schemas."""

# -- the agent file: who decides --------------------


class Group(Strict):
    """People who may decide. With `keys`, only decisions signed with one of them count."""

    members: tuple[Person, ...] = Field(
        default=(), max_length=1000, description="no members and no keys: anybody", examples=[["ann", "bob"]]
    )
    keys: dict[Person, PublicKey] = Field(
        default_factory=dict,
        max_length=1000,
        description="member -> Ed25519 public key in base64, as `ratchet key show FILE` prints it",
        examples=[{"ann": "PUBLIC_KEY"}],
    )
    quorum: int = Field(default=1, ge=1, le=100, description="how many people must decide the same")

    @property
    def approvers(self) -> tuple[str, ...]:
        """Who may decide; empty: anybody."""
        return tuple(self.keys) or self.members

    @model_validator(mode="after")
    def _can_decide(self) -> Group:
        if self.keys and self.members and (wrong := set(self.keys) ^ set(self.members)):
            raise ValueError(f"keys: every member needs a key, and nobody else: {', '.join(sorted(wrong))}")
        spellings = Counter(map(_folded, self.members or self.keys))
        if twice := [name for name in self.members or self.keys if spellings[_folded(name)] > 1]:
            raise ValueError(f"duplicate name: {', '.join(twice)}; one person has one vote")
        if len({base64.b64decode(key) for key in self.keys.values()}) < len(self.keys):
            raise ValueError("keys: two people have the same key; one of them could decide for both")
        if self.approvers and self.quorum > len(self.approvers):
            raise ValueError(
                f"quorum: {self.quorum} people must agree, but the group has {len(self.approvers)}"
            )
        return self


class RequestSettings(Strict):
    """Who gets a request, and what happens when nobody decides."""

    group: GroupName | None = Field(
        default=None, description="of `people.groups`; null: anybody", examples=["ops"]
    )
    quorum: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="how many must decide the same; null: the group's",
        examples=[2],
    )
    deadline_seconds: Seconds | None = Field(
        default=None, description="null: it waits for ever", examples=[3600]
    )
    at_deadline: AtDeadline = Field(
        default="reject", description="what follows when nobody decides; abort: the run ends as `expired`"
    )
    escalate_to: tuple[GroupName, ...] = Field(
        default=(),
        max_length=20,
        description="for `escalate`: groups in order, a group may be named twice; after the last one, reject",
        examples=[["board"]],
    )
    warn_seconds: Seconds | None = Field(
        default=None, description="notify this long before the deadline", examples=[600]
    )

    @model_validator(mode="after")
    def _can_end(self) -> RequestSettings:
        if self.at_deadline == "escalate" and (self.deadline_seconds is None or not self.escalate_to):
            raise ValueError("at_deadline: `escalate` needs `deadline_seconds` and groups in `escalate_to`")
        if self.escalate_to and self.at_deadline != "escalate":
            raise ValueError(
                f"escalate_to: has no effect with `at_deadline: {self.at_deadline}`; "
                "write `at_deadline: escalate`"
            )
        if self.warn_seconds is not None and self.warn_seconds >= (self.deadline_seconds or 0):
            raise ValueError("warn_seconds: must be less than `deadline_seconds`, which must be given")
        return self


class AtMost(Strict):
    """How much of what a rule is about may pass unasked in one run, with its inner runs and its branches."""

    calls: int | None = Field(
        default=None, ge=1, le=10**9, strict=True, description="null: any number", examples=[5]
    )
    sum: dict[Annotated[str, StringConstraints(min_length=1, max_length=200)], BoundNumber] = Field(
        default_factory=dict,
        max_length=20,
        description="argument -> the most that calls may sum up to",
        examples=[{"cents": 5000}],
    )

    @property
    def text(self) -> str:
        """`5 calls and 5,000 cents`."""
        calls = [] if self.calls is None else [bound_text(Decimal(self.calls), "calls")]
        sums = [bound_text(Decimal(repr(most)), f"sum.{name}") for name, most in self.sum.items()]
        return " and ".join([*calls, *sums])

    @model_validator(mode="after")
    def _bounds_something(self) -> AtMost:
        if self.calls is None and not self.sum:
            raise ValueError("names no bound; give `calls`, `sum` or both, or leave `at_most` out")
        return self


Sinks = Annotated[tuple[Sink, ...], Field(max_length=3)]
AllLabels = Annotated[tuple[Label, ...], Field(max_length=2)]
OneOrMoreSinks = Annotated[Sinks, BeforeValidator(as_tuple, json_schema_input_type=Sink | Sinks)]
OneOrMoreLabels = Annotated[AllLabels, BeforeValidator(as_tuple, json_schema_input_type=Label | AllLabels)]


class ApprovalRule(Strict):
    """One rule of `approvals`; the first that fits a call decides."""

    tools: tuple[ToolPattern, ...] = Field(
        default=(),
        max_length=1000,
        description="names, `*` and `?` allowed; empty: every tool",
        examples=[["write_file"]],
    )
    effects: tuple[ToolEffect, ...] = Field(
        default=(), max_length=5, description="of the tool; empty: every effect", examples=[["unsafe"]]
    )
    arguments: Conditions = Field(
        default_factory=dict,
        description="argument -> JSON schema that it must fit; false: absent",
        examples=[{"amount": {"exclusiveMinimum": 100}}],
    )
    sends: OneOrMoreSinks = Field(
        default=(),
        description="how far the tool sends what it is given; empty: any",
        examples=["external", ["internal", "external"]],
    )
    after: OneOrMoreLabels = Field(
        default=(),
        description="only once the run has this label, or all of these",
        examples=["untrusted", ["untrusted", "private"]],
    )
    cost_above: float | None = Field(
        default=None, ge=0, description="only once the run has spent so many USD", examples=[0.5]
    )
    ask: Literal["always", "never", "first_time", "reject"] = Field(
        default="always", description="first_time: once in a run; reject: it is not made, and nobody is asked"
    )
    at_most: AtMost | None = Field(
        default=None, description="calls that pass unasked; null: any number", examples=[{"calls": 5}]
    )
    then: Literal["always", "reject"] = Field(
        default="always", description="beyond `at_most`: ask, or do not make the call"
    )
    request: RequestSettings | None = Field(default=None, description="null: as `people` says for approvals")

    @model_validator(mode="after")
    def _can_ask(self) -> ApprovalRule:
        asks = self.ask not in ("never", "reject") or (self.at_most is not None and self.then == "always")
        if not asks and self.request is not None:
            raise ValueError(f"request: has no effect with `ask: {self.ask}`; leave it out")
        if self.at_most is not None and self.ask in ("always", "reject"):
            raise ValueError(
                f"at_most: has no effect with `ask: {self.ask}`, which lets nothing pass unasked; leave it "
                "out, or write `ask: never`"
            )
        if self.at_most is None and self.then != "always":
            raise ValueError(f"then: `{self.then}` has no effect without `at_most`; leave it out")
        return self


class Approvals(Strict):
    """Which tool calls need a person's approval: rules in order, then by tool, then by effect."""

    rules: tuple[ApprovalRule, ...] = Field(
        default=(), max_length=1000, description="the first that fits a call decides"
    )
    tools: dict[str, ApprovalMode] = Field(
        default_factory=dict,
        max_length=1000,
        description="tool -> when people are asked; rules: only a rule asks",
        examples=[{"write_file": "first_time"}],
    )
    effects: dict[ToolEffect, ApprovalMode] = Field(
        default_factory=lambda: dict(DEFAULT_EFFECT_MODES),
        description="unsafe calls need approval unless this says otherwise",
    )

    @model_validator(mode="after")
    def _is_small(self) -> Approvals:
        counts = (
            sum(len(rule.tools) for rule in self.rules),
            sum(len(rule.arguments) for rule in self.rules),
            sum(values_in(rule.arguments) for rule in self.rules),
            sum(1 + len(rule.at_most.sum) for rule in self.rules if rule.at_most),
        )
        for count, (what, most) in zip(counts, IN_RULES.items(), strict=True):
            if count > most:
                raise ValueError(f"rules: they name {count:,} {what} in all, at most {most:,} are allowed")
        return self


ANYBODY = Group()
"""Everybody may decide."""


class People(Strict):
    """Who decides, when a run waits for people, and who is notified."""

    groups: dict[GroupName, Group] = Field(
        default_factory=dict,
        max_length=100,
        description="who may decide, by name",
        examples=[{"ops": {"members": ["ann", "bob"]}}],
    )
    requests: RequestSettings = Field(
        default=RequestSettings(), description="for every kind of request that `kinds` does not name"
    )
    kinds: dict[Kind, RequestSettings] = Field(
        default_factory=dict,
        description="the same by kind of request",
        examples=[{"question": {"deadline_seconds": 600}}],
    )
    commands: GroupName | None = Field(
        default=None,
        description="who may pause, steer, abort, roll back, set limits; null: anybody",
        examples=["ops"],
    )
    unattended: bool = Field(
        default=False, description="nobody is there: questions get `unavailable`, calls are rejected"
    )
    interrupt_every: int | None = Field(
        default=None, ge=1, description="wait for a person before every N-th step [R-000-13]", examples=[5]
    )
    interrupt_states: tuple[str, ...] = Field(
        default=(), max_length=100, description="wait before these states", examples=[["action"]]
    )
    on_limit: Literal["stop", "ask"] = Field(
        default="stop", description="ask: a person may raise a limit that is reached"
    )
    on_trouble: Literal["fail", "ask"] = Field(
        default="fail", description="ask: a person may fix a model call that failed permanently"
    )
    on_stuck: Literal["stop", "ask"] = Field(
        default="ask", description="once the model was told in vain; stop: the run ends"
    )
    notify: tuple[NoticeMoment, ...] = Field(
        default=(), max_length=10, description="when the worker's hook is called", examples=[["opened"]]
    )

    def settings_for(self, kind: Kind) -> RequestSettings:
        """Settings of the requests of one kind."""
        return self.kinds.get(kind, self.requests)

    def group_named(self, name: str | None) -> Group:
        """The group; None: anybody. Raises ValueError for an unknown name."""
        if name is None:
            return ANYBODY
        if name not in self.groups:
            raise ValueError(f"unknown group {name!r}; known groups: {', '.join(self.groups) or 'none'}")
        return self.groups[name]

    def quorum_for(self, settings: RequestSettings) -> int:
        """How many people of the first group must decide the same."""
        return settings.quorum or self.group_named(settings.group).quorum

    def settings_problem(self, settings: RequestSettings) -> str:
        """Why nobody could decide a request with these settings; empty when somebody can."""
        for name in (settings.group, *settings.escalate_to):
            try:
                group = self.group_named(name)
            except ValueError as error:
                return str(error)
            if group.approvers and (settings.quorum or 1) > len(group.approvers):
                return f"quorum: {settings.quorum} people must agree, but {name} has {len(group.approvers)}"
        return ""

    def interrupts_before(self, state: str, *, begins_step: bool, steps_done: int) -> bool:
        """The run waits for a person before it enters this state (R-000-13)."""
        every = self.interrupt_every
        at_step = bool(every) and begins_step and steps_done > 0 and steps_done % (every or 1) == 0
        return at_step or state in self.interrupt_states

    @model_validator(mode="after")
    def _can_decide(self) -> People:
        named = {"requests": self.requests, **{f"kinds.{kind}": one for kind, one in self.kinds.items()}}
        for where, settings in named.items():
            if problem := self.settings_problem(settings):
                raise ValueError(f"{where}: {problem}")
        if (quorum := self.group_named(self.commands).quorum) > 1:
            raise ValueError(
                f"commands: group {self.commands} has a quorum of {quorum}, but one person gives a command; "
                "name a group with quorum 1"
            )
        return self


# -- what a run asks --------------------


class StandingApproval(Strict):
    """Approve later calls of the same tool as well, for the rest of this run, if their arguments fit."""

    arguments: Conditions = Field(default_factory=dict, description="other arguments may have any value")
    same: bool = Field(default=False, description="exactly the arguments of this request")


class Vote(Frozen):
    """One decision that counts for a request."""

    id: str
    """Of the decision."""
    verb: Verb
    """What was decided."""
    by: str
    """Who decided."""
    verified: bool
    """The signature was checked with the group's key; otherwise the name is only claimed."""
    at: float
    """When the run heard it."""
    made_at: float | None = None
    """When the sender says that it was made."""
    text: str = ""
    """Comment, answer or result."""
    arguments: JsonObject | None = None
    """edit: the new ones."""
    digest: str = ""
    """Of what was decided; of an edit: with the new arguments."""
    amounts: dict[str, float] = {}
    """topup: counter -> how much more."""
    standing_approval: StandingApproval | None = None
    """For which later calls it counts, too."""
    content: str = ""
    """Digest of the decision as it was sent: the same id with other content is no repeat."""


class Request(Frozen):
    """What a run asks people."""

    id: str
    """`r1`, `r2`, ... in the order of opening; unique in the run."""
    kind: Kind
    """Why it asks."""
    run: str
    """Workflow id."""
    machine: str
    """Its name."""
    state: str
    """Where the machine waits."""
    step: int
    """In which step."""
    activity_id: str
    """Of the activity that waits, such as `action#3:1`."""
    text: str
    """The question, for a person."""
    tool: str | None = None
    """Of the call that it is about; None: it is about none."""
    arguments: JsonObject | None = None
    """What the tool would be called with; of a limit: `counter` and `cap`."""
    digest: str
    """32 hexadecimal characters over run, activity, kind, tool and arguments, and over the group after an
    escalation. A decision must name it."""
    rule: str = ""
    """approval: the entry of `approvals` that asks, such as `rules.0` or `effects.unsafe`."""
    bound: Bound | None = None
    """approval: the bound of that rule which the call would pass; None: it asks about every call."""
    labels: tuple[LabelSource, ...] = Field(default=(), exclude_if=lambda labels: not labels)
    """Those of the run when it was opened, and what brought each first."""
    options: tuple[Verb, ...]
    """What may be decided."""
    created: float
    """When it was opened."""
    deadline: float | None = None
    """When it expires; None: never."""
    at_deadline: AtDeadline = "reject"
    """What follows then."""
    group: str | None = None
    """Who decides; None: anybody."""
    approvers: tuple[str, ...] = ()
    """Empty: anybody."""
    signed: bool = False
    """Only decisions signed by one of the approvers count."""
    quorum: int = 1
    """How many must decide the same."""
    escalate_to: tuple[str, ...] = ()
    """The groups after this one."""
    warn_at: float | None = None
    """When people are notified that it expires; None: they are not."""
    votes: tuple[Vote, ...] = ()
    """Decisions that count, oldest first."""
    outcome: RequestOutcome = "open"
    """Whether it is open, and else how it was closed."""
    closed: float | None = None
    """When; None: it is open."""

    @property
    def holds(self) -> tuple[str, ...]:
        """What the run holds that is untrusted or private, and what brought it, in words."""
        return tuple(one.text for one in self.labels)

    @property
    def is_open(self) -> bool:
        """It waits for a decision."""
        return self.outcome == "open"

    @property
    def deciding_vote(self) -> Vote | None:
        """The vote that closed the request; None: nobody decided."""
        return None if self.outcome in ("open", "expired", "withdrawn") else self.votes[-1]

    @property
    def expiry(self) -> AtDeadline | None:
        """What follows because nobody decided in time; None: it did not expire."""
        return self.at_deadline if self.outcome == "expired" else None


class RequestsPage(Frozen):
    """Requests of a run: the open ones, then the newest closed ones."""

    open: tuple[Request, ...]
    """Oldest first."""
    closed: tuple[Request, ...] = ()
    """The newest five."""
    next: int
    """Index of the next open request."""
    total: int
    """How many are open."""
    paused: bool = False
    """The run is paused."""
    tools: dict[str, ToolSpec] = {}
    """Those that are asked about, as the run has recorded and labelled them; only where `schemas` are asked
    for."""


# -- what people say --------------------


class Decision(Strict):
    """An answer to a request; input of the signal and of the update `decide`."""

    request: str = Field(max_length=100, description="its id, such as `r1`")
    digest: str = Field(max_length=64, description="the request's: you decide on what you saw")
    decision: Verb = Field(description="one of the request's `options`")
    id: Id = Field(default="", description="of this decision; sending it twice is harmless")
    by: MaybePerson = Field(default="", description="who says so")
    made_at: Moment | None = Field(
        default=None,
        description="when it was made, by the sender's clock; late ones but `reject` and `abort` need it",
    )
    text: Text = Field(default="", description="comment, answer or result")
    arguments: Json | None = Field(default=None, description="for `edit`: all new arguments")
    amounts: dict[CounterName, Number] = Field(
        default_factory=dict, max_length=100, description="for `topup`: counter -> how much more"
    )
    standing_approval: StandingApproval | None = Field(
        default=None, description="for `approve`: later calls too"
    )
    signature: str = Field(default="", max_length=200, description="Ed25519, base64; see `gate/decisions.py`")


class Command(Strict):
    """An order to a run; input of the signal and of the update `command`."""

    command: Literal["pause", "resume", "abort", "steer", "rollback", "limits"] = Field(
        description="which one"
    )
    id: Id = Field(default="", description="of this command; sending it twice is harmless")
    by: MaybePerson = Field(default="", description="who says so")
    text: Text = Field(default="", description="steer: the message; otherwise the reason")
    at_once: Switch = Field(default=False, description="pause: do not wait for the current effect")
    step: int | None = Field(
        default=None, ge=0, strict=True, description="rollback: the step to begin again; 0: the start"
    )
    compensate: Switch = Field(default=False, description="rollback: undo what can be undone since that step")
    limits: dict[CounterName, Number | None] = Field(
        default_factory=dict, max_length=100, description="counter -> new cap of the run; null: no cap"
    )
    signature: str = Field(default="", max_length=200, description="Ed25519, base64; see `gate/decisions.py`")


class CommandDone(Frozen):
    """What a command did."""

    command: str
    """Which one."""
    text: str
    """For a person."""
    step: int = 0
    """The step that the run is in now."""
    branch: int = 0
    """How often the run was rolled back."""
    paused: bool = False
    """The run is paused now."""
    undone: tuple[str, ...] = ()
    """What compensations did."""


# -- what was done outside --------------------


class EffectsPage(Frozen):
    """Calls with outside effects since a step, oldest first."""

    since_step: int
    """The step that was asked for."""
    calls: tuple[DoneCall, ...]
    """Oldest first."""
    next: int
    """Index to ask from next."""
    total: int
    """How many there are."""
