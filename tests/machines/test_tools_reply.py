"""Reading arguments and writing results as JSON: pure, and never raising on any text (spec 2.5)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.machines.json_text import NotJson, read_arguments
from workflows.machines.tools_reply import as_json, error_json

TEXTS = st.one_of(
    st.text(),
    st.text(alphabet='{}[]",:\\u0dD8e+-1 NaIfn'),
    st.text(alphabet=st.sampled_from('{}":,\ud800\udfff')),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(TEXTS)
def test_no_text_raises_and_what_is_read_can_be_written(text: str) -> None:
    read = read_arguments(text)
    if isinstance(read, NotJson):
        json.loads(error_json(read.problem).encode())
    else:
        json.dumps(read, allow_nan=False, ensure_ascii=False).encode()


@given(st.dictionaries(st.text(), JSON))
def test_every_json_object_is_read_as_it_is(value: dict[str, Any]) -> None:
    assert read_arguments(json.dumps(value)) == value
    assert read_arguments(json.dumps(value, ensure_ascii=False)) == value


@given(JSON.filter(lambda value: value is not None))
def test_json_that_is_no_object_is_refused_in_words(value: Any) -> None:
    read = read_arguments(json.dumps(value))
    assert isinstance(read, NotJson) is not isinstance(value, dict)


@pytest.mark.parametrize("text", ["", " ", "\n", "null"])
def test_a_blank_text_stands_for_no_arguments(text: str) -> None:
    assert read_arguments(text) == {}


@pytest.mark.parametrize("text", [
    pytest.param("[" * 100_000, id="lists without an end"),
    pytest.param('{"a":' * 100_000, id="objects without an end"),
    pytest.param('{"a":' * 51 + "1" + "}" * 51, id="one too deep"),
    pytest.param('{"a": ' + "9" * 5000 + "}", id="a number of 5000 digits"),
    pytest.param('{"a": -Infinity}', id="a number that JSON lacks"),
])  # fmt: skip
def test_hostile_arguments_are_refused(text: str) -> None:
    read = read_arguments(text)
    assert isinstance(read, NotJson)
    assert len(read.problem) < 400


def test_arguments_may_be_nested_fifty_deep() -> None:
    read = read_arguments('{"a":' * 50 + "1" + "}" * 50)
    assert isinstance(read, dict)


def test_half_a_character_pair_becomes_a_question_mark() -> None:
    assert read_arguments(r'{"\ud800": ["\udc00"]}') == {"?": ["?"]}
    assert json.loads(error_json("\ud800")) == {"error": "?"}


@given(st.text())
def test_every_output_becomes_json(text: str) -> None:
    shown = json.loads(as_json(text))
    assert shown == text or as_json(text) == text


@given(JSON)
def test_an_output_that_is_json_stays_as_it_is(value: Any) -> None:
    text = json.dumps(value)
    assert as_json(text) == text


@pytest.mark.parametrize("text", ["NaN", '{"n": Infinity}', "[1, 2", "1e999", "", "two words", "[" * 100_000])
def test_an_output_that_is_not_quite_json_becomes_a_json_text(text: str) -> None:
    assert json.loads(as_json(text)) == text


def test_letters_stay_readable() -> None:
    assert as_json("größer") == '"größer"'
    assert error_json("größer") == '{"error": "größer"}'
