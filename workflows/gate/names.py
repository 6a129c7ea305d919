"""Names of people, as they stand in logs: one rule for all who give one. Pure; a leaf."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["fault_of_name", "same_person"]

LONGEST = 100
"""Characters."""
UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that count as printable and show nothing: two names that look the same could both vote."""


def fault_of_name(name: str) -> str:
    """Why it is no name; empty for one, and for the empty name of who gave none.

    Commas and brackets are how a log tells several names, and who is verified, apart.
    """
    marks = any(mark in unicodedata.normalize("NFKC", name) for mark in ",()")  # in any width
    plain = name.isprintable() and name == name.strip() and not marks
    if plain and len(name) <= LONGEST and not UNSEEN.search(name):
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
