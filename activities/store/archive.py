"""The archive: logs of runs that outlive Temporal's retention, in chains that show tampering.

One database, one row per record and one per run; where there are keys, records, results and histories
are encrypted. A run is named by its workflow id and the run id of its first execution, so a chain goes on
through continue-as-new. Each record's hash is made from the hash before it and the record's plain JSON text,
as the kernel's log does it. The run's head is the last of these; the result of a run that is over is
one more link after it. Whoever reads a log or a result here has the whole chain checked; only a list, which
shows of each run whether it reached its goal, does not.

A run that was reset writes another end of its log. The chain that it replaces stays whole, under the run id
with `~1`, `~2`, ... at its end. What the run of before the reset writes later goes there, too.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from activities.contracts.chain import link_text, next_hash
from activities.store.blobs import StoreError
from activities.store.database import Database, Execute, SqliteFile
from activities.store.encryption import Keys, NotDecrypted

if TYPE_CHECKING:  # a list reads the archive in less time than these take to be imported
    from activities.contracts import ArchiveRequest, JsonObject

__all__ = ["SCHEMA", "Added", "Archive", "ArchivedEnd", "ChainBroken", "Run", "end_of"]

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
CREATE TABLE IF NOT EXISTS attestations(
    workflow_id TEXT NOT NULL, run_id TEXT NOT NULL, execution TEXT NOT NULL, json TEXT NOT NULL,
    {rowid} PRIMARY KEY (workflow_id, run_id, execution));
"""
ONE = "workflow_id=? AND run_id=?"
CHAIN = (
    f"SELECT -1, head, result FROM runs WHERE {ONE} UNION ALL"
    f" SELECT seq, hash, json FROM records WHERE {ONE} ORDER BY 1"
)
"""The row of a run and then those of its records, as they were at one moment."""
UP_TO = (
    "SELECT one.seq, one.hash, one.json FROM records AS one JOIN"
    " (SELECT workflow_id, run_id, seq FROM records"
    " WHERE workflow_id=? AND (run_id=? OR run_id LIKE ?) AND hash=? ORDER BY length(run_id) LIMIT 1) AS last"
    " ON one.workflow_id=last.workflow_id AND one.run_id=last.run_id AND one.seq<=last.seq"
)
"""The rows of a run's chain, be it a replaced one, up to the record with a hash."""
BEGINNINGS = """SELECT runs.run_id, records.json FROM runs LEFT JOIN records
    ON records.workflow_id=runs.workflow_id AND records.run_id=runs.run_id AND records.seq=0
    WHERE runs.workflow_id=? ORDER BY runs.rowid"""
ENDS = """SELECT runs.workflow_id, runs.run_id, runs.result, one.json, other.json FROM runs
    JOIN records AS one ON one.workflow_id=runs.workflow_id AND one.run_id=runs.run_id AND one.seq=0
    JOIN records AS other ON other.workflow_id=runs.workflow_id AND other.run_id=runs.run_id AND other.seq=
    (SELECT max(seq) FROM records WHERE workflow_id=runs.workflow_id AND run_id=runs.run_id)
    ORDER BY runs.rowid"""
Run = tuple[str, str]
"""Workflow id, and run id of the first execution."""


class ChainBroken(StoreError):
    """What the archive has of a run is not what was written."""

    def __init__(self, run: Run, at: int, whole: bool) -> None:
        """`at`: number of the first record that does not fit; `whole`: they all do, but the end does not."""
        self.run, self.at = run, at
        if whole:
            what = f"its end, behind record {at - 1}: the result was changed, or records are missing"
        else:
            what = f"record {at}, which was changed or is missing"
        name = run[0] + (f" (run id {run[1]})" if "~" in run[1] else "")
        super().__init__(
            f"the log of run {name} in the archive is not as it was written: its hash chain breaks at {what}"
            ". Restore the archive from a backup; `ratchet check --archive` checks every run"
        )


class _Chain(NamedTuple):
    """What the archive has of a run, as plain JSON texts; of a broken chain what comes before the break."""

    records: list[tuple[int, str]]
    """Number and text."""
    result: str | None
    broken: ChainBroken | None


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

    Without a run id, a method takes the run of the workflow id that began last. The calls block for the disk.
    Every one may raise `StoreUnavailable`; `records`, `last_record` and `result` raise `ChainBroken` where
    any part of the run's log or its result was changed.
    """

    def __init__(self, database: Path | Database, keys: Keys | None = None) -> None:
        self.database: Database = SqliteFile(database, SCHEMA) if isinstance(database, Path) else database
        self._keys = keys or Keys()

    def add(self, part: ArchiveRequest, execution: str = "", events: bytes = b"") -> Added:
        """Write the next part of a run's log, and with it Temporal's history of one execution, if any.

        Safe to repeat. Where the archive holds something else, both are kept: see the top of this file.
        """
        run, head = (part.workflow_id, part.run_id), part.after
        result = None if part.result is None else link_text(part.result)
        rows: list[tuple[Any, ...]] = []
        for record in part.records:
            text = link_text(record)
            head = next_hash(head, text)
            rows.append((*run, record["seq"], head, self._keys.seal_text(text)))
        with self.database.writing(_lock(run)) as execute:
            if events:
                self._add_history(execute, (*run, execution), events)
            held = _held_hashes(execute, run, rows)
            other = _first_other(held, part.after, rows)
            is_late = False
            if other is not None or not self._has_result(execute, run, result):
                if _was_replaced(execute, run, head):  # a late repeat
                    return Added(head)
                is_late = other is not None and self._time_of(execute, run, other) > part.records[-1].get(
                    "at", 0
                )
                if is_late:  # of a run that a reset has ended
                    run = _late_chain(execute, run, part.after)
                else:
                    _put_aside(execute, run)
                    _begin(execute, run, part.after)
                held = _held_hashes(execute, run, rows)
            for _, _, *row in rows:
                if row[0] not in held:
                    execute("INSERT INTO records VALUES(?,?,?,?,?)", (*run, *row))
            new = tuple(record for record in part.records if record["seq"] not in held)
            kept = execute(f"SELECT result FROM runs WHERE {ONE} AND result IS NOT NULL", run)
            last = self._keys.unseal_text(kept[0][0]) if kept else result
            # The newest record's hash: a late retry of an early part must not put the head back.
            newest = execute(f"SELECT hash FROM records WHERE {ONE} ORDER BY seq DESC LIMIT 1", run)
            execute(
                "INSERT INTO runs VALUES(?,?,?,?) ON CONFLICT (workflow_id, run_id) DO UPDATE "
                "SET head=excluded.head, result=coalesce(runs.result, excluded.result)",
                (
                    *run,
                    _head(newest[0][0] if newest else head, last),
                    result and self._keys.seal_text(result),
                ),
            )
        return Added(head) if is_late else Added(head, new, result is not None and not kept)

    def _time_of(self, execute: Execute, run: Run, seq: int) -> float:
        """When this record of a run was written; of one that is damaged: long ago."""
        row = execute(f"SELECT json FROM records WHERE {ONE} AND seq=?", (*run, seq))[0]
        with suppress(StoreError, NotDecrypted, ValueError, KeyError):
            return float(str(self._records([(seq, "", row[0])], run[0])[0]["at"]))
        return 0.0

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

    def add_attestation(self, run: Run, execution: str, signed: JsonObject) -> None:
        """Keep what a worker has signed of a run's log, and of the history of one execution; what is signed
        later of that execution takes its place."""
        with self.database.writing(_lock(run)) as execute:
            execute(
                "INSERT INTO attestations VALUES(?,?,?,?) ON CONFLICT (workflow_id, run_id, execution) "
                "DO UPDATE SET json=excluded.json",
                (*run, execution, self._keys.seal_text(link_text(signed))),
            )

    def attestations(self, workflow_id: str, run_id: str) -> dict[str, JsonObject]:
        """What workers have signed of a run, by execution, the first one first; of a run that was reset also
        of the executions before."""
        query = f"SELECT execution, json FROM attestations WHERE {ONE} ORDER BY rowid"
        rows = self.database.rows(query, (workflow_id, run_id))
        return {
            name: _object(self._keys.unseal_text(text), "an attestation", workflow_id) for name, text in rows
        }

    def texts(self, workflow_id: str, run_id: str) -> list[str]:
        """The result and all records of a run as JSON, whether or not the chain is whole."""
        rows = self.database.rows(CHAIN, (workflow_id, run_id) * 2)
        return [self._keys.unseal_text(str(text)) for _, _, text in rows if text]

    def histories(
        self, workflow_id: str, run_id: str | None = None, without: Collection[str] = ()
    ) -> dict[str, bytes]:
        """Temporal's histories of a run's executions, by execution, the first one first; `without` those of
        these executions. Of a run that was reset also those of before."""
        run = (workflow_id, self._run_id(workflow_id, run_id))
        names = self.database.rows(f"SELECT execution FROM histories WHERE {ONE} ORDER BY rowid", run)
        one = f"SELECT execution, events FROM histories WHERE {ONE} AND execution=?"
        wanted = [(*run, name) for (name,) in names if name not in without]
        rows = [row for which in wanted for row in self.database.rows(one, which)]
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
            for table in ("records", "histories", "attestations", "runs"):
                execute(
                    f"DELETE FROM {table} WHERE workflow_id=? AND (run_id=? OR run_id LIKE ?)",
                    (workflow_id, run_id, f"{run_id}~%"),
                )

    def records(
        self, workflow_id: str, run_id: str | None = None, *, since: int = 0
    ) -> tuple[JsonObject, ...]:
        """The records from a number on, in order, as JSON objects."""
        texts = self._whole_chain(workflow_id, run_id).records
        return tuple(_object(text, f"record {seq}", workflow_id) for seq, text in texts if seq >= since)

    def last_record(self, workflow_id: str) -> JsonObject | None:
        """The newest record, or None if the run has no records."""
        texts = self._whole_chain(workflow_id, None).records
        return _object(texts[-1][1], f"record {texts[-1][0]}", workflow_id) if texts else None

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
        text = self._whole_chain(workflow_id, run_id).result
        return None if text is None else _object(text, "the result", workflow_id)

    def unchecked_result(self, workflow_id: str) -> JsonObject | None:
        """The same for lists, of many runs at once: it reads one row, and nobody checks its log."""
        run = (workflow_id, self._run_id(workflow_id, None))
        rows = self.database.rows(f"SELECT result FROM runs WHERE {ONE} AND result IS NOT NULL", run)
        return _object(self._keys.unseal_text(str(rows[0][0])), "the result", workflow_id) if rows else None

    def has_end(self, workflow_id: str, head: str) -> bool:
        """It has the result of the log that ends in the record with this hash."""
        query = "SELECT 1 FROM records JOIN runs USING (workflow_id, run_id)"
        where = "WHERE workflow_id=? AND hash=? AND result IS NOT NULL"
        return bool(self.database.rows(f"{query} {where}", (workflow_id, head)))

    def ended(self) -> tuple[str, ...]:
        """Workflow ids of the runs that have a result."""
        rows = self.database.rows("SELECT DISTINCT workflow_id FROM runs WHERE result IS NOT NULL")
        return tuple(name for (name,) in rows)

    def broken(self) -> Iterator[ChainBroken]:
        """What is wrong with each run whose chain is broken."""
        ids = "SELECT workflow_id, run_id FROM"
        every = f"{ids} runs UNION {ids} records ORDER BY 1, 2"
        with self.database.reading() as execute:
            for run in execute(every):
                if broken := self._chain_of(run, execute(CHAIN, run * 2)).broken:
                    yield broken

    def broken_at(self, workflow_id: str, run_id: str | None = None) -> int | None:
        """The sequence number of the first record that is missing, changed or out of place.

        None: the chain is whole from its first record to its head. The number after the last record:
        the head or the result does not fit the records.
        """
        broken = self._chain(workflow_id, run_id).broken
        return None if broken is None else broken.at

    def _whole_chain(self, workflow_id: str, run_id: str | None) -> _Chain:
        chain = self._chain(workflow_id, run_id)
        if chain.broken:
            raise chain.broken
        return chain

    def _chain(self, workflow_id: str, run_id: str | None) -> _Chain:
        run = (workflow_id, self._run_id(workflow_id, run_id))
        return self._chain_of(run, self.database.rows(CHAIN, run * 2))

    def _chain_of(self, run: Run, rows: list[tuple[Any, ...]]) -> _Chain:
        end = rows.pop(0) if rows and rows[0][0] < 0 else None
        texts: list[tuple[int, str]] = []
        head, result = "", None
        with suppress(NotDecrypted):
            for expected, (seq, stored, sealed) in enumerate(rows):
                text = self._keys.unseal_text(str(sealed))
                head = next_hash(head, text)
                if (seq, stored) != (expected, head):
                    break
                texts.append((seq, text))
        whole = len(texts) == len(rows)
        if end is None:
            return _Chain([], None, ChainBroken(run, 0, whole=False) if rows else None)
        if whole:
            with suppress(NotDecrypted):
                result = self._keys.unseal_text(str(end[2])) if end[2] else None
                if _head(head, result) == end[1]:
                    return _Chain(texts, result, None)
        return _Chain(texts, None, ChainBroken(run, len(texts), whole and bool(texts)))

    def _run_id(self, workflow_id: str, run_id: str | None) -> str:
        """That run id, else the newest of the workflow id; empty: the archive knows none."""
        if run_id is not None:
            return run_id
        records = "SELECT run_id FROM records WHERE workflow_id=? LIMIT 1"  # the run's own row was deleted
        rows = self.database.rows(BEGINNINGS, (workflow_id,)) or self.database.rows(records, (workflow_id,))
        if len(rows) > 1:
            # One may have been archived late. Where a beginning cannot be read, the order of the rows holds.
            with suppress(StoreError, KeyError, ValueError):
                rows = sorted(rows, key=lambda row: (self._began(row[1], workflow_id), "~" not in row[0]))
        return str(rows[-1][0]) if rows else ""

    def _began(self, sealed: str, workflow_id: str) -> float:
        """The time of a run's first record."""
        return float(str(self._records([(0, "", sealed)], workflow_id)[0]["at"]))


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


def end_of(last: str, result: JsonObject | None) -> str:
    """The end of a chain whose last record has this hash."""
    return _head(last, None if result is None else link_text(result))


def _head(last: str, result: str | None) -> str:
    """The end of a chain whose last record has this hash."""
    return last if result is None else next_hash(last, result)


def _held_hashes(execute: Execute, run: Run, rows: Sequence[tuple[Any, ...]]) -> dict[int, str]:
    """The hash of each record that the archive holds in their place, and of the one before."""
    query = f"SELECT seq, hash FROM records WHERE {ONE} AND seq BETWEEN ? AND ?"
    return dict(execute(query, (*run, rows[0][2] - 1, rows[-1][2]))) if rows else {}


def _first_other(held: Mapping[int, str], after: str, rows: Sequence[tuple[Any, ...]]) -> int | None:
    """The first record that the archive holds in the place of another; the first row follows the record with
    the hash `after`."""
    wanted = {rows[0][2] - 1: after} | {seq: digest for _, _, seq, digest, _ in rows} if rows else {}
    return next((seq for seq, digest in wanted.items() if held.get(seq, digest) != digest), None)


def _was_replaced(execute: Execute, run: Run, head: str) -> bool:
    """A chain that was replaced has a record with this hash."""
    query = "SELECT 1 FROM records WHERE workflow_id=? AND run_id LIKE ? AND hash=?"
    return bool(execute(query, (run[0], f"{run[1]}~%", head)))


def _aside(execute: Execute, run: Run) -> Run:
    """A name for another chain of this run."""
    replaced = "SELECT count(*) FROM runs WHERE workflow_id=? AND run_id LIKE ?"
    return run[0], f"{run[1]}~{execute(replaced, (run[0], f'{run[1]}~%'))[0][0] + 1}"


def _late_chain(execute: Execute, run: Run, after: str) -> Run:
    """Where a part goes that comes late: after the parts before it, if they were late, too."""
    query = "SELECT run_id FROM runs WHERE workflow_id=? AND run_id LIKE ? AND head=?"
    if found := execute(query, (run[0], f"{run[1]}~%", after)):
        return run[0], str(found[0][0])
    aside = _aside(execute, run)
    _begin(execute, aside, after)
    return aside


def _put_aside(execute: Execute, run: Run) -> None:
    """Give a run's chain another name."""
    aside = _aside(execute, run)
    for table in ("records", "runs"):
        execute(f"UPDATE {table} SET run_id=? WHERE {ONE}", (aside[1], *run))
    import structlog  # it draws in a terminal library, and readers of the archive write no log

    log = structlog.get_logger("ratchet")
    log.warning("archive.replaced", workflow_id=run[0], run_id=run[1], kept_as=aside[1])


def _begin(execute: Execute, run: Run, after: str) -> None:
    """Begin a chain of a run with the records up to the one with the hash `after`."""
    first = run[1].partition("~")[0]
    columns = "SELECT ?, ?, one.seq, one.hash, one.json"
    insert = f"INSERT INTO records {UP_TO.replace('SELECT one.seq, one.hash, one.json', columns)}"
    execute(insert, (*run, run[0], first, f"{first}~%", after))
