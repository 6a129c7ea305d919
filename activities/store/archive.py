"""The archive: logs of runs that outlive Temporal's retention, in chains that show tampering.

One database, one row per record and one per run; where there are keys, records, results and histories
are encrypted. A run is named by its workflow id and the run id of its first execution, so a chain goes on
through continue-as-new. Each record's hash is made from the hash before it and the record's plain JSON text,
exactly as the kernel's log does it.

A run that was reset writes another end of its log. The chain that it replaces stays whole, under the run id
with `~1`, `~2`, ... at its end.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import to_json

from activities.contracts import ArchiveRequest, JsonObject
from activities.store.blobs import StoreError
from activities.store.database import Database, Execute, SqliteFile
from activities.store.encryption import KeyMissing, Keys, NotDecrypted

__all__ = ["SCHEMA", "Added", "Archive", "ArchivedEnd", "Run"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs(
    workflow_id TEXT NOT NULL, run_id TEXT NOT NULL, head TEXT NOT NULL, result TEXT,
    {rowid} PRIMARY KEY (workflow_id, run_id));
CREATE TABLE IF NOT EXISTS records(
    workflow_id TEXT NOT NULL, run_id TEXT NOT NULL, seq INTEGER NOT NULL,
    hash TEXT NOT NULL, json TEXT NOT NULL, PRIMARY KEY (workflow_id, run_id, seq));
CREATE TABLE IF NOT EXISTS histories(
    workflow_id TEXT NOT NULL, run_id TEXT NOT NULL, execution TEXT NOT NULL, events {bytes} NOT NULL,
    {rowid} PRIMARY KEY (workflow_id, run_id, execution));
"""
ONE = "workflow_id=? AND run_id=?"
UP_TO = (
    "SELECT one.seq, one.hash, one.json FROM records AS one JOIN"
    " (SELECT workflow_id, run_id, seq FROM records"
    " WHERE workflow_id=? AND (run_id=? OR run_id LIKE ?) AND hash=? ORDER BY length(run_id) LIMIT 1) AS last"
    " ON one.workflow_id=last.workflow_id AND one.run_id=last.run_id AND one.seq<=last.seq"
)
"""The rows of a run's chain, be it a replaced one, up to the record with a hash."""
ENDS = """SELECT runs.workflow_id, runs.run_id, runs.result, one.json, other.json FROM runs
    JOIN records AS one ON one.workflow_id=runs.workflow_id AND one.run_id=runs.run_id AND one.seq=0
    JOIN records AS other ON other.workflow_id=runs.workflow_id AND other.run_id=runs.run_id AND other.seq=
    (SELECT max(seq) FROM records WHERE workflow_id=runs.workflow_id AND run_id=runs.run_id)
    ORDER BY runs.rowid"""
Run = tuple[str, str]
"""Workflow id, and run id of the first execution."""


class Added(NamedTuple):
    """What was written of a part of a log."""

    head: str
    """Hash of the part's last record."""
    records: tuple[JsonObject, ...] = ()
    """Those that the archive did not have."""
    ended: bool = False
    """It did not have the result either."""


class ArchivedEnd(NamedTuple):
    """One run in the archive, or a chain of it that was replaced, and how far it came."""

    workflow_id: str
    run_id: str
    result: JsonObject | None
    first: JsonObject
    """Record of the log."""
    last: JsonObject


class Archive:
    """The archive in a database, or in the file `path`. A file that does not exist is an empty archive.

    Without a run id, a method takes the run of the workflow id that was archived last. The calls
    block for the disk. Every one may raise `StoreUnavailable`; one that meets a damaged row raises a
    `StoreError` that names it.
    """

    def __init__(self, database: Path | Database, keys: Keys | None = None) -> None:
        self.database: Database = SqliteFile(database, SCHEMA) if isinstance(database, Path) else database
        self._keys = keys or Keys()

    def add(self, part: ArchiveRequest, execution: str = "", events: bytes = b"") -> Added:
        """Write the next part of a run's log, and with it Temporal's history of one execution, if any.

        Safe to repeat. Where the archive holds something else, both are kept: see the top of this file.
        """
        run, head = (part.workflow_id, part.run_id), part.after
        result = None if part.result is None else _canonical(part.result)
        rows: list[tuple[Any, ...]] = []
        for record in part.records:
            text = _canonical(record)
            head = _next_hash(head, text)
            rows.append((*run, record["seq"], head, self._keys.seal_text(text)))
        with self.database.writing(_lock(run)) as execute:
            if events:
                self._add_history(execute, (*run, execution), events)
            held = _held(execute, run, rows)
            differs = any(held.get(row[2], row[3]) != row[3] for row in rows)
            if differs or not self._has_result(execute, run, result):
                if _was_replaced(execute, run, head):  # a late repeat
                    return Added(head)
                _replace(execute, run, part.after)
                held = _held(execute, run, rows)
            for row in rows:
                if row[2] not in held:
                    execute("INSERT INTO records VALUES(?,?,?,?,?)", row)
            new = tuple(record for record in part.records if record["seq"] not in held)
            known = execute(f"SELECT 1 FROM runs WHERE {ONE} AND result IS NOT NULL", run)
            # The newest record's hash: a late retry of an early part must not put the head back.
            newest = execute(f"SELECT hash FROM records WHERE {ONE} ORDER BY seq DESC LIMIT 1", run)
            execute(
                "INSERT INTO runs VALUES(?,?,?,?) ON CONFLICT (workflow_id, run_id) DO UPDATE "
                "SET head=excluded.head, result=coalesce(runs.result, excluded.result)",
                (*run, newest[0][0] if newest else head, result and self._keys.seal_text(result)),
            )
        return Added(head, new, result is not None and not known)

    def _has_result(self, execute: Execute, run: Run, result: str | None) -> bool:
        """The archive holds this result, or none."""
        kept = execute(f"SELECT result FROM runs WHERE {ONE} AND result IS NOT NULL", run)
        return result is None or not kept or self._keys.unseal_text(kept[0][0]) == result

    def add_history(self, workflow_id: str, run_id: str, execution: str, events: bytes) -> None:
        """Keep Temporal's history of one execution of a run by itself; a longer one takes its place."""
        with self.database.writing(_lock((workflow_id, run_id))) as execute:
            self._add_history(execute, (workflow_id, run_id, execution), events)

    def _add_history(self, execute: Execute, which: tuple[str, str, str], events: bytes) -> None:
        """A shorter history is of a late attempt, as it only grows; one that cannot be read is replaced."""
        kept = execute(f"SELECT events FROM histories WHERE {ONE} AND execution=?", which)
        with suppress(StoreError, zlib.error):
            if kept and len(zlib.decompress(self._keys.unseal(kept[0][0]))) >= len(events):
                return
        execute(
            "INSERT INTO histories VALUES(?,?,?,?) ON CONFLICT (workflow_id, run_id, execution) "
            "DO UPDATE SET events=excluded.events",
            (*which, self._keys.seal(zlib.compress(events))),
        )

    def histories(self, workflow_id: str, run_id: str | None = None) -> dict[str, bytes]:
        """Temporal's histories of a run's executions, by execution, the first one first. Of a run that was
        reset also those of before."""
        found = self._run(workflow_id, run_id)
        rows = self.database.rows(
            f"SELECT execution, events FROM histories WHERE {ONE} ORDER BY rowid",
            (workflow_id, found[0] if found else run_id),
        )
        try:
            return {execution: zlib.decompress(self._keys.unseal(events)) for execution, events in rows}
        except zlib.error as error:
            raise StoreError(
                f"a history of run {workflow_id} in the archive is damaged. Restore the archive from a "
                "backup."
            ) from error

    def runs(self) -> tuple[Run, ...]:
        """All runs, in the order in which they were first archived."""
        return tuple(self.database.rows("SELECT workflow_id, run_id FROM runs ORDER BY rowid"))

    def ends(self) -> Iterator[ArchivedEnd]:
        """All runs, in the order in which they were first archived."""
        for *run, result, first, last in self.database.rows(ENDS):
            texts = ((first, "the first record"), (last, "the last record"))
            records = (_object(self._keys.unseal_text(str(text)), what, run[0]) for text, what in texts)
            found = result and _object(self._keys.unseal_text(str(result)), "the result", run[0])
            yield ArchivedEnd(run[0], run[1], found or None, *records)

    def ended_before(self, time: float) -> tuple[Run, ...]:
        """Runs with a result whose last record is older (seconds since 1970)."""
        ended = self.database.rows(
            "SELECT workflow_id, run_id FROM runs WHERE result IS NOT NULL AND run_id NOT LIKE ?", ("%~%",)
        )
        newest = f"SELECT seq, hash, json FROM records WHERE {ONE} ORDER BY seq DESC LIMIT 1"
        last = {run: self.database.rows(newest, run) for run in map(tuple, ended)}
        return tuple(
            run
            for run, rows in last.items()
            if rows and float(str(self._records(rows, run[0])[0]["at"])) < time
        )

    def delete(self, workflow_id: str, run_id: str) -> None:
        """Forget a run, and the chains of it that were replaced."""
        with self.database.writing(_lock((workflow_id, run_id))) as execute:
            for table in ("records", "histories", "runs"):
                execute(
                    f"DELETE FROM {table} WHERE workflow_id=? AND (run_id=? OR run_id LIKE ?)",
                    (workflow_id, run_id, f"{run_id}~%"),
                )

    def records(
        self, workflow_id: str, run_id: str | None = None, *, since: int = 0
    ) -> tuple[JsonObject, ...]:
        """The records from a number on, in order, as JSON objects."""
        rows = self._chain(workflow_id, run_id, "AND seq>=? ORDER BY seq", (since,))
        return self._records(rows, workflow_id)

    def last_record(self, workflow_id: str) -> JsonObject | None:
        """The newest record, or None if the run has no records."""
        rows = self._chain(workflow_id, None, "ORDER BY seq DESC LIMIT 1")
        return next(iter(self._records(rows, workflow_id)), None)

    def records_up_to(self, head: str, workflow_id: str, run_id: str) -> tuple[JsonObject, ...]:
        """The records of a run up to the one with this hash, also of a chain that was replaced; empty where
        there is none."""
        rows = self.database.rows(f"{UP_TO} ORDER BY one.seq", (workflow_id, run_id, f"{run_id}~%", head))
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
        rows = self.database.rows(
            "SELECT run_id, head, result FROM runs "
            "WHERE workflow_id=? AND run_id=coalesce(?,run_id) ORDER BY rowid DESC LIMIT 1",
            (workflow_id, run_id),
        )
        return rows[0] if rows else None

    def _chain(
        self,
        workflow_id: str,
        run_id: str | None,
        which: str = "ORDER BY seq",
        values: tuple[object, ...] = (),
    ) -> list[tuple[Any, ...]]:
        """Number, hash and text of each record."""
        found = self._run(workflow_id, run_id)
        return self.database.rows(
            f"SELECT seq, hash, json FROM records WHERE {ONE} {which}",
            (workflow_id, found[0] if found else run_id, *values),
        )


def _lock(run: Run) -> str:
    return "archive " + " ".join(run)


def _object(text: object, what: str, workflow_id: str) -> JsonObject:
    """What a row holds. Raises `StoreError` for a damaged one."""
    try:
        value = json.loads(str(text))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise StoreError(
            f"{what} of run {workflow_id} in the archive is damaged: it is not a JSON object. "
            "Restore the archive from a backup."
        )
    return value


def _canonical(value: object) -> str:
    """The JSON text that pydantic makes of the record's model; the `json` module writes 1e-7 otherwise."""
    return to_json(value, inf_nan_mode="null").decode()


def _next_hash(previous: str, text: str) -> str:
    """The same as `next_hash` of the kernel's log."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def _held(execute: Execute, run: Run, rows: Sequence[tuple[Any, ...]]) -> dict[int, str]:
    """The hash of each record that the archive holds in their place."""
    query = f"SELECT seq, hash FROM records WHERE {ONE} AND seq BETWEEN ? AND ?"
    return dict(execute(query, (*run, rows[0][2], rows[-1][2]))) if rows else {}


def _was_replaced(execute: Execute, run: Run, head: str) -> bool:
    """A chain that was replaced has a record with this hash."""
    query = "SELECT 1 FROM records WHERE workflow_id=? AND run_id LIKE ? AND hash=?"
    return bool(execute(query, (run[0], f"{run[1]}~%", head)))


def _replace(execute: Execute, run: Run, after: str) -> None:
    """Put a run's chain aside, and begin another with its records up to the one with the hash `after`."""
    replaced = "SELECT count(*) FROM runs WHERE workflow_id=? AND run_id LIKE ?"
    aside = f"{run[1]}~{execute(replaced, (run[0], f'{run[1]}~%'))[0][0] + 1}"
    for table in ("records", "runs"):
        execute(f"UPDATE {table} SET run_id=? WHERE {ONE}", (aside, *run))
    import structlog  # it draws in a terminal library, and readers of the archive write no log

    log = structlog.get_logger(__name__)
    log.warning("archive.replaced", workflow_id=run[0], run_id=run[1], kept_as=aside)
    columns = "SELECT ?, ?, one.seq, one.hash, one.json"
    insert = f"INSERT INTO records {UP_TO.replace('SELECT one.seq, one.hash, one.json', columns)}"
    execute(insert, (*run, *run, f"{run[1]}~%", after))
