"""The openai provider and a model's own slips: what is sent again must not poison the conversation."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts import ModelSpec, Setup
from activities.provider import ProviderCall
from activities.providers._openai_reply import Gathered, Piece
from activities.providers._openai_request import request_body
from activities.providers.openai import OpenAIProvider
from activities.transcript import Message, ToolCall, Transcript
from tests.activities.providerkit import ASKED, BOTH, ask, failure, setup
from tests.fake_openai import Answer, FakeOpenAI

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What OpenAI takes as the name of a function, in old messages too."""


def sent(*calls: ToolCall) -> list[dict[str, str]]:
    """The functions of these calls as they are sent in an old message."""
    transcript = Transcript([Message(role="assistant", content="", tool_calls=calls)])
    body = request_body(Setup(model=ModelSpec(name="m")), transcript, ProviderCall(), ())
    return [call["function"] for call in body["messages"][0]["tool_calls"]]


def arguments(text: str) -> str:
    """A call's arguments as they are sent."""
    return sent(ToolCall(id="c", name="look", arguments=text))[0]["arguments"]


def no_constant(name: str) -> Any:
    """Servers that are not written in Python refuse it."""
    raise ValueError(name)


# -- arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["{}", '{"at": "moon"}', '{"n": 1e5, "a": [null]}', ' {"a": "\\u00fc"}\n'])
def test_arguments_that_are_one_json_object_are_sent_as_they_were_written(text: str) -> None:
    assert arguments(text) == text


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_no_arguments_are_sent_as_an_empty_object(text: str) -> None:
    assert arguments(text) == "{}"


@pytest.mark.parametrize("text", [
    pytest.param('{"at": "mo', id="cut"),
    pytest.param("[1]", id="a list"),
    pytest.param("null", id="null"),
    pytest.param('{"a": 1} {"b": 2}', id="two objects"),
    pytest.param('{"a": NaN}', id="a number that JSON lacks"),
    pytest.param('{"a": 1e999}', id="a number that is too great"),
    pytest.param('{"a": "\\ud800"}', id="half a character pair"),
    pytest.param('{"a": ' + "9" * 5000 + "}", id="a number of 5000 digits"),
    pytest.param('{"a":' * 20_000 + "1" + "}" * 20_000, id="too deep"),
])  # fmt: skip
def test_other_arguments_are_sent_inside_of_an_object_that_says_so(text: str) -> None:
    """vLLM, llama-server and SGLang parse them, and answer 400 for the whole conversation."""
    assert json.loads(arguments(text)) == {"invalid": text}


@given(st.text() | st.text(alphabet='{}[]",:\\ud80 1eNa'))
def test_whatever_a_model_wrote_is_sent_as_one_strict_json_object(text: str) -> None:
    found = json.loads(arguments(text), parse_constant=no_constant)
    assert isinstance(found, dict)
    arguments(text).encode()


async def test_the_stored_conversation_stays_as_it_is(provider: OpenAIProvider, server: FakeOpenAI) -> None:
    call = ToolCall(id="c1", name="functions.x y", arguments="{bad")
    conversation = ASKED.add(
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content='{"error": "..."}', tool_call_id="c1"),
    )
    await ask(provider, setup("echo"), conversation)
    assert server.asked[0].body["messages"][2]["tool_calls"] == [{
        "id": "c1",
        "type": "function",
        "function": {"name": "functions_x_y", "arguments": '{"invalid": "{bad"}'},
    }]  # fmt: skip
    assert conversation.messages[2].tool_calls == (call,)


# -- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "safe"), [
    ("look", "look"),
    ("read-file_2", "read-file_2"),
    ("functions.x y", "functions_x_y"),
    ("größe", "gr__e"),
    ("", "unnamed"),
    ("look\n", "look_"),
    ("x" * 65, "x" * 64),
])  # fmt: skip
def test_a_name_that_servers_refuse_is_sent_as_one_that_they_take(name: str, safe: str) -> None:
    assert sent(ToolCall(id="c", name=name))[0]["name"] == safe


@given(st.text(max_size=100))
def test_every_name_that_is_sent_is_one_that_openai_takes(name: str) -> None:
    assert NAME.fullmatch(sent(ToolCall(id="c", name=name))[0]["name"])


# -- ids of calls ------------------------------------------------------------------------------------


def call_ids(*given_ids: Any, position: int = 2) -> list[str]:
    """The ids that the calls of a whole reply get."""
    made = [{"id": one, "function": {"name": "f", "arguments": "{}"}} for one in given_ids]
    gathered = Gathered()
    gathered.add(Piece.model_validate({"choices": [{"message": {"tool_calls": made}}]}))
    return [call.id for call in gathered.tool_calls(position)]


@pytest.mark.parametrize(("came", "ids"), [
    (["a", "b"], ["a", "b"]),
    (["a", "a", "a"], ["a", "call_2_1", "call_2_2"]),
    ([None, "", None], ["call_2_0", "call_2_1", "call_2_2"]),
    (["call_2_1", None, "call_2_1"], ["call_2_1", "call_2_1_1", "call_2_2"]),
    ([None, "call_2_0"], ["call_2_0", "call_2_1"]),
])  # fmt: skip
def test_the_calls_of_a_reply_have_ids_of_their_own(came: list[Any], ids: list[str]) -> None:
    """Servers answer 400 for two results of one id."""
    assert call_ids(*came) == ids


@given(st.lists(st.sampled_from([None, "", "a", "call_2_0", "call_2_1", "call_2_1_1", "call_2_2"])))
def test_no_two_calls_of_a_reply_share_an_id(came: list[Any]) -> None:
    ids = call_ids(*came)
    assert len(set(ids)) == len(came)
    assert all(ids)


@BOTH
async def test_ids_that_a_server_gives_twice_are_told_apart(
    provider: OpenAIProvider, server: FakeOpenAI, stream: bool
) -> None:
    pieces = [{"index": n, "id": "same", "function": {"name": f"f{n}", "arguments": "{}"}} for n in (0, 1)]
    part = {"tool_calls": pieces}
    if stream:
        event = json.dumps({"choices": [{"delta": part, "finish_reason": "tool_calls"}]})
        server.say(Answer(body=f"data: {event}\n\ndata: [DONE]\n\n", content_type="text/event-stream"))
    else:
        server.say(Answer(body=json.dumps({"choices": [{"message": part, "finish_reason": "tool_calls"}]})))
    reply = await ask(provider, setup("m", stream))
    assert [(call.id, call.name) for call in reply.tool_calls] == [("same", "f0"), ("call_2_1", "f1")]


# -- servers without tools ---------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("words", [
    "registry.ollama.ai/library/gemma:2b does not support tools",
    '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
])  # fmt: skip
async def test_a_server_without_native_tool_calls_fails_the_first_request_for_good_in_its_own_words(
    provider: OpenAIProvider, server: FakeOpenAI, words: str, stream: bool
) -> None:
    """Chat completions have no way to ask for it before: it is not known until the first request."""
    server.say(Answer(status=400, body=json.dumps({"error": {"message": words}})))
    error = await failure(provider, setup("m", stream))
    assert (error.error, error.type) == ("fatal", "HTTP400")
    assert words in error.message
    assert len(server.asked) == 1, "it is not asked again without the tools: the answer would be another"
