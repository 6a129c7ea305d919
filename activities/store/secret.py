"""The store's secret: it signs the claims that history holds, so that nobody else can make one."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from pydantic import SecretStr

from activities.store.blobs import Files, StoreError, StoreUnavailable

__all__ = ["StoreSecret"]

SECRET_BYTES = 32
SIGNATURE_CHARS = 32
"""Hexadecimal; 128 bits."""


class StoreSecret:
    """The secrets that are given, the one that signs first; without any that of the file `store.secret`
    beside the blobs' folder, which is made when it is first needed. What the file's has signed always counts.
    """

    def __init__(self, blobs: Path, given: Sequence[SecretStr] = ()) -> None:
        self.path = blobs.with_name("store.secret")
        self._given = [one.get_secret_value().encode() for one in given]

    def signature(self, text: str) -> str:
        """What shows that a claim on the blob of this digest, or another text, was made here. Raises
        `StoreError`."""
        return _signature(self._keys[0], text)

    def signed(self, text: str, signature: str) -> bool:
        """Whether it is a signature of the text, by any of the secrets. Raises `StoreError`."""
        made = signature.encode()
        return any(hmac.compare_digest(_signature(key, text).encode(), made) for key in self._keys)

    @cached_property
    def _keys(self) -> list[bytes]:
        try:
            own = self._read()
            if own is None and not self._given:
                own = self._make()
        except OSError as error:
            raise StoreUnavailable(
                f"{self.path}: {error.strerror or error}. Check that its folder exists, is writable and has "
                "space (RATCHET_DATA_DIR names it)."
            ) from error
        if own is None:
            return self._given
        if len(own) != SECRET_BYTES:
            raise StoreError(
                f"{self.path} is damaged: it has {len(own)} bytes, not {SECRET_BYTES}. Restore it from a "
                "backup; claims that were signed with it count for nothing without it."
            )
        return [*self._given, own]

    def _read(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def _make(self) -> bytes | None:
        """A new secret; that of another process if it was faster."""
        from filelock import FileLock

        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(folder / "store.secret.lock", mode=0o600):
            if not self.path.exists():
                Files(folder).write(self.path.name, secrets.token_bytes(SECRET_BYTES))
        return self._read()


def _signature(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:SIGNATURE_CHARS]
