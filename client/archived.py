"""Finished runs as the archive keeps them, for when Temporal no longer does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from activities.archive import Archive
from activities.sqlite import StoreError
from client.errors import RatchetError
from workflows.api import AgentResult, AgentStatus, AgentTask, LogPage
from workflows.kernel.log import Record

__all__ = ["ArchivedRuns"]


class ArchivedRuns:
    """The archive as the client's own models; a file that is not there is an empty archive.

    Every method may raise `RatchetError`: the file cannot be read, or what it holds of a run is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._archive = Archive(path)

    async def records(self, run_id: str) -> tuple[Record, ...]:
        """All records of a run, in order; empty when the archive does not know it."""
        with _explained():
            return tuple(Record.model_validate(r) for r in await self._archive.records(run_id))

    async def result(self, run_id: str) -> AgentResult | None:
        """The result of a run, if its end was archived."""
        with _explained():
            found = await self._archive.result(run_id)
            return None if found is None else AgentResult.model_validate(found)

    async def begun(self, run_id: str) -> tuple[AgentTask | None, str]:
        """The task of a run and the id of its first execution, where its end was archived with them."""
        with _explained():
            found = await self._archive.result(run_id) or {}
        try:
            task = AgentTask.model_validate(found["task"])
        except (KeyError, ValidationError):  # of a run that ended before tasks were archived
            task = None
        return task, str(found.get("origin_run_id", ""))

    async def log(self, run_id: str, since: int) -> LogPage | None:
        """The records from `since` on as one page; None when the run is not archived."""
        records = await self.records(run_id)
        if not records:
            return None
        end = records[-1].seq + 1
        kept = tuple(record for record in records if record.seq >= since)
        finished = await self.result(run_id) is not None
        return LogPage(records=kept, next=end, total=end, finished=finished)

    async def status(self, run_id: str) -> AgentStatus | None:
        """The last status of a run; None when its end is not archived."""
        records, result = await self.records(run_id), await self.result(run_id)
        if not records or result is None:
            return None
        last = records[-1]
        return AgentStatus(
            agent=result.agent,
            machine=result.machine,
            machine_version=result.machine_version,
            state=result.state,
            step=last.step,
            visit=last.visit,
            branch=last.branch,
            finished=True,
            exit_reason=result.exit_reason,
            answer=result.answer,
            error=result.error,
            counters=result.counters,
            records=result.records,
        )

    def close(self) -> None:
        """Close the file."""
        self._archive.close()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise RatchetError(f"the archive cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise RatchetError(
            f"the archive cannot be read: what it holds of the run is damaged, or of a release that is not "
            f"this one ({error.title}, {place}: {first['msg'][:300]}); put archive.db back from a backup"
        ) from error
