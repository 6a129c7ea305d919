"""A session of the sandbox as text: what a run's history carries from one step to the next.

A small one is in the text itself, as `inline:<base64 of zlib>`; a larger one is in the durable store,
as `digest:<sha256>`. The interpreter does not check what it is given back (facts/sandbox, 2.3), so
only its own bytes may reach it: the store checks the digest, and an inline session never left the
history.

The store keeps every state, because a run may be replayed or go on from any of them. So each outside
call adds the packed size of the variables, at most `CodeLimits.state_bytes`.
"""

from __future__ import annotations

import base64
import zlib
from typing import Literal

from pydantic import Field

from activities.contracts import Frozen
from activities.store.blobs import BlobDamaged, BlobMissing, BlobStore

__all__ = ["OTHER_VERSION", "BadSession", "SavedSession", "load_session", "save_session"]

INLINE_BYTES = 3072
"""A larger session is kept in the store; 4096 characters of base64."""
MAX_STATE_BYTES = 2**30
"""No state is larger: see `CodeLimits.state_bytes`."""
OTHER_VERSION = "run it with the version of the worker that wrote it, or start the run again"


class BadSession(ValueError):
    """The text is not a session that this worker can go on with; a retry does not help."""


class SavedSession(Frozen):
    """An interpreter's state, and what we know about it: one line of JSON, and the dump."""

    dump: bytes = Field(exclude=True, default=b"")
    format: Literal[1] = 1
    waiting: bool
    """In the middle of a block that waits for the answer to a call."""
    calls: int = 0
    """Outside calls that the block has made so far."""
    seconds: float = 0
    """Of the processor, that the block has used so far."""


def save_session(saved: SavedSession, blobs: BlobStore) -> str:
    """The session as text; a large one is in the store then. Raises `StoreError`."""
    packed = zlib.compress(saved.model_dump_json().encode() + b"\n" + saved.dump, level=1)
    if len(packed) <= INLINE_BYTES:
        return f"inline:{base64.b64encode(packed).decode()}"
    return f"digest:{blobs.put(packed)}"


def load_session(text: str, blobs: BlobStore, most: int = MAX_STATE_BYTES) -> SavedSession:
    """The session of a text, of at most `most` bytes. Raises `BadSession` and `StoreUnavailable`."""
    kind, _, rest = text.partition(":")
    try:
        if kind not in ("inline", "digest"):
            raise ValueError("expected inline:<base64> or digest:<sha256>")
        packed = base64.b64decode(rest, validate=True) if kind == "inline" else blobs.get(rest)
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(packed, most)
        if not unpacker.eof:
            raise ValueError("it is cut off, or too large")
        line, _, dump = content.partition(b"\n")
        saved = SavedSession.model_validate_json(line, strict=True)
    except (BlobMissing, BlobDamaged, zlib.error, ValueError) as error:
        shown = f"{text[:40]!r}{'...' if len(text) > 40 else ''}"
        raise BadSession(
            f"the session {shown} cannot be loaded: {str(error)[:300]}; {OTHER_VERSION}"
        ) from error
    return saved.model_copy(update={"dump": dump})
