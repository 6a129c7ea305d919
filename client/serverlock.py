"""Who may start and stop the server of a data directory: two file locks and one record.

`server.lock` is held while a command starts, stops or attaches. `server.users` is held shared by
every attached command for as long as it lives, so that a kill -9 releases it too; who can have it
alone is the last. `server.json` says which process serves, and on which ports.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from client.errors import ServerError

__all__ = ["ServerLock", "ServerRecord"]


class ServerRecord(BaseModel):
    """The server of a data directory; `pid` is None after it was stopped in order."""

    model_config = ConfigDict(frozen=True)

    pid: int | None = Field(gt=0)
    started: str
    """Mark of the process's start (`client.process.started_at`)."""
    host: str
    """Where the process runs: a pid means nothing on another host, or in another container."""
    port: int = Field(ge=1, le=65535)
    ui_port: int = Field(ge=1, le=65535)
    stopping: bool = False
    """Somebody has asked it to stop: that it ends is no accident."""

    @property
    def address(self) -> str:
        """Where Temporal's clients connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def ui(self) -> str:
        """Address of Temporal's Web UI."""
        return f"http://127.0.0.1:{self.ui_port}"


class ServerLock:
    """The locks and the record of one data directory, which must exist."""

    def __init__(self, data_dir: Path) -> None:
        self.record_path = data_dir / "server.json"
        self._guard_path = data_dir / "server.lock"
        self._users_path = data_dir / "server.users"
        self._users: int | None = None

    @contextmanager
    def guarded(self, patience: float = 90) -> Iterator[None]:
        """Be the only one who starts, stops or attaches.

        Raises:
            ServerError: another command has held the lock for `patience` seconds.
        """
        guard = _opened(self._guard_path)
        try:
            until = time.monotonic() + patience
            while not _locked(guard, fcntl.LOCK_EX):
                if time.monotonic() > until:
                    raise ServerError(
                        "another command has been starting or stopping the server for "
                        f"{patience:.0f} s (it holds {self._guard_path}); end it and try again"
                    )
                time.sleep(0.05)
            yield
        finally:
            os.close(guard)

    def join(self) -> None:
        """Become a user of the server; call it guarded."""
        self._users = _opened(self._users_path)
        fcntl.flock(self._users, fcntl.LOCK_SH)

    def leave(self) -> bool:
        """Stop being a user; True when there is no other. Call it guarded."""
        if self._users is None:
            return False
        last = _locked(self._users, fcntl.LOCK_EX)
        os.close(self._users)
        self._users = None
        return last

    def in_place(self) -> bool:
        """What was joined is still what users of this directory join, not a deleted one's."""
        try:
            there = self._users_path.stat()
        except OSError:
            return False
        return self._users is not None and os.path.samestat(os.fstat(self._users), there)

    def in_use(self) -> bool:
        """Another open lock than this one is a user of the server; call it guarded."""
        probe = _opened(self._users_path)
        try:
            return not _locked(probe, fcntl.LOCK_EX)
        finally:
            os.close(probe)

    def read(self) -> ServerRecord | None:
        """The record; None when there is none, or what is there is none.

        Raises:
            ServerError: it cannot be read.
        """
        try:
            return ServerRecord.model_validate_json(self.record_path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        except OSError as error:
            raise _unusable(self.record_path, error) from error

    def write(self, record: ServerRecord) -> None:
        """Write the record in one piece.

        Raises:
            ServerError: it cannot be written.
        """
        beside = self.record_path.with_suffix(".new")
        try:
            with os.fdopen(_opened(beside), "w") as file:
                file.truncate()
                file.write(record.model_dump_json(indent=2) + "\n")
            beside.replace(self.record_path)
        except OSError as error:
            raise _unusable(self.record_path, error) from error


def _opened(path: Path) -> int:
    """A descriptor of a file of ours, made if it is missing; it follows no link out of the directory."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> ServerError:
    return ServerError(f"{path} cannot be used: {error.strerror or error}; remove it and try again")


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
