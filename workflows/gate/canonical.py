"""JSON values in one spelling, so that they can be digested and signed. Pure.

One spelling: keys sorted, no blanks, ASCII only. `1` and `1.0` are spelled as they came.
"""

from __future__ import annotations

import hashlib
import json

__all__ = ["canonical", "digest", "unwritable"]

DEPTH_LIMIT = 50
"""Levels; what is nested deeper cannot be written wherever a decision goes."""


def canonical(value: object) -> str:
    """The value in its one spelling. Never raises for what pydantic took as JSON, NaN and halves of
    character pairs included."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(value: object) -> str:
    """The first 32 hexadecimal characters of SHA-256 over the canonical spelling."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:32]


def unwritable(value: object) -> str:
    """Why the value cannot be kept and written as JSON; empty when it can."""
    if not _depth_fits(value, DEPTH_LIMIT):
        return f"nested more than {DEPTH_LIMIT} deep"
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "half of a character pair (a lone surrogate) is no text"
    except ValueError:
        return "NaN and Infinity are no JSON"
    return ""


def _depth_fits(value: object, left: int) -> bool:
    if not isinstance(value, dict | list | tuple):
        return True
    items = value.values() if isinstance(value, dict) else value
    return left > 0 and all(_depth_fits(item, left - 1) for item in items)
