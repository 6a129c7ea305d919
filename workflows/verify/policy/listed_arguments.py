"""The arguments that a tool's schema lists, wherever it does: at its top, in `allOf`, in a choice, behind a
reference. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft3Validator, Draft4Validator, Draft6Validator, Draft7Validator

from activities.contracts import ToolSpec
from workflows.gate.arguments import closed_schema, draft_of
from workflows.verify.policy.ranges import may_be_number

__all__ = ["Listed", "applied", "names_in", "referenced"]

LISTS = ("allOf", "anyOf", "oneOf")
SINGLE = ("not", "if", "then", "else")
BY_NAME = ("dependentSchemas", "dependencies")
"""Keywords with more schemas of the same object: as a list, alone, by name."""
UNFOLLOWED = ("$dynamicRef", "$recursiveRef", "extends")
"""The same, and not looked at here."""
REF_ALONE = (Draft3Validator, Draft4Validator, Draft6Validator, Draft7Validator)
"""Drafts in which nothing counts beside `$ref`."""


class Listed:
    """The arguments of one tool, as far as its schema says."""

    def __init__(self, spec: ToolSpec) -> None:
        self.schema, self.draft = closed_schema(spec), draft_of(spec.parameters)
        found: dict[str, list[Any]] = {}
        for name, one in self._argument_schemas(self.schema, set()):
            found.setdefault(name, []).append(one)
        self.names: Mapping[str, list[Any]] = found
        """Argument -> what the schema says of it, at each of its places."""
        self.certain = _mapping(self._applied(self.schema).get("properties"))
        """Argument -> a schema that its value always fits."""

    def may_be_number(self, name: str) -> bool:
        """As far as the schema tells."""
        said = [self.certain[name]] if name in self.certain else self.names.get(name, [True])
        return any(may_be_number(self._applied(one)) for one in said)

    def is_whole(self, name: str) -> bool:
        """It is no other number than a whole one."""
        return bool(self._applied(self.certain.get(name)).get("type") == "integer")

    def has_largest(self, name: str) -> bool:
        """The schema names a largest number."""
        schema = self._applied(self.certain.get(name))
        known = {"maximum", "exclusiveMaximum"} & self.draft.VALIDATORS.keys()
        return any(type(schema.get(one)) in (int, float) for one in known)

    def _applied(self, schema: Any) -> Mapping[str, Any]:
        return applied(_mapping(schema), self.draft)

    def _argument_schemas(self, schema: Any, followed: set[str]) -> Iterator[tuple[str, Any]]:
        """Argument, and what a part of the schema says of it."""
        said = self._applied(schema)
        yield from _mapping(said.get("properties")).items()
        yield from ((name, True) for name in _list(said.get("required")) if isinstance(name, str))
        for value in (said.get("const"), *_list(said.get("enum"))):
            yield from ((name, {"const": one}) for name, one in _mapping(value).items())
        reference = said.get("$ref")
        more = [*(one for key in LISTS for one in _list(said.get(key))), *(said.get(key) for key in SINGLE)]
        more += [one for key in BY_NAME for one in _mapping(said.get(key)).values()]
        if isinstance(reference, str) and reference not in followed:
            followed.add(reference)
            more.append(found := referenced(reference, self.schema))
            if found is None:
                yield from ((name, True) for name in names_in(self.schema))
        if any(key in said for key in UNFOLLOWED):
            yield from ((name, True) for name in names_in(self.schema))
        for one in more:
            if isinstance(one, Mapping):
                yield from self._argument_schemas(one, followed)


def applied(schema: Mapping[str, Any], draft: Any) -> Mapping[str, Any]:
    """The keywords of a schema that count in a draft."""
    if draft in REF_ALONE and schema.get("$ref") is not None:
        return {"$ref": schema["$ref"]}
    return schema


def referenced(reference: str, root: Any) -> Any:
    """The schema behind a reference, as the library finds it; None: it is not found here."""
    if not (reference == "#" or reference.startswith("#/")):
        return None
    found = root
    for part in unquote(reference[2:]).split("/") if reference != "#" else ():
        if isinstance(found, list | tuple):
            place = int(part) if part.isdecimal() else len(found)
            found = found[place] if place < len(found) else None
        else:
            found = _mapping(found).get(part.replace("~1", "/").replace("~0", "~"))
    return found


def names_in(schema: Any) -> Iterator[str]:
    """All that properties may be called in a schema, and in the values that it names."""
    if isinstance(schema, list | tuple):
        for one in schema:
            yield from names_in(one)
    elif isinstance(schema, Mapping):
        for key, one in schema.items():
            if key == "properties" and isinstance(one, Mapping):
                yield from one
            elif key == "required":
                yield from (name for name in _list(one) if isinstance(name, str))
            elif key in ("const", "enum"):
                yield from _keys(one)
            yield from names_in(one)


def _keys(value: Any) -> Iterator[str]:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for one in inner:
        yield from _keys(one)
    if isinstance(value, Mapping):
        yield from value


def _mapping(schema: Any) -> Mapping[str, Any]:
    return schema if isinstance(schema, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
