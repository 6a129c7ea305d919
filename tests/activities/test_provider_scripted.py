"""The scripted provider: which entry replies, what fills the gaps, and what it does without a script."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from activities.contracts import (
    Conversation,
    Message,
    ModelSpec,
    NativeCall,
    ScriptedReply,
    Setup,
    ToolSpec,
)
from activities.providers.scripted import MODEL, ScriptedProvider
from tests.activities.modelkit import ask, failure

PROVIDER = ScriptedProvider()


def spoken(*contents: str) -> Conversation:
    """A conversation: user and assistant in turns."""
    return Conversation(
        Message(role="assistant" if n % 2 else "user", content=content) for n, content in enumerate(contents)
    )


def setup(*script: ScriptedReply, tools: tuple[ToolSpec, ...] = ()) -> Setup:
    return Setup(model=ModelSpec(provider="scripted", name="demo", script=script), tools=tools)


async def reply_text(wanted: Setup, conversation: Conversation) -> str:
    return (await ask(PROVIDER, wanted, conversation)).text


async def test_number_of_replies_picks_the_entry() -> None:
    wanted = setup(ScriptedReply(reply="first"), ScriptedReply(reply="second"))
    assert await reply_text(wanted, spoken("hi")) == "first"
    assert await reply_text(wanted, spoken("hi", "whatever", "go on")) == "second"
    assert await reply_text(wanted, spoken("hi")) == "first"  # a retry


async def test_it_never_claims_to_be_a_model() -> None:
    reply = await ask(PROVIDER, setup(ScriptedReply(reply="12345")), spoken("hello"))
    assert reply.model == MODEL == "scripted (no language model)"
    assert (reply.cost_usd, reply.cost_known, reply.finish_reason) == (0, True, "stop")


@pytest.mark.parametrize("value", [{"thought": "ä", "n": [1, None]}, ["a"], 3, True])
async def test_other_values_than_text_become_json(value: Any) -> None:
    text = await reply_text(setup(ScriptedReply(reply=value)), spoken("hi"))
    assert json.loads(text) == value
    assert "\\u" not in text


async def test_groups_of_all_matches_fill_the_reply() -> None:
    wanted = setup(
        ScriptedReply(reply="looking", expect=r"service (?P<name>\w+)"),
        ScriptedReply(reply="more", expect=r"^count: (?P<count>\d+)$"),
        ScriptedReply(
            expect=r"since (?P<since>\S+)",
            reply={"answer": "{name}: {count} since {since}", "keep": "{unknown}", "list": ["{name}"]},
        ),
    )
    conversation = spoken("service auth", "looking", "lines\ncount: 12\nend", "more", "since 9:00")
    assert json.loads(await reply_text(wanted, conversation)) == {
        "answer": "auth: 12 since 9:00",
        "keep": "{unknown}",
        "list": ["auth"],
    }


async def test_values_fill_json_arguments_safely() -> None:
    call = NativeCall(id="c", name="look", arguments='{"at": "{what}", "n": 1}')
    wanted = setup(ScriptedReply(reply="", expect="(?P<what>.+)", tool_calls=(call,)))
    reply = await ask(PROVIDER, wanted, spoken('a "quoted" thing'))
    assert json.loads(reply.tool_calls[0].arguments) == {"at": 'a "quoted" thing', "n": 1}
    assert reply.finish_reason == "tool_calls"


async def test_otherwise_replies_without_a_match() -> None:
    entry = ScriptedReply(reply="yes", expect="never", otherwise={"thought": "no"})
    assert await reply_text(setup(entry), spoken("hi")) == '{"thought": "no"}'


async def test_ended_script_says_so() -> None:
    error = await failure(PROVIDER, setup(ScriptedReply(reply="only")), spoken("hi", "only", "and?"))
    assert (error.error, error.type) == ("fatal", "script_ended")
    assert "the script has 1 reply, but reply 2 is needed" in str(error)


async def test_mismatch_shows_what_came_and_was_expected() -> None:
    wanted = setup(ScriptedReply(reply="a"), ScriptedReply(reply="b", expect=r"^found \d+"))
    error = await failure(PROVIDER, wanted, spoken("hi", "a", "nothing here " + "x" * 900))
    assert (error.error, error.type) == ("fatal", "script_mismatch")
    assert all(part in error.message for part in ("entry 2 of 2", r"/^found \d+/", "nothing here"))
    assert len(error.message) < 500


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        pytest.param("(open", "missing", id="no expression"),
        pytest.param("a(?=b)", "no look-around", id="look-around"),
        pytest.param(r"(a)\1", "no back-references", id="back-reference"),
        pytest.param("(?:(?:(?:a{1000}){1000}){1000})", "repetition", id="explodes when compiled"),
        pytest.param("(?:a{1,999}){1}b{999}", "1,000 are allowed", id="slow"),
    ],
)
def test_bad_expression_is_named_when_a_model_is_loaded(expression: str, problem: str) -> None:
    script = [{"reply": "a"}, {"reply": "b", "expect": expression}]
    with pytest.raises(ValueError, match=r"(?s)script\.1\.expect.*" + problem):
        ModelSpec.model_validate({"provider": "scripted", "script": script})


@pytest.mark.parametrize("expression", ["(a|aa)+$", "^(?:(a|b|ab)*?c)+(a|b|ab)*d$"])
async def test_expression_that_backtracks_elsewhere_ends_at_once(expression: str) -> None:
    entry = ScriptedReply(reply="yes", expect=expression, otherwise="no")
    assert await asyncio.wait_for(reply_text(setup(entry), spoken("a" * 5000 + "b")), 5) == "no"


async def test_line_ends_are_expected_at_each_line() -> None:
    entry = ScriptedReply(reply="{word}", expect=r"^(?P<word>\w+)$")
    assert await reply_text(setup(entry), spoken("two words\none\n")) == "one"


async def test_delayed_reply_appears_piece_by_piece() -> None:
    seen: list[str] = []
    entry = ScriptedReply(reply="a reply of some length", delay_seconds=0.05)
    await ask(PROVIDER, setup(entry), spoken("hi"), on_text=seen.append)
    assert "".join(seen) == "a reply of some length"
    assert len(seen) > 5


# -- without a script ----------------------------------------------------------------------------------

SYSTEM = """Tools:
- list_files: List files.
  input: {"path": {"type": "string"}} required: []
- search_files: Search.
  input: {"glob": {"type": "string"}, "pattern": {"type": "string"}} required: ["pattern"]"""
GOAL = "Which service fails most, and since when?"


async def test_without_script_it_lists_searches_and_reports() -> None:
    conversation = Conversation([Message(role="system", content=SYSTEM), Message(role="user", content=GOAL)])
    actions = []
    for observation in ("Observation: app.log\nother.log", "Observation: app.log:7: service auth failed", ""):
        reply = json.loads(await reply_text(setup(), conversation))
        actions.append((reply["action"], reply["action_input"]))
        conversation = conversation.add(
            Message(role="assistant", content=json.dumps(reply)), Message(role="user", content=observation)
        )
    assert actions == [("list_files", {}), ("search_files", {"pattern": "service"}), (None, {})]
    assert reply["thought"].startswith("FINAL ANSWER: ")
    assert all(
        part in reply["thought"] for part in ("not a language model", "service auth failed", "app.log")
    )


async def test_without_script_offered_tools_are_called_natively() -> None:
    parameters: dict[str, Any] = {"type": "object", "properties": {"pattern": {"type": "string"}}}
    search = ToolSpec(name="search_files", description="Search.", parameters=parameters)
    wanted = setup(tools=(search,))
    reply = await ask(PROVIDER, wanted, spoken(GOAL))
    (call,) = reply.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("search_files", {"pattern": "service"})
    done = spoken(GOAL).add(reply.message, Message(role="tool", content="a hit", tool_call_id=call.id))
    last = await ask(PROVIDER, wanted, done)
    assert (last.tool_calls, last.text.startswith("FINAL ANSWER")) == ((), True)
    assert "a hit" in last.text


@pytest.mark.parametrize("goal", ["", "??", "do it"])
async def test_without_script_and_tools_it_ends(goal: str) -> None:
    reply = json.loads(await reply_text(setup(), spoken(goal)))
    assert reply["action"] is None
    assert reply["thought"].startswith("FINAL ANSWER: ")
