"""Who decides and what is asked about, as the agent's author writes it. Pure; `workflows/people.py` gives
it on.

Each model refuses what could never be answered; `problems` holds them against each other.
"""

from __future__ import annotations

import base64
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, StringConstraints, model_validator

from activities.contracts import Strict, ToolEffect
from workflows.gate.canonical import unwritable
from workflows.gate.names import fault_of_name, same_person
from workflows.gate.patterns import check_pattern

__all__ = [
    "EFFECTS_ASKED", "Approvals", "ApprovalRule", "Asking", "AtDeadline", "Condition", "Group", "Kind",
    "Mode", "Moment", "Path", "People", "Person", "Verb",
]  # fmt: skip


def _name(name: str) -> str:
    if fault := fault_of_name(name):
        raise ValueError(fault)
    return name


Person = Annotated[str, StringConstraints(min_length=1, max_length=100), AfterValidator(_name)]
"""A person's name as it stands in the log; see `names.py`."""
SMALL_ORDER = (
    "00" * 32,
    "01" + "00" * 31,
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ec" + "ff" * 30 + "7f",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f",
)
"""Points of Ed25519 of small order, without the sign bit: for them anybody can make signatures."""


def _key(key: object) -> object:
    if isinstance(key, str) and not re.fullmatch(KEY, key):
        raise ValueError(
            "no Ed25519 public key; expected its 32 bytes in base64, which are 44 characters, as "
            "`ratchet key show FILE` prints them"
        )
    return key


KEY = r"^[A-Za-z0-9+/]{43}=$"
Key = Annotated[str, StringConstraints(pattern=KEY), BeforeValidator(_key)]
"""An Ed25519 public key: its 32 bytes in base64."""
GroupName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Pattern = Annotated[str, StringConstraints(max_length=1000), AfterValidator(check_pattern)]
"""An RE2 expression."""
ToolPattern = Annotated[str, StringConstraints(pattern=r"^[^\s\[\]]{1,100}$")]
"""A tool's name; `*` stands for any characters, `?` for one."""
Path = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Seconds = Annotated[float, Field(gt=0, le=10 * 366 * 86_400)]

Kind = Literal["approval", "question", "interrupt", "escalation", "limit", "outcome", "trouble"]
"""approval: may this tool be called? question, escalation: a machine asks. interrupt: the run stands at a
step or state that was named. limit: a limit is reached. outcome: did an unsafe call take effect? trouble: a
model refuses for good, such as a key."""
Verb = Literal["approve", "reject", "edit", "answer", "resume", "retry", "topup", "finish", "abort"]
"""retry: make the call again (trouble: it is mended; outcome: the call did not happen). finish: end as the
limit would have it. answer: the text is the answer (outcome: it happened, with this result)."""
AtDeadline = Literal["approve", "reject", "abort", "escalate"]
"""What an unanswered request comes to. approve and reject mean for kinds other than approval: go on, and
do without (a question is answered `unavailable`, a limit finishes, an unknown outcome stays unknown)."""
Moment = Literal["opened", "expiring", "closed"]
Mode = Literal["always", "never", "first_time", "rules"]
"""rules: only a rule that fits asks."""

EFFECTS_ASKED: dict[ToolEffect, Mode] = {"unsafe": "always"}


class Group(Strict):
    """People who may decide. With `keys`, only decisions signed with one of them count."""

    members: tuple[Person, ...] = Field(default=(), description="none and no keys: anybody")
    keys: dict[Person, Key] = Field(default_factory=dict, description="member -> Ed25519 public key, base64")
    quorum: int = Field(default=1, ge=1, le=100, description="people who must say the same")

    @property
    def approvers(self) -> tuple[str, ...]:
        """Who may decide; empty: anybody."""
        return tuple(self.keys) or self.members

    @model_validator(mode="after")
    def _can_decide(self) -> Group:
        names = self.members
        twice = [
            name
            for listed in (names, tuple(self.keys))
            for number, name in enumerate(listed)
            if any(same_person(name, other) for other in listed[:number])
        ]
        if twice:
            raise ValueError(f"members, keys: {', '.join(twice)} stands there twice; one person has one vote")
        if self.keys and (lacking := [name for name in names if name not in self.keys]):
            raise ValueError(
                f"keys: {', '.join(lacking)} has none and could never decide; give one, or take the name out"
            )
        if names and (strange := [name for name in self.keys if name not in names]):
            raise ValueError(f"keys: {', '.join(strange)} is not among the members {', '.join(names)}")
        keys = [base64.b64decode(key) for key in self.keys.values()]  # a key can be spelled in four ways
        if any(key in keys[:number] for number, key in enumerate(keys)):
            raise ValueError("keys: two people have the same key; one of them could decide for both")
        if any((key[:31] + bytes([key[31] & 0x7F])).hex() in SMALL_ORDER for key in keys):
            raise ValueError(
                "keys: a key is a point of small order, for which anybody can sign; make another"
            )
        if self.approvers and self.quorum > len(self.approvers):
            raise ValueError(f"quorum: {self.quorum} people must agree, the group has {len(self.approvers)}")
        return self


class Asking(Strict):
    """How a request is put to people."""

    group: GroupName | None = Field(default=None, description="null: anybody")
    quorum: int | None = Field(default=None, ge=1, le=100, description="null: the group's")
    deadline_seconds: Seconds | None = Field(default=None, description="null: it waits for ever")
    at_deadline: AtDeadline = "reject"
    escalate_to: tuple[GroupName, ...] = Field(
        default=(),
        description="for `escalate`: one after the other, also one twice; the last's silence rejects",
    )
    warn_seconds: Seconds | None = Field(default=None, description="notify so long before the deadline")

    @model_validator(mode="after")
    def _ends(self) -> Asking:
        if self.at_deadline == "escalate" and (self.deadline_seconds is None or not self.escalate_to):
            raise ValueError("at_deadline: `escalate` needs `deadline_seconds` and groups in `escalate_to`")
        if self.escalate_to and self.at_deadline != "escalate":
            raise ValueError(
                f"escalate_to: with `at_deadline: {self.at_deadline}` these groups are never asked; "
                "write `at_deadline: escalate`"
            )
        if self.warn_seconds is not None and self.warn_seconds >= (self.deadline_seconds or 0):
            raise ValueError("warn_seconds: it must be less than `deadline_seconds`, which must be given")
        return self


class Condition(Strict):
    """What an argument must be; all that is given must hold; nothing given: it must be there.

    A missing argument fits nothing but `absent`; what the tool's schema says it takes then counts as given.
    Numbers are equal by value (`1` is `1.0`); true is no number; "5000" is compared as 5000. What a tool may
    read as something else is not judged: a value of another type, text that differs in case or blanks, a
    missing argument without a default, a call with names that the schema does not have. A rule that asks
    then asks, always; one that says `never` does not fit.
    """

    equals: JsonValue = None
    """null stands for: not asked (use `absent` or `one_of` for null itself)."""
    one_of: tuple[JsonValue, ...] = Field(default=(), max_length=1000)
    matches: Pattern | None = Field(default=None, description="RE2, found anywhere in the text")
    above: float | None = None
    below: float | None = None
    longer_than: int | None = Field(default=None, ge=0, description="characters or items")
    absent: bool = False

    @model_validator(mode="after")
    def _can_hold(self) -> Condition:
        if fault := unwritable([self.equals, self.one_of]):
            raise ValueError(f"equals, one_of: {fault}")
        if self.absent and self.model_dump(exclude_defaults=True) != {"absent": True}:
            raise ValueError("absent: what is not there cannot be anything else, too; make two rules")
        return self


class ApprovalRule(Strict):
    """One rule: the first that fits a call decides.

    Rules before it of which it cannot be told ask as well; where they ask in other ways than it does, the
    call is not made, and the model is told which arguments to give plainly.
    """

    tools: tuple[ToolPattern, ...] = Field(
        default=(), description="names, `*` and `?` allowed; none: every tool"
    )
    effects: tuple[ToolEffect, ...] = Field(default=(), description="none: every effect")
    arguments: dict[Path, Condition] = Field(
        default_factory=dict, description="by name; `order.total` looks inside an object"
    )
    cost_above: float | None = Field(default=None, ge=0, description="USD that the run has spent by then")
    ask: Literal["always", "never", "first_time"] = "always"
    asking: Asking | None = Field(default=None, description="null: as `people` says for approvals")

    @model_validator(mode="after")
    def _asks(self) -> ApprovalRule:
        if self.ask == "never" and self.asking is not None:
            raise ValueError("asking: with `ask: never` nobody is asked; leave it out")
        return self


class Approvals(Strict):
    """Which tool calls wait for a person. Rules first, in order; then by tool; then by effect."""

    rules: tuple[ApprovalRule, ...] = ()
    tools: dict[str, Mode] = Field(default_factory=dict)
    effects: dict[ToolEffect, Mode] = Field(
        default_factory=lambda: dict(EFFECTS_ASKED), description="unsafe calls ask unless this says otherwise"
    )


class People(Strict):
    """Who decides, when the run stands still by itself, and who is told."""

    groups: dict[GroupName, Group] = Field(default_factory=dict)
    asking: Asking = Field(default=Asking(), description="for every kind that has nothing of its own")
    kinds: dict[Kind, Asking] = Field(default_factory=dict)
    commands: GroupName | None = Field(
        default=None, description="who may pause, steer, abort, ...; null: anybody"
    )
    unattended: bool = Field(
        default=False, description="nobody is there: questions get `unavailable`, calls that ask are rejected"
    )
    interrupt_every: int | None = Field(default=None, ge=1, description="steps [R-000-13]")
    interrupt_states: tuple[str, ...] = Field(default=(), description="stand still on entering these")
    on_limit: Literal["stop", "ask"] = "stop"
    on_trouble: Literal["fail", "ask"] = "fail"
    notify: tuple[Moment, ...] = Field(default=(), description="when the worker's hook is called")

    def asking_of(self, kind: Kind) -> Asking:
        """How requests of a kind are put."""
        return self.kinds.get(kind, self.asking)

    def group_of(self, name: str | None) -> Group:
        """The group; anybody for none. Raises ValueError for one that there is not."""
        if name is None:
            return Group()
        if name not in self.groups:
            raise ValueError(f"there is no group {name!r}; there is {', '.join(self.groups) or 'none'}")
        return self.groups[name]

    def quorum_of(self, asking: Asking) -> int:
        """So many people of the group that is asked must say the same."""
        return asking.quorum or self.group_of(asking.group).quorum

    def fault_of(self, asking: Asking) -> str:
        """Why nobody could decide what is put so, or the empty string."""
        for name in (asking.group, *asking.escalate_to):
            try:
                group = self.group_of(name)
            except ValueError as error:
                return str(error)
            if group.approvers and (asking.quorum or 1) > len(group.approvers):
                return f"quorum: {asking.quorum} people must agree, {name} has {len(group.approvers)}"
        return ""

    @model_validator(mode="after")
    def _can_be_asked(self) -> People:
        ways = {"asking": self.asking, **{f"kinds.{kind}": asking for kind, asking in self.kinds.items()}}
        for place, asking in ways.items():
            if fault := self.fault_of(asking):
                raise ValueError(f"{place}: {fault}")
        if (quorum := self.group_of(self.commands).quorum) > 1:
            raise ValueError(
                f"commands: {self.commands} has a quorum of {quorum}, but a "
                "command is one person's; name a group with quorum 1"
            )
        return self
