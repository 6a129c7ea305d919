"""Where two JSON values differ, in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.differences import Difference, differences, in_words, timeless

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(was=JSON, now=JSON)
def test_there_is_a_difference_exactly_where_the_json_differs(was: Any, now: Any) -> None:
    same = json.dumps(was, sort_keys=True) == json.dumps(now, sort_keys=True)
    assert (differences(was, now) == ()) == same


@given(value=JSON)
def test_nothing_differs_from_itself(value: Any) -> None:
    assert differences(value, json.loads(json.dumps(value))) == ()


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "a.b[1]: was 2, now 3"),
        ({"a": 1}, {}, "a: was 1, now (nothing)"),
        ([1], [1, "x"], '[1]: was (nothing), now "x"'),
        ("yes", None, 'value: was "yes", now null'),
        ({"ok": True}, {"ok": 1}, "ok: was true, now 1"),
        (
            {"t": "same until here"},
            {"t": "same until there"},
            't: was "same until here", now "same until there"',
        ),
    ],
)
def test_a_difference_names_its_place_and_both_sides(was: Any, now: Any, said: str) -> None:
    assert [in_words(one) for one in differences(was, now)] == [said]


def test_long_texts_are_cut_to_what_is_around_the_first_character_that_differs() -> None:
    was = "a" * 500 + "left" + "b" * 500
    now = "a" * 500 + "right" + "b" * 500
    (found,) = differences({"text": was}, {"text": now})
    assert found.was.startswith('…"aaa')
    assert "left" in found.was
    assert "right" in found.now
    assert max(len(found.was), len(found.now)) < 100


def test_what_only_one_side_has_is_told() -> None:
    assert [one.at for one in differences({"a": 1}, {"a": 1, "b": 2})] == ["b"]
    assert [one.at for one in differences({"a": 1, "b": 2}, {"a": 1})] == ["b"]


def test_seconds_that_are_none_of_a_ledger_and_flags_stay() -> None:
    value = {"heartbeat_seconds": 5, "started": True, "spent": [{"tool_seconds": 3}]}
    assert timeless(value, (0, 10**9)) == value | {"heartbeat_seconds": 0, "spent": [{"tool_seconds": 0}]}
    assert timeless(value) == value


def test_not_more_is_told_than_a_person_reads() -> None:
    found = differences(list(range(100)), list(range(1, 101)))
    assert (len(found), found[0]) == (20, Difference(at="[0]", was="0", now="1"))


SPAN = (1795289000, 1795290000)
REQUEST = {"kind": "approval", "place": "act#1:1", "digest": "0f"}


def test_moments_of_the_run_and_a_ledger_s_seconds_count_for_nothing_and_all_else_stays() -> None:
    then = {
        "counters": {"seconds": 1.5, "tool_calls": 2},
        "at": 1795289082.29,
        "request": {**REQUEST, "deadline": 1.9e9, "warn_at": 1.8e9},
        "text": "at 2026-11-21T18:48:51.77Z",
    }
    later = {
        "counters": {"seconds": 9, "tool_calls": 2},
        "at": 1795289999,
        "request": {**REQUEST, "deadline": 1.95e9, "warn_at": 1.85e9},
        "text": "at 2026-11-21T20:49:00+02:00",
    }
    span = (1795286000, SPAN[1])
    assert timeless(then, span) == timeless(later, span)
    kept = {"arguments": {"seconds": 3}, "counters": {"tool_calls": 2}, "ok": True, "n": 1_000_000}
    assert timeless(kept, SPAN) == kept


@pytest.mark.parametrize(
    "value",
    [
        1.5e9,
        3_000_000_000,
        "due 1999-01-01T00:00:00Z",
        "due 2099-13-99T00:00:00",
        {"at": 1.6e9},
        {"answer": {"deadline": 5, "started": 2, "finished": 3, "created": 4, "closed": 6, "timestamp": 7}},
        {"deadline": 3e9, "warn_at": 3e9, "entered": 1, "began": 2},
        {**REQUEST, "deadline": 5},
        {"arguments": {**REQUEST, "deadline": 3e9}},
        {"arguments": {"deadline": 3e9, "counters": {"seconds": 4}}},
        {"arguments": [{"started": 2e9}]},
    ],
)
def test_amounts_and_dates_that_are_none_of_the_run_s_times_stay(value: Any) -> None:
    assert timeless(value, SPAN) == value
