"""The keys of a configuration model in words, from its JSON schema: default, what is allowed, meaning."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import WithDefaultSchema

__all__ = ["DefaultsToo", "Option", "allowed_text", "options_in", "options_of", "schema_of", "without_marks"]

Schema = Mapping[str, Any]
SOURCE = re.compile(r"\s*\[((?:R-\d+-\d+|\d+(?:\.\d+)+)(?:, *(?:R-\d+-\d+|\d+(?:\.\d+)+))*)\]\s*$")
"""At the end of a description: the part of the specification that an option is from; users never see it."""
LONG_DEFAULT = 60
"""Characters; a longer default is told by its inner keys."""


@dataclass(frozen=True, slots=True)
class Option:
    """One key of a model, or one inside of another."""

    name: str
    """Its path as in an agent file: `max_steps`, `stages[].name`, `budgets.*`."""
    default: str | None
    """As JSON; None: it must be given."""
    allowed: str
    meaning: str
    """What it means and its unit."""


def options_of(model: type[BaseModel]) -> tuple[Option, ...]:
    """All keys of a model, those of inner objects after the key that holds them."""
    return options_in(schema_of(model, DefaultsToo))


def options_in(schema: Schema) -> tuple[Option, ...]:
    """The same for a JSON schema, such as that of a tool's arguments."""
    types = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    return tuple(_options(_without_references(schema, types), ""))


def allowed_text(schema: Schema, types: Schema) -> str:
    """What may be given where a schema stands, in words; `types`: what its references name."""
    return _allowed(_without_references(schema, types))


def schema_of(model: type[BaseModel], generator: type[GenerateJsonSchema] = GenerateJsonSchema) -> Any:
    """The JSON schema of a model, without marks of the specification."""
    return without_marks(model.model_json_schema(schema_generator=generator))


def without_marks(value: Any) -> Any:
    """The schema without the parts of the specification that its descriptions end with."""
    if isinstance(value, dict):
        return {
            key: SOURCE.sub("", item)
            if key == "description" and isinstance(item, str)
            else without_marks(item)
            for key, item in value.items()
        }
    return [without_marks(item) for item in value] if isinstance(value, list) else value


class DefaultsToo(GenerateJsonSchema):
    """Writes the defaults that factories make, too."""

    def get_default_value(self, schema: WithDefaultSchema) -> Any:
        if "default_factory" in schema and not schema.get("default_factory_takes_data"):
            return schema["default_factory"]()  # type: ignore[call-arg]  # it takes nothing
        return super().get_default_value(schema)

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        """Keep the order of declaration."""
        return value


def _without_references(schema: Any, types: Schema, around: tuple[str, ...] = ()) -> Any:
    """The schema with each reference replaced by its type; a type inside itself is `the same`."""
    if isinstance(schema, list):
        return [_without_references(item, types, around) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inside = {key: value for key, value in schema.items() if key not in {"$ref", "$defs"}}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference in around or reference == "#":
            return {**inside, "type": "the same"}
        found = types.get(reference.rpartition("/")[2])
        inside = {**(found if isinstance(found, Mapping) else {}), "description": "", **inside}
        around = (*around, reference)
    return {key: _without_references(value, types, around) for key, value in inside.items()}


def _options(schema: Schema, before: str) -> Iterator[Option]:
    """The options of an object and of the objects inside."""
    for way in _ways(schema):
        for key, given in way.get("properties", {}).items():
            field = {} if isinstance(given, bool) else given
            inside = list(_objects(field))
            default = None if key in way.get("required", ()) else json.dumps(field.get("default"))
            yield Option(
                name=before + key,
                default="see its keys" if inside and len(default or "") > LONG_DEFAULT else default,
                allowed=_allowed(field),
                meaning=field.get("description", ""),
            )
            for inner, mark in inside:
                yield from _options(inner, f"{before}{key}{mark}.")


def _objects(schema: Schema | bool) -> Iterator[tuple[Schema, str]]:
    """The objects with keys inside a schema, and what is written between its key and theirs."""
    for way in _ways(schema):
        if "properties" in way:
            yield way, ""
        for inner, mark in ((way.get("items"), "[]"), (_values(way), ".*")):
            if isinstance(inner, Mapping):
                yield from ((found, mark + path) for found, path in _objects(inner))


def _ways(schema: Schema | bool) -> list[Schema]:
    """The alternatives of a schema, each with one type at most; a boolean says nothing of a value."""
    if isinstance(schema, bool):
        return [{}]
    several = schema.get("anyOf") or schema.get("oneOf") or ()
    if isinstance(types := schema.get("type"), list):
        several = [{**schema, "type": name} for name in types]
    return [found for way in several for found in _ways(way)] or [schema]


def _values(schema: Schema) -> Any:
    """The schema of a mapping's values."""
    return next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties"))


def _allowed(schema: Schema | bool) -> str:
    """What may be given, in words."""
    return " or ".join(dict.fromkeys(map(_allowed_way, _ways(schema))))


def _allowed_way(schema: Schema) -> str:
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ", ".join(f"`{value}`" for value in values)
    kind: str = schema.get("type", "anything")
    match kind:
        case "array":
            return f"list of {_allowed(schema.get('items', {}))}{_count(schema, 'Items', 'items')}"
        case "object":
            inner, names = _values(schema), schema.get("propertyNames", {})
            if "properties" in schema or not isinstance(inner, Mapping):
                return "object"
            keys = f" of {_allowed(names)}" if "enum" in names else ""
            return f"mapping{keys} to {_allowed(inner)}"
        case "integer" | "number":
            return f"{kind}{_range(schema)}"
        case "string":
            pattern = f" matching `{schema['pattern']}`" if "pattern" in schema else ""
            return f"text{_count(schema, 'Length', 'characters')}{pattern}"
        case _:
            return {"boolean": "`true`, `false`", "null": "`null`"}.get(kind, kind)


def _range(schema: Schema) -> str:
    if "minimum" in schema and "maximum" in schema:
        return f" from {schema['minimum']} to {schema['maximum']}"
    names = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    words = [f"{word} {schema[name]}" for name, word in names.items() if name in schema]
    return f" {', '.join(words)}" if words else ""


def _count(schema: Schema, what: str, unit: str) -> str:
    names = {f"min{what}": "at least", f"max{what}": "at most"}
    words = [f"{word} {schema[name]}" for name, word in names.items() if schema.get(name)]
    return f", {', '.join(words)} {unit}" if words else ""
