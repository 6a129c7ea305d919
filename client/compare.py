"""`compare`: two runs side by side by step, and where they part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from activities.contracts import Frozen
from client.errors import RunFailed, UnknownRun
from client.pairing import Pair, Parting, paired
from workflows.api import AgentResult, Origin
from workflows.kernel.log import Record, lineage

if TYPE_CHECKING:
    from client.agent import AgentClient
    from client.checkpoints import Source

__all__ = ["Comparison", "Side", "compare", "side_of"]

Line = dict[tuple[str, str], int | None]
"""A run and those that it was forked from, by workflow id and first run id, the nearest first: up to which
step it has their records; None: all of them, the run itself."""


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
    from client.checkpoints import wrote_nothing

    if not source.records:
        raise wrote_nothing(source.run_id)
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
