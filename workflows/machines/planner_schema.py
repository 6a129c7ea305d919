"""The schema that a plan is held against (spec 4.3): JSON Schema, draft 2020-12. Fetches nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import re2  # type: ignore[import-untyped]  # google-re2 ships no types
from jsonschema import Draft202012Validator, SchemaError, ValidationError, validators
from referencing import Registry
from referencing.exceptions import Unresolvable

from activities.contracts import JsonObject

__all__ = ["DEFAULT_SCHEMA", "PlanSchema", "plan_schema"]

DEFAULT_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "goal": {"type": "string"},
        "required_capabilities": {"type": "array", "items": {"type": "string"}},
        "initial_steps": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["goal"],
    "additionalProperties": False,
}
"""What a plan looks like unless the agent says otherwise."""


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """As the library does it, but with RE2: no pattern can hang a worker."""
    if isinstance(instance, str) and not re2.search(pattern, instance):
        yield ValidationError(f"{instance[:100]!r} does not match {pattern!r}")


_extend: Any = validators.extend
_Validator: Any = _extend(Draft202012Validator, {"pattern": _pattern})


@dataclass(frozen=True, slots=True)
class PlanSchema:
    """A schema that was checked."""

    schema: JsonObject

    @property
    def text(self) -> str:
        """The schema as the model reads it."""
        return json.dumps(self.schema, ensure_ascii=False)

    def problem(self, plan: JsonObject) -> str:
        """What does not fit, or the empty string."""
        try:
            found = sorted(self._faults(plan), key=lambda error: [str(p) for p in error.absolute_path])
        except (Unresolvable, RecursionError) as error:
            return f"`plan_schema` cannot be followed: {str(error)[:200]}"
        return "; ".join(_words(error) for error in found[:3])

    def check(self) -> None:
        """Raises ValueError when a reference of the schema leads nowhere, or for ever in a circle."""
        try:
            self._faults({})
        except (Unresolvable, RecursionError) as error:
            raise ValueError(f"plan_schema: a reference cannot be followed: {str(error)[:200]}") from error

    def _faults(self, plan: JsonObject) -> list[ValidationError]:
        # A registry of our own, and an empty one: the library's would fetch over the network.
        return list(_Validator(self.schema, registry=Registry()).iter_errors(plan))


def _words(error: ValidationError | SchemaError) -> str:
    place = ".".join(str(part) for part in error.absolute_path)
    return f"{place}: {error.message[:300]}" if place else error.message[:300]


def plan_schema(schema: JsonObject | None) -> PlanSchema:
    """The schema, checked; None: the default one. Raises ValueError naming the fault."""
    if schema is None:
        return PlanSchema(DEFAULT_SCHEMA)
    try:
        for key, value in _keys(schema):
            _check(key, value)
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"plan_schema: no JSON schema of draft 2020-12: {_words(error)}") from error
    except RecursionError as error:
        raise ValueError("plan_schema: it is nested too deeply") from error
    made = PlanSchema(schema)
    made.check()
    return made


def _keys(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key of every mapping in it, wherever it stands: a reference may lead anywhere."""
    if isinstance(value, dict):
        yield from value.items()
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys(item)


def _check(key: str, value: Any) -> None:
    if key in {"$ref", "$dynamicRef"} and isinstance(value, str) and not value.startswith("#"):
        problem = f"{key} {value!r} leads outside; only references within the schema (`#...`) are followed"
        raise ValueError(f"plan_schema: {problem}")
    if key == "patternProperties":
        raise ValueError("plan_schema: `patternProperties` is not supported; name the properties")
    if key == "pattern" and isinstance(value, str):
        options = re2.Options()
        options.log_errors = False
        try:
            re2.compile(value, options)
        except re2.error as error:
            raise ValueError(f"plan_schema: the pattern {value!r} is no RE2 expression: {error}") from error
