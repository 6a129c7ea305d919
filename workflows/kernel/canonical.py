"""JSON values in one spelling (JCS, RFC 8785), so that they can be digested, signed and compared. Pure."""

from __future__ import annotations

import hashlib

import rfc8785

__all__ = ["canonical", "digest_of"]


def canonical(value: object) -> bytes:
    """The value as canonical JSON. A whole number beyond 2^53, which RFC 8785 cannot write, is written as the
    text of its digits.

    Raises ValueError for what is not JSON (`people.json_problem` says why).
    """
    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]  # raises for what is not JSON
    except rfc8785.IntegerDomainError:
        return rfc8785.dumps(_large_numbers_as_text(value))  # type: ignore[arg-type]  # as above


def digest_of(value: object) -> str:
    """The first 32 hexadecimal characters of SHA-256 over the canonical JSON."""
    return hashlib.sha256(canonical(value)).hexdigest()[:32]


def _large_numbers_as_text(value: object) -> object:
    if isinstance(value, int) and abs(value) >= 2**53:
        return str(value)
    if isinstance(value, dict):
        return {key: _large_numbers_as_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_large_numbers_as_text(item) for item in value]
    return value
