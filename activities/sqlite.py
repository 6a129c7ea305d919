"""One SQLite file that threads and processes of one host share: opened late, guarded, told apart.

SQLite answers what is wrong in its own words; here each failure becomes a `StoreUnavailable` that
names the file and what to do. Calls block for a disk access: run them through `asyncio.to_thread`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["Database", "StoreError", "StoreUnavailable"]

BUSY_SECONDS = 30
"""How long a writer waits for the writer of another process."""


class StoreError(Exception):
    """Something could not be kept or found; the message says what to do."""


class StoreUnavailable(StoreError):
    """The file itself cannot be used: no space, no permission, damaged, taken away."""


class Database:
    """An SQLite file in WAL mode.

    `durable`: a commit is on the disk before it returns, and a file that vanishes is an error.
    Otherwise the file is a cache: when it is deleted or damaged, an empty one takes its place.
    """

    def __init__(self, path: Path, schema: str, durable: bool) -> None:
        self.path, self.durable = Path(path), durable
        self._schema = schema
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: committed at the end, rolled back by an exception."""
        with self._lock, self._explained():
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """All rows that a query finds."""
        with self._lock, self._explained():
            return self._open().execute(sql, tuple(values)).fetchall()

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            if self._connection is not None:
                with suppress(sqlite3.Error):
                    self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and not self._vanished():
            return self._connection
        if self._connection is not None:
            if self.durable:
                raise StoreUnavailable(
                    f"{self.path} was removed or replaced while it was in use; "
                    "put it back (from a backup, if need be) and restart the worker"
                )
            self.close()
        self._make_file()
        self._connection = self._connect()
        self._inode = self.path.stat().st_ino
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        """A connection in WAL mode; waits while another process makes the same new file."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            connection = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None
            )
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute(f"PRAGMA synchronous={'FULL' if self.durable else 'OFF'}")
                connection.executescript(self._schema)
            except BaseException as error:
                connection.close()
                # Switching to WAL is refused at once, without SQLite's own waiting.
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return connection

    def _make_file(self) -> None:
        """Make the file readable to its owner alone: it holds conversations."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log, index = (self.path.with_name(self.path.name + end) for end in ("-wal", "-shm"))
        if not self.path.exists() and log.exists():
            if self.durable:
                # SQLite would drop the log without a word, and with it what was written last.
                raise StoreUnavailable(
                    f"{self.path} is missing, but its log {log.name} is here; put {self.path.name} "
                    "back beside it, or remove the log too if nothing in it is needed"
                )
            log.unlink(missing_ok=True)
            index.unlink(missing_ok=True)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))

    def _vanished(self) -> bool:
        try:
            return self.path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if not self.durable and _damaged(error):
                self.close()
                for end in ("", "-wal", "-shm"):
                    self.path.with_name(self.path.name + end).unlink(missing_ok=True)
            raise StoreUnavailable(f"{self.path}: {error}; {_advice(error)}") from error
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StoreUnavailable(f"{self.path}: {reason}; {_advice(error)}") from error


def _damaged(error: sqlite3.DatabaseError) -> bool:
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _code(error: BaseException) -> int:
    """SQLite's primary result code; 0 when it gave none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _advice(error: Exception) -> str:
    if isinstance(error, OSError):
        return "check that the folder exists, is writable and has space (RATCHET_DATA_DIR names it)"
    known = {
        sqlite3.SQLITE_FULL: "free space on that disk, then try again",
        sqlite3.SQLITE_BUSY: "another process holds it for too long; find and stop that process",
        sqlite3.SQLITE_READONLY: "make the file and its folder writable",
        sqlite3.SQLITE_CANTOPEN: "check that the folder exists and is writable",
        sqlite3.SQLITE_CORRUPT: "restore it from a backup",
        sqlite3.SQLITE_NOTADB: "it is no SQLite file: move it away, or restore it from a backup",
        sqlite3.SQLITE_TOOBIG: "one value is limited to 1 GB; keep larger ones in files",
    }
    return known.get(_code(error), "check the disk, then try again")
