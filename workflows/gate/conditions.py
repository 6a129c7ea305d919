"""Is an argument what a condition says? Yes, no, or it cannot be told. Pure.

Tools read arguments leniently: they strip text, take JSON as text for an object, a single value for a list
of one. So a value of another type than the condition speaks of is neither a fit nor a miss, but None; a rule
that asks then asks, one that lets pass does not. A number that is spelled as text is compared as a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from functools import partial

from pydantic import JsonValue

from activities.contracts import JsonObject
from workflows.gate.canonical import canonical
from workflows.gate.paths import Nothing, value_at
from workflows.gate.patterns import found
from workflows.people import Condition

__all__ = ["fits", "untold"]

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
"""A number as JSON spells it; other spellings mean different things to different tools."""
DIGITS = 400
"""Characters of a number."""


def fits(
    conditions: Mapping[str, Condition], arguments: JsonObject, schema: JsonObject | None = None
) -> bool | None:
    """Do all arguments named fit? Arguments that are not named may be anything. None: it cannot be told.

    A name is a path: `order.total` is `total` within the object `order`. The tool's `schema` says what it
    takes for arguments that are left out, and which names it knows: with others nothing can be told.
    """
    return _all(_holds(one, value_at(arguments, path, schema)) for path, one in conditions.items())


def untold(conditions: Mapping[str, Condition], arguments: JsonObject, schema: JsonObject | None) -> str:
    """Which arguments cannot be judged and what is expected of them, for whoever made the call."""
    found = [
        f"{path[:100]} ({_expected(one)})"
        for path, one in conditions.items()
        if _holds(one, value_at(arguments, path, schema)) is None
    ]
    return ", ".join(found[:5])


def _expected(condition: Condition) -> str:
    if condition.above is not None or condition.below is not None:
        return "a plain number"
    wanted = [one for one in (condition.equals, *condition.one_of) if one is not None]
    if wanted:
        return f"a value of the same kind as {canonical(wanted[0])[:60]}"
    if condition.matches is not None:
        return "text without blanks around it"
    return "text, a list or an object" if condition.longer_than is not None else "given by its own name"


def _all(answers: Iterable[bool | None]) -> bool | None:
    """False as soon as one is; else None as soon as one is; else True."""
    told = list(answers)
    if False in told:
        return False
    return None if None in told else True


def _holds(condition: Condition, value: object) -> bool | None:
    if value is Nothing.UNTOLD:
        return None
    if condition.absent:
        return isinstance(value, Nothing)
    if isinstance(value, Nothing):
        return False if value is Nothing.MISSING else None
    return _all(check(value) for check in _checks(condition))


def _checks(condition: Condition) -> list[Callable[[object], bool | None]]:
    checks: list[Callable[[object], bool | None]] = []
    if condition.equals is not None:
        checks.append(partial(_one_of, (condition.equals,)))
    if condition.one_of:
        checks.append(partial(_one_of, condition.one_of))
    if condition.matches is not None:
        checks.append(partial(_matches, condition.matches))
    if condition.above is not None:
        checks.append(partial(_compare, condition.above, 1))
    if condition.below is not None:
        checks.append(partial(_compare, condition.below, -1))
    if condition.longer_than is not None:
        checks.append(partial(_longer, condition.longer_than))
    return checks


def _one_of(wanted: tuple[JsonValue, ...], value: object) -> bool | None:
    answers = [_like(each, value) for each in wanted]
    if True in answers:
        return True
    return None if None in answers else False


def _like(wanted: JsonValue, value: object) -> bool | None:
    """Equal; None for what a tool might read as equal: another type, such as "5" where 5 is wanted, text
    that differs in blanks around it or in case, an object with other keys (defaults, aliases)."""
    if isinstance(wanted, dict) and isinstance(value, dict):
        shared = _all(_like(each, value[key]) for key, each in wanted.items() if key in value)
        return shared if wanted.keys() == value.keys() or shared is False else None
    if isinstance(wanted, list) and isinstance(value, list):
        return len(wanted) == len(value) and _all(map(_like, wanted, value))
    if wanted is None or value is None:
        return wanted is value
    if _kind(wanted) != _kind(value):
        return None
    if isinstance(wanted, str) and isinstance(value, str) and wanted != value:
        return None if wanted.strip().casefold() == value.strip().casefold() else False
    return wanted == value


def _kind(value: object) -> type:
    """Numbers are of one kind; true is no number."""
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _matches(pattern: str, value: object) -> bool | None:
    if isinstance(value, str):
        answer = found(pattern, value)
        stripped = value.strip()
        return answer if stripped == value or found(pattern, stripped) is answer else None
    return False if value is None else None


def _compare(bound: float, sign: int, value: object) -> bool | None:
    """Above (sign 1) or below (-1) the bound; true is no number, and NaN compares with nothing."""
    if value is None:
        return False
    number = _number(value)
    if number is None:
        return None
    return number > bound if sign > 0 else number < bound


def _number(value: object) -> int | float | Decimal | None:
    if isinstance(value, str) and len(value) <= DIGITS and NUMBER.fullmatch(value):
        try:
            return Decimal(value)
        except InvalidOperation:
            return None
    if isinstance(value, float):
        return None if math.isnan(value) else value
    # Not looked at as a float: a whole number may be larger than any.
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _longer(than: int, value: object) -> bool | None:
    if isinstance(value, str | list | dict):
        return len(value) > than
    return False if value is None else None
