"""What think, act and observe do and tell their models (spec 3.9)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activities.contracts import CallModel, CallTools, ModelReplied, ToolCall
from tests.machines.answers import said, tool_failed, tool_said
from tests.machines.driver import run_script, tool
from tests.machines.scripts_staged import ANSWER, MORE, NOTHING, TOOLS, asks, run, stages, thinks
from workflows.machines.staged_context import Observation

CALL = asks("tool", q="x")
TOOLBOX = (tool("search", q={"type": "string"}), tool("read"), tool("write"))


def system(call: CallModel) -> str:
    """The system message of a call."""
    return call.transcript.messages[0].content


# -- think --------------------


def test_think_is_one_structured_call_that_gives_the_thought() -> None:
    play = run(thinks("tool", reasoning="look it up"), CALL, tool_said(), ANSWER)
    first = play.prompts[0]
    assert (first.role, first.offer, first.label) == ("think", (), "think #1")
    schema: Any = first.response_schema
    assert schema["properties"]["suggested_tools"]["items"] == {"enum": ["tool"]}
    assert "general_inquiry" in schema["properties"]["intent"]["enum"]
    assert play.context.thought.reasoning == "look it up"


def test_the_intents_are_a_closed_list_of_ones_own() -> None:
    intents = ["general_inquiry", "refund"]
    play = run(thinks(intent="refund"), ANSWER, intents=intents)
    assert '"intent": "general_inquiry | refund"' in system(play.prompts[0])
    assert play.exit.answer == "42"
    assert run(thinks(intent="diagnosis"), intents=intents).context.last_error.code == "StageError"


def test_the_instructions_of_the_agent_are_told_to_every_stage() -> None:
    answers = (thinks("search"), asks("search", q="x"), tool_said(), ANSWER)
    play = run_script("staged", answers, tools=TOOLBOX, instructions="Speak like a pirate.")
    assert ["Speak like a pirate." in system(call) for call in play.prompts] == [True] * 3


def test_a_prompt_of_ones_own_takes_the_place_of_the_shipped_words_but_not_of_the_format() -> None:
    play = run(NOTHING, declared=stages(think={"prompt": "You sort letters."}))
    text = system(play.prompts[0])
    assert text.startswith("You sort letters.")
    assert "You are the thinking stage" not in text
    assert '{"intent": ' in text


def test_a_stage_may_have_a_role_and_a_part_of_the_tools_of_its_own() -> None:
    declared = stages(think={"tools": ["search"], "role": "custom"})
    play = run_script("staged", (), tools=TOOLBOX, options={"stages": declared})
    assert play.prompts[0].role == "custom"
    assert "- search: does search" in system(play.prompts[0])
    assert "- read" not in system(play.prompts[0])


def test_a_tool_that_a_stage_names_must_be_one_of_the_agents() -> None:
    play = run(declared=stages(act={"tools": ["serach"]}))
    error = play.context.last_error
    assert (error.code, error.stage) == ("PreconditionFailed", "orchestrator")
    assert "stage act: tools: the agent has no tool 'serach'; it has tool" in error.message


# -- act --------------------


@pytest.mark.parametrize(
    "first", [thinks("tool", intent="general_inquiry"), thinks(intent="diagnosis")], ids=["inquiry", "none"]
)
def test_act_asks_no_model_where_no_tool_is_needed(first: ModelReplied) -> None:
    """When the machine entered Acting anyway."""
    play = run(first, ANSWER, declared=stages(think={"exits": ["Acting"]}))
    assert len(play.prompts) == 2
    outputs = play.context.action.tool_outputs
    assert [(output.tool, output.output) for output in outputs] == [("none", "no tool needed")]
    assert play.exit.outcome["degraded"] is False


def test_act_offers_only_the_suggested_tools() -> None:
    answers = (thinks("read", "search"), asks("search", q="x"), tool_said(), ANSWER)
    play = run_script("staged", answers, tools=TOOLBOX)
    acting = play.prompts[1]
    assert (acting.offer, acting.tool_choice, acting.role) == (("read", "search"), "required", "act")
    assert acting.response_schema is None


def test_act_runs_the_requested_tools_in_their_order_and_keeps_both() -> None:
    calls = (
        ToolCall(id="same", name="read", arguments='{"n": 1}'),
        ToolCall(id="same", name="search", arguments='{"q": "x"}'),
        ToolCall(id="", name="read", arguments=""),
    )
    answers = (thinks("search", "read"), ModelReplied(text="", tool_calls=calls), tool_said(), ANSWER)
    play = run_script("staged", answers, tools=TOOLBOX)
    effect = play.effects[2]
    assert isinstance(effect, CallTools)
    assert effect.parallel is False
    assert [(run.id, run.tool, run.arguments) for run in effect.runs] == [
        ("1.0", "read", {"n": 1}),
        ("1.1", "search", {"q": "x"}),
        ("1.2", "read", {}),
    ]
    action = play.context.action
    assert [one.tool for one in action.requested_tools] == ["read", "search", "read"]
    assert [one.output for one in action.tool_outputs] == ["found"] * 3


def test_an_unknown_tool_is_a_failed_output_and_the_others_are_run() -> None:
    answers = (thinks("search"), asks("write", "search", "nosuch", q="x"), tool_said(), ANSWER)
    play = run_script("staged", answers, tools=TOOLBOX)
    outputs = play.context.action.tool_outputs
    assert [(output.tool, output.error) for output in outputs] == [
        ("write", "unknown_tool"),  # there is one, but it was not offered
        ("search", None),
        ("nosuch", "unknown_tool"),
    ]
    assert outputs[0].output == "Unknown tool: write; offered were search"
    codes: Any = play.exit.outcome["degrade_events"]
    assert [event["code"] for event in codes] == ["unknown_tool"] * 2


def test_nothing_but_unknown_tools_needs_neither_model_nor_tool() -> None:
    play = run(thinks("nosuch"), ANSWER)
    assert [effect.kind for effect in play.effects] == ["call_model"] * 2
    assert play.exit.outcome["degraded"] is True
    assert "nosuch {} failed (unknown_tool):\nUnknown tool: nosuch" in play.told
    play = run(TOOLS, asks("other", q="x"), ANSWER)
    assert [effect.kind for effect in play.effects] == ["call_model"] * 3


def outputs(play: Any) -> list[tuple[str, Any]]:
    """Each output as tool and error."""
    return [(output.tool, output.error) for output in play.context.action.tool_outputs]


def degradations(play: Any) -> list[str]:
    """The codes of what did not go well."""
    return [note["code"] for note in play.exit.outcome["degrade_events"]]


def test_each_unknown_suggestion_is_a_failed_output_beside_those_that_are_run() -> None:
    """Spec 3.9: also where another one is known."""
    play = run(thinks("nosuch", "tool", "other"), CALL, tool_said(), ANSWER)
    assert play.prompts[1].offer == ("tool",)
    assert outputs(play) == [("nosuch", "unknown_tool"), ("other", "unknown_tool"), ("tool", None)]
    assert degradations(play) == ["unknown_tool"] * 2
    assert "Unknown tool: nosuch; offered were tool" in play.told


def test_one_reply_makes_at_most_50_calls_and_the_others_are_refused_in_one_note() -> None:
    play = run(TOOLS, asks(*["tool"] * 20_000, q="x"), tool_said(), ANSWER)
    effect = play.effects[2]
    assert isinstance(effect, CallTools)
    assert len(effect.runs) == 50
    assert outputs(play) == [("tool", None)] * 50 + [("tool", "too_many_calls")]
    assert degradations(play) == ["too_many_calls"]
    assert "19950 calls are not run: one reply may make 50, and it makes 20000" in play.told
    assert degradations(run(TOOLS, asks(*["tool"] * 50, q="x"), tool_said(), ANSWER)) == []


def test_a_name_of_any_length_is_cut_where_it_is_shown() -> None:
    play = run(TOOLS, asks("x" * 10_000, "\ud800"), ANSWER)
    assert [len(output.tool) for output in play.context.action.tool_outputs] == [100, 1]


def test_a_suggestion_whose_name_is_cut_is_still_no_tool() -> None:
    play = run(thinks("y" * 10_000), ANSWER)
    assert [len(output.tool) for output in play.context.action.tool_outputs] == [100]


@pytest.mark.parametrize("error", ["unknown_tool", "unknown_outcome"])
def test_calls_that_were_cut_off_are_failed_outputs_that_were_not_run(error: Any) -> None:
    """The worker stops behind a tool that it does not have, or whose outcome nobody knows."""

    def cut_off(effect: Any) -> Any:
        first = tool_failed(error)(effect)
        return first.model_copy(update={"results": first.results[:1]})

    play = run(TOOLS, asks("tool", "nosuch", "tool", "tool", q="x"), cut_off, ANSWER)
    assert outputs(play) == [
        *(("tool", error), ("nosuch", "unknown_tool"), ("tool", "not_run"), ("tool", "not_run")),
    ]
    if error == "unknown_tool":
        assert degradations(play) == ["unknown_tool", "unknown_tool", "not_run", "not_run"]
        assert "not run, because a call before it could not be performed" in play.told


# -- replies that were cut --------------------


def cut(reply: ModelReplied) -> ModelReplied:
    """The reply as one that was cut at the model's length limit."""
    return reply.model_copy(update={"finish_reason": "length"})


BROKEN = ModelReplied(text="", tool_calls=(ToolCall(id="1", name="tool", arguments='{"q": '),))


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param((cut(said('{"intent": "diag')),), id="think"),
        pytest.param((TOOLS, cut(said("I will"))), id="act"),
        pytest.param((NOTHING, cut(said('{"observ'))), id="model"),
    ],
)
def test_the_error_of_a_cut_reply_names_the_cause(answers: Any) -> None:
    writes = {"flow_type": "model", "writes": ["observation"]}
    play = run(*answers, declared=stages(observe=writes))
    assert "length limit (max_output_tokens)" in play.context.last_error.message


def test_arguments_that_were_cut_say_so() -> None:
    play = run(TOOLS, cut(BROKEN), ANSWER)
    assert "length limit (max_output_tokens)" in play.context.action.tool_outputs[0].output


def test_a_cut_observation_is_noted() -> None:
    """The raw text is the answer then, and only the note says why it ends in the middle."""
    play = run(NOTHING, cut(said("It is 4")))
    assert (play.exit.answer, degradations(play)) == ("It is 4", ["reply_cut"])
    assert "max_output_tokens" in str(play.exit.outcome["degrade_events"])
    play = run(NOTHING, cut(said("")), max_iterations=1)
    assert degradations(play) == ["reply_cut", "fallback_used"]


def test_what_the_model_asked_for_survives_until_the_tools_return() -> None:
    """In the state, because a worker may die in between; it is empty between the stages."""
    play = run(TOOLS, CALL)
    assert [one.tool for one in play.context.working] == ["tool"]
    assert run(TOOLS, CALL, tool_said()).context.working == ()


# -- observe --------------------


def test_observe_is_one_structured_call() -> None:
    play = run(NOTHING, ANSWER)
    schema: Any = play.prompts[1].response_schema
    assert set(schema["properties"]) == {"summary", "final_answer", "need_loop"}
    assert (play.prompts[1].role, play.prompts[1].label) == ("observe", "observe #1")


def test_observe_sees_the_thought_and_what_each_tool_returned() -> None:
    play = run(thinks("tool", reasoning="look at x"), CALL, tool_said("line 1\nline 2"), MORE)
    told = play.prompts[2].transcript.messages[-1].content
    assert "thought.intent: diagnosis" in told
    assert "thought.reasoning: look at x" in told
    assert 'tool {"q": "x"} returned:\nline 1\nline 2' in told


def test_a_reply_that_is_no_json_is_the_final_answer() -> None:
    assert run(NOTHING, said("It is 42.")).exit.answer == "It is 42."
    fenced = "```json\n" + json.dumps({"summary": "s", "final_answer": "a", "need_loop": False}) + "\n```"
    play = run(NOTHING, said(f"Well:\n{fenced}"))
    assert play.context.observation == Observation(summary="s", final_answer="a", need_loop=False)
    assert len(run(NOTHING, said("x" * 3000)).exit.answer or "") == 2000


def test_prompts_are_no_state_and_each_stage_makes_its_own() -> None:
    """Two messages each, out of what the stage may see: no stage is told what another one was told."""
    play = run(TOOLS, CALL, tool_said(), MORE, NOTHING, ANSWER)
    assert [[message.role for message in call.transcript] for call in play.prompts] == [
        ["system", "user"]
    ] * 5


def test_the_log_grows_by_the_same_amount_each_pass() -> None:
    """Linear: a long run does not write its past again and again."""
    play = run(*(TOOLS, CALL, tool_said(), MORE) * 9, max_iterations=10)
    sizes = [len(record.model_dump_json(exclude={"counters"})) for record in play.records]
    per_pass = [sum(sizes[2 + 4 * n : 6 + 4 * n]) for n in range(9)]
    assert max(per_pass) - min(per_pass) < 60
