"""Counters with numbers as people type them: `cost_usd=5 model_calls=20`, `tokens=none`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from client.errors import UsageError
from client.yamltext import nearest

if TYPE_CHECKING:
    from client.inbox import Ask
    from workflows.people import Request

__all__ = ["COUNTERS", "amounts_of", "caps_of", "check_counter"]

COUNTERS = ("model_calls", "tool_calls", "tokens", "cost_usd", "seconds")
"""What the agent file's `limits` counts; machines may have counters of their own."""
NONE = ("none", "null", "no")


def amounts_of(words: Iterable[str]) -> dict[str, float]:
    """How much more of each counter.

    Raises:
        UsageError: a word is no `COUNTER=NUMBER`, a number is not above zero, or there is none at all.
    """
    found: dict[str, float] = {}
    for word in words:
        name, number = _parted(word)
        found[name] = _number(number, word)
        if found[name] <= 0:
            raise UsageError(f"{word}: say how much more, a number above 0")
    if not found:
        raise UsageError("say how much more of what, such as cost_usd=5 or model_calls=20")
    return found


def caps_of(words: Iterable[str]) -> dict[str, float | None]:
    """The new cap of each counter, None for no cap.

    Raises:
        UsageError: a word is no `COUNTER=NUMBER` and no `COUNTER=none`, or there is none at all.
    """
    found: dict[str, float | None] = {}
    for word in words:
        name, number = _parted(word)
        found[name] = None if number.lower() in NONE else _number(number, word)
    if not found:
        raise UsageError("say which limit, such as model_calls=300 or tokens=none")
    return found


def check_counter(request: Request | Ask, amounts: Mapping[str, float]) -> None:
    """Raise a UsageError when more is given of what the request is not about."""
    counter = (request.arguments or {}).get("counter")
    wrong = ", ".join(name for name in amounts if name != counter)
    if counter is not None and wrong:
        raise UsageError(
            f"{request.id} is about {counter}, not {wrong}: give more of that, such as {counter}=10; "
            "other limits are set with `ratchet limits`"
        )


def _parted(word: str) -> tuple[str, str]:
    name, equals, number = word.partition("=")
    if not equals or not name or not number:
        there = "" if name in COUNTERS else f"; {nearest(name, COUNTERS)}"
        raise UsageError(f"{word}: expected COUNTER=NUMBER, such as model_calls=20{there}")
    return name, number


def _number(text: str, word: str) -> float:
    try:
        number = float(text.replace("_", "").replace(",", ""))
    except ValueError as error:
        raise UsageError(f"{word}: {text!r} is no number; expected one such as 20 or 0.5") from error
    if not math.isfinite(number):
        raise UsageError(f"{word}: {text!r} is no number that counts; say `none` for no limit")
    return number
