"""The keys of a configuration model in words, from its JSON schema: default, what is allowed, meaning."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import WithDefaultSchema

__all__ = ["Option", "allowed_at", "keys_at", "options_of"]

Schema = Mapping[str, Any]
SOURCE = re.compile(r"\s*\[((?:R-\d+-\d+|\d+(?:\.\d+)+)(?:, *(?:R-\d+-\d+|\d+(?:\.\d+)+))*)\]\s*$")
"""At the end of a description: the part of the specification that an option comes from."""
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
    source: str
    """Part of the specification, such as `1.7, R-000-4`; may be empty."""


def options_of(model: type[BaseModel]) -> tuple[Option, ...]:
    """All keys of a model, those of inner objects after the key that holds them."""
    whole = _Schemas.of(model)
    return tuple(whole.options(whole.root, "", ()))


def allowed_at(model: type[BaseModel], where: Iterable[str | int]) -> str:
    """What is allowed at a path below the model; empty when the path leads nowhere."""
    whole = _Schemas.of(model)
    found = whole.at(where)
    return whole.allowed(found, ()) if found is not None else ""


def keys_at(model: type[BaseModel], where: Iterable[str | int]) -> list[str]:
    """The keys of the object at a path below the model."""
    whole = _Schemas.of(model)
    found = whole.at(where)
    return [key for way, _ in whole.ways(found, ()) for key in way.get("properties", {})] if found else []


class _DefaultsToo(GenerateJsonSchema):
    """Writes the defaults that factories make, too."""

    def get_default_value(self, schema: WithDefaultSchema) -> Any:
        if "default_factory" in schema and not schema.get("default_factory_takes_data"):
            return schema["default_factory"]()  # type: ignore[call-arg]  # it takes nothing
        return super().get_default_value(schema)

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        """Keep the order of declaration."""
        return value


@dataclass(frozen=True, eq=False)
class _Schemas:
    """A JSON schema with its definitions. `above`: references around a place; a type may hold itself."""

    root: Schema

    @staticmethod
    @lru_cache(maxsize=64)
    def of(model: type[BaseModel]) -> _Schemas:
        return _Schemas(model.model_json_schema(schema_generator=_DefaultsToo))

    def ways(self, schema: Schema, above: tuple[str, ...]) -> list[tuple[Schema, tuple[str, ...]]]:
        """The alternatives of a schema; a type that is around it already stays a reference."""
        if reference := schema.get("$ref"):
            if reference in above:
                return [(schema, above)]
            return self.ways(self.root["$defs"][reference.rpartition("/")[2]], (*above, reference))
        several = schema.get("anyOf") or schema.get("oneOf") or ()
        return [found for way in several for found in self.ways(way, above)] or [(schema, above)]

    def at(self, where: Iterable[str | int]) -> Schema | None:
        schema: Schema | None = self.root
        for part in where:
            below = (_below(way, part) for way, _ in self.ways(schema or {}, ()))
            schema = next((found for found in below if found is not None), None)
        return schema

    def options(self, schema: Schema, before: str, above: tuple[str, ...]) -> Iterator[Option]:
        """The options of an object and of the objects inside."""
        for way, around in self.ways(schema, above):
            for key, field in way.get("properties", {}).items():
                inside = list(self.objects(field, around))
                source = SOURCE.search(field.get("description", ""))
                default = None if key in way.get("required", ()) else json.dumps(field.get("default"))
                yield Option(
                    name=before + key,
                    default="see its keys" if inside and len(default or "") > LONG_DEFAULT else default,
                    allowed=self.allowed(field, around),
                    meaning=SOURCE.sub("", field.get("description", "")),
                    source=source[1] if source else "",
                )
                for inner, mark, over in inside:
                    yield from self.options(inner, f"{before}{key}{mark}.", over)

    def objects(
        self, schema: Schema, above: tuple[str, ...]
    ) -> Iterator[tuple[Schema, str, tuple[str, ...]]]:
        """The objects with keys inside a schema, and what is written between its key and theirs."""
        for way, around in self.ways(schema, above):
            if "properties" in way:
                yield way, "", around
            for inner, mark in ((way.get("items"), "[]"), (_values(way), ".*")):
                if isinstance(inner, Mapping):
                    yield from (
                        (found, mark + path, over) for found, path, over in self.objects(inner, around)
                    )

    def allowed(self, schema: Schema, above: tuple[str, ...]) -> str:
        """What may be given, in words."""
        words = [self._allowed(way, around) for way, around in self.ways(schema, above)]
        return " or ".join(dict.fromkeys(words))

    def _allowed(self, schema: Schema, above: tuple[str, ...]) -> str:
        if "$ref" in schema:
            return "the same"
        if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
            return ", ".join(f"`{value}`" for value in values)
        match schema.get("type", "anything"):
            case "array":
                items = self.allowed(schema.get("items", {}), above)
                return f"list of {items}{_count(schema, 'Items', 'items')}"
            case "object":
                return self._mapping(schema, above)
            case other:
                return _scalar(schema, other)

    def _mapping(self, schema: Schema, above: tuple[str, ...]) -> str:
        inner, names = _values(schema), schema.get("propertyNames", {})
        if "properties" in schema or not isinstance(inner, Mapping):
            return "object"
        keys = f" of {self.allowed(names, above)}" if names.keys() & {"enum", "$ref"} else ""
        return f"mapping{keys} to {self.allowed(inner, above)}"


def _scalar(schema: Schema, kind: str) -> str:
    match kind:
        case "integer" | "number":
            return f"{kind}{_range(schema)}"
        case "string":
            pattern = f" matching `{schema['pattern']}`" if "pattern" in schema else ""
            return f"text{_count(schema, 'Length', 'characters')}{pattern}"
        case "boolean":
            return "`true`, `false`"
        case _:
            return "`null`" if kind == "null" else kind


def _below(schema: Schema, part: str | int) -> Schema | None:
    inside = schema.get("items") if isinstance(part, int) else schema.get("properties", {}).get(part)
    if inside is None and isinstance(part, str):
        inside = _values(schema)
    return inside if isinstance(inside, Mapping) else None


def _values(schema: Schema) -> Any:
    """The schema of a mapping's values."""
    return next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties"))


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    bounds = {"at least": low, "above": above, "at most": high, "below": below}
    words = [f"{name} {bound}" for name, bound in bounds.items() if bound is not None]
    return f" {', '.join(words)}" if words else ""


def _count(schema: Schema, what: str, unit: str) -> str:
    bounds = {"at least": schema.get(f"min{what}") or None, "at most": schema.get(f"max{what}")}
    words = [f"{name} {bound}" for name, bound in bounds.items() if bound is not None]
    return f", {', '.join(words)} {unit}" if words else ""
