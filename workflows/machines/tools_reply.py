"""Native tool calls and their results as texts: arguments are read, results become JSON (spec 2.5).

Never raises on any text.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

__all__ = ["BadArguments", "as_json", "error_json", "read_arguments", "shown_name"]

DEPTH_LIMIT = 50
"""Arguments may be nested so deep; no tool's schema comes near it."""
SHOWN = 200
NAME_SHOWN = 100
"""Characters of a tool's name in errors and messages; no tool has so many."""


@dataclass(frozen=True, slots=True)
class BadArguments:
    """Arguments that cannot be used, and why, in words for the model."""

    problem: str


def read_arguments(text: str) -> dict[str, Any] | BadArguments:
    """The JSON object that a model wrote as arguments. A blank text stands for no arguments."""
    if not text.strip():
        return {}
    try:
        value = _DECODER.decode(text)
        if not isinstance(value, dict):
            return BadArguments(f"the arguments are {_kind(value)}; expected one JSON object")
        cleaned: dict[str, Any] = _clean(value, DEPTH_LIMIT)
    except (ValueError, RecursionError) as error:
        why = str(error)[:SHOWN]
        return BadArguments(f"the arguments cannot be read as JSON: {why}; expected one JSON object")
    return cleaned


def as_json(output: str) -> str:
    """A tool's output as JSON: as it is when it is JSON already, else as a JSON string."""
    try:
        _DECODER.decode(output)
    except (ValueError, RecursionError):
        return _dumped(output)
    return output


def error_json(problem: str) -> str:
    """What the model is shown of a call that failed."""
    return _dumped({"error": _text(problem)})


def shown_name(name: str) -> str:
    """The name of a tool as a model gave it, which may be anything: cut, and visible if it is empty."""
    if len(name) > NAME_SHOWN:
        return f"{name[: NAME_SHOWN - 1]}…"
    return name or '""'


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"the number {number[:40]} is too great")
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict | list) and not depth:
        raise ValueError(f"they are nested deeper than {DEPTH_LIMIT}")
    if isinstance(value, dict):
        return {_text(key): _clean(item, depth - 1) for key, item in value.items()}
    return [_clean(item, depth - 1) for item in value] if isinstance(value, list) else value


def _text(text: str) -> str:
    """JSON can spell half a character pair, which no encoding can write."""
    return text.encode("utf-8", "replace").decode()
