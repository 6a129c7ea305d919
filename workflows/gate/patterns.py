"""Patterns that people write: RE2, so that none can hang a worker. Pure; a leaf."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]  # google-re2 ships no types

__all__ = ["check_pattern", "found"]


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def check_pattern(pattern: str) -> str:
    """The pattern; raises ValueError for one that RE2 cannot read, such as one that looks back."""
    try:
        _compiled(pattern)
    except (re2.error, UnicodeError) as error:
        raise ValueError(f"the pattern {pattern[:100]!r} is no RE2 expression: {error}") from error
    return pattern


def found(pattern: str, text: str) -> bool | None:
    """Does it occur anywhere in the text? None: the text cannot be looked at (half of a character pair)."""
    try:
        return bool(_compiled(pattern).search(text))
    except UnicodeError:
        return None
