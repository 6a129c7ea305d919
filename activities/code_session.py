"""A session of the sandbox as text: what travels through a run's history between two steps.

A small one travels itself, as `inline:<base64 of zlib>`; a larger one is kept in the durable store
and travels as `digest:<sha256>`. The interpreter does not check what it is given back, so only
bytes that it wrote itself may reach it: the digest is checked on loading, and an inline session has
never left the history.

The store keeps every state, since a run may be replayed or go on from any of them: it grows with
each outside call by the packed size of the variables, at most `CodeLimits.state_bytes`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import zlib
from dataclasses import dataclass

from activities.store import BlobCorrupt, BlobMissing, BlobStore

__all__ = ["BadSession", "SavedSession", "load_session", "save_session"]

INLINE_CHARS = 4096
"""A longer text is kept in the store."""
MOST_BYTES = 2**30
"""No state is larger: see `CodeLimits.state_bytes`."""
FORMAT = 1


class BadSession(ValueError):
    """The text is no session that this worker could go on with; trying again does not help."""


@dataclass(frozen=True, slots=True)
class SavedSession:
    """An interpreter's state, and what we know of it."""

    dump: bytes
    waiting: bool
    """In the middle of a block, which waits for the answer to a call."""
    calls: int = 0
    """Outside calls that the block has made so far."""


async def save_session(saved: SavedSession, store: BlobStore) -> str:
    """The session as text; a large one is in the store then. Raises `StoreError`."""
    packed = await asyncio.to_thread(_packed, saved)
    if len(packed) * 4 <= INLINE_CHARS * 3:
        return f"inline:{base64.b64encode(packed).decode()}"
    return f"digest:{await store.put(packed)}"


async def load_session(text: str, store: BlobStore, most: int = MOST_BYTES) -> SavedSession:
    """The session of a text, of at most so many bytes.

    Raises `BadSession`, or `StoreUnavailable` when the store is.
    """
    return await asyncio.to_thread(_unpacked, await _fetched(text, store), most)


async def _fetched(text: str, store: BlobStore) -> bytes:
    kind, _, rest = text.partition(":")
    if kind == "inline":
        try:
            return base64.b64decode(rest, validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadSession(f"{_shown(text)} is damaged: {error}") from error
    if kind == "digest":
        try:
            return await store.get(rest)
        except (BlobMissing, BlobCorrupt) as error:
            raise BadSession(f"{_shown(text)} cannot be loaded: {error}") from error
    raise BadSession(f"{_shown(text)} is none; expected inline:<base64> or digest:<sha256>")


def _packed(saved: SavedSession) -> bytes:
    head = json.dumps({"format": FORMAT, "waiting": saved.waiting, "calls": saved.calls})
    return zlib.compress(head.encode() + b"\n" + saved.dump, level=1)


def _unpacked(packed: bytes, most: int) -> SavedSession:
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(packed, most)
        if not unpacker.eof:
            raise ValueError("it is cut off, or too large")
        line, _, dump = content.partition(b"\n")
        head = json.loads(line)
        found, waiting, calls = head["format"], head["waiting"], head["calls"]
        if not (isinstance(waiting, bool) and isinstance(calls, int)):
            raise ValueError("its first line is damaged")
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadSession(f"the session holds no state of a sandbox: {error}") from error
    if found != FORMAT:
        raise BadSession(f"the session has format {found!r}, this worker reads {FORMAT}; {OTHER_VERSION}")
    return SavedSession(dump, waiting, calls)


OTHER_VERSION = "run it with the version of the worker that wrote it, or start the run anew"


def _shown(text: str) -> str:
    return f"the session {text[:40]!r}{'...' if len(text) > 40 else ''}"
