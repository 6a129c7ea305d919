"""A run's log inside the workflow: what it holds, what of it the archive has, and the hash chain."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from activities.contracts import ArchiveRequest, JsonObject, LogRead, LogWanted
from activities.contracts.chain import link_text, next_hash
from workflows.hosts.activities import answer_of, until_done
from workflows.kernel.log import Record, chain

__all__ = ["RunLogWriter", "verified_records"]

PART_CHARS = 4 * 2**20
"""A part of the log ends where its JSON has this length. Temporal gives a workflow task two seconds; for
100 Mi it is not enough (measured)."""


class Link(NamedTuple):
    """A record in the chain."""

    value: JsonObject
    """The record as JSON."""
    size: int
    """Characters of that."""
    head: str
    """The hash up to here."""


class RunLogWriter:
    """Records of one execution; `origin` is the chain's first run id, by which the archive knows the run."""

    def __init__(self, origin: str, head: str = "", records: Iterable[Record] = ()) -> None:
        self.origin = origin
        self.records = list(records)
        self.archived_head = head
        """Hash of the last record that the archive has."""
        self._is_whole = True
        """False: a part of a run that ended could not be written."""
        self._archived = 0
        self._unarchived: list[Link] = []
        self._head_before = head
        self._earlier: list[Record] | None = None

    @property
    def head(self) -> str:
        """Hash of the last record."""
        known = self._unarchived[-1].head if self._unarchived else self.archived_head
        return chain(self.records[self._archived + len(self._unarchived) :], known)

    @property
    def unarchived(self) -> tuple[JsonObject, ...]:
        """The records that the archive lacks, as JSON values."""
        return tuple(link.value for link in self._links())

    def _links(self, most: float = math.inf) -> list[Link]:
        """The records that the archive lacks, each written as JSON and hashed once; of very many no more than
        make `most` characters."""
        size = sum(link.size for link in self._unarchived)
        for record in self.records[self._archived + len(self._unarchived) :]:
            if size >= most:
                break
            value = record.model_dump(mode="json")
            text = link_text(value)
            before = self._unarchived[-1].head if self._unarchived else self.archived_head
            self._unarchived.append(Link(value, len(text), next_hash(before, text)))
            size += len(text)
        return self._unarchived

    async def whole(self) -> list[Record]:
        """All records of the run; those of earlier executions come from the archive.

        Raises ValueError when the archive cannot be read, or differs from what was written.
        """
        if not self._head_before:
            return list(self.records)
        if self._earlier is None:
            self._earlier = await self._read()
        return [*self._earlier, *self.records]

    async def _read(self) -> list[Record]:
        try:
            raw: RawValue | None = await workflow.execute_activity(
                "read_log",
                LogWanted(
                    workflow_id=workflow.info().workflow_id, run_id=self.origin, head=self._head_before
                ),
                result_type=RawValue,
                activity_id="read-log",
                summary="read the log's beginning from the archive",
                start_to_close_timeout=timedelta(seconds=60),
                retry_policy=RetryPolicy(maximum_attempts=5),
            )
            found = answer_of(raw, LogRead, "read_log", "read-log")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise ValueError(f"the archive cannot be read: {error.cause or error}") from error
        return verified_records(found.records, self._head_before)

    async def write(self, result: JsonObject | None = None) -> bool:
        """Write what is new where Temporal's retention does not reach; `result` with the last part.
        False: the archive cannot be written.

        A failure never fails the run, and a cancellation does not stop it: the log is the evidence. A
        finished run waits for a failing archive for a second only. Its history then has each part as an
        activity's input, and a worker writes them later (`client/runs/archive_repair.py`).
        """
        ending = result is not None
        if not await self.write_full_parts(ending=ending):
            return False
        return await self._write(len(self._links()), result, ending=ending) and self._is_whole

    async def write_full_parts(self, *, ending: bool) -> bool:
        """Write all but the last part, one in each workflow task. False: the archive cannot be written, and
        the run is not ending."""
        while part := self._full_part():
            if not await self._write(part, ending=ending) and not ending:
                return False
        return True

    def _full_part(self) -> int:
        """How many records the next part has; 0: what is new is the last."""
        size = 0
        for count, link in enumerate(self._links(PART_CHARS), start=1):
            size += link.size
            if size >= PART_CHARS and self._archived + count < len(self.records):
                return count
        return 0

    async def _write(self, count: int, result: JsonObject | None = None, *, ending: bool) -> bool:
        part, upto = self._unarchived[:count], self._archived + count
        writing = workflow.start_activity(
            "archive_log",
            ArchiveRequest(
                workflow_id=workflow.info().workflow_id,
                run_id=self.origin,
                after=self.archived_head,
                records=tuple(link.value for link in part),
                result=result,
                behind_gap=not self._is_whole,
            ),
            result_type=RawValue,  # whoever completes it, with whatever
            activity_id=f"archive:{upto}",
            summary="archive the log",
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=0.2 if ending else 1), maximum_attempts=3 if ending else 5
            ),
        )
        await until_done(writing)
        if failure := writing.exception():
            text = str(failure.__cause__ or failure)
            workflow.logger.warning("agent.archive_failed", extra={"ratchet": {"error": text}})
            if not ending:
                return False
            self._is_whole = False
        self._archived = upto
        del self._unarchived[:count]
        self.archived_head = part[-1].head if part else self.archived_head
        return failure is None


def verified_records(values: Iterable[JsonObject], head: str) -> list[Record]:
    """The records that were written as these JSON values, up to the one whose hash is `head`.

    What was written is hashed, not what today's `Record` would write: its fields differ between versions.
    Raises ValueError when anything was changed or is missing.
    """
    records, found = list[Record](), ""
    for value in values:
        records.append(Record.model_validate(value))
        found = next_hash(found, link_text(value))
        if found == head:
            return records
    raise ValueError("the archive's log differs from what this run wrote; nothing was done")
