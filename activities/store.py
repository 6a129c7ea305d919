"""Content-addressed blobs, and the cache of conversations that is kept in the same kind of file.

Two roles, one interface, two files. `blobs.db` is durable: Temporal's history refers to what is in
it, so a blob is on the disk before its digest is given away. `cache.db` holds transcripts and
setups that a workflow can send again: it may be deleted at any time.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from pathlib import Path

from pydantic import TypeAdapter

from activities.contracts import Setup
from activities.sqlite import Database, StoreError, StoreUnavailable
from activities.transcript import EMPTY_DIGEST, Message, Transcript

__all__ = [
    "BlobCorrupt",
    "BlobMissing",
    "BlobStore",
    "NotCached",
    "StoreError",
    "StoreUnavailable",
    "TranscriptCache",
]

SCHEMA = """
CREATE TABLE IF NOT EXISTS blobs(digest TEXT PRIMARY KEY, content BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS nodes(
    digest TEXT PRIMARY KEY, parent TEXT NOT NULL, messages TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS setups(digest TEXT PRIMARY KEY, setup TEXT NOT NULL);
"""

MESSAGES = TypeAdapter(tuple[Message, ...])


class BlobMissing(StoreError):
    """The store has no blob of this digest."""


class BlobCorrupt(StoreError):
    """The store has other bytes under this digest."""


class NotCached(StoreError):
    """The cache has no such transcript or setup; the workflow sends it whole."""


class BlobStore:
    """Bytes by their SHA-256, in the SQLite file `path`, for several processes of one host.

    `durable` says which role it plays (see the module). Every method may raise `StoreUnavailable`.
    """

    def __init__(self, path: Path, durable: bool) -> None:
        self.database = Database(path, SCHEMA, durable)

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return self.database.path

    async def put(self, content: bytes) -> str:
        """Keep the bytes; gives their SHA-256 in hexadecimal. A repeat costs one look-up."""
        return await asyncio.to_thread(self._put, content)

    async def get(self, digest: str) -> bytes:
        """The bytes of a digest. Raises `BlobMissing` or `BlobCorrupt`."""
        return await asyncio.to_thread(self._get, digest)

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        self.database.close()

    def _put(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        known = self.database.rows("SELECT length(content) FROM blobs WHERE digest=?", (digest,))
        if known != [(len(content),)]:
            with self.database.transaction() as connection:
                connection.execute("INSERT OR REPLACE INTO blobs VALUES(?,?)", (digest, content))
        return digest

    def _get(self, digest: str) -> bytes:
        rows = self.database.rows("SELECT content FROM blobs WHERE digest=?", (digest,))
        if not rows:
            raise BlobMissing(
                f"{self.path} has no blob {digest}; if another host's worker wrote it, share that "
                "file; if it was lost, restore the file from a backup: runs that need it wait"
            )
        content = rows[0][0]
        if not isinstance(content, bytes) or hashlib.sha256(content).hexdigest() != digest:
            self._set_aside(digest)
            raise BlobCorrupt(
                f"{self.path}: the bytes of blob {digest} have changed; they are set aside as "
                f"corrupt:{digest}; restore the file from a backup: runs that need it wait"
            )
        return content

    def _set_aside(self, digest: str) -> None:
        """Free the digest, so that whoever still has the right bytes can put them again."""
        with self.database.transaction() as connection:
            connection.execute(
                "UPDATE OR REPLACE blobs SET digest='corrupt:' || digest WHERE digest=?", (digest,)
            )


class TranscriptCache:
    """Transcripts as a tree of additions, and setups, by their digests.

    `keep` transcripts stay in memory, so that a long run does not walk its whole past each time.
    """

    def __init__(self, store: BlobStore, keep: int = 64) -> None:
        self._database = store.database
        self._keep = keep
        self._recent: OrderedDict[str, Transcript] = OrderedDict()
        self._lock = threading.Lock()

    async def load(self, digest: str) -> Transcript:
        """The transcript of a digest. Raises `NotCached`, also when a part of it is damaged."""
        return await asyncio.to_thread(self._load, digest)

    async def save(self, parent: str, transcript: Transcript) -> None:
        """Keep what comes behind the prefix `parent`. Raises `ValueError` if it is no prefix."""
        await asyncio.to_thread(self._save, parent, transcript)

    async def setup(self, digest: str) -> Setup:
        """The setup of a digest. Raises `NotCached`."""
        return await asyncio.to_thread(self._setup, digest)

    async def save_setup(self, setup: Setup) -> None:
        """Keep a setup under its digest."""
        await asyncio.to_thread(self._save_setup, setup)

    def _load(self, digest: str) -> Transcript:
        additions: dict[str, tuple[Message, ...]] = {}
        at, known = digest, self._remembered(digest)
        while known is None:
            if at in additions:  # a damaged file may lead in a circle
                raise self._missing(digest)
            parent, additions[at] = self._node(at, digest)
            at, known = parent, self._remembered(parent)
        for expected, messages in reversed(additions.items()):
            known = known.add(*messages)
            if known.digest != expected:
                raise self._missing(digest)
        self._remember(known)
        return known

    def _node(self, at: str, wanted: str) -> tuple[str, tuple[Message, ...]]:
        rows = self._database.rows("SELECT parent, messages FROM nodes WHERE digest=?", (at,))
        try:
            ((parent, text),) = rows
            messages = MESSAGES.validate_json(text)  # type: ignore[arg-type]  # checked by pydantic
        except ValueError as error:  # no row, or no messages
            raise self._missing(wanted) from error
        return str(parent), messages

    def _save(self, parent: str, transcript: Transcript) -> None:
        if parent not in transcript.digests:
            raise ValueError(f"{parent} is no prefix of {transcript!r}")
        if parent != transcript.digest:
            with self._database.transaction() as connection:
                found = connection.execute("SELECT 1 FROM nodes WHERE digest=?", (parent,))
                if found.fetchone() is None:  # never hang a node on nothing
                    parent = EMPTY_DIGEST
                added = transcript.messages[transcript.digests.index(parent) :]
                # Replace: an old node of this digest may hang on a part that was lost.
                connection.execute(
                    "INSERT OR REPLACE INTO nodes VALUES(?,?,?)",
                    (transcript.digest, parent, MESSAGES.dump_json(added).decode()),
                )
        self._remember(transcript)

    def _setup(self, digest: str) -> Setup:
        rows = self._database.rows("SELECT setup FROM setups WHERE digest=?", (digest,))
        try:
            ((text,),) = rows
            setup = Setup.model_validate_json(text)  # type: ignore[arg-type]  # checked by pydantic
        except ValueError as error:  # no row, or no setup
            raise self._missing(digest) from error
        if setup.digest != digest:
            raise self._missing(digest)
        return setup

    def _save_setup(self, setup: Setup) -> None:
        text = setup.model_dump_json()
        if self._database.rows("SELECT setup FROM setups WHERE digest=?", (setup.digest,)) == [(text,)]:
            return
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO setups VALUES(?,?)", (setup.digest, text))

    def _remembered(self, digest: str) -> Transcript | None:
        if digest == EMPTY_DIGEST:
            return Transcript()
        with self._lock:
            known = self._recent.get(digest)
            if known is not None:
                self._recent.move_to_end(digest)
            return known

    def _remember(self, transcript: Transcript) -> None:
        with self._lock:
            self._recent[transcript.digest] = transcript
            self._recent.move_to_end(transcript.digest)
            while len(self._recent) > self._keep:
                self._recent.popitem(last=False)

    def _missing(self, digest: str) -> NotCached:
        return NotCached(f"{self._database.path} has no transcript or setup {digest}; send it whole")
