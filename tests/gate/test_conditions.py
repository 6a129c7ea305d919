"""What an argument must be; what cannot be told is neither yes nor no."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from workflows.gate.canonical import canonical, digest, unwritable
from workflows.gate.conditions import fits
from workflows.people import Condition

NAN = float("nan")


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        ({"equals": 1}, 1, True),
        ({"equals": 1}, 1.0, True),
        ({"equals": 1}, 2, False),
        ({"equals": 1}, True, None),
        ({"equals": 1}, "1", None),
        ({"equals": True}, True, True),
        ({"equals": True}, False, False),
        ({"equals": True}, 1, None),
        ({"equals": False}, 0, None),
        ({"equals": "a"}, "a", True),
        ({"equals": "a"}, "A", None),
        ({"equals": "a"}, " a\n", None),
        ({"equals": "a"}, "b", False),
        ({"equals": "a"}, None, False),
        ({"equals": "a"}, ["a"], None),
        ({"equals": [1, "a"]}, [1.0, "a"], True),
        ({"equals": [1, "a"]}, ["a", 1], None),
        ({"equals": [1]}, [1, 1], False),
        ({"equals": [1]}, ["1"], None),
        ({"equals": {"a": 1}}, {"a": 1}, True),
        ({"equals": {"a": 1}}, {"a": "1"}, None),
        ({"equals": {"a": 1}}, {"a": 1, "b": 2}, None),
        ({"equals": {"a": 1}}, {"a": 2, "b": 2}, False),
        ({"equals": {"a": 1}}, '{"a": 1}', None),
        ({"equals": {"a": 1}}, [1], None),
        ({"equals": {"a": 1}}, None, False),
        ({"equals": {"a": 1}}, {"b": 1}, None),
        ({"equals": {"a": [1, 2]}}, {"a": [1, "x"]}, None),
        ({"one_of": ["a", "b"]}, "b", True),
        ({"one_of": ["a", "b"]}, "c", False),
        ({"one_of": ["a", 2]}, "2", None),
        ({"one_of": [None]}, None, True),
        ({"one_of": [None]}, 0, False),
        ({"matches": "^/etc"}, "/etc/passwd", True),
        ({"matches": "etc"}, "/etc/passwd", True),
        ({"matches": "^/etc"}, "/tmp", False),
        ({"matches": "^/etc"}, " /etc", None),
        ({"matches": "^/etc"}, ["/etc/passwd"], None),
        ({"matches": "."}, "\ud800", None),
        ({"matches": "."}, None, False),
        ({"matches": "1"}, 1, None),
        ({"above": 10}, 11, True),
        ({"above": 10}, 10, False),
        ({"above": 10}, 10.5, True),
        ({"above": 10}, float("inf"), True),
        ({"above": 10}, "11", True),
        ({"above": 10}, "9", False),
        ({"above": 10}, "1.1e1", True),
        ({"above": 10}, "10.00000000000000000001", True),
        ({"above": 10}, "1_1", None),
        ({"above": 10}, "011", None),
        ({"above": 10}, " 11", None),
        ({"above": 10}, "\uff11\uff11", None),
        ({"above": 10}, "nan", None),
        ({"above": 10}, "1" * 401, None),
        ({"above": 10}, "much", None),
        ({"above": 0}, True, None),
        ({"above": 10}, None, False),
        ({"above": 10}, [11], None),
        ({"above": 10}, NAN, None),
        ({"below": 10}, 9, True),
        ({"below": 10}, 10, False),
        ({"below": 10}, False, None),
        ({"above": 1, "below": 3}, 2, True),
        ({"above": 1, "below": 3}, 3, False),
        ({"above": 1, "below": 3}, "2", True),
        ({"longer_than": 2}, "abc", True),
        ({"longer_than": 2}, "ab", False),
        ({"longer_than": 2}, [1, 2, 3], True),
        ({"longer_than": 0}, {"a": 1}, True),
        ({"longer_than": 2}, 12345, None),
        ({"longer_than": 2}, None, False),
        ({}, None, True),
        ({"absent": True}, None, False),
    ],
)
def test_an_argument_fits_or_does_not_or_cannot_be_judged(
    condition: dict[str, Any], value: Any, expected: bool | None
) -> None:
    assert fits({"x": Condition.model_validate(condition)}, {"x": value}) is expected


@pytest.mark.parametrize(
    "condition",
    [{}, {"equals": 1}, {"one_of": [None]}, {"matches": ""}, {"above": 0}, {"below": 0}, {"longer_than": 0}],
)
def test_a_missing_argument_fits_nothing_but_absent(condition: dict[str, Any]) -> None:
    assert fits({"x": Condition.model_validate(condition)}, {"y": 1}) is False
    assert fits({"x": Condition(absent=True)}, {"y": 1}) is True


def test_all_arguments_that_are_named_must_fit_and_others_may_be_anything() -> None:
    conditions = {"a": Condition(equals=1), "b": Condition(above=1)}
    assert fits(conditions, {"a": 1, "b": 2, "c": "whatever"}) is True
    assert fits(conditions, {"a": 1, "b": 1}) is False
    assert fits(conditions, {"a": "1", "b": 1}) is False, "one that does not fit settles it"
    assert fits(conditions, {"a": "1", "b": 2}) is None
    assert fits({}, {"a": 1}) is True


def test_a_dot_leads_inside_an_object_and_nowhere_else() -> None:
    total = {"order.total": Condition(above=10)}
    assert fits(total, {"order": {"total": 11}}) is True
    assert fits(total, {"order": {"total": 9}, "order.total": 11}) is False, (
        "a key of that spelling is no way round"
    )
    assert fits({"a.b.c": Condition(equals="x")}, {"a": {"b": {"c": "x"}}}) is True
    outers: list[Any] = [5, "total", ["total"], None, True, '{"total": 11}', [{"total": 11}]]
    for outer in outers:
        assert fits({"order.total": Condition()}, {"order": outer}) is None, "a tool may read it as an object"


ORDER: dict[str, Any] = {
    "properties": {
        "total": {"type": "number"},
        "tip": {"default": 5},
        "rest": {"type": "number"},
    },
    "required": ["total"],
}
SHOP: dict[str, Any] = {
    "properties": {
        "order": {"$ref": "#/$defs/Order", "default": {"total": 3}},
        "maybe": {"anyOf": [{"$ref": "#/$defs/Order"}, {"type": "null"}], "default": None},
        "needed": {"$ref": "#/$defs/Order"},
        "made": {"type": "number"},
        "circle": {"$ref": "#/$defs/Circle"},
        "either": {"anyOf": [{"$ref": "#/$defs/Order"}, {"type": "object"}]},
    },
    "required": ["needed"],
    "$defs": {"Order": ORDER, "Circle": {"$ref": "#/$defs/Circle"}},
}


@pytest.mark.parametrize(
    ("path", "arguments", "expected"),
    [
        ("made", {"made": 11}, True),
        ("made", {}, None),  # a factory may make it
        ("made", {"betrag": 11}, None),
        ("made", {"made": 5, "betrag": 11}, None),  # an alias may win
        ("order.total", {}, False),
        ("order.total", {"order": {"total": 11}}, True),
        ("order.total", {"order": {"summe": 11}}, None),
        ("order.total", {"order": {}}, False),
        ("order.tip", {"order": {"total": 1}}, False),
        ("order.tip", {}, False),
        ("order.rest", {"order": {"total": 1}}, None),
        ("maybe.total", {"maybe": {"total": 11}}, True),
        ("maybe.tip", {"maybe": {"total": 11}}, False),
        ("maybe.total", {}, None),
        ("needed", {}, False),
        ("needed.tip", {}, False),
        ("circle.total", {"circle": {}}, None),
        ("either.total", {"either": {}}, None),
        ("either.total", {"either": {"total": 11}}, True),
        ("foreign", {"made": 1}, False),  # a rule for several tools
    ],
)
def test_the_schema_says_what_the_tool_takes_for_what_is_left_out(
    path: str, arguments: dict[str, Any], expected: bool | None
) -> None:
    assert fits({path: Condition(above=10)}, arguments, SHOP) is expected


@pytest.mark.parametrize(
    ("path", "arguments", "expected"),
    [("made", {}, True), ("made", {"x": 1}, None), ("order", {}, False), ("made", {"made": None}, False)],
)
def test_absent_is_what_neither_call_nor_schema_gives(
    path: str, arguments: dict[str, Any], expected: bool | None
) -> None:
    assert fits({path: Condition(absent=True)}, arguments, SHOP) is expected


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        ({}, {}, False),
        ({}, {"betrag": 11}, None),
        ({}, {"a": 11}, True),
        ({"properties": 5}, {"b": 1}, None),
        ({"properties": {"a": 5}, "required": 5}, {}, None),
        ({"properties": {"a": {"$ref": 5}}}, {}, None),
        ({"properties": {"a": {"$ref": "elsewhere"}}}, {}, None),
    ],
)
def test_a_schema_that_says_little_or_nonsense_decides_nothing(
    schema: dict[str, Any], arguments: dict[str, Any], expected: bool | None
) -> None:
    assert fits({"a": Condition(above=10)}, arguments, schema) is expected


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "a{2000}", "[", "\ud800"])
def test_a_pattern_that_re2_cannot_read_is_refused_with_the_model(pattern: str) -> None:
    with pytest.raises(ValidationError, match=r"RE2|valid string"):
        Condition(matches=pattern)


@pytest.mark.parametrize("value", [NAN, float("inf"), [NAN], {"a": NAN}, "\ud800", {"\ud800": 1}])
def test_a_value_that_cannot_be_kept_is_refused_with_the_model(value: Any) -> None:
    """NaN would come back from the carry as null, which asks for nothing at all."""
    with pytest.raises(ValidationError, match=r"finite number|no text"):
        Condition(equals=value)
    with pytest.raises(ValidationError, match=r"finite number|no text"):
        Condition(one_of=(1, value))


@pytest.mark.parametrize("text", ['{"equals": NaN}', '{"one_of": [[Infinity]]}'])
def test_what_is_no_json_is_refused_also_where_it_comes_as_text(text: str) -> None:
    with pytest.raises(ValidationError, match="NaN and Infinity are no JSON"):
        Condition.model_validate_json(text)


def test_what_is_absent_cannot_be_anything_else() -> None:
    with pytest.raises(ValidationError, match="make two rules"):
        Condition(absent=True, above=1)


def test_a_pattern_cannot_hang() -> None:
    """It is matched in time linear in the text."""
    assert fits({"x": Condition(matches="^(a+)+$")}, {"x": "a" * 100_000 + "b"}) is False


def test_a_pattern_that_is_a_huge_program_is_refused_and_no_search_takes_long() -> None:
    with pytest.raises(ValidationError, match="8,004 steps as an RE2 program, at most 5,000"):
        Condition(matches=".{1000}")
    large = Condition(matches=".{500}z$")
    assert fits({"x": large}, {"x": "a" * 600 + "z"}) is True
    began = time.monotonic()
    assert fits({"x": large}, {"x": "a" * 1_000_000}) is None
    assert time.monotonic() - began < 1


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal as JSON values are: numbers by value (`1` is `1.0`), true is no number, null only null."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


@given(json_values, json_values)
def test_equal_values_fit_and_a_fit_is_equality(one: Any, other: Any) -> None:
    if one is None:
        return
    condition = {"x": Condition(equals=one)}
    assert fits(condition, {"x": one}) is True
    assert (fits(condition, {"x": other}) is True) == same(one, other)


@given(json_values, json_values)
def test_equal_spellings_are_equal_values(one: Any, other: Any) -> None:
    if canonical(one) == canonical(other):
        assert same(one, other)
        assert digest(one) == digest(other)
    if not same(one, other):
        assert digest(one) != digest(other)


def test_the_spelling_does_not_depend_on_order_or_script() -> None:
    assert canonical({"b": 1, "a": "é"}) == '{"a":"\\u00e9","b":1}'
    assert canonical("\ud800") == '"\\ud800"'


def test_what_is_nested_too_deeply_is_refused_from_the_first_level_on() -> None:
    deep: Any = 1
    for _ in range(50):
        deep = {"a": deep}
    assert unwritable(deep) == ""
    assert unwritable([deep]) == "nested more than 50 deep"


def test_a_number_larger_than_any_float_is_compared_as_any_other() -> None:
    huge = 10**400
    assert fits({"x": Condition(above=5)}, {"x": huge}) is True
    assert fits({"x": Condition(below=5)}, {"x": huge}) is False
    assert fits({"x": Condition(above=5)}, {"x": -huge}) is False
    assert fits({"x": Condition(equals=5.5)}, {"x": huge}) is False
