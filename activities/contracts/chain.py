"""The hash chain of a run's log: the kernel writes it, the archive checks it."""

from __future__ import annotations

import hashlib

__all__ = ["link_text", "next_hash"]


def link_text(value: object) -> str:
    """What is hashed of a record, or of the result at the end: the JSON text that pydantic makes of its
    model. The `json` module writes 1e-7 otherwise."""
    from pydantic_core import to_json  # a list reads the archive in less time than this takes to be imported

    return to_json(value, inf_nan_mode="null").decode()


def next_hash(previous: str, text: str) -> str:
    """The hash of a record in its chain, from its text: 64 hexadecimal characters."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()
