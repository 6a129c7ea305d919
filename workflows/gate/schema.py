"""Do arguments that a person wrote fit a tool's JSON schema? Pure; fetches nothing; bounded work."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from jsonschema import Draft202012Validator, ValidationError, validators
from pydantic import JsonValue
from referencing import Registry

from activities.contracts import JsonObject
from workflows.gate.canonical import canonical
from workflows.gate.paths import OPEN
from workflows.gate.patterns import check_pattern, cost, found

__all__ = ["ARGUMENTS_BYTES", "problem"]

ARGUMENTS_BYTES = 64 * 1024
"""The most that a person may give as arguments, as JSON."""
_WORK = 4_000_000
"""Characters that may be looked at in all: a fraction of a second."""
PLAIN = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?")
"""A number as JSON spells it, without an exponent."""
_KEYWORD = 200
"""What asking one keyword costs besides."""
_extend: Any = validators.extend


class _TakesTooLong(Exception):
    """The schema looks at the arguments too often."""


def problem(schema: JsonObject, arguments: JsonObject) -> str:
    """What does not fit, for a person; empty when all fits.

    A number may stand as text, as models write it and tools read it: who sends back what was shown, or
    changes a digit of it, is not refused for the quotes.

    A schema that cannot be followed here (it refers to somewhere else) is not held against the
    arguments: the tool reads them itself before it runs.
    """
    size = len(canonical(arguments))
    if size > ARGUMENTS_BYTES:
        return f"they have {size:,} bytes as JSON, at most {ARGUMENTS_BYTES:,} are allowed"
    if strange := _strange(schema, arguments):
        return strange
    try:
        faults = list(_faults(schema, _with_numbers(schema, arguments)))
    except _TakesTooLong:
        return "it takes too long to hold them against the tool's schema; give smaller ones"
    except Exception:  # noqa: BLE001  # a malformed schema breaks the library in many ways
        return ""
    faults.sort(key=lambda fault: [str(part) for part in fault.absolute_path])
    return "; ".join(map(_words, faults[:3]))


def _with_numbers(schema: JsonObject, arguments: JsonObject) -> JsonObject:
    """The arguments, with numbers for text where the tool's own arguments are numbers."""
    shapes = schema.get("properties")
    known = shapes if isinstance(shapes, dict) else {}
    return {name: _as_number(known.get(name), value) for name, value in arguments.items()}


def _as_number(shape: object, value: JsonValue) -> JsonValue:
    kind = shape.get("type") if isinstance(shape, dict) else None
    if not isinstance(value, str) or kind not in {"integer", "number"} or not PLAIN.fullmatch(value):
        return value
    return int(value) if "." not in value else float(value)


def _strange(schema: JsonObject, arguments: JsonObject) -> str:
    """A tool drops arguments that it does not know, so a misspelt one would silently be its default."""
    known = schema.get("properties")
    closed = schema.get("additionalProperties", False) is False
    if not isinstance(known, dict) or not closed or any(key in schema for key in OPEN):
        return ""
    strange = [name for name in arguments if name not in known]
    has = ", ".join(known) or "none"
    return f"the tool has no argument {', '.join(strange)[:200]}; it has {has[:500]}" if strange else ""


class _Work:
    """Counts what is looked at: a keyword costs as much as the value that it is asked of is long."""

    def __init__(self) -> None:
        self._left = _WORK
        self._sizes: dict[int, int] = {}

    def _size(self, value: Any) -> int:
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, dict | list):
            return 1
        if id(value) not in self._sizes:
            parts = [*value, *value.values()] if isinstance(value, dict) else value
            self._sizes[id(value)] = 1 + sum(map(self._size, parts))
        return self._sizes[id(value)]

    def counted(self, check: Callable[..., Any], *asked: Any) -> Iterator[ValidationError]:
        """Ask a keyword of (validator, its own value, the value, schema). Raises _TakesTooLong."""
        self._charge(_KEYWORD + self._size(asked[2]))
        yield from check(*asked) or ()

    def pattern(self, validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        """As the library does it, but with RE2; what RE2 cannot read is left to the tool."""
        if not isinstance(pattern, str) or not isinstance(instance, str):
            return
        try:
            check_pattern(pattern)
        except ValueError:
            return
        self._charge(cost(pattern, instance))
        if found(pattern, instance) is False:
            yield ValidationError(f"{instance[:100]!r} does not match {pattern[:100]!r}")

    def _charge(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _TakesTooLong


def _faults(schema: JsonObject, arguments: JsonObject) -> Iterator[ValidationError]:
    work = _Work()
    checks = {**Draft202012Validator.VALIDATORS, "pattern": work.pattern, "uniqueItems": _unique}
    # These search names with Python's own expressions, which can hang.
    checks |= dict.fromkeys(("patternProperties", "unevaluatedProperties"), _left_to_the_tool)
    checks["additionalProperties"] = _additional
    keywords = {name: partial(work.counted, check) for name, check in checks.items()}
    # With `$schema` the library would go on with a validator of its own, without these checks.
    whole = {key: value for key, value in schema.items() if key not in {"$schema", "$id"}}
    made = _extend(Draft202012Validator, keywords)(whole, registry=Registry())
    return made.iter_errors(arguments)  # type: ignore[no-any-return]  # the library's class is made here


def _left_to_the_tool(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    yield from ()


def _additional(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """As the library does it, but where names are told by patterns."""
    if "patternProperties" not in schema:
        yield from Draft202012Validator.VALIDATORS["additionalProperties"](
            validator, wanted, instance, schema
        )


def _unique(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """As the library does it, but in one pass: it compares each item with each."""
    if wanted and isinstance(instance, list) and len({canonical(item) for item in instance}) < len(instance):
        yield ValidationError("an item is there more than once")


def _words(error: ValidationError) -> str:
    place = ".".join(str(part) for part in error.absolute_path)
    return f"{place[:200]}: {error.message[:300]}" if place else error.message[:300]
