"""The values of one argument, cut where a policy can tell them apart, and sets of them in words. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

__all__ = [
    "ABSENT",
    "Cell",
    "cells",
    "constants",
    "is_loose",
    "largest",
    "may_be_number",
    "number_text",
    "range_text",
    "upper_bound",
]

NUMERIC = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
MAX_NAMED_PIECES = 12
"""Pieces of a set that a text names."""
MAX_VALUE_CHARS = 60


@dataclass(frozen=True, slots=True)
class Cell:
    """Some values of one argument. As far as rules compare numbers and name values, they treat all of one
    cell alike."""

    kind: Literal["absent", "value", "numbers", "text", "list", "object"]
    value: Any = None
    """value: the only one."""
    low: float | None = None
    """numbers: those above it, up to the next number that a rule or the tool's schema names."""
    high: float | None = None
    integral: bool = False
    """numbers: whole ones only."""

    @property
    def is_numeric(self) -> bool:
        """It holds numbers."""
        return self.kind == "numbers" or (self.kind == "value" and _is_number(self.value))

    def sample(self) -> Any:
        """One of its values: for text, lists and objects a plain one. Not for `absent`."""
        if self.kind != "numbers":
            return {"value": self.value, "text": "any text", "list": [], "object": {}}[self.kind]
        if self.low is None and self.high is None:
            return 1
        if self.low is None or self.high is None:
            return _whole_above(self.low) if self.low is not None else _whole_below(self.high or 0)
        whole = _whole_above(self.low)
        return whole if whole < self.high else (self.low + self.high) / 2


ABSENT = Cell("absent")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _whole_above(number: float) -> int:
    return int(number // 1) + 1


def _whole_below(number: float) -> int:
    return -_whole_above(-number)


def may_be_number(schema: Any) -> bool:
    """As far as the schema tells: it names another type, and none behind a reference or a choice."""
    given = schema.get("type", "number") if isinstance(schema, Mapping) else "number"
    each = given if isinstance(given, list | tuple) else [given]
    return any(one in ("integer", "number", "any") or not isinstance(one, str) for one in each)


def constants(schema: Any) -> Iterator[Any]:
    """The numbers that a schema compares with, and the values that it names, at any depth."""
    if isinstance(schema, Mapping):
        for key, wanted in schema.items():
            if (key in NUMERIC and _is_number(wanted)) or key == "const":
                yield wanted
            elif key == "enum" and isinstance(wanted, list | tuple):
                yield from wanted
            else:
                yield from constants(wanted)
    elif isinstance(schema, list | tuple):
        for one in schema:
            yield from constants(one)


def cells(named: Iterable[Any], *, integral: bool) -> tuple[Cell, ...]:
    """All values, cut at the named ones; `integral`: of numbers only whole ones."""
    every = list(named)
    numbers = sorted({one for one in every if _is_number(one)})
    found = [ABSENT, *(Cell("value", one) for one in (None, True, False))]
    low: float | None = None
    for high in [*numbers, None]:
        gap = Cell("numbers", low=low, high=high, integral=integral)
        if not integral or low is None or high is None or _whole_above(low) < high:
            found.append(gap)
        if high is not None:
            found.append(Cell("value", high, integral=integral))
        low = high
    texts = sorted({one for one in every if isinstance(one, str)})
    others = [Cell("text"), Cell("list"), Cell("object")]
    return (*found, *(Cell("value", one) for one in texts), *others)


SHARP = {"type", "enum", "const", "not", "anyOf", "allOf", "oneOf", "title", "description"} | NUMERIC


def is_loose(condition: Any) -> bool:
    """The condition may tell apart values of one cell: it says more than numbers, names and types."""
    if isinstance(condition, bool):
        return False
    if condition.keys() - SHARP or "integer" in str(condition.get("type", "")):
        return True
    named = [condition.get("const"), *condition.get("enum", ())]
    if any(isinstance(one, list | dict) for one in named):
        return True
    inner = [
        condition.get("not", True),
        *(one for key in ("anyOf", "allOf", "oneOf") for one in condition.get(key, ())),
    ]
    return any(is_loose(one) for one in inner)


# -- in words --------------------


def number_text(number: float | Decimal) -> str:
    """`5001`, `10,000,000`, `0.5`."""
    shown = int(number) if number == int(number) else number
    return f"{shown:,}" if shown >= 10_000 or shown <= -10_000 else str(shown)


def range_text(held: Sequence[Cell], more_named: bool = False) -> str:
    """These values, which are cells of `cells` in its order: `1 to 10,000,000`, `"Paper & Pen"`.

    `more_named`: there are named texts that are not among them.
    """
    numbers = [cell for cell in held if cell.is_numeric]
    pieces = [_interval_text(run) for run in _runs(numbers)]
    for cell in held:
        if cell.kind == "absent":
            pieces.append("left out")
        elif cell.kind == "text":
            pieces.append("any other text" if more_named else "any text")
        elif cell.kind in ("list", "object"):
            pieces.append(f"{'a' if cell.kind == 'list' else 'an'} {cell.kind}")
        elif not cell.is_numeric:
            pieces.append(_value_text(cell.value))
    shown = ", ".join(pieces[:MAX_NAMED_PIECES])
    return (
        f"{shown} and {len(pieces) - MAX_NAMED_PIECES} more"
        if len(pieces) > MAX_NAMED_PIECES
        else shown or "nothing"
    )


def _value_text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"


def _ends(cell: Cell) -> tuple[float | None, bool, float | None, bool]:
    """Lower end, whether it belongs to the cell, upper end, whether it does."""
    if cell.kind == "value":
        return cell.value, True, cell.value, True
    if cell.integral:
        low = None if cell.low is None else _whole_above(cell.low)
        return low, True, None if cell.high is None else _whole_below(cell.high), True
    return cell.low, False, cell.high, False


def _runs(numbers: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Neighbours together."""
    run: list[Cell] = []
    for cell in numbers:
        if run and not _touch(run[-1], cell):
            yield run
            run = []
        run.append(cell)
    if run:
        yield run


def _touch(one: Cell, other: Cell) -> bool:
    _, _, high, closed = _ends(one)
    low, is_there, _, _ = _ends(other)
    if high is None or low is None:
        return False
    next_whole = one.integral and closed and is_there and low - high == 1
    return next_whole or (high == low and (closed or is_there))


def _interval_text(run: Sequence[Cell]) -> str:
    low, from_low, _, _ = _ends(run[0])
    _, _, high, to_high = _ends(run[-1])
    if low is None and high is None:
        return "any number"
    if high is None and low is not None:
        return f"{number_text(low)} or more" if from_low else f"more than {number_text(low)}"
    if low is None and high is not None:
        return f"{number_text(high)} or less" if to_high else f"less than {number_text(high)}"
    assert low is not None
    assert high is not None
    if low == high:
        return number_text(low)
    if from_low and to_high:
        return f"{number_text(low)} to {number_text(high)}"
    first = f"from {number_text(low)}" if from_low else f"more than {number_text(low)}"
    return f"{first} {'up to' if to_high else 'and less than'} {number_text(high)}"


def largest(held: Iterable[Cell]) -> Cell | None:
    """The largest number; None: there is none."""
    numbers = [cell for cell in held if cell.is_numeric]
    if not numbers:
        return None
    _, _, high, is_there = _ends(numbers[-1])
    return Cell("value", high, integral=numbers[-1].integral) if high is not None and is_there else None


def upper_bound(held: Iterable[Cell]) -> float | None:
    """The largest number, or the one that all are below; None: there is none. 0 without numbers."""
    highs = [_ends(cell)[2] for cell in held if cell.is_numeric]
    if any(high is None for high in highs):
        return None
    return max((high for high in highs if high is not None), default=0)
