"""Encryption of what reaches Temporal's server and the disk: AES-SIV (RFC 5297) under keys with names.

It is deterministic: the same value under the same key gives the same bytes. Replay stores every payload
again, and only equal bytes are one blob. So whoever reads the server sees how long values are and which are
equal, and nothing else of them. The first key encrypts, all decrypt.

What is authenticated with a value is the purpose and the key's name, not the place: values move between runs
by right (fork, continue-as-new, child runs), and a codec server does not know which run a value is of.
"""

from __future__ import annotations

import base64
import hmac
import mmap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from activities.store.blobs import BlobStore, Objects, StoreError, StoreUnavailable

if TYPE_CHECKING:  # who has no keys need not wait for these
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV
    from pydantic import SecretStr

__all__ = [
    "ENCODED", "KeyMissing", "Keys", "NotDecrypted", "OfAnotherStore", "SealedBlobs", "WrongKey",
    "check_keys", "is_sealed",
]  # fmt: skip

MAGIC = b"\x8bRatchet sealed 1\n"
"""What encrypted bytes at rest begin with, then the key's name and a line's end. Neither JSON, nor zlib, nor
UTF-8 text begins so. Of a length that base 64 encodes by itself."""
MAGIC_TEXT = base64.b64encode(MAGIC).decode()
ENCODED = "Encoded failure"
"""What the SDK writes in the place of a failure's message that is a payload."""
VARIABLE = "RATCHET_ENCRYPTION_KEYS"


class KeyMissing(StoreUnavailable):
    """A value is encrypted with a key that this process lacks. With the key it can be read."""


class NotDecrypted(StoreUnavailable):
    """This process has a key of that name, but it does not fit: it is another key, or the bytes were
    changed."""


class OfAnotherStore(StoreError):
    """A value is encrypted, and was written by processes with another secret than this one's, or changed."""

    def __init__(self) -> None:
        super().__init__(
            "it is encrypted, and this process has neither the keys nor the secret of those that wrote it: "
            f"name their directory with --data-dir, or set {VARIABLE} and RATCHET_STORE_SECRET as they have. "
            "If it cannot be read with these either, it was changed"
        )


class WrongKey(StoreError):
    """A key of this process has the name of another one that the store knows."""


class Keys:
    """Keys by name, 64 bytes in base 64 each. Without any, all is left as it is; what is encrypted is then
    refused, never taken for a value."""

    def __init__(self, keys: Mapping[str, SecretStr] | None = None) -> None:
        secrets = {name: base64.b64decode(key.get_secret_value()) for name, key in (keys or {}).items()}
        self._ciphers = {name: _cipher(secret) for name, secret in secrets.items()}
        self.active = next(iter(secrets), None)
        """Name of the key that encrypts; None: nothing is encrypted."""
        self._naming = [hmac.digest(secret, b"ratchet names", "sha256") for secret in secrets.values()]

    def checks(self) -> dict[str, bytes]:
        """For each name what only its key makes, and what tells nothing of it."""
        return {
            name: one.encrypt(b"ratchet", [b"check", name.encode()]) for name, one in self._ciphers.items()
        }

    def encrypt(self, data: bytes, purpose: bytes) -> bytes:
        """The data under the active key, which must be there."""
        assert self.active is not None
        return self._ciphers[self.active].encrypt(data, [purpose, self.active.encode()])

    def decrypt(self, name: str, data: bytes, purpose: bytes) -> bytes:
        """The data again. Raises `KeyMissing` or `NotDecrypted`."""
        cipher = self._ciphers.get(name)
        if cipher is None:
            have = f"it has {', '.join(self._ciphers)}" if self._ciphers else "it has none"
            raise KeyMissing(
                f"it is encrypted with the key {name[:80]!r}, which this process lacks ({have}): add it to "
                f"{VARIABLE} and start it again. Runs that need it wait"
            )
        from cryptography.exceptions import InvalidTag

        try:
            return cipher.decrypt(data, [purpose, name.encode()])
        except InvalidTag:
            raise NotDecrypted(
                f"it cannot be decrypted with the key {name!r} of this process: either it was changed, or "
                f"it was encrypted with another key of that name; compare {VARIABLE} of all workers and "
                "clients. Runs that need it wait"
            ) from None

    def seal(self, data: bytes) -> bytes:
        """For the disk: the data encrypted, with the key's name in front; without keys the data, behind an
        empty name if it looks encrypted: a tool may have got it from anywhere."""
        if self.active is None:
            return MAGIC + b"\n" + data if is_sealed(data) else data
        return MAGIC + self.active.encode() + b"\n" + self.encrypt(data, b"at rest")

    def unseal(self, data: bytes) -> bytes:
        """What `seal` was given, under whichever key. Raises `KeyMissing` or `NotDecrypted`."""
        if not is_sealed(data):
            return data
        name, _, content = data[len(MAGIC) :].partition(b"\n")
        if not name:
            return content
        return self.decrypt(name.decode(errors="replace"), content, b"at rest")

    def seal_text(self, text: str) -> str:
        """As `seal`, as text."""
        return text if self.active is None else base64.b64encode(self.seal(text.encode())).decode()

    def unseal_text(self, text: str) -> str:
        """As `unseal`, of a text. Raises `KeyMissing` or `NotDecrypted`."""
        if not text.startswith(MAGIC_TEXT):
            return text
        try:
            sealed = base64.b64decode(text, validate=True)
        except ValueError:
            raise NotDecrypted("what was encrypted is damaged: it is not base 64") from None
        return self.unseal(sealed).decode()

    def name_of(self, digest: str) -> str:
        """The name of a row on the disk. It hides the digest, because a short text can be guessed from it."""
        return self.names_of(digest)[0]

    def names_of(self, digest: str) -> tuple[str, ...]:
        """Its names under all keys, first the key that encrypts, and at last without a key."""
        return *(hmac.digest(key, digest.encode(), "sha256").hex() for key in self._naming), digest


def _cipher(secret: bytes) -> AESSIV:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    return AESSIV(secret)


def check_keys(keys: Keys, objects: Objects) -> None:
    """Compare keys with those that the store knows by their names; the store learns new ones.

    Raises `WrongKey`: what was encrypted with the other key could not be read, nor what this one encrypts.
    """
    for name, check in keys.checks().items():
        mark = f"keys/{name}.check"
        known = objects.read(mark)
        if known is None:
            objects.write(mark, check)
        elif known != check:
            raise WrongKey(
                f"the key {name!r} in {VARIABLE} is not the key that {objects.where} knows by this name: "
                "give this process the right one; a new key needs a new name. (If nothing that was encrypted "
                f"with the other key is needed any more, delete {mark} there.)"
            )


class SealedBlobs(BlobStore):
    """Blobs that are encrypted before they are stored; a digest is that of the stored bytes.

    Every method may raise `KeyMissing` or `NotDecrypted`, too.
    """

    def __init__(self, blobs: BlobStore, keys: Keys) -> None:
        super().__init__(blobs.objects)
        self._keys = keys

    def put(self, data: bytes) -> str:
        """See `BlobStore`."""
        return super().put(self._keys.seal(data))

    def get(self, digest: str) -> bytes:
        """See `BlobStore`."""
        return self._keys.unseal(super().get(digest))


def is_sealed(data: bytes | mmap.mmap) -> bool:
    """These bytes on the disk are encrypted."""
    return data[: len(MAGIC)] == MAGIC
