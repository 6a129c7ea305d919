"""The store's secret: it signs the claims that history holds, so that nobody else can make one."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from functools import cached_property
from pathlib import Path

from filelock import FileLock
from pydantic import SecretStr

from activities.store.blobs import Files, StoreError, StoreUnavailable

__all__ = ["StoreSecret"]

SECRET_BYTES = 32
SIGNATURE_CHARS = 32
"""Hexadecimal; 128 bits."""


class StoreSecret:
    """The secret that is given, else that of the file `store.secret` beside the blobs' folder, which is made
    when it is first needed."""

    def __init__(self, blobs: Path, given: SecretStr | None = None) -> None:
        self.path, self._given = blobs.with_name("store.secret"), given

    def signature(self, digest: str) -> str:
        """What shows that a claim on the blob of this digest was made here. Raises `StoreError`."""
        return hmac.new(self._key, digest.encode(), hashlib.sha256).hexdigest()[:SIGNATURE_CHARS]

    @cached_property
    def _key(self) -> bytes:
        if self._given is not None:
            return self._given.get_secret_value().encode()
        try:
            key = self._read() or self._made()
        except OSError as error:
            raise StoreUnavailable(
                f"{self.path}: {error.strerror or error}. Check that its folder exists, is writable and has "
                "space (RATCHET_DATA_DIR names it)."
            ) from error
        if len(key) != SECRET_BYTES:
            raise StoreError(
                f"{self.path} is damaged: it has {len(key)} bytes, not {SECRET_BYTES}. Restore it from a "
                "backup; claims that were signed with it count for nothing without it."
            )
        return key

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""

    def _made(self) -> bytes:
        """A new secret; that of another process if it was faster."""
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(folder / "store.secret.lock", mode=0o600):
            if not self.path.exists():
                Files(folder).write(self.path.name, secrets.token_bytes(SECRET_BYTES))
        return self._read()
