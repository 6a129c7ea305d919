"""The archive: logs of runs that outlive Temporal's retention, in chains that show tampering.

One SQLite file, one row per record and one per run. A run is named by its workflow id and the run id
of its first execution, so a chain goes on through continue-as-new. Each record's hash is made from
the hash before it and the record's JSON text, exactly as the kernel's log does it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import structlog
from pydantic_core import to_json
from temporalio import activity
from temporalio.api.history.v1 import History
from temporalio.exceptions import ApplicationError

from activities.contracts import ArchiveRequest, JsonObject, LogRead, LogWanted
from activities.store.blobs import StoreError, StoreUnavailable

__all__ = ["CONFLICT", "Archive", "ArchiveActivities"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs(
    workflow_id TEXT NOT NULL, run_id TEXT NOT NULL, head TEXT NOT NULL, result TEXT,
    PRIMARY KEY (workflow_id, run_id));
CREATE TABLE IF NOT EXISTS records(
    workflow_id TEXT NOT NULL, run_id TEXT NOT NULL, seq INTEGER NOT NULL,
    hash TEXT NOT NULL, json TEXT NOT NULL, PRIMARY KEY (workflow_id, run_id, seq));
CREATE TABLE IF NOT EXISTS histories(
    workflow_id TEXT NOT NULL, run_id TEXT NOT NULL, execution TEXT NOT NULL, events BLOB NOT NULL,
    PRIMARY KEY (workflow_id, run_id, execution));
"""
CONFLICT = "ArchiveConflict"
"""Error type: the archive already holds another history or result of this run."""
ONE = "workflow_id=? AND run_id=?"
BUSY_SECONDS = 30
"""How long a writer waits for the writer of another process."""

Run = tuple[str, str]
"""Workflow id, and run id of the first execution."""

log = structlog.get_logger(__name__)


class Archive:
    """The archive file `path`. A file that does not exist is an empty archive.

    Without a run id, a method takes the run of the workflow id that was archived last. The calls
    block for the disk. Every one may raise `StoreUnavailable`; one that meets a damaged row raises a
    `StoreError` that names it.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def add(self, part: ArchiveRequest) -> str:
        """Write the next part of a run's log; returns the hash of its last record. Safe to repeat.

        Raises `ApplicationError` of type `ArchiveConflict` when the archive holds something else.
        """
        run, head = (part.workflow_id, part.run_id), part.after
        result = None if part.result is None else _canonical(part.result)
        with self._explained():
            self._make()
            with closing(self._connect()) as file, file:
                file.execute("BEGIN IMMEDIATE")
                for record in part.records:
                    text = _canonical(record)
                    head = _next_hash(head, text)
                    row = (*run, record["seq"], head, text)
                    file.execute("INSERT INTO records VALUES(?,?,?,?,?) ON CONFLICT DO NOTHING", row)
                    kept = file.execute(f"SELECT hash FROM records WHERE {ONE} AND seq=?", row[:3])
                    if kept.fetchone() != (head,):
                        raise _conflict(f"record {record['seq']}", run)
                # The newest record's hash: a late retry of an early part must not put the head back.
                newest = file.execute(f"SELECT hash FROM records WHERE {ONE} ORDER BY seq DESC LIMIT 1", run)
                file.execute(
                    "INSERT INTO runs VALUES(?,?,?,?) ON CONFLICT DO UPDATE "
                    "SET head=excluded.head, result=coalesce(result, excluded.result)",
                    (*run, *(newest.fetchone() or (head,)), result),
                )
                kept = file.execute(f"SELECT result FROM runs WHERE {ONE}", run)
                if result is not None and kept.fetchone() != (result,):
                    raise _conflict("result", run)
        return head

    def add_history(self, workflow_id: str, run_id: str, execution: str, events: bytes) -> None:
        """Keep Temporal's history of one execution of a run; a longer one takes its place."""
        with self._explained():
            self._make()
            with closing(self._connect()) as file:
                file.execute(
                    "INSERT INTO histories VALUES(?,?,?,?) ON CONFLICT DO UPDATE SET events=excluded.events",
                    (workflow_id, run_id, execution, zlib.compress(events)),
                )

    def histories(self, workflow_id: str, run_id: str | None = None) -> tuple[bytes, ...]:
        """Temporal's histories of a run's executions, the first one first."""
        found = self._run(workflow_id, run_id)
        rows = self._rows(
            f"SELECT events FROM histories WHERE {ONE} ORDER BY rowid",
            (workflow_id, found[0] if found else run_id),
        )
        try:
            return tuple(zlib.decompress(events) for (events,) in rows)
        except zlib.error as error:
            raise StoreError(
                f"a history of run {workflow_id} in the archive is damaged. Restore archive.db from a backup."
            ) from error

    def runs(self) -> tuple[Run, ...]:
        """All runs, in the order in which they were first archived."""
        return tuple(self._rows("SELECT workflow_id, run_id FROM runs ORDER BY rowid"))

    def records(self, workflow_id: str, run_id: str | None = None) -> tuple[JsonObject, ...]:
        """The records in order, as JSON objects."""
        rows = self._chain(workflow_id, run_id)
        return tuple(_object(text, f"record {seq}", workflow_id) for seq, _, text in rows)

    def result(self, workflow_id: str, run_id: str | None = None) -> JsonObject | None:
        """The run's result; None while there is no result."""
        found = self._run(workflow_id, run_id)
        return _object(found[2], "the result", workflow_id) if found and found[2] else None

    def broken_at(self, workflow_id: str, run_id: str | None = None) -> int | None:
        """The sequence number of the first record that is missing, changed or out of place.

        None: the chain is whole from its first record to its head. The number after the last record:
        the head or the result does not fit the records.
        """
        rows = self._chain(workflow_id, run_id)
        head = ""
        for expected, (seq, stored, text) in enumerate(rows):
            head = _next_hash(head, str(text))
            if (seq, stored) != (expected, head):
                return expected
        found = self._run(workflow_id, run_id)
        if found is None:
            return 0 if rows else None
        try:
            result = _object(found[2], "the result", workflow_id) if found[2] else {}
        except StoreError:
            return len(rows)
        whole = {head, found[1], result.get("log_head") or head} == {head}
        return None if whole else len(rows)

    def _run(self, workflow_id: str, run_id: str | None) -> tuple[Any, ...] | None:
        """Run id, head and result of one run."""
        rows = self._rows(
            "SELECT run_id, head, result FROM runs "
            "WHERE workflow_id=? AND run_id=coalesce(?,run_id) ORDER BY rowid DESC LIMIT 1",
            (workflow_id, run_id),
        )
        return rows[0] if rows else None

    def _chain(self, workflow_id: str, run_id: str | None) -> list[tuple[Any, ...]]:
        """Number, hash and text of each record."""
        found = self._run(workflow_id, run_id)
        return self._rows(
            f"SELECT seq, hash, json FROM records WHERE {ONE} ORDER BY seq",
            (workflow_id, found[0] if found else run_id),
        )

    def _rows(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._explained():
            if not self.path.exists():  # reading must not make the file
                return []
            with closing(self._connect()) as file:
                return file.execute(sql, values).fetchall()

    def _make(self) -> None:
        """The file, readable to its owner alone, with its tables."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        with closing(self._connect()) as file:
            file.executescript(SCHEMA)

    def _connect(self) -> sqlite3.Connection:
        """A connection for one call: a run is archived once or a few times, and read rarely."""
        file = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        file.execute("PRAGMA synchronous=FULL")
        return file

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            code = int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                advice = "The file is damaged or is not an archive. Restore it from a backup."
            else:
                advice = (
                    "Check that its folder exists, is writable and has space (RATCHET_DATA_DIR names it)."
                )
            raise StoreUnavailable(f"{self.path}: {error}. {advice}") from error


class ArchiveActivities:
    """The activities `archive_log` and `read_log` around one archive."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive

    @activity.defn(name="archive_log")
    async def archive_log(self, request: ArchiveRequest) -> str:
        """Write the next part of a run's log; returns the hash of its last record. Safe to repeat.

        Raises `StoreUnavailable` (worth a retry) and `ApplicationError` of type `ArchiveConflict`.
        """
        head = await asyncio.to_thread(self.archive.add, request)
        await self._keep_history(request)
        log.info("archive.written", workflow_id=request.workflow_id, records=len(request.records))
        return head

    async def _keep_history(self, request: ArchiveRequest) -> None:
        """Keep what Temporal has of this execution up to now: all but its end. A failure harms nothing."""
        info = activity.info()
        try:
            run = activity.client().get_workflow_handle(request.workflow_id, run_id=info.workflow_run_id)
            events = History(events=(await run.fetch_history()).events).SerializeToString()
            execution = str(info.workflow_run_id)
            await asyncio.to_thread(
                self.archive.add_history, request.workflow_id, request.run_id, execution, events
            )
        except Exception as error:  # noqa: BLE001  # the log is written: this is more than a run needs
            log.warning("archive.history_not_kept", workflow_id=request.workflow_id, error=str(error))

    @activity.defn(name="read_log")
    async def read_log(self, wanted: LogWanted) -> LogRead:
        """The records that the archive has of a run, in order. Raises `StoreError`."""
        return LogRead(
            records=await asyncio.to_thread(self.archive.records, wanted.workflow_id, wanted.run_id)
        )


def _object(text: object, what: str, workflow_id: str) -> JsonObject:
    """What a row holds. Raises `StoreError` for a damaged one."""
    try:
        value = json.loads(str(text))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise StoreError(
            f"{what} of run {workflow_id} in the archive is damaged: it is not a JSON object. "
            "Restore archive.db from a backup."
        )
    return value


def _canonical(value: object) -> str:
    """The JSON text that pydantic makes of the record's model; the `json` module writes 1e-7 otherwise."""
    return to_json(value, inf_nan_mode="null").decode()


def _next_hash(previous: str, text: str) -> str:
    """The same as `record_hash` of the kernel's log, from the record's text."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def _conflict(what: str, run: Run) -> ApplicationError:
    return ApplicationError(
        f"the archive holds another {what} of run {run[0]} ({run[1]}) and keeps it. "
        "Verify the archive, to see whether it or this run was changed.",
        type=CONFLICT,
        non_retryable=True,
    )
