"""Each form of property, on moments by hand."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from workflows.kernel.properties import (
    Moment,
    Property,
    after,
    at_most,
    before,
    between,
    count,
    last,
    never,
    then,
    until,
)
from workflows.verify.runs.samples import samples, schema_of


def a(x: Moment) -> bool:
    return x.event == "a"


def b(x: Moment) -> bool:
    return x.event == "b"


def asks_b(x: Moment) -> bool:
    return x.state == "b"


def moments(text: str) -> list[Moment]:
    """`a`, `b`, `c`: the table moves by that event. `A`, `B`: something is asked. `.`: the run ends."""
    kinds: dict[str, Any] = {".": "ended", "A": "asked", "B": "asked"}
    return [Moment(kinds.get(one, "moved"), one.lower(), None, event=one) for one in text]


def broken_at(one: Property, text: str) -> int | None:
    """The number of the moment that breaks it; None: it holds."""
    memory = one.first
    for number, moment in enumerate(moments(text)):
        memory, broken = one.step(memory, moment)
        if broken:
            return number
    return None


@pytest.mark.parametrize(("one", "text", "at"), [
    (never("", a), "bcb.", None),
    (never("", a), "bca", 2),
    (before("", first=a, then=b), "cab", None),
    (before("", first=a, then=b), "cb", 1),
    (at_most("", 2, a), "aabc", None),
    (at_most("", 2, a), "aaba", 3),
    (at_most("", 1, lambda x: x.kind == "moved", per=lambda x: x.event), "abc", None),
    (at_most("", 1, lambda x: x.kind == "moved", per=lambda x: x.event), "abcb", 3),
    (count("", a, least=2), "aba.", None),
    (count("", a, least=2), "ab.", 2),
    (count("", a, most=1), "aa.", 2),
    (count("", a, most=1), "aab", None),
    (after("", a, eventually=b), "acb.", None),
    (after("", a, eventually=b), "bac.", 3),
    (after("", a, eventually=b), "bac", None),
    (between("", a, b, never=lambda x: x.event == "c"), "cabc", None),
    (between("", a, b, never=lambda x: x.event == "c"), "acb", 1),
    (until("", a, b), "aabc", None),
    (until("", a, b), "aacb", 2),
    (last("", a), "BabA", 3),
    (last("", a), "Bab.", None),
    (last("", a, but=asks_b), "aB.", None),
    (then("", a, asks_b), "aB.", None),
    (then("", a, asks_b), "aAB.", 1),
    (then("", a, asks_b), "ab.", 2),
])  # fmt: skip
def test_form(one: Property, text: str, at: int | None) -> None:
    assert broken_at(one, text) == at


SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
    {"enum": ["x", "y"]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
    {"type": "object", "additionalProperties": {"type": "number", "exclusiveMaximum": 0}},
    {"anyOf": [{"type": "null"}, {"type": "string", "minLength": 2}]},
    {"type": ["string", "null"]},
    {"$ref": "#/$defs/one", "$defs": {"one": {"type": "object", "properties": {"b": {"const": 1}}}}},
    schema_of(dict[str, tuple[int, str]]),
    schema_of(tuple[bool, ...]),
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_samples_fit_their_schema(schema: Any) -> None:
    found = samples(schema, {})
    assert found
    for value in found:
        Draft202012Validator(schema).validate(value)


def test_every_choice_of_a_schema_is_a_sample() -> None:
    schema: Any = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b", "c"]},
            "sure": {"type": "boolean"},
            "why": {"type": "string"},
        },
        "required": ["kind", "sure"],
    }
    found = samples(schema, {"why": ["w"]})
    assert {(one["kind"], one["sure"]) for one in found} == {(k, s) for k in "abc" for s in (False, True)}
    assert any("why" not in one for one in found)
    assert {one["why"] for one in found if "why" in one} == {"w"}


def test_two_named_choices_are_varied_where_there_are_many() -> None:
    names = [f"f{number}" for number in range(6)]
    schema: Any = {"properties": {name: {"type": "boolean"} for name in names}, "required": names}
    found = samples(schema, {})
    assert len(found) < 64
    for one, other in itertools.combinations(names, 2):
        assert any(value[one] and value[other] for value in found)
