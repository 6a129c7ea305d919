"""What runs have cost, exactly as their logs say: by agent, by model, or by day.

Each run counts what its own calls have spent, so an inner run counts once, for the agent that began it. What
a run spent before it was reset counts, too; what a fork has taken over from another run does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from activities.contracts.record_events import own_records
from client.errors import RatchetError
from client.runs.words import counted

if TYPE_CHECKING:
    from activities.store.archive import Archive, ArchivedEnd
    from client.runs.connected import ConnectedReader
    from client.runs.listing import RunLine
    from client.runs.reader import RunReader

__all__ = [
    "By", "CostLine", "Spending", "all_spending", "archived_spending", "cost_lines", "live_spending",
]  # fmt: skip

By = Literal["agent", "model", "day"]
OWN = re.compile(r"(model|tool):(.*)/([a-z_]+)")
"""A counter of a run's own calls: kind, name of the model or tool, counter."""
LIVE_AT_ONCE = 20
Counters = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class CostLine:
    """What runs of one agent, calls of one model (or tool), or one day have cost."""

    name: str
    runs: int
    """Outermost runs that have spent something of it."""
    model_calls: int
    """Replies; a call that failed brought none."""
    input_tokens: int
    output_tokens: int
    cost_usd: float
    unpriced_calls: int
    """Replies whose price is not known; they are not in `cost_usd`."""


@dataclass(frozen=True, slots=True)
class Spending:
    """What one run's own calls have spent."""

    run: str
    """Workflow id."""
    agent: str
    parts: tuple[tuple[float, Counters], ...]
    """When it was spent (seconds since 1970), and how much, by counter of the run's ledger."""


@dataclass
class _Sum:
    runs: set[str] = field(default_factory=set)
    spent: dict[str, float] = field(default_factory=dict)


def cost_lines(spending: Iterable[Spending], by: By, since: float = 0) -> tuple[CostLine, ...]:
    """One line for each agent or model, the dearest first, or for each day (UTC), the newest first."""
    runs = list(spending)
    outermost = {one.run: one.agent for one in runs}
    sums: dict[str, _Sum] = {}
    for one in runs:
        root = _outermost(one.run, outermost)
        for at, counters in one.parts:
            for counter, amount in counters.items():
                if at < since or (own := OWN.fullmatch(counter)) is None or not amount:
                    continue
                kind, called, what = own.groups()
                names = {
                    "agent": outermost[root],
                    "model": called if kind == "model" else f"tool {called}",
                    "day": f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}",
                }
                found = sums.setdefault(names[by], _Sum())
                found.runs.add(root)
                found.spent[what] = found.spent.get(what, 0) + amount
    lines = (_line(name, one) for name, one in sums.items())
    if by == "day":
        return tuple(sorted(lines, key=lambda line: line.name, reverse=True))
    return tuple(sorted(lines, key=lambda line: (-line.cost_usd, -line.input_tokens, line.name)))


def _line(name: str, one: _Sum) -> CostLine:
    counts = ("model_calls", "input_tokens", "output_tokens", "unpriced_calls")
    whole = {counter: round(one.spent.get(counter, 0)) for counter in counts}
    cost = round(float(one.spent.get("cost_usd", 0)), 9)
    return CostLine(name=name, runs=len(one.runs), cost_usd=cost, **whole)


def _outermost(run: str, known: Mapping[str, str]) -> str:
    """The outermost known run of an id: an inner run's id begins with it."""
    parts = run.split("/")
    above = ("/".join(parts[:number]) for number in range(1, len(parts)))
    return next((one for one in above if one in known), run)


def archived_spending(archive: Archive, *, timed: bool, live: Iterable[str] = ()) -> Iterator[Spending]:
    """What the runs in the archive have spent, without live ones. `timed`: when; else all counts at the end.

    Raises StoreError.
    """
    asked = set(live)
    for end in archive.ends():
        if end.result is None and end.workflow_id in asked and "~" not in end.run_id:
            continue  # its newest part is not archived yet
        agent = str((end.result or {}).get("agent") or "(not over)")
        yield Spending(end.workflow_id, agent, _parts(archive, end, timed))


def _parts(archive: Archive, end: ArchivedEnd, timed: bool) -> tuple[tuple[float, Counters], ...]:
    at, total = _time(end.last), _counters(end.result or end.last)
    before, is_reset, _ = end.run_id.partition("~")
    if is_reset:  # what the run has spent after the point to which it was reset
        kept = archive.records(end.workflow_id, before)
        own = archive.records(end.workflow_id, end.run_id)
        shared = next(
            (n for n, pair in enumerate(zip(own, kept, strict=False)) if pair[0] != pair[1]), len(own)
        )
        return tuple(_differences(own[max(shared - 1, 0) :]))
    if not timed or _day(_time(end.first)) == _day(at):
        return ((at, total),)
    records = archive.records(end.workflow_id, end.run_id)
    return (*_differences(own_records(records), start={}), (at, _less(total, _counters(records[-1]))))


def _differences(
    records: Iterable[Mapping[str, Any]], start: Counters | None = None
) -> Iterator[tuple[float, Counters]]:
    """What was spent from record to record; without `start` from the first of these on. The ledger of a fork
    begins at 0."""
    before = start
    for record in records:
        now = _counters(record)
        if before is not None:
            yield _time(record), _less(now, before)
        before = now


def _less(now: Counters, before: Counters) -> Counters:
    return {name: amount - before.get(name, 0) for name, amount in now.items()}


def _counters(values: Mapping[str, Any]) -> Counters:
    return dict(values.get("counters") or {})


def _time(record: Mapping[str, Any]) -> float:
    return float(record.get("at", 0))


def _day(at: float) -> int:
    return int(at // 86_400)


async def all_spending(runs: RunReader, *, timed: bool, note: Callable[[str], None]) -> tuple[Spending, ...]:
    """What runs have spent: those in the archive, and, where a server runs, those under way. It starts no
    server. `note` is called with what is missing."""
    live = await _under_way(runs, timed=timed, note=note)
    names = [one.run for one in live]
    read = await runs.archive.read(lambda it: tuple(archived_spending(it, timed=timed, live=names)))
    return (*read, *live)


async def _under_way(runs: RunReader, *, timed: bool, note: Callable[[str], None]) -> tuple[Spending, ...]:
    problems: list[str] = []
    try:
        if (server := await runs.running_server()) is None:
            if stopped := _stopped_text(runs.stopped()):
                note(f"not counted, as no server runs: {stopped}")
            return ()
        live = await live_spending(server, timed=timed, failed=problems.append)
        kept = await runs.archive.ended()
        over = {line.id for line in await server.lines() if line.closed and line.exit_reason != "refused"}
    except RatchetError as error:
        note(f"runs that are under way are not counted in full: {error}")
        return ()
    if missing := over - kept:
        note(
            f"{counted(len(missing), 'run')} that Temporal knows to be over, such as {min(missing)}, "
            "left no result in the archive here and count only as far as it has their log; name the "
            "directory of their workers with --data-dir. Runs that were terminated have none anywhere"
        )
    if problems:
        note(f"{len(problems)} runs that are under way are not counted in full: {problems[0]}")
    return live


def _stopped_text(stopped: Sequence[RunLine] | None) -> str:
    """Runs whose spending is known only while a server runs, and how to see it; empty: there are none."""
    if stopped is None:
        return "runs that may be under way; `ratchet list` shows them"
    if not stopped:
        return ""
    first = min(line.id for line in stopped)
    named = first if len(stopped) == 1 else f"such as {first}"
    return (
        f"{counted(len(stopped), 'run')} under way, {named}; `ratchet show {first}` shows what it has spent"
    )


async def live_spending(
    client: ConnectedReader, *, timed: bool, failed: Callable[[str], None]
) -> tuple[Spending, ...]:
    """What runs that are not over have spent; `failed` is called with each that cannot be asked."""
    import asyncio

    free = asyncio.Semaphore(LIVE_AT_ONCE)

    async def ask(run: str, agent: str) -> Spending | None:
        async with free:
            try:
                if timed:
                    records = [one.model_dump() for one in await client.records(run)]
                    return Spending(run, agent, tuple(_differences(own_records(records), start={})))
                counters = (await client.status(run)).counters
                return Spending(run, agent, ((datetime.now(UTC).timestamp(), counters),))
            except RatchetError as error:
                failed(f"{run}: {error}")
                return None

    lines = await client.list(running=True)
    found = await asyncio.gather(*(ask(line.id, line.agent) for line in lines))
    return tuple(one for one in found if one is not None)
