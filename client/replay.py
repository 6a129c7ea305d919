"""`replay`: a run again from what models, tools and people said, without calling anything.

Temporal replays the recorded history with the code of today; its verdict says whether an open run could
go on. What today's code writes into the log meanwhile, and what it would send to models and tools, is
held against what the run wrote and sent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from temporalio.client import Client
from temporalio.workflow import NondeterminismError

from activities.contracts import Frozen
from client.described import ChangedTool, few, held_against_now
from client.differences import Difference, Span, differences, timeless
from client.errors import NoWorker, UnknownRun
from client.prompts import Prompts
from client.recorded import ARCHIVE, CONTINUED, DESCRIBED, Part, RecordedCall, parts_of
from client.rpc import clear_errors
from client.witness import AskedCall, Witnessed, replayed
from workflows.api import WORKFLOW_TYPE
from workflows.kernel.log import Record

if TYPE_CHECKING:
    from client.agent import AgentClient

__all__ = ["ChangedCall", "ChangedRecord", "Replayed", "by_number", "first_changed", "judged", "replay"]

MOST_CALLS = 10
"""Changed calls that are told; behind the first one the others mostly follow."""
AROUND = 60
"""Seconds before and behind a run in which a time is still taken for one of its own."""
CLOCK = {"started", "finished"}
"""Of a record: when its visit went on."""
Call = TypeVar("Call", RecordedCall, AskedCall)
BySeq = Mapping[int, Record]


class ChangedRecord(Frozen):
    """A record of the log that is another one today."""

    seq: int
    step: int = 0
    was: str
    """`state: event` as recorded; empty: today there is one more."""
    now: str
    """The same today; empty: today there is none."""
    differences: tuple[Difference, ...] = ()


class ChangedCall(Frozen):
    """A call that would be made with something else today; also the hand-over to the next execution."""

    place: str
    """The activity's id, such as `thought#3:1`."""
    activity: str
    differences: tuple[Difference, ...]


class Replayed(Frozen):
    """What came of a replay."""

    run: str
    step: int | None = None
    """Only what came before this step began was looked at; None: everything."""
    same: bool
    """Code and machine of today do what the run did, all of which was looked at."""
    goes_on: bool | None
    """Temporal can go on with this history; None: the run is over."""
    trouble: str = ""
    """Why not, in words."""
    records: int
    """So many were held against the log."""
    calls: int
    """So many calls of models, tools and runs inside were held against those that were made."""
    record: ChangedRecord | None = None
    """The first one that differs."""
    changed: tuple[ChangedCall, ...] = ()
    """The first calls that differ, in order."""
    unread: bool = False
    """The newest records of the log could not be read, as no worker runs: what they say was not looked at."""
    changed_calls: int = 0
    """How many do in all."""
    tools: tuple[ChangedTool, ...] = ()
    """Those of which a new run would be told something else."""
    notes: tuple[str, ...] = ()
    """What could not be looked at."""


async def replay(agents: AgentClient, run_id: str, step: int | None = None) -> Replayed:
    """Run it again from its history; nothing is called, and nothing changes.

    Args:
        step: look only at what came before this step began for the last time.

    Raises:
        UnknownRun: Temporal has no history of the run (any more).
        UsageError: the run has no such step, or a module of the settings cannot be loaded.
    """
    from client.checkpoints import load_modules

    load_modules(agents)
    try:
        async with clear_errors(agents.where, run_id):
            parts = await parts_of(agents.temporal, run_id)
    except UnknownRun as error:
        raise UnknownRun(
            f"{error}. A replay needs Temporal's history of the run; where its retention has passed, "
            f"`ratchet log {run_id}` and `ratchet show {run_id} --step N` still read the archive"
        ) from error
    try:
        written, complete = await _written(agents, run_id, parts)
        unread = False
    except NoWorker:
        written, complete, unread = await _archived(agents, parts), False, True
    upto = None if step is None else _records_before(run_id, step, parts, written)
    told = await judged(agents.temporal, parts, written, complete=complete, upto=upto)
    return told.model_copy(
        update={"run": run_id, "step": step, "unread": unread, "same": told.same and not unread}
    )


async def judged(
    temporal: Client,
    parts: Sequence[Part],
    written: BySeq,
    *,
    complete: bool,
    upto: int | None = None,
) -> Replayed:
    """Replay the executions of a run and hold what today's code does against what was done.

    Args:
        written: the log, by sequence number, as far as it is known.
        complete: the run is over, and that is all that it wrote.
        upto: only so many records count, and the calls that were made by then.
    """
    seen = [await replayed(temporal, part.history) for part in parts]
    looked = _Looked(parts, seen, written, complete, upto)
    whole = complete and not any(one.failure for one in seen)
    record, records = first_changed(written, looked.now, whole=whole, upto=upto, span=looked.span)
    changed, calls = await _changed_calls(temporal, looked)
    tools, unknown = await held_against_now(temporal, parts)
    trouble = _trouble(*looked.failed) if looked.failed else ""
    return Replayed(
        run=parts[-1].history.workflow_id,
        same=not (trouble or record or changed or tools),
        goes_on=None if parts[-1].ended else not trouble,
        trouble=trouble,
        records=records,
        calls=calls,
        record=record,
        changed=tuple(changed[:MOST_CALLS]),
        changed_calls=len(changed),
        tools=tools,
        notes=(*_notes(looked), *unknown),
    )


async def _written(agents: AgentClient, run_id: str, parts: Sequence[Part]) -> tuple[dict[int, Record], bool]:
    """What the run wrote, by number, and whether that is all of it.

    From the history as far as it holds the log, then from the run itself. Raises NoWorker.
    """
    found = await _archived(agents, parts)
    if parts[-1].ended and found:
        return found, True
    async with clear_errors(agents.where, run_id):
        more = await agents.records(run_id, max(found, default=-1) + 1, full=True)
    return found | {record.seq: record for record in more}, False


async def _archived(agents: AgentClient, parts: Sequence[Part]) -> dict[int, Record]:
    """What of the log is in the history."""
    records = [record for part in parts for record in await part.records(agents.temporal)]
    return {record.seq: record for record in records}


def _records_before(run_id: str, step: int, parts: Sequence[Part], written: BySeq) -> int:
    """How many records there were when a step began for the last time. Raises UsageError."""
    from client.checkpoints import Source

    begun = parts[-1].begun
    source = Source.of(run_id, begun.first_run_id, begun.task, [written[seq] for seq in sorted(written)])
    return source.checkpoint(step).seq + 1


@dataclass(frozen=True)
class _Looked:
    """What there is to be held against each other."""

    parts: Sequence[Part]
    seen: Sequence[Witnessed]
    written: BySeq
    complete: bool
    """The run is over, and all that it wrote is here."""
    upto: int | None
    """How many records count; None: all of them."""

    @cached_property
    def now(self) -> BySeq:
        """What the code of today wrote."""
        return by_number(one.records for one in self.seen)

    @property
    def span(self) -> Span:
        """When these executions went on, and a minute around it."""
        first, last = self.parts[0].history.events[0], self.parts[-1].history.events[-1]
        return first.event_time.seconds - AROUND, last.event_time.seconds + AROUND

    @property
    def failed(self) -> tuple[Part, Witnessed] | None:
        """The first execution that Temporal could not replay, if it counts."""
        for part, seen in zip(self.parts, self.seen, strict=True):
            if seen.failure is not None:
                reached = max((record.seq for record in seen.records), default=seen.first) + 1
                return None if self.upto is not None and reached >= self.upto else (part, seen)
        return None


def by_number(logs: Iterable[Sequence[Record]]) -> dict[int, Record]:
    """The logs of a run's executions, the first one first, as one.

    A record counts as the execution wrote it that had it first: the next one may only have been handed it.
    """
    found: dict[int, Record] = {}
    for log in logs:
        for record in log:
            found.setdefault(record.seq, record)
    return found


def first_changed(
    written: BySeq, now: BySeq, *, whole: bool, upto: int | None = None, span: Span | None = None
) -> tuple[ChangedRecord | None, int]:
    """The first record that is another one now, and how many were looked at.

    Args:
        whole: both are complete, so that one more on either side is a difference.
        upto: only records with smaller numbers count.
        span: when the run went on; see `timeless`.
    """
    if not written or not now:
        return None, 0
    first, last = max(min(written), min(now)), min(max(written), max(now))
    if whole:
        last = max(*written, *now)
    end = last + 1 if upto is None else min(last + 1, upto)
    for looked, seq in enumerate(range(first, end), start=1):
        if found := _changed(seq, written.get(seq), now.get(seq), span):
            return found, looked
    return None, max(end - first, 0)


def _changed(seq: int, was: Record | None, now: Record | None, span: Span | None) -> ChangedRecord | None:
    one = was or now
    if one is None or was == now:
        return None
    found: tuple[Difference, ...] = ()
    if was is not None and now is not None:
        found = differences(
            *(timeless(one.model_dump(mode="json", exclude=CLOCK), span) for one in (was, now))
        )
        if not found:
            return None
    return ChangedRecord(seq=seq, step=one.step, was=_named(was), now=_named(now), differences=found)


def _named(record: Record | None) -> str:
    return f"{record.state}: {record.event}" if record else ""


async def _changed_calls(temporal: Client, looked: _Looked) -> tuple[list[ChangedCall], int]:
    """Calls that would be made with something else, and how many were looked at."""
    changed: list[ChangedCall] = []
    count = 0
    prompts = Prompts(temporal, looked.span)
    for part, seen in zip(looked.parts, looked.seen, strict=True):
        recorded = dict(_numbered(part.calls))
        for key, asked in _numbered(seen.calls):
            beyond = looked.upto is not None and asked.records >= looked.upto
            if beyond or key not in recorded:
                continue
            count += asked.activity not in (ARCHIVE, CONTINUED, DESCRIBED)
            if found := await prompts.changed(recorded[key], asked):
                changed.append(ChangedCall(place=asked.id, activity=asked.activity, differences=found))
    return changed, count


def _numbered(calls: Iterable[Call]) -> Iterator[tuple[tuple[str, int], Call]]:
    """Calls by id; an id may be used again when the call before it is over."""
    times: Counter[str] = Counter()
    for call in calls:
        yield (call.id, times[call.id]), call
        times[call.id] += 1


def _trouble(part: Part, seen: Witnessed) -> str:
    """Why Temporal cannot go on with a history: what it holds, and what came instead."""
    said = _innermost(str(seen.failure))
    if not isinstance(seen.failure, NondeterminismError):
        return f"the code of today fails on this history: {said}"
    was, now = _alone(part.calls, seen.calls), _alone(seen.calls, part.calls)
    expected = f"the run called {was.id} ({was.activity})" if was else "the run called nothing more"
    does = f"calls {now.id} ({now.activity})" if now else seen.end or "does not"
    return (
        f"{expected}; the code of today {does}. An open run with this history cannot go on (Temporal: {said})"
    )


def _alone(calls: Iterable[Call], others: Iterable[RecordedCall] | Iterable[AskedCall]) -> Call | None:
    """The first of the calls that is not among the others."""
    there = {(one.id, one.activity) for one in others}
    return next((call for call in calls if (call.id, call.activity) not in there), None)


def _innermost(said: str) -> str:
    """Temporal's core nests its messages as Rust prints them; the innermost one says it."""
    messages: list[str] = re.findall(r'message: "((?:[^"\\]|\\.)*)"', said)
    return (messages[-1] if messages else said).removeprefix("[TMPRL1100] ").strip()


def _notes(looked: _Looked) -> Iterator[str]:
    if looked.parts[0].begun.continues:
        first = looked.seen[0].first
        yield f"Temporal holds the run from record {first} on only: what came before is taken as it was"
    inside = [call.id for one in looked.seen for call in one.calls if call.activity == WORKFLOW_TYPE]
    if inside:
        yield (
            f"runs inside it have histories of their own: {few(inside)}; "
            "the options that they are started with are not compared"
        )
    asked = [call.options for one in looked.seen for call in one.calls if call.options]
    if any(options.schedule_to_close_timeout for options in asked):
        yield "not compared: the time that calls may take with all their attempts; it depends on the clock"
