"""A few values of a JSON schema: each choice that it names, the ends of ranges, and what may be left out."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError

from activities.contracts import JsonObject

__all__ = ["fits", "samples", "schema_of"]

Words = Mapping[str, Sequence[JsonValue]]
"""Name of a property -> the values that are tried for it."""
MAX_COMBINED = 48
"""Choices of all properties are combined up to so many objects; beyond that one is varied at a time, and two
where both have named choices."""
MAX_PAIRS = 96
"""Objects in which two named choices are varied."""
MAX_DEPTH = 4
"""Levels of nested lists and objects."""
FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "12:00:00Z",
    "email": "ann@example.org",
    "uri": "https://example.org",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
"""Format of a text -> one that has it."""


def schema_of(form: Any) -> JsonObject:
    """The JSON schema of a form: of a pydantic type, or the schema itself."""
    if isinstance(form, Mapping):
        return dict(form)
    if isinstance(form, type) and issubclass(form, BaseModel):
        return form.model_json_schema()
    return TypeAdapter(form).json_schema()


def fits(form: Any, value: Any) -> bool:
    """A visit that reads this by the form takes it."""
    if isinstance(form, Mapping):
        return bool(Draft202012Validator(form).is_valid(value))
    try:
        TypeAdapter(form).validate_json(json.dumps(value))
    except ValidationError:
        return False
    return True


def samples(schema: JsonObject, words: Words) -> list[Any]:
    """Values that fit the schema, the plainest first; at most some dozens."""
    return _distinct(_Samples(schema, words).of(schema, MAX_DEPTH))


class _Samples:
    def __init__(self, root: JsonObject, words: Words) -> None:
        self.root, self.words = root, words

    def of(self, schema: Any, depth: int) -> list[Any]:
        """Values of this part of the schema."""
        schema = self._plain(schema)
        if "const" in schema:
            return [schema["const"]]
        if "enum" in schema:
            return list(schema["enum"])
        kind = schema.get("type", "object" if "properties" in schema else None)
        choices = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(kind, list):
            choices = [{**schema, "type": one} for one in kind]
        if choices:
            return [value for one in choices for value in self.of(one, depth)]
        return self._of_type(kind, schema, depth)

    def _plain(self, schema: Any) -> Mapping[str, Any]:
        """With what it refers to, and the first of what must hold together."""
        if not isinstance(schema, Mapping):
            return {}
        if "$ref" in schema:
            found: Any = self.root
            for part in str(schema["$ref"]).removeprefix("#/").split("/"):
                found = found.get(part) if isinstance(found, Mapping) else None
            return self._plain(found)
        if "allOf" in schema:
            return {**self._plain(schema["allOf"][0]), **{k: v for k, v in schema.items() if k != "allOf"}}
        return schema

    def _of_type(self, kind: Any, schema: Mapping[str, Any], depth: int) -> list[Any]:
        match kind:
            case "boolean":
                return [False, True]
            case "null":
                return [None]
            case "integer" | "number":
                return _numbers(schema, 1 if kind == "integer" else 0.5)
            case "array":
                return self._lists(schema, depth)
            case "object":
                return self._objects(schema, depth)
        return _texts(schema)

    def _lists(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        if fixed := schema.get("prefixItems"):
            return [list(row) for row in _combined([self.of(one, depth - 1) for one in fixed])]
        least = schema.get("minItems", 0)
        inner = self.of(schema.get("items", {}), depth - 1) if depth else []
        return [*([value] * max(least, 1) for value in inner), *([] if least else [[]])]

    def _objects(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        """The choices of all properties combined, where they are few; else one property is varied at a time.
        Then without each property that may be left out."""
        named = schema.get("properties", {})
        if depth == 0 or not named:
            return [{}, *(self._maps(schema, depth) if depth else [])]
        choices = {
            name: list(self.words[name]) if name in self.words else _distinct(self.of(one, depth - 1))
            for name, one in named.items()
        }
        closed = [at for at, one in enumerate(named.values()) if _names_choices(self._plain(one))]
        plain = {name: values[0] for name, values in choices.items() if values}
        found = [dict(zip(choices, row, strict=True)) for row in _combined(list(choices.values()), closed)]
        optional = [name for name in named if name not in schema.get("required", ())]
        return found + [{n: v for n, v in plain.items() if n != name} for name in optional]

    def _maps(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        """Objects with any names, each with one entry."""
        inner = schema.get("additionalProperties")
        if not isinstance(inner, Mapping):
            return []
        names = self.of(schema.get("propertyNames", {}), 0)
        return [{str(name): value} for name in names for value in self.of(inner, depth - 1)]


def _names_choices(schema: Mapping[str, Any]) -> bool:
    return "enum" in schema or schema.get("type") == "boolean"


def _combined(choices: list[list[Any]], closed: Sequence[int] = ()) -> Iterable[Sequence[Any]]:
    """All rows of one choice each, where they are few; else the first row, it with one choice changed, and
    with two changed of those whose choices are named (`closed`)."""
    if math.prod(len(values) for values in choices) <= MAX_COMBINED:
        return itertools.product(*choices)
    first = [values[0] for values in choices]
    changed = (
        [*first[:at], value, *first[at + 1 :]] for at, values in enumerate(choices) for value in values[1:]
    )
    pairs = (
        [one if n == at else other if n == then else value for n, value in enumerate(first)]
        for at, then in itertools.combinations(closed, 2)
        for one in choices[at][1:]
        for other in choices[then][1:]
    )
    return [first, *changed, *itertools.islice(pairs, MAX_PAIRS)]


def _numbers(schema: Mapping[str, Any], step: float) -> list[Any]:
    """Both ends of the range; without an end, the next number."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and (above := schema.get("exclusiveMinimum")) is not None:
        low = above + step
    if high is None and (below := schema.get("exclusiveMaximum")) is not None:
        high = below - step
    first = low if low is not None else 0 if high is None else min(0, high)
    return sorted({first, first + 1 if high is None else high})


def _texts(schema: Mapping[str, Any]) -> list[Any]:
    if schema.get("format") in FORMATS:
        return [FORMATS[schema["format"]]]
    if given := [*schema.get("examples", ()), *filter(None, [schema.get("default")])]:
        return given
    least = schema.get("minLength", 0)
    return ["x" * least] if least else ["x", ""]


def _distinct(values: list[Any]) -> list[Any]:
    return list({json.dumps(value, sort_keys=True, default=str): value for value in values}.values())
