"""Finished runs in the archive, as the client's own models: for when Temporal has forgotten them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from activities.contracts import JsonObject
from client.errors import RatchetError
from workflows.api import AgentTask, LogPage, RunResult, RunStatus
from workflows.kernel.log import Record

if TYPE_CHECKING:
    from activities.store.archive import Archive

__all__ = ["ArchivedRuns"]

T = TypeVar("T")


class ArchivedRuns:
    """Read access to an archive file; a file that does not exist is an empty archive.

    Every method may raise `RatchetError`: the file cannot be read, or its content is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _archive(self) -> Archive:
        from activities.store.archive import Archive  # with its log library 0.15 s: not before it is read

        return Archive(self._path)

    async def records(self, run: str) -> tuple[Record, ...]:
        """All records of a run, in order; empty when the archive does not know it."""

        def read() -> tuple[Record, ...]:
            return tuple(Record.model_validate(record) for record in self._archive.records(run))

        return await _in_thread(read)

    async def result(self, run: str) -> RunResult | None:
        """The result of a run; None when its end is not archived."""

        def read() -> RunResult | None:
            found = self._archive.result(run)
            return None if found is None else RunResult.model_validate(found)

        return await _in_thread(read)

    async def task(self, run: str) -> AgentTask | None:
        """The task of a run; None when its end is not archived, or another release wrote it."""

        def read() -> AgentTask | None:
            found: JsonObject = self._archive.result(run) or {}
            try:
                return AgentTask.model_validate(found.get("task"))
            except ValidationError:
                return None

        return await _in_thread(read)

    async def log(self, run: str, since: int = 0) -> LogPage | None:
        """The records from `since` on in one page; None when the archive does not know the run."""
        records = await self.records(run)
        if not records:
            return None
        total = records[-1].seq + 1
        kept = tuple(record for record in records if record.seq >= since)
        finished = await self.result(run) is not None
        return LogPage(records=kept, next=total, total=total, finished=finished)

    async def status(self, run: str) -> RunStatus | None:
        """The last status of a run; None when its end is not archived."""
        result = await self.result(run)
        if result is None:
            return None
        records = await self.records(run)
        common = {name: getattr(result, name) for name in RunStatus.model_fields if hasattr(result, name)}
        return RunStatus(**common, visit=records[-1].visit if records else 0)

    async def broken_at(self, run: str) -> int | None:
        """The first record that breaks the hash chain; None: the chain is whole."""
        return await _in_thread(lambda: self._archive.broken_at(run))


async def _in_thread(read: Callable[[], T]) -> T:
    from activities.store.blobs import StoreError

    try:
        return await asyncio.to_thread(read)
    except StoreError as error:
        raise RatchetError(f"the archive cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise RatchetError(
            "the archive cannot be read: what it has of the run is damaged, or another release wrote it "
            f"({error.title}, {where}: {first['msg'][:300]}); restore archive.db from a backup"
        ) from error
