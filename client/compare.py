"""`compare`: two runs side by side by step, and where they part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from activities.contracts import Frozen
from client.differences import Span, differences, timeless
from client.errors import RatchetError, RunFailed, UnknownRun
from workflows.api import AgentResult, Origin
from workflows.kernel.log import STARTED, Record, lineage

if TYPE_CHECKING:
    from client.agent import AgentClient
    from client.checkpoints import Source

__all__ = ["Comparison", "Pair", "Parting", "Side", "StepOf", "compare", "paired", "side_of"]

PASSING = {"seconds"}
"""Counters that never are the same twice."""
OURS = {"machine", "kernel"}
"""Who else causes records is a person."""
DONE = {"machine", "state", "event", "to", "reason", "error", "by"}
"""What of a record is a deed, besides its patch."""
AROUND = 60
"""Seconds before and behind a run in which a time is still taken for one of its own."""
OPAQUE = {("code", "session")}
"""Fields, by machine, that hold packed state with times in it; what came of it is said in other fields."""
DIGEST = re.compile(r"\b[0-9a-f]{32,64}\b")
"""Of what was sent, tools included: it differs wherever a run was given something else."""
Line = dict[tuple[str, str], int | None]
"""A run and those that it was forked from, by workflow id and first run id, the nearest first: up to which
step it has their records; None: all of them, the run itself."""


class StepOf(Frozen):
    """What one run did in one step; of a step that was done again, what holds."""

    step: int
    branch: int
    path: tuple[str, ...]
    """The states that it went through; a machine inside it as `[machine]`."""
    said: tuple[str, ...]
    """What was thought, called, returned or refused, in order."""
    spent: dict[str, float]
    """In this step alone."""
    first: int
    """Sequence number of its first record."""


class Pair(Frozen):
    """The same step of both runs."""

    step: int
    left: StepOf | None
    right: StepOf | None
    same: bool
    """The same states, and the same was said and called."""


class Parting(Frozen):
    """Where two runs part."""

    step: int
    left: str
    """What the one did next: `state: event` and why; empty when it had ended or comes no further."""
    right: str


class Side(Frozen):
    """One of the two runs."""

    run: str
    agent: str
    machine: str
    version: str
    goal: str = ""
    state: str
    exit_reason: str | None = None
    """None: it is not over."""
    ok: bool = False
    answer: str | None = None
    error: str | None = None
    steps: int
    branch: int
    counters: dict[str, float]
    records: int
    origin: Origin | None = None
    """The run that it was forked from."""


class Comparison(Frozen):
    """Two runs side by side."""

    left: Side
    right: Side
    steps: tuple[Pair, ...]
    parts: Parting | None
    """None: what the one did, the other did, too."""
    shared: int = 0
    """So many records at the beginning are the very same: the runs have a common origin."""
    common: Origin | None = None
    """Where one was forked from the other, or both from a third: the run, and the step."""


async def compare(agents: AgentClient, one: str, other: str) -> Comparison:
    """Two runs, live or over, also from the archive. Needs no worker.

    Raises:
        UnknownRun: neither Temporal nor the archive knows one of them.
        RatchetError: one was refused before it began.
    """
    from client.checkpoints import source_of

    left, right = await source_of(agents, one), await source_of(agents, other)
    sides = [side_of(source, await _result(agents, source.run_id)) for source in (left, right)]
    lines = [
        await _line(agents, source, side.origin) for source, side in zip((left, right), sides, strict=True)
    ]
    pairs, parts = paired(left.records, right.records, (left.run_id, right.run_id))
    return Comparison(
        left=sides[0],
        right=sides[1],
        steps=pairs,
        parts=parts,
        shared=_shared(left.records, right.records),
        common=_common(*lines),
    )


async def _result(agents: AgentClient, run_id: str) -> AgentResult | None:
    """What came out of it; None when it is not over, or ended without a word."""
    try:
        if (await agents.describe(run_id)).progress == "running":
            return None
    except UnknownRun:
        pass  # the archive knows it, or nobody
    try:
        return await agents.result(run_id)
    except RunFailed:
        return None


def side_of(source: Source, result: AgentResult | None) -> Side:
    """A run in short: by its result, else by its log. Raises RatchetError when it never began."""
    if not source.records:
        raise RatchetError(
            f"run {source.run_id} wrote nothing: its task was refused before it began "
            f"(`ratchet result {source.run_id}` says why)"
        )
    last = [record for record in lineage(source.records) if not record.within][-1]
    task = source.task
    known: dict[str, Any] = result.model_dump() if result else {}
    return Side(
        run=source.run_id,
        agent=known.get("agent") or (task.agent if task else ""),
        machine=last.machine,
        version=known.get("machine_version") or (source.machine.version if source.machine else ""),
        goal=task.goal if task else "",
        state=known.get("state") or last.to or last.state,
        exit_reason=known.get("exit_reason"),
        ok=known.get("ok", False),
        answer=known.get("answer"),
        error=known.get("error"),
        steps=known.get("steps", last.step),
        branch=known.get("branch", last.branch),
        counters=known.get("counters", last.counters),
        records=len(source.records),
        origin=result.origin if result else task.fork.origin if task and task.fork else None,
    )


def _shared(left: Sequence[Record], right: Sequence[Record]) -> int:
    """How many records at the beginning are the very same, times included."""
    same = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        same += 1
    return same


async def _line(agents: AgentClient, source: Source, origin: Origin | None) -> Line:
    """A run and those that it comes from, fork by fork, as far as they are known."""
    from client.checkpoints import source_of

    line: Line = {(source.run_id, source.first_run_id): None}
    step: int | None = None
    while origin is not None and (origin.workflow_id, origin.run_id) not in line:
        step = origin.step if step is None else min(step, origin.step)
        line[origin.workflow_id, origin.run_id] = step
        try:
            found = await source_of(agents, origin.workflow_id)
        except UnknownRun:
            break
        again = found.first_run_id != origin.run_id  # its id was used once more, by another run
        origin = found.task.fork.origin if not again and found.task and found.task.fork else None
    return line


def _common(left: Line, right: Line) -> Origin | None:
    """The nearest run that both come from, and the step up to which both have its records."""
    for (workflow_id, run_id), step in left.items():
        if (workflow_id, run_id) not in right:
            continue
        steps = [one for one in (step, right[workflow_id, run_id]) if one is not None]
        return Origin(workflow_id=workflow_id, run_id=run_id, step=min(steps)) if steps else None
    return None


# -- step by step --------------------


def paired(
    left: Sequence[Record], right: Sequence[Record], names: tuple[str, str] = ("", "")
) -> tuple[tuple[Pair, ...], Parting | None]:
    """The steps of two logs beside each other, and where the logs part; `names` are the runs' ids."""
    one, other = _by_step(left), _by_step(right)
    eyes = _Eye.of(left, names[0]), _Eye.of(right, names[1])
    before = _before(left), _before(right)
    pairs: list[Pair] = []
    parts: Parting | None = None
    for step in sorted(one.keys() | other.keys()):
        mine, theirs = one.get(step, []), other.get(step, [])
        found = _parting(step, mine, theirs, eyes)
        parts = parts or found
        pairs.append(
            Pair(
                step=step,
                left=_told(step, mine, before[0]),
                right=_told(step, theirs, before[1]),
                same=not found,
            )
        )
    return tuple(pairs), parts


def _by_step(records: Sequence[Record]) -> dict[int, list[Record]]:
    """What holds of a log, by step of the run's first machine; what made it go back is left out.

    Machines inside it count their own steps: their records belong to the step that goes on behind them.
    """
    steps: dict[int, list[Record]] = {}
    inner: list[Record] = []
    step = 0
    for record in lineage(records):
        if record.back_to is not None:
            continue
        if record.within:
            inner.append(record)
            continue
        step = record.step
        steps.setdefault(step, []).extend([*inner, record])
        inner = []
    if inner:
        steps.setdefault(step, []).extend(inner)
    return steps


@dataclass(frozen=True)
class _Eye:
    """How a reader sees the records of one run: neither when, nor under which ids."""

    span: Span
    name: str

    @classmethod
    def of(cls, log: Sequence[Record], name: str) -> _Eye:
        began = min((record.started for record in log), default=0)
        return cls((began - AROUND, max((record.finished for record in log), default=0) + AROUND), name)

    def done(self, record: Record) -> dict[str, Any]:
        """What a record says was done; with what a run began, stands above the steps."""
        told = record.model_dump(mode="json", include=DONE)
        told["within"] = bool(record.within)
        if asked := record.about.get(
            "request"
        ):  # requests are counted on, also over those that a rollback took away
            told["reason"] = record.reason.removeprefix(f"{asked} ")
        if record.event != STARTED:
            patch = {
                name: value for name, value in record.patch.items() if (record.machine, name) not in OPAQUE
            }
            told |= {"patch": self._anonymous(timeless(patch, self.span)), "reset": record.reset}
        return told

    def _anonymous(self, value: Any) -> Any:
        if isinstance(value, str):
            own = value.replace(self.name, "(this run)") if self.name else value
            return DIGEST.sub("(digest)", own)
        if isinstance(value, dict):
            names = [DIGEST.sub(f"(digest {n})", name) for n, name in enumerate(value)]
            return dict(zip(names, map(self._anonymous, value.values()), strict=True))
        return [self._anonymous(item) for item in value] if isinstance(value, list) else value


def _parting(
    step: int, left: Sequence[Record], right: Sequence[Record], eyes: tuple[_Eye, _Eye]
) -> Parting | None:
    for one, other in zip_longest(left, right):
        if one is None or other is None:
            return Parting(step=step, left=_words(one), right=_words(other))
        was, now = eyes[0].done(one), eyes[1].done(other)
        if was != now:
            said = _words(one), _words(other)
            if said[0] == said[1]:  # the titles are too short to show it
                found = differences(was, now)[0]
                said = f"{found.at} {found.was}; {said[0]}", f"{found.at} {found.now}; {said[1]}"
            return Parting(step=step, left=said[0], right=said[1])
    return None


def _words(record: Record | None) -> str:
    if record is None:
        return ""
    why = record.error or record.reason
    return f"{record.state}: {record.event}{f' ({why})' if why else ''}"


def _told(step: int, group: Sequence[Record], before: Mapping[int, Mapping[str, float]]) -> StepOf | None:
    if not group:
        return None
    own = [record for record in group if not record.within]
    return StepOf(
        step=step,
        branch=group[-1].branch,
        path=tuple(_path(group)),
        said=tuple(_said(group)),
        spent=_spent(own, before[own[0].seq]) if own else {},
        first=group[0].seq,
    )


def _path(group: Sequence[Record]) -> list[str]:
    """States in order; of a machine inside, its name once. Where the next step begins is left out."""
    path: list[str] = []
    for record in group:
        if record.within:
            name = f"[{record.machine}]"
            path += [name] if path[-1:] != [name] else []
        elif record.to is not None and record.event != STARTED:
            path.append(record.state)
    last = next((record for record in reversed(group) if record.to is not None and not record.within), None)
    if last is not None and last.to is not None and last.to not in path[:1]:
        path.append(last.to)
    return path


def _said(group: Sequence[Record]) -> Iterator[str]:
    for record in group:
        by = "" if record.by in OURS else f"{record.by}: "
        if record.error:
            yield f"{by}{record.event}: {record.error}"
        elif record.reason:
            yield f"{by}{record.reason}"


def _before(log: Sequence[Record]) -> dict[int, Mapping[str, float]]:
    """The run's counters before each record, by its number: those of the record before, on any branch."""
    found: dict[int, Mapping[str, float]] = {}
    counters: Mapping[str, float] = {}
    for record in log:
        found[record.seq] = counters
        counters = counters if record.within else record.counters
    return found


def _spent(own: Sequence[Record], before: Mapping[str, float]) -> dict[str, float]:
    """What the step added to the counters."""
    spent = {name: round(amount - before.get(name, 0), 9) for name, amount in own[-1].counters.items()}
    return {name: amount for name, amount in spent.items() if amount > 0 and name not in PASSING}
