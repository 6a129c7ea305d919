"""What may stand in a plan's schema: nothing that leads outside, in a circle, or on for ever.

A schema comes from whoever writes the agent, and is followed within a workflow: it must end soon.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import re2  # type: ignore[import-untyped]  # google-re2 ships no types

from activities.contracts import JsonObject
from workflows.machines.json_text import cut

__all__ = ["check_rules"]

SCHEMA_LIMIT = 16_000
"""Bytes of the schema as JSON."""
UNFOLDED_LIMIT = 1_000
"""Subschemas that are asked of one value, references followed."""
PATTERN_LIMIT = 100
NODE_LIMIT = 1_000
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_DEFS = "#/$defs/"
_UNSUPPORTED = {
    "patternProperties": "name the properties",
    "unevaluatedProperties": "use `additionalProperties`",
    "unevaluatedItems": "use `items`",
    "$dynamicRef": "use `$ref`",
}
_MANY = ("allOf", "anyOf", "oneOf")
_ONE = ("not", "if", "then", "else")


def check_rules(schema: JsonObject) -> None:
    """Raises ValueError naming what is not allowed, RecursionError for what is nested too deeply."""
    if len(json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()) > SCHEMA_LIMIT:
        raise ValueError(f"it has more than {SCHEMA_LIMIT:,} bytes as JSON")
    named = schema.get("$schema")
    if isinstance(named, str) and named.removesuffix("#") != _DRAFT:
        raise ValueError(f"$schema {cut(named)!r} is not draft 2020-12 ({_DRAFT})")
    nodes = list(_mappings(schema))
    if len(nodes) > NODE_LIMIT:
        raise ValueError(f"it has more than {NODE_LIMIT:,} mappings")
    if sum("pattern" in node for node in nodes) > PATTERN_LIMIT:
        raise ValueError(f"it has more than {PATTERN_LIMIT} patterns")
    for node in nodes:
        _check_names(node, top=node is schema)
        _check_values(schema, node)
    _Unfolding(schema).check(nodes)


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in it, wherever it stands."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _mappings(item)


def _check_names(node: dict[str, Any], *, top: bool) -> None:
    for key, instead in _UNSUPPORTED.items():
        if key in node:
            raise ValueError(f"`{key}` is not supported; {instead}")
    for key in ("$schema", "$id"):
        if isinstance(node.get(key), str) and not top:
            raise ValueError(f"`{key}` is allowed at the top only")


def _check_values(schema: JsonObject, node: dict[str, Any]) -> None:
    ref, pattern, among = node.get("$ref"), node.get("pattern"), node.get("dependentRequired")
    if isinstance(ref, str):
        _target(schema, ref)
    if isinstance(pattern, str):
        _compile(pattern)
    # The library compares each with each where they are no texts, before it says that they are none.
    lists = {"required": node.get("required"), "type": node.get("type")}
    lists |= {
        f"dependentRequired.{key}": item for key, item in (among if isinstance(among, dict) else {}).items()
    }
    for key, value in lists.items():
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise ValueError(f"`{key}` must be a list of texts")


def _target(schema: JsonObject, ref: str) -> Any:
    """What a reference leads to: the whole, or one of `$defs`; elsewhere need not be a schema."""
    if ref == "#":
        return schema
    name = unquote(ref.removeprefix(_DEFS)).replace("~1", "/").replace("~0", "~")
    if not ref.startswith(_DEFS) or "/" in ref.removeprefix(_DEFS):
        raise ValueError(f"$ref {cut(ref)!r} leads outside; only `#` and `{_DEFS}<name>` are followed")
    defs = schema.get("$defs")
    there: dict[str, Any] = defs if isinstance(defs, dict) else {}
    if name not in there:
        known = cut(", ".join(sorted(there)), 200) or "none"
        raise ValueError(f"$ref {cut(ref)!r} leads nowhere: $defs has no {cut(name)!r}; there is {known}")
    return there[name]


def _compile(pattern: str) -> None:
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"the pattern {cut(pattern)!r} is no RE2 expression: {error}") from error


class _Unfolding:
    """How many subschemas are asked of the same value, when references are followed."""

    def __init__(self, schema: JsonObject) -> None:
        self._schema = schema
        self._known: dict[int, int] = {}
        self._open: set[int] = set()

    def check(self, nodes: list[dict[str, Any]]) -> None:
        """Raises ValueError for a circle, or too many."""
        for node in nodes:
            if self._count(node) > UNFOLDED_LIMIT:
                raise ValueError(f"it unfolds to more than {UNFOLDED_LIMIT:,} subschemas for one value")

    def _count(self, node: Any) -> int:
        if not isinstance(node, dict):
            return 1
        if id(node) in self._open:
            raise ValueError("a reference leads back to where it stands, for ever in a circle")
        if id(node) not in self._known:
            self._open.add(id(node))
            self._known[id(node)] = 1 + sum(map(self._count, self._within(node)))
            self._open.discard(id(node))
        return self._known[id(node)]

    def _within(self, node: dict[str, Any]) -> Iterator[Any]:
        """The subschemas that are asked of the same value as this one."""
        if isinstance(node.get("$ref"), str):
            yield _target(self._schema, node["$ref"])
        for key in _MANY:
            yield from node[key] if isinstance(node.get(key), list) else ()
        yield from (node[key] for key in _ONE if key in node)
        if isinstance(node.get("dependentSchemas"), dict):
            yield from node["dependentSchemas"].values()
