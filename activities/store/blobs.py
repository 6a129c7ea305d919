"""Content-addressed blobs: plain files that Temporal's history refers to by digest.

A blob is on the disk before its digest is known to anybody, because a run cannot go on without it.
Several processes of one host share the folder. Nothing is ever changed or deleted here.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["DIGEST", "BlobDamaged", "BlobMissing", "BlobStore", "StoreError", "StoreUnavailable"]

DIGEST = re.compile("[0-9a-f]{64}")
PRIVATE_FOLDER = 0o700
"""Blobs hold conversations: they are for their owner alone."""


class StoreError(Exception):
    """Something could not be kept or found; the message says what to do."""


class StoreUnavailable(StoreError):
    """The files cannot be used now: no space, no permission, locked. Trying again may help."""


class BlobMissing(StoreError):
    """The store has no blob of this digest."""


class BlobDamaged(StoreError):
    """The bytes under this digest have changed."""


class BlobStore:
    """Bytes by their SHA-256, one file each: `ab/cdef...` in `folder`.

    The calls block for the disk. Use `asyncio.to_thread` in an event loop. Every one may raise
    `StoreUnavailable`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def put(self, data: bytes) -> str:
        """Keep the bytes; returns their SHA-256, 64 hexadecimal characters. A repeat is one look-up."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.path(digest)
        with self._explained():
            if not _has_size(path, len(data)):
                _write(path, data)
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes of a digest. Raises `BlobMissing` or `BlobDamaged`."""
        if not DIGEST.fullmatch(digest):
            raise BlobMissing(f"{digest[:80]!r} is not a digest; expected 64 hexadecimal characters")
        path = self.path(digest)
        with self._explained():
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                raise BlobMissing(
                    f"{self.folder} has no blob {digest}. If a worker on another host wrote it, share this "
                    "folder; if it was lost, restore the folder from a backup. Runs that need it wait."
                ) from None
            if hashlib.sha256(data).hexdigest() != digest:
                # Moved aside, so that whoever still has the right bytes can put them again.
                path.replace(path.with_name(f"{path.name}.damaged"))
                raise BlobDamaged(
                    f"the bytes of blob {digest} in {self.folder} have changed; they are now in "
                    f"{path.name}.damaged. Restore the file from a backup. Runs that need it wait."
                )
        return data

    def path(self, digest: str) -> Path:
        """The file of a digest, for readers that map it; it never changes once it is there."""
        return self.folder / digest[:2] / digest[2:]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(
                f"{self.folder}: {error.strerror or type(error).__name__}. Check that the folder exists, is "
                "writable and has space (RATCHET_DATA_DIR names it)."
            ) from error


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _write(path: Path, data: bytes) -> None:
    """Whole and on the disk, or not at all: a process may die at any line of this."""
    folder = path.parent
    if not folder.exists():
        folder.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        _sync(folder.parent)
    descriptor, draft = tempfile.mkstemp(dir=folder, prefix="draft-")  # readable to its owner alone
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
    _sync(folder)


def _sync(folder: Path) -> None:
    """Names are on the disk only when their folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
