"""The activities that write runs' logs to the archive and read them again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from temporalio import activity
from temporalio.api.history.v1 import History
from temporalio.exceptions import ApplicationError

from activities.contracts import ArchiveRequest, LogRead, LogWanted
from activities.evidence.events import attested
from activities.store.archive import Archive, end_of
from activities.telemetry.attempts import Archived
from activities.telemetry.report import Telemetry

__all__ = ["ArchiveActivities"]

HISTORY_WAIT_SECONDS = 0.2
"""Seconds that a log waits for its history, so that both are written in one transaction."""
SMALL_HISTORY_BYTES = 2**20
"""Bytes of a history that is written with its log."""

log = structlog.get_logger("ratchet")


class ArchiveActivities:
    """The activities `archive_log` and `read_log` around one archive; `history_seconds` is the time to fetch
    Temporal's history of a run, and again to write one that is late or large; 0: keep none. With a `key` each
    part of a log that has its history is signed as what this worker has archived."""

    def __init__(
        self,
        archive: Archive,
        history_seconds: float = 10,
        telemetry: Telemetry | None = None,
        key: Ed25519PrivateKey | None = None,
    ) -> None:
        self.archive, self._history_seconds, self._key = archive, history_seconds, key
        self._telemetry = telemetry or Telemetry()

    @activity.defn(name="archive_log")
    async def archive_log(self, request: ArchiveRequest) -> str:
        """Write the next part of a run's log; returns the hash of its last record. Safe to repeat.

        Raises `StoreUnavailable`, which is worth a retry, and for a part after a gap what is not.
        """
        if request.behind_gap:
            raise ApplicationError("an earlier part of the log could not be written", non_retryable=True)
        execution = str(activity.info().workflow_run_id)
        fetching = asyncio.create_task(self._history(request.workflow_id, execution))
        try:
            events = await self._early(fetching)
            head = await asyncio.to_thread(self.write, request, execution, events)
            late = b"" if events else await fetching
        finally:
            fetching.cancel()
        if late:
            async with self._harmless(request.workflow_id):
                run = (request.workflow_id, request.run_id)
                await asyncio.to_thread(self.archive.add_history, *run, execution, late)
                await asyncio.to_thread(self._attest, request, head, execution, late)
        log.info("archive.written", workflow_id=request.workflow_id, records=len(request.records))
        return head

    async def _early(self, fetching: asyncio.Task[bytes]) -> bytes:
        """A history to be written with the log: there soon, small, and nothing that has failed before."""
        if activity.info().attempt == 1:
            await asyncio.wait([fetching], timeout=HISTORY_WAIT_SECONDS)
            if fetching.done() and len(fetching.result()) <= SMALL_HISTORY_BYTES:
                return fetching.result()
        return b""

    def write(self, request: ArchiveRequest, execution: str, events: bytes) -> str:
        """The same with Temporal's history of the execution, where there is one. Blocks."""
        run = (request.workflow_id, request.run_id)
        added = self.archive.add(request, execution, events)
        new = Archived(*run, added.records, request.result if added.ended else None)
        self._telemetry.archived(new, lambda: self.archive.records(*run))
        if events:
            self._attest(request, added.head, execution, events)
        return added.head

    def _attest(self, request: ArchiveRequest, head: str, execution: str, events: bytes) -> None:
        """Sign what was archived, where this worker has a key. Blocks."""
        if self._key is None:
            return
        run = (request.workflow_id, request.run_id)
        end = end_of(head, request.result)
        history = History.FromString(events).events
        if (found := attested(self._key, request, end, execution, history)) is not None:
            self.archive.add_attestation(run, execution, found)
        else:
            log.warning("archive.not_attested", workflow_id=run[0], execution=execution)

    async def _history(self, workflow_id: str, execution: str) -> bytes:
        """What Temporal has of this execution up to now: all but its end. Empty where it is not to be had."""
        if self._history_seconds:
            async with self._harmless(workflow_id):
                run = activity.client().get_workflow_handle(workflow_id, run_id=execution)
                return History(events=(await run.fetch_history()).events).SerializeToString()
        return b""

    @asynccontextmanager
    async def _harmless(self, workflow_id: str) -> AsyncIterator[None]:
        """A history that is not kept, or not in time, harms no run: its log is archived all the same."""
        try:
            async with asyncio.timeout(self._history_seconds):
                yield
        except Exception as error:  # noqa: BLE001  # whatever it is, the run goes on
            name = "it did not come in time" if isinstance(error, TimeoutError) else type(error).__name__
            log.warning("archive.history_not_kept", workflow_id=workflow_id, error=str(error) or name)

    @activity.defn(name="read_log")
    async def read_log(self, wanted: LogWanted) -> LogRead:
        """The records of a run up to the one that is wanted, in order. Raises `StoreError`."""
        read = self.archive.records_up_to
        return LogRead(records=await asyncio.to_thread(read, wanted.head, wanted.workflow_id, wanted.run_id))
