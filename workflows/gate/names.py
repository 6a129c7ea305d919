"""Names of people, as they stand in logs: one rule for all who give one. Pure; a leaf."""

from __future__ import annotations

import unicodedata

__all__ = ["fault_of_name", "same_person"]

LONGEST = 100
"""Characters."""


def fault_of_name(name: str) -> str:
    """Why it is no name; empty for one, and for the empty name of who gave none.

    Commas and brackets are how a log tells several names, and who is verified, apart.
    """
    plain = name.isprintable() and name == name.strip() and not any(mark in name for mark in ",()")
    if plain and len(name) <= LONGEST:
        return ""
    return (
        f"{name[:LONGEST]!r} is no name; up to {LONGEST} printable characters are expected, without commas, "
        "brackets and blanks around it"
    )


def same_person(one: str, other: str) -> bool:
    """Would people read both as one name? Case and compatible spellings make no difference."""
    return _key(one) == _key(other)


def _key(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
