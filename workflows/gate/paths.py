"""What stands at a path of a call's arguments, also where the tool fills in what was left out. Pure.

Tools read arguments leniently: under other names (aliases), from JSON as text, from lists; what was left
out may be filled in by code that the schema does not show. Where the schema cannot say what the tool will
take, the answer is that it cannot be told.
"""

from __future__ import annotations

from enum import Enum

from activities.contracts import JsonObject

__all__ = ["OPEN", "Nothing", "stranger", "value_at"]

OPEN = ("patternProperties", "allOf", "anyOf", "oneOf", "if", "$ref", "$dynamicRef")
"""With these beside its `properties`, a schema may know other names, too."""
HOPS = 20
"""References that are followed; a schema that leads in a circle ends there."""


class Nothing(Enum):
    """Why there is no value."""

    MISSING = "missing"
    """Neither the call nor the schema gives one."""
    LEFT_OUT = "left out"
    """The call gives none; which one the tool takes then, its schema does not say."""
    UNTOLD = "untold"
    """It cannot be told what the tool will take."""


def value_at(arguments: JsonObject, path: str, schema: JsonObject | None) -> object:
    """The value, or a `Nothing`. `order.total` is `total` within the object `order`; a dot always leads
    inside. Without a schema, what the arguments say is all there is."""
    value: object = arguments
    shape = None if schema is None else _resolved(schema, schema)
    for part in path.split("."):
        if not isinstance(value, dict):
            return Nothing.UNTOLD
        value = _inside(value, part, shape, schema)
        if isinstance(value, Nothing):
            return value
        if shape is not None and schema is not None:
            shape = _resolved(_properties(shape).get(part), schema)
    return value


def stranger(path: str, schema: JsonObject) -> str:
    """What a schema surely does not know of a path, in words, such as `amout (it has to, amount)`; empty: it
    knows it, or cannot tell. Without `additionalProperties` names that it does not know are dropped."""
    shape = _resolved(schema, schema)
    for part in path.split("."):
        known = shape.get("properties")
        if not isinstance(known, dict) or any(key in shape for key in OPEN):
            return ""
        if part not in known:
            closed = shape.get("additionalProperties", False) is False
            return f"{part} (it has {', '.join(known) or 'none'})" if closed else ""
        shape = _resolved(known[part], schema)
    return ""


def _inside(value: JsonObject, part: str, shape: JsonObject | None, schema: JsonObject | None) -> object:
    if shape is None or schema is None:
        return value.get(part, Nothing.MISSING)
    if not isinstance(shape.get("properties"), dict):
        untold = bool(value) or shape is not schema
        return value.get(part, Nothing.UNTOLD if untold else Nothing.MISSING)
    known = _properties(shape)
    if any(name not in known for name in value):
        return Nothing.UNTOLD  # it may be another name of what is asked for
    if part in value:
        return value[part]
    return _filled_in(part, shape, schema)


def _filled_in(part: str, shape: JsonObject, schema: JsonObject) -> object:
    """What the tool takes for an argument that is left out: a call must not pass by leaving one out."""
    known, required = _properties(shape), shape.get("required")
    if part not in known:
        return Nothing.MISSING
    for one in (known[part], _resolved(known[part], schema)):
        if isinstance(one, dict) and "default" in one:
            return one["default"]
    # A call without what is required is never made.
    return Nothing.MISSING if isinstance(required, list) and part in required else Nothing.LEFT_OUT


def _properties(shape: JsonObject) -> JsonObject:
    known = shape.get("properties")
    return known if isinstance(known, dict) else {}


def _resolved(shape: object, schema: JsonObject) -> JsonObject:
    """The schema of an object behind references and `object or null`; empty where it cannot be read."""
    for _ in range(HOPS):
        if not isinstance(shape, dict):
            return {}
        ways = next(
            (shape[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(shape.get(key), list)), None
        )
        if isinstance(reference := shape.get("$ref"), str):
            shape = _definition(reference, schema)
        elif isinstance(ways, list) and "properties" not in shape:
            objects = [way for way in ways if way != {"type": "null"}]
            shape = objects[0] if len(objects) == 1 else None
        else:
            return shape
    return {}


def _definition(reference: str, schema: JsonObject) -> object:
    home, _, name = reference.rpartition("/")
    definitions = schema.get(home.removeprefix("#/"))
    return definitions.get(name) if home.startswith("#/") and isinstance(definitions, dict) else None
