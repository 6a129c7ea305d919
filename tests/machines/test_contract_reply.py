"""Reading a decision (spec 5.3): lenient, and never raising."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import ArtifactSpec, ModelReplied
from tests.machines.contractkit import done, say
from workflows.kernel.fields import freeze
from workflows.machines.contract_reply import (
    STRATEGIES,
    Decision,
    SlotMapping,
    WantedCall,
    decision_of,
    read_decision,
    read_specs,
)


def test_a_full_decision_is_read_field_by_field() -> None:
    given = {
        "action": "call_tool",
        "strategy": "exploit",
        "focus_slot": "table",
        "notes": "why",
        "next_decision_model": "regular",
        "tool_call": {
            "tool_id": "search",
            "reasoning": "because",
            "params": {"q": [1, {"a": None}]},
            "out_artifacts_spec": [{"name": "rows", "type": "json", "kind": "search"}, {"type": "json"}],
        },
        "map_slots": [{"slot_name": "s", "source_path": "a.b", "draft": True, "gaps": "the end"}],
        "show_artifacts": ["a"],
        "show_skills": ["b"],
        "completion_summary": "done",
        "clarification_questions": ["which?"],
    }
    assert read_decision(json.dumps(given)) == Decision(
        action="call_tool",
        strategy="exploit",
        focus_slot="table",
        notes="why",
        next_decision_model="regular",
        tool_call=WantedCall(
            tool_id="search",
            reasoning="because",
            params={"q": [1, {"a": None}]},
            out_artifacts_spec=(ArtifactSpec(name="rows", type="json", kind="search"),),
        ),
        map_slots=(SlotMapping(slot_name="s", source_path="a.b", draft=True, gaps="the end"),),
        show_artifacts=("a",),
        show_skills=("b",),
        completion_summary="done",
        clarification_questions=("which?",),
    )


def test_an_empty_object_is_tolerated_and_has_no_strategy() -> None:
    found = read_decision("{}")
    assert (found.action, found.strategy, found.next_decision_model) == ("complete", "", "strong")
    assert found.problem == "the strategy '' is none of explore, exploit, render, exit"


@pytest.mark.parametrize(
    ("given", "action"),
    [
        (None, "complete"),
        ("", "complete"),
        ("Call-Tool", "call_tool"),
        ("call tool", "call_tool"),
        (" EXIT ", "exit"),
    ],
)
def test_a_missing_action_is_complete_and_spelling_is_forgiven(given: Any, action: str) -> None:
    assert read_decision(say(given).text).action == action


def test_an_unknown_action_ends_nothing() -> None:
    """It is no decision at all, so it is asked for again; it must not be taken for `complete`."""
    found = read_decision(say("celebrate", "explore", completion_summary="done").text)
    assert found == Decision(
        problem="the action 'celebrate' is none of call_tool, decision, clarify, complete, exit"
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_known_strategy_is_read(strategy: str) -> None:
    assert read_decision(say("complete", strategy.upper()).text).strategy == strategy


@pytest.mark.parametrize("strategy", [None, 5, ["explore"], "search"])
def test_any_other_strategy_is_none(strategy: Any) -> None:
    assert read_decision(say("complete", strategy).text).strategy == ""


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"action": "exit", "strategy": "exit"}\n```',
        'I am done. {"action": "exit", "strategy": "exit"} Good bye {',
    ],
)
def test_the_object_is_found_in_a_fence_and_among_words(text: str) -> None:
    assert read_decision(text) == Decision(action="exit", strategy="exit")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the reply is empty"),
        ("no", "the reply holds no JSON object"),
        ('{"a": NaN}', "the reply cannot be used: it is not JSON: NaN is not JSON"),
        ('{"a": 1e999}', "the reply cannot be used: it is not JSON: the number 1e999 is too great"),
        ('{"a": ' + "[" * 60 + "]" * 60 + "}", "the reply cannot be used: it is nested more than 50 deep"),
        ('{"a": ' + "[" * 100_000, "the reply is no JSON object: "),
    ],
)
def test_a_reply_that_cannot_be_read_is_an_empty_decision_that_says_why(text: str, problem: str) -> None:
    found = read_decision(text)
    assert found.problem.startswith(problem)
    assert found == Decision(problem=found.problem)


CUT = """{"action":"call_tool","strategy":"explore","tool_call":{"tool_id":"tool","params":\
{"action":"complete","strategy":"exit","completion_summary":"done"},"out_art"""


@pytest.mark.parametrize(
    "text",
    [CUT, "words " + CUT, f"```json\n{CUT}\n```", '{not json} then {"action": "exit", "strategy": "exit"}'],
)
def test_an_object_inside_a_broken_one_is_never_the_decision(text: str) -> None:
    found = read_decision(text)
    assert found.problem.startswith("the reply is no JSON object: ")
    assert found == Decision(problem=found.problem)


def test_a_reply_that_was_cut_says_so() -> None:
    found = decision_of(ModelReplied(text=CUT, finish_reason="length"))
    assert found.problem.startswith(
        "the reply was cut at its length limit (max_output_tokens): the reply is no"
    )
    assert "length" not in decision_of(ModelReplied(text=CUT)).problem
    assert decision_of(ModelReplied(text=done().text, finish_reason="length")).problem == ""


def test_lists_are_capped_and_what_is_beyond_is_counted() -> None:
    names = [f"n{n}" for n in range(400)]
    maps = [{"slot_name": "s", "source_path": name} for name in names]
    spec = {"tool_id": "tool", "out_artifacts_spec": names}
    shown: dict[str, Any] = {"show_artifacts": names, "show_skills": names, "clarification_questions": names}
    found = read_decision(say("call_tool", tool_call=spec, map_slots=maps, **shown).text)
    assert [len(found.map_slots), len(found.show_artifacts), len(found.show_skills)] == [100, 50, 50]
    assert found.left_out == {"map_slots": 300, **dict.fromkeys(shown, 350)}
    assert found.tool_call is not None
    assert (len(found.tool_call.out_artifacts_spec), found.tool_call.more_artifacts) == (50, 350)


def test_what_is_said_twice_counts_once() -> None:
    same = {"slot_name": "s", "source_path": "a"}
    found = read_decision(say(map_slots=[same] * 300, show_artifacts=["b", "a"] * 99).text)
    assert (len(found.map_slots), found.show_artifacts, found.left_out) == (1, ("b", "a"), {})


def test_kind_and_type_are_read_as_leniently_as_other_words() -> None:
    specs, _ = read_specs([{"name": "A b", "type": " JSON", "kind": "Search "}])
    assert specs == (ArtifactSpec(name="A b", type="json", kind="search"),)


def test_one_thing_counts_as_a_list_of_it() -> None:
    found = read_decision(say("decision", show_artifacts="a", map_slots={"slot_name": "s"}).text)
    assert found.show_artifacts == ("a",)
    assert found.map_slots == (SlotMapping(slot_name="s"),)


def test_parameters_are_kept_as_they_are_for_the_protocol_to_judge() -> None:
    found = read_decision(say("call_tool", tool_call={"tool_id": 5, "params": "q=x"}).text)
    assert found.tool_call == WantedCall(tool_id="5", params="q=x")


def test_a_long_parameter_is_not_cut() -> None:
    text = "x" * 50_000
    found = read_decision(say("call_tool", tool_call={"params": {"text": text}}).text)
    assert found.tool_call is not None
    assert found.tool_call.params == {"text": text}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([{"name": "a"}, "b", {"name": ""}, {}, None], ["a", "b"]),
        ({"name": "a"}, ["a"]),
        (None, []),
        ([], []),
    ],
)
def test_entries_of_a_spec_need_a_name(given: Any, names: list[str]) -> None:
    assert [spec.name for spec in read_specs(given)[0]] == names


ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [name for name in Decision.model_fields if name not in ("problem", "left_out")]


def _usable(decision: Decision) -> None:
    """It can be kept in a context and written into the log."""
    assert Decision.model_validate_json(decision.model_dump_json()) == decision
    freeze(decision)


@settings(deadline=None)
@given(st.text() | st.text(alphabet='{}[]":,\\ud8x0 \n`'))
def test_any_text_gives_a_decision(text: str) -> None:
    _usable(read_decision(text))


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(FIELDS), ANYTHING | st.sampled_from(["exit", "explore", "call_tool"])),
    st.sampled_from(["", "words ", "```json\n"]),
)
def test_any_object_gives_a_decision(given: dict[str, Any], before: str) -> None:
    _usable(read_decision(before + json.dumps(given)))


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["tool_id", "params", "out_artifacts_spec", "reasoning"]), ANYTHING))
def test_any_tool_call_gives_a_decision(given: dict[str, Any]) -> None:
    _usable(read_decision(json.dumps({"tool_call": given, "strategy": "explore"})))


def test_half_a_character_pair_is_replaced() -> None:
    found = read_decision(
        '{"strategy": "explore", "notes": "\\ud83d!", "tool_call": {"params": {"\\ud83d": 1}}}'
    )
    assert found.notes == "?!"
    _usable(found)
