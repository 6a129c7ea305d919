"""Tool calls of a reply: which run, in which order, and what the model is told (spec 2.5)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest

from activities.contracts import CallTools, ToolCall, ToolResult, ToolsReturned
from activities.tool_output import encode
from tests.machines.answers import said, tool_failed, tool_said
from tests.machines.driver import Play, run_script, tool
from tests.machines.scripts_tools import call, calls, cut
from workflows.machines.tools_calls import NOT_RUN

ONE, TWO = tool("one", q={"type": "string"}), tool("two", q={"type": "string"})
RAN = tool_said()


def tools(*answers: Any, **options: Any) -> Play:
    """A run with two tools at hand."""
    return run_script("tools", answers, tools=(ONE, TWO), options=options)


def wanted(run: Play) -> list[tuple[str, str, Any]]:
    """All runs that were asked for, in order."""
    found = [effect.runs for effect in run.effects if isinstance(effect, CallTools)]
    return [(one.id, one.tool, dict(one.arguments)) for runs in found for one in runs]


def told(run: Play) -> list[tuple[str | None, Any]]:
    """What the model was told of each call: its id and the JSON value."""
    return [(m.tool_call_id, json.loads(m.content)) for m in run.context.transcript if m.role == "tool"]


def returned(**outputs: str) -> Any:
    """Results by the id of their call."""

    def answer(effect: CallTools) -> ToolsReturned:
        results = (ToolResult(id=run.id, tool=run.tool, output=outputs[run.id]) for run in effect.runs)
        return ToolsReturned(results=tuple(results))

    return answer


# -- order -------------------------------------------------------------------------------------------


def test_all_calls_of_a_reply_run_in_their_order_and_each_result_follows_as_a_tool_message() -> None:
    reply = calls(call("two", 1, q="x"), call("one", 2), call("two", 3, q="y"))
    run = tools(reply, returned(c1='{"n": 1}', c2="2", c3="text"), said("done"))
    assert wanted(run) == [("c1", "two", {"q": "x"}), ("c2", "one", {}), ("c3", "two", {"q": "y"})]
    assert told(run) == [("c1", {"n": 1}), ("c2", 2), ("c3", "text")]
    assert [m.role for m in run.context.transcript][2:] == ["assistant", *["tool"] * 3, "assistant"]


@pytest.mark.parametrize("parallel", [False, True])
def test_calls_run_side_by_side_only_if_the_knob_says_so(parallel: bool) -> None:
    run = tools(calls("one", "two"), parallel_tools=parallel)
    effect: Any = run.last.effect
    assert effect.parallel is parallel
    assert tools(calls("one", "two")).last.effect.parallel is False  # type: ignore[union-attr]  # it asks for tools


# -- failures that the model is told of --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["failed", "bad_arguments", "transient", "timeout"])
def test_a_tool_that_fails_is_reported_and_the_run_goes_on(kind: Any) -> None:
    run = tools(calls("one", "two"), tool_failed(kind, 'no "q"'), said("done"))
    assert told(run) == [("c1", {"error": 'no "q"'}), ("c2", {"error": 'no "q"'})]
    assert run.exit.reason == "stop"


def test_results_and_failures_of_one_reply_keep_their_places() -> None:
    def mixed(effect: CallTools) -> ToolsReturned:
        results: Any = [*RAN(effect).results]
        results[1] = results[1].model_copy(update={"error": "failed", "output": "boom"})
        return ToolsReturned(results=tuple(results))

    run = tools(calls("one", "two", "one"), mixed, said("done"))
    assert told(run) == [("c1", "found"), ("c2", {"error": "boom"}), ("c3", "found")]


@pytest.mark.parametrize(("arguments", "words"), [
    ("{bad", "it is not JSON"),
    ("[1]", "the arguments cannot be used: a JSON object is expected, a list came"),
    ('"q"', "a text came"),
    ("7", "a number came"),
    ("true", "true or false came"),
    ('{"q": NaN}', "NaN is not JSON"),
    ('{"q": 1e999}', "too great"),
    ('{"q": "x"} and so on', "it is not JSON"),
])  # fmt: skip
def test_bad_arguments_are_reported_without_running_and_the_other_calls_run(
    arguments: str, words: str
) -> None:
    bad = ToolCall(id="bad", name="one", arguments=arguments)
    run = tools(calls(call("one", 1), bad, call("two", 2)), RAN, said("done"))
    assert wanted(run) == [("c1", "one", {}), ("c2", "two", {})]
    (_, first), (name, second), (_, third) = told(run)
    assert (first, name, third) == ("found", "bad", "found")
    assert list(second) == ["error"]
    assert words in second["error"]


def test_a_reply_with_nothing_but_bad_arguments_runs_no_tool_and_counts_as_a_turn() -> None:
    run = tools(calls(ToolCall(id="a", name="one", arguments="?")), said("done"))
    assert [effect.kind for effect in run.effects] == ["call_model", "call_model"]
    assert run.visited == "INIT PROMPTING EXECUTING_TOOLS PROMPTING DONE"
    assert run.exit.outcome["iterations"] == 1


def test_blank_arguments_are_none() -> None:
    run = tools(calls(ToolCall(id="a", name="one", arguments=" ")), RAN, said("done"))
    assert wanted(run) == [("a", "one", {})]


# -- unknown tools -----------------------------------------------------------------------------------


def test_R_001_7_an_unknown_tool_ends_the_run_after_the_calls_before_it() -> None:
    """R-001-7: `raise` is the default; calls behind the unknown one are not run."""
    run = tools(calls("one", "nosuch", "two"), RAN)
    assert wanted(run) == [("c1", "one", {})]
    assert run.visited == "INIT PROMPTING EXECUTING_TOOLS DONE"
    assert (run.exit.reason, run.exit.ok, run.exit.raises) == ("failed", False, "ToolNotFound")
    assert str(run.exit.error).startswith("there is no tool nosuch; there are one, two. ")
    assert "`unknown_tool: report`" in str(run.exit.error)
    assert told(run)[1] == ("c2", {"error": "there is no tool nosuch; there are one, two"})
    assert [id for id, _ in told(run)] == ["c1", "c2"]


def test_R_001_7_nothing_runs_when_the_first_tool_is_unknown() -> None:
    """R-001-7: `raise`."""
    run = tools(calls("nosuch", "one"))
    assert [effect.kind for effect in run.effects] == ["call_model"]
    assert run.exit.raises == "ToolNotFound"


def test_R_001_7_bad_arguments_before_an_unknown_tool_are_still_reported() -> None:
    """R-001-7: `raise`."""
    run = tools(calls(ToolCall(id="bad", name="one", arguments="?"), call("nosuch", 2)))
    assert [id for id, _ in told(run)] == ["bad", "c2"]
    assert run.exit.raises == "ToolNotFound"


def test_R_001_7_report_tells_the_model_and_runs_the_other_calls() -> None:
    """R-001-7: `report`."""
    run = tools(calls("one", "nosuch", "two"), RAN, said("done"), unknown_tool="report")
    assert wanted(run) == [("c1", "one", {}), ("c3", "two", {})]
    assert told(run)[1] == ("c2", {"error": "there is no tool nosuch; there are one, two"})
    assert (run.exit.reason, run.exit.raises) == ("stop", None)


@pytest.mark.parametrize(("knob", "reason"), [("raise", "failed"), ("report", "stop")])
def test_R_001_7_a_tool_that_the_worker_no_longer_has_is_unknown_too(knob: str, reason: str) -> None:
    """R-001-7: whoever finds it out."""
    answers = [calls("one"), tool_failed("unknown_tool", "Unknown tool: one"), said("done")]
    run = tools(*answers, unknown_tool=knob)
    assert run.exit.reason == reason
    assert told(run) == [("c1", {"error": "Unknown tool: one"})]
    assert run.exit.raises == ("ToolNotFound" if knob == "raise" else None)


@pytest.mark.parametrize("knob", ["raise", "report"])
def test_R_001_7_calls_behind_a_tool_that_the_worker_no_longer_has_were_not_run(knob: str) -> None:
    """R-001-7: the results end with it; each call behind it has its message all the same."""

    def gone(effect: CallTools) -> ToolsReturned:
        lost: Any = tool_failed("unknown_tool", "Unknown tool: two")(effect).results[1]
        return ToolsReturned(results=(RAN(effect).results[0], lost))

    run = tools(calls("one", "two", "one", "one"), gone, said("done"), unknown_tool=knob)
    assert told(run) == [
        ("c1", "found"),
        ("c2", {"error": "Unknown tool: two"}),
        ("c3", {"error": NOT_RUN}),
        ("c4", {"error": NOT_RUN}),
    ]
    assert NOT_RUN.startswith("not run: ")
    if knob == "report":
        assert (run.exit.reason, run.exit.ok) == ("stop", True)
    else:
        assert (run.exit.reason, run.exit.raises) == ("failed", "ToolNotFound")
        assert str(run.exit.error).startswith("Unknown tool: two. With `unknown_tool: report`")


@pytest.mark.parametrize("knob", ["raise", "report"])
def test_a_name_without_end_is_cut_wherever_it_is_named(knob: str) -> None:
    run = tools(calls("n" * 1_000_000), said("done"), unknown_tool=knob)
    ((_, answer),) = told(run)
    assert answer["error"].startswith(f"there is no tool {'n' * 99}…; there are one, two")
    assert len(str(run.exit.error)) < 300
    assert all(len(record.reason) < 300 for record in run.records)


def test_a_call_without_a_name_is_named_so() -> None:
    run = tools(calls(ToolCall(id="a", name="")), said("done"), unknown_tool="report")
    assert told(run) == [("a", {"error": 'there is no tool ""; there are one, two'})]


# -- how many ----------------------------------------------------------------------------------------


def test_calls_beyond_the_knob_are_not_run_and_the_model_is_told() -> None:
    run = tools(calls("one", "two", "one", "nosuch"), RAN, said("done"), max_calls_per_reply=2)
    assert [id for id, _, _ in wanted(run)] == ["c1", "c2"]
    rest = "not run: a reply may ask for 2 tools at most (`max_calls_per_reply`); ask again for what is"
    assert told(run)[:2] == [("c1", "found"), ("c2", "found")]
    assert [(id, said["error"].startswith(rest)) for id, said in told(run)[2:]] == [
        ("c3", True),
        ("c4", True),
    ]
    assert run.exit.reason == "stop", "an unknown tool among the rest ends nothing"
    assert run.records[2].reason == "one(); two(); and 2 more"


def test_by_default_a_reply_may_ask_for_a_hundred_tools() -> None:
    run = tools(calls(*["one"] * 101), RAN, said("done"))
    assert len(wanted(run)) == 100
    assert len(told(run)) == 101


# -- ids ---------------------------------------------------------------------------------------------


def test_each_call_of_a_reply_has_an_id_of_its_own() -> None:
    """A provider of one's own, or a script, may give none, or one twice; servers refuse such results."""
    same = [ToolCall(id=id, name="one") for id in ("a", "a", "", "call_2_1")]
    run = tools(calls(*same), RAN, said("done"))
    ids = ["a", "call_2_1", "call_2_2", "call_2_3"]
    assert [one.id for one in run.context.transcript.messages[2].tool_calls] == ids
    assert [id for id, _, _ in wanted(run)] == ids
    assert [id for id, _ in told(run)] == ids


def test_an_id_that_is_made_is_not_one_that_the_reply_has() -> None:
    run = tools(calls(*[ToolCall(id=id, name="one") for id in ("call_2_1", "")]), RAN, said("done"))
    assert [id for id, _ in told(run)] == ["call_2_1", "call_2_1_1"]


def test_replies_with_good_ids_stay_as_they_are() -> None:
    reply = calls("one", "two", text="I look")
    run = tools(reply, RAN, said("done"))
    assert run.context.transcript.messages[2] == reply.message, "else the store would not know it"


# -- a reply that is cut off -------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ['{"q": "a long te', "", "  "])
def test_a_call_that_was_cut_off_is_not_run_and_the_model_is_told_why(arguments: str) -> None:
    half = ToolCall(id="half", name="one", arguments=arguments)
    run = tools(cut(calls(call("two", 1, q="x"), half)), RAN, said("done"))
    assert wanted(run) == [("c1", "two", {"q": "x"})]
    (_, first), (id, second) = told(run)
    assert (first, id) == ("found", "half")
    assert "was cut off at the limit of the model's output (`max_output_tokens`)" in second["error"]
    assert run.exit.reason == "stop"


def test_whole_calls_of_a_reply_that_was_cut_off_are_run() -> None:
    run = tools(cut(calls(ToolCall(id="a", name="one"), call("two", 1, q="x"))), RAN, said("done"))
    assert wanted(run) == [("a", "one", {}), ("c1", "two", {"q": "x"})]


def test_bad_arguments_of_a_whole_reply_are_not_blamed_on_its_length() -> None:
    run = tools(calls(ToolCall(id="a", name="one", arguments="{bad")), said("done"))
    assert "max_output_tokens" not in told(run)[0][1]["error"]


# -- results as JSON ---------------------------------------------------------------------------------


class Colour(Enum):
    """An enum that a tool may return."""

    RED = "red"


@dataclass
class Cat:
    """A dataclass that a tool may return."""

    name: str


@pytest.mark.parametrize(("value", "shown"), [
    (Cat("Tom"), {"name": "Tom"}),
    (date(2026, 3, 14), "2026-03-14"),
    (Decimal("1.10"), "1.10"),
    (b"bytes", "bytes"),
    (Colour.RED, "red"),
    ({"one"}, ["one"]),
    ("text", "text"),
    (None, None),
    ([{"cat": Cat("Tom"), "on": date(2026, 3, 14)}], [{"cat": {"name": "Tom"}, "on": "2026-03-14"}]),
])  # fmt: skip
def test_what_a_tool_returns_is_shown_as_json(value: Any, shown: Any) -> None:
    run = tools(calls("one"), tool_said(encode(value).text), said("done"))
    assert told(run) == [("c1", shown)]


def test_an_output_that_was_cut_is_shown_as_a_text() -> None:
    cut = encode({"text": "x" * 100}).capped(50, "the rest is kept")
    run = tools(calls("one"), tool_said(cut), said("done"))
    assert told(run) == [("c1", cut)]
