"""The cache of conversations, setups and tool outputs: one SQLite file that may be deleted at any time.

A workflow refers to a conversation by its digest and sends only new messages; the file holds the
messages that came before. Each row is one addition: new messages and the digest before them; where there
are keys, it is encrypted. What the cache does not have, the workflow sends again as a whole. So nothing here
raises because of the file: a cache that cannot be used is an empty one, with a warning in the log.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from pathlib import Path

import structlog
from pydantic import TypeAdapter

from activities.contracts import EMPTY_DIGEST, Conversation, Message, Setup, text_digest
from activities.store.blobs import StoreError
from activities.store.disposable import DisposableFile
from activities.store.encryption import Keys

__all__ = ["ConversationCache"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS additions(
    digest TEXT PRIMARY KEY, base TEXT NOT NULL, messages TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS setups(digest TEXT PRIMARY KEY, setup TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tool_outputs(
    digest TEXT PRIMARY KEY, output TEXT NOT NULL, at INTEGER NOT NULL DEFAULT (strftime('%s','now')))
    WITHOUT ROWID;
"""
BUSY_SECONDS = 0.5
"""The event loop waits with it, so not for long: sending again costs less."""
MAX_REMEMBERED_ENTRIES = 256
"""Conversations and setups in memory: about as many runs as one worker serves at a time."""

Messages = TypeAdapter(tuple[Message, ...])

log = structlog.get_logger("ratchet")


class ConversationCache:
    """Conversations and setups by digest, in the SQLite file `path`, for all workers of one host.

    It belongs to one thread: the calls are small, below a millisecond when memory has the answer.
    """

    def __init__(
        self, path: Path, remembered: int = MAX_REMEMBERED_ENTRIES, keys: Keys | None = None
    ) -> None:
        self._remembered, self._keys = remembered, keys or Keys()
        self._memory: OrderedDict[str, Conversation | Setup | str] = OrderedDict()
        self._file = DisposableFile(path, SCHEMA, BUSY_SECONDS)

    def setup(self, digest: str) -> Setup | None:
        """The setup of a digest; None when the workflow has to send it."""
        known = self._memory.get(digest)
        if not isinstance(known, Setup):
            row = self._row("SELECT setup FROM setups WHERE digest=?", digest)
            try:
                known = Setup.model_validate_json(row[0]) if row else None
            except ValueError:
                return None
            if known is None or known.digest != digest:
                return None
        self._remember(digest, known)
        return known

    def save_setup(self, setup: Setup) -> None:
        """Keep a setup under its digest."""
        digest = setup.digest
        if digest not in self._memory:
            self._insert("setups", digest, setup.model_dump_json())
        self._remember(digest, setup)

    def output(self, digest: str) -> str | None:
        """A tool's output; None when the workflow has to send it."""
        known = self._memory.get(digest)
        if isinstance(known, str):
            return known
        row = self._row("SELECT output FROM tool_outputs WHERE digest=?", digest)
        return row[0] if row and text_digest(row[0]) == digest else None

    def save_output(self, output: str) -> None:
        """Keep a tool's output for the question that brings it."""
        digest = text_digest(output)
        if digest not in self._memory:
            self._insert("tool_outputs(digest, output)", digest, output)
        self._remember(digest, output)

    def trim(self, seconds: float) -> None:
        """Forget the tools' outputs that are older: whoever still needs one sends it again."""
        self._execute("DELETE FROM tool_outputs WHERE at < strftime('%s','now') - ?", seconds)

    def load(self, digest: str) -> Conversation | None:
        """The conversation of a digest; None when the workflow has to send it, also when it is damaged.

        It is made from its additions, the newest first, down to one that is in memory.
        """
        additions: dict[str, tuple[Message, ...]] = {}
        at = digest
        while (known := self._conversation_in_memory(at)) is None:
            row = self._row("SELECT base, messages FROM additions WHERE digest=?", at)
            if not row or at in additions:  # a damaged file may lead in a circle
                return None
            try:
                additions[at] = Messages.validate_json(row[1])
            except ValueError:
                return None
            at = row[0]
        for expected, messages in reversed(additions.items()):
            known = known.add(*messages)
            if known.digest != expected:
                return None
        self._remember(digest, known)
        return known

    def save(self, conversation: Conversation, base: str) -> None:
        """Keep what follows the prefix with the digest `base`.

        Raises `ValueError` if the conversation has no such prefix.
        """
        if base not in conversation.digests:
            raise ValueError(f"{base} is not the digest of a prefix of {conversation!r}")
        if base != conversation.digest:
            # An addition to something that is not in the file could never be read.
            kept = self._execute("SELECT 1 FROM additions WHERE digest=?", self._keys.name_of(base))
            start = base if kept else EMPTY_DIGEST
            new = Messages.dump_json(conversation.messages[conversation.digests.index(start) :]).decode()
            # Replace: an old row of this digest may follow one that was lost.
            self._insert("additions", conversation.digest, start, new)
            self._memory.pop(base, None)  # a run goes on from its newest conversation
        self._remember(conversation.digest, conversation)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._file.close()

    def _conversation_in_memory(self, digest: str) -> Conversation | None:
        known = Conversation() if digest == EMPTY_DIGEST else self._memory.get(digest)
        return known if isinstance(known, Conversation) else None

    def _remember(self, digest: str, value: Conversation | Setup | str) -> None:
        self._memory[digest] = value
        self._memory.move_to_end(digest)
        while len(self._memory) > self._remembered:
            self._memory.popitem(last=False)

    def _insert(self, table: str, digest: str, *values: str) -> None:
        sealed = map(self._keys.seal_text, values)
        places = ",?" * len(values)
        self._execute(
            f"INSERT OR REPLACE INTO {table} VALUES(?{places})", self._keys.name_of(digest), *sealed
        )

    def _row(self, sql: str, digest: str) -> list[str]:
        """The row of a digest; empty where it is missing or cannot be read."""
        rows = self._execute(sql, self._keys.name_of(digest))
        try:
            return [self._keys.unseal_text(value) for value in rows[0]] if rows else []
        except StoreError:  # another key
            return []

    def _execute(self, sql: str, *values: str | float) -> list[tuple[str, ...]]:
        """The rows; none when the file cannot be used."""
        try:
            return self._file.opened().execute(sql, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            log.warning("cache.unusable", file=str(self._file.path), error=str(error))
            self._file.failed(error)
            return []
