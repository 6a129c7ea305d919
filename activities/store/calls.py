"""What workers know of calls with outside effects, beside Temporal's history.

A history that is reset forgets the calls behind its new end, and a worker that is lost tells nobody what it
did. So a worker writes down each such call before it is performed, and what came of it afterwards. Who is
about to perform a call looks here first. Where there are keys, all but the calls' keys is encrypted.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from activities.contracts import AfterReset, JsonObject
from activities.store.blobs import StoreError, StoreUnavailable
from activities.store.encryption import Keys

__all__ = ["CallStore", "CallsForgotten", "KnownCall", "SqliteCalls"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS made(one INTEGER PRIMARY KEY CHECK (one = 1), at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS calls(
    key TEXT PRIMARY KEY, call TEXT NOT NULL, title TEXT NOT NULL, begun REAL NOT NULL, result TEXT);
CREATE INDEX IF NOT EXISTS same_calls ON calls(call);
"""
BUSY_SECONDS = 30
"""How long a writer waits for the writer of another process."""


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
    """What came of it; None: unknown."""


class CallStore(Protocol):
    """Calls by idempotency key. The methods block; each may raise `StoreUnavailable`."""

    def begin(self, key: str, call: str, title: str, reset: AfterReset | None = None) -> KnownCall | None:
        """Write down that a call begins, durably. Not None: it was begun before, and nothing is written.

        `reset` for a run that was reset: it may have made the same call in another place then, such as before
        a rollback that has come at another moment now. Raises `CallsForgotten` where the store is younger
        than that run and knows no such call."""

    def end(self, key: str, result: JsonObject) -> None:
        """Write down what came of a call that was begun; the first result counts."""


class SqliteCalls:
    """A `CallStore` in one SQLite file, for workers that share a data directory."""

    def __init__(self, path: Path, keys: Keys | None = None) -> None:
        self.path, self._keys = Path(path), keys or Keys()

    def begin(self, key: str, call: str, title: str, reset: AfterReset | None = None) -> KnownCall | None:
        """See `CallStore`."""
        with self._open() as file:
            query = "SELECT key, call, title, begun, result FROM calls WHERE "
            rows = file.execute(f"{query} key=?", (key,)).fetchall()
            if not rows and reset is not None:
                names = self._keys.names_of(call)
                marks = ",".join("?" * len(names))
                rows = file.execute(f"{query} call IN ({marks}) ORDER BY rowid", names).fetchall()
                rows = [row for row in rows if row[0].startswith(reset.run) and row[0] not in reset.keys]
            if rows:
                found, name, title, begun, result = rows[-1]
                call = call if name in self._keys.names_of(call) else name
                result = json.loads(self._keys.unseal_text(result)) if result else None
                return KnownCall(found, call, self._keys.unseal_text(title), begun, result)
            made = file.execute("SELECT at FROM made").fetchone()
            if reset is not None and (made is None or made[0] > reset.since):
                raise CallsForgotten(
                    f"{self.path} is younger than the run, so it does not say whether the call was made"
                )
            row = (key, self._keys.name_of(call), self._keys.seal_text(title), time.time())
            file.execute("INSERT INTO calls VALUES(?,?,?,?,NULL)", row)
        return None

    def end(self, key: str, result: JsonObject) -> None:
        """See `CallStore`."""
        with self._open() as file:
            text = self._keys.seal_text(json.dumps(result, ensure_ascii=False))
            file.execute("UPDATE calls SET result=coalesce(result, ?) WHERE key=?", (text, key))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """The file in a transaction; made, readable to its owner alone, where it is missing."""
        try:
            is_new = not self.path.exists()
            if is_new:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            with (
                closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)) as file,
                file,
            ):
                file.execute("PRAGMA synchronous=FULL")
                if is_new or not file.execute("SELECT 1 FROM sqlite_master WHERE name='made'").fetchone():
                    file.executescript(SCHEMA)
                    file.execute("INSERT INTO made VALUES(1,?) ON CONFLICT DO NOTHING", (time.time(),))
                file.execute("BEGIN IMMEDIATE")
                yield file
        except (sqlite3.Error, OSError, ValueError) as error:
            raise StoreUnavailable(
                f"{self.path}: {error}. What was called is written there. Check that its folder exists, is "
                "writable and has space (RATCHET_DATA_DIR names it)."
            ) from error
