"""A run's steps in one line each, from its log alone."""

from __future__ import annotations

from collections.abc import Sequence

from activities.contracts.base import Frozen
from workflows.kernel.log import Record, by_step

__all__ = ["StepLine", "step_line", "steps_of"]

SUMMARY_CHARS = 300
"""Characters of what a summary quotes."""


class StepLine(Frozen):
    """One step in one line."""

    step: int
    """Its number; 0: the run's beginning."""
    branch: int = 0
    """How often the run had been rolled back."""
    states: tuple[str, ...]
    """Those that it left."""
    summary: str
    """What was said in it first, and the calls as they were made; cut."""
    counters: dict[str, float] = {}
    """What the run had spent by its end."""
    started: float = 0
    """In seconds since 1970."""
    finished: float = 0
    """In seconds since 1970; of the step under way: so far."""


def steps_of(records: Sequence[Record]) -> tuple[StepLine, ...]:
    """The log by steps that hold, one line each; the summary is the first thing that was said in the step,
    its calls, and why a state was entered again."""
    return tuple(step_line(one.number, one.records, one.started) for one in by_step(records) if one.number)


def step_line(step: int, group: Sequence[Record], started: float) -> StepLine:
    """A step by its records; one that is only beginning has none yet."""
    if not group:
        return StepLine(step=step, states=(), summary="")
    moves = [record for record in group if record.to is not None] or group
    return StepLine(
        step=step,
        branch=group[-1].branch,
        states=tuple(record.state for record in moves),
        summary=_summary(group, moves),
        counters=group[-1].counters,
        started=started,
        finished=group[-1].at,
    )


def _summary(group: Sequence[Record], moves: Sequence[Record]) -> str:
    """What was said first does not hide why a state was entered again, often an error of the reply. Calls
    that have not ended stand there as they were asked for."""
    made = {one.id: one.summary for record in group for one in record.made}
    asked = {one.id: one.title for record in group for one in record.asked}
    first = next((record for record in moves if record.words), None)
    words = first.words if first else ""
    said = " -> ".join(filter(None, (words, "; ".join((asked | made).values()))))
    again = next((one for one in reversed(moves) if one.to == one.state and one.reason), None)
    if again is None or (again is first and len(said) <= SUMMARY_CHARS):
        return _cut(said, SUMMARY_CHARS)
    half = SUMMARY_CHARS // 2
    return f"{_cut(said, half)}; again: {_cut(again.reason, half)}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
