"""What workers know of calls with outside effects, beside Temporal's history.

A history that is reset forgets the calls after its new end, and a worker that is lost tells nobody what it
did. So a worker writes down each such call before it is performed, and what came of it afterwards. Who is
about to perform a call looks here first. Where there are keys, all but the calls' keys is encrypted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from activities.contracts import AfterReset, JsonObject
from activities.store.blobs import StoreError
from activities.store.database import Database, SqliteFile
from activities.store.encryption import Keys

__all__ = ["SCHEMA", "CallsForgotten", "CallsMade", "KnownCall"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS made(one INTEGER PRIMARY KEY CHECK (one = 1), at DOUBLE PRECISION NOT NULL);
CREATE TABLE IF NOT EXISTS calls(
    key TEXT PRIMARY KEY, call TEXT NOT NULL, title TEXT NOT NULL, begun DOUBLE PRECISION NOT NULL,
    result TEXT);
CREATE INDEX IF NOT EXISTS same_calls ON calls(call);
"""
MADE = "INSERT INTO made VALUES(1,?) ON CONFLICT (one) DO NOTHING"


class CallsForgotten(StoreError):
    """The store is younger than the run that asks: it cannot know whether a call was made."""


@dataclass(frozen=True, slots=True)
class KnownCall:
    """A call that was begun."""

    key: str
    call: str
    """Digest of tool and arguments."""
    title: str
    """The call in words."""
    begun: float
    """Seconds since 1970."""
    result: JsonObject | None
    """Its result; None: unknown."""


class CallsMade:
    """Calls by idempotency key, in a database or in the file `path`, for the workers that share it.

    The methods block; each may raise `StoreUnavailable`, and `StoreError` for what is damaged.
    """

    def __init__(self, database: Path | Database, keys: Keys | None = None) -> None:
        self.database: Database = SqliteFile(database, SCHEMA) if isinstance(database, Path) else database
        self._keys = keys or Keys()

    def make(self) -> None:
        """Make the store where it is missing, so that it is older than the first run."""
        with self.database.writing("made") as execute:
            execute(MADE, (time.time(),))

    def begin(
        self,
        key: str,
        call: str,
        title: str,
        reset: AfterReset | None = None,
        *,
        at: float | None = None,
        void: tuple[float, ...] = (),
    ) -> KnownCall | None:
        """Write down that a call begins, durably. Not None: it was begun before, and nothing is written.

        `at` is the time of the note, in seconds since 1970; by default it is now. Notes of this key with a
        time in `void` count for nothing: whoever wrote them could not know it, and did not begin the call.

        `reset` for a run that was reset: it may have made the same call in another place then, such as before
        a rollback that has come at another moment now. Raises `CallsForgotten` where the store is younger
        than that run and knows no such call."""
        with self.database.writing(f"call {call}") as execute:
            at = time.time() if at is None else at
            execute(MADE, (at,))
            query = "SELECT key, call, title, begun, result FROM calls WHERE "
            rows = execute(f"{query} key=?", (key,))
            if rows and rows[0][3] in void:
                execute("DELETE FROM calls WHERE key=?", (key,))
                rows = []
            if not rows and reset is not None:
                names = self._keys.names_of(call)
                marks = ",".join("?" * len(names))
                rows = execute(f"{query} call IN ({marks}) ORDER BY begun", tuple(names))
                rows = [row for row in rows if row[0].startswith(reset.run) and row[0] not in reset.keys]
            if rows:
                known = self._known_call(*rows[-1])
                return replace(known, call=call) if known.call in self._keys.names_of(call) else known
            if reset is not None and execute("SELECT at FROM made")[0][0] > reset.since:
                raise CallsForgotten(
                    f"{self.database.where} is younger than the run, so it does not say whether the call was "
                    "made"
                )
            row = (key, self._keys.name_of(call), self._keys.seal_text(title), at)
            execute("INSERT INTO calls VALUES(?,?,?,?,NULL)", row)
        return None

    def end(self, key: str, result: JsonObject) -> None:
        """Write down what came of a call that was begun; the first result counts."""
        text = self._keys.seal_text(json.dumps(result, ensure_ascii=False))
        with self.database.writing(f"call {key}") as execute:
            execute("UPDATE calls SET result=coalesce(result, ?) WHERE key=?", (text, key))

    def is_older(self, time: float) -> bool:
        """It was there at that time (seconds since 1970), so what it does not know then did not happen."""
        return bool(self.database.rows("SELECT 1 FROM made WHERE at <= ?", (time,)))

    def of_run(self, run: str) -> list[KnownCall]:
        """Calls of a workflow id and of its inner runs, in the order in which they began; `call` is the name
        under which the digest is kept."""
        query = "SELECT key, call, title, begun, result FROM calls WHERE substr(key,1,?)=? ORDER BY begun"
        start = f"{run}/"
        return [self._known_call(*row) for row in self.database.rows(query, (len(start), start))]

    def _known_call(self, key: str, name: str, title: str, begun: float, result: str | None) -> KnownCall:
        title = self._keys.unseal_text(title)
        return KnownCall(key, name, title, begun, self._read(key, result) if result else None)

    def _read(self, key: str, result: str) -> JsonObject:
        try:
            value: JsonObject = json.loads(self._keys.unseal_text(result))
        except ValueError as error:
            raise StoreError(
                f"{self.database.where}: what is written of the call {key} is damaged ({error}). Restore it "
                "from a backup."
            ) from error
        return value

    def all(self) -> Iterator[tuple[str, float, str]]:
        """Key, time of the beginning and result as JSON (empty: unknown) of every call."""
        for key, begun, result in self.database.rows("SELECT key, begun, result FROM calls"):
            yield key, begun, self._keys.unseal_text(result) if result else ""

    def forget(self, key: str) -> None:
        """Forget a call."""
        with self.database.writing(f"call {key}") as execute:
            execute("DELETE FROM calls WHERE key=?", (key,))
