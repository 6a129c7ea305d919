"""The first place where two JSON values differ, in words that stay short. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from activities.contracts import Frozen

__all__ = ["Difference", "first_difference"]

CONTEXT_CHARS = 24
"""Characters before the place where two texts differ, and twice as many after it."""
MISSING: Any = object()


class Difference(Frozen):
    """One place where two values differ; texts are cut to what is around it."""

    at: str
    """The path, such as `patch.steps.add[0].thought`; empty: the values themselves."""
    left: str
    """As JSON, cut; empty: there is none on this side."""
    right: str
    """The same of the other side."""


def first_difference(left: Any, right: Any, at: str = "") -> Difference | None:
    """The first place where two JSON values differ; None: they are equal."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        keys = dict.fromkeys([*left, *right])
        parts = [(f"{at}.{key}" if at else str(key), key) for key in keys]
        pairs = ((path, left.get(key, MISSING), right.get(key, MISSING)) for path, key in parts)
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        both = enumerate(zip_longest(left, right, fillvalue=MISSING))
        pairs = ((f"{at}[{index}]", one, other) for index, (one, other) in both)
    else:
        same = left == right and isinstance(left, bool) == isinstance(right, bool)
        return None if same else Difference(at=at, left=_shown(left, right), right=_shown(right, left))
    return next((found for path, one, other in pairs if (found := first_difference(one, other, path))), None)


def _shown(value: Any, other: Any) -> str:
    """The value in short; a text around the first character that differs from the other one."""
    if value is MISSING:
        return ""
    if isinstance(value, str) and isinstance(other, str):
        shorter = min(len(value), len(other))
        first = next((i for i in range(shorter) if value[i] != other[i]), shorter)
        start, end = max(first - CONTEXT_CHARS, 0), first + 2 * CONTEXT_CHARS
        text = json.dumps(value[start:end], ensure_ascii=False)
        return f"{'…' if start else ''}{text}{'…' if end < len(value) else ''}"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 4 * CONTEXT_CHARS else f"{text[: 4 * CONTEXT_CHARS]}…"
