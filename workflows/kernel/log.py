"""The transition log: one record for each transition, and one for each effect after which a visit continues.

From the records alone the run can be rebuilt, whatever the machine (spec 7.3): `rollback.restored`.
The log only grows: a rollback or a fork is a record too, and says which of those before it still hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from activities.contracts import (
    Answers,
    ArtifactsRead,
    AskModel,
    CallTools,
    CodeStepped,
    Effect,
    EffectFailed,
    Frozen,
    JsonObject,
    LabelSource,
    MachineEnded,
    Message,
    Together,
    ToolCall,
    ToolsReturned,
    added,
    without_digests,
)
from activities.text import readable

__all__ = [
    "CLOSED",
    "FORKED",
    "LEFT_OUT",
    "MIGRATED",
    "ROLLED_BACK",
    "STARTED",
    "STEERED",
    "VERSION",
    "LoggedCall",
    "LoggedStep",
    "NO_CALLS",
    "Record",
    "answered",
    "wanted_calls",
    "by_step",
    "chain",
    "lineage",
    "members",
    "next_hash",
    "shortened",
    "tool_calls",
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
CLOSED = "Closed"
"""Event of a record that ends a run in the middle; `reason` begins with the exit reason."""
ROLLED_BACK = "RolledBack"
"""Event of a record that goes back to a step of this run."""
FORKED = "Forked"
"""Event of a record that goes on from a step of another run; that run's records stand before it."""

TITLE_CHARS, OUTPUT_CHARS, ERROR_CHARS = 200, 300, 60
"""The most characters of a title, an output and an error in `LoggedCall`."""
ANSWERED_BYTES = 6_000
"""The most bytes of a record's `answered`, as JSON."""
ARGUMENTS_CHARS = 2_000
"""The most characters of a call's arguments."""
MORE_BYTES = 60
"""Bytes of the last of them, which says how many more there were."""
NO_CALLS = {"ask_model", "ask_person", "together", "say"}
"""Kinds of effect that the log has elsewhere: as messages, as decisions."""
LEFT_OUT = "[left out]"
"""In the place of an output for which there was no room."""


class LoggedCall(Frozen):
    """An effect in short: what is asked for and, once it was answered, what came of it."""

    kind: str
    """Of the effect; `more`: says how many there was no room for."""
    title: str
    """For people: `search_files(pattern="ERROR")`."""
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


def members(effect: Effect[Any], place: str) -> tuple[tuple[str, Effect[Any]], ...]:
    """The effect's single effects with their activity ids."""
    if not isinstance(effect, Together):
        return ((place, effect),)
    return tuple((f"{place}.{number}", member) for number, member in enumerate(effect.effects))


def tool_calls(effect: Effect[Any], place: str) -> dict[str, ToolCall]:
    """The tool calls among them, by activity id."""
    return {
        (name if len(member.calls) == 1 else f"{name}.{number}"): run
        for name, member in members(effect, place)
        if isinstance(member, CallTools)
        for number, run in enumerate(member.calls)
    }


def wanted_calls(effect: Effect[Any], place: str) -> tuple[LoggedCall, ...]:
    """The calls that an effect asks for; questions to models and people are none."""
    runs = tool_calls(effect, place)
    calls = [
        LoggedCall(kind=one.kind, title=_short(one.title, TITLE_CHARS), id=name)
        for name, one in members(effect, place)
        if not isinstance(one, CallTools) and one.kind not in NO_CALLS
    ]
    calls += [
        LoggedCall(kind="call_tools", title=_short(run.title, TITLE_CHARS), id=n) for n, run in runs.items()
    ]
    return shortened(calls, ANSWERED_BYTES)


def answered(effect: Effect[Any], answer: Any, place: str) -> tuple[LoggedCall, ...]:
    """What came of an effect, of each call and each member side by side; as much as there is room for."""
    return shortened(tuple(_each(effect, answer, place)), ANSWERED_BYTES)


def shortened(every: Sequence[LoggedCall], room: int) -> tuple[LoggedCall, ...]:
    """As much as `room` bytes of JSON hold: outputs go before titles and errors; the last counts the rest."""
    sizes = [_size(one) for one in every]
    if sum(sizes) <= room:
        return tuple(every)
    room, found, spared = room - MORE_BYTES, list[LoggedCall](), list[int]()
    for one, size in zip(every, sizes, strict=True):
        is_long = len(one.output) > len(LEFT_OUT)
        bare = one.model_copy(update={"output": LEFT_OUT, "is_cut": True}) if is_long else one
        spared.append(size - _size(bare) if is_long else 0)
        room -= size - spared[-1]
        if room < 0:
            hidden = sum(
                int(one.title.split()[1]) if one.kind == "more" else 1 for one in every[len(found) :]
            )
            return (*found, LoggedCall(kind="more", title=f"and {hidden} more"))
        found.append(bare)
    for number, size in enumerate(spared):
        if size <= room:
            room -= size
            found[number] = every[number]
    return tuple(found)


def _size(one: LoggedCall) -> int:
    """Bytes of its JSON, and of the comma after it."""
    return len(one.model_dump_json().encode()) + 1


def _each(effect: Effect[Any], answer: Any, place: str) -> Iterator[LoggedCall]:
    match effect, answer:
        case Together(), Answers():
            if only_asks := all(isinstance(member, AskModel) for member in effect.effects):
                yield _made(effect.kind, effect.title, "", None)
            for (name, member), its in zip(members(effect, place), answer.answers, strict=False):
                if not only_asks or isinstance(its, EffectFailed):
                    yield from _each(member, its, name)
        case CallTools(), ToolsReturned() if answer.results:
            for (name, run), result in zip(tool_calls(effect, place).items(), answer.results, strict=False):
                yield _made(
                    effect.kind, run.title, result.output, result.error, call=run.id, id=name,
                    arguments=_cut_arguments(run), edited_by=run.edited_by[:TITLE_CHARS],
                    seconds=round(result.seconds, 3),
                )  # fmt: skip
        case _:
            yield _made(effect.kind, effect.title, *_outcome(answer), id=place)


def _outcome(answer: Any) -> tuple[str, str | None]:
    match answer:
        case EffectFailed():
            return answer.message, answer.type
        case MachineEnded():
            return answer.answer or answer.error or "", None if answer.ok else answer.exit_reason
        case ArtifactsRead():
            return "\n".join(
                one.problem or one.text[:OUTPUT_CHARS] for one in answer.texts[:OUTPUT_CHARS]
            ), None
        case CodeStepped():
            return answer.error or answer.printed, "raised" if answer.error else None
    return "", None


def _made(
    kind: str, title: str, output: str, error: str | None, *, call: str = "", **more: Any
) -> LoggedCall:
    shown = _short(output.rstrip(), OUTPUT_CHARS)
    return LoggedCall(
        kind=kind,
        title=_short(title, TITLE_CHARS),
        output=shown,
        is_cut=len(shown) < len(output.rstrip()),
        error=error and _short(error, ERROR_CHARS),
        call=call if len(call) <= TITLE_CHARS else "",  # a model may have written it
        **more,
    )


def _cut_arguments(run: ToolCall) -> JsonObject:
    """Those that were given, as people see them: of a long value the beginning, as text; as many as there is
    room for."""
    arguments = {name: value for name, value in run.arguments.items() if name not in run.filled}
    found: JsonObject = {}
    left = ARGUMENTS_CHARS
    for name, value in arguments.items():
        text = json.dumps(value, ensure_ascii=False)
        left -= len(name) + min(len(text), OUTPUT_CHARS)
        if left < 0:
            return {**found, "...": f"and {len(arguments) - len(found)} more"}
        found[readable(name)] = (
            value if len(text) <= OUTPUT_CHARS and text.isprintable() else _short(text, OUTPUT_CHARS)
        )
    return found


def _short(text: str, limit: int) -> str:
    start = readable(without_digests(text[: 4 * limit]))
    return start if len(start) <= limit and len(text) <= 4 * limit else f"{start[: limit - 1]}…"


class Record(Frozen):
    """One thing that happened to a run. In JSON, fields with their default are left out."""

    seq: int
    """0, 1, 2, ... without gaps over all branches."""
    branch: int = 0
    """Rises at each rollback."""
    machine: str
    state: str
    """Where the machine was."""
    event: str
    """Name of the event; of the answer, where a visit goes on after one."""
    to: str | None = None
    """The state that the event led to; None: the machine stayed in its visit."""
    reason: str = ""
    """For people: why, what was called, returned or violated, in words that nobody has to read."""
    thought: str = ""
    """What the model said, as the machine read it."""
    begins: bool = False
    """A step begins with it: it leads to the machine's step state."""
    reopens: bool = False
    """The run ends with it, and can continue after this end."""
    step: int = 0
    """How many steps had begun (entries of the machine's step state)."""
    of_step: int = 0
    """The step that it tells of. What comes before the first step belongs to that; a reply that leads to a
    step state which asks no model itself, to the step that begins with it. 0: the run's beginning."""
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
    """The calls that are asked for next."""
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
    def summary(self) -> str:
        """In words what happened: the broken rule; or what was thought, why, and which calls come next; or
        else which were made."""
        words = "; ".join(filter(None, (self.thought, self.reason)))
        wanted = "; ".join(one.title for one in self.asked)
        made = "; ".join(one.title for one in self.answered if one.kind not in NO_CALLS)
        return self.error or " -> ".join(filter(None, (words, wanted))) or made

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
    spent: dict[str, float]
    """In it alone, by counter."""

    @property
    def path(self) -> tuple[str, ...]:
        """The states that it left."""
        return tuple(one.state for one in self.records if one.to is not None and one.event != STARTED)


def by_step(records: Iterable[Record]) -> tuple[LoggedStep, ...]:
    """The log by the steps that hold, in order. What was spent in steps that a rollback has left is in none;
    of a log that does not begin with the run's first record, neither is what was spent before."""
    every = tuple(records)
    spent: dict[int, dict[str, float]] = {}
    before: Mapping[str, float] = every[0].counters if every and every[0].seq else {}
    for record in every:
        spent[record.seq] = {n: amount - before.get(n, 0) for n, amount in record.counters.items()}
        before = record.counters
    groups: dict[int, list[Record]] = {}
    for record in lineage(every):
        groups.setdefault(record.of_step, []).append(record)
    return tuple(
        LoggedStep(number, tuple(group), added(*(spent[record.seq] for record in group)))
        for number, group in sorted(groups.items())
    )


def lineage(records: Iterable[Record]) -> list[Record]:
    """The records that still hold: those after a rollback's or a fork's point are left out."""
    kept: list[Record] = []
    for record in records:
        if record.back_to is not None:
            while kept and kept[-1].seq > record.back_to:
                kept.pop()
        kept.append(record)
    return kept


def next_hash(previous: str, text: str) -> str:
    """The hash of a record in its chain, from its JSON: 64 hexadecimal characters."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def chain(records: Iterable[Record], head: str = "") -> str:
    """The hash of the last of these records; `head` is the hash before the first."""
    for record in records:
        head = next_hash(head, record.model_dump_json())
    return head
