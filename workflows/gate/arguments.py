"""Arguments of tool calls and JSON schema: fitting arguments to a tool, and judging them by conditions.

A call's arguments are fitted once, before anything judges them: what is approved, digested, logged and sent
is that one value (design 6). Conditions of approval rules are JSON schemas too, with one difference: a
keyword about numbers, text, lists or objects fits only these, so `{maximum: 5}` never fits a text.

Pure, and bounded: patterns are RE2, no schema is fetched.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, lru_cache, partial
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError, validators
from pydantic import JsonValue
from referencing import Registry

from activities.contracts import PATH_FORMATS, PATTERN_STEPS, JsonObject, ToolSpec, compiled, normal_path
from workflows.machines.common.json_schema import SAFE_KEYWORDS, error_text, extend
from workflows.people import json_problem

__all__ = [
    "Budget", "Condition", "TooMuch", "argument_names", "argument_problem", "arguments_for", "checks_path",
    "closed_schema", "condition_problem", "draft_of", "fits", "fitted", "has_key", "number_problem",
]  # fmt: skip

Condition = JsonObject | bool
"""JSON schema of one argument; `false`: the argument must be absent."""

ARGUMENTS_BYTES = 2 * 2**20
"""The most that a call's arguments may have as JSON."""
MAX_KEYWORD_CHECKS = 100_000
"""Keywords that are checked for one call; more would take seconds, which no workflow task has."""
MAX_CONDITION_CHECKS = 25_000
"""The same for the conditions of all rules together."""
CHARS_PER_CHECK, ITEMS_PER_CHECK = 1_000, 10
"""What a keyword looks at besides counts as further ones: characters of a text; items of a list or an object,
also of its own."""
CHECKING_DEPTH = 150
"""Keywords inside each other, as where a schema refers to itself. Python's own limit comes at some 200. In
the library's compiled code no exception that can be caught comes of it."""
CHECKS_LEFT: ContextVar[Budget] = ContextVar("left")
MAX_CONVERSION_PASSES = 5
"""Passes over the arguments: JSON in a text may hold a text that holds a number."""
PLAIN_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,399})(\.[0-9]{1,399})?")
OPEN_KEYWORDS = ("patternProperties", "allOf", "anyOf", "oneOf", "if", "$ref", "$dynamicRef")
"""With these beside its `properties`, a schema may know other names too."""

KINDS = {
    "number": ("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
    "string": ("maxLength", "minLength", "pattern"),
    "array": ("items", "prefixItems", "contains", "maxItems", "minItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "maxProperties", "minProperties"),
}
"""JSON type -> keywords of a condition that fit this type only."""
KIND_OF = {keyword: kind for kind, keywords in KINDS.items() for keyword in keywords}
INSIDE = ("items", "contains", "additionalProperties", "not")
INSIDE_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
KEYWORDS = {*KIND_OF, *INSIDE, *INSIDE_LISTS, "type", "enum", "const", "title", "description"}
"""What a condition may be written with."""
CONDITION: JsonObject = {
    "type": ["object", "boolean"],
    "properties": {
        **{keyword: True for keyword in KEYWORDS},
        **{keyword: {"$ref": "#"} for keyword in INSIDE},
        **{keyword: {"items": {"$ref": "#"}} for keyword in INSIDE_LISTS},
        "properties": {"additionalProperties": {"$ref": "#"}},
        "pattern": {"format": "re2"},
    },
    "additionalProperties": False,
}
"""JSON schema of a condition, beside the draft's own."""
FORMATS = FormatChecker(())
FORMATS.checks("re2", ValueError)(lambda pattern: compiled(pattern, steps=PATTERN_STEPS) is not None)


class TooMuch(ValueError):
    """There is too much to check in the arguments of a call."""


@dataclass(slots=True)
class Budget:
    """How many keywords may still be checked for one call."""

    left: int = MAX_CONDITION_CHECKS
    depth: int = 0

    def spend(self, wanted: Any, instance: Any) -> None:
        """Count a keyword. Raises TooMuch."""
        self.left -= 1 + _size(wanted) + _size(instance)
        if self.left < 0 or self.depth > CHECKING_DEPTH:
            raise TooMuch("there is too much to check in them")


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) // CHARS_PER_CHECK
    return len(value) // ITEMS_PER_CHECK if isinstance(value, list | dict) else 0


# -- a tool's arguments --------------------


def arguments_for(spec: ToolSpec, arguments: JsonObject) -> JsonObject | str:
    """The arguments as the tool's schema has them, or a text for the model that says what does not fit.

    Numbers, booleans, lists and objects that came as text become what the schema asks for, and paths get
    their normal form; defaults of the schema are filled in; names that the schema does not have are refused.
    """
    try:
        return _fitted_arguments(spec.parameters, arguments)
    except _Misfit as misfit:
        return f"The arguments do not fit {spec.name}: {misfit}"
    except Exception as error:  # noqa: BLE001  # a malformed schema breaks the library in many ways
        return (
            f"The JSON schema of {spec.name} cannot be used ({type(error).__name__}); the call was not made."
        )


def fitted(schema: JsonObject, value: JsonObject) -> JsonObject:
    """The same for any object and its schema. Raises ValueError that says what does not fit."""
    return _fitted_arguments(schema, value, "fields")


def closed_schema(spec: ToolSpec) -> JsonObject:
    """The schema that a call's arguments must fit: the tool's, without names that it does not list."""
    return _closed_schema(_plain_schema(spec.parameters))


def draft_of(schema: JsonObject) -> Any:
    """The library's validator class of the draft by which a tool's schema is read: the one that it names in
    `$schema`, if the library knows it, else the newest."""
    named = {"$schema": str(schema.get("$schema", ""))}
    return validators.validator_for(named, default=Draft202012Validator)


class _Misfit(ValueError):
    """The arguments do not fit; the text says why."""


def _fitted_arguments(schema: JsonObject, arguments: JsonObject, word: str = "arguments") -> JsonObject:
    try:
        return _fitted_within_budget(schema, arguments, word)
    except TooMuch as problem:
        raise _Misfit(f"{problem} against its schema") from None


def _fitted_within_budget(schema: JsonObject, arguments: JsonObject, word: str) -> JsonObject:
    fitted = copy.deepcopy(arguments)
    _check_json(fitted)
    validator = _validator_of(json.dumps(schema))
    plain = validator.schema
    CHECKS_LEFT.set(Budget(MAX_KEYWORD_CHECKS))
    errors = list(validator.iter_errors(fitted))
    for _ in range(MAX_CONVERSION_PASSES):
        if not any([_convert(fitted, leaf) for leaf in _leaves(errors)]):
            break
        _check_json(fitted)
        errors = list(validator.iter_errors(fitted))
    if errors:
        raise _Misfit(_error_text(errors, plain, word))
    _fill_in(validator, plain, fitted)
    return fitted


@lru_cache(maxsize=256)
def _validator_of(schema_json: str) -> Any:
    """The validator of a tool's schema: made once, for it costs as much as the rest of a call's fitting."""
    schema = json.loads(schema_json)
    plain = _closed_schema(_plain_schema(schema))
    return _tool_validator(draft_of(schema))(plain, registry=Registry())


def _check_json(arguments: JsonObject) -> None:
    if problem := json_problem(arguments):
        raise _Misfit(problem)
    size = len(json.dumps(arguments, ensure_ascii=False).encode())
    if size > ARGUMENTS_BYTES:
        raise _Misfit(f"{size:,} bytes as JSON, at most {ARGUMENTS_BYTES:,} are allowed")


def _plain_schema(schema: Any) -> Any:
    """The schema without `$schema` and `$id`, with which the library would choose another validator; and with
    numbers only where it takes numbers and patterned text (how pydantic writes a Decimal)."""
    if isinstance(schema, list):
        return [_plain_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        key: _plain_schema(item)
        for key, item in schema.items()
        if not (key in {"$schema", "$id"} and isinstance(item, str))
    }
    ways = plain.get("anyOf")
    if isinstance(ways, list) and all(isinstance(way, dict) for way in ways):
        types = [way.get("type") for way in ways]
        if "number" in types or "integer" in types:
            plain["anyOf"] = [way for way in ways if way.get("type") != "string" or "pattern" not in way]
    return plain


def _closed_schema(schema: JsonObject) -> JsonObject:
    """The schema of an object that has no other names than its `properties`, unless it says that it has: a
    tool may drop an unknown name, or read it as an alias of one that was judged."""
    closed = {"type": "object", **schema}
    if _lists_all(schema):
        closed.setdefault("additionalProperties", False)
    return closed


def _lists_all(schema: JsonObject) -> bool:
    return isinstance(schema.get("properties"), dict) and not any(key in schema for key in OPEN_KEYWORDS)


def _leaves(errors: Iterable[ValidationError]) -> Iterator[ValidationError]:
    """The errors behind those of `anyOf` and the like."""
    for error in errors:
        if error.context:
            yield from _leaves(error.context)
        else:
            yield error


def _convert(arguments: JsonObject, error: ValidationError) -> bool:
    """Replace the text at the error's path by what the schema asks for; False: it stays as it is."""
    if not isinstance(error.instance, str) or not error.absolute_path:
        return False
    wanted: Any = error.validator_value
    value: JsonValue = None
    if error.validator == "type":
        value = _value_of(error.instance, {wanted} if isinstance(wanted, str) else set(wanted))
    elif error.validator == "format":
        with suppress(ValueError):
            value = normal_path(error.instance, wanted)
    if value is None:
        return False
    holder: Any = arguments
    *parents, last = error.absolute_path
    for part in parents:
        holder = holder[part]
    if not isinstance(holder[last], str):  # another error of the same `anyOf` has converted it
        return False
    holder[last] = value
    return True


def _value_of(text: str, wanted: set[str]) -> JsonValue:
    """The value of one of these JSON types that the text spells; None: it spells none."""
    if wanted & {"integer", "number"} and PLAIN_NUMBER.fullmatch(text):
        number = float(text) if "." in text else int(text)
        exact = isinstance(number, int) or (math.isfinite(number) and Decimal(repr(number)) == Decimal(text))
        return number if exact and ("number" in wanted or number == int(number)) else None
    if "boolean" in wanted and text in ("true", "false"):
        return text == "true"
    kinds = tuple(kind for name, kind in (("array", list), ("object", dict)) if name in wanted)
    try:
        value: JsonValue = json.loads(text) if kinds else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, kinds) else None


def _error_text(errors: list[ValidationError], schema: JsonObject, word: str) -> str:
    names, text = schema.get("properties"), error_text(errors)
    if any(one.validator_value in ("integer", "number") and isinstance(one.instance, str) for one in errors):
        text = f"{text}; a number is written bare, such as 4800"
    if isinstance(names, dict) and any(not error.absolute_path for error in errors):
        return f"{text}; its {word} are: {', '.join(names)[:500] or 'none'}"
    return text


def _fill_in(validator: Any, schema: Any, arguments: JsonObject) -> None:
    """Fill in the schema's defaults: what the tool would take must be there to be judged. A default that does
    not fit, or with which the arguments would no longer fit, is left out."""
    missing = list(_missing(validator, schema, arguments))
    for holder, name, default in missing:
        holder[name] = copy.deepcopy(default)
    CHECKS_LEFT.set(Budget(MAX_KEYWORD_CHECKS))
    if not missing or validator.is_valid(arguments):
        return
    for holder, name, _ in missing:
        del holder[name]
    count = 0
    while count != len(missing):  # what is filled in may let another one fit
        count = len(missing)
        missing = [one for one in missing if not _fills_in(validator, arguments, *one)]


def _fills_in(validator: Any, arguments: JsonObject, holder: JsonObject, name: str, default: Any) -> bool:
    """The default is filled in; False: the arguments would no longer fit."""
    holder[name] = copy.deepcopy(default)
    if not validator.is_valid(arguments):
        del holder[name]
    return name in holder


def _missing(validator: Any, schema: Any, value: Any) -> Iterator[tuple[JsonObject, str, JsonValue]]:
    """Objects in the value that lack a property, its name, and its default, if that fits."""
    shape = _resolved_schema(schema, validator.schema)
    if isinstance(value, list) and isinstance(shape.get("items"), dict):
        for item in value:
            yield from _missing(validator, shape["items"], item)
    for name, inner in _properties(shape).items() if isinstance(value, dict) else ():
        if name in value:
            yield from _missing(validator, inner, value[name])
        elif _default_fits(validator, inner):
            yield value, name, inner["default"]


def _default_fits(validator: Any, schema: Any) -> bool:
    if not isinstance(schema, dict) or "default" not in schema:
        return False
    return bool(validator.evolve(schema=schema).is_valid(schema["default"]))


def _properties(schema: JsonObject) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _resolved_schema(schema: Any, root: JsonObject) -> dict[str, Any]:
    """The schema behind local references and `... or null`; empty where it cannot be told."""
    for _ in range(20):
        if not isinstance(schema, dict):
            return {}
        ways = next((schema[key] for key in ("anyOf", "oneOf", "allOf") if key in schema), None)
        if isinstance(reference := schema.get("$ref"), str):
            schema = _referenced_schema(reference, root)
        elif isinstance(ways, list) and "properties" not in schema:
            others = [way for way in ways if way != {"type": "null"}]
            schema = others[0] if len(others) == 1 else None
        else:
            return schema
    return {}


def _referenced_schema(reference: str, root: JsonObject) -> Any:
    value: Any = root
    for part in reference.split("/")[1:]:
        value = value.get(part) if isinstance(value, dict) else None
    return value if reference.startswith("#") else None


# -- conditions --------------------


def fits(conditions: Mapping[str, Condition], arguments: JsonObject, budget: Budget | None = None) -> bool:
    """Every named argument is there and fits its schema, or is absent where the condition is `false`.

    The arguments are fitted ones. An argument that the call leaves out, and that has no default, fits only
    `false`. Raises TooMuch where the budget does not suffice.
    """
    CHECKS_LEFT.set(budget or Budget())
    if any((name in arguments) is (condition is False) for name, condition in conditions.items()):
        return False
    validator = _condition_validator()
    return all(
        condition is False or validator(condition).is_valid(arguments[name])
        for name, condition in conditions.items()
    )


def condition_problem(condition: Condition) -> str:
    """Why this is not a usable condition; empty when it is."""
    if problem := json_problem(condition):
        return problem
    try:
        Draft202012Validator.check_schema(condition)
    except SchemaError as error:
        return error_text([error])
    errors = list(Draft202012Validator(CONDITION, format_checker=FORMATS).iter_errors(condition))
    if pattern := next((error.cause for error in errors if error.cause), None):
        return str(pattern)
    return f"{error_text(errors)}; known keywords: {', '.join(sorted(KEYWORDS))}" if errors else ""


def argument_names(spec: ToolSpec) -> tuple[str, ...]:
    """The names of a tool's arguments, as far as its schema lists them."""
    return tuple(_properties(spec.parameters))


def checks_path(name: str, spec: ToolSpec) -> bool:
    """Calls bring this argument to the form of a path; also true of one that the tool does not have."""
    root = _plain_schema(spec.parameters)
    schema = _properties(root).get(name)
    ways = [schema, _resolved_schema(schema, root)]
    return schema is None or any(form in PATH_FORMATS for form in _values_of(ways, "format"))


def has_key(schema: object, keys: Collection[str]) -> bool:
    """One of these keywords is in the schema, at any depth."""
    return any(True for key in keys for _ in _values_of(schema, key))


def _values_of(schema: object, keyword: str) -> Iterator[object]:
    if isinstance(schema, dict):
        if keyword in schema:
            yield schema[keyword]
        for inner in schema.values():
            yield from _values_of(inner, keyword)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _values_of(inner, keyword)


def argument_problem(name: str, condition: Condition, spec: ToolSpec) -> str:
    """Why this condition cannot protect this tool's argument; empty when it can, or cannot be told."""
    schema = closed_schema(spec)
    return _argument_problem(name, condition, schema, schema)


def _argument_problem(name: str, condition: Condition, schema: JsonObject, root: JsonObject) -> str:
    known = _properties(schema)
    if condition is False:
        return ""
    if name not in known:
        return _no_argument(name, schema)
    wanted = {KIND_OF[key] for key in condition if key in KIND_OF} if isinstance(condition, dict) else set()
    if not isinstance(condition, dict) or not wanted or "type" in condition:
        return ""
    types = _types(known[name], root)
    if others := (types or {"any type"}) - wanted - {"null"}:
        return (
            f"{name} may also be {' or '.join(sorted(others))}, which a condition on "
            f"{' and '.join(sorted(wanted))} never fits; name the `type` in the condition if that is right, "
            "or add the other case with `anyOf`"
        )
    inner = _resolved_schema(known[name], root)
    problems = (_argument_problem(part, one, inner, root) for part, one in _properties(condition).items())
    return next((f"{name}: {problem}" for problem in problems if problem), "")


def number_problem(name: str, spec: ToolSpec) -> str:
    """Why this tool's argument cannot be summed up; empty when it can, or cannot be told."""
    schema = _closed_schema(_plain_schema(spec.parameters))
    if name not in (known := _properties(schema)):
        return _no_argument(name, schema)
    if others := (_types(known[name], schema) or {"any type"}) - {"number", "null"}:
        return (
            f"{name} may be {' or '.join(sorted(others))}; only an argument that is a number can be summed up"
        )
    return ""


def _no_argument(name: str, schema: JsonObject) -> str:
    named = ", ".join(_properties(schema))[:500] or "none"
    return f"no argument {name!r}; its arguments are: {named}" if _lists_all(schema) else ""


def _types(schema: Any, root: JsonObject) -> set[str]:
    """JSON types that a value may have; empty: any."""
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        schema = _resolved_schema(schema, root)
    if not isinstance(schema, dict):
        return set()
    ways = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(ways, list):
        each = [_types(way, root) for way in ways]
        return set().union(*each) if all(each) else set()
    named = schema.get("type", [])
    types = {named} if isinstance(named, str) else set(named)
    return {"number" if one == "integer" else one for one in types}


# -- the library's keywords, made safe --------------------


def _left_to_the_tool(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """For keywords that the library searches with Python's expressions, which can take for ever."""
    yield from ()


def _normal_paths(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """`format`, where it marks a path."""
    if wanted in PATH_FORMATS and isinstance(instance, str):
        try:
            if normal_path(instance, wanted) != instance:
                yield ValidationError(f"{instance[:200]!r} is not a path in its normal form")
        except ValueError as error:
            yield ValidationError(str(error))


def _additional_properties(
    check: Callable[..., Any], validator: Any, wanted: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if "patternProperties" not in schema:
        yield from check(validator, wanted, instance, schema)


@cache
def _tool_validator(draft: Any) -> Any:
    """The validator class of a tool's schema of this draft."""
    keywords = {
        **SAFE_KEYWORDS,
        "format": _normal_paths,
        "patternProperties": _left_to_the_tool,
        "unevaluatedProperties": _left_to_the_tool,
        "additionalProperties": partial(_additional_properties, draft.VALIDATORS["additionalProperties"]),
    }
    every = {**draft.VALIDATORS, **keywords}
    return extend(draft, {name: partial(_check_counted, check) for name, check in every.items()})


def _check_counted(
    check: Callable[..., Any], validator: Any, wanted: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    """A keyword, as long as the arguments have not been looked at too often. Raises TooMuch."""
    budget = CHECKS_LEFT.get()
    budget.spend(wanted, instance)
    budget.depth += 1
    try:
        yield from check(validator, wanted, instance, schema) or ()
    finally:  # also where nobody asks for a second error
        budget.depth -= 1


def _of_kind(
    kind: str, check: Callable[..., Any], validator: Any, wanted: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    """A keyword that fits only values of its own type."""
    if not validator.is_type(instance, kind):
        yield ValidationError(f"{str(instance)[:100]!r} is not of type {kind!r}")
    else:
        yield from check(validator, wanted, instance, schema) or ()


@cache
def _condition_validator() -> Any:
    """The validator class of conditions."""
    every = {**Draft202012Validator.VALIDATORS, **SAFE_KEYWORDS}
    every |= {key: partial(_of_kind, kind, every[key]) for key, kind in KIND_OF.items()}
    return extend(Draft202012Validator, {key: partial(_check_counted, check) for key, check in every.items()})
