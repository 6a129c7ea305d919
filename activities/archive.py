"""The archive: logs of runs that outlive Temporal's retention, in chains that show tampering.

One SQLite file, one row per record and one per run. A run is named by its workflow id and its
origin's run id, so that a chain goes on through continue-as-new. Each record's hash is made from
the one before it and the record's JSON text, exactly as the workflow does it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.contracts import ArchiveRequest, JsonObject, LogRead, LogWanted
from activities.sqlite import Database, StoreError

__all__ = ["CONFLICT", "Archive", "ArchiveActivities", "ArchivedRun"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs(
    workflow_id TEXT NOT NULL, run_id TEXT NOT NULL, head TEXT NOT NULL, result TEXT,
    PRIMARY KEY (workflow_id, run_id));
CREATE TABLE IF NOT EXISTS records(
    workflow_id TEXT NOT NULL, run_id TEXT NOT NULL, seq INTEGER NOT NULL,
    hash TEXT NOT NULL, json TEXT NOT NULL, PRIMARY KEY (workflow_id, run_id, seq));
"""
CONFLICT = "ArchiveConflict"
"""Error type: the archive already holds another history or result of this run."""

log = structlog.get_logger(__name__)


class ArchiveActivities:
    """The activity that writes to the archive file `path`."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, SCHEMA, durable=True)

    @activity.defn(name="archive_log")
    async def archive_log(self, request: ArchiveRequest) -> str:
        """Write the next part of a run's log; the hash of its last record. Safe to repeat.

        Raises `StoreUnavailable` (worth a retry) and `ApplicationError` of type `ArchiveConflict`.
        """
        head = await asyncio.to_thread(self._write, request)
        log.info("archive.written", workflow_id=request.workflow_id, records=len(request.records))
        return head

    @activity.defn(name="read_log")
    async def read_log(self, wanted: LogWanted) -> LogRead:
        """The records that the archive has of a run, in order. Raises `StoreError`."""
        sql = "SELECT json FROM records WHERE workflow_id=? AND run_id=? ORDER BY seq"
        run = (wanted.workflow_id, wanted.run_id)
        rows = await asyncio.to_thread(self._database.rows, sql, run)
        return LogRead(records=tuple(_object(text, "a record", wanted.workflow_id) for (text,) in rows))

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        self._database.close()

    def _write(self, request: ArchiveRequest) -> str:
        run = (request.workflow_id, request.run_id)
        rows, head = [], request.after
        for record in request.records:
            text = _canonical(record)
            head = _chained(head, text)
            rows.append((*run, record["seq"], head, text))
        with self._database.transaction() as connection:
            for row in rows:
                _insert(connection, row)
            connection.execute(
                "INSERT INTO runs VALUES(?,?,?,?) ON CONFLICT DO UPDATE "
                "SET head=excluded.head, result=excluded.result",
                (*run, self._newest(connection, run) or head, _result(connection, run, request)),
            )
        return head

    def _newest(self, connection: sqlite3.Connection, run: tuple[str, str]) -> str | None:
        """A late retry of an early part must not put the head back."""
        found = connection.execute(
            "SELECT hash FROM records WHERE workflow_id=? AND run_id=? ORDER BY seq DESC LIMIT 1",
            run,
        ).fetchone()
        return str(found[0]) if found else None


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """One run in the archive."""

    workflow_id: str
    run_id: str
    """The run id of its origin."""
    records: int
    head: str
    """Hash of the last record."""
    finished: bool
    """Its result is there."""


class Archive:
    """Reads the archive file `path`; a file that is not there is an empty archive.

    Without a run id, the run of the workflow id that was archived last is meant. Every method may
    raise `StoreUnavailable`, and `records` and `result` a `StoreError` for a row that is no JSON object.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path, SCHEMA, durable=True)

    async def runs(self) -> tuple[ArchivedRun, ...]:
        """All runs, those that were archived first in front."""
        rows = await self._rows(
            "SELECT workflow_id, run_id, (SELECT count(*) FROM records WHERE "
            "records.workflow_id=runs.workflow_id AND records.run_id=runs.run_id), head, "
            "result IS NOT NULL FROM runs ORDER BY rowid"
        )
        return tuple(
            ArchivedRun(workflow_id, run_id, records, head, bool(finished))
            for workflow_id, run_id, records, head, finished in rows
        )

    async def records(
        self, workflow_id: str, run_id: str | None = None, since: int = 0
    ) -> tuple[JsonObject, ...]:
        """The records from sequence number `since` on, as JSON objects."""
        rows = await self._chain(workflow_id, run_id, since)
        return tuple(_object(text, f"record {seq}", workflow_id) for seq, _, text in rows)

    async def result(self, workflow_id: str, run_id: str | None = None) -> JsonObject | None:
        """The run's result; None while there is none."""
        found = await self._run(workflow_id, run_id)
        return _object(found[2], "the result", workflow_id) if found and found[2] else None

    async def verify(self, workflow_id: str, run_id: str | None = None) -> int | None:
        """None if the chain holds from its first record to its head, else where it breaks.

        That is the sequence number of the first record that is missing, changed or out of place.
        """
        rows = await self._chain(workflow_id, run_id)
        head = ""
        for expected, (seq, stored, text) in enumerate(rows):
            head = _chained(head, text)
            if (seq, stored) != (expected, head):
                return expected
        found = await self._run(workflow_id, run_id)
        if found is None:
            return None if not rows else 0
        try:
            result = _object(found[2], "the result", workflow_id) if found[2] else {}
        except StoreError:
            return len(rows)
        heads = {head, found[1], result.get("log_head") or head}
        return None if len(heads) == 1 else len(rows)

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        self._database.close()

    async def _run(self, workflow_id: str, run_id: str | None) -> tuple[Any, ...] | None:
        """Run id, head and result of one run."""
        rows = await self._rows(
            "SELECT run_id, head, result FROM runs "
            "WHERE workflow_id=? AND run_id=coalesce(?,run_id) ORDER BY rowid DESC LIMIT 1",
            (workflow_id, run_id),
        )
        return rows[0] if rows else None

    async def _chain(self, workflow_id: str, run_id: str | None, since: int = 0) -> list[tuple[Any, ...]]:
        found = await self._run(workflow_id, run_id)
        return await self._rows(
            "SELECT seq, hash, json FROM records WHERE workflow_id=? AND run_id=? AND seq>=? ORDER BY seq",
            (workflow_id, found[0] if found else run_id, since),
        )

    async def _rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        def read() -> list[tuple[Any, ...]]:
            there = self._database.path.exists()  # reading must not make the file
            return self._database.rows(sql, values) if there else []

        return await asyncio.to_thread(read)


def _object(text: object, what: str, workflow_id: str) -> JsonObject:
    """What a row holds. Raises `StoreError` for one that is damaged."""
    try:
        value = json.loads(str(text))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise StoreError(
            f"{what} of run {workflow_id} in the archive is damaged: it is no JSON object; "
            "put archive.db back from a backup"
        )
    return value


def _canonical(value: object) -> str:
    """The JSON text that pydantic makes of the model; the `json` module writes 1e-7 otherwise."""
    return to_json(value, inf_nan_mode="null").decode()


def _chained(previous: str, text: str) -> str:
    """The same as `chained_hash` of the workflow's log, over the record's text."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def _insert(connection: sqlite3.Connection, row: tuple[Any, ...]) -> None:
    found = connection.execute(
        "SELECT hash FROM records WHERE workflow_id=? AND run_id=? AND seq=?", row[:3]
    ).fetchone()
    if found is None:
        connection.execute("INSERT INTO records VALUES(?,?,?,?,?)", row)
    elif found[0] != row[3]:
        raise _conflict(f"record {row[2]}", row[0], row[1])


def _result(connection: sqlite3.Connection, run: tuple[str, str], request: ArchiveRequest) -> str | None:
    """The run's result as it is to be kept: once it is there, it stays."""
    found = connection.execute("SELECT result FROM runs WHERE workflow_id=? AND run_id=?", run).fetchone()
    kept = None if found is None or found[0] is None else str(found[0])
    result = None if request.result is None else _canonical(request.result)
    if kept is not None and result is not None and result != kept:
        raise _conflict("result", *run)
    return kept or result


def _conflict(what: str, workflow_id: str, run_id: str) -> ApplicationError:
    return ApplicationError(
        f"the archive holds another {what} of run {workflow_id} ({run_id}); it is kept as it was; "
        "`verify` tells whether the archive or this run has been changed",
        type=CONFLICT,
        non_retryable=True,
    )
