"""`compare`: two runs step by step, and where they differ first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from activities.contracts import Frozen
from client.errors import RatchetError, RunFailed, UnknownRun
from client.history.checkpoints import Source, source_of
from client.history.differences import Difference, first_difference
from client.runs.connected import ConnectedReader
from client.runs.readings import RecordReader, is_said_by_its_call, plan_of
from workflows.api import RunResult, RunSummary
from workflows.kernel.log import STARTED, LoggedStep, Record, by_step, lineage

__all__ = ["Comparison", "Side", "StepOf", "StepPair", "align_steps", "compare"]

DEEDS = {"machine", "state", "event", "to", "thought", "asked", "error", "by", "patch", "messages", "beside"}
"""Fields of a record that say what was done; the others say when, and what it cost."""
TIME_MARGIN_SECONDS = 60
"""Seconds before and after a run in which a number is taken for one of its times."""
A_TIME, A_CALL, THIS_RUN = "(a time)", "(a call)", "(this run)"
OPAQUE = {("code", "session")}
"""Fields, by machine, with packed state: the same content has other bytes in another run."""
AUTOMATIC = {"machine", "kernel"}
"""Other causes of records are people."""


class Side(RunSummary):
    """One of two runs."""

    run: str
    """Its id."""
    goal: str = ""
    """The first 200 characters of the goal."""
    ok: bool = False
    """It reached its goal."""


class StepOf(Frozen):
    """What one run did in one step that holds."""

    branch: int
    """How often the run had been rolled back."""
    path: tuple[str, ...]
    """The states that it went through."""
    summary: tuple[str, ...]
    """What was thought, called, returned or refused, in order, each once; with the person who caused it."""
    spent: dict[str, float]
    """In this step alone: calls, tokens, USD."""
    first: int
    """Sequence number of its first record, also where it is still to come."""


class StepPair(Frozen):
    """The same step of both runs."""

    step: int
    """Its number."""
    left: StepOf | None
    """None: this run has no such step."""
    right: StepOf | None
    """None: this run has no such step."""
    difference: Difference | None = None
    """Where they differ first; None: both did the same."""


class Comparison(Frozen):
    """Two runs side by side."""

    left: Side
    """The one that was named first."""
    right: Side
    """The other one."""
    steps: tuple[StepPair, ...]
    """In order."""
    shared: int = 0
    """How many records at the beginning are the very same: one run was forked from the other, or both from
    a third."""

    @property
    def first_different(self) -> StepPair | None:
        """The first step in which the runs differ; None: they did the same."""
        return next((pair for pair in self.steps if pair.difference), None)


async def compare(agents: ConnectedReader, one: str, other: str) -> Comparison:
    """Two runs, live or over, also from the archive. Needs no worker.

    Raises:
        UnknownRun: neither Temporal nor the archive knows one of them.
        RatchetError: one has no log.
    """
    left, right = await source_of(agents, one), await source_of(agents, other)
    shared = 0
    for mine, theirs in zip(left.records, right.records, strict=False):
        if mine != theirs:
            break
        shared += 1
    return Comparison(
        left=await _side(agents, left),
        right=await _side(agents, right),
        steps=align_steps(left.records, right.records, (left.run, right.run)),
        shared=shared,
    )


async def _side(agents: ConnectedReader, source: Source) -> Side:
    """A run in short: by its result, else by its log."""
    if not source.records:
        raise RatchetError(f"run {source.run} has no log, so there is nothing to compare")
    task, result = source.task, await _result(agents, source.run)
    last = lineage(source.records)[-1]
    summary = result or RunSummary(
        agent=task.name if task else "",
        machine=last.machine,
        machine_version=(task.machine_version or "") if task else "",
        state=last.to or last.state,
        step=last.step,
        branch=last.branch,
        counters=last.counters,
        records=len(source.records),
        origin=task.fork.origin if task and task.fork else None,
    )
    common = {name: getattr(summary, name) for name in RunSummary.model_fields}
    goal = task.goal if task else ""
    return Side(**common, run=source.run, goal=goal, ok=result is not None and result.ok)


async def _result(agents: ConnectedReader, run: str) -> RunResult | None:
    """The result; None: the run is live, or ended without one."""
    try:
        if (await agents.describe(run)).progress == "running":
            return None
    except UnknownRun:
        pass  # the archive has it
    try:
        return await agents.result(run)
    except RunFailed:
        return None


# -- steps --------------------


def align_steps(
    left: Sequence[Record], right: Sequence[Record], runs: tuple[str, str] = ("", "")
) -> tuple[StepPair, ...]:
    """The steps of two logs beside each other; `runs` are the runs' ids. Pure."""
    mine, theirs = _Log(left, runs[0]), _Log(right, runs[1])
    numbers = sorted(mine.steps.keys() | theirs.steps.keys())
    return tuple(
        StepPair(
            step=step,
            left=mine.step_of(step),
            right=theirs.step_of(step),
            difference=_difference(mine, theirs, step),
        )
        for step in numbers
    )


def _difference(left: _Log, right: _Log, step: int) -> Difference | None:
    first, others = left.begins_with(step), right.begins_with(step)
    if first != others:
        return Difference(at="", left=first, right=others)
    for mine, theirs in zip_longest(left.steps.get(step, ()), right.steps.get(step, ())):
        if mine is None or theirs is None:
            return Difference(at="", left=_title(mine), right=_title(theirs))
        if found := first_difference(left.deeds(mine), right.deeds(theirs)):
            titles = _title(mine), _title(theirs)
            return Difference(at="", left=titles[0], right=titles[1]) if titles[0] != titles[1] else found
    return None


def _title(record: Record | None) -> str:
    if record is None:
        return ""
    why = record.summary
    return f"{record.state}: {record.event}{f' ({why})' if why else ''}"


class _Log:
    """One log by steps, read without times and ids, which are never the same in two runs."""

    def __init__(self, records: Sequence[Record], run: str) -> None:
        self._run = run
        times = [record.at for record in records]
        self._times = (
            min(times, default=0) - TIME_MARGIN_SECONDS,
            max(times, default=0) + TIME_MARGIN_SECONDS,
        )
        self._calls = {call.id for record in records for one in record.messages for call in one.tool_calls}
        reader = RecordReader()
        self._readings = {record.seq: reader.read(record) for record in records}
        self._next = records[-1].seq + 1 if records else 0
        self._steps = {step.number: step for step in by_step(records)}
        self.steps = {number: step.own for number, step in self._steps.items()}

    def begins_with(self, step: int) -> str:
        """The calls of a step that no record of it has asked for."""
        found = self._steps.get(step)
        return plan_of(found.begins_with) if found else ""

    def deeds(self, record: Record) -> dict[str, Any]:
        """What a record says was done. What a run began with is not: it stands above the steps."""
        found = record.model_dump(mode="json", include=DEEDS)
        found["asked"] = [one.title for one in record.asked]  # their ids count visits
        found["outcome"] = record.about.get("outcome")  # of a request; its number counts over all branches
        if record.event == STARTED:
            found.pop("patch", None)
            found.pop("messages", None)
        patch = found.get("patch", {})
        for name in list(patch):
            if (record.machine, name) in OPAQUE:
                del patch[name]
        anonymous: dict[str, Any] = self._anonymous(found)
        return anonymous

    def _anonymous(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._anonymous(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._anonymous(item) for item in value]
        if isinstance(value, str):
            is_run = value == self._run or value.startswith(f"{self._run}/")
            return A_CALL if value in self._calls else THIS_RUN if is_run else value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return A_TIME if is_number and self._times[0] <= value <= self._times[1] else value

    def step_of(self, step: int) -> StepOf | None:
        """What was done in a step; None: the run has no such step."""
        found = self._steps.get(step)
        if found is None or not (found.own or found.not_ended):
            return None
        spent = {name: round(amount, 9) for name, amount in found.spent.items() if name != "seconds"}
        return StepOf(
            branch=found.branch,
            path=found.path,
            summary=tuple(self._summary(found)),
            spent={name: amount for name, amount in spent.items() if amount > 0},
            first=found.own[0].seq if found.own else self._next,
        )

    def _summary(self, step: LoggedStep) -> Iterator[str]:
        """What was done in a step. A call is said where it has ended; one that has not, at the end."""
        for record in step.own:
            reading = self._readings[record.seq]
            for call in reading.calls:
                yield f"→ {call.heading}"
                if call.text.strip():
                    yield f"← {call.text}"
            if record.error:
                yield self._by(record, f"{record.event}: {record.error}")
            elif not is_said_by_its_call(record):
                for words in filter(str.strip, (reading.thought, reading.words)):
                    yield self._by(record, words)
        yield from (f"→ {one.title}: not ended" for one in step.not_ended)

    def _by(self, record: Record, text: str) -> str:
        """With the person who caused it."""
        return text if record.by in AUTOMATIC else f"{record.by}: {text}"
