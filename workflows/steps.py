"""A run's steps in one line each, from its log alone."""

from __future__ import annotations

from collections.abc import Sequence

from activities.contracts.base import Frozen
from workflows.kernel.log import LoggedCall, Record, by_step

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
    """What was said in it first, and the calls as they were made, each once; cut."""
    counters: dict[str, float] = {}
    """What the run had spent by its end."""
    started: float = 0
    """In seconds since 1970."""
    finished: float = 0
    """In seconds since 1970; of the step under way: so far."""


def steps_of(records: Sequence[Record]) -> tuple[StepLine, ...]:
    """The log by steps that hold, one line each; the summary is the first thing that was said in the step,
    its calls in the order in which they ended, and why a state was entered again."""
    return tuple(
        step_line(one.number, one.own, one.started, one.not_ended, one.branch)
        for one in by_step(records)
        if one.number
    )


def step_line(
    step: int, group: Sequence[Record], started: float, not_ended: Sequence[LoggedCall] = (), branch: int = 0
) -> StepLine:
    """A step by its records, without those that went back to its end, and its calls that have not ended; one
    that is only beginning has no records yet."""
    if not group:
        return StepLine(step=step, branch=branch, states=(), summary=_summary((), (), not_ended))
    moves = [record for record in group if record.to is not None] or group
    return StepLine(
        step=step,
        branch=group[-1].branch,
        states=tuple(record.state for record in moves),
        summary=_summary(group, moves, not_ended),
        counters=group[-1].counters,
        started=started,
        finished=group[-1].at,
    )


def _summary(group: Sequence[Record], moves: Sequence[Record], not_ended: Sequence[LoggedCall]) -> str:
    """What was said first does not hide why a state was entered again, often an error of the reply. Calls
    that have not ended stand last, as they were asked for."""
    calls = {one.id: one.summary for record in group for one in record.made}
    calls |= {one.id: one.title for one in not_ended}
    first = next((record for record in moves if record.words), None)
    words = first.words if first else ""
    said = " -> ".join(filter(None, (words, "; ".join(calls.values()))))
    again = next((one for one in reversed(moves) if one.to == one.state and one.reason), None)
    if again is None or (again is first and len(said) <= SUMMARY_CHARS):
        return _cut(said, SUMMARY_CHARS)
    half = SUMMARY_CHARS // 2
    return f"{_cut(said, half)}; again: {_cut(again.reason, half)}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
