"""`compare`: two runs side by side by step, and where they part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from activities.contracts import Frozen
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
    pairs, parts = paired(left.records, right.records)
    return Comparison(
        left=sides[0],
        right=sides[1],
        steps=pairs,
        parts=parts,
        shared=_shared(left.records, right.records),
        common=_common(*sides),
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


def _common(left: Side, right: Side) -> Origin | None:
    for fork, source in ((left, right), (right, left)):
        if fork.origin is not None and fork.origin.workflow_id == source.run:
            return fork.origin
    one, other = left.origin, right.origin
    if one is None or other is None or one.workflow_id != other.workflow_id:
        return None
    return one if one.step <= other.step else other


# -- step by step --------------------


def paired(left: Sequence[Record], right: Sequence[Record]) -> tuple[tuple[Pair, ...], Parting | None]:
    """The steps of two logs beside each other, and where the logs part."""
    one, other = _by_step(left), _by_step(right)
    pairs: list[Pair] = []
    parts: Parting | None = None
    for step in sorted(one.keys() | other.keys()):
        mine, theirs = one.get(step, []), other.get(step, [])
        found = _parting(step, mine, theirs)
        parts = parts or found
        pairs.append(
            Pair(step=step, left=_told(step, mine, left), right=_told(step, theirs, right), same=not found)
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


def _done(record: Record) -> tuple[Any, ...]:
    """What makes two records the same for a reader: not when, not at which price."""
    return (
        bool(record.within), record.machine, record.state, record.event, record.to, record.reason,
        record.error, record.by,
    )  # fmt: skip


def _parting(step: int, left: Sequence[Record], right: Sequence[Record]) -> Parting | None:
    for one, other in zip_longest(left, right):
        if one is None or other is None or _done(one) != _done(other):
            return Parting(step=step, left=_words(one), right=_words(other))
    return None


def _words(record: Record | None) -> str:
    if record is None:
        return ""
    why = record.error or record.reason
    return f"{record.state}: {record.event}{f' ({why})' if why else ''}"


def _told(step: int, group: Sequence[Record], log: Sequence[Record]) -> StepOf | None:
    if not group:
        return None
    own = [record for record in group if not record.within]
    return StepOf(
        step=step,
        branch=group[-1].branch,
        path=tuple(_path(group)),
        said=tuple(_said(group)),
        spent=_spent(own, log) if own else {},
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


def _spent(own: Sequence[Record], log: Sequence[Record]) -> dict[str, float]:
    """What the step added to the counters, by the record that came before it, on whichever branch."""
    before: dict[str, float] = {}
    for record in log:
        if record.seq >= own[0].seq:
            break
        before = before if record.within else record.counters
    spent = {name: round(amount - before.get(name, 0), 9) for name, amount in own[-1].counters.items()}
    return {name: amount for name, amount in spent.items() if amount > 0 and name not in PASSING}
