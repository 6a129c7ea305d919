"""The archive: logs of runs that outlive Temporal's retention, in chains that show tampering.

One SQLite file, one row per record and one per run; where there are keys, records, results and histories
are encrypted. A run is named by its workflow id and the run id of its first execution, so a chain goes on
through continue-as-new. Each record's hash is made from the hash before it and the record's plain JSON text,
exactly as the kernel's log does it.

A run that was reset writes another end of its log. The chain that it replaces stays whole, under the run id
with `~1`, `~2`, ... at its end.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import structlog
from pydantic_core import to_json
from temporalio import activity
from temporalio.api.history.v1 import History

from activities.contracts import ArchiveRequest, JsonObject, LogRead, LogWanted
from activities.store.blobs import StoreError, StoreUnavailable
from activities.store.encryption import KeyMissing, Keys, NotDecrypted

__all__ = ["Archive", "ArchiveActivities"]

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
ONE = "workflow_id=? AND run_id=?"
UP_TO = (
    "SELECT one.seq, one.hash, one.json FROM records AS one JOIN"
    " (SELECT workflow_id, run_id, seq FROM records"
    " WHERE workflow_id=? AND (run_id=? OR run_id GLOB ?) AND hash=? ORDER BY length(run_id) LIMIT 1) AS last"
    " ON one.workflow_id=last.workflow_id AND one.run_id=last.run_id AND one.seq<=last.seq"
)
"""The rows of a run's chain, be it a replaced one, up to the record with a hash."""
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

    def __init__(self, path: Path, keys: Keys | None = None) -> None:
        self.path, self._keys = Path(path), keys or Keys()

    def add(self, part: ArchiveRequest) -> str:
        """Write the next part of a run's log; returns the hash of its last record. Safe to repeat.

        Where the archive holds something else, both are kept: see the top of this file.
        """
        run, head = (part.workflow_id, part.run_id), part.after
        result = None if part.result is None else _canonical(part.result)
        rows: list[tuple[Any, ...]] = []
        for record in part.records:
            text = _canonical(record)
            head = _next_hash(head, text)
            rows.append((*run, record["seq"], head, self._keys.seal_text(text)))
        with self._explained():
            self._make()
            with closing(self._connect()) as file, file:
                file.execute("BEGIN IMMEDIATE")
                if _differs(file, run, rows) or not self._has_result(file, run, result):
                    if _was_replaced(file, run, head):  # a late repeat
                        return head
                    _replace(file, run, part.after)
                insert = "INSERT INTO records VALUES(?,?,?,?,?) ON CONFLICT DO NOTHING"
                file.executemany(insert, rows)
                # The newest record's hash: a late retry of an early part must not put the head back.
                newest = file.execute(f"SELECT hash FROM records WHERE {ONE} ORDER BY seq DESC LIMIT 1", run)
                file.execute(
                    "INSERT INTO runs VALUES(?,?,?,?) ON CONFLICT DO UPDATE "
                    "SET head=excluded.head, result=coalesce(result, excluded.result)",
                    (*run, *(newest.fetchone() or (head,)), result and self._keys.seal_text(result)),
                )
        return head

    def _has_result(self, file: sqlite3.Connection, run: Run, result: str | None) -> bool:
        """The archive holds this result, or none."""
        kept = file.execute(f"SELECT result FROM runs WHERE {ONE}", run).fetchone()
        return result is None or kept in (None, (None,)) or self._keys.unseal_text(kept[0]) == result

    def add_history(self, workflow_id: str, run_id: str, execution: str, events: bytes) -> None:
        """Keep Temporal's history of one execution of a run; a longer one takes its place."""
        with self._explained():
            self._make()
            with closing(self._connect()) as file:
                file.execute(
                    "INSERT INTO histories VALUES(?,?,?,?) ON CONFLICT DO UPDATE SET events=excluded.events",
                    (workflow_id, run_id, execution, self._keys.seal(zlib.compress(events))),
                )

    def histories(self, workflow_id: str, run_id: str | None = None) -> tuple[bytes, ...]:
        """Temporal's histories of a run's executions, the first one first."""
        found = self._run(workflow_id, run_id)
        rows = self._rows(
            f"SELECT events FROM histories WHERE {ONE} ORDER BY rowid",
            (workflow_id, found[0] if found else run_id),
        )
        try:
            return tuple(zlib.decompress(self._keys.unseal(events)) for (events,) in rows)
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
        return self._records(rows, workflow_id)

    def records_up_to(self, head: str, workflow_id: str, run_id: str) -> tuple[JsonObject, ...]:
        """The records of a run up to the one with this hash, also of a chain that was replaced; empty where
        there is none."""
        rows = self._rows(f"{UP_TO} ORDER BY one.seq", (workflow_id, run_id, f"{run_id}~*", head))
        return self._records(rows, workflow_id)

    def _records(self, rows: Sequence[tuple[Any, ...]], workflow_id: str) -> tuple[JsonObject, ...]:
        return tuple(
            _object(self._keys.unseal_text(str(text)), f"record {seq}", workflow_id) for seq, _, text in rows
        )

    def result(self, workflow_id: str, run_id: str | None = None) -> JsonObject | None:
        """The run's result; None while there is no result."""
        found = self._run(workflow_id, run_id)
        if not found or not found[2]:
            return None
        return _object(self._keys.unseal_text(str(found[2])), "the result", workflow_id)

    def broken_at(self, workflow_id: str, run_id: str | None = None) -> int | None:
        """The sequence number of the first record that is missing, changed or out of place.

        None: the chain is whole from its first record to its head. The number after the last record:
        the head or the result does not fit the records.
        """
        rows = self._chain(workflow_id, run_id)
        head = ""
        for expected, (seq, stored, text) in enumerate(rows):
            try:
                head = _next_hash(head, self._keys.unseal_text(str(text)))
            except NotDecrypted:
                return expected
            if (seq, stored) != (expected, head):
                return expected
        found = self._run(workflow_id, run_id)
        if found is None:
            return 0 if rows else None
        try:
            result = self.result(workflow_id, found[0]) or {}
        except KeyMissing:
            raise
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

        Raises `StoreUnavailable`, which is worth a retry.
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
        """The records of a run up to the one that is wanted, in order. Raises `StoreError`."""
        read = self.archive.records_up_to
        return LogRead(records=await asyncio.to_thread(read, wanted.head, wanted.workflow_id, wanted.run_id))


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


def _differs(file: sqlite3.Connection, run: Run, rows: Sequence[tuple[Any, ...]]) -> bool:
    """The archive holds other records in their place."""
    for row in rows:
        kept = file.execute(f"SELECT hash FROM records WHERE {ONE} AND seq=?", row[:3]).fetchone()
        if kept not in (None, (row[3],)):
            return True
    return False


def _was_replaced(file: sqlite3.Connection, run: Run, head: str) -> bool:
    """A chain that was replaced has a record with this hash."""
    query = "SELECT 1 FROM records WHERE workflow_id=? AND run_id GLOB ? AND hash=?"
    return file.execute(query, (run[0], f"{run[1]}~*", head)).fetchone() is not None


def _replace(file: sqlite3.Connection, run: Run, after: str) -> None:
    """Put a run's chain aside, and begin another with its records up to the one with the hash `after`."""
    (count,) = file.execute(
        "SELECT count(*) FROM runs WHERE workflow_id=? AND run_id GLOB ?", (run[0], f"{run[1]}~*")
    ).fetchone()
    for table in ("records", "runs"):
        file.execute(f"UPDATE {table} SET run_id=? WHERE {ONE}", (f"{run[1]}~{count + 1}", *run))
    log.warning("archive.replaced", workflow_id=run[0], run_id=run[1], kept_as=f"{run[1]}~{count + 1}")
    values = (*run, run[0], run[1], f"{run[1]}~*", after)
    columns = "SELECT ?, ?, one.seq, one.hash, one.json"
    file.execute(
        f"INSERT INTO records {UP_TO.replace('SELECT one.seq, one.hash, one.json', columns)}", values
    )
