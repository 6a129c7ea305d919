"""A SQLite file that may be deleted or damaged at any time: then a new one takes its place.

All processes that use it meet in the new one. It is readable to its owner alone, and does not survive a power
cut.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["DisposableFile"]


class DisposableFile:
    """The file `path` with the tables of `schema`. It belongs to one thread."""

    def __init__(self, path: Path, schema: str, busy_seconds: float) -> None:
        """`busy_seconds`: how long a statement blocks while another process writes."""
        self.path = Path(path)
        self._schema = schema
        self._busy_seconds = busy_seconds
        self._file: sqlite3.Connection | None = None
        self._last_reference: weakref.finalize[..., DisposableFile] | None = None
        self._inode = 0

    def opened(self) -> sqlite3.Connection:
        """The file that has this path now. Raises `sqlite3.Error` or `OSError` when it cannot be used."""
        with suppress(FileNotFoundError):
            if self._file is not None and self.path.stat().st_ino == self._inode:
                return self._file
        self.close()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._alone():
            if not self.path.exists():
                self._delete("-wal", "-shm")  # left by a file that was deleted
            made = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
            self._inode = os.fstat(made).st_ino
            os.close(made)
        self._file = sqlite3.connect(
            self.path,
            timeout=self._busy_seconds,
            isolation_level=None,
            check_same_thread=False,  # whoever drops the last reference closes it
        )
        # no __del__: in a circle of garbage the connection's own may run first
        self._last_reference = weakref.finalize(self, self._file.close)
        try:
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=OFF")
            self._file.executescript(self._schema)
        except sqlite3.Error:
            self.close()
            raise
        return self._file

    def failed(self, error: sqlite3.Error | OSError) -> bool:
        """Close the file after this error; if that says that it is damaged, delete it. True: it is gone."""
        self.close()
        code = int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
        if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return False
        try:
            with self._alone():
                if self.path.stat().st_ino == self._inode:  # else another process has replaced it
                    self._delete("", "-wal", "-shm")
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the file; `opened` opens it again."""
        if self._last_reference is not None:
            with suppress(sqlite3.Error):
                self._last_reference()
        self._file = self._last_reference = None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Meanwhile no other process creates or deletes the file."""
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _delete(self, *ends: str) -> None:
        for end in ends:
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)
