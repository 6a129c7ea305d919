"""The scripted provider: who speaks, what fills the gaps, and the policy without a script."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from activities.contracts import ModelSpec, ScriptedReply, Setup, ToolSpec, Usage
from activities.provider import ProviderCall, ProviderError
from activities.providers.scripted import MODEL, ScriptedProvider
from activities.transcript import Message, ToolCall, Transcript

PROVIDER = ScriptedProvider()


def told(*contents: str) -> Transcript:
    """A conversation: user and assistant in turns."""
    return Transcript(
        Message(role="assistant" if n % 2 else "user", content=content) for n, content in enumerate(contents)
    )


def setup(*script: ScriptedReply, tools: tuple[ToolSpec, ...] = ()) -> Setup:
    return Setup(model=ModelSpec(provider="scripted", name="demo", script=script), tools=tools)


async def say(wanted: Setup, transcript: Transcript) -> str:
    return (await PROVIDER.complete(wanted, transcript, ProviderCall())).text


async def failure(wanted: Setup, transcript: Transcript) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await say(wanted, transcript)
    assert caught.value.error == "fatal"
    return caught.value


async def test_the_number_of_assistant_messages_picks_the_entry() -> None:
    wanted = setup(ScriptedReply(reply="first"), ScriptedReply(reply="second"))
    assert await say(wanted, told("hi")) == "first"
    assert await say(wanted, told("hi", "whatever", "go on")) == "second"
    assert await say(wanted, told("hi")) == "first"  # a retry


async def test_it_never_claims_to_be_a_model_and_costs_nothing() -> None:
    reply = await PROVIDER.complete(setup(ScriptedReply(reply="12345")), told("hello"), ProviderCall())
    assert reply.model == MODEL == "scripted (no language model)"
    assert reply.usage == Usage(input_tokens=2, output_tokens=2)
    assert (reply.cost_usd, reply.cost_known, reply.finish_reason) == (0, True, "stop")


@pytest.mark.parametrize("value", [{"thought": "ä", "n": [1, None]}, ["a"], 3, True])
async def test_what_is_no_text_is_said_as_json(value: Any) -> None:
    text = await say(setup(ScriptedReply(reply=value)), told("hi"))
    assert json.loads(text) == value
    assert "\\u" not in text


async def test_groups_of_this_and_all_earlier_matches_fill_the_reply() -> None:
    wanted = setup(
        ScriptedReply(reply="looking", expect=r"service (?P<name>\w+)"),
        ScriptedReply(reply="more", expect=r"^count: (?P<count>\d+)$"),
        ScriptedReply(
            expect=r"since (?P<since>\S+)",
            reply={"answer": "{name}: {count} since {since}", "keep": "{unknown}", "list": ["{name}"]},
        ),
    )
    conversation = told("service auth", "looking", "lines\ncount: 12\nend", "more", "since 9:00")
    assert json.loads(await say(wanted, conversation)) == {
        "answer": "auth: 12 since 9:00",
        "keep": "{unknown}",
        "list": ["auth"],
    }


async def test_values_are_put_inside_of_json_arguments_safely() -> None:
    call = ToolCall(id="c", name="look", arguments='{"at": "{what}", "n": 1}')
    wanted = setup(ScriptedReply(reply="", expect="(?P<what>.+)", tool_calls=(call,)))
    reply = await PROVIDER.complete(wanted, told('a "quoted" thing'), ProviderCall())
    assert json.loads(reply.tool_calls[0].arguments) == {"at": 'a "quoted" thing', "n": 1}
    assert reply.finish_reason == "tool_calls"


async def test_a_tool_message_is_what_is_heard_last() -> None:
    conversation = told("goal", "call").add(Message(role="tool", content="found 7", tool_call_id="c"))
    wanted = setup(ScriptedReply(reply="x"), ScriptedReply(reply="{n}", expect=r"found (?P<n>\d)"))
    assert await say(wanted, conversation) == "7"


async def test_otherwise_is_said_when_nothing_is_found() -> None:
    entry = ScriptedReply(reply="yes", expect="never", otherwise={"thought": "no"})
    assert await say(setup(entry), told("hi")) == '{"thought": "no"}'


async def test_a_script_that_ends_says_so() -> None:
    error = await failure(setup(ScriptedReply(reply="only")), told("hi", "only", "and?"))
    assert error.type == "script_ended"
    assert "has 1 replies, but reply 2 was asked for" in error.message


async def test_an_unexpected_message_is_shown_with_what_was_expected() -> None:
    wanted = setup(ScriptedReply(reply="a"), ScriptedReply(reply="b", expect=r"^found \d+"))
    error = await failure(wanted, told("hi", "a", "nothing here " + "x" * 900))
    assert error.type == "script_mismatch"
    assert r"entry 2 of 2 expected /^found \d+/" in error.message
    assert "nothing here" in error.message
    assert len(error.message) < 500


async def test_a_broken_expression_is_named_by_the_call_and_by_check() -> None:
    wanted = setup(ScriptedReply(reply="a"), ScriptedReply(reply="b", expect="(open"))
    assert (await failure(wanted, told("hi", "a", "x"))).type == "bad_script"
    assert "entry 2" in str(await PROVIDER.check(wanted.model))
    assert await PROVIDER.check(setup(ScriptedReply(reply="a", expect="fine")).model) is None


async def test_a_delayed_reply_appears_piece_by_piece() -> None:
    seen: list[str] = []
    entry = ScriptedReply(reply="a reply of some length", delay_seconds=0.05)
    await PROVIDER.complete(setup(entry), told("hi"), ProviderCall(on_text=seen.append))
    assert seen[-1] == "a reply of some length"
    assert len(seen) > 5
    assert all(later.startswith(earlier) for earlier, later in pairwise(seen))


# -- without a script ------------------------------------------------------------------------------

SYSTEM = """Tools:
- list_files: List files.
  input: {"path": {"type": "string"}} required: []
- search_files: Search.
  input: {"glob": {"type": "string"}, "pattern": {"type": "string"}} required: ["pattern"]"""
GOAL = "Which service fails most, and since when?"


async def test_without_a_script_it_lists_searches_and_reports_what_came_back() -> None:
    conversation = Transcript([Message(role="system", content=SYSTEM), Message(role="user", content=GOAL)])
    actions = []
    for observation in ("Observation: app.log\nother.log", "Observation: app.log:7: service auth failed", ""):
        reply = json.loads(await say(setup(), conversation))
        actions.append((reply["action"], reply["action_input"]))
        conversation = conversation.add(
            Message(role="assistant", content=json.dumps(reply)), Message(role="user", content=observation)
        )
    assert actions == [("list_files", {}), ("search_files", {"pattern": "service"}), (None, {})]
    assert "FINAL ANSWER: I am Ratchet's scripted stand-in, no language model" in reply["thought"]
    assert "service auth failed" in reply["thought"]
    assert "app.log" in reply["thought"]


async def test_without_a_script_offered_tools_are_called_natively() -> None:
    search = ToolSpec(
        name="search_files",
        description="Search.",
        parameters={"type": "object", "properties": {"query": {"type": "string"}}},
    )
    wanted = setup(tools=(search,))
    reply = await PROVIDER.complete(wanted, told(GOAL), ProviderCall())
    (call,) = reply.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("search_files", {"query": "service"})
    done = told(GOAL).add(reply.message, Message(role="tool", content="a hit", tool_call_id=call.id))
    last = await PROVIDER.complete(wanted, done, ProviderCall())
    assert last.tool_calls == ()
    assert last.text.startswith("FINAL ANSWER")
    assert "a hit" in last.text


@pytest.mark.parametrize("goal", ["", "??", "do it"])
async def test_without_script_and_tools_it_says_what_it_is(goal: str) -> None:
    reply = json.loads(await say(setup(), told(goal)))
    assert reply["action"] is None
    assert "No tool was at hand" in reply["thought"]
