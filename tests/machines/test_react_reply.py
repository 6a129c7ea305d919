"""Reading replies (R-000-7): any text is read or refused in words, and arguments are made safe."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import ToolRun
from workflows.kernel.fields import Fields
from workflows.machines.react_context import Context, ReasoningStep
from workflows.machines.react_reply import BadReply, Thought, final_answer, harden, read_reply

WILD = st.text(st.characters(), max_size=200) | st.text(max_size=200)
"""Any text, lone surrogates too."""
PIECES = st.sampled_from([
    "Thought:", "Action:", "Action Input:", "Observation:", "\n", "\r\n", "{", "}", "[", '"', "```",
    "```json\n", ":", '{"thought": "x"}', '{"thought": 1}', "FINAL ANSWER", "None", "NaN", "1e999", "\ud800",
    "\\ud800", "\u2028", " ", '"action_input":', "null", "a", "\x00", "9" * 5000,
])  # fmt: skip
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=30).map(
    str.strip
)
NAMES = st.from_regex(r"[a-z][a-z_]{0,12}", fullmatch=True).filter(lambda n: n not in {"none", "null"})
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
INPUTS = st.dictionaries(WORDS, JSON_VALUES, max_size=3)


def read(text: str) -> Thought:
    """A reply that must have the right format."""
    found = read_reply(text)
    assert isinstance(found, Thought), found
    return found


def refused(text: str) -> str:
    """What is wrong with a reply that has not."""
    found = read_reply(text)
    assert isinstance(found, BadReply), found
    return found.problem


def _holds(text: str) -> None:
    found = read_reply(text)
    if isinstance(found, BadReply):
        assert found.problem
        found.problem.encode()
        return
    assert found.text.strip()
    step = ReasoningStep(id=0, thought=found.text, action=found.action, action_input=found.action_input)
    fields = Fields.of(Context)
    delta = fields.to_json({"steps": fields.checked("steps", {0: step})})
    again = fields.checked("steps", json.loads(json.dumps(delta, allow_nan=False))["steps"])
    assert again == {0: step}
    ReasoningStep.model_validate_json(step.model_dump_json())
    assert ToolRun(id="0", tool=found.action or "", arguments=found.action_input).title
    final_answer(found.text, found.action, found.action_input)


@settings(deadline=None, max_examples=300)
@given(WILD)
def test_any_text_is_read_or_refused(text: str) -> None:
    _holds(text)


@settings(deadline=None, max_examples=500)
@given(st.lists(PIECES | WILD, max_size=14).map("".join))
def test_any_text_that_looks_like_a_reply_is_read_or_refused(text: str) -> None:
    _holds(text)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["thought", "action", "action_input", "x"]), JSON_VALUES))
def test_any_json_object_is_read_or_refused(value: Any) -> None:
    _holds(json.dumps(value))


WRAPPINGS = st.sampled_from([
    "{}", " \n{} \n", "```json\n{}\n```", "```\r\n{}\r\n```", "```JSON\n{}```", "Here it is:\n{}",
    "<think>hm {{ }}</think>\n```json\n{}\n```\nDone.",
])  # fmt: skip
ROUND = st.tuples(WORDS.filter(bool), st.none() | NAMES, INPUTS)


@settings(deadline=None)
@given(ROUND, st.booleans(), WRAPPINGS)
def test_a_json_reply_is_read_in_every_wrapping(parts: Any, ascii_only: bool, wrapping: str) -> None:
    words, action, given_input = parts
    reply = {"thought": words, "action": action, "action_input": given_input}
    text = wrapping.replace("{{ }}", "{ }").replace("{}", json.dumps(reply, ensure_ascii=ascii_only))
    found = read(text)
    assert (found.text, found.action, found.action_input) == (words, action, harden(given_input))


@settings(deadline=None)
@given(ROUND, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["{}", "```json\n{}\n```", "{}\nand so on"]))
def test_labelled_lines_are_read(parts: Any, end: str, wrapping: str) -> None:
    words, action, given_input = parts
    raw = wrapping.replace("{}", json.dumps(given_input), 1)
    lines = [f"Thought: {words}", f"Action: {action}", f"Action Input: {raw}"]
    found = read(end.join(lines))
    assert (found.text, found.action, found.action_input) == (words, action, harden(given_input))


# -- labelled lines --------------------


def test_a_thought_may_have_several_lines_and_a_label_in_the_middle_of_one() -> None:
    found = read("Thought: first\nI say Thought: twice, and Action: once\nAction: search")
    assert found.text == "first\nI say Thought: twice, and Action: once"
    assert (found.action, found.action_input) == ("search", {})


def test_an_observation_that_the_model_made_up_is_cut_off() -> None:
    text = 'Thought: look\nAction: search\nAction Input: {"q": 1}\nObservation: 42\nThought: FINAL ANSWER: 42'
    assert read(text) == Thought("look", "search", {"q": 1})
    assert refused("Observation: 42")


@pytest.mark.parametrize("nothing", ["None", "none", "null", "N/A", "", "  "])
def test_no_action_can_be_said_in_several_ways(nothing: str) -> None:
    assert read(f"Thought: x\nAction: {nothing}\nAction Input: {nothing}") == Thought("x")
    assert read(json.dumps({"thought": "x", "action": nothing})) == Thought("x")
    assert read('{"thought": "x", "action": null, "action_input": null}') == Thought("x")


def test_of_a_label_that_comes_twice_the_first_step_counts() -> None:
    text = "Thought: a\nAction: search\nAction Input: {}\nThought: b\nAction: other"
    assert read(text) == Thought("a", "search")
    assert read("Thought: a\nAction: search\nAction: other") == Thought("a", "search")


def test_thoughts_before_the_first_action_belong_together() -> None:
    assert read("Thought: a\nThought: b\nAction: search") == Thought("a\nb", "search")


def test_the_action_is_the_first_line_behind_its_label() -> None:
    assert read("Thought: a\nAction: search\nbecause I want to\nAction Input: {}").action == "search"


@pytest.mark.parametrize(("given_input", "words"), [
    ("q=1", "not JSON"), ("[1]", "not list"), ('"q"', "not str"), ("{", "not JSON"),
    ('{"q": NaN}', "not JSON"),
    ("1", "not int"), ("```json\n[]\n```", "not list"),
])  # fmt: skip
def test_an_input_that_is_no_mapping_is_refused(given_input: str, words: str) -> None:
    assert words in refused(f"Thought: a\nAction: search\nAction Input: {given_input}")


def test_the_final_answer_needs_no_label() -> None:
    assert read("So the FINAL ANSWER: 42").text == "So the FINAL ANSWER: 42"
    assert read('FINAL ANSWER: {"cats": 1}').text == 'FINAL ANSWER: {"cats": 1}'


def test_a_json_reply_behind_other_words_is_not_taken_for_a_final_answer_as_text() -> None:
    found = read('Here you are:\n{"thought": "FINAL ANSWER: 42", "action": null, "action_input": {}}')
    assert found.text == "FINAL ANSWER: 42"


# -- JSON --------------------


@pytest.mark.parametrize(("text", "words"), [
    ("", "empty"), (" \n ", "empty"), ("```json\n```", ""), ("just words", "neither"), ("[1]", "neither"),
    ("{", "JSON"),
    ('{"thought": ""}', "blank"), ('{"thought": " "}', "blank"), ('{"action": "x"}', "thought"), 
    ("{}", "thought"),
    ('{"thought": 3}', "thought"), ('{"thought": "x", "action": 3}', "tool's name"),
    ('{"thought": "x", "action_input": []}', "not list"),
    ('{"thought": "x", "action_input": "q"}', "not str"),
    ('{"thought": "x", "action_input": {"q": NaN}}', "NaN"),
    ('{"thought": "x", "action_input": {"q": -Infinity}}', "Infinity"),
    ('{"thought": "x", "action_input": {"q": 1e999}}', "1e999"),
    ('{"thought": "x", "action_input": {"q": ' + "9" * 5000 + "}}", ""),
    ('{"thought": ' * 100_000, ""),
    ("[" * 100_000, ""),
    ('{"a":' * 200_000, ""),
])  # fmt: skip
def test_what_is_no_reply_is_refused_in_words(text: str, words: str) -> None:
    assert words in refused(text)
    assert len(refused(text)) < 400


def test_of_several_objects_and_text_behind_them_the_first_counts() -> None:
    assert read('{"thought": "a"} {"thought": "b"}').text == "a"
    assert read('{"thought": "a"}\nI hope this helps!').text == "a"


def test_halves_of_character_pairs_are_made_readable() -> None:
    found = read('{"thought": "a\\ud800", "action": "b\\udfff", "action_input": {"\\ud800": ["\\ud800"]}}')
    assert (found.text, found.action, found.action_input) == ("a?", "b?", {"?": ["?"]})
    assert read("FINAL ANSWER \ud800").text == "FINAL ANSWER ?"


def test_a_great_number_is_kept_exactly() -> None:
    number = 10**400 + 1
    assert read(json.dumps({"thought": "x", "action_input": {"n": number}})).action_input == {"n": number}


# -- hardened arguments --------------------


def test_strings_and_keys_are_cut_at_4096_characters() -> None:
    found = read(json.dumps({"thought": "t" * 9000, "action_input": {"k" * 5000: ["v" * 5000]}}))
    assert found.action_input == {"k" * 4096: ["v" * 4096]}
    assert len(found.text) == 9000


def test_nesting_is_at_most_4_deep() -> None:
    assert harden({"a": {"b": {"c": {"d": 1}}}}) == {"a": {"b": {"c": {"d": 1}}}}
    assert harden({"a": {"b": {"c": {"d": {"e": 1}}}}}) == {"a": {"b": {"c": {"d": {}}}}}
    assert harden({"a": [[[1]]]}) == {"a": [[[1]]]}
    assert harden({"a": [[[[1]]]]}) == {"a": [[[[]]]]}


@settings(deadline=None)
@given(st.dictionaries(WORDS, JSON_VALUES))
def test_hardening_twice_changes_nothing(value: Any) -> None:
    assert harden(harden(value)) == harden(value)
