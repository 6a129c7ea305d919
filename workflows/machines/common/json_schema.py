"""JSON schemas that people write, and values judged by them: nothing is fetched, all work is bounded. Pure.

The library searches patterns with Python's expressions, compares unique items each with each, and follows a
schema as often as its references lead to it. Here patterns are RE2, unique items are compared in one pass,
multiples are exact, and judging a value by an agent's own schema has a budget of work and of depth.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError, validators
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from activities.contracts import PATTERN_STEPS, JsonObject, compiled
from workflows.kernel.canonical import canonical

__all__ = ["SAFE_KEYWORDS", "Schema", "checked_schema", "error_text", "extend"]

SCHEMA_BYTES = 16_000
"""The longest schema as JSON."""
VALUE_CHARS = 100_000
"""The longest value as JSON."""
SCHEMA_DEPTH = 50
"""Levels of nested mappings and lists in a schema."""
JUDGING_DEPTH = 150
"""Keywords inside each other while a value is judged: far from Python's own limit, which depends on the
caller."""
MAX_WORK_UNITS = 1_000_000
"""Units of work for one value: less than a second (measured)."""
KEYWORD_WORK = 20
"""Units for one keyword, and for one error; each four characters of JSON that it looks at are one more."""
DRAFT = "https://json-schema.org/draft/2020-12/schema"
LOCAL_REFERENCE = re.compile(r"#(/\$defs/[^/]+)?")
REFUSED = {
    "patternProperties": "name the properties",
    "unevaluatedProperties": "use `additionalProperties`",
    "unevaluatedItems": "use `items`",
    "$dynamicRef": "use `$ref`",
}
"""Keyword that is not supported -> what to do instead."""

extend: Any = validators.extend
"""Makes a validator class with other keywords; the library's stubs leave it untyped."""


# -- keywords made safe ---------------------------------------------------------------------------


def _matches(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """`pattern` with RE2. A tool's pattern that RE2 cannot read is left to the tool."""
    if not isinstance(instance, str):
        return
    try:
        expression = compiled(pattern, steps=PATTERN_STEPS)
    except ValueError:
        return
    if not expression.search(instance):
        yield ValidationError(f"{instance[:100]!r} does not match {pattern[:100]!r}")


def _unique(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """`uniqueItems` in one pass; the library may compare each item with each."""
    if wanted and isinstance(instance, list) and len({canonical(item) for item in instance}) < len(instance):
        yield ValidationError("duplicate item")


def _multiple_of(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """`multipleOf` for decimals, exactly; the library divides floats, which rounds, and fails for a number
    beyond all floats."""
    if not validator.is_type(instance, "number"):
        return
    is_finite = isinstance(instance, int) or math.isfinite(instance)
    if not is_finite or _exact(instance) % _exact(wanted):
        yield ValidationError(f"{instance!r:.100} is not a multiple of {wanted!r:.100}")


def _exact(number: float) -> Fraction:
    """The number as JSON writes it: 0.1 is a tenth."""
    return Fraction(int(number) if number == int(number) else repr(number))


SAFE_KEYWORDS = {"pattern": _matches, "uniqueItems": _unique, "multipleOf": _multiple_of}
"""Keywords that take the place of the library's own, in any draft."""


def error_text(errors: Sequence[ValidationError | SchemaError], most: int = 3) -> str:
    """The first errors by place: `initial_steps.0: 1 is not of type 'string'; ...`."""
    placed = sorted((".".join(map(str, one.absolute_path)), one.message[:300]) for one in errors)
    return "; ".join(f"{place[:200]}: {message}" if place else message for place, message in placed[:most])


# -- a schema of the agent's author ---------------------------------------------------------------


class _TooMuch(Exception):
    """The budget is used up."""


UNJUDGED = (_TooMuch, Unresolvable, RecursionError, ArithmeticError)
"""What judging a value raises that the schema cannot judge."""


@dataclass(slots=True)
class _Budget:
    """Counts what judging one value costs."""

    left: int = MAX_WORK_UNITS
    depth: int = 0

    def counted(
        self, check: Callable[..., Any], validator: Any, wanted: Any, instance: Any, schema: Any
    ) -> Iterator[Any]:
        """The errors of one keyword. Raises _TooMuch."""
        self.depth += 1
        try:
            size = len(json.dumps(instance, ensure_ascii=False)) // 4
            self.spend(size + (len(wanted) if isinstance(wanted, dict | list) else 0))
            for error in check(validator, wanted, instance, schema) or ():
                self.spend(0)
                yield error
        finally:  # also where nobody asks for a second error
            self.depth -= 1

    def spend(self, units: int) -> None:
        self.left -= KEYWORD_WORK + units
        if self.left < 0:
            raise _TooMuch("it looks at the same parts too often")
        if self.depth > JUDGING_DEPTH:
            raise _TooMuch("its references lead in a circle, or too deep")


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema that was checked."""

    name: str
    """The option that holds it."""
    plain: JsonObject
    text: str = field(init=False)
    """As a model reads it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", json.dumps(self.plain, ensure_ascii=False))

    def problem(self, value: JsonObject) -> str:
        """Why the value does not fit; empty when it does."""
        if len(json.dumps(value, ensure_ascii=False)) > VALUE_CHARS:
            return f"it has more than {VALUE_CHARS:,} characters as JSON"
        try:
            return self.judged(value)
        except UNJUDGED as error:
            return f"`{self.name}` cannot judge it: {str(error)[:200]}"

    def judged(self, value: JsonObject) -> str:
        """The same of a value of any size. Raises one of UNJUDGED."""
        # With `$schema` or `$id` the library would go on with a validator of its own behind a reference.
        schema = {key: part for key, part in self.plain.items() if key not in {"$schema", "$id"}}
        budget = _Budget()
        keywords = {**Draft202012Validator.VALIDATORS, **SAFE_KEYWORDS}
        counted = {key: partial(budget.counted, check) for key, check in keywords.items()}
        # The registry is empty: the library's own would fetch schemas over the network.
        judge = extend(Draft202012Validator, counted)(schema, registry=Registry())
        return error_text(list(judge.iter_errors(value)))


def checked_schema(name: str, schema: JsonObject) -> Schema:
    """The schema of the option `name`. Raises ValueError, naming what is wrong in it."""
    try:
        _check_parts(schema)
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"{name}: not a JSON schema of draft 2020-12: {error_text([error])}") from error
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"{name}: {error}") from error
    checked = Schema(name, schema)
    try:
        checked.judged({})
    except UNJUDGED as error:
        raise ValueError(f"{name}: it cannot judge even an empty object: {str(error)[:200]}") from error
    return checked


def _check_parts(schema: JsonObject) -> None:
    parts = list(_mappings(schema, SCHEMA_DEPTH))
    if len(json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()) > SCHEMA_BYTES:
        raise ValueError(f"it has more than {SCHEMA_BYTES:,} bytes as JSON")
    draft = schema.get("$schema", DRAFT)
    if isinstance(draft, str) and draft.removesuffix("#") != DRAFT:
        raise ValueError(f"$schema {draft[:100]!r} is not draft 2020-12 ({DRAFT})")
    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for part in parts:
        if refused := next((key for key in REFUSED if key in part), None):
            raise ValueError(f"`{refused}` is not supported; {REFUSED[refused]}")
        if part is not schema and any(isinstance(part.get(key), str) for key in ("$schema", "$id")):
            raise ValueError("`$schema` and `$id` are allowed at the top only")
        if isinstance(pattern := part.get("pattern"), str):
            compiled(pattern, steps=PATTERN_STEPS)
        if isinstance(reference := part.get("$ref"), str):
            _check_reference(reference, resolver)


def _check_reference(reference: str, resolver: Any) -> None:
    if not LOCAL_REFERENCE.fullmatch(reference):
        raise ValueError(f"$ref {reference[:100]!r}: only `#` and `#/$defs/<name>` can be followed")
    try:
        resolver.lookup(reference)
    except Unresolvable as error:
        raise ValueError(f"$ref {reference[:100]!r}: there is no such name in `$defs`") from error


def _mappings(value: Any, levels: int) -> Iterator[dict[str, Any]]:
    """Every mapping in it. Raises ValueError for one that is nested too deep."""
    if not isinstance(value, dict | list):
        return
    if levels == 0:
        raise ValueError(f"it is nested more than {SCHEMA_DEPTH} levels deep")
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value:
        yield from _mappings(item, levels - 1)
