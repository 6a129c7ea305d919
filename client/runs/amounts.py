"""Amounts of counters as people type them: `cost_usd=5 model_calls=20`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from client.agents.yaml import nearest
from client.errors import UsageError
from workflows.api import COUNTERS

if TYPE_CHECKING:
    from client.runs.listing import RequestSummary
    from workflows.people import Request

__all__ = ["amounts_from", "caps_from", "check_counter"]

THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
DECIMALS = re.compile(r"\d+,\d+")
"""As many languages write them. Without its comma it would be another number."""


def amounts_from(words: Iterable[str]) -> dict[str, float]:
    """How much more of each counter: `cost_usd=5 model_calls=20`.

    Raises:
        UsageError: a word is not COUNTER=NUMBER, a number is not above 0, or there is no word.
    """
    found: dict[str, float] = {}
    for word in words:
        name, number = _split(word)
        found[name] = _number(number, word)
        if found[name] <= 0:
            raise UsageError(f"{word}: expected a number above 0, how much more")
    if not found:
        raise UsageError("how much more of what is missing, such as cost_usd=5 or model_calls=20")
    return found


def caps_from(words: Iterable[str]) -> dict[str, float | None]:
    """The new cap of each counter, None for no cap: `model_calls=300 tokens=none`. Raises UsageError."""
    found: dict[str, float | None] = {}
    for word in words:
        name, number = _split(word)
        found[name] = None if number.lower() in ("none", "null", "no") else _number(number, word)
    if not found:
        raise UsageError("the limit is missing, such as model_calls=300 or tokens=none")
    return found


def check_counter(request: Request | RequestSummary, amounts: Mapping[str, float]) -> None:
    """Raise a UsageError when there is more of something that the request is not about."""
    counter = (request.arguments or {}).get("counter")
    wrong = ", ".join(name for name in amounts if name != counter)
    if counter is not None and wrong:
        raise UsageError(
            f"{request.id} is about {counter}, not {wrong}: give more of that, such as {counter}=10; "
            "`ratchet limits` sets other limits"
        )


def _split(word: str) -> tuple[str, str]:
    name, equals, number = word.partition("=")
    if not equals or not name or not number:
        hint = "" if name in COUNTERS else f"; {nearest(name, COUNTERS)}"
        raise UsageError(f"{word}: expected COUNTER=NUMBER, such as model_calls=20{hint}")
    return name, number


def _number(text: str, word: str) -> float:
    if "," in text and not THOUSANDS.fullmatch(text):
        name, meant = word.partition("=")[0], text.replace(",", ".") if DECIMALS.fullmatch(text) else "0.5"
        raise UsageError(
            f"{word}: the comma in {text!r} may be a decimal point; write {name}={meant} with a point, and "
            "thousands as 1,000 or 1000"
        )
    try:
        number = float(text.replace(",", ""))
    except ValueError as error:
        raise UsageError(f"{word}: {text!r} is not a number; expected one such as 20 or 0.5") from error
    if not math.isfinite(number):
        raise UsageError(f"{word}: {text!r} cannot be counted; `none` means no limit")
    return number
