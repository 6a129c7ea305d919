"""Patterns that people write: RE2, so that none can hang a worker. Pure; a leaf.

RE2 needs time linear in the text, but times the size of the pattern as a program: both are bounded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]  # google-re2 ships no types

__all__ = ["check_pattern", "cost", "found"]

PROGRAM_LIMIT = 5_000
"""Instructions of one pattern; a short one such as `.{1000}` can have many."""
COST_LIMIT = 5_000_000
"""Instructions times characters of one search: a fraction of a second."""


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def check_pattern(pattern: str) -> str:
    """The pattern; raises ValueError for one that RE2 cannot read, such as one that looks back."""
    try:
        size = _compiled(pattern).programsize
    except (re2.error, UnicodeError) as error:
        raise ValueError(f"the pattern {pattern[:100]!r} is no RE2 expression: {error}") from error
    if size > PROGRAM_LIMIT:
        raise ValueError(
            f"the pattern {pattern[:100]!r} makes {size:,} steps as an RE2 program, at most "
            f"{PROGRAM_LIMIT:,} are allowed; repeat less"
        )
    return pattern


def cost(pattern: str, text: str) -> int:
    """Steps that a search may take at most."""
    return int(_compiled(pattern).programsize) * len(text)


def found(pattern: str, text: str) -> bool | None:
    """Does it occur anywhere in the text? None: the text cannot be looked at: it has half
    of a character pair, or is too long for such a pattern."""
    if cost(pattern, text) > COST_LIMIT:
        return None
    try:
        return bool(_compiled(pattern).search(text))
    except UnicodeError:
        return None
