"""The cache of conversations and setups: one SQLite file that may be deleted at any time.

A workflow refers to a conversation by its digest and sends only new messages; the file holds the
messages that came before. Each row is one addition: new messages and the digest before them. What
the cache does not have, the workflow sends again as a whole. So nothing here raises because of the
file: a cache that cannot be used is an empty one, with a warning in the log.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import structlog
from pydantic import TypeAdapter

from activities.contracts import EMPTY_DIGEST, Conversation, Message, Setup

__all__ = ["ConversationCache"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS additions(
    digest TEXT PRIMARY KEY, base TEXT NOT NULL, messages TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS setups(digest TEXT PRIMARY KEY, setup TEXT NOT NULL) WITHOUT ROWID;
"""
BUSY_MILLISECONDS = 500
"""The event loop waits with it, so not for long: sending again costs less."""
REMEMBERED = 256
"""Conversations and setups in memory: about as many runs as one worker serves at a time."""
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

T = TypeVar("T")
Messages = TypeAdapter(tuple[Message, ...])

log = structlog.get_logger(__name__)


class ConversationCache:
    """Conversations and setups by digest, in the SQLite file `path`, for all workers of one host.

    The calls are small (below a millisecond when the conversation is in memory) and safe in threads.
    """

    def __init__(self, path: Path, remembered: int = REMEMBERED) -> None:
        self.path = Path(path)
        self._remembered = remembered
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._setups: OrderedDict[str, Setup] = OrderedDict()
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    def setup(self, digest: str) -> Setup | None:
        """The setup of a digest; None when the workflow has to send it."""
        with self._lock:
            known = self._setups.get(digest)
            if known is None:
                known = self._in_file(lambda file: _setup(file, digest))
                self._remember(self._setups, digest, known)
            return known

    def save_setup(self, setup: Setup) -> None:
        """Keep a setup under its digest."""
        digest, row = setup.digest, setup.model_dump_json()
        with self._lock:
            if digest not in self._setups:
                self._in_file(
                    lambda file: _insert(file, "INSERT OR REPLACE INTO setups VALUES(?,?)", digest, row)
                )
            self._remember(self._setups, digest, setup)

    def load(self, digest: str) -> Conversation | None:
        """The conversation of a digest; None when the workflow has to send it, also when it is damaged."""
        with self._lock:
            known = self._known(digest)
            if known is None:
                known = self._in_file(lambda file: self._rebuilt(file, digest))
                self._remember(self._conversations, digest, known)
            return known

    def save(self, conversation: Conversation, base: str) -> None:
        """Keep what follows the prefix with the digest `base`.

        Raises `ValueError` if the conversation has no such prefix.
        """
        if base not in conversation.digests:
            raise ValueError(f"{base} is not the digest of a prefix of {conversation!r}")
        with self._lock:
            if base != conversation.digest:
                self._in_file(lambda file: _save(file, conversation, base))
                self._conversations.pop(base, None)  # a run goes on from its newest conversation
            self._remember(self._conversations, conversation.digest, conversation)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            if self._connection is not None:
                with suppress(sqlite3.Error):
                    self._connection.close()
            self._connection = None

    def _known(self, digest: str) -> Conversation | None:
        return Conversation() if digest == EMPTY_DIGEST else self._conversations.get(digest)

    def _remember(self, memory: OrderedDict[str, T], digest: str, value: T | None) -> None:
        if value is None:
            return
        memory[digest] = value
        memory.move_to_end(digest)
        while len(memory) > self._remembered:
            memory.popitem(last=False)

    def _rebuilt(self, file: sqlite3.Connection, digest: str) -> Conversation | None:
        """The conversation from its additions, the newest first, down to one that is in memory."""
        additions: dict[str, tuple[Message, ...]] = {}
        at, known = digest, self._known(digest)
        while known is None:
            row = file.execute("SELECT base, messages FROM additions WHERE digest=?", (at,)).fetchone()
            if row is None or at in additions:  # a damaged file may lead in a circle
                return None
            try:
                additions[at] = Messages.validate_json(row[1])
            except ValueError:
                return None
            at = str(row[0])
            known = self._known(at)
        for expected, messages in reversed(additions.items()):
            known = known.add(*messages)
            if known.digest != expected:
                return None
        return known

    def _in_file(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        try:
            return work(self._opened())
        except (sqlite3.Error, OSError) as error:
            log.warning("cache.unusable", file=str(self.path), error=str(error))
            self.close()
            if int(getattr(error, "sqlite_errorcode", 0)) & 0xFF in DAMAGED:
                with suppress(OSError):
                    self._delete("", "-wal", "-shm")
            return None

    def _opened(self) -> sqlite3.Connection:
        with suppress(FileNotFoundError):
            if self._connection is not None and self.path.stat().st_ino == self._inode:
                return self._connection
        self.close()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.path.exists():
            self._delete("-wal", "-shm")  # left by a file that was deleted
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # readable to its owner alone
        connection = sqlite3.connect(self.path, isolation_level="IMMEDIATE", check_same_thread=False)
        try:
            connection.execute(f"PRAGMA busy_timeout={BUSY_MILLISECONDS}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=OFF")
            connection.executescript(SCHEMA)
        except BaseException:
            connection.close()
            raise
        self._connection, self._inode = connection, self.path.stat().st_ino
        return connection

    def _delete(self, *ends: str) -> None:
        for end in ends:
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)


def _setup(file: sqlite3.Connection, digest: str) -> Setup | None:
    row = file.execute("SELECT setup FROM setups WHERE digest=?", (digest,)).fetchone()
    try:
        setup = None if row is None else Setup.model_validate_json(row[0])
    except ValueError:
        return None
    return setup if setup is not None and setup.digest == digest else None


def _save(file: sqlite3.Connection, conversation: Conversation, base: str) -> None:
    # An addition to something that is not in the file could never be read.
    found = file.execute("SELECT 1 FROM additions WHERE digest=?", (base,)).fetchone()
    base = base if found else EMPTY_DIGEST
    new = conversation.messages[conversation.digests.index(base) :]
    row = (conversation.digest, base, Messages.dump_json(new).decode())
    # Replace: an old row of this digest may follow one that was lost.
    _insert(file, "INSERT OR REPLACE INTO additions VALUES(?,?,?)", *row)


def _insert(file: sqlite3.Connection, sql: str, *row: str) -> None:
    with file:
        file.execute(sql, row)
