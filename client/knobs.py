"""The keys of a configuration in words: default, what is allowed, what it means, where it comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

__all__ = ["Knob", "allowed_at", "knobs"]

Schema = Mapping[str, Any]
Above = tuple[str, ...]
"""References to the types that something stands in: a user's type may hold itself."""
_SOURCE = re.compile(r"\s*\[((?:R-\d+-\d+|\d+(?:\.\d+)+)(?:, *(?:R-\d+-\d+|\d+(?:\.\d+)+))*)\]\s*$")
"""At the end of a description: the part of the specification that a knob comes from."""
_LONG = 60
"""Characters of a default; a longer one is told by its inner keys."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One key of a machine's options, or one inside of another."""

    name: str
    """Its path as in an agent file: `max_steps`, `stages[].name`, `budgets.*`."""
    default: str | None
    """As JSON; None: it must be given."""
    allowed: str
    meaning: str
    """What it means and its unit."""
    source: str
    """Part of the specification, such as `1.7, R-000-4`; may be empty."""


def knobs(options: type[BaseModel]) -> tuple[Knob, ...]:
    """All keys of the options, those of inner objects behind the key that holds them."""
    return tuple(_of(options, "", ()))


def allowed_at(model: type[BaseModel], where: Iterable[str | int]) -> str | None:
    """What is allowed at a path below the model; None when the path leads nowhere."""
    whole = model.model_json_schema()
    schema: Schema | None = whole
    for part in where:
        below = (_below(way, part) for way, _ in _ways(schema or {}, whole))
        schema = next((found for found in below if found is not None), None)
    return None if schema is None else _allowed(schema, whole)


def _of(model: type[BaseModel], before: str, above: tuple[type[BaseModel], ...]) -> Iterator[Knob]:
    whole = model.model_json_schema()
    for name, field in model.model_fields.items():
        key = field.alias or name
        schema = _resolved(whole, whole).get("properties", {}).get(key, {})
        source = _SOURCE.search(field.description or "")
        inside = [(kind, path) for kind, path in _inner(field.annotation) if kind not in (*above, model)]
        yield Knob(
            name=before + key,
            default=_default(field, has_inner=bool(inside)),
            allowed=_allowed(schema, whole),
            meaning=_SOURCE.sub("", field.description or ""),
            source=source[1] if source else "",
        )
        for kind, path in inside:
            yield from _of(kind, f"{before}{key}{path}.", (*above, model))


def _default(field: FieldInfo, *, has_inner: bool) -> str | None:
    if field.is_required():
        return None
    value = field.get_default(call_default_factory=True, validated_data={})
    text = json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)
    return "see its keys" if has_inner and len(text) > _LONG else text


def _inner(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """The models inside of a type, and what stands between its key and theirs."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ""
        return
    origin = get_origin(annotation)
    mark = "[]" if origin in (tuple, list) else ".*" if origin is dict else ""
    for argument in dict.fromkeys(_arguments(annotation)):
        yield from ((kind, mark + path) for kind, path in _inner(argument))


def _arguments(annotation: Any) -> list[Any]:
    return [argument for argument in get_args(annotation) if isinstance(argument, type) or get_args(argument)]


# -- what is allowed --------------------


def _resolved(schema: Schema, whole: Schema) -> Schema:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    found: Schema = whole.get("$defs", {}).get(name, {}) if name else schema
    return found


def _ways(schema: Schema, whole: Schema, above: Above = ()) -> list[tuple[Schema, Above]]:
    """The alternatives of a schema, each with the types that it stands in.

    A type that is one of those already is left as its `$ref`: nothing inside of it is new.
    """
    reference = schema.get("$ref")
    if reference in above:
        return [(schema, above)]
    if reference is not None:
        return _ways(_resolved(schema, whole), whole, (*above, reference))
    ways = schema.get("anyOf") or schema.get("oneOf")
    return [found for way in ways for found in _ways(way, whole, above)] if ways else [(schema, above)]


def _below(schema: Schema, part: str | int) -> Schema | None:
    inside = schema.get("items") if isinstance(part, int) else schema.get("properties", {}).get(part)
    if inside is None and isinstance(part, str):
        named = schema.get("patternProperties", {})
        inside = next(iter(named.values()), schema.get("additionalProperties"))
    return inside if isinstance(inside, Mapping) else None


def _allowed(schema: Schema, whole: Schema, above: Above = ()) -> str:
    ways = [_one(way, whole, inside) for way, inside in _ways(schema, whole, above)]
    return " or ".join(dict.fromkeys(ways))


def _one(schema: Schema, whole: Schema, above: Above) -> str:
    if "$ref" in schema:
        return "the same"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    match schema.get("type", "anything"):
        case "integer" | "number" as kind:
            return f"{kind}{_range(schema)}"
        case "string":
            pattern = f" matching `{schema['pattern']}`" if "pattern" in schema else ""
            return f"text{_count(schema, 'Length', 'characters')}{pattern}"
        case "array":
            items = _allowed(schema.get("items", {}), whole, above)
            return f"list of {items}{_count(schema, 'Items', 'items')}"
        case "object":
            return _mapping(schema, whole, above)
        case other:
            return {"null": "`null`", "boolean": "`true`, `false`"}.get(other, str(other))


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    words = [f"at least {low}"] if low is not None else [f"above {above}"] if above is not None else []
    words += [f"at most {high}"] if high is not None else [f"below {below}"] if below is not None else []
    return f" {', '.join(words)}" if words else ""


def _count(schema: Schema, what: str, unit: str) -> str:
    low, high = schema.get(f"min{what}"), schema.get(f"max{what}")
    words = [f"at least {low}"] if low else []
    words += [f"at most {high}"] if high is not None else []
    return f", {', '.join(words)} {unit}" if words else ""


def _mapping(schema: Schema, whole: Schema, above: Above) -> str:
    named = schema.get("patternProperties", {})
    inside = next(iter(named.values()), schema.get("additionalProperties"))
    if "properties" in schema or not isinstance(inside, Mapping):
        return "object"
    names = schema.get("propertyNames", {})
    keys = f" of {_allowed(names, whole)}" if "enum" in names else ""
    return f"mapping{keys} to {_allowed(inside, whole, above)}"
