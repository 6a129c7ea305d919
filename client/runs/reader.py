"""Reading runs: one reader, and one order of sources.

Everything that shows a run asks a `RunReader`, and it alone decides where to read:

1. Lists, and one run's line in a list: the files of the data directory where they are clear (`files.py`),
   else Temporal's list.
2. Result, status and log of a run that is over: the archive, where it has the end of this very run, or where
   Temporal does not know the run (`archived.py`).
3. The same of any other run: the run itself, by queries that a worker answers (`connected.py`).
4. The log where the run itself cannot answer: Temporal's history; of a run that is not over, replayed with
   today's code (`log`).

1 and 2 need neither server nor worker. What a server alone can tell is in `ConnectedReader`; that also waits
for Temporal's word that a run is over before it gives a result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

from client.errors import (
    MachineBug,
    NoWorker,
    RatchetError,
    Refused,
    UnknownRun,
    UsageError,
    no_worker,
    resume_command,
    unknown_run,
)
from client.runs.archived import ArchivedRuns
from client.runs.files import RunFiles
from client.runs.listing import Filter, RunLine, run_with_short_id

if TYPE_CHECKING:
    from client.runs.connected import ConnectedReader
    from workflows.kernel.log import Record
    from workflows.status import RunResult, RunStatus
    from workflows.steps import StepLine

__all__ = ["RunLog", "RunReader"]

MAX_REMEMBERED_ENDS = 10_000
"""Ends of runs that a reader remembers."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """A run's records, and how they were read."""

    records: tuple[Record, ...]
    """Oldest first."""
    unanswered: RatchetError | None = None
    """Why the run did not say it itself: Temporal's history has them, or today's code wrote them in a replay
    of it. None: it did, or the archive has them."""
    problem: str = ""
    """Why they are not all, for people; empty: they are."""


class RunReader:
    """What can be read of runs. A run is named by its workflow id.

    Every method may raise `Unreachable` and `UnknownRun`, and those that need a worker `NoWorker`.

    Args:
        archive: runs that are over, also those that Temporal has forgotten.
        where: the server's address, or the data directory; for messages.
        connect: gives a reader that asks the server; the embedded one is started if it does not run.
        files: what the directory of an embedded server says by itself.
        modules: users' modules, which a replay needs; a machine may be in one.
    """

    def __init__(
        self,
        archive: ArchivedRuns,
        where: str,
        *,
        connect: Callable[[], Awaitable[ConnectedReader]],
        files: RunFiles | None = None,
        modules: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.archive, self.where, self.modules = archive, where, modules
        self._connect, self._files = connect, files
        self._ends: dict[tuple[str, str], bool] = {}
        """Whether executions that are over reached their goal: it never changes, and lists are read often."""

    async def server(self) -> ConnectedReader:
        """Who can ask the server."""
        return await self._connect()

    async def running_server(self) -> ConnectedReader | None:
        """The same where a server runs, or is named; none is started."""
        return None if self._files and not self._files.is_served() else await self.server()

    # -- lists --------------------

    def stopped(self) -> Sequence[RunLine] | None:
        """The runs that are not over, where their server does not run; none is started. None: not known."""
        return self._files.lines(running=True) if self._files else ()

    async def lines(self, limit: int | None = None, **wanted: Unpack[Filter]) -> Sequence[RunLine]:
        """The newest execution of each run of a filter, the newest first."""
        found = self._files.lines(limit, **wanted) if self._files else None
        return await (await self.server()).lines(limit, **wanted) if found is None else found

    async def count(self, **wanted: Unpack[Filter]) -> int:
        """How many runs `list` knows without a limit; a run that was reset counts each time."""
        found = self._files.count(**wanted) if self._files else None
        return await (await self.server()).count(**wanted) if found is None else found

    async def describe(self, run: str) -> RunLine:
        """What a list shows of one run."""
        found = self._files.executions(run) if self._files else None
        if found is None:
            return await (await self.server()).describe(run)
        if not found:
            raise unknown_run(self.where, run)
        return found[-1]

    async def first_run_id(self, run: str) -> str | None:
        """Temporal's id of a run's first execution; None: it does not know the run."""
        found = self._files.executions(run) if self._files else None
        if found is None or any(line.progress != "continued" for line in found[:-1]):
            return await (await self.server()).first_run_id(run)  # it was reset: the files tell too little
        return found[0].run_id if found else None

    async def list(self, *, limit: int | None = None, **wanted: Unpack[Filter]) -> tuple[RunLine, ...]:
        """Runs that Temporal knows, the newest first; one that was reset or continued is there once.

        Args:
            limit: so many of them.
            wanted: which runs, see `Filter`.
        """
        return await self.with_ends(await self.lines(limit, **wanted))

    async def with_ends(self, lines: Iterable[RunLine]) -> tuple[RunLine, ...]:
        """These runs, each with `ok` where it is known."""
        return tuple([replace(line, ok=await self._succeeded(line)) for line in lines])

    async def _succeeded(self, line: RunLine) -> bool | None:
        """Whether a run that is over reached its goal, where that is known without asking it."""
        if line.progress != "completed":
            return None if line.progress == "running" else False
        place = line.id, line.run_id
        if place not in self._ends:
            with suppress(RatchetError):  # a list is no place to complain of the archive
                if line.log_head and not await self.archive.has_end(line.id, line.log_head):
                    return None  # what it has is the end before a reset
                if (ok := await self.archive.ended_well(line.id)) is not None:
                    self._ends[place] = ok
                    while len(self._ends) > MAX_REMEMBERED_ENDS:
                        del self._ends[next(iter(self._ends))]
        return self._ends.get(place)

    async def inbox(self) -> tuple[RunLine, ...]:
        """Runs that wait for people, those that have waited longest first."""
        lines = await self.lines(running=True, waiting=True)
        return tuple(
            sorted(lines, key=lambda line: (line.waiting_since or line.started, line.started, line.id))
        )

    async def find(self, short: str, *, running: bool = False) -> str:
        """The id of a run: the whole id, or the beginning or end of exactly one.

        A run that only the archive knows is found by its whole id.

        Args:
            running: for a command that changes something; a run that is over is refused.

        Raises:
            UnknownRun: there is no such run.
            UsageError: there are several; they are named.
            Refused: the run is over.
        """
        if not short.strip():
            raise UsageError("the id of the run is empty; `ratchet list` shows the runs")
        try:
            line = await self.describe(short)
        except UnknownRun:
            if not running and await self.archive.has_log(short):
                return short
            line = await self.describe(await self._by_short_id(short, running))
        if running and line.progress != "running":
            raise Refused(
                f"run {line.id} is over ({line.exit_reason or line.progress}), so nothing was changed; "
                f"`ratchet show {line.id}` shows its result, and `ratchet fork` begins one of its steps again"
            )
        return line.id

    async def _by_short_id(self, short: str, every: bool) -> str:
        """A command that reads prefers a beginning to an end; one that changes something must be clear."""
        for prefix in ("",) if every else (short, ""):
            if found := run_with_short_id(short, [line.id for line in await self.lines(prefix=prefix)]):
                return found
        raise UnknownRun(
            f"there is no run {short} at {self.where}, and no id begins or ends so; `ratchet list` shows "
            "the runs"
        )

    async def missing_worker(self, lines: Iterable[RunLine]) -> str:
        """A sentence where it is known at once that no worker serves any of these runs; else empty."""
        queues = {line.task_queue for line in lines if line.is_running}
        if self._files:
            works, embedded = self._files.is_used(), True
        else:
            server = await self.server()
            works, embedded = False, server.ui is not None
            for queue in queues:
                works = works or await server.is_polled(queue)
        return (
            ""
            if works or not queues
            else f"no worker runs; {resume_command(embedded=embedded)} continues what is not over"
        )

    # -- what came out, and how --------------------

    async def result(self, run: str) -> RunResult:
        """What came out of a run that is over. A long result has `cut` where neither the archive nor a worker
        can give the whole.

        Raises:
            RunFailed: the workflow failed, was terminated or timed out, so there is no result. A run whose
                workflow fails or is cancelled by choice has one; see `RunResult.raises` and `OnEnd`.
        """
        live = await self._live(run)
        return await live.live_result(run) if live else await self._archived_result(run)

    async def status(self, run: str) -> RunStatus:
        """Where a run is."""
        if live := await self._live(run):
            return await live.live_status(run)
        from workflows.status import RunStatus

        result, last = await self._archived_result(run), await self.archive.last_record(run)
        common = {name: getattr(result, name) for name in RunStatus.model_fields if hasattr(result, name)}
        return RunStatus(**common, visit=last.visit, finished=last.at) if last else RunStatus(**common)

    async def was_reset(self, run: str) -> bool:
        """Temporal took it, or a run above it, back to an earlier event of its history."""
        if live := await self._live(run):
            return (await live.live_status(run)).was_reset
        end = await self.archive.end(run)
        return end is not None and end[1]

    async def records(self, run: str, since: int = 0, *, full: bool = False) -> tuple[Record, ...]:
        """All records of a run so far, from sequence number `since` on.

        Long values may be cut unless `full`, which needs the workers' store.
        """
        if live := await self._live(run):
            return (await live.live_records(run, since, full))[0]
        if not await self.archive.has_log(run):
            raise unknown_run(self.where, run)
        return await self.archive.records(run, since)

    async def log(self, run: str, since: int = 0, *, full: bool = False, partial: bool = False) -> RunLog:
        """The same, also where no worker answers, or where the run's code is broken; raises as `records`
        where its history does not give all of it, either.

        Args:
            partial: give what there is, and say why it is not all. For people: records with `history` in
                `about` are calls from Temporal's history; no machine wrote them.
        """
        try:
            return RunLog(await self.records(run, since, full=full))
        except (NoWorker, MachineBug) as error:
            found = await (await self.server()).history_log(run, self.modules(), error, partial=partial)
            if found.problem and not (partial and found.records):
                raise
        return replace(found, records=tuple(one for one in found.records if one.seq >= since))

    async def steps(self, run: str) -> tuple[StepLine, ...]:
        """What a run did, one line for each step that holds; as `log` where no worker answers."""
        from workflows.steps import steps_of

        return steps_of((await self.log(run)).records)

    # -- who tells it --------------------

    async def _live(self, run: str) -> ConnectedReader | None:
        """Who asks the run itself; None: the archive tells all that is known of it. Raises NoWorker where it
        is clear that nobody answers."""
        known = await self.first_run_id(run)
        if known is None or await self._has_end(run, known):
            return None
        if self._files and (line := await self.describe(run)).is_running and not self._files.is_used():
            raise no_worker(self.where, line.task_queue, embedded=True)
        return await self.server()

    async def is_archived(self, run: str) -> bool:
        """The archive has the end of this very run; of any run of that id, when Temporal knows none."""
        return await self._has_end(run, await self.first_run_id(run))

    async def _has_end(self, run: str, known: str | None) -> bool:
        """The archive has the end of the run with this first run id."""
        from activities.store.archive import ChainBroken
        from activities.store.encryption import KeyMissing

        try:
            end = await self.archive.end(run)
        except RatchetError as error:
            cause = error.__cause__
            if known is None or isinstance(cause, KeyMissing):
                raise  # without its key the run cannot be read elsewhere, either
            if isinstance(cause, ChainBroken) and cause.run[1] == known:
                raise  # somebody changed it: that must not stay unsaid
            return False  # a run that Temporal knows needs no archive
        if end is None or known not in {None, end[0]}:
            return False
        # a run that was reset goes on under the same id
        return known is None or not (await self.describe(run)).is_running

    async def _archived_result(self, run: str) -> RunResult:
        """The result of a run that Temporal does not know, or that is over. Raises UnknownRun."""
        try:
            if result := await self.archive.result(run):
                return result
        except RatchetError:  # its chain is whole, so another release has written it
            if await self.first_run_id(run) is None:
                raise
            return await (await self.server()).live_result(run)
        if last := await self.archive.last_record(run):
            raise UnknownRun(
                f"Temporal at {self.where} does not know run {run} any more, and the archive has its "
                f"beginning but not its end. `ratchet log {run}` shows the {last.seq + 1} records that "
                "there are"
            )
        raise unknown_run(self.where, run)
