"""Schemas that agents' authors write: refused when bad, and no value takes for ever (spec 4.3)."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.machines.common.json_schema import Schema, checked_schema
from workflows.machines.planner.plan import plan_schema

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def checked(schema: Any) -> Schema:
    """The schema of an option."""
    return checked_schema("option", schema)


@pytest.mark.parametrize(("value", "culprit"), [
    ({"goal": 3}, "goal: 3 is not of type 'string'"),
    ({"goal": "a", "initial_steps": [1]}, "initial_steps.0: 1 is not of type 'string'"),
    ({"goal": "a", "more": 1}, "'more' was unexpected"),
    ({"goal": "x" * 100_000}, "more than 100,000 characters"),
    ({"goal": "x", "initial_steps": ["look at it"] * 5_000}, ""),
])  # fmt: skip
def test_misfit_names_its_place(value: Any, culprit: str) -> None:
    problem = plan_schema(None).problem(value)
    assert culprit in problem
    assert bool(problem) is bool(culprit)


@pytest.mark.parametrize(("schema", "culprit"), [
    ({"type": "plan"}, "not a JSON schema"), ({"properties": 3}, "not a JSON schema"),
    ({"required": [{}, {}]}, "required.0"), ({"$defs": {"a": {"type": 3}}}, "$defs.a.type"),
    ({"$schema": "http://json-schema.org/draft-07/schema#"}, "draft 2020-12"),
    ({"items": {"$schema": DRAFT}}, "top only"), ({"properties": {"a": {"$id": "x"}}}, "top only"),
    ({"$ref": "http://127.0.0.1:9/schema.json"}, "can be followed"),
    ({"properties": {"a": {"$ref": "file:///etc/hostname"}}}, "can be followed"),
    ({"$ref": "#/properties/a", "properties": {"a": {}}}, "can be followed"),
    ({"$ref": "#/$defs/a/type", "$defs": {"a": {"type": "null"}}}, "can be followed"),
    ({"properties": {"goal": {"$ref": "#/$defs/nope"}}}, "no such name"),
    ({"$ref": "#"}, "circle"), ({"allOf": [{"$ref": "#"}]}, "circle"),
    ({"$dynamicRef": "#a"}, "`$dynamicRef`"), ({"unevaluatedProperties": False}, "`unevaluatedProperties`"),
    ({"items": {"patternProperties": {"(a+)+$": {}}}}, "`patternProperties`"),
    ({"properties": {"a": {"pattern": "(?=a)b"}}}, "RE2"), ({"pattern": "(x|y){500}"}, "steps"),
    ({"description": "x" * 16_000}, "bytes"), ({"title": "\ud800"}, "surrogates"),
    ({"minimum": float("nan")}, "float"),
])  # fmt: skip
def test_bad_schema_is_refused_with_its_culprit(schema: Any, culprit: str) -> None:
    with pytest.raises(ValueError, match="option: ") as refused:
        checked(schema)
    assert culprit in str(refused.value)


def test_deeply_nested_schema_is_refused() -> None:
    schema: Any = {}
    for _ in range(5000):
        schema = {"not": schema}
    with pytest.raises(ValueError, match="nested"):
        checked(schema)


def test_schema_and_id_at_the_top_change_nothing() -> None:
    properties: Any = {"name": {"pattern": "^a$"}, "all": {"items": {"$ref": "#"}}}
    schema = checked({"$schema": f"{DRAFT}#", "$id": "http://127.0.0.1:9/", "properties": properties})
    # RE2 shows that our own keywords hold behind a reference, too: Python's `$` fits before a line break.
    assert "all.0.name" in schema.problem({"all": [{"name": "a\n"}]})


@pytest.mark.parametrize("name", ["short", "a~b", "a b", "%41", "a/b"])
def test_references_are_written_as_json_pointers(name: str) -> None:
    pointer = quote(name.replace("~", "~0").replace("/", "~1"))
    schema = checked(
        {"properties": {"goal": {"$ref": f"#/$defs/{pointer}"}}, "$defs": {name: {"maxLength": 3}}}
    )
    assert schema.problem({"goal": "see"}) == ""
    assert "too long" in schema.problem({"goal": "know it"})


@pytest.mark.parametrize(("items", "fits"), [
    (["a", "b"], True), (["a", "a"], False), ([1, 1.0], False), ([1, True], True), ([0, False], True),
    ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False), ([2**64, 2**64 + 1], True),
    ([{"n": n} for n in range(3000)], True),
])  # fmt: skip
def test_unique_items_differ_as_json_values(items: Any, fits: bool) -> None:
    schema = checked({"properties": {"goal": {"uniqueItems": True}}})
    assert (schema.problem({"goal": items}) == "") is fits


@pytest.mark.parametrize(("number", "fits"), [(0.3, True), (10**400, True), (0.35, False), (1e-320, False)])
def test_multiples_are_exact(number: float, fits: bool) -> None:
    schema = checked({"properties": {"goal": {"multipleOf": 0.1}}})
    assert (schema.problem({"goal": number}) == "") is fits


@pytest.mark.parametrize("rule", [{"multipleOf": 0.1}, {"multipleOf": 10**400}, {"minimum": 10**400}])
def test_numbers_beyond_all_floats_are_judged_in_words(rule: Any) -> None:
    for number in (10**400, -(10**400), 1e308, 1.5, 2**64):
        assert isinstance(checked({"properties": {"goal": rule}}).problem({"goal": number}), str)


def doubled(levels: int) -> Any:
    """References that unfold to 2 to the power of `levels` subschemas."""
    defs = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**defs, f"d{levels}": {"type": "null"}}, "$ref": "#/$defs/d0"}


STEPS: Any = {"properties": {"sub": {"allOf": [{"$ref": "#/$defs/step"}] * 2}}}


@pytest.mark.parametrize("schema", [
    {"items": {"required": [f"a{n}" for n in range(1_500)]}}, doubled(40),
    {"$ref": "#/$defs/a", "$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}},
    *(pytest.param(one, marks=pytest.mark.exhaustive) for one in [
        {"items": {"enum": list(range(2_000))}}, {"items": {"anyOf": [{"const": n} for n in range(600)]}},
        {"anyOf": [{"type": "null"}] * 600}, {"anyOf": [{"uniqueItems": True}] * 400},
        {"items": {"oneOf": [{"type": "object"}] * 600}},
        {"allOf": [{"items": {"type": "string", "pattern": "(a|b)*(x|y){90}$"}}] * 99},
        {"contains": {"not": {"type": "object"}}, "items": {"propertyNames": {"maxLength": 0}}},
        {"$ref": "#/$defs/step", "$defs": {"step": STEPS}},
    ]),
])  # fmt: skip
def test_no_schema_takes_for_ever(schema: Any) -> None:
    inner = {key: part for key, part in schema.items() if key != "$defs"}
    whole = checked({"properties": {"goal": inner}, "$defs": schema.get("$defs", {})})
    deep: Any = {}
    for _ in range(40):
        deep = {"sub": deep}
    items: list[Any] = [{"a": 1}, "a" * 100]
    for value in (deep, *([item] * (95_000 // (len(json.dumps(item)) + 2)) for item in items)):
        assert isinstance(whole.problem({"goal": value}), str)


def test_steps_may_have_steps() -> None:
    step: Any = {"properties": {"steps": {"items": {"$ref": "#/$defs/step"}}}, "required": ["do"]}
    schema = checked({"properties": {"plan": {"$ref": "#/$defs/step"}}, "$defs": {"step": step}})
    assert schema.problem({"plan": {"do": "a", "steps": [{"do": "b"}, {"do": "c", "steps": []}]}}) == ""
    assert "plan.steps.0: 'do'" in schema.problem({"plan": {"do": "a", "steps": [{}]}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip
KEYWORDS = st.sampled_from([
    "type", "properties", "items", "allOf", "not", "$ref", "$defs", "pattern", "required", "uniqueItems",
    "enum", "$id", "$schema", "multipleOf", "if", "then", "dependentRequired", "dependentSchemas", "contains",
    "prefixItems", "const", "$anchor",
])  # fmt: skip
SCHEMAS = st.recursive(
    JSON | st.sampled_from(["#", "#/$defs/a", "object", "string", "array", "a+"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS | st.just("a"), inner, max_size=3),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(KEYWORDS, SCHEMAS, max_size=4), st.dictionaries(st.text(max_size=3), JSON, max_size=3))
def test_any_schema_is_refused_or_judges_any_value(schema: Any, value: Any) -> None:
    try:
        assert isinstance(checked(schema).problem(value), str)
    except ValueError as error:
        assert str(error).startswith("option: ")  # noqa: PT017  # it may be raised or not
