"""Where a run can go back to, and what it was there: live, finished, or from the archive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from temporalio.exceptions import ApplicationError

from activities.contracts import Frozen, JsonObject
from activities.extensions import ExtensionError, load_extensions
from client.errors import NoWorker, RatchetError, UnknownRun, UsageError
from client.recorded import Begun, begun, parts_of
from client.rpc import clear_errors
from client.witness import plugin_of, replayed
from workflows import registry
from workflows.api import AgentTask
from workflows.intake import build
from workflows.kernel.errors import KernelError, name_of
from workflows.kernel.fields import Fields
from workflows.kernel.log import Record
from workflows.kernel.machine import Machine
from workflows.kernel.restore import Checkpoint, checkpoints, lineage, restored
from workflows.kernel.snapshot import Snapshot

if TYPE_CHECKING:
    from client.agent import AgentClient

__all__ = [
    "CheckpointLine", "Moved", "Source", "StepSnapshot", "checkpoints_of", "load_modules", "snapshot_at",
    "source_of", "wrote_nothing",
]  # fmt: skip


class CheckpointLine(Frozen):
    """One step of a run, as a list shows it."""

    step: int
    branch: int
    """Rises at each rollback and fork."""
    seq: int
    """The last record before the step; of a step that is left behind, its own first one."""
    state: str
    """Where the step begins."""
    held: bool = True
    """The run can go back to its beginning; a step that a rollback went back behind is left behind."""
    states: tuple[str, ...] = ()
    """The states that it has been in so far."""
    said: str = ""
    """What was thought or called first."""
    counters: dict[str, float] = {}
    """What the run had spent at its end."""
    started: float = 0


class Moved(Frozen):
    """A record in short: what came next."""

    seq: int
    state: str
    event: str
    to: str | None = None
    reason: str = ""
    error: str | None = None


class StepSnapshot(Frozen):
    """What a run was when a step began."""

    run: str
    machine: str
    version: str
    step: int
    branch: int
    state: str
    """The state that was about to be entered."""
    context: JsonObject
    """All fields of the machine's context."""
    counters: dict[str, float]
    """What the run had spent by then."""
    visit: int
    transitions: int
    records: int
    """How many the log had by then."""
    started: float
    """When it began last, in seconds since 1970."""
    next: tuple[Moved, ...] = ()
    """What came of the step."""
    notes: tuple[str, ...] = ()
    """What is not known for certain."""


@dataclass(frozen=True)
class Source:
    """A run's log and machine, as far as they are known."""

    run_id: str
    first_run_id: str
    """Of its first execution."""
    task: AgentTask | None
    records: tuple[Record, ...]
    machine: Machine[Any] | None
    why: str = ""
    """Why there is no machine."""
    notes: tuple[str, ...] = ()

    @cached_property
    def at(self) -> dict[int, Record]:
        """The records by number."""
        return {record.seq: record for record in self.records}

    @cached_property
    def _points(self) -> tuple[Checkpoint, ...]:
        return checkpoints(self.known(), self.records)

    @classmethod
    def of(cls, run_id: str, first_run_id: str, task: AgentTask | None, records: Sequence[Record]) -> Source:
        """With the machine that the task names, made of the task's options."""
        if task is None:
            return cls(run_id, first_run_id, None, tuple(records), None, "its task is not known")
        try:
            machine: Machine[Any] | None = build(task)[1]
            why = ""
        except ApplicationError as error:
            machine, why = None, error.message
        return cls(run_id, first_run_id, task, tuple(records), machine, why)

    def known(self) -> Machine[Any]:
        """The machine.

        Raises:
            RatchetError: there is none here that could read the log.
        """
        if self.machine is None:
            raise RatchetError(
                f"the machine of run {self.run_id} cannot be made here, so that its states cannot be read: "
                f"{self.why}; name the modules that it needs with RATCHET_MODULES. "
                f"`ratchet log {self.run_id}` shows what is recorded"
            )
        return self.machine

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The steps that it can go back to. Raises RatchetError."""
        self.known()
        if not self.records:
            raise wrote_nothing(self.run_id)
        try:
            return self._points
        except ValueError as error:
            raise RatchetError(f"the log of run {self.run_id} cannot be read: {error}") from error

    def checkpoint(self, step: int) -> Checkpoint:
        """Where a step begins.

        Raises:
            UsageError: the run has not begun it, or has gone back behind it.
        """
        points = self.checkpoints()
        if 0 <= step < len(points):
            return points[step]
        there = f"steps 0 to {len(points) - 1}" if len(points) > 1 else "step 0, the start, alone"
        raise UsageError(
            f"run {self.run_id} has no step {step} to go back to; it has {there} "
            f"(`ratchet steps {self.run_id}`)"
        )

    def snapshot(self, step: int) -> Snapshot[Any]:
        """What it was when a step began. Raises UsageError, RatchetError."""
        self.checkpoint(step)  # says which steps there are
        try:
            return restored(self.known(), self.records, step, self._points)
        except (ValueError, KernelError) as error:
            raise RatchetError(
                f"step {step} of run {self.run_id} cannot be restored with the machine as it is here: {error}"
            ) from error


async def source_of(agents: AgentClient, run_id: str) -> Source:
    """A run's log and machine.

    Without a worker, a run that Temporal knows is read out of its history.

    Raises:
        UnknownRun: neither Temporal nor the archive knows it.
        UsageError: a module of the settings cannot be loaded.
    """
    load_modules(agents)
    try:
        async with clear_errors(agents.where, run_id):
            start = await begun(agents.temporal, run_id)
    except UnknownRun:
        return await _archived(agents, run_id)
    return Source.of(run_id, start.first_run_id, start.task, await _records(agents, run_id, start))


async def checkpoints_of(agents: AgentClient, run_id: str) -> tuple[CheckpointLine, ...]:
    """The steps of a run, in order of the log: which of them it can go back to. Raises as `source_of`."""
    source = await source_of(agents, run_id)
    return tuple(_lines(source.checkpoints(), source))


async def snapshot_at(agents: AgentClient, run_id: str, step: int) -> StepSnapshot:
    """What a run was when a step began last, and what came of it.

    Raises:
        UnknownRun: neither Temporal nor the archive knows it.
        UsageError: it has no such step.
        RatchetError: its machine is not known here.
    """
    source = await source_of(agents, run_id)
    point, snapshot, machine = source.checkpoint(step), source.snapshot(step), source.known()
    at = source.at[point.seq]
    kept = [record for record in lineage(source.records) if record.seq > point.seq]
    points = source.checkpoints()
    end = points[step + 1].seq if step + 1 < len(points) else source.records[-1].seq
    return StepSnapshot(
        run=run_id,
        machine=machine.name,
        version=machine.version,
        step=step,
        branch=at.branch,
        state=name_of(snapshot.state),
        context=Fields.of(machine.context).dump(snapshot.context),
        counters=at.counters,
        visit=snapshot.visit,
        transitions=snapshot.transitions,
        records=point.seq + 1,
        started=point.started,
        next=tuple(_moved(record) for record in kept if record.seq <= end),
        notes=source.notes,
    )


def _moved(record: Record) -> Moved:
    return Moved(
        seq=record.seq, state=record.state, event=record.event, to=record.to, reason=record.reason,
        error=record.error,
    )  # fmt: skip


def _lines(points: Sequence[Checkpoint], source: Source) -> Iterable[CheckpointLine]:
    """Steps that hold by their checkpoints, those that are left behind by their records."""
    holding = {record.seq for record in lineage(source.records)}
    groups: dict[tuple[bool, int, int], list[Record]] = {}
    for record in source.records:
        if not record.within and record.back_to is None:
            held = record.seq in holding
            groups.setdefault((held, -1 if held else record.branch, record.step), []).append(record)
    lines = [_line(point, groups.get((True, -1, point.step), []), source.at[point.seq]) for point in points]
    for (held, branch, step), group in groups.items():
        if not held and any(record.to is not None for record in group):
            lines.append(_left(step, branch, group))
    return sorted(lines, key=lambda line: line.seq)


def _line(point: Checkpoint, group: Sequence[Record], at: Record) -> CheckpointLine:
    return CheckpointLine(
        step=point.step,
        branch=at.branch,
        seq=point.seq,
        state=point.state,
        started=point.started,
        **_told(group),
    )


def _left(step: int, branch: int, group: Sequence[Record]) -> CheckpointLine:
    first = group[0]
    return CheckpointLine(
        step=step, branch=branch, seq=first.seq, state=first.state, held=False, started=first.started,
        **_told(group),
    )  # fmt: skip


def _told(group: Sequence[Record]) -> dict[str, Any]:
    moves = [record for record in group if record.to is not None] or list(group)
    return {
        "states": tuple(record.state for record in moves),
        "said": next((record.reason for record in moves if record.reason), "")[:300],
        "counters": group[-1].counters if group else {},
    }


def wrote_nothing(run_id: str) -> RatchetError:
    """What there is to say of a run without a log."""
    return RatchetError(
        f"run {run_id} wrote nothing: it has only just been started, or its task was refused before it began "
        f"(`ratchet show {run_id}` says which)"
    )


def load_modules(agents: AgentClient) -> None:
    """Users' machines: those of the client's own settings. Raises UsageError."""
    try:
        for module in load_extensions(plugin_of(agents.temporal).settings.modules):
            registry.add_module(module)
    except (ExtensionError, ValueError, TypeError) as error:
        raise UsageError(f"modules: {error}") from error


async def _records(agents: AgentClient, run_id: str, start: Begun) -> tuple[Record, ...]:
    """The whole log; where no worker answers, as the code of today writes it over the history."""
    try:
        return await agents.records(run_id, full=True)
    except NoWorker:
        async with clear_errors(agents.where, run_id):
            parts = await parts_of(agents.temporal, run_id)
        seen = [await replayed(agents.temporal, part.history) for part in parts]
        if parts[0].begun.continues or any(one.failure for one in seen):
            raise
        found = {record.seq: record for one in seen for record in one.records}
        return tuple(found[seq] for seq in sorted(found))


async def _archived(agents: AgentClient, run_id: str) -> Source:
    """A run that Temporal has forgotten."""
    result = await agents.result(run_id)
    records = await agents.records(run_id)
    task, first_run_id = await agents._archive.begun(run_id)
    if task is not None:
        return Source.of(run_id, first_run_id or result.run_id, task, records)
    bare = AgentTask(goal="unknown", machine=result.machine, machine_version=result.machine_version)
    note = (
        "Temporal has forgotten the run, and the archive does not have its task: "
        "the machine is taken with its default options"
    )
    source = Source.of(run_id, first_run_id or result.run_id, bare, records)
    return replace(source, task=None, notes=(note,))
