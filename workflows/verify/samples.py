"""A few values of a JSON schema: each choice that it names, the ends of each range, and what does not fit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, JsonValue, TypeAdapter

from activities.contracts import JsonObject

__all__ = ["samples", "schema_of"]

Words = Mapping[str, Sequence[JsonValue]]
"""Name of a property -> the values that are tried for it."""
COMBINED = 48
"""Choices of all properties are combined up to so many objects; beyond that one is varied at a time."""
DEPTH = 4
"""Levels of nested lists and objects."""
FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "12:00:00Z",
    "email": "ann@example.org",
    "uri": "https://example.org",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def schema_of(form: Any) -> JsonObject:
    """The JSON schema of a form: of a pydantic type, or the schema itself."""
    if isinstance(form, Mapping):
        return dict(form)
    if isinstance(form, type) and issubclass(form, BaseModel):
        return form.model_json_schema()
    return TypeAdapter(form).json_schema()


def samples(schema: JsonObject, words: Words) -> list[Any]:
    """Values that fit the schema, the plainest first; at most some dozens."""
    return _distinct(_values(schema, schema, words, DEPTH))


def _values(schema: Any, root: JsonObject, words: Words, depth: int) -> list[Any]:
    if not isinstance(schema, Mapping):
        return ["x"]
    if "$ref" in schema:
        return _values(_resolved(str(schema["$ref"]), root), root, words, depth)
    if "const" in schema:
        return [schema["const"]]
    if "enum" in schema:
        return list(schema["enum"])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return [value for one in schema[union] for value in _values(one, root, words, depth)]
    if "allOf" in schema:
        return _values({**schema["allOf"][0], **{k: v for k, v in schema.items() if k != "allOf"}}, root, words, depth)
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):
        return [value for one in kind for value in _values({**schema, "type": one}, root, words, depth)]
    return _of_type(kind, schema, root, words, depth)


def _of_type(kind: Any, schema: Any, root: JsonObject, words: Words, depth: int) -> list[Any]:
    match kind:
        case "boolean":
            return [False, True]
        case "null":
            return [None]
        case "integer" | "number":
            return _numbers(schema, 1 if kind == "integer" else 0.5)
        case "array":
            return _lists(schema, root, words, depth)
        case "object":
            return _objects(schema, root, words, depth)
        case "string":
            return _texts(schema)
    return ["x"]


def _numbers(schema: Any, step: float) -> list[Any]:
    """Both ends of the range, and one value inside."""
    low = schema.get("minimum", schema.get("exclusiveMinimum", None))
    high = schema.get("maximum", schema.get("exclusiveMaximum", None))
    if low is not None and "minimum" not in schema:
        low += step
    if high is not None and "maximum" not in schema:
        high -= step
    first = low if low is not None else min(0, high) if high is not None else 0
    second = high if high is not None else first + 1
    return sorted({first, second})


def _texts(schema: Any) -> list[Any]:
    if "format" in schema and schema["format"] in FORMATS:
        return [FORMATS[schema["format"]]]
    if given := [*schema.get("examples", ()), *([schema["default"]] if schema.get("default") else [])]:
        return given
    least, most = schema.get("minLength", 0), schema.get("maxLength", 10**6)
    return ["x" * least] if least else ["x"[:most], ""]


def _lists(schema: Any, root: JsonObject, words: Words, depth: int) -> list[Any]:
    least = schema.get("minItems", 0)
    if fixed := schema.get("prefixItems"):
        return [list(row) for row in itertools.islice(
            itertools.product(*(_values(one, root, words, depth - 1) for one in fixed)), COMBINED)]  # fmt: skip
    if depth == 0:
        return [[]]
    inner = _values(schema.get("items", {}), root, words, depth - 1)
    lists = [[value] * max(least, 1) for value in inner]
    return lists if least else [*lists, []]


def _objects(schema: Any, root: JsonObject, words: Words, depth: int) -> list[Any]:
    """The choices of all properties combined, where they are few; else one property is varied at a time. Then
    without each property that may be left out."""
    named = schema.get("properties", {})
    if depth == 0 or not named:
        names = _values(schema["propertyNames"], root, words, 0) if "propertyNames" in schema else ["x"]
        inner = schema.get("additionalProperties")
        if not isinstance(inner, Mapping) or depth == 0:
            return [{}]
        return [{}, *({name: value} for name in names for value in _values(inner, root, words, depth - 1))]
    choices = {
        name: list(words[name]) if name in words else _distinct(_values(one, root, words, depth - 1))
        for name, one in named.items()
    }
    plain = {name: values[0] for name, values in choices.items() if values}
    total = 1
    for values in choices.values():
        total *= max(len(values), 1)
    if total <= COMBINED:
        found = [dict(zip(choices, row, strict=True)) for row in itertools.product(*choices.values())]
    else:
        found = [plain, *({**plain, name: one} for name, values in choices.items() for one in values[1:])]
    optional = [name for name in named if name not in schema.get("required", ())]
    return found + [{n: v for n, v in plain.items() if n != name} for name in optional]


def _resolved(reference: str, root: JsonObject) -> Any:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part, {}) if isinstance(found, Mapping) else {}
    return found


def _distinct(values: list[Any]) -> list[Any]:
    return list({json.dumps(value, sort_keys=True, default=str): value for value in values}.values())
