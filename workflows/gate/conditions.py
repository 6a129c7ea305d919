"""Is an argument what a condition says? Yes, no, or it cannot be told. Pure.

Tools read arguments leniently: "5000" becomes 5000. So a value of another type than the condition
speaks of is neither a fit nor a miss, but None; a rule that asks then asks, one that lets pass does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from pydantic import JsonValue

from activities.contracts import JsonObject
from workflows.gate.patterns import found
from workflows.people import Condition

__all__ = ["fits"]

MISSING = object()


def fits(conditions: Mapping[str, Condition], arguments: JsonObject) -> bool | None:
    """Do all arguments named fit? Arguments that are not named may be anything. None: it cannot be told.

    A name is a path: `order.total` is `total` within the object `order`. A dot always leads inside.
    """
    return _all(_holds(condition, _at(arguments, path)) for path, condition in conditions.items())


def _at(arguments: JsonObject, path: str) -> object:
    value: object = arguments
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return MISSING
        value = value[part]
    return value


def _all(answers: Iterable[bool | None]) -> bool | None:
    """False as soon as one is; else None as soon as one is; else True."""
    told = list(answers)
    if False in told:
        return False
    return None if None in told else True


def _holds(condition: Condition, value: object) -> bool | None:
    if condition.absent or value is MISSING:
        return condition.absent and value is MISSING
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
    """Equal; None for a single value of another type, such as "5" where 5 is wanted."""
    if isinstance(wanted, dict) and isinstance(value, dict):
        if wanted.keys() != value.keys():
            return False
        return _all(_like(each, value[key]) for key, each in wanted.items())
    if isinstance(wanted, list) and isinstance(value, list):
        return len(wanted) == len(value) and _all(map(_like, wanted, value))
    kinds = _kind(wanted), _kind(value)
    if "" in kinds or kinds[0] == kinds[1]:
        return wanted == value
    return None


def _kind(value: object) -> str:
    """Of a single value that a tool might read as another type; empty for null, lists and objects."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else ""


def _matches(pattern: str, value: object) -> bool | None:
    if isinstance(value, str):
        return found(pattern, value)
    return False if value is None else None


def _compare(bound: float, sign: int, value: object) -> bool | None:
    """Above (sign 1) or below (-1) the bound; true is no number, and NaN compares with nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return False if value is None else None
    return value > bound if sign > 0 else value < bound


def _longer(than: int, value: object) -> bool | None:
    if isinstance(value, str | list | dict):
        return len(value) > than
    return False if value is None else None
