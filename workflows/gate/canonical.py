"""JSON values in one spelling, so that they can be compared, digested and signed. Pure.

In one spelling: keys sorted, no blanks, ASCII only. `1` and `1.0` are spelled as they came.
"""

from __future__ import annotations

import hashlib
import json

from pydantic import JsonValue

__all__ = ["canonical", "digest", "same"]


def canonical(value: object) -> str:
    """The value in its one spelling. Never raises for what pydantic took as JSON, NaN and halves of
    character pairs included."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(value: object) -> str:
    """The first 32 hexadecimal characters of SHA-256 over the canonical spelling."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:32]


def same(one: JsonValue, other: JsonValue) -> bool:
    """Equal as JSON values are: numbers by value (`1` is `1.0`), true is no number, null only null."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other
