"""JSON that came as text: what is read, what is refused, and that no text hangs or breaks the reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts import NativeCall
from workflows.machines.common.json_text import (
    LARGEST_INTEGER,
    NotJson,
    call_arguments,
    clean,
    cut,
    first_value,
    is_json,
    read_arguments,
    read_object,
    shown_name,
    shown_value,
    sole_object_in,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-LARGEST_INTEGER, LARGEST_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text() | st.text(alphabet='{}[]"`\n\t ,:1e-\\ujson'))
def test_readers_never_raise(text: str) -> None:
    assert isinstance(read_object(text), dict | NotJson)
    assert isinstance(read_arguments(text), dict | NotJson)
    assert isinstance(sole_object_in(text), dict | NotJson)
    first_value(text)
    shown_value(text)
    clean(text).encode()


AROUND = ["{}", "```json\n{}\n```", "  {}\n", "\n```\n{}```  ", "``` JSON \r\n{}\r\n```"]


@given(st.dictionaries(st.text(), JSON, max_size=4), st.sampled_from(AROUND))
def test_object_is_read_with_and_without_fence(value: Any, around: str) -> None:
    assert read_object(around.replace("{}", json.dumps(value))) == value
    assert sole_object_in(around.replace("{}", json.dumps(value))) == value


@pytest.mark.parametrize("text", [
    "Here it is: {}", "{} {}", "```json\n{}", "``` {} ```", "```a b\n{}\n```",
    "``````", "```\n```", "```", "`````", "``` ```",
])  # fmt: skip
def test_object_among_other_text_is_refused(text: str) -> None:
    assert isinstance(read_object(text), NotJson)


@pytest.mark.parametrize(("text", "culprit"), [
    ("", "empty"),
    ("{", "not JSON"),
    ('{"a": 1e999}', "1e999"),
    ('{"a": Infinity}', "Infinity"),
    ("[]", "a list"),
    ("null", "null"),
    ('"x"', "a text"),
    ("3", "a number"),
    ("true", "true or false"),
    ('{"a":' * 60 + "1" + "}" * 60, "50 deep"),
    ("[" * 100_000, "not JSON"),
    (f'{{"a": {"9" * 400}}}', "9999999999"),
    (f'{{"a": -{LARGEST_INTEGER + 1}}}', str(LARGEST_INTEGER + 1)),
    (f'{{"a": {"9" * 100_000}}}', "9999999999"),
])  # fmt: skip
def test_refusal_names_the_culprit_briefly(text: str, culprit: str) -> None:
    read = read_object(text)
    assert isinstance(read, NotJson)
    assert culprit in read.problem
    assert len(read.problem) < 300


def test_64_bit_integers_are_read_exactly() -> None:
    assert read_object(f'{{"id": {LARGEST_INTEGER}, "least": -{LARGEST_INTEGER}}}') == {
        "id": LARGEST_INTEGER,
        "least": -LARGEST_INTEGER,
    }


def test_half_a_character_pair_is_replaced() -> None:
    assert read_object(r'{"\ud800": ["\udc00"]}') == {"?": ["?"]}


def test_first_value_ignores_what_follows() -> None:
    assert first_value('see {"a": 1} and more', 4) == {"a": 1}
    assert isinstance(first_value("see"), NotJson)


@pytest.mark.parametrize(("text", "value"), [
    ('{"a": 1}', {"a": 1}), (" [1, 2]", [1, 2]), ("1.10", "1.10"), ("{oops", "{oops"), ("", ""),
    ("[1] [2]", "[1] [2]"),
])  # fmt: skip
def test_output_is_shown_as_object_list_or_text(text: str, value: Any) -> None:
    assert shown_value(text) == value


def test_is_json_takes_numbers_of_any_size() -> None:
    assert [is_json(text) for text in ("9" * 400, '"x"', "NaN", "1 2", "")] == [
        True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "  ", "null", " null ", "{}"])
def test_missing_arguments_are_empty(text: str) -> None:
    assert read_arguments(text) == {}
    assert call_arguments(NativeCall(id="c", name="t", arguments=text)) == {}


@pytest.mark.parametrize(
    "piece", ["\n", "```\n", "```json\n\n", '"', "{", "}", "[", "\\", " \r\n`", "[[1],", "1"]
)
def test_a_megabyte_is_read_in_one_pass(piece: str) -> None:
    """Quadratic time would not come back within this suite's patience."""
    many = piece * (1_000_000 // len(piece))
    for text in (many, f"```json\n{many}", f"```json\n{many}x", f"```\n{{}}{many}```", f'{{"a": "{many}'):
        read_object(text)
        sole_object_in(text)
        read_arguments(text)
        shown_value(text)


def test_quoted_texts_are_cut() -> None:
    assert [cut("short"), cut("x" * 100), cut("x" * 101)] == ["short", "x" * 100, "x" * 100 + "..."]
    assert [shown_name("add"), shown_name("")] == ["add", '""']
