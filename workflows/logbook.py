"""A run's log inside the workflow: what it holds, what of it the archive has, and the hash chain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

from activities.contracts import ArchiveRequest, JsonObject
from workflows.kernel.log import Record, chain

__all__ = ["Logbook"]


class Logbook:
    """Records of one run of the chain; `origin` is the first run's id, by which the archive knows it."""

    def __init__(self, origin: str, head: str = "", records: Iterable[Record] = ()) -> None:
        self.origin = origin
        self.records = list(records)
        self._archived = 0
        self._archived_head = head

    @property
    def head(self) -> str:
        """Hash of the last record."""
        return chain(self.records[self._archived :], self._archived_head)

    @property
    def archived_head(self) -> str:
        """Hash of the last record that the archive has."""
        return self._archived_head

    @property
    def unarchived(self) -> tuple[JsonObject, ...]:
        """The records that the archive has not, as JSON values."""
        return tuple(record.model_dump(mode="json") for record in self.records[self._archived :])

    async def archive(self, result: JsonObject | None = None) -> None:
        """Write what is new where Temporal's retention does not reach; `result` with the last part.

        Its failure never fails the run, and a cancellation does not stop it: the log is the evidence.
        """
        upto, head = len(self.records), self.head
        writing = workflow.start_activity(
            "archive_log",
            ArchiveRequest(
                workflow_id=workflow.info().workflow_id,
                run_id=self.origin,
                after=self._archived_head,
                records=self.unarchived,
                result=result,
            ),
            activity_id=f"archive:{upto}",
            summary="archive the log",
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=RetryPolicy(maximum_attempts=5),
        )
        while not writing.done():
            with suppress(asyncio.CancelledError):
                await workflow.wait([writing])
        if failure := writing.exception():
            text = str(failure.__cause__ or failure)
            workflow.logger.warning("agent.archive_failed", extra={"ratchet": {"error": text}})
        else:
            self._archived, self._archived_head = upto, head
