"""Content-addressed blobs: bytes that Temporal's history refers to by digest.

A blob is durable before its digest is known to anybody, because a run cannot go on without it. Several
processes share the store. Nothing is ever changed; `client/server/garbage.py` deletes what no run needs.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = [
    "DIGEST", "REFRESHED_AFTER", "BlobDamaged", "BlobMissing", "BlobStore", "Files", "KeptBlob", "Objects",
    "StoreError", "StoreUnavailable",
]  # fmt: skip

DIGEST = re.compile("[0-9a-f]{64}")
NAME = re.compile("[0-9a-f]{2}/[0-9a-f]{62}")
PRIVATE_FOLDER = 0o700
"""Blobs hold conversations: they are for their owner alone."""
REFRESHED_AFTER = 12 * 3600
"""Seconds after which a blob that is put again is also written again. Deletion looks at the newest write."""


class StoreError(Exception):
    """Something could not be kept or found; the message says what to do."""


class StoreUnavailable(StoreError):
    """The store cannot be used now: away, no space, no permission, locked. Trying again may help."""


class BlobMissing(StoreError):
    """The store has no blob of this digest."""


class BlobDamaged(StoreError):
    """The bytes under this digest have changed."""


@dataclass(frozen=True, slots=True)
class KeptBlob:
    """One blob of a store."""

    digest: str
    size: int
    """Bytes."""
    at: float
    """When it was written, in seconds since 1970 by the clock of the store."""


class Objects(Protocol):
    """Bytes under names such as `ab/cdef...`. The calls block; every one may raise `StoreUnavailable`."""

    @property
    def where(self) -> str:
        """The place, for messages."""

    def stat(self, name: str) -> tuple[int, float] | None:
        """Size, and the time of writing; None where there is no such name."""

    def read(self, name: str) -> bytes | None:
        """The bytes; None where there is no such name."""

    def write(self, name: str, data: bytes) -> None:
        """Keep the bytes, durably, in the place of others: whole or not at all."""

    def move(self, name: str, to: str) -> None:
        """Give the bytes another name."""

    def delete(self, name: str, before: float) -> bool:
        """Forget the bytes if they were written before this time (seconds since 1970); whether they were."""

    def names(self) -> Iterator[tuple[str, int, float]]:
        """Every name with its size and time."""

    def path(self, name: str) -> Path | None:
        """The file for readers that map it, where there is one; it never changes once it is there."""


class BlobStore:
    """Bytes by their SHA-256, in a folder or in other objects.

    The calls block for the store. Use `asyncio.to_thread` in an event loop. Every one may raise
    `StoreUnavailable`.
    """

    def __init__(self, objects: Path | Objects) -> None:
        self.objects: Objects = Files(objects) if isinstance(objects, Path) else objects

    def put(self, data: bytes) -> str:
        """Keep the bytes; returns their SHA-256, 64 hexadecimal characters. A repeat is one look-up."""
        digest = hashlib.sha256(data).hexdigest()
        kept = self.objects.stat(_name(digest))
        if kept is None or kept[0] != len(data) or time.time() - kept[1] > REFRESHED_AFTER:
            self.objects.write(_name(digest), data)
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes of a digest. Raises `BlobMissing` or `BlobDamaged`."""
        if not DIGEST.fullmatch(digest):
            raise BlobMissing(f"{digest[:80]!r} is not a digest; expected 64 hexadecimal characters")
        data = self.objects.read(_name(digest))
        if data is None:
            raise BlobMissing(
                f"{self.objects.where} has no blob {digest}. If a worker on another host wrote it, give all "
                "workers the same store; if it was lost, restore it from a backup. Runs that need it wait."
            )
        if hashlib.sha256(data).hexdigest() != digest:
            # Moved aside, so that whoever still has the right bytes can put them again.
            self.objects.move(_name(digest), f"{_name(digest)}.damaged")
            raise BlobDamaged(
                f"the bytes of blob {digest} in {self.objects.where} have changed; they are now in "
                f"{_name(digest)}.damaged. Restore the blob from a backup. Runs that need it wait."
            )
        return data

    def path(self, digest: str) -> Path | None:
        """The file of a digest, where the store has files, for readers that map it."""
        return self.objects.path(_name(digest))

    def list(self) -> Iterator[KeptBlob]:
        """Every blob."""
        for name, size, at in self.objects.names():
            if NAME.fullmatch(name):
                yield KeptBlob(name.replace("/", ""), size, at)

    def delete(self, digest: str, before: float) -> bool:
        """Delete a blob that was written, for the last time, before `before` (seconds since 1970); whether
        it was."""
        return self.objects.delete(_name(digest), before)


def _name(digest: str) -> str:
    return f"{digest[:2]}/{digest[2:]}"


class Files:
    """Objects as files of one folder, for the processes of one host."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    @property
    def where(self) -> str:
        """The folder."""
        return str(self.folder)

    def path(self, name: str) -> Path:
        """The file of a name."""
        return self.folder / name

    def stat(self, name: str) -> tuple[int, float] | None:
        """See `Objects`."""
        with self._plain_errors(), suppress(FileNotFoundError):
            found = self.path(name).stat()
            return found.st_size, found.st_mtime
        return None

    def read(self, name: str) -> bytes | None:
        """See `Objects`."""
        with self._plain_errors(), suppress(FileNotFoundError):
            return self.path(name).read_bytes()
        return None

    def write(self, name: str, data: bytes) -> None:
        """See `Objects`: a process may die at any line of this."""
        path = self.path(name)
        with self._plain_errors():
            if not path.parent.exists():
                self.folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
                path.parent.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
                _sync(self.folder)
            # readable to its owner alone
            descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix="draft-")
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
            _sync(path.parent)

    def move(self, name: str, to: str) -> None:
        """See `Objects`."""
        with self._plain_errors(), suppress(FileNotFoundError):  # another process was faster
            self.path(name).replace(self.path(to))

    def delete(self, name: str, before: float) -> bool:
        """See `Objects`. Moved aside first: who writes the name again meanwhile writes another file."""
        path = self.path(name)
        aside = path.with_name(f"{path.name}.deleted")
        with self._plain_errors(), suppress(FileNotFoundError):
            path.replace(aside)
            if aside.stat().st_mtime < before:
                aside.unlink()
                return True
            aside.replace(path)
        return False

    def names(self) -> Iterator[tuple[str, int, float]]:
        """See `Objects`."""
        with self._plain_errors():
            for path in self.folder.glob("*/*"):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    found = path.stat()
                    yield f"{path.parent.name}/{path.name}", found.st_size, found.st_mtime

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(
                f"{self.folder}: {error.strerror or type(error).__name__}. Check that the folder exists, is "
                "writable and has space (RATCHET_DATA_DIR names it)."
            ) from error


def _sync(folder: Path) -> None:
    """Names are on the disk only when their folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
