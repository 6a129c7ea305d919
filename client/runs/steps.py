"""The steps of a run, for people: what each did, and where the run can go back to."""

from __future__ import annotations

from collections.abc import Sequence

from client.errors import RatchetError
from workflows.kernel.log import Checkpoint, Record, began, checkpoints, lineage
from workflows.steps import StepLine, step_line

__all__ = ["CheckpointLine", "begun_steps", "checkpoint_lines"]


class CheckpointLine(StepLine):
    """One step of a run: where a rollback or a fork can begin again."""

    seq: int
    """The record before the step. If a rollback dropped the step, its own first record."""
    state: str
    """Where the step begins."""
    holds: bool = True
    """False: a rollback went to before it, so the run cannot go back to it."""
    is_end: bool = False
    """The end of the run, which has no step: a fork goes on behind it."""


def begun_steps(run: str, records: Sequence[Record]) -> tuple[Checkpoint, ...]:
    """The steps that a run can go back to. Raises RatchetError for one without a log."""
    if not records:
        raise RatchetError(
            f"run {run} has no log yet: it has just been started, or its task was refused; "
            f"`ratchet show {run}` says which"
        )
    return checkpoints(records)


def checkpoint_lines(run: str, records: Sequence[Record]) -> tuple[CheckpointLine, ...]:
    """The steps of a run in the order of the log, also those left behind. Raises RatchetError."""
    points = begun_steps(run, records)
    holding = {record.seq for record in lineage(records)}
    starts = {one.seq: began(one, before) for one, before in zip(records, (None, *records), strict=False)}
    groups: dict[tuple[bool, int, int], list[Record]] = {}
    for record in records:
        if record.back_to is None:
            holds = record.seq in holding
            groups.setdefault((holds, 0 if holds else record.branch, record.of_step), []).append(record)
    lines = []
    for point in points:
        group = groups.get((True, 0, point.step), [])
        line = step_line(point.step, group, starts[group[0].seq] if group else 0)
        lines.append(CheckpointLine(**dict(line), seq=point.seq, state=point.state, is_end=point.is_end))
    for (holds, _, step), group in groups.items():
        if not holds and any(record.to is not None for record in group):
            first = group[0]
            line = step_line(step, group, starts[first.seq])
            lines.append(CheckpointLine(**dict(line), seq=first.seq, state=first.state, holds=False))
    return tuple(sorted(lines, key=lambda line: line.seq))
