"""The transition log: one record for each transition, and one for each effect after which a visit continues.

From the records alone the run can be rebuilt, whatever the machine (spec 7.3): `rollback.restored`.
The log only grows: a rollback or a fork is a record too, and says which of those before it still hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

# modules of the vocabulary, not all of it: commands that read a log start with this page
from activities.contracts.base import Frozen, JsonObject, added
from activities.contracts.chain import next_hash
from activities.contracts.conversation import Message
from activities.contracts.labels import LabelSource
from activities.contracts.record_events import FORKED
from activities.contracts.titles import edited_title

__all__ = [
    "CLOSED",
    "EDITED",
    "EXIT_REASON",
    "FORKED",
    "MIGRATED",
    "REFUSED",
    "ROLLED_BACK",
    "STARTED",
    "STEERED",
    "VERSION",
    "Checkpoint",
    "LoggedCall",
    "LoggedStep",
    "NO_CALLS",
    "Record",
    "by_step",
    "chain",
    "checkpoints",
    "lineage",
]

STARTED = "Started"
"""Event of the first record; its patch is the whole first context."""
MIGRATED = "Migrated"
"""Event of a record by which another version of the machine goes on with the run."""
VERSION = "machine_version"
"""In `about` of a record: the version in whose form the context is from here on. The record's patch is then
the whole context: of the first record, and of each by which a run comes to another version."""
STEERED = "Steered"
"""Event of a record that holds a person's message."""
EDITED = "edited"
"""In `about` of such a record: the effect of which a person has edited calls, as it tells the model."""
CLOSED = "Closed"
"""Event of a record that ends a run in the middle."""
EXIT_REASON = "exit_reason"
"""In `about` of such a record: how the run ended."""
REFUSED = "AnswerRefused"
"""Event of a record by which a run asks for its answer again: it does not fit the agent's `output`."""
ROLLED_BACK = "RolledBack"
"""Event of a record that goes back to a step of this run."""

NO_CALLS = {"ask_model", "ask_person", "together", "say"}
"""Kinds of effect that the log has elsewhere: as messages, as decisions."""
MORE = "more"
"""Kind of what stands in the place of calls for which there was no room."""


class LoggedCall(Frozen):
    """An effect in short: what is asked for and, once it was answered, what came of it."""

    kind: str
    """Of the effect; `more`: in place of those for which there was no room."""
    title: str
    """For people: `search_files(pattern="ERROR")`."""
    tool: str = Field(default="", exclude_if=lambda tool: not tool)
    """Of a tool's call: its name."""
    count: int = Field(default=1, exclude_if=lambda count: count == 1)
    """How many it stands for: of `more`, those that are left out."""
    id: str = Field(default="", exclude_if=lambda name: not name)
    """Of its activity: the same where it is asked for and where it was answered."""
    arguments: JsonObject = Field(default_factory=dict, exclude_if=lambda arguments: not arguments)
    """Of a tool's call that was answered, each value cut."""
    edited_by: str = Field(default="", exclude_if=lambda by: not by)
    """The person who gave these arguments in place of the model's."""
    is_cut: bool = Field(default=False, exclude_if=lambda is_cut: not is_cut)
    """`output` is the beginning of it."""
    seconds: float = Field(default=0.0, exclude_if=lambda seconds: not seconds)
    """How long a tool took."""
    output: str = Field(default="", exclude_if=lambda output: not output)
    """What came back, cut: of a tool or an inner run, texts that were read, what code printed, why it
    failed; `[left out]`: there was no room. A model's reply is among the messages."""
    error: str | None = Field(default=None, exclude_if=lambda error: error is None)
    """How it failed, cut: a `ToolError`, a failure's type, an inner run's exit reason; None: it did not."""
    call: str = Field(default="", exclude_if=lambda call: not call)
    """Id of a tool's call, by which a message may answer it."""

    @property
    def heading(self) -> str:
        """The title, and who edited the call."""
        return edited_title(self.title, self.edited_by)

    @property
    def summary(self) -> str:
        """The heading, and how it failed: a call that was rejected was not made."""
        return self.heading if self.error is None else f"{self.heading}: {self.error.replace('_', ' ')}"


class Record(Frozen):
    """One thing that happened to a run. In JSON, fields with their default are left out."""

    seq: int
    """0, 1, 2, ... without gaps over all branches."""
    branch: int = 0
    """Rises at each rollback."""
    machine: str
    """Its name."""
    state: str
    """Where the machine was."""
    event: str
    """Name of the event; of the answer, where a visit continues after one."""
    to: str | None = None
    """The state that the event led to; None: the machine stayed in its visit."""
    reason: str = ""
    """For people: why, in words that nothing reads, and that neither `thought` nor `answered` has."""
    thought: str = ""
    """What the model said, as the machine read it."""
    refused_by: tuple[str, ...] = ()
    """Names of the machine's own rules that refused what the model wanted."""
    begins: bool = False
    """A step begins with it: it leads to the machine's step state."""
    reopens: bool = False
    """The run ends with it, and can continue after this end."""
    step: int = 0
    """How many steps had begun (entries of the machine's step state)."""
    of_step: int = 0
    """The step that it belongs to; 0: the run's beginning. Records before the first step belong to step 1. A
    reply that leads to a step state without a question belongs to the step that begins there."""
    visit: int = 0
    """Number of the visit in which it happened; never falls."""
    reads: tuple[str, ...] = ()
    """Fields that the state read."""
    patch: dict[str, JsonObject] = Field(default_factory=dict)
    """Field -> what changed, as `context.difference` writes it."""
    messages: tuple[Message, ...] = ()
    """Added to the conversation since the record before."""
    beside: tuple[Message, ...] = ()
    """Questions beside the conversation and their replies, cut."""
    notes: tuple[Message, ...] = ()
    """Messages from people that the next question will bring."""
    heard: int = 0
    """How many waiting messages from people are among `messages`."""
    answered: tuple[LoggedCall, ...] = ()
    """The effects that were answered since the record before, and what came of each."""
    asked: tuple[LoggedCall, ...] = ()
    """The calls that are asked for next: of a record that begins a step, in that step."""
    counters: dict[str, float] = Field(default_factory=dict)
    """The ledger: what the run had spent by then (calls that were begun, tokens, USD, seconds)."""
    started: float = 0.0
    """When the visit or the effect began, in seconds since 1970."""
    at: float = 0.0
    """When it happened, in seconds since 1970."""
    by: str = "machine"
    """Who caused it: `machine`, `kernel`, or a person."""
    error: str | None = None
    """Which rule was broken."""
    back_to: int | None = None
    """A rollback or fork: of the records before this one, those up to this number hold (-1: none)."""
    about: JsonObject = Field(default_factory=dict)
    """Details of a person's message, request or command: id, kind, digest, arguments, who decided."""
    brought: tuple[LabelSource, ...] = ()
    """Labels that the run has since then, and what brought them."""

    @property
    def next_step(self) -> int:
        """The step in which the calls are made that it asks for."""
        return self.step + 1 if self.begins else self.of_step

    @property
    def why(self) -> str:
        """How the run ended, where it ends with this, and why."""
        return ": ".join(filter(None, (str(self.about.get(EXIT_REASON, "")), self.reason)))

    @property
    def words(self) -> str:
        """What was thought, and why; or the broken rule."""
        return self.error or "; ".join(filter(None, (self.thought, self.why)))

    @property
    def made(self) -> tuple[LoggedCall, ...]:
        """The calls that have ended, but for questions."""
        return tuple(one for one in self.answered if one.kind not in NO_CALLS)

    @property
    def summary(self) -> str:
        """The words and which calls come next; or else which were made."""
        wanted = "" if self.error else "; ".join(one.title for one in self.asked)
        return " -> ".join(filter(None, (self.words, wanted))) or "; ".join(one.summary for one in self.made)

    @model_serializer(mode="wrap")
    def _lean(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = write(self)
        defaults = {"by": "machine", "back_to": None, "begins": False, "reopens": False}
        return {
            name: value
            for name, value in values.items()
            if name in _ALWAYS or (value != defaults[name] if name in defaults else value)
        }


_ALWAYS = {"seq", "machine", "state", "event"}


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """What the log tells of one step that holds."""

    number: int
    """1, 2, ...; 0: the run's beginning."""
    records: tuple[Record, ...]
    """Each with those of the calls it asks for that this step makes. Empty: the step has just begun."""
    begins_with: tuple[LoggedCall, ...]
    """The calls that the record asked for which began it, if that record is of the step before."""
    not_ended: tuple[LoggedCall, ...]
    """The calls that were asked for in it, or when it began, and have not ended."""
    branch: int
    """How often the run had been rolled back."""
    spent: dict[str, float]
    """In it alone, by counter."""
    started: float
    """In seconds since 1970."""
    seconds: float
    """In which it called models and tools; those in which people were waited for are not among them."""

    @property
    def own(self) -> tuple[Record, ...]:
        """Its records without those that went back to its end."""
        return tuple(one for one in self.records if one.back_to is None)

    @property
    def path(self) -> tuple[str, ...]:
        """The states that it left."""
        return tuple(one.state for one in self.own if one.to is not None and one.event != STARTED)


def began(record: Record, before: Record | None) -> float:
    """When this record's work began, in seconds since 1970: its visit, or the record `before` it if that is
    later."""
    return max(record.started, before.at if before else 0)


def seconds_called(record: Record, before: Record | None) -> float:
    """How long what a record tells of took, if it is of calls."""
    return record.at - began(record, before) if record.by == "machine" and record.answered else 0


def by_step(records: Iterable[Record]) -> tuple[LoggedStep, ...]:
    """The log by the steps that hold, in order. What was spent in steps that a rollback has left is in none.
    If the log lacks its beginning, what was spent there is in no step."""
    every = tuple(records)
    spent: dict[int, dict[str, float]] = {}
    earlier = {one.seq: before for one, before in zip(every, (None, *every), strict=False)}
    first: Mapping[str, float] = every[0].counters if every and every[0].seq else {}
    for record in every:
        before = earlier[record.seq]
        had = before.counters if before else first
        spent[record.seq] = {n: amount - had.get(n, 0) for n, amount in record.counters.items()}
    groups: dict[int, list[Record]] = {}
    begun: dict[int, Record] = {}
    kept = _asking_once(lineage(every))
    for record in kept:
        shown = record
        if record.asked and record.next_step != record.of_step:
            begun[record.next_step] = record
            groups.setdefault(record.next_step, [])
            shown = record.model_copy(update={"asked": ()})
        groups.setdefault(record.of_step, []).append(shown)
    ended = {one.id for record in kept for one in record.answered if one.id}
    steps = []
    for number, group in sorted(groups.items()):
        led = begun.get(number)
        begins_with = led.asked if led else ()
        own = [record for record in group if record.back_to is None]
        steps.append(LoggedStep(
            number,
            tuple(group),
            begins_with,
            tuple(one for one in _open_calls(begins_with, group) if one.id not in ended),
            (own or kept)[-1].branch,
            added(*(spent[record.seq] for record in own)),
            began(group[0], earlier[group[0].seq]) if group else led.at if led else 0,
            sum(seconds_called(record, earlier[record.seq]) for record in group),
        ))  # fmt: skip
    return tuple(steps)


def _open_calls(begins_with: Iterable[LoggedCall], group: Iterable[Record]) -> Iterable[LoggedCall]:
    """The calls that a step was asked for, but for those that may have ended where there was no room to say
    which did."""
    asked = {one.id: one for one in begins_with}
    for record in group:
        if any(one.kind == MORE for one in record.answered):
            asked.clear()
        asked |= {one.id: one for one in record.asked}
    return asked.values()


def _asking_once(kept: Sequence[Record]) -> list[Record]:
    """A record that goes back, or on with another version, asks again for the calls of an earlier record: the
    one that had led there. Only the new calls are made; they take the place of the earlier ones."""
    found: list[Record] = []
    led = -1
    for record in kept:
        is_anew = record.back_to is not None or record.event == MIGRATED
        if is_anew and led >= 0 and found[led].next_step == record.next_step:
            found[led] = found[led].model_copy(update={"asked": record.asked})
            found.append(record.model_copy(update={"asked": ()}))
            continue
        if record.to is not None:
            led = len(found)
        found.append(record)
    return found


def lineage(records: Iterable[Record]) -> list[Record]:
    """The records that still hold: those after a rollback's or a fork's point are left out."""
    kept: list[Record] = []
    for record in records:
        if record.back_to is not None:
            while kept and kept[-1].seq > record.back_to:
                kept.pop()
        kept.append(record)
    return kept


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A step's beginning, or the end of a finished run: where it can go back to."""

    step: int
    """1, 2, ...; 0 is the run's start. The end has the number of the step that would follow."""
    seq: int
    """Number of the record that led there."""
    state: str
    at: float
    """Seconds since 1970."""
    is_end: bool = False
    """The run's end; what goes on from there is a step of its own."""


def checkpoints(records: Iterable[Record]) -> tuple[Checkpoint, ...]:
    """The run's start, the beginning of each step that still holds, and the end after the last one (spec
    1.8), if the machine can go on from there."""
    found: dict[int, Checkpoint] = {}
    for record in lineage(records):
        if record.to is None:
            continue
        if record.event == STARTED:
            found[0] = Checkpoint(0, record.seq, record.to, record.at)
        if record.begins or record.reopens:
            number = record.step + 1
            found[number] = Checkpoint(number, record.seq, record.to, record.at, record.reopens)
    return tuple(found.values())


def chain(records: Iterable[Record], head: str = "") -> str:
    """The hash of the last of these records; `head` is the hash before the first."""
    for record in records:
        head = next_hash(head, record.model_dump_json())
    return head
