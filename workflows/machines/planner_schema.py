"""The schema that a plan is held against (spec 4.3): JSON Schema, draft 2020-12. Fetches nothing.

What may stand in a schema is in `planner_schema_rules`; here a plan is judged, with bounded work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import re2  # type: ignore[import-untyped]  # google-re2 ships no types
from jsonschema import Draft202012Validator, SchemaError, ValidationError, validators
from referencing import Registry
from referencing.exceptions import Unresolvable

from activities.contracts import JsonObject
from workflows.machines.json_text import cut
from workflows.machines.planner_schema_rules import check_rules

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
PLAN_LIMIT = 100_000
"""Characters of a plan as JSON."""
_WORK = 4_000_000
"""Nodes that may be looked at for one plan: a fraction of a second."""
_KEYWORD = 200
"""What asking one keyword costs, in nodes."""
_LISTING = {"enum", "const", "required", "dependentRequired", "pattern", "type"}
"""Keywords that look at all of their own value, too."""
_LISTED = 4
"""What comparing with a part of it costs, in nodes."""


class _TakesTooLong(Exception):
    """The schema looks at the plan too often."""


class _Work:
    """Counts what is looked at: a keyword costs the more the greater the value that it is asked of."""

    def __init__(self, plan: JsonObject) -> None:
        self._left = _WORK
        self._sizes: dict[int, int] = {}
        self._size(plan)

    def _size(self, value: Any) -> int:
        if isinstance(value, str):
            return 1 + len(value) // 10
        if not isinstance(value, dict | list):
            return 1
        known = self._sizes.get(id(value))
        if known is None:
            items = value.values() if isinstance(value, dict) else value
            names = sum(map(self._size, value)) if isinstance(value, dict) else 0
            known = self._sizes[id(value)] = 1 + names + sum(map(self._size, items))
        return known

    def counted(self, name: str, validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        """Ask a keyword, and count it with each fault that it finds; raises _TakesTooLong."""
        cost = _KEYWORD + self._size(instance)
        self._spend(cost + (_LISTED * self._size(value) if name in _LISTING else 0))
        for fault in _CHECKS[name](validator, value, instance, schema) or ():
            self._spend(cost)
            yield fault

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise _TakesTooLong


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """As the library does it, but with RE2: no pattern can hang a worker."""
    if isinstance(instance, str) and not re2.search(pattern, instance):
        yield ValidationError(f"{instance[:100]!r} does not match {pattern!r}")


def _unique(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """As the library does it, but in one pass: it compares each item with each."""
    if wanted and isinstance(instance, list):
        seen = {json.dumps(_same(item), sort_keys=True) for item in instance}
        if len(seen) < len(instance):
            yield ValidationError("an item is there more than once")


def _same(value: Any) -> Any:
    """Numbers that are equal are written in the same way."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _same(item) for key, item in value.items()}
    return [_same(item) for item in value] if isinstance(value, list) else value


_CHECKS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    **Draft202012Validator.VALIDATORS,
    "pattern": _pattern,
    "uniqueItems": _unique,
}
_extend: Any = validators.extend


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
        if len(json.dumps(plan, ensure_ascii=False)) > PLAN_LIMIT:
            return f"the plan has more than {PLAN_LIMIT:,} characters as JSON"
        try:
            found = self._faults(plan)
        except _TakesTooLong:
            return (
                "`plan_schema` takes too long to hold this plan against: it looks at the same parts too often"
            )
        except (Unresolvable, RecursionError, ArithmeticError) as error:
            return f"`plan_schema` cannot be followed: {str(error)[:200]}"
        found.sort(key=lambda error: [str(part) for part in error.absolute_path])
        return "; ".join(_words(error) for error in found[:3])

    def check(self) -> None:
        """Raises ValueError when not even an empty plan can be held against the schema."""
        try:
            self._faults({})
        except _TakesTooLong as error:
            raise ValueError("plan_schema: it takes too long, also with an empty plan") from error
        except (Unresolvable, RecursionError, ArithmeticError) as error:
            raise ValueError(f"plan_schema: it cannot be followed: {str(error)[:200]}") from error

    def _faults(self, plan: JsonObject) -> list[ValidationError]:
        work = _Work(plan)
        counted = {name: partial(work.counted, name) for name in _CHECKS}
        # With `$schema` the library would go on with a validator of its own, without our checks.
        schema = {key: value for key, value in self.schema.items() if key not in {"$schema", "$id"}}
        # A registry of our own, and an empty one: the library's would fetch over the network.
        made = _extend(Draft202012Validator, counted)(schema, registry=Registry())
        return list(made.iter_errors(plan))


def _words(error: ValidationError | SchemaError) -> str:
    place = ".".join(str(part) for part in error.absolute_path)
    return f"{cut(place, 200)}: {error.message[:300]}" if place else error.message[:300]


def plan_schema(schema: JsonObject | None) -> PlanSchema:
    """The schema, checked; None: the default one. Raises ValueError naming the fault."""
    if schema is None:
        return PlanSchema(DEFAULT_SCHEMA)
    try:
        check_rules(schema)
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"plan_schema: no JSON schema of draft 2020-12: {_words(error)}") from error
    except RecursionError as error:
        raise ValueError("plan_schema: it is nested too deeply") from error
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"plan_schema: {error}") from error
    made = PlanSchema(schema)
    made.check()
    return made
