"""The parsers of the staged machine (spec 3.9): they never raise, and read what models write."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.machines.staged_context import Observation, Thought
from workflows.machines.staged_reply import BadReply, object_in, read_observation, read_thought

INTENTS = ("general_inquiry", "diagnosis")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
keys = st.sampled_from(
    ["summary", "final_answer", "need_loop", "intent", "suggested_tools", "reasoning", "other"]
)
objects = st.dictionaries(keys, json_values, max_size=6)
texts = st.one_of(
    st.text(),
    st.text(alphabet='{}[]":,\\ux019e.-ntrfalsu \n', max_size=60),
    objects.map(json.dumps),
    objects.map(lambda value: f"Sure:\n```json\n{json.dumps(value)}\n```"),
    st.integers(1, 200_000).map(lambda depth: '{"summary": ' + "[" * min(depth, 3000)),
    st.just('{"a":' * 200 + "1" + "}" * 200),
    st.just('{"final_answer": "\\ud800"}'),
)


@given(texts)
def test_no_text_breaks_a_parser(text: str) -> None:
    seen = read_observation(text)
    seen.model_dump_json()
    thought = read_thought(text, INTENTS)
    assert isinstance(thought, BadReply) or thought.intent in INTENTS
    if isinstance(thought, Thought):
        thought.model_dump_json()


@given(objects)
def test_an_object_is_found_whatever_is_around_it(value: Any) -> None:
    text = json.dumps(value)
    assert object_in(f"Here it is: {text} - done") == object_in(text)


def test_an_observation_in_json_is_taken_as_it_is() -> None:
    text = json.dumps({"summary": "s", "final_answer": "a", "need_loop": True})
    assert read_observation(text) == Observation(summary="s", final_answer="a", need_loop=True)


def test_the_outermost_braces_are_taken_where_there_are_words_around() -> None:
    text = 'I say:\n```json\n{"summary": "{s}", "final_answer": "a", "need_loop": false}\n```\nThanks'
    assert read_observation(text) == Observation(summary="{s}", final_answer="a", need_loop=False)


@pytest.mark.parametrize("text", ["It is 42.", "It is {42}.", "[1, 2]", '"42"', '{"answer": 42}'])
def test_what_is_no_observation_is_the_final_answer(text: str) -> None:
    seen = read_observation(text)
    assert (seen.final_answer, seen.need_loop) == (text, False)


def test_a_raw_answer_is_cut_at_2000_characters() -> None:
    seen = read_observation("x" * 2001)
    assert seen.final_answer == "x" * 2000
    assert len(read_observation(json.dumps({"final_answer": "x" * 3000})).final_answer) == 3000


@pytest.mark.parametrize("text", ["", "  \n", "{}"])
def test_an_empty_reply_is_an_empty_observation(text: str) -> None:
    assert read_observation(text) == Observation(summary="", final_answer="", need_loop=True)


@pytest.mark.parametrize(
    ("said", "need"),
    [(True, True), (False, False), ("false", False), ("No", False), ("yes", True), (0, False)],
)
def test_the_need_of_a_loop_is_read_from_what_models_write(said: Any, need: bool) -> None:
    assert read_observation(json.dumps({"final_answer": "a", "need_loop": said})).need_loop is need


def test_an_answer_that_is_no_text_is_written_as_json() -> None:
    assert read_observation('{"final_answer": {"n": 1}}').final_answer == '{"n": 1}'


@pytest.mark.parametrize("intent", ["diagnosis", " Diagnosis ", "DIAGNOSIS"])
def test_an_intent_is_read_in_any_case(intent: str) -> None:
    thought = read_thought(json.dumps({"intent": intent}), INTENTS)
    assert thought == Thought(intent="diagnosis")


def test_an_intent_in_words_is_the_one_with_underscores() -> None:
    thought = read_thought('{"intent": "General inquiry"}', INTENTS)
    assert isinstance(thought, Thought)
    assert thought.intent == "general_inquiry"


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("what?", "not a JSON object"),
        ('{"suggested_tools": []}', "the intent is null; expected one of general_inquiry, diagnosis"),
        ('{"intent": "fishing"}', 'the intent is "fishing"'),
        ('{"intent": ["diagnosis"]}', 'the intent is ["diagnosis"]'),
        ('{"intent": "diagnosis", "suggested_tools": [1]}', "must be a list of tool names"),
        ('{"intent": "diagnosis", "suggested_tools": {"a": 1}}', "must be a list of tool names"),
    ],
)
def test_a_thought_that_cannot_be_used_says_why(reply: str, problem: str) -> None:
    read = read_thought(reply, INTENTS)
    assert isinstance(read, BadReply)
    assert problem in read.problem


@pytest.mark.parametrize(
    ("tools", "read"),
    [(None, ()), ([], ()), ("search", ("search",)), (["a", " b ", "a", ""], ("a", "b"))],
)
def test_suggested_tools_are_distinct_names_in_order(tools: Any, read: tuple[str, ...]) -> None:
    thought = read_thought(json.dumps({"intent": "diagnosis", "suggested_tools": tools}), INTENTS)
    assert isinstance(thought, Thought)
    assert thought.suggested_tools == read
