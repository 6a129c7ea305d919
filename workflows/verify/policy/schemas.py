"""JSON values that a solver chooses, and JSON schema as it is judged in production, for them.

`Values` translates a schema into a formula that is true of exactly the values that fit. A keyword that
cannot be said exactly is an *unknown*: a variable that may be true or false. So what is proven with it holds
either way, and what is found with it has to be confirmed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import z3  # type: ignore[import-untyped]  # z3-solver ships no types
from jsonschema import Draft3Validator, Draft4Validator, Draft202012Validator

from activities.contracts import PATH_FORMATS, PATTERN_STEPS, compiled
from workflows.gate.arguments import KIND_OF, has_key
from workflows.verify.policy.listed_arguments import applied, referenced
from workflows.verify.policy.patterns import Untranslatable, matching, solver_text

__all__ = ["MAX_ITEMS", "TYPES", "Filled", "Value", "Values", "exact_number"]

MAX_ITEMS = 3
"""Items of a list that the solver looks at; what a longer one has is unknown."""
MAX_REFERENCE_DEPTH = 20
"""References inside each other that are followed."""
MAX_REFERENCES = 1000
"""References of one schema that are followed: a tree of them would have a million."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
TYPES = ("null", "boolean", "number", "string", "array", "object")
LARGEST_DIVISOR = 2**53
"""Above it production rounds a divisor when it divides a float."""
UNTRANSLATED_DRAFTS = (Draft3Validator, Draft4Validator)
LEFT_TO_THE_TOOL = {"patternProperties", "unevaluatedProperties"}
"""Keywords that production does not judge."""
BESIDE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("type", "const", "enum", "multipleOf", "pattern", "format", "uniqueItems", "rule"), ()),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), ()),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), ()),
    **dict.fromkeys(("not", "allOf", "anyOf", "oneOf", "properties", "required", "propertyNames"), ()),
    "contains": ("minContains", "maxContains"),
    "items": ("prefixItems",),
    "prefixItems": (),
    "additionalProperties": ("properties",),
    "if": ("then", "else"),
}
"""Keyword -> what else in its schema says what it means; all of it for one that is not here."""
NORMAL_PATH = r"^(\.|/|/?{part}(/{part})*)$".replace("{part}", r"([^/\\.]|\.[^/\\.]|\.\.[^/\\])[^/\\]*")
"""Every path in its normal form fits this. More does: what is found is confirmed."""


class Value:
    """A JSON value that the solver chooses: a type, and what a value of each type would be."""

    def __init__(self, path: str, names: Iterable[str], *, integral: bool = False) -> None:
        """`names`: all that an object's properties may be called in any schema about it."""
        self.path, self.names = path, tuple(names)
        self.type = z3.Int(f"{path} type")
        self.flag, self.text = z3.Bool(f"{path} flag"), z3.String(f"{path} text")
        self.number = z3.ToReal(z3.Int(f"{path} integer")) if integral else z3.Real(f"{path} number")
        self.length, self.others = z3.Int(f"{path} length"), z3.Int(f"{path} others")
        self._inner: dict[str | int, Value] = {}
        self._own = z3.And(self.type >= 0, self.type < len(TYPES), self.length >= 0, self.others >= 0)

    def is_a(self, kind: str) -> Any:
        """It is of this JSON type."""
        if kind == "integer":
            return z3.And(self.is_a("number"), z3.IsInt(self.number))
        return self.type == TYPES.index(kind)

    def inner(self, name: str | int, *, integral: bool = False) -> Value:
        """The property of this name, or the item at this place."""
        if name not in self._inner:
            self._inner[name] = Value(self._path_of(name), self.names, integral=integral)
        return self._inner[name]

    def has(self, name: str) -> Any:
        """It has this property."""
        return z3.Bool(f"{self._path_of(name)} there")

    def _path_of(self, name: str | int) -> str:
        """Another one for each place: a property may be called `to.name` or `0`."""
        return f"{self.path}[{json.dumps(name)}]"

    def plain_parts(self, model: Any) -> list[Any]:
        """What tells this value from others, as far as it is plain: its type in a model, and what counts of
        that."""
        own = {"null": [], "boolean": [self.flag], "number": [self.number], "string": [self.text]}
        kind = TYPES[_number(model, self.type).numerator]
        return [self.type, *own.get(kind, [self.flag, self.text, self.number, self.length])]

    def sound(self) -> Any:
        """What is so of every JSON value."""
        return z3.And(self._own, *(one.sound() for one in self._inner.values()))

    def found(self, model: Any) -> Any:
        """The value in a model of the solver. Raises ValueError for a number that JSON cannot write."""
        kind = TYPES[_number(model, self.type).numerator]
        if kind == "boolean":
            return z3.is_true(model.eval(self.flag, model_completion=True))
        if kind == "number":
            return _plain(_number(model, self.number))
        if kind == "string":
            return _text(model.eval(self.text, model_completion=True).as_string())
        if kind == "array":
            length = _number(model, self.length).numerator
            if length > MAX_ITEMS:
                raise ValueError("a longer list than the solver looks at")
            return [self.inner(place).found(model) for place in range(length)]
        return self._found_object(model) if kind == "object" else None

    def _found_object(self, model: Any) -> dict[str, Any]:
        known = [n for n in self.names if z3.is_true(model.eval(self.has(n), model_completion=True))]
        others = min(_number(model, self.others).numerator, MAX_ITEMS)
        return {n: self.inner(n).found(model) for n in known} | {f"other{n}": None for n in range(others)}


class Filled(Value):
    """An object with one more property than another one has, or with another value of it."""

    def __init__(self, whole: Value, name: str) -> None:
        super().__init__(f"{whole.path} with {json.dumps(name)}", whole.names)
        self.type, self.length, self.others = whole.type, whole.length, whole.others
        self._whole, self._name = whole, name

    def inner(self, name: str | int, *, integral: bool = False) -> Value:
        """The property of this name."""
        return super().inner(name) if name == self._name else self._whole.inner(name)

    def has(self, name: str) -> Any:
        """It has this property."""
        return z3.BoolVal(True) if name == self._name else self._whole.has(name)


def _number(model: Any, term: Any) -> Fraction:
    value = model.eval(term, model_completion=True)
    return Fraction(value.as_long() if z3.is_int_value(value) else value.as_fraction())


def _plain(number: Fraction) -> int | float:
    if number.denominator == 1:
        return number.numerator
    near = float(number)
    if Fraction(near) != number:
        raise ValueError(f"{number} is no number of JSON")
    return near


def _text(escaped: str) -> str:
    return re.sub(r"\\u\{([0-9a-f]+)\}", lambda found: chr(int(found[1], 16)), escaped)


class Values:
    """Formulas for schemas, with their unknowns."""

    def __init__(self) -> None:
        self.unknown: dict[str, str] = {}
        """What was not translated: place and keyword -> why."""

    def fits(self, schema: Any, value: Value, *, condition: bool, draft: Any = Draft202012Validator) -> Any:
        """The value fits the schema. In a condition of an approval rule a keyword about numbers, text, lists
        or objects fits only these; in a tool's schema it says nothing about others.

        `draft`: the library's validator class. Drafts 3 and 4 are not translated.
        """
        if draft in UNTRANSLATED_DRAFTS:
            return self.unknown_fact(value, "$schema", schema, "a schema of an old draft")
        return _Translation(self, condition, schema, draft).of(schema, value)

    def unknown_fact(self, value: Value, keyword: str, wanted: Any, why: str, *context: Any) -> Any:
        """True or false, nobody knows; the same for the same question: the same keyword about the same value,
        where its schema and `context` say the same."""
        asked = [keyword, wanted, *context]
        place = f"{value.path}: {json.dumps(asked, sort_keys=True, default=str)}"
        self.unknown[place] = why
        return z3.Bool(f"unknown {place}")


class _Translation:
    """Of one schema."""

    def __init__(self, values: Values, condition: bool, root: Any, draft: Any) -> None:
        self._values, self._condition, self._root, self._draft = values, condition, root, draft
        self._depth = self._followed = 0

    def of(self, schema: Any, value: Value) -> Any:
        if isinstance(schema, bool) or not isinstance(schema, Mapping):
            return z3.BoolVal(schema is not False)
        said = applied(schema, self._draft)
        return z3.And([self._keyword(key, wanted, value, said) for key, wanted in said.items()])

    def _keyword(self, key: str, wanted: Any, value: Value, schema: Mapping[str, Any]) -> Any:
        try:
            said = self._constraint(key, wanted, value, schema)
        except Untranslatable as why:
            said = self._unknown(value, key, schema, f"`{key}`: {why}")
        except Exception as error:  # noqa: BLE001  # a malformed schema breaks this in as many ways as the library
            said = self._unknown(value, key, schema, f"`{key}` is malformed: {type(error).__name__}")
        if (kind := KIND_OF.get(key)) is None:
            return said
        return z3.And(value.is_a(kind), said) if self._condition else z3.Implies(value.is_a(kind), said)

    def _constraint(self, key: str, wanted: Any, value: Value, schema: Mapping[str, Any]) -> Any:
        if key not in self._draft.VALIDATORS or key in LEFT_TO_THE_TOOL:
            return z3.BoolVal(True)
        if key == "items" and isinstance(wanted, list | tuple):
            raise Untranslatable("it means something else in another draft")
        if key in COMPARED:
            if isinstance(wanted, bool):
                raise Untranslatable("it is no number")
            return COMPARED[key](value, exact_number(wanted))
        if key in SIZES:
            if isinstance(wanted, float) and not wanted.is_integer():
                raise Untranslatable("it is no whole number")
            return SIZES[key](value, int(wanted))
        if key not in KEYWORDS:
            raise Untranslatable("it is not translated")
        return KEYWORDS[key](self, wanted, value, schema)

    def _unknown(self, value: Value, key: str, schema: Mapping[str, Any], why: str) -> Any:
        """What a keyword of the schema says of the value. Behind a reference that is the whole schema."""
        beside = {one: schema[one] for one in BESIDE.get(key, tuple(schema)) if one in schema}
        wanted = schema.get(key)
        root = self._root if has_key([wanted, beside, {key: wanted}], REFERENCES) else None
        about = (self._condition, self._draft.__name__, root)
        return self._values.unknown_fact(value, key, wanted, why, beside, *about)

    # -- any value

    def _type(self, wanted: Any, value: Value, schema: Any) -> Any:
        return z3.Or([value.is_a(one) for one in ([wanted] if isinstance(wanted, str) else wanted)])

    def _const(self, wanted: Any, value: Value, schema: Any) -> Any:
        return self._equal(value, wanted)

    def _enum(self, wanted: Any, value: Value, schema: Any) -> Any:
        return z3.Or([self._equal(value, one) for one in wanted])

    def _equal(self, value: Value, wanted: Any) -> Any:
        """As JSON has it: 1 is 1.0, and `true` is no 1."""
        if wanted is None:
            return value.is_a("null")
        if isinstance(wanted, bool):
            return z3.And(value.is_a("boolean"), value.flag == wanted)
        if isinstance(wanted, int | float):
            return z3.And(value.is_a("number"), value.number == exact_number(wanted))
        if isinstance(wanted, str):
            return z3.And(value.is_a("string"), value.text == solver_text(wanted))
        if isinstance(wanted, list | tuple):
            items = [self._equal(value.inner(place), one) for place, one in enumerate(wanted[:MAX_ITEMS])]
            rest = len(wanted) > MAX_ITEMS
            more = [self._values.unknown_fact(value, "equal", wanted, "a long list")] if rest else []
            return z3.And(value.is_a("array"), value.length == len(wanted), *items, *more)
        there = [value.has(n) if n in wanted else z3.Not(value.has(n)) for n in value.names]
        each = [self._equal(value.inner(name), one) for name, one in wanted.items()]
        return z3.And(value.is_a("object"), value.others == 0, *there, *each)

    def _not(self, wanted: Any, value: Value, schema: Any) -> Any:
        return z3.Not(self.of(wanted, value))

    def _all_of(self, wanted: Any, value: Value, schema: Any) -> Any:
        return z3.And([self.of(one, value) for one in wanted])

    def _any_of(self, wanted: Any, value: Value, schema: Any) -> Any:
        return z3.Or([self.of(one, value) for one in wanted])

    def _one_of(self, wanted: Any, value: Value, schema: Any) -> Any:
        return z3.PbEq([(self.of(one, value), 1) for one in wanted], 1)

    def _ref(self, wanted: Any, value: Value, schema: Any) -> Any:
        found = referenced(wanted, self._root)
        self._followed += 1
        if found is None or self._depth > MAX_REFERENCE_DEPTH or self._followed > MAX_REFERENCES:
            raise Untranslatable("its reference")
        self._depth += 1
        said = self.of(found, value)
        self._depth -= 1
        return said

    # -- numbers and text

    def _multiple_of(self, wanted: Any, value: Value, schema: Any) -> Any:
        if isinstance(wanted, float):  # production reads both numbers as decimals
            raise Untranslatable("a fraction")
        if abs(wanted) > LARGEST_DIVISOR:
            raise Untranslatable("a divisor above 2**53")
        return z3.IsInt(value.number / exact_number(wanted))

    def _pattern(self, wanted: Any, value: Value, schema: Any) -> Any:
        try:
            compiled(wanted, steps=PATTERN_STEPS)
        except ValueError:  # production leaves it to the tool
            return z3.BoolVal(True)
        return z3.InRe(value.text, matching(wanted))

    def _format(self, wanted: Any, value: Value, schema: Any) -> Any:
        if self._condition or wanted not in PATH_FORMATS:
            return z3.BoolVal(True)
        rest = self._unknown(value, "format", schema, "`format`: the rest of a path's normal form")
        return z3.Implies(value.is_a("string"), z3.And(z3.InRe(value.text, matching(NORMAL_PATH)), rest))

    # -- lists and objects

    def _unique_items(self, wanted: Any, value: Value, schema: Any) -> Any:
        if not wanted:
            return z3.BoolVal(True)
        return z3.Or(value.length <= 1, self._unknown(value, "uniqueItems", schema, "`uniqueItems`"))

    def _items(self, wanted: Any, value: Value, schema: Any) -> Any:
        first = len(schema.get("prefixItems", ())) if "prefixItems" in self._draft.VALIDATORS else 0
        each = [
            z3.Implies(value.length > n, self.of(wanted, value.inner(n))) for n in range(first, MAX_ITEMS)
        ]
        return z3.And(*each, self._of_short_lists(value, "items", schema))

    def _prefix_items(self, wanted: Any, value: Value, schema: Any) -> Any:
        first = list(enumerate(wanted))[:MAX_ITEMS]
        each = [z3.Implies(value.length > n, self.of(one, value.inner(n))) for n, one in first]
        return z3.And(*each, self._of_short_lists(value, "prefixItems", schema))

    def _of_short_lists(self, value: Value, key: str, schema: Mapping[str, Any]) -> Any:
        if schema[key] in (True, {}, []):
            return z3.BoolVal(True)
        return z3.Or(value.length <= MAX_ITEMS, self._unknown(value, key, schema, f"`{key}` of a long list"))

    def _contains(self, wanted: Any, value: Value, schema: Any) -> Any:
        if {"minContains", "maxContains"} & schema.keys():
            raise Untranslatable("a number of items")
        each = [z3.And(value.length > n, self.of(wanted, value.inner(n))) for n in range(MAX_ITEMS)]
        more = self._unknown(value, "contains", schema, "`contains` of a long list")
        return z3.Or(*each, z3.And(value.length > MAX_ITEMS, more))

    def _properties(self, wanted: Any, value: Value, schema: Any) -> Any:
        return z3.And(
            [z3.Implies(value.has(name), self.of(one, value.inner(name))) for name, one in wanted.items()]
        )

    def _required(self, wanted: Any, value: Value, schema: Any) -> Any:
        return z3.And([value.has(name) for name in wanted])

    def _additional_properties(self, wanted: Any, value: Value, schema: Any) -> Any:
        known = schema.get("properties", {})
        if wanted in (True, {}) or (not self._condition and "patternProperties" in schema):
            return z3.BoolVal(True)
        more = [name for name in value.names if name not in known]
        if wanted is False:
            return z3.And(value.others == 0, *(z3.Not(value.has(name)) for name in more))
        each = [z3.Implies(value.has(name), self.of(wanted, value.inner(name))) for name in more]
        others = self._unknown(value, "additionalProperties", schema, "`additionalProperties`")
        return z3.And(*each, z3.Or(value.others == 0, others))


KEYWORDS: Mapping[str, Callable[[_Translation, Any, Value, Mapping[str, Any]], Any]] = {
    "type": _Translation._type,
    "const": _Translation._const,
    "enum": _Translation._enum,
    "not": _Translation._not,
    "allOf": _Translation._all_of,
    "anyOf": _Translation._any_of,
    "oneOf": _Translation._one_of,
    "$ref": _Translation._ref,
    "multipleOf": _Translation._multiple_of,
    "pattern": _Translation._pattern,
    "format": _Translation._format,
    "uniqueItems": _Translation._unique_items,
    "items": _Translation._items,
    "prefixItems": _Translation._prefix_items,
    "contains": _Translation._contains,
    "properties": _Translation._properties,
    "required": _Translation._required,
    "additionalProperties": _Translation._additional_properties,
}


def _size(value: Value) -> Any:
    return z3.Sum([value.others, *(z3.If(value.has(name), 1, 0) for name in value.names)])


COMPARED: Mapping[str, Callable[[Value, Any], Any]] = {
    "minimum": lambda value, bound: value.number >= bound,
    "maximum": lambda value, bound: value.number <= bound,
    "exclusiveMinimum": lambda value, bound: value.number > bound,
    "exclusiveMaximum": lambda value, bound: value.number < bound,
}
SIZES: Mapping[str, Callable[[Value, int], Any]] = {
    "minLength": lambda value, count: z3.Length(value.text) >= count,
    "maxLength": lambda value, count: z3.Length(value.text) <= count,
    "minItems": lambda value, count: value.length >= count,
    "maxItems": lambda value, count: value.length <= count,
    "minProperties": lambda value, count: _size(value) >= count,
    "maxProperties": lambda value, count: _size(value) <= count,
}


def exact_number(number: float) -> Any:
    """Exactly this number: 0.1 is the float that production compares with."""
    return z3.RealVal(str(Fraction(number)))
