"""Finished runs in the archive, as the client's own models: for when Temporal has forgotten them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from client.errors import RatchetError
from client.server.environment import names_settings

if TYPE_CHECKING:  # models take longer to import than a list may take
    from activities.store.archive import Archive, ChainBroken
    from workflows.api import AgentTask
    from workflows.kernel.log import Record
    from workflows.status import RunResult

__all__ = ["ArchivedRuns", "archive_opener"]

T = TypeVar("T")


def archive_opener(data_dir: Path) -> Callable[[], Archive]:
    """Opens the archive of a data directory, or the one that the environment names.

    The settings take a while to be read, so they are where the environment has some. Raises UsageError.
    """
    if names_settings():
        from activities.store.stores import Stores
        from client.server.workerconfig import settings_from_environment

        stores = Stores(settings_from_environment(data_dir))
        return lambda: stores.archive
    from activities.store.archive import Archive

    return lambda: Archive(data_dir / "archive.db")  # as `Settings.archive_file` names it


class ArchivedRuns:
    """Read access to the archive, which is opened when it is read first.

    Every method may raise `RatchetError`: the archive cannot be read, or what it has of the run is not what
    was written there (`ChainBroken` is its cause).
    """

    def __init__(self, opened: Callable[[], Archive], *, in_thread: bool = True) -> None:
        """`in_thread`: it is read in another thread, as it blocks for the disk. False for a command that does
        nothing else meanwhile: it needs no event loop then."""
        self._open, self._in_thread = opened, in_thread

    @cached_property
    def _archive(self) -> Archive:
        return self._open()

    async def has_log(self, run: str) -> bool:
        """The archive knows the run."""
        return await self.read(lambda archive: archive.last_record(run) is not None)

    async def records(self, run: str, since: int = 0) -> tuple[Record, ...]:
        """The records of a run from a number on, in order; empty when the archive does not know the run."""
        from workflows.kernel.log import Record

        return await self.read(lambda it: tuple(map(Record.model_validate, it.records(run, since=since))))

    async def last_record(self, run: str) -> Record | None:
        """The newest record of a run; None when the archive does not know it."""
        from workflows.kernel.log import Record

        found = await self.read(lambda archive: archive.last_record(run))
        return None if found is None else await self.read(lambda _: Record.model_validate(found))

    async def result(self, run: str) -> RunResult | None:
        """The result of a run; None when its end is not archived."""
        from workflows.status import RunResult

        found = await self.read(lambda archive: archive.result(run))
        return None if found is None else await self.read(lambda _: RunResult.model_validate(found))

    async def end(self, run: str) -> tuple[str, bool] | None:
        """Temporal's first run id of a run whose end is archived, and whether it was reset; None: it is not.
        It builds no model of the result, which takes longer than to read a log."""
        found = await self.read(lambda archive: archive.result(run))
        return None if found is None else (str(found.get("run_id", "")), bool(found.get("was_reset")))

    async def ended_well(self, run: str) -> bool | None:
        """Whether a run reached its goal, unchecked, for lists; None: the archive does not say."""
        found = await self.read(lambda archive: archive.unchecked_result(run))
        ok = (found or {}).get("ok")
        return ok if isinstance(ok, bool) else None

    async def task(self, run: str) -> AgentTask | None:
        """The task of a run; None when its end is not archived, or another release wrote it."""
        from pydantic import ValidationError

        from workflows.api import AgentTask

        found = await self.read(lambda archive: archive.result(run))
        try:
            return AgentTask.model_validate((found or {}).get("task"))
        except ValidationError:
            return None

    async def histories(self, run: str) -> dict[str, bytes]:
        """Temporal's histories of a run's executions, by execution, the first one first, as its protocol
        writes them; empty when the archive has none. Of a run that was reset also those of before."""
        await self.read(lambda archive: archive.last_record(run))  # no history is shown beside a broken chain
        return await self.read(lambda archive: archive.histories(run))

    async def broken_at(self, run: str) -> int | None:
        """The first record that breaks the hash chain; None: the chain is whole."""
        return await self.read(lambda archive: archive.broken_at(run))

    async def has_end(self, run: str, head: str) -> bool:
        """The archive has the result of the log that ends in the record with this hash."""
        return await self.read(lambda archive: archive.has_end(run, head))

    async def ended(self) -> frozenset[str]:
        """Workflow ids of the runs that have a result."""
        return await self.read(lambda archive: frozenset(archive.ended()))

    async def runs(self) -> int:
        """How many logs there are, those that a reset replaced included."""
        return await self.read(lambda archive: len(archive.runs()))

    async def broken(self) -> tuple[ChainBroken, ...]:
        """What is wrong with each run whose log or result is not as it was written."""
        return await self.read(lambda archive: tuple(archive.broken()))

    async def read(self, work: Callable[[Archive], T]) -> T:
        """What is read of the archive."""
        from activities.store.blobs import StoreError

        try:
            if not self._in_thread:
                return work(self._archive)
            import asyncio

            return await asyncio.to_thread(lambda: work(self._archive))
        except StoreError as error:
            raise RatchetError(f"the archive cannot be read: {error}") from error
        except ValueError as error:
            from pydantic import ValidationError

            from activities.text import problems_text

            if not isinstance(error, ValidationError):
                raise
            raise RatchetError(
                "the archive cannot be read: what it has of the run is damaged, or another release wrote it "
                f"({error.title}, {problems_text(error, 1)}); restore the archive from a backup"
            ) from error
