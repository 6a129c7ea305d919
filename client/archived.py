"""Finished runs in the archive, as the client's own models: for when Temporal has forgotten them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from client.errors import RatchetError
from workflows.api import AgentTask, RunResult
from workflows.kernel.log import Record

if TYPE_CHECKING:
    from activities.store.archive import Archive
    from activities.store.stores import Stores

__all__ = ["ArchivedRuns"]

T = TypeVar("T")


class ArchivedRuns:
    """Read access to the archive.

    Every method may raise `RatchetError`: the archive cannot be read, or its content is damaged.
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
        return await _read(lambda: self._archive.histories(run))

    async def broken_at(self, run: str) -> int | None:
        """The first record that breaks the hash chain; None: the chain is whole."""
        return await _read(lambda: self._archive.broken_at(run))


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
