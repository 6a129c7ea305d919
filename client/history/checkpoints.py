"""Where a run can go back to, and its state there: live, over, or from the archive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from activities.contracts import Frozen, JsonObject
from client.errors import RatchetError, UnknownRun, UsageError
from client.runs.reader import RunReader
from client.runs.steps import begun_steps
from workflows.api import AgentTask
from workflows.kernel.errors import NotRestored
from workflows.kernel.log import Checkpoint, Record, lineage
from workflows.kernel.rollback import restored

if TYPE_CHECKING:
    from workflows.kernel.snapshot import Program

__all__ = ["Source", "StepSnapshot", "snapshot_at", "source_of"]


class StepSnapshot(Frozen):
    """The state of a run when a step began."""

    run: str
    """Its id."""
    machine: str
    """Its name."""
    version: str
    """The machine's."""
    step: int
    """Its number."""
    branch: int
    """How often the run had been rolled back."""
    state: str
    """The state that the step begins with."""
    context: JsonObject
    """All fields of the machine's context."""
    counters: dict[str, float]
    """What the run had spent by then."""
    visit: int
    """Number of the visit that begins."""
    transitions: int
    """How many there had been."""
    records: int
    """How many records the log had by then."""
    messages: int
    """How many messages the conversation had by then."""
    started: float
    """When it began last, in seconds since 1970."""
    next: tuple[Record, ...] = ()
    """The records of the step itself."""


@dataclass(frozen=True)
class Source:
    """A run's log and machine."""

    run: str
    first_run_id: str
    """Of its first execution."""
    task: AgentTask | None
    """None: only the archive knows the run, and lacks its task."""
    records: tuple[Record, ...]
    modules: Callable[[], Sequence[str]] = tuple
    """Of users: the run's machine may be in them."""

    @cached_property
    def program(self) -> Program:
        """The machine with its options. Raises RatchetError when it cannot be made here, and UsageError for a
        module that cannot be loaded."""
        from client.server.workerconfig import register_modules
        from workflows.task import InvalidTask, program_for

        register_modules(self.modules())
        problem = "its task is not known"
        if self.task is not None:
            try:
                return program_for(self.task, None, self.run)
            except InvalidTask as error:
                problem = str(error)
        raise RatchetError(
            f"the machine of run {self.run} cannot be made here, so its states cannot be read: {problem}; "
            f"name the modules that it needs with RATCHET_MODULES. `ratchet log {self.run}` shows its records"
        )

    @cached_property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The steps that it can go back to. Raises RatchetError."""
        return begun_steps(self.run, self.records)

    def checkpoint(self, step: int) -> Checkpoint:
        """Where a step begins.

        Raises:
            UsageError: the run has not begun the step, or has gone back to before it.
            RatchetError: it has no log.
        """
        found = {point.step: point for point in self.checkpoints}
        if step in found:
            return found[step]
        raise UsageError(
            f"No step {step}: run {self.run} has steps {min(found, default=0)} to {max(found, default=0)} "
            f"(`ratchet steps {self.run}`)"
        )


async def source_of(agents: RunReader, run: str) -> Source:
    """A run's log and machine: from the archive where it has them, else from the run or Temporal's history.

    Raises:
        UnknownRun: neither Temporal nor the archive knows the run.
    """
    result = await agents.archive.result(run) if await agents.is_archived(run) else None
    task = await agents.archive.task(run) if result else None
    if result is None or task is None:  # the archive lacks it, or has it of another release
        try:
            beginning = await (await agents.server()).beginning(run)
        except UnknownRun:
            result = await agents.result(run)
        else:
            records = (await agents.log(run, full=True)).records
            return Source(run, beginning.first_run_id, beginning.task, records, agents.modules)
    return Source(run, result.run_id, task, await agents.archive.records(run), agents.modules)


def snapshot_at(source: Source, step: int) -> StepSnapshot:
    """The state of a run when a step began last.

    Raises:
        UsageError: the run has no such step.
        RatchetError: its machine cannot be made here, or does not take the recorded values.
    """
    point = source.checkpoint(step)
    upto = [record for record in source.records if record.seq <= point.seq]
    try:
        snapshot = restored(source.program, upto)
    except NotRestored as error:
        raise RatchetError(
            f"step {step} of run {source.run} cannot be restored with the machine as it is here: {error}"
        ) from error
    later = [one.seq for one in source.checkpoints if one.step == step + 1]
    end = later[0] if later else source.records[-1].seq
    machine = source.program.machine
    return StepSnapshot(
        run=source.run,
        machine=machine.name,
        version=machine.version,
        step=step,
        branch=upto[-1].branch,
        state=snapshot.state,
        context=snapshot.context.model_dump(mode="json"),
        counters=upto[-1].counters,
        visit=snapshot.visit,
        transitions=snapshot.transitions,
        records=point.seq + 1,
        messages=len(snapshot.conversation),
        started=point.at,
        next=tuple(one for one in lineage(source.records) if point.seq < one.seq <= end),
    )
