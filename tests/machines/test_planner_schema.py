"""The plan's schema (spec 4.3): what is refused at the border, what a plan is told; nothing hangs."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from activities.contracts import JsonObject
from tests.machines.answers import said
from tests.machines.plannerkit import path, planner
from tests.machines.scripts_planner import PLAN, plan
from workflows.machines.planner_schema import plan_schema

DRAFT = "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(("text", "words"), [
    ('{"goal": 3}', "goal: 3 is not of type 'string'"),
    ('{"goal": "a", "initial_steps": "b"}', "initial_steps: 'b' is not of type 'array'"),
    ('{"goal": "a", "initial_steps": [1]}', "initial_steps.0: 1 is not of type 'string'"),
    ('{"goal": "a", "more": 1}', "Additional properties are not allowed ('more' was unexpected)"),
])  # fmt: skip
def test_what_does_not_fit_is_named_with_its_place(text: str, words: str) -> None:
    assert planner(said(text)).exit.error == f"Agent halted: Plan failed: {words}"


@pytest.mark.parametrize(("schema", "words"), [
    ({"type": "plan"}, "no JSON schema of draft 2020-12"),
    ({"properties": 3}, "no JSON schema of draft 2020-12: properties"),
    ({"required": "goal"}, "no JSON schema"),
    ({"$defs": {"a": {"type": 3}}}, "no JSON schema"),
    ({"$schema": "http://json-schema.org/draft-07/schema#"}, "is not draft 2020-12"),
    ({"properties": {"a": {"$schema": DRAFT}}}, "`$schema` is allowed at the top only"),
    ({"properties": {"a": {"$id": "x"}}}, "`$id` is allowed at the top only"),
    ({"$ref": "http://127.0.0.1:9/schema.json"}, "leads outside"),
    ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "leads outside"),
    ({"properties": {"a": {"$ref": "file:///etc/hostname"}}}, "leads outside"),
    ({"unevaluatedProperties": False}, "not supported; use `additionalProperties`"),
    ({"items": {"unevaluatedItems": False}}, "`unevaluatedItems` is not supported"),
    ({"allOf": [{}] * 1_000}, "more than 1,000 mappings"),
    ({"title": "\ud800"}, "plan_schema"),
    ({"$dynamicRef": "other.json"}, "`$dynamicRef` is not supported"),
    ({"$defs": {"a": {"items": [{"$ref": "x"}]}}}, "leads outside"),
    ({"$ref": "#/properties/a", "properties": {"a": {}}}, "leads outside"),
    ({"$ref": "#/$defs/nosuch"}, "$defs has no 'nosuch'"),
    ({"$defs": {"a": {}}, "$ref": "#/$defs/A"}, "$defs has no 'A'; there is a"),
    ({"properties": {"goal": {"$ref": "#/$defs/nope"}}}, "$defs has no 'nope'"),
    ({"properties": {"goal": {"$ref": "#/$defs/a/type"}}, "$defs": {"a": {"type": "null"}}}, "leads outside"),
    ({"$ref": "#"}, "for ever in a circle"),
    ({"allOf": [{"$ref": "#"}]}, "for ever in a circle"),
    ({"properties": {"goal": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}}, "for"),
    ({"$defs": {"a": {"if": {"$ref": "#/$defs/b"}}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, "circle"),
    ({"patternProperties": {"(a+)+$": {}}}, "`patternProperties` is not supported"),
    ({"properties": {"a": {"pattern": "("}}}, "plan_schema"),
    ({"properties": {"a": {"pattern": "(?=a)b"}}}, "is no RE2 expression"),
    ({"anyOf": [{"pattern": f"a{n}"} for n in range(101)]}, "more than 100 patterns"),
    ({"required": [{}, {}]}, "`required` must be a list of texts"),
    ({"dependentRequired": {"a": [{}, {}]}}, "`dependentRequired.a` must be a list of texts"),
    ({"description": "x" * 16_000}, "more than 16,000 bytes"),
    ({"minimum": float("nan")}, "plan_schema"),
])  # fmt: skip
def test_a_schema_that_cannot_be_used_is_refused_when_the_machine_is_built(schema: Any, words: str) -> None:
    with pytest.raises(ValueError, match="plan_schema") as refused:
        plan_schema(schema)
    assert words in str(refused.value)


def test_the_machine_is_not_built_with_a_bad_schema() -> None:
    with pytest.raises(ValueError, match="plan_schema"):
        planner(plan_schema={"properties": {"goal": {"$ref": "#/$defs/nope"}}})


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: Any = {}
    for _ in range(5000):
        schema = {"not": schema}
    with pytest.raises(ValueError, match="nested too deeply"):
        plan_schema(schema)


def doubled(depth: int, **around: Any) -> Any:
    """A schema whose references unfold to 2 to the power of `depth` subschemas."""
    defs = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(depth)}
    return {"$defs": {**defs, f"d{depth}": {"type": "object"}}, **around}


@pytest.mark.parametrize(
    "around", [{"$ref": "#/$defs/d0"}, {"properties": {"goal": {"$ref": "#/$defs/d0"}}}, {}]
)
def test_a_schema_whose_references_unfold_too_far_is_refused(around: Any) -> None:
    with pytest.raises(ValueError, match="unfolds to more than 1,000"):
        plan_schema(doubled(60, **around))
    assert plan_schema(doubled(3, **around)).problem({}) == ""


def test_a_plan_that_a_schema_looks_at_too_often_is_refused_and_the_worker_lives() -> None:
    """Twice the work at each level of the plan: no count of references shows it beforehand."""
    step: Any = {"properties": {"sub": {"allOf": [{"$ref": "#/$defs/step"}, {"$ref": "#/$defs/step"}]}}}
    plan: Any = {}
    for _ in range(40):
        plan = {"sub": plan}
    found = plan_schema({"$ref": "#/$defs/step", "$defs": {"step": step}}).problem(plan)
    assert "takes too long" in found


@pytest.mark.parametrize("steps", [
    {"items": {"enum": list(range(2_000))}},
    {"items": {"const": list(range(2_000))}},
    {"items": {"required": [f"a{n}" for n in range(1_500)]}},
    {"items": {"anyOf": [{"const": n} for n in range(600)]}},
    {"allOf": [{"items": {"type": "string", "pattern": "b$"}} for _ in range(99)]},
    {"anyOf": [{"type": "null"}] * 600},
    {"items": {"oneOf": [{"type": "object"}] * 600}},
    {"contains": {"not": {"type": "object"}}, "items": {"propertyNames": {"maxLength": 0}}},
])  # fmt: skip
def test_a_great_plan_is_judged_or_refused_soon_whatever_the_schema_asks(steps: Any) -> None:
    schema = plan_schema({"properties": {"goal": steps}})
    items: tuple[JsonValue, ...] = ({"a": 1}, -1, "a" * 100, [])
    for item in items:
        many = [item] * (95_000 // (len(json.dumps(item)) + 2))
        assert isinstance(schema.problem({"goal": many}), str)


@pytest.mark.parametrize(("items", "fits"), [
    ([], True), (["a", "b"], True), (["a", "a"], False), ([1, 1.0], False), ([1, True], True),
    ([0, False], True), ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False), ([[1], [True]], True),
    ([[1], [1.0]], False), (["1", 1], True),
    ([None, None], False), ([2**64, 2**64 + 1], True), ([1e300, 1e301], True),
])  # fmt: skip
def test_unique_items_are_told_apart_as_json_schema_says(items: Any, fits: bool) -> None:
    schema = plan_schema({"properties": {"goal": {"uniqueItems": True}, "any": {"uniqueItems": False}}})
    assert (schema.problem({"goal": items, "any": items}) == "") is fits
    assert schema.problem({"goal": "aa"}) == ""


def test_many_unique_items_are_looked_at_once_each() -> None:
    many: list[JsonValue] = [{"n": n, "t": [n]} for n in range(3000)]
    assert plan_schema({"properties": {"goal": {"uniqueItems": True}}}).problem({"goal": many}) == ""


def test_a_place_in_the_plan_is_cut() -> None:
    schema = plan_schema({"additionalProperties": {"type": "null"}})
    assert len(schema.problem({"x" * 90_000: 1})) < 1_000


def test_a_plan_that_is_too_long_is_not_looked_at() -> None:
    assert "more than 100,000 characters" in plan_schema(None).problem({"goal": "x" * 100_000})
    assert plan_schema(None).problem({"goal": "x" * 99_000}) == ""
    steps: list[JsonValue] = ["look at it"] * 5_000
    assert plan_schema(None).problem({"goal": "x", "initial_steps": steps}) == ""


@pytest.mark.parametrize(
    "rule", [{"multipleOf": 0.1}, {"multipleOf": 10**400}, {"minimum": 10**400}, {"maximum": -1e308}]
)
def test_numbers_beyond_all_floats_are_judged_or_refused_in_words(rule: Any) -> None:
    schema = plan_schema({"properties": {"goal": rule}})
    for number in (10**400, -(10**400), 1e308, 1.5, 2**64):
        assert isinstance(schema.problem({"goal": number}), str)
    assert "cannot be followed" in plan_schema({"properties": {"goal": {"multipleOf": 0.1}}}).problem(
        {"goal": 10**400}
    )


def test_schema_and_id_at_the_top_change_nothing() -> None:
    for top in (DRAFT, f"{DRAFT}#"):
        schema: JsonObject = {
            "$schema": top, "$id": "http://127.0.0.1:9/",
            "properties": {"goal": {"$ref": "#/$defs/short"}, "all": {"items": {"$ref": "#"}}},
            "$defs": {"short": {"maxLength": 3}},
        }  # fmt: skip
        assert "too long" in plan_schema(schema).problem({"goal": "much"})
        assert "too long" in plan_schema(schema).problem({"all": [{"goal": "much"}]})


def test_our_own_checks_hold_behind_a_reference_too() -> None:
    """The library would go on with its own validator where a schema names its draft; RE2 shows which."""
    properties: JsonObject = {"name": {"pattern": "^a$"}, "all": {"items": {"$ref": "#"}}}
    schema = plan_schema({"$schema": DRAFT, "properties": properties})
    assert "all.0.name: 'a\\n' does not match" in schema.problem({"all": [{"name": "a\n"}]})


@pytest.mark.parametrize("name", ["a/b", "a~b", "a b", "%41"])
def test_names_in_references_are_escaped_as_in_json_pointers(name: str) -> None:
    pointer = quote(name.replace("~", "~0").replace("/", "~1"))
    schema = plan_schema({"$ref": f"#/$defs/{pointer}", "$defs": {name: {"required": ["goal"]}}})
    assert "required property" in schema.problem({})


def test_a_step_may_have_steps() -> None:
    step: Any = {
        "type": "object",
        "properties": {
            "do": {"type": "string"},
            "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}},
        },
        "required": ["do"],
    }
    schema = plan_schema({"properties": {"plan": {"$ref": "#/$defs/step"}}, "$defs": {"step": step}})
    assert schema.problem({"plan": {"do": "a", "steps": [{"do": "b"}, {"do": "c", "steps": []}]}}) == ""
    assert "plan.steps.0: 'do' is a required property" in schema.problem({"plan": {"do": "a", "steps": [{}]}})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)
KEYWORDS = st.sampled_from([
    "type", "properties", "items", "allOf", "not", "$ref", "$defs", "pattern", "required", "uniqueItems",
    "enum", "$id", "multipleOf", "if", "then", "dependentRequired", "dependentSchemas", "contains",
    "prefixItems", "const", "$anchor",
])  # fmt: skip
SCHEMAS = st.recursive(
    JSON | st.sampled_from(["#", "#/$defs/a", "object", "string", "array", "a+"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS | st.just("a"), inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=300)
@given(st.dictionaries(KEYWORDS, SCHEMAS, max_size=4), st.dictionaries(st.text(max_size=3), JSON, max_size=3))
def test_any_schema_is_taken_or_refused_and_judges_any_plan(schema: Any, value: Any) -> None:
    refused = ""
    try:
        assert isinstance(plan_schema(schema).problem(value), str)
    except ValueError as error:
        refused = str(error)
    assert refused == "" or refused.startswith("plan_schema: ")


def test_references_within_the_schema_are_followed() -> None:
    schema = {"properties": {"goal": {"$ref": "#/$defs/short"}}, "$defs": {"short": {"maxLength": 3}}}
    assert "'know it' is too long" in str(planner(PLAN, plan_schema=schema).exit.error)
    assert path(planner(plan("see"), plan_schema=schema)) == "I P D E"


def test_a_pattern_is_searched_in_a_time_that_no_text_can_blow_up() -> None:
    schema = plan_schema({"properties": {"goal": {"pattern": "^(a+)+$"}}})
    assert schema.problem({"goal": "aaa"}) == ""
    assert "does not match" in schema.problem({"goal": "a" * 5000 + "!"})
    assert schema.problem({"goal": 3}) == ""


@given(st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=4))
def test_the_default_schema_takes_or_refuses_any_object(value: Any) -> None:
    fits = set(value) <= {"goal"} and isinstance(value.get("goal"), str)
    assert (plan_schema(None).problem(value) == "") is fits
