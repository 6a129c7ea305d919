"""Reading runs that are over, and lists: what needs no worker, and often no server
(`client/runs/stopped.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Unpack

from client.errors import RatchetError, Refused, UnknownRun, UsageError, unknown_run
from client.runs.archived import ArchivedRuns
from client.runs.listing import Filter, RunLine, run_with_short_id
from workflows.api import RunResult, RunStatus, StepLine
from workflows.kernel.log import Record

if TYPE_CHECKING:
    from activities.settings import Settings
    from activities.store.stores import Stores
    from client.history.resets import Reset
    from client.runs.reading import RunReader

__all__ = ["Runs"]


class Runs(ABC):
    """What can be read of runs. A run is named by its workflow id.

    What is asked of a live run needs a worker; a run that is over is read from the archive where it has it.
    Every method may raise `Unreachable` and `UnknownRun`, and those that need a worker `NoWorker`. Subclasses
    say where runs are found: `lines`, `count`, `describe`, `first_run_id`, `live` and `server`.
    """

    def __init__(self, settings: Settings, stores: Stores, where: str) -> None:
        self.settings = settings
        self.where = where
        """The server's address, or the data directory; for messages."""
        self.archive = ArchivedRuns(stores)
        """Finished runs, also those that Temporal has forgotten."""

    @abstractmethod
    async def lines(self, limit: int | None = None, **wanted: Unpack[Filter]) -> Sequence[RunLine]:
        """The newest execution of each run of a filter, the newest first."""

    @abstractmethod
    async def count(self, **wanted: Unpack[Filter]) -> int:
        """How many runs `list` knows without a limit; a run that was reset counts each time."""

    @abstractmethod
    async def describe(self, run: str) -> RunLine:
        """What a list shows of one run."""

    @abstractmethod
    async def first_run_id(self, run: str) -> str | None:
        """Temporal's id of a run's first execution; None: it does not know the run."""

    @abstractmethod
    async def live(self, run: str) -> RunReader:
        """Who can ask the run itself. Raises NoWorker where it is known that nobody answers."""

    @abstractmethod
    async def server(self) -> RunReader:
        """Who can ask the server; it is started if none runs."""

    # -- lists --------------------

    async def list(self, *, limit: int | None = None, **wanted: Unpack[Filter]) -> tuple[RunLine, ...]:
        """Runs that Temporal knows, the newest first; one that was reset or continued is there once.

        Args:
            limit: so many of them.
            wanted: which runs, see `Filter`.
        """
        return await self.with_ends(await self.lines(limit, **wanted))

    async def with_ends(self, lines: Sequence[RunLine]) -> tuple[RunLine, ...]:
        """These runs, each with `ok` where it is known."""
        return tuple([line.model_copy(update={"ok": await self._succeeded(line)}) for line in lines])

    async def _succeeded(self, line: RunLine) -> bool | None:
        """Whether a run that is over reached its goal, where that is known without asking it."""
        if line.progress in ("running", "completed"):
            with suppress(RatchetError):  # a list is no place to complain of the archive
                return await self.archive.ended_well(line.id) if line.progress == "completed" else None
            return None
        return False

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
            if not running and await self.archive.last_record(short):
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

    # -- what came out, and how --------------------

    async def result(self, run: str) -> RunResult:
        """What came out of a run that is over. A long result has `cut` where neither the archive nor a worker
        can give the whole.

        Raises:
            RunFailed: the workflow failed, was terminated or timed out, so there is no result. A run whose
                workflow fails or is cancelled by choice has one; see `RunResult.raises` and `OnEnd`.
        """
        if await self.is_archived(run):
            return await self._archived_result(run)
        return await (await self.live(run)).result(run)

    async def status(self, run: str) -> RunStatus:
        """Where a run is."""
        if not await self.is_archived(run):
            with suppress(UnknownRun):
                return await (await self.live(run)).live_status(run)
        result, last = await self._archived_result(run), await self.archive.last_record(run)
        common = {name: getattr(result, name) for name in RunStatus.model_fields if hasattr(result, name)}
        return RunStatus(**common, visit=last.visit, finished=last.at) if last else RunStatus(**common)

    async def records(self, run: str, since: int = 0, *, full: bool = False) -> tuple[Record, ...]:
        """All records of a run so far, from sequence number `since` on.

        Long values may be cut unless `full`, which needs the workers' store.
        """
        if not await self.is_archived(run):
            with suppress(UnknownRun):
                return (await (await self.live(run)).live_records(run, since, full))[0]
        if not await self.archive.last_record(run):
            raise unknown_run(self.where, run)
        return await self.archive.records(run, since)

    async def steps(self, run: str) -> tuple[StepLine, ...]:
        """What a run did, one line for each step that holds."""
        from workflows.queries import steps_of

        return steps_of(await self.records(run))

    async def resets(self, run: str) -> tuple[Reset, ...]:
        """When Temporal reset a run, by whom and to which step, and which calls of the dropped part stand."""
        from client.history.resets import resets_of

        return await resets_of(await self.server(), run)

    # -- the archive, and what is not there --------------------

    async def is_archived(self, run: str) -> bool:
        """The archive has the end of this very run; of any run of that id, when Temporal knows none."""
        from activities.store.archive import ChainBroken
        from activities.store.encryption import KeyMissing

        known = await self.first_run_id(run)
        try:
            result = await self.archive.result(run)
        except RatchetError as error:
            cause = error.__cause__
            if known is None or isinstance(cause, KeyMissing):
                raise  # without its key the run cannot be read elsewhere, either
            if isinstance(cause, ChainBroken) and cause.run[1] == known:
                raise  # somebody changed it: that must not stay unsaid
            return False  # a run that Temporal knows needs no archive
        return result is not None and known in {None, result.run_id}

    async def _archived_result(self, run: str) -> RunResult:
        """The result of a run that Temporal does not know, or that is over. Raises UnknownRun."""
        if result := await self.archive.result(run):
            return result
        if last := await self.archive.last_record(run):
            raise UnknownRun(
                f"Temporal at {self.where} does not know run {run} any more, and the archive has its "
                f"beginning but not its end. `ratchet log {run}` shows the {last.seq + 1} records that "
                "there are"
            )
        raise unknown_run(self.where, run)
