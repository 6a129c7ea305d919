"""The steps of a run, for people: what each did, and where the run can go back to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from client.errors import RatchetError
from workflows.kernel.log import Checkpoint, LoggedCall, Record, began, by_step, checkpoints, lineage
from workflows.steps import StepLine, step_line

__all__ = ["CheckpointLine", "begun_steps", "checkpoint_lines", "reply_before_text"]

SHOWN_CALLS = 3
"""Calls that a message about a step names."""


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


def reply_before_text(records: Sequence[Record], step: int) -> str:
    """That a step begins behind a reply of the model, so that what the reply asked for comes before the model
    reads anything new, and which step has it asked again. Empty: the model is asked first, or the log does
    not say."""
    points, holding = checkpoints(records), lineage(records)
    point = next((one for one in points if one.step == step and not one.is_end), None)
    replies = [one.seq for one in holding if any(call.kind == "ask_model" for call in one.answered)]
    before = [one for one in replies if point is not None and one <= point.seq]
    if point is None or not before:
        return ""
    since = [one for one in holding if before[-1] <= one.seq <= point.seq]
    if any(one.made for one in since) and not _waiting(since):
        return ""  # what the reply asked for was made before: these calls are the machine's own
    asked_next = next((one for one in replies if one > point.seq), holding[-1].seq + 1)
    calls = next((one.asked for one in holding if point.seq <= one.seq < asked_next and one.asked), ())
    if calls:
        titles = [one.title for one in calls[:SHOWN_CALLS]]
        if len(calls) > SHOWN_CALLS:
            titles.append(f"{len(calls) - SHOWN_CALLS} more")
        come = "comes" if len(calls) == 1 else "come"
        follows = f"{'; '.join(titles)} {come} before the model reads anything new"
    elif holding[-1].reopens and asked_next > holding[-1].seq:
        follows = "the run ended with it, so that the model reads nothing new"
    else:
        return ""
    first = max((one.step for one in points if one.seq < before[-1]), default=0)
    return f"step {step} begins after the model's reply: {follows}; step {first} has it asked again"


def _waiting(records: Sequence[Record]) -> set[str]:
    """Ids of the model's calls that nothing has answered in these records. The first record has the reply."""
    said = [message for record in records for message in record.messages]
    told = {message.tool_call_id for message in said if message.role == "tool"}
    wanted = {call.id for message in said for call in message.tool_calls}
    return wanted - told - {call.call for record in records for call in record.made}


def checkpoint_lines(run: str, records: Sequence[Record]) -> tuple[CheckpointLine, ...]:
    """The steps of a run in the order of the log, also those left behind. Raises RatchetError."""
    points = begun_steps(run, records)
    steps = {step.number: step for step in by_step(records)}
    lines = list(_lines_left(records))
    for point in points:
        line = step_line(point.step, (), 0)
        if found := steps.get(point.step):
            line = step_line(point.step, found.own, found.started, found.not_ended)
        lines.append(CheckpointLine(**dict(line), seq=point.seq, state=point.state, is_end=point.is_end))
    return tuple(sorted(lines, key=lambda line: line.seq))


def _lines_left(records: Sequence[Record]) -> Iterator[CheckpointLine]:
    """The steps that rollbacks have left behind, as they were before."""
    holding = {record.seq for record in lineage(records)}
    starts = {one.seq: began(one, before) for one, before in zip(records, (None, *records), strict=False)}
    groups: dict[tuple[int, int], list[Record]] = {}
    not_ended: dict[tuple[int, int], Sequence[LoggedCall]] = {}
    for place, record in enumerate(records):
        if record.back_to is not None:
            behind = [one for one in by_step(records[:place]) if one.own and one.own[-1].seq > record.back_to]
            not_ended |= {(one.branch, one.number): one.not_ended for one in behind}
        elif record.seq not in holding:
            groups.setdefault((record.branch, record.of_step), []).append(record)
    for (branch, number), group in groups.items():
        if any(record.to is not None for record in group):
            first = group[0]
            line = step_line(number, group, starts[first.seq], not_ended.get((branch, number), ()))
            yield CheckpointLine(**dict(line), seq=first.seq, state=first.state, holds=False)
