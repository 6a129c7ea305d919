"""The nodes of the ReAct machine in detail (spec 1.5): thought, action, observation, the error wrapper."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from activities.contracts import CallModel, CallTools, ModelReplied, ToolResult, ToolSpec, ToolsReturned
from activities.transcript import Message, Transcript
from tests.machines.answers import act, failed, final, said, thought, tool_failed, tool_said
from tests.machines.driver import Play, run_script, tool
from workflows.kernel.errors import FatalError, RecoverableError, TransientError
from workflows.kernel.step import Cause, reenter
from workflows.machines.react import design as react_design
from workflows.machines.react_prompt import ReplyFormat
from workflows.machines.react_reply import BadReply, Thought

SEARCH = tool("search", q={"type": "string"})
GUESS = thought("I guess it is 42")
BAD = said("no format at all")
STEP = "thought validate action observation commit"


def react(*answers: Any, tools: Any = (SEARCH,), **more: Any) -> Play:
    """A run with one tool at hand."""
    return run_script("react", answers, tools=tools, **more)


def system(run: Play) -> str:
    """The first message of the first prompt."""
    return run.prompts[0].transcript.messages[0].content


# -- thought: the prompt --------------------


def test_the_prompt_holds_instructions_tools_with_their_schemas_format_and_goal() -> None:
    run = react(goal="count the cats", instructions="Be brief.")
    first, second = run.prompts[0].transcript.messages
    assert first.role == "system"
    for part in ("Be brief.", "- search: does search", '"q": {"type": "string"}', 'required: ["q"]',
                 "FINAL ANSWER", '"finish"', "action_input"):  # fmt: skip
        assert part in first.content
    assert (second.role, second.content) == ("user", "count the cats")


def test_the_prompt_holds_the_definitions_that_a_schema_refers_to() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"where": {"$ref": "#/$defs/Place"}},
        "$defs": {"Place": {"type": "object", "properties": {"street": {"type": "string"}}}},
    }
    spec = ToolSpec(name="go", description="goes", parameters=schema)
    assert '"street"' in system(react(tools=(spec,)))


def test_without_tools_the_prompt_says_so_and_the_run_works() -> None:
    run = react(act("search"), final(), tools=())
    assert "none" in system(run)
    assert run.visited == f"{STEP} {STEP} __end__"
    assert run.context.steps[0].observation == "Unknown tool: search"


def test_the_label_of_a_call_counts_steps() -> None:
    run = react(thought("a"), GUESS, BAD, final())
    assert [call.label for call in run.prompts] == ["think #1", "think #2", "think #3", "think #3"]


def test_a_reply_schema_is_sent_only_when_it_is_asked_for() -> None:
    assert react().prompts[0].response_schema is None
    schema: Any = react(options={"reply_format": "json_schema"}).prompts[0].response_schema
    assert schema["properties"]["action"]["anyOf"][0]["enum"] == ["search", "finish"]
    assert react(tools=(), options={"reply_format": "json_schema"}).prompts[0].response_schema


def test_R_000_6_the_retry_reason_is_in_the_prompt_after_a_failed_validation() -> None:
    run = react(GUESS)
    assert run.context.metadata["retry_reason"] in run.told
    assert "I guess" in run.told


def test_R_000_6_and_in_no_later_prompt_again() -> None:
    run = react(GUESS, thought("a"), thought("b"))
    assert "rejected" not in run.told
    assert run.context.metadata["retry_reason"] is None


@pytest.mark.parametrize("patch", [{}, {"transcript": (Message(role="user", content="hurry"),)}])
def test_R_000_6_a_visit_that_is_entered_again_gives_the_reason_once(patch: Any) -> None:
    run = react(GUESS)
    again = reenter(run.machine, run.last, Cause("Steered", "ann"), now=9, patch=patch)
    assert isinstance(again.effect, CallModel)
    assert sum("rejected" in message.content for message in again.effect.transcript) == 1


def test_R_000_6_a_failed_model_call_after_it_is_not_called_a_rejection() -> None:
    run = react(GUESS, failed("transient"))
    assert "server is down" in run.told
    assert "rejected" not in run.told


def test_every_prompt_extends_the_one_before_it_over_the_whole_run() -> None:
    run = react(
        GUESS, BAD, act("search", q="x"), tool_failed("failed"), act("nosuch"), failed("transient"),
        thought("a"), GUESS, act("search", q="y"), tool_said(), final(),
    )  # fmt: skip
    assert run.exit.ok
    assert len(run.prompts) == 9
    for earlier, later in pairwise(run.prompts):
        digests = later.transcript.digests
        assert digests[: len(earlier.transcript.digests)] == earlier.transcript.digests
        assert len(later.transcript) > len(earlier.transcript)


def test_every_reply_is_in_the_transcript_as_the_model_gave_it() -> None:
    replies = [GUESS, BAD, thought("a"), final()]
    run = react(*replies)
    texts = [m.content for m in run.context.transcript if m.role == "assistant"]
    assert texts == [reply.text for reply in replies]


# -- thought: format --------------------


def test_R_000_4_a_bad_format_is_asked_for_again_with_the_reason_in_the_same_visit() -> None:
    run = react(BAD, BAD, final())
    assert run.visited == f"{STEP} __end__"
    assert len(run.prompts) == 3
    assert "cannot be read" in run.prompts[1].transcript.messages[-1].content


def test_R_000_4_three_bad_replies_in_one_visit_are_a_fatal_error_that_keeps_the_replies() -> None:
    run = react(BAD, BAD, BAD)
    assert run.visited == "thought __end__"
    assert run.exit.reason == "fatal_error"
    assert "invalid format" in run.context.metadata["fatal_error"]
    assert [m.content for m in run.context.transcript].count(BAD.text) == 3
    assert run.context.steps == ()


def test_R_000_4_the_count_begins_again_at_the_next_visit() -> None:
    run = react(BAD, BAD, thought("a"), BAD, BAD, final())
    assert run.exit.ok


def test_R_000_12_bad_replies_cost_too() -> None:
    assert react(said("?", 0.1), said("?", 0.1), final(cost=0.1)).context.metadata["total_cost"] == 0.3
    assert react(*[said("?", 0.1)] * 3).context.metadata["total_cost"] == 0.3


# -- thought: the cache --------------------


def first_prompt() -> Transcript:
    """What a run with the usual goal and tool asks first."""
    return react().prompts[0].transcript


def test_R_000_5_a_prompt_in_the_cache_is_answered_without_a_model_call() -> None:
    run = react(changed={"cache": {first_prompt().digest: final("cached").text}})
    assert run.visited == f"{STEP} __end__"
    assert (run.exit.answer, run.effects) == ("cached", ())
    assert run.context.metadata["total_cost"] == 0


def test_R_000_5_a_run_with_the_cache_of_another_one_repeats_it_without_the_model() -> None:
    answers = [GUESS, act("search", q="x"), tool_said("found"), final("42")]
    first = react(*answers)
    again = react(tool_said("found"), changed={"cache": dict(first.context.cache)})
    assert again.visited == first.visited
    assert again.prompts == ()
    assert again.context.transcript == first.context.transcript
    assert [s.thought for s in again.context.steps] == [s.thought for s in first.context.steps]


def test_R_000_5_only_replies_with_the_right_format_are_stored() -> None:
    run = react(BAD, thought("a"), GUESS, BAD, BAD, BAD)
    assert list(run.context.cache.values()) == [thought("a").text, GUESS.text]


def test_R_000_5_a_cached_reply_of_a_bad_format_is_a_miss() -> None:
    run = react(final(), changed={"cache": {first_prompt().digest: "no format at all"}})
    assert run.exit.ok
    assert len(run.prompts) == 1


# -- thought: finishing --------------------


def test_the_structured_finish_ends_the_run() -> None:
    run = react(act("finish", words="done", answer="42 cats"))
    assert run.visited == f"{STEP} __end__"
    assert (run.exit.ok, run.exit.answer) == (True, "42 cats")
    assert [effect.kind for effect in run.effects] == ["call_model"]


@pytest.mark.parametrize(("given", "answer"), [
    pytest.param({"answer": {"cats": 42}}, '{"cats": 42}', id="an object is told as JSON"),
    pytest.param({"answer": ["ä"]}, '["ä"]', id="not in ASCII alone"),
    pytest.param({"answer": 0}, "0", id="a number"),
    pytest.param({"answer": ""}, "", id="an empty answer is one"),
    pytest.param({}, "what I think", id="else the thought"),
    pytest.param({"answer": None}, "what I think", id="also for null"),
])  # fmt: skip
def test_the_answer_of_a_finish(given: dict[str, Any], answer: str) -> None:
    reply = said(json.dumps({"thought": "what I think", "action": "finish", "action_input": given}))
    assert react(reply).exit.answer == answer


@pytest.mark.parametrize(("words", "answer"), [
    ("FINAL ANSWER: 42", "42"),
    ("FINAL ANSWER 42", "42"),
    ("I am done. **FINAL ANSWER:** 42", "42"),
    ("**FINAL ANSWER**: 42", "42"),
    ("FINAL ANSWER: **42**", "**42**"),
    ("FINAL ANSWER:\n* one\n* two", "* one\n* two"),
    ("FINAL ANSWER\n* one\n* two", "* one\n* two"),
    ("The FINAL ANSWER comes now.\nFINAL ANSWER: 42", "42"),
    ("this is my FINAL ANSWER", "this is my FINAL ANSWER"),
    ("FINAL ANSWER: höher", "höher"),
])  # fmt: skip
def test_the_answer_of_a_final_thought(words: str, answer: str) -> None:
    assert react(thought(words)).exit.answer == answer


def test_an_agents_own_tool_named_finish_is_a_tool_and_the_prompt_does_not_offer_the_other() -> None:
    own = tool("finish", answer={"type": "string"})
    run = react(act("finish", answer="x"), tool_said("filed"), final(), tools=(own,),
                options={"reply_format": "json_schema"})  # fmt: skip
    assert run.visited == f"{STEP} {STEP} __end__"
    assert run.context.steps[0].observation == "filed"
    assert 'use the action "finish"' not in system(run)
    schema: Any = run.prompts[0].response_schema
    assert schema["properties"]["action"]["anyOf"][0]["enum"] == ["finish"]


# -- action and observation --------------------


def test_no_action_does_nothing_and_the_model_is_told_to_go_on() -> None:
    run = react(thought("hm"))
    assert (run.context.steps[0].status, run.context.steps[0].observation) == ("committed", None)
    assert "No action was taken" in run.told


def test_an_unknown_tool_is_an_observation_and_a_failed_step() -> None:
    run = react(act("serch", q="x"))
    step = run.context.steps[0]
    assert (step.observation, step.status) == ("Unknown tool: serch", "failed")
    assert run.told == "Observation: Unknown tool: serch"
    assert run.visited == f"{STEP} thought"


@pytest.mark.parametrize(("error", "words"), [
    ("bad_arguments", "The arguments do not fit search: q: Field required. The tool was not run."),
    ("failed", "OSError: disk"),
    ("transient", "Error after 3 attempts: server is down"),
    ("timeout", "search did not answer"),
    ("unknown_tool", "Unknown tool: search"),
])  # fmt: skip
def test_a_tool_error_is_an_observation_and_the_run_goes_on(error: Any, words: str) -> None:
    run = react(act("search", q="x"), tool_failed(error, words))
    step = run.context.steps[0]
    assert (step.observation, step.status) == (words, "failed")
    assert run.told == f"Observation: {words}"
    assert run.context.metadata["tool_history"] == []


def test_an_unknown_outcome_ends_the_run_and_its_cost_is_counted() -> None:
    words = "nobody knows whether it took effect"
    run = react(act("search", q="x"), tool_failed("unknown_outcome", words, cost=0.25))
    assert run.visited == "thought validate action __end__"
    assert (run.exit.reason, run.exit.error) == ("fatal_error", words)
    assert run.context.metadata["total_cost"] == 0.25


def test_a_tool_that_ran_is_observed_executed_and_in_the_history() -> None:
    run = react(act("search", q="x"), tool_said("one"), act("search", q="y"), tool_said("two"))
    assert [s.observation for s in run.context.steps] == ["one", "two"]
    assert run.context.metadata["tool_history"] == ["search", "search"]
    patches: list[Any] = [record.patch.get("steps", {}) for record in run.records[1:]]
    statuses = [patch["0"]["status"] for patch in patches if "0" in patch]
    assert statuses == ["draft", "validated", "executed", "committed"]


def test_the_history_of_tools_does_not_make_the_log_quadratic() -> None:
    run = react(*[act("search", q="x"), tool_said()] * 30, options={"max_steps": 30})
    assert run.context.metadata["tool_history"] == ["search"] * 30
    sizes = [len(json.dumps(r.patch)) for r in run.records if r.event == "Acted"]
    assert max(sizes) - min(sizes) < 20


def test_the_tool_call_asks_for_three_attempts_in_all_unless_the_knob_says_else() -> None:
    call = react(act("search", q="x")).last.effect
    assert isinstance(call, CallTools)
    assert (call.attempts, call.runs[0].tool, call.runs[0].arguments) == (3, "search", {"q": "x"})
    call = react(act("search", q="x"), options={"max_tool_attempts": 1}).last.effect
    assert isinstance(call, CallTools)
    assert call.attempts == 1


def test_an_empty_output_is_an_observation() -> None:
    assert react(act("search", q="x"), tool_said("")).told == "Observation: "


# -- the error wrapper --------------------


def test_R_000_8_the_model_call_asks_for_three_attempts_in_all() -> None:
    (call,) = react().prompts
    assert isinstance(call, CallModel)
    assert call.attempts == 3


@pytest.mark.parametrize("kind", ["transient", "recoverable"])
def test_R_000_8_a_model_call_that_failed_in_vain_is_a_failed_step_with_its_text_observed(kind: Any) -> None:
    run = react(failed(kind), final())
    step = run.context.steps[0]
    assert run.visited == f"{STEP} {STEP} __end__"
    assert step.status == "failed"
    assert "server is down" in step.observation
    assert "server is down" in run.told


@pytest.mark.parametrize("kind", ["transient", "recoverable"])
def test_a_failure_in_action_is_observed_and_the_run_goes_on(kind: Any) -> None:
    run = react(act("search", q="x"), failed(kind), final())
    assert run.visited == f"{STEP} {STEP} __end__"
    assert run.context.steps[0].status == "failed"
    assert "server is down" in run.context.steps[0].observation


@pytest.mark.parametrize("kind", ["fatal", "unknown_outcome"])
def test_R_000_9_a_fatal_failure_in_action_ends_the_run_without_raising(kind: Any) -> None:
    run = react(act("search", q="x"), failed(kind))
    assert run.visited == "thought validate action __end__"
    assert "server is down" in run.context.metadata["fatal_error"]


def xml(text: str) -> Thought | BadReply:
    """A parser of one's own; it says what it cannot read by raising, too."""
    if text.startswith("!"):
        raise {"!f": FatalError, "!r": RecoverableError, "!t": TransientError, "!k": KeyError}[text[:2]](text)
    return Thought(text[3:-4]) if text.startswith("<t>") else BadReply("there is no <t>")


OWN = react_design("react_xml", ReplyFormat(read=xml, words="Answer as <t>your thought</t>."))


def test_R_000_7_the_reply_parser_is_a_port_and_its_format_is_in_the_prompt() -> None:
    run = run_script(OWN, [said("nothing"), said("<t>FINAL ANSWER: 42</t>")])
    assert run.exit.answer == "42"
    assert "Answer as <t>your thought</t>." in system(run)
    assert "action_input" not in system(run)
    assert "there is no <t>.\nAnswer as <t>" in run.told


@pytest.mark.parametrize(("reply", "visited"), [
    ("!f", "thought __end__"), ("!k", "thought __end__"), ("!r", f"{STEP} thought"), ("!t", f"{STEP} thought")
])  # fmt: skip
def test_R_000_9_what_a_parser_raises_goes_through_the_error_wrapper(reply: str, visited: str) -> None:
    run = run_script(OWN, [said(f"{reply} what happened", cost=0.1)])
    assert run.visited == visited
    assert "what happened" in str(run.exit.error if run.last.exit else run.context.steps[0].observation)


def test_a_step_whose_observation_was_cut_says_where_the_whole_is() -> None:
    cut = ToolsReturned(results=(ToolResult(id="0", tool="search", output="a lot", whole="f" * 64),))
    run = react(act("search"), cut, final("found"))
    assert run.context.steps[0].whole == "f" * 64
    assert any("f" * 64 in str(record.patch) for record in run.records), "the log has it too"


def test_a_reply_that_was_cut_at_its_length_limit_is_told_so() -> None:
    cut = ModelReplied(text='{"thought": "I beg', finish_reason="length")
    run = react(cut, cut, cut)
    assert "max_output_tokens" in str(run.exit.error)
    assert "cut at its length limit" in run.prompts[1].transcript.messages[-1].content
