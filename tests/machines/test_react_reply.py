"""Reading ReAct replies (R-000-7): any text is read or refused in words, and arguments are made safe."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import ToolCall
from workflows.machines.react import BadReply, ReasoningStep, Thought
from workflows.machines.react.reply import cut_arguments, final_answer, read_reply

WILD = st.text(st.characters(), max_size=200)
"""Any text, halves of character pairs too."""
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
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | WORDS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
INPUTS = st.dictionaries(WORDS, JSON_VALUES, max_size=3)


def refused(text: str) -> str:
    """What is wrong with a reply that has the wrong format."""
    found = read_reply(text)
    assert isinstance(found, BadReply), found
    return found.problem


@settings(deadline=None)
@given(WILD | st.lists(PIECES | WILD, max_size=14).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    found = read_reply(text)
    if isinstance(found, BadReply):
        assert found.problem
        found.problem.encode()
        return
    assert found.text.strip()
    step = ReasoningStep(id=0, thought=found.text, action=found.action, action_input=found.action_input)
    assert ReasoningStep.model_validate_json(step.model_dump_json()) == step
    assert ToolCall(id="0", tool=found.action or "", arguments=found.action_input).title
    final_answer(found.text, found.action, found.action_input)


ROUND = st.tuples(WORDS.filter(bool), st.none() | NAMES, INPUTS)
WRAPPINGS = st.sampled_from([
    "{}", " \n{} \n", "```json\n{}\n```", "```\r\n{}\r\n```", "```JSON\n{}```", "Here it is:\n{}",
    "<think>hm {{ }}</think>\n```json\n{}\n```\nDone.",
])  # fmt: skip


@settings(deadline=None)
@given(ROUND, st.booleans(), WRAPPINGS)
def test_json_reply_is_read_in_every_wrapping(parts: Any, ascii_only: bool, wrapping: str) -> None:
    words, action, given_input = parts
    reply = {"thought": words, "action": action, "action_input": given_input}
    text = wrapping.replace("{{ }}", "{ }").replace("{}", json.dumps(reply, ensure_ascii=ascii_only))
    assert read_reply(text) == Thought(words, action, cut_arguments(given_input))


@settings(deadline=None)
@given(ROUND, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["{}", "```json\n{}\n```", "{}\nand so on"]))
def test_labelled_lines_are_read(parts: Any, end: str, wrapping: str) -> None:
    words, action, given_input = parts
    raw = wrapping.replace("{}", json.dumps(given_input), 1)
    lines = [f"Thought: {words}", f"Action: {action}", f"Action Input: {raw}"]
    assert read_reply(end.join(lines)) == Thought(words, action, cut_arguments(given_input))


@pytest.mark.parametrize(("text", "thought"), [
    ("Thought: first\nI say Thought: twice, and Action: once\nAction: search",
     Thought("first\nI say Thought: twice, and Action: once", "search")),
    ('Thought: look\nAction: search\nAction Input: {"q": 1}\nObservation: 42\nThought: FINAL ANSWER: 42',
     Thought("look", "search", {"q": 1})),
    ("Thought: a\nAction: search\nAction Input: {}\nThought: b\nAction: other", Thought("a", "search")),
    ("Thought: a\nAction: search\nAction: other", Thought("a", "search")),
    ("Thought: a\nThought: b\nAction: search", Thought("a\nb", "search")),
    ("Thought: a\nAction: search\nbecause I want to\nAction Input: {}", Thought("a", "search")),
    ("So the FINAL ANSWER: 42", Thought("So the FINAL ANSWER: 42")),
    ('FINAL ANSWER: {"cats": 1}', Thought('FINAL ANSWER: {"cats": 1}')),
    ('Here:\n{"thought": "FINAL ANSWER: 42", "action": null}', Thought("FINAL ANSWER: 42")),
    ('{"thought": "a"} {"thought": "b"}', Thought("a")),
    ('{"thought": "a"}\nI hope this helps!', Thought("a")),
    ('{"thought": "a\\ud800", "action": "b\\udfff", "action_input": {"\\ud800": ["\\ud800"]}}',
     Thought("a?", "b?", {"?": ["?"]})),
    ("FINAL ANSWER \ud800", Thought("FINAL ANSWER ?")),
])  # fmt: skip
def test_reply_is_read_as(text: str, thought: Thought) -> None:
    assert read_reply(text) == thought


@pytest.mark.parametrize("nothing", ["None", "none", "null", "N/A", "", "  "])
def test_no_action_can_be_said_in_several_ways(nothing: str) -> None:
    assert read_reply(f"Thought: x\nAction: {nothing}\nAction Input: {nothing}") == Thought("x")
    assert read_reply(json.dumps({"thought": "x", "action": nothing, "action_input": None})) == Thought("x")


@pytest.mark.parametrize(("text", "words"), [
    ("", "empty"), (" \n ", "empty"), ("```json\n```", ""), ("just words", "neither"), ("[1]", "neither"),
    ("{", "JSON"), ("Observation: 42", "thought"), ('{"thought": " "}', "blank"), ("{}", "thought"),
    ('{"action": "x"}', "thought"), ('{"thought": 3}', "thought"),
    ('{"thought": "x", "action": 3}', "tool's name"), ('{"thought": "x", "action_input": []}', "not list"),
    ('{"thought": "x", "action_input": {"q": NaN}}', "NaN"),
    ('{"thought": "x", "action_input": {"q": 1e999}}', "1e999"),
    ('{"thought": "x", "action_input": {"q": ' + "9" * 5000 + "}}", "too great"),
    ('{"thought": ' * 100_000, "JSON"), ("[" * 100_000, "neither"), ('{"a":' * 200_000, "JSON"),
    ("Thought: a\nAction: search\nAction Input: q=1", "not JSON"),
    ("Thought: a\nAction: search\nAction Input: [1]", "not list"),
    ("Thought: a\nAction: search\nAction Input: ```json\n[]\n```", "not list"),
])  # fmt: skip
def test_what_is_no_reply_is_refused_in_words(text: str, words: str) -> None:
    assert words in refused(text)
    assert len(refused(text)) < 400


def test_strings_and_keys_are_cut_at_4096_characters() -> None:
    given = {"k" * 5000: ["v" * 5000]}
    found = read_reply(json.dumps({"thought": "t" * 9000, "action_input": given}))
    assert found == Thought("t" * 9000, None, {"k" * 4096: ["v" * 4096]})


@pytest.mark.parametrize(("deep", "hardened"), [
    ({"a": {"b": {"c": {"d": 1}}}}, {"a": {"b": {"c": {"d": 1}}}}),
    ({"a": {"b": {"c": {"d": {"e": 1}}}}}, {"a": {"b": {"c": {"d": {}}}}}),
    ({"a": [[[[1]]]]}, {"a": [[[[]]]]}),
])  # fmt: skip
def test_nesting_is_at_most_4_deep(deep: Any, hardened: Any) -> None:
    assert cut_arguments(deep) == hardened
    assert cut_arguments(hardened) == hardened
