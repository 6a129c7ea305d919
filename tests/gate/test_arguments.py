"""Arguments are fitted to the tool's schema once; conditions judge what was fitted."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.gate.gatekit import spec
from workflows.gate.arguments import (
    Budget,
    TooMuch,
    argument_problem,
    arguments_for,
    condition_problem,
    fits,
)

TOOL: dict[str, Any] = {
    "$defs": {"Order": {"type": "object", "properties": {"total": {"type": "integer", "default": 7}}}},
    "type": "object",
    "properties": {
        "amount": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^(?!x)"}]},
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "order": {"$ref": "#/$defs/Order"},
        "flag": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        "code": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "name": {"type": "string", "pattern": "^[a-z]+$"},
        "mode": {"type": "string", "default": "fast"},
        "broken": {"type": "integer", "default": None},
    },
}


@pytest.mark.parametrize(
    ("given", "fitted"),
    [
        pytest.param({"amount": "99.5"}, {"amount": 99.5}, id="a number as text"),
        pytest.param({"amount": 2**70}, {"amount": 2**70}, id="a large number"),
        pytest.param({"count": "5"}, {"count": 5}, id="a number or null"),
        pytest.param({"count": None}, {"count": None}, id="null"),
        pytest.param({"flag": "true"}, {"flag": True}, id="a boolean as text"),
        pytest.param({"tags": '["1", 2]'}, {"tags": [1, 2]}, id="JSON in text, text in JSON"),
        pytest.param({"order": "{}"}, {"order": {"total": 7}}, id="a default inside"),
        pytest.param({"code": "007"}, {"code": "007"}, id="text where text fits"),
    ],
)
def test_arguments_become_what_the_schema_asks_for(given: Any, fitted: Any) -> None:
    assert arguments_for(spec(parameters=TOOL), given) == {**fitted, "mode": "fast"}


BESIDE_EACH_OTHER: dict[str, Any] = {
    "properties": {"a": {"default": 1}, "b": {"default": 2}, "c": {}, "d": {"default": 4}},
    "not": {"required": ["b", "c"]},
    "dependentRequired": {"a": ["d"]},
}


@pytest.mark.parametrize(
    ("given", "fitted"),
    [
        pytest.param({}, {"a": 1, "b": 2, "d": 4}, id="all"),
        pytest.param({"c": 3}, {"a": 1, "c": 3, "d": 4}, id="not the one that the schema forbids there"),
        pytest.param({"b": 5}, {"a": 1, "b": 5, "d": 4}, id="a value in the place of a default"),
    ],
)
def test_default_that_would_make_arguments_misfit_is_left_out(given: Any, fitted: Any) -> None:
    """What is judged is a call that the tool's own schema allows."""
    tool = spec(parameters=BESIDE_EACH_OTHER)
    assert arguments_for(tool, given) == fitted
    assert arguments_for(tool, fitted) == fitted


PATHS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "format": "relative-path", "default": "."},
        "any": {"anyOf": [{"type": "string", "format": "path"}, {"type": "null"}]},
        "many": {"type": "array", "items": {"$ref": "#/$defs/Below"}},
    },
    "$defs": {"Below": {"type": "string", "format": "relative-path"}},
}


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("reports/x", "reports/x"),
        ("./reports//x/", "reports/x"),
        ("reports/./x/.", "reports/x"),
        (".", "."),
        ("", "."),
        ("a b/~/%2e%2e/...", "a b/~/%2e%2e/..."),
        ("cafe\u0301", "caf\u00e9"),
    ],
)
def test_paths_are_judged_in_form_in_which_they_open(path: str, normal: str) -> None:
    given: dict[str, Any] = {"path": path, "any": f"/{path}", "many": json.dumps([path])}
    absolute = "/" if normal == "." else f"/{normal}"
    fitted: dict[str, Any] = {"path": normal, "any": absolute, "many": [normal]}
    assert arguments_for(spec(parameters=PATHS), given) == fitted
    assert arguments_for(spec(parameters=PATHS), fitted) == fitted


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("reports/../conftest.py", "`..`"),
        ("..", "`..`"),
        ("reports\\..\\x", "backslash"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("/etc/passwd", "absolute"),
        ("//x", "absolute"),
        ("x/" * 2000, "longer"),
    ],
)
def test_path_that_says_less_than_it_means_is_refused(path: str, why: str) -> None:
    for arguments in list[dict[str, Any]](({"path": path}, {"many": [path]})):
        refused = arguments_for(spec(parameters=PATHS), arguments)
        assert isinstance(refused, str)
        assert why in refused
    if why != "absolute":
        assert isinstance(arguments_for(spec(parameters=PATHS), {"any": path}), str)


@pytest.mark.parametrize(
    ("given", "culprit"),
    [
        ({"amout": 1}, "amout"),
        ({"amount": "+5"}, "amount"),
        ({"amount": "0.12345678901234567890123"}, "amount"),
        ({"count": "5.5"}, "count"),
        ({"count": True}, "count"),
        ({"order": {"total": "x"}}, "order.total"),
        ({"tags": [1, 1.0]}, "tags"),
        ({"name": "ANN"}, "name"),
        ({"name": "\ud800"}, "surrogate"),
        ({"amount": float("nan")}, "NaN"),
        ({"name": "a" * 3_000_000}, "bytes"),
    ],
)
def test_misfit_is_a_text_that_names_the_culprit(given: Any, culprit: str) -> None:
    problem = arguments_for(spec(parameters=TOOL), given)
    assert isinstance(problem, str)
    assert culprit in problem


@pytest.mark.parametrize(
    "schema",
    [{"type": 5}, {"properties": {"a": {"$ref": "https://example.com/x"}}}, {"$ref": "#"}, {"required": 1}],
)
def test_call_of_tool_with_broken_schema_is_not_made(schema: Any) -> None:
    assert isinstance(arguments_for(spec(parameters=schema), {"a": 1}), str)


def test_schema_that_refers_to_itself_for_ever_is_no_crash() -> None:
    """Whatever the depth at which Python's limit would come."""

    def judged(deeper: int) -> Any:
        return judged(deeper - 1) if deeper else arguments_for(spec(parameters={"$ref": "#"}), {"a": 1})

    assert all("too much" in judged(deeper) for deeper in range(8))


def test_a_schema_keeps_the_rules_of_its_draft() -> None:
    """And brings no validator of its own, whose patterns Python would search."""
    draft7 = "http://json-schema.org/draft-07/schema#"
    inner: dict[str, Any] = {
        "$schema": draft7,
        "type": "array",
        "items": [{"type": "integer"}, {"pattern": "(a+)+$"}],
    }
    tool = spec(parameters={"$schema": draft7, "type": "object", "properties": {"pair": inner}})
    started = time.thread_time()
    assert arguments_for(tool, {"pair": ["1", "a" * 40]}) == {"pair": [1, "a" * 40]}
    assert isinstance(arguments_for(tool, {"pair": ["1", "a" * 40 + "!"]}), str)
    assert time.thread_time() - started < 1


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["1", "2.5", "{}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["total", "x"]), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(list(TOOL["properties"])), values))
def test_fitted_arguments_are_valid_and_fit_again(arguments: Any) -> None:
    fitted = arguments_for(spec(parameters=TOOL), arguments)
    if isinstance(fitted, str):
        return
    assert Draft202012Validator(TOOL).is_valid(fitted)
    assert arguments_for(spec(parameters=TOOL), fitted) == fitted


@pytest.mark.parametrize(
    ("condition", "value", "fit"),
    [
        ({"exclusiveMinimum": 100}, 100.5, True),
        ({"exclusiveMinimum": 100}, 100, False),
        ({"exclusiveMinimum": 100}, "500", False),
        ({"maximum": 5}, "500", False),
        ({"not": {"maximum": 5}}, "500", True),
        ({"multipleOf": 0.5}, 10**350, True),
        ({"multipleOf": 0.01}, 19.99, True),
        ({"multipleOf": 0.01}, 19.995, False),
        ({"multipleOf": 0.3}, 10**350, False),
        ({"multipleOf": 2}, 2**60 + 1, False),
        ({"multipleOf": 2}, 1e300, True),
        ({"multipleOf": 2}, True, False),
        ({"minimum": 10**400}, 10**401, True),
        ({"const": 1}, True, False),
        ({"const": 1}, 1.0, True),
        ({"enum": ["a", None]}, None, True),
        ({"pattern": "(?i)drop table"}, "; DROP TABLE x", True),
        ({"pattern": "a"}, ["a"], False),
        ({"maxLength": 3}, "abcd", False),
        ({"minItems": 1}, "abc", False),
        ({"properties": {"total": {"minimum": 5}}, "required": ["total"]}, {"total": 7}, True),
        ({"properties": {"total": {"minimum": 5}}, "required": ["total"]}, {}, False),
        (True, None, True),
        (False, None, False),
    ],
)
def test_a_condition_fits_or_does_not(condition: Any, value: Any, fit: bool) -> None:
    assert fits({"a": condition}, {"a": value, "b": 1}) is fit


@pytest.mark.parametrize(("condition", "fit"), [(False, True), (True, False), ({"maximum": 5}, False)])
def test_an_absent_argument_fits_only_false(condition: Any, fit: bool) -> None:
    assert fits({"a": condition}, {}) is fit


@pytest.mark.parametrize(
    ("condition", "culprit"),
    [
        ({"exclusiveMinumum": 5}, "exclusiveMinumum"),
        ({"anyOf": [{"$ref": "#"}]}, "$ref"),
        ({"maximum": "x"}, "maximum"),
        ({"type": "nunber"}, "type"),
        ({"pattern": "(?=a)"}, "(?=a)"),
        ({"items": {"pattern": "a{900}b{900}"}}, "1,000"),
        ({"const": float("inf")}, "Infinity"),
    ],
)
def test_a_condition_that_protects_nothing_is_refused(condition: Any, culprit: str) -> None:
    assert culprit in condition_problem(condition)


@pytest.mark.parametrize(
    ("name", "condition", "culprit"),
    [
        ("amout", {"minimum": 5}, "amout"),
        ("order", {"properties": {"totl": {"minimum": 5}}}, "totl"),
        ("name", {"minimum": 5}, "string"),
        ("code", {"minimum": 5}, "string"),
        ("code", {"type": "integer", "minimum": 5}, ""),
        ("count", {"minimum": 5}, ""),
        ("amount", {"minimum": 5}, ""),
        ("name", {"const": "ann"}, ""),
        ("absent", False, ""),
    ],
)
def test_a_condition_must_suit_the_tool(name: str, condition: Any, culprit: str) -> None:
    problem = argument_problem(name, condition, spec(parameters=TOOL))
    assert (culprit in problem) if culprit else problem == ""


def test_no_schema_freezes_the_loop() -> None:
    started = time.thread_time()  # a busy machine may take longer
    assert not fits({"a": {"pattern": "(a+)+$"}}, {"a": "a" * 100_000 + "!"})
    objects: Any = [{"n": n} for n in range(20_000)]
    assert fits({"a": {"uniqueItems": True}}, {"a": objects})
    tool = spec(parameters={"properties": {"a": {"uniqueItems": True}}})
    assert arguments_for(tool, {"a": objects}) == {"a": objects}
    assert time.thread_time() - started < 2


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ({"items": {"type": "string", "pattern": "^a"}}, ["a"] * 28_000),
        ({"anyOf": [{"pattern": f"a{n}$"} for n in range(40)]}, "b" * 1_000_000),
        ({"allOf": [{"uniqueItems": True}] * 40}, [{"n": n} for n in range(20_000)]),
    ],
    ids=["many items", "long text", "long list"],
)
def test_condition_has_a_budget(condition: Any, value: Any) -> None:
    started = time.thread_time()
    with pytest.raises(TooMuch):
        fits({"a": condition, "b": False}, {"a": value})
    assert time.thread_time() - started < 2
    items: Any = {"items": {"type": "string", "pattern": "^a"}}
    assert fits({"a": items}, {"a": ["a"] * 5_000})


def test_all_rules_share_the_budget() -> None:
    budget = Budget()
    condition: Any = {"items": {"pattern": "^a"}}
    with pytest.raises(TooMuch):
        assert all(fits({"a": condition}, {"a": ["a"] * 5_000}, budget) for _ in range(9))
