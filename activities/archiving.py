"""The activities that write runs' logs to the archive and read them again."""

from __future__ import annotations

import asyncio

import structlog
from temporalio import activity
from temporalio.api.history.v1 import History

from activities.contracts import ArchiveRequest, LogRead, LogWanted
from activities.store.archive import Archive
from activities.telemetry.report import Archived, Telemetry

__all__ = ["ArchiveActivities"]

WITH_HISTORY = 2
"""So many attempts to write a part bring a history along: should it be what fails, the log comes without."""

log = structlog.get_logger(__name__)


class ArchiveActivities:
    """The activities `archive_log` and `read_log` around one archive; `history_seconds` is the time to fetch
    Temporal's history of a run; 0: keep none."""

    def __init__(
        self, archive: Archive, history_seconds: float = 10, telemetry: Telemetry | None = None
    ) -> None:
        self.archive, self._history_seconds = archive, history_seconds
        self._telemetry = telemetry or Telemetry()

    @activity.defn(name="archive_log")
    async def archive_log(self, request: ArchiveRequest) -> str:
        """Write the next part of a run's log; returns the hash of its last record. Safe to repeat.

        Raises `StoreUnavailable`, which is worth a retry.
        """
        execution = str(activity.info().workflow_run_id)
        events = b""
        if self._history_seconds and activity.info().attempt <= WITH_HISTORY:
            events = await self._history(request.workflow_id, execution)
        head = await asyncio.to_thread(self._add, request, execution, events)
        log.info("archive.written", workflow_id=request.workflow_id, records=len(request.records))
        return head

    def _add(self, request: ArchiveRequest, execution: str, events: bytes) -> str:
        run = (request.workflow_id, request.run_id)
        added = self.archive.add(request, execution, events)
        new = Archived(*run, added.records, request.result if added.ended else None)
        self._telemetry.archived(new, lambda: self.archive.records(*run))
        return added.head

    async def _history(self, workflow_id: str, execution: str) -> bytes:
        """What Temporal has of this execution up to now: all but its end. Empty where it is not to be had in
        time, whatever the reason: the log is archived all the same."""
        try:
            run = activity.client().get_workflow_handle(workflow_id, run_id=execution)
            async with asyncio.timeout(self._history_seconds):
                return History(events=(await run.fetch_history()).events).SerializeToString()
        except Exception as error:  # noqa: BLE001  # whatever it is, the run goes on
            name = "it did not come in time" if isinstance(error, TimeoutError) else type(error).__name__
            log.warning("archive.history_not_kept", workflow_id=workflow_id, error=str(error) or name)
            return b""

    @activity.defn(name="read_log")
    async def read_log(self, wanted: LogWanted) -> LogRead:
        """The records of a run up to the one that is wanted, in order. Raises `StoreError`."""
        read = self.archive.records_up_to
        return LogRead(records=await asyncio.to_thread(read, wanted.head, wanted.workflow_id, wanted.run_id))
