"""Where a run can go back to: the beginnings of its steps, found in the log alone (spec 1.8).

Counted is the run's first machine. Step N begins where its step state is entered for the N-th time;
step 0 is the start of the run. What a rollback went back behind is no longer there to go back to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel

from workflows.kernel.errors import name_of
from workflows.kernel.log import FORKED, HELD_BACK, STARTED, Record, lineage
from workflows.kernel.machine import Machine
from workflows.kernel.rebuild import rebuild
from workflows.kernel.snapshot import Snapshot

__all__ = ["Checkpoint", "checkpoints", "lineage", "restored", "steps_done"]

C = TypeVar("C", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a step begins."""

    step: int
    seq: int
    """The last record that still holds there."""
    state: str
    """The state that is entered."""
    started: float
    """When it was entered last from here, in seconds since 1970."""


def checkpoints(machine: Machine[Any], records: Sequence[Record]) -> tuple[Checkpoint, ...]:
    """The steps that the run can go back to, in order; step 0 is its start.

    Raises ValueError when the records do not begin with the start.
    """
    own = _own(lineage(records))
    first = own[0]
    begins = name_of(machine.step_state) if machine.step_state else ""
    # What on_enter wrote at the start is part of the start.
    called = own[1:2] and own[1].event == "on_enter"
    start = Checkpoint(0, own[1].seq if called else first.seq, str(first.to), first.started)
    points = [start, replace(start, step=1)] if start.state == begins else [start]
    for record in own[1:]:
        if record.back_to is not None:
            # The step began once more, with what the record changed.
            points = [_moved(point, record) if point.seq == record.back_to else point for point in points]
        elif record.to is not None and record.to == begins:
            points.append(Checkpoint(len(points), record.seq, record.to, record.finished))
    return tuple(points)


def _own(records: Sequence[Record]) -> list[Record]:
    own = [record for record in records if not record.within]
    if not own or own[0].event != STARTED:
        found = f"record {own[0].seq}, {own[0].event}" if own else "nothing"
        raise ValueError(f"the log begins with {found}, not with {STARTED}")
    return own


def _moved(point: Checkpoint, record: Record) -> Checkpoint:
    return replace(point, seq=record.seq, started=record.finished)


def restored(
    machine: Machine[C], records: Sequence[Record], step: int, points: Sequence[Checkpoint] | None = None
) -> Snapshot[C]:
    """The snapshot in which a step is about to begin: its state is not entered yet.

    All is as it was then, also visit, seq and branch, which a run that goes back there must not take over.
    `points`: what `checkpoints` gives, for whom has it. Raises ValueError saying which steps there are.
    """
    points = checkpoints(machine, records) if points is None else points
    if not 0 <= step < len(points):
        there = f"0 to {len(points) - 1}" if len(points) > 1 else "0, the start"
        raise ValueError(f"step {step} is none that {machine.name} has begun; there are {there}")
    point = points[step]
    kept = [record for record in lineage(records) if record.seq <= point.seq]
    state, context = rebuild(machine, kept)
    own = _own(kept)
    begun = [record for record in own[1:] if record.to is not None]
    moves = [record for record in begun if record.back_to is None]
    return Snapshot(
        state=state,
        context=context,
        visit=own[-1].visit if begun else 0,
        step=max(step - 1, 0),
        transitions=len(moves),
        hold_backs=sum(record.event == HELD_BACK for record in own),
        entered=point.started,
        began=_began(records),
        seq=point.seq + 1,
        branch=own[-1].branch,
        last=moves[-1] if moves else None,
    )


def _began(records: Sequence[Record]) -> float:
    """When the run began: a fork does so where it leaves the records of its source."""
    forks = [record.finished for record in records if record.event == FORKED and record.back_to is not None]
    return forks[-1] if forks else records[0].started


def steps_done(machine: Machine[C], snapshot: Snapshot[C]) -> int:
    """How many steps are done: by the machine's own count, else those that have begun but for the newest."""
    if machine.steps_done is not None:
        return machine.steps_done(snapshot.context)
    return max(snapshot.step - 1, 0)
