"""Regular expressions that people and models write: RE2's, whose time grows with the text's length only."""

from __future__ import annotations

from typing import Any

import re2  # type: ignore[import-untyped]  # google-re2 ships no types

__all__ = ["PATTERN_STEPS", "compiled"]

PATTERN_CHARS = 1000
PATTERN_MEMORY = 2**20
"""Bytes. A pattern that needs more could take seconds for a few thousand characters."""
PATTERN_STEPS = 1_000
"""Instructions of one pattern as an RE2 program. The worst search takes a second per MB (measured)."""


def compiled(
    pattern: str, *, ignore_case: bool = False, lines: bool = False, steps: int | None = None
) -> Any:
    """The pattern for RE2, bounded in memory. Raises `ValueError` that says what is wrong with it.

    Args:
        lines: `^` and `$` match at each line.
        steps: the most instructions of its program, for who cannot stop a search.
    """
    if len(pattern) > PATTERN_CHARS:
        raise ValueError(
            f"the pattern has {len(pattern):,} characters; at most {PATTERN_CHARS:,} are allowed"
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_MEMORY
    options.case_sensitive = not ignore_case
    try:
        made = re2.compile(f"(?m){pattern}" if lines else pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        cause = error.args[0] if error.args and isinstance(error, re2.error) else str(error)
        text = cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
        raise ValueError(
            f"the pattern {pattern[:200]!r} cannot be used: {text} "
            "(RE2 syntax: no look-around, no back-references, repetitions up to 1000)"
        ) from None
    if steps and made.programsize > steps:
        raise ValueError(
            f"the pattern {pattern[:200]!r} has {made.programsize:,} steps as an RE2 program; at most "
            f"{steps:,} are allowed: use shorter repeats"
        )
    return made
