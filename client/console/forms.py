"""Arguments of a tool's call as fields of a form, made from the tool's JSON schema; and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from activities.contracts import JsonObject
from client.errors import UsageError

__all__ = ["Field", "arguments_in", "field_key", "fields_of"]

Control = Literal["text", "long", "number", "integer", "boolean", "choice", "json"]
LONG_TEXT_CHARACTERS = 80
"""Characters from which a text gets a field of several lines."""
ABSENT = object()


@dataclass(frozen=True)
class Field:
    """One argument."""

    name: str
    control: Control
    value: Any = ABSENT
    """What the call has; ABSENT: it has no such argument."""
    description: str = ""
    required: bool = False
    options: Sequence[Any] = ()
    """choice: the values that there are."""

    @property
    def key(self) -> str:
        """Its name in the form."""
        return f"arg.{field_key(self.name)}"

    @property
    def given(self) -> bool:
        """The call has this argument."""
        return self.value is not ABSENT

    @property
    def text(self) -> str:
        """What the field shows at first."""
        if not self.given:
            return ""
        plain = self.control in ("text", "long") and isinstance(self.value, str)
        return self.value if plain else _json(self.value)

    @property
    def choices(self) -> list[tuple[str, str]]:
        """What can be chosen: as JSON, and for people."""
        return [(_json(one), one if isinstance(one, str) else _json(one)) for one in self.options]


def field_key(name: str) -> str:
    """An argument's name within that of its field: as JSON escapes it, because a browser sends other line
    breaks than it got, and a page replaces characters that show nothing."""
    return json.dumps(name)[1:-1]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def fields_of(arguments: JsonObject, schema: Mapping[str, Any] | None) -> tuple[Field, ...]:
    """The fields of a call: in the schema's order, then what the schema does not name."""
    schema = schema or {}
    known: Mapping[str, Any] = schema.get("properties") or {}
    needed = schema.get("required") or ()
    names = [*known, *(name for name in arguments if name not in known)]
    return tuple(
        _field(name, known.get(name, {}), schema, arguments.get(name, ABSENT), name in needed)
        for name in names
    )


def _field(name: str, given: Any, schema: Mapping[str, Any], value: Any, required: bool) -> Field:
    own = _resolved(given, schema)
    control: Control
    options: Sequence[Any] = ()
    match own.get("type", _type_of(value)):
        case _ if isinstance(own.get("enum"), list):
            control, options = "choice", own["enum"]
        case "string":
            control = (
                "long" if len(str(value)) > LONG_TEXT_CHARACTERS or set(str(value)) & {"\n", "\r"} else "text"
            )
        case "integer":
            control = "integer"
        case "number":
            control = "number"
        case "boolean":
            control, options = "boolean", (True, False)
        case _:
            control = "json"
    if value is not ABSENT and not _fits(control, value, options):
        control = "json"  # what the call has must be shown and kept, whatever the schema says
    described = given if isinstance(given, Mapping) and "description" in given else own
    return Field(name, control, value, str(described.get("description", "")), required, options)


def _resolved(given: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of one argument, through a reference and the `or null` of optional ones."""
    for _ in range(5):
        if not isinstance(given, Mapping):
            return {}
        choices = [one for one in given.get("anyOf") or () if one != {"type": "null"}]
        if len(choices) == 1:
            given = choices[0]
        elif isinstance(given.get("$ref"), str):
            given = (schema.get("$defs") or {}).get(given["$ref"].removeprefix("#/$defs/"))
        else:
            break
    return given if isinstance(given, Mapping) else {}


def _type_of(value: Any) -> str:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number"}
    return kinds.get(type(value), "json")


def _fits(control: Control, value: Any, options: Sequence[Any]) -> bool:
    match control:
        case "choice" | "boolean":
            return any(value == one and type(value) is type(one) for one in options)
        case "text" | "long":
            return isinstance(value, str)
        case "integer":
            return type(value) is int
        case "number":
            return type(value) in (int, float)
    return True


def arguments_in(fields: Iterable[Field], data: Mapping[str, str]) -> JsonObject:
    """The arguments that a form says; `data` has a text for each field, under its key.

    An optional field that is blank is left out, unless it was given as an empty text.

    Raises:
        UsageError: what is written in a field is not of its type; the message names it.
    """
    found: JsonObject = {}
    for field in fields:
        text = data.get(field.key, "")
        if field.control in ("text", "long"):
            text = text.replace("\r\n", "\n")  # a browser sends a text's lines so
            if isinstance(field.value, str) and text == _in_a_browser(field.value):
                text = field.value  # nobody has touched it
            if text or field.required or field.value == "":
                found[field.name] = text
        elif text.strip():
            found[field.name] = _value(field, text.strip())
    return found


def _in_a_browser(text: str) -> str:
    """What a browser makes of a text in a field."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _value(field: Field, text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = ABSENT
    kinds: dict[str, tuple[type, ...]] = {"integer": (int,), "number": (int, float)}
    wanted = kinds.get(field.control)
    if value is ABSENT or (wanted and type(value) not in wanted):
        expected = {"integer": "a whole number", "number": "a number"}.get(field.control, "JSON")
        raise UsageError(f"{field.name}: expected {expected}, got {text[:80]!r}; nothing was decided")
    return value
