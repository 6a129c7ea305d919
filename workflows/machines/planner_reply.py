"""Reading JSON that a model wrote: a plan, a decision, a tool's arguments. Never raises on any text."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from activities.contracts import JsonObject

__all__ = ["NotJson", "read_arguments", "read_object", "shown_value"]

DEPTH_LIMIT = 50
"""Levels; no plan needs more, and what is nested deeper cannot be written into every log."""


@dataclass(frozen=True, slots=True)
class NotJson:
    """A text that cannot be used, and why."""

    problem: str


_FENCE = re.compile(r"\A\s*```[A-Za-z]*[ \t\r]*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)


def read_object(text: str) -> JsonObject | NotJson:
    """The JSON object that a reply is, also within a fence."""
    fenced = _FENCE.match(text)
    value = _read(fenced.group(1) if fenced else text)
    if isinstance(value, NotJson):
        return value
    return value if isinstance(value, dict) else NotJson(f"a JSON object is expected, {_kind(value)} came")


def read_arguments(text: str) -> JsonObject | NotJson:
    """A tool call's arguments; missing ones are no arguments (spec 4.3)."""
    if not text.strip() or text.strip() == "null":
        return {}
    return read_object(text)


def shown_value(output: str) -> Any:
    """A tool's output as the value of a record: the JSON object or list that it is, else the text."""
    if not output.lstrip().startswith(("{", "[")):
        return output
    value = _read(output)
    return output if isinstance(value, NotJson) else value


def _read(text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        return NotJson(f"it is not JSON: {str(error)[:200]}" if text.strip() else "it is empty")
    return _clean(value) if _depth_fits(value) else NotJson(f"it is nested more than {DEPTH_LIMIT} deep")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"the number {number[:40]} is too great")
    return value


def _depth_fits(value: Any, left: int = DEPTH_LIMIT) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left > 0 and all(_depth_fits(item, left - 1) for item in items)


def _clean(value: Any) -> Any:
    """JSON can spell half a character pair, which no encoding can write."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
