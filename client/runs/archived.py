"""Finished runs in the archive, as the client's own models: for when Temporal has forgotten them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from activities.contracts import Frozen
from client.errors import RatchetError
from workflows.api import AgentTask, RunResult
from workflows.kernel.log import Record

if TYPE_CHECKING:
    from activities.store.archive import Archive, ChainBroken
    from activities.store.stores import Stores

__all__ = ["ArchiveProblem", "ArchivedRuns"]

T = TypeVar("T")


class ArchivedRuns:
    """Read access to the archive.

    Every method may raise `RatchetError`: the archive cannot be read, or what it has of the run is not what
    was written there (`ChainBroken` is its cause).
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    @property
    def _archive(self) -> Archive:
        return self._stores.archive

    async def records(self, run: str, since: int = 0) -> tuple[Record, ...]:
        """The records of a run from a number on, in order; empty when the archive does not know the run."""
        return await _read(lambda: tuple(map(Record.model_validate, self._archive.records(run, since=since))))

    async def last_record(self, run: str) -> Record | None:
        """The newest record of a run; None when the archive does not know it."""
        found = await _read(lambda: self._archive.last_record(run))
        return None if found is None else await _read(lambda: Record.model_validate(found))

    async def result(self, run: str) -> RunResult | None:
        """The result of a run; None when its end is not archived."""
        found = await _read(lambda: self._archive.result(run))
        return None if found is None else await _read(lambda: RunResult.model_validate(found))

    async def ended_well(self, run: str) -> bool | None:
        """Whether a run reached its goal, unchecked, for lists; None: the archive does not say."""
        found = await _read(lambda: self._archive.unchecked_result(run))
        ok = (found or {}).get("ok")
        return ok if isinstance(ok, bool) else None

    async def task(self, run: str) -> AgentTask | None:
        """The task of a run; None when its end is not archived, or another release wrote it."""
        found = await _read(lambda: self._archive.result(run))
        try:
            return AgentTask.model_validate((found or {}).get("task"))
        except ValidationError:
            return None

    async def histories(self, run: str) -> dict[str, bytes]:
        """Temporal's histories of a run's executions, by execution, the first one first, as its protocol
        writes them; empty when the archive has none. Of a run that was reset also those of before."""
        await _read(lambda: self._archive.last_record(run))  # no history is shown beside a broken chain
        return await _read(lambda: self._archive.histories(run))

    async def broken_at(self, run: str) -> int | None:
        """The first record that breaks the hash chain; None: the chain is whole."""
        return await _read(lambda: self._archive.broken_at(run))

    async def has_end(self, run: str, head: str) -> bool:
        """The archive has the result of the log that ends in the record with this hash."""
        return await _read(lambda: self._archive.has_end(run, head))

    async def ended(self) -> frozenset[str]:
        """Workflow ids of the runs that have a result."""
        return await _read(lambda: frozenset(self._archive.ended()))

    async def runs(self) -> int:
        """How many logs there are, those that a reset replaced included."""
        return await _read(lambda: len(self._archive.runs()))

    async def broken(self) -> tuple[ChainBroken, ...]:
        """What is wrong with each run whose log or result is not as it was written."""
        return await _read(lambda: tuple(self._archive.broken()))


class ArchiveProblem(Frozen):
    """What is wrong with the archive's log of one run."""

    run: str
    """The workflow id."""
    run_id: str
    """Of its first execution; with `~1`, `~2`, ... a chain that a reset replaced."""
    problem: str


async def _read(read: Callable[[], T]) -> T:
    from activities.store.blobs import StoreError
    from activities.text import problems_text

    try:
        return await asyncio.to_thread(read)
    except StoreError as error:
        raise RatchetError(f"the archive cannot be read: {error}") from error
    except ValidationError as error:
        raise RatchetError(
            "the archive cannot be read: what it has of the run is damaged, or another release wrote it "
            f"({error.title}, {problems_text(error, 1)}); restore the archive from a backup"
        ) from error
