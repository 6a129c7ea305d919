"""JSON that came as text, from a model or a tool: read strictly. Pure; never raises on any text.

Strictly: no NaN and no infinity, numbers and depth within bounds, no half of a character pair.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from activities.contracts import JsonObject, ModelReplied, NativeCall

__all__ = [
    "REPLY_CUT",
    "LARGEST_INTEGER",
    "NotJson",
    "as_text",
    "call_arguments",
    "clean",
    "cut",
    "first_value",
    "is_json",
    "merged",
    "object_in",
    "read_arguments",
    "read_object",
    "shown_name",
    "shown_value",
    "sole_object_in",
    "unfenced",
    "unread",
    "was_cut",
]

DEPTH_LIMIT = 50
"""Levels; what is nested deeper cannot be written into every log."""
LARGEST_INTEGER = 2**64
"""Integers beyond it are refused: no id or count is greater, and a float cannot hold every integer."""
REPLY_CUT = "the reply was cut at its length limit (max_output_tokens)"
_FENCE = "```"


@dataclass(frozen=True, slots=True)
class NotJson:
    """A text that cannot be used, and why."""

    problem: str


def read_object(text: str) -> JsonObject | NotJson:
    """The JSON object that a text is, also within a fence. An object among other words is not read: a
    reply that only quotes one must not be taken for it."""
    body = unfenced(text)
    if not body:
        return NotJson("it is empty")
    value = _value_from(lambda: _DECODER.decode(body))
    if isinstance(value, NotJson):
        return value
    return value if isinstance(value, dict) else NotJson(f"a JSON object is expected, {_kind(value)} came")


def object_in(text: str) -> JsonObject | NotJson:
    """The JSON object that a reply is, or that its outermost braces hold."""
    whole = read_object(text)
    start, end = text.find("{"), text.rfind("}")
    if not isinstance(whole, NotJson) or not 0 <= start < end:
        return whole
    return read_object(text[start : end + 1])


def sole_object_in(text: str) -> JsonObject | NotJson:
    """The one JSON object that a text is, or has among words without braces, for readers to whom it must mean
    one thing only: none out of a list, and each key once."""
    body = unfenced(text)
    if not body:
        return NotJson("it is empty")
    whole = _value_from(lambda: _EACH_ONCE.decode(body))
    start, end = body.find("{"), body.rfind("}")
    if isinstance(whole, dict) or (isinstance(whole, NotJson) and not 0 <= start < end):
        return whole
    if not isinstance(whole, NotJson):
        return NotJson(f"a JSON object is expected, {_kind(whole)} came")
    if body.count("[", 0, start) > body.count("]", 0, start):
        return NotJson("a JSON object is expected, it came in a list")
    first: JsonObject | NotJson = _value_from(lambda: _EACH_ONCE.raw_decode(body, start)[0])
    if not isinstance(first, NotJson) and _EACH_ONCE.raw_decode(body, start)[1] <= end:
        return NotJson("one JSON object is expected, more braces came behind it")
    return first


def read_arguments(text: str) -> JsonObject | NotJson:
    """A tool call's arguments; missing ones are no arguments (spec 4.3)."""
    if not text.strip() or text.strip() == "null":
        return {}
    return read_object(text)


def call_arguments(call: NativeCall) -> JsonObject | NotJson:
    """The arguments of a native tool call, or in words for the model why they cannot be used."""
    read = read_arguments(call.arguments)
    return NotJson(f"the arguments cannot be used: {read.problem}") if isinstance(read, NotJson) else read


def first_value(text: str, start: int = 0) -> Any:
    """The JSON value that begins at `start`, or a NotJson; whatever follows is ignored."""
    return _value_from(lambda: _DECODER.raw_decode(text, start)[0])


def shown_value(output: str) -> Any:
    """A tool's output as the value of a record: the JSON object or list that it is, else the text."""
    if not output.lstrip().startswith(("{", "[")):
        return output
    value = _value_from(lambda: _DECODER.decode(output))
    return output if isinstance(value, NotJson) else value


def is_json(text: str) -> bool:
    """Whether the text is one JSON value, with numbers of any size, and nothing else."""
    try:
        _ANY_SIZE.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The old mapping with the new keys; nested mappings are merged, anything else is replaced (spec 4.9)."""
    result = dict(old)
    for key, value in new.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def unfenced(text: str) -> str:
    """The text without blanks around it, and without a fence of three backquotes."""
    body = text.strip()
    if len(body) < 2 * len(_FENCE) or not (body.startswith(_FENCE) and body.endswith(_FENCE)):
        return body
    tag, newline, rest = body[len(_FENCE) : -len(_FENCE)].partition("\n")
    return rest.strip() if newline and (tag.strip().isalpha() or not tag.strip()) else body


def as_text(value: Any) -> str:
    """A text without blanks around it; nothing for nothing; anything else as JSON."""
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def clean(text: str) -> str:
    """The text without halves of character pairs: JSON can spell them, no encoding can write them."""
    return text.encode("utf-8", "replace").decode()


def cut(text: str, most: int = 100) -> str:
    """A text that somebody else wrote, short enough to be quoted."""
    return text if len(text) <= most else f"{text[:most]}..."


def shown_name(name: str) -> str:
    """A tool's name as a model gave it: cut, and visible if it is empty."""
    return cut(name) or '""'


def was_cut(reply: ModelReplied) -> bool:
    """The model had more to say than it was allowed to."""
    return reply.finish_reason == "length"


def unread(reply: ModelReplied, problem: str) -> str:
    """Why a reply cannot be read: that it was cut is the cause of whatever else is wrong with it."""
    return f"{REPLY_CUT}: {problem}" if was_cut(reply) else problem


def _value_from(decode: Callable[[], Any]) -> Any:
    try:
        value = decode()
    except (ValueError, RecursionError) as error:
        return NotJson(f"it is not JSON: {str(error)[:200]}")
    return _cleaned(value) if _depth_fits(value) else NotJson(f"it is nested more than {DEPTH_LIMIT} deep")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"the number {number[:40]} is too great")
    return value


def _bounded(number: str) -> int:
    if len(number) > len(str(-LARGEST_INTEGER)) or not -LARGEST_INTEGER <= int(number) <= LARGEST_INTEGER:
        raise ValueError(f"the number {cut(number, 40)} is too great")
    return int(number)


def _each_once(pairs: list[tuple[str, Any]]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {cut(name, 40)} comes more than once")
    return found


_ANY_SIZE = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, parse_int=_bounded)
_EACH_ONCE = json.JSONDecoder(
    parse_constant=_no_constant, parse_float=_finite, parse_int=_bounded, object_pairs_hook=_each_once
)


def _depth_fits(value: Any, left: int = DEPTH_LIMIT) -> bool:
    if not isinstance(value, dict | list):
        return True
    items = value.values() if isinstance(value, dict) else value
    return left > 0 and all(_depth_fits(item, left - 1) for item in items)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
