"""The codec that encrypts payloads on their way to Temporal's server, under the keys of `encryption.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import structlog
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from activities.store.encryption import KeyMissing, Keys, NotDecrypted
from activities.store.secret import StoreSecret

__all__ = ["INLINE", "STRANGE", "UNREADABLE", "Codec", "is_encrypted"]

ENCRYPTED = b"binary/encrypted"
"""Encoding of an encrypted payload, as in Temporal's own samples; so is `KEY_ID`."""
KEY_ID = "encryption-key-id"
SIGNATURE = "signature"
UNREADABLE = b"ratchet/unreadable"
"""Encoding of what takes the place of an encrypted payload that this store's processes did not make."""
STRANGE = (
    "an encrypted value that this store's workers and clients did not make. Send the value itself. If one of "
    "your own workers or clients made it, let it use the same data directory, or set the same "
    "RATCHET_STORE_SECRET and RATCHET_ENCRYPTION_KEYS everywhere"
)
INLINE = "ratchet-inline"
"""Key of the metadata of a payload that shall stay in history although it is large; never seen there."""

log = structlog.get_logger("ratchet")


class Codec(PayloadCodec):
    """Encrypts payloads on their way to Temporal. What comes back unencrypted passes: a signal typed in the
    Web UI, and all that was written before there were keys.

    An encrypted payload is signed with the store's secret. So one that cannot be decrypted is either genuine,
    and whoever needs it waits for the key, or it was sent by a stranger, and is replaced by something that
    the run refuses, because it would wait for ever.
    """

    def __init__(self, keys: Keys, secret: StoreSecret) -> None:
        self._keys, self._secret = keys, secret

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads encrypted, one for one."""
        if self._keys.active is None:
            return list(payloads)
        return [self._encrypted(payload, self._keys.active) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads decrypted, one for one. Raises `KeyMissing` or `NotDecrypted` for a genuine one."""
        return [self._decrypted(one) if is_encrypted(one) else one for one in payloads]

    def _encrypted(self, payload: Payload, key: str) -> Payload:
        # Deterministic: the same value must be the same blob on every replay.
        plain = Payload()
        plain.CopyFrom(payload)
        inline = plain.metadata.pop(INLINE, None)
        data = self._keys.encrypt(plain.SerializeToString(deterministic=True), b"payload")
        signature = self._secret.signature(_signed_text(key, data)).encode()
        metadata = {"encoding": ENCRYPTED, KEY_ID: key.encode(), SIGNATURE: signature}
        return Payload(metadata=metadata | ({INLINE: inline} if inline else {}), data=data)

    def _decrypted(self, payload: Payload) -> Payload:
        key = payload.metadata.get(KEY_ID, b"").decode(errors="replace")
        try:
            return Payload.FromString(self._keys.decrypt(key, payload.data, b"payload"))
        except (KeyMissing, NotDecrypted) as error:
            signature = payload.metadata.get(SIGNATURE, b"").decode(errors="replace")
            if self._secret.signed(_signed_text(key, payload.data), signature):
                log.error("store.not_decrypted", error=str(error))
                raise
            log.warning("store.payload_refused", reason=STRANGE, error=str(error))
            return Payload(metadata={"encoding": UNREADABLE})


def _signed_text(key: str, data: bytes) -> str:
    # its form is that of no digest: it must not be taken for what the signature of a claim signs
    return f"{key}:{hashlib.sha256(data).hexdigest()}"


def is_encrypted(payload: Payload) -> bool:
    """The payload came from a codec like ours."""
    return payload.metadata.get("encoding") == ENCRYPTED
