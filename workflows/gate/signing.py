"""Signed decisions and commands: what is signed, and whether a signature is somebody's. Pure.

What is signed begins with a line that names its purpose and goes on with canonical JSON: the run's
workflow id, and the message without its signature and without what it leaves at the default (so that
a field that is added later changes no signature). A decision is bound to one execution chain by the
request's digest; a command by `origin`, the chain's first run id, since workflow ids are used again.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from workflows.gate.canonical import canonical
from workflows.people import Command, Decision

__all__ = ["sign", "signed_content", "verified"]


def signed_content(run: str, message: Decision | Command, origin: str = "") -> bytes:
    """The bytes that a signature is over. `run` is the workflow id, `origin` the first run id of its chain.

    Raises ValueError for a command without `origin`.
    """
    about: dict[str, object] = {"run": run, "message": _said(message)}
    if isinstance(message, Decision):
        return f"ratchet decision v1\n{canonical(about)}".encode()
    if not origin:
        raise ValueError("a command is signed for one execution: give `origin`, the run's first run id")
    return f"ratchet command v1\n{canonical({**about, 'origin': origin})}".encode()


def _said(message: Decision | Command) -> dict[str, object]:
    return message.model_dump(mode="json", exclude={"signature"}, exclude_defaults=True)


def sign(key: Ed25519PrivateKey, content: bytes) -> str:
    """The signature in base64, for the message's `signature`."""
    return base64.b64encode(key.sign(content)).decode()


def verified(keys: Mapping[str, str], by: str, content: bytes, signature: str) -> bool:
    """Is it `by`'s signature over the content? Never raises: junk is not a signature."""
    if by not in keys:
        return False
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(keys[by], validate=True))
        key.verify(base64.b64decode(signature, validate=True), content)
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True
