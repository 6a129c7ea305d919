"""JSON that came as text: what is read, what is refused, and that no text can hang or break the reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.machines.json_text import (
    LARGEST,
    NotJson,
    clean,
    cut,
    read_arguments,
    read_object,
    shown_value,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-LARGEST, LARGEST)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text() | st.text(alphabet='{}[]"`\n\t ,:1e-\\ujson'))
def test_the_readers_never_raise_on_any_text(text: str) -> None:
    assert isinstance(read_object(text), dict | NotJson)
    assert isinstance(read_arguments(text), dict | NotJson)
    shown_value(text)
    clean(text).encode()


AROUND = ["{}", "```json\n{}\n```", "  {}\n", "\n```\n{}```  ", "``` JSON \r\n{}\r\n```"]


@given(st.dictionaries(st.text(), JSON, max_size=4), st.sampled_from(AROUND))
def test_an_object_is_read_with_and_without_a_fence(value: Any, around: str) -> None:
    assert read_object(around.replace("{}", json.dumps(value))) == value


@pytest.mark.parametrize("text", ["Here it is: {}", "{} {}", "```json\n{}", "``` {} ```", "```a b\n{}\n```"])
def test_an_object_with_anything_else_around_it_is_not_read(text: str) -> None:
    """A reply that only quotes an object must not be taken for it."""
    assert isinstance(read_object(text), NotJson)


@pytest.mark.parametrize("text", ["``````", "```\n```", "```", "`````", "``` ```"])
def test_a_fence_around_nothing_is_empty_or_no_json(text: str) -> None:
    assert isinstance(read_object(text), NotJson)


@pytest.mark.parametrize(("text", "words"), [
    ("", "it is empty"),
    ("{", "it is not JSON"),
    ('{"a": 1e999}', "too great"),
    ('{"a": Infinity}', "Infinity is not JSON"),
    ("[]", "a list came"),
    ("null", "null came"),
    ('"x"', "a text came"),
    ("3", "a number came"),
    ("true", "true or false came"),
    ('{"a":' * 60 + "1" + "}" * 60, "nested more than 50 deep"),
    ("[" * 100_000, "it is not JSON"),
    (f'{{"a": {"9" * 400}}}', "the number 9999999999"),
    (f'{{"a": -{LARGEST + 1}}}', "is too great"),
    (f'{{"a": {"9" * 100_000}}}', "is too great"),
    (f'{{"a": 0.{"9" * 100_000}}}', "too long"),
])  # fmt: skip
def test_what_is_no_object_says_what_came(text: str, words: str) -> None:
    read = read_object(text)
    assert isinstance(read, NotJson)
    assert words in read.problem
    assert len(read.problem) < 300


def test_integers_of_64_bits_are_read_as_they_are() -> None:
    assert read_object(f'{{"id": {LARGEST}, "least": -{LARGEST}}}') == {"id": LARGEST, "least": -LARGEST}


def test_half_a_character_pair_is_replaced_in_keys_and_values() -> None:
    assert read_object(r'{"\ud800": ["\udc00"]}') == {"?": ["?"]}


def test_an_output_is_shown_as_the_object_or_list_that_it_is_and_else_as_text() -> None:
    assert [shown_value(text) for text in ('{"a": 1}', " [1, 2]", "1.10", "{oops", "")] == [
        {"a": 1}, [1, 2], "1.10", "{oops", "",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "  ", "null", " null ", "{}"])
def test_missing_arguments_are_no_arguments(text: str) -> None:
    assert read_arguments(text) == {}


@pytest.mark.parametrize(
    "piece", ["\n", "```\n", "```json\n\n", '"', "{", "}", "[", "\\", " \r\n`", "[[1],", "1"]
)
def test_a_megabyte_of_anything_is_read_in_one_pass(piece: str) -> None:
    """What takes quadratic time would not come back within this suite's patience."""
    many = piece * (1_000_000 // len(piece))
    for text in (many, f"```json\n{many}", f"```json\n{many}x", f"```\n{{}}{many}```", f'{{"a": "{many}'):
        read_object(text)
        read_arguments(text)
        shown_value(text)


def test_a_long_text_is_cut_and_says_so() -> None:
    assert cut("short") == "short"
    assert cut("x" * 100) == "x" * 100
    assert cut("x" * 101) == "x" * 100 + "..."
