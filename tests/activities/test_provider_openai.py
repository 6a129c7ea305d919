"""The openai provider against real HTTP: what is sent and how replies are read."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import threading
import zlib
from typing import Any, ClassVar

import pytest
from pydantic import SecretStr

from activities.contracts import Conversation, Message, ModelSpec, NativeCall, Price, Setup, ToolSpec, Usage
from activities.provider import ModelCall
from activities.providers import openai_chat
from activities.providers.openai import OpenAIProvider
from tests.activities.modelkit import BOTH, CONVERSATION, KEY, ask, failure, setup
from tests.fake_openai import Answer, FakeOpenAI
from tests.forked import spoken
from tests.logs import captured_logs

TOOL = ToolSpec(
    name="look",
    description="Look at a thing.",
    parameters={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
)


def whole(message: dict[str, Any], **more: Any) -> Answer:
    """A reply in one piece."""
    return Answer(body=json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], **more}))


def streamed(*deltas: dict[str, Any], finish_reason: str | None = "stop") -> Answer:
    """A stream with these deltas, without roles, ids or indices of its own."""
    choices: list[dict[str, Any]] = [{"delta": delta} for delta in deltas]
    choices.append({"delta": {}, "finish_reason": finish_reason})
    body = "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices)
    return Answer(body=body, content_type="text/event-stream")


def call(id: str, name: str | None, arguments: Any, index: int | None = None) -> dict[str, Any]:
    """A piece of a tool call; what is None is left out."""
    piece: dict[str, Any] = {"id": id, "index": index}
    piece["function"] = {"name": name, "arguments": arguments}
    return {key: value for key, value in piece.items() if value is not None}


# -- what is sent --------------------------------------------------------------------------------------


async def test_request_has_only_what_the_task_sets(provider: OpenAIProvider, server: FakeOpenAI) -> None:
    await ask(provider, setup("echo", False, temperature=None))
    await ask(provider, setup("echo", False, temperature=0.5, seed=7, max_output_tokens=9))
    plain, full = server.completion_requests
    assert set(plain.body) == {"model", "messages", "stream"}
    assert (full.body["temperature"], full.body["seed"], full.body["max_completion_tokens"]) == (0.5, 7, 9)
    assert plain.body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one two three"},
    ]
    assert plain.headers["authorization"] == f"Bearer {KEY}"
    assert plain.headers["content-type"] == "application/json"


async def test_calls_and_results_have_the_protocols_shape(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    slip = NativeCall(id="c1", name="functions.x y", arguments="{bad")
    conversation = CONVERSATION.add(
        Message(role="assistant", content="", tool_calls=(slip,)),
        Message(role="tool", content="a moon", tool_call_id="c1"),
    )
    await ask(provider, setup("echo"), conversation)
    function = {"name": "functions_x_y", "arguments": '{"invalid": "{bad"}'}
    assert server.completion_requests[0].body["messages"][2:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "a moon", "tool_call_id": "c1"},
    ]


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
async def test_schema_is_strict_only_if_closed(
    provider: OpenAIProvider, server: FakeOpenAI, closed: bool
) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"title": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["title", "count"],
        "additionalProperties": not closed,
    }
    reply = await ask(provider, setup("schema", response_schema=schema))
    assert reply.text == '{"title": "text", "count": 1}'
    assert server.completion_requests[0].body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "reply", "schema": schema, "strict": closed},
    }


@pytest.mark.parametrize("name", ["temperature", "seed", "stream_options", "max_completion_tokens"])
async def test_refused_field_is_left_out_from_then_on(
    provider: OpenAIProvider, server: FakeOpenAI, name: str
) -> None:
    wanted = setup(f"refuses:{name}", seed=1, max_output_tokens=5)
    with captured_logs() as logs:
        for _ in range(2):
            assert (await ask(provider, wanted)).text == "one two three"
    assert [name in one.body for one in server.completion_requests] == [True, False, False]
    assert [line["quirk"] for line in logs if line["event"] == "model.quirk"] == [name]
    if name == "max_completion_tokens":
        assert server.completion_requests[-1].body["max_tokens"] == 5


def sent_function(call: NativeCall) -> dict[str, str]:
    """A call of an old message as it is sent."""
    conversation = Conversation([Message(role="assistant", content="", tool_calls=(call,))])
    body: dict[str, Any] = openai_chat.body(ModelCall(Setup(model=ModelSpec(name="m")), conversation))
    function: dict[str, str] = body["messages"][0]["tool_calls"][0]["function"]
    return function


@pytest.mark.parametrize(("text", "sent"), [
    ('{"at": "moon"}', '{"at": "moon"}'),
    (' {"a": "\\u00fc"}\n', ' {"a": "\\u00fc"}\n'),
    ("\n", "{}"),
    *((bad, json.dumps({"invalid": bad})) for bad in (
        '{"at": "mo', "[1]", "null", '{"a": 1} {"b": 2}', '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}',
        '{"a": ' + "9" * 5000 + "}", '{"a":' * 20_000 + "1" + "}" * 20_000,
    )),
], ids=range(12))  # fmt: skip
def test_old_arguments_are_sent_as_one_object(text: str, sent: str) -> None:
    assert sent_function(NativeCall(id="c", name="look", arguments=text))["arguments"] == sent


# -- how replies are read ------------------------------------------------------------------------------


@BOTH
async def test_reply_has_text_usage_and_model(provider: OpenAIProvider, stream: bool) -> None:
    reply = await ask(provider, setup("echo", stream))
    assert (reply.text, reply.model, reply.finish_reason) == ("one two three", "echo", "stop")
    assert reply.usage == Usage(input_tokens=5, output_tokens=3)
    assert (reply.cost_usd, reply.cost_known) == (0, False)


@BOTH
async def test_tools_are_offered_and_calls_come_back(
    provider: OpenAIProvider, server: FakeOpenAI, stream: bool
) -> None:
    wanted = setup('tool:look:{"at": "moon"}', stream, tools=(TOOL,))
    reply = await ask(provider, wanted, tool_choice="required")
    assert reply.tool_calls == (NativeCall(id="call_1", name="look", arguments='{"at": "moon"}'),)
    assert (reply.text, reply.finish_reason) == ("", "tool_calls")
    body = server.completion_requests[0].body
    assert body["tool_choice"] == "required"
    function = {"name": "look", "description": "Look at a thing.", "parameters": TOOL.parameters}
    assert body["tools"] == [{"type": "function", "function": function}]


async def test_text_is_shown_while_it_streams(provider: OpenAIProvider) -> None:
    seen: list[str] = []
    await ask(provider, setup("echo"), on_text=seen.append)
    assert seen == ["one", " two", " three"]


A, B = ("a", "f", '{"x": 1}'), ("b", "g", "{}")


@pytest.mark.parametrize(("answer", "calls"), [
    pytest.param(streamed({"tool_calls": [call(*A)]}, {"tool_calls": [call(*B)]}), [A, B], id="no index"),
    pytest.param(
        streamed({"tool_calls": [call(*A, 0)]}, {"tool_calls": [call(*B, 0)]}), [A, B], id="always 0"
    ),
    pytest.param(
        streamed({"tool_calls": [call("a", "f", '{"x"', 1)]}, {"tool_calls": [call("a", None, ": 1}", 1)]}),
        [A], id="index from 1, id repeated",
    ),
    pytest.param(streamed({"tool_calls": [call("a", "f", {"x": 1})]}), [A], id="arguments parsed"),
    pytest.param(whole({"tool_calls": [call(*A), call(*B)]}), [A, B], id="whole"),
    pytest.param(whole({"tool_calls": [call(*A, 0), call(*A, 0)]}), [A, A], id="whole, one index"),
    pytest.param(whole({"tool_calls": [{**call(*A), "id": 5}]}), [("5", *A[1:])], id="id is a number"),
])  # fmt: skip
async def test_tool_calls_of_odd_servers_are_understood(
    provider: OpenAIProvider, server: FakeOpenAI, answer: Answer, calls: list[tuple[str, str, str]]
) -> None:
    """The client library's own accumulator fails at each stream of these."""
    server.queue(answer)
    reply = await ask(provider, setup("m"))
    assert [(one.id, one.name, one.arguments) for one in reply.tool_calls] == calls


@pytest.mark.parametrize(("answer", "text"), [
    pytest.param(whole({"content": "a"}), "a", id="does not stream"),
    pytest.param(whole({"content": [{"type": "text", "text": "a"}, {"text": "b"}]}), "ab", id="parts"),
    pytest.param(streamed({"content": "a"}, {"content": [{"text": "b"}]}), "ab", id="parts in a stream"),
    pytest.param(streamed({"role": "assistant", "content": ""}), "", id="empty"),
])  # fmt: skip
async def test_text_of_odd_servers_is_understood(
    provider: OpenAIProvider, server: FakeOpenAI, answer: Answer, text: str
) -> None:
    server.queue(answer)
    reply = await ask(provider, setup("gpt-x"))
    assert (reply.text, reply.model, reply.tool_calls) == (text, "gpt-x", ())


async def test_refusal_is_text_with_its_own_reason(provider: OpenAIProvider, server: FakeOpenAI) -> None:
    server.queue(streamed({"refusal": "I "}, {"refusal": "cannot."}))
    reply = await ask(provider, setup("m"))
    assert (reply.text, reply.finish_reason) == ("I cannot.", "refusal")


async def test_missing_token_counts_are_estimated(provider: OpenAIProvider) -> None:
    price = Price(input_per_million=1, output_per_million=2)
    reply = await ask(provider, setup("nousage", price=price))
    assert reply.usage == Usage(input_tokens=6, output_tokens=4)
    assert (reply.cost_usd, reply.cost_known) == (0.000014, False)


@pytest.mark.parametrize(("usage", "counted"), [
    ({"prompt_tokens": -5, "completion_tokens": 3}, None),
    ({"prompt_tokens": 10.5, "completion_tokens": 3}, None),
    ({"prompt_tokens": 10**400, "completion_tokens": 3}, None),
    ({"prompt_tokens": "many"}, None),
    ([1, 2], None),
    ({"prompt_tokens": 10.0, "completion_tokens": "3"}, Usage(input_tokens=10, output_tokens=3)),
    ({"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": 7},
     Usage(input_tokens=10, output_tokens=3)),
])  # fmt: skip
async def test_senseless_token_counts_lose_no_reply(
    provider: OpenAIProvider, server: FakeOpenAI, usage: Any, counted: Usage | None
) -> None:
    server.queue(whole({"content": "hi"}, usage=usage))
    reply = await ask(provider, setup("m", price=Price(input_per_million=1, output_per_million=1)))
    assert (reply.text, reply.cost_known) == ("hi", counted is not None)
    assert reply.usage == (counted or Usage(input_tokens=6, output_tokens=1))


@BOTH
async def test_endless_answer_is_not_read_to_its_end(server: FakeOpenAI, stream: bool) -> None:
    provider = OpenAIProvider(None, server.base_url, max_body_bytes=100_000)
    endless = "data: " + "x" * 100_000
    for answer in (
        Answer(body=endless, content_type="text/event-stream"),
        Answer(body=endless),
        Answer(body=endless, status=500),
    ):
        server.queue(answer)
        assert (await failure(provider, setup("m", stream))).type == "reply_too_large"
    for _ in range(3):  # counted for each answer
        server.queue(whole({"content": "hi"}, padding="x" * 50_000))
        assert (await ask(provider, setup("m", stream))).text == "hi"
    await provider.close()


@BOTH
@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x-unknown"])
async def test_compressed_answer_is_refused_unpacked(
    provider: OpenAIProvider, server: FakeOpenAI, encoding: str, status: int, stream: bool
) -> None:
    for kind in ("application/json", "text/event-stream"):
        server.queue(
            Answer(status=status, body="{}", content_type=kind, headers={"Content-Encoding": encoding})
        )
        error = await failure(provider, setup("m", stream))
        assert f"data compressed by {encoding!r}, which was not asked for" in error.message
    assert server.completion_requests[0].headers["accept-encoding"] == "identity"


PEAK_OF_BOMB = """
import asyncio, sys, tracemalloc
from activities.providers.openai import OpenAIProvider
from tests.activities.modelkit import ask, failure, setup

async def main(address, stream):
    provider = OpenAIProvider(None, address)
    await ask(provider, setup("m", stream=False))  # imports the library
    tracemalloc.start()
    error = await failure(provider, setup("m", stream))
    print(tracemalloc.get_traced_memory()[1], error.message)

asyncio.run(main(sys.argv[1], sys.argv[2] == "True"))
"""


@BOTH
def test_bomb_needs_no_memory(server: FakeOpenAI, stream: bool) -> None:
    """In a process of its own: where other threads allocate, as those of Temporal's SDK do, the end of
    `tracemalloc` ends the process (https://github.com/python/cpython/issues/128679)."""
    bomb = zlib.compress(b"0" * 100 * 2**20, wbits=31)
    server.queue(whole({"content": "hi"}), Answer(body=bomb, headers={"Content-Encoding": "gzip"}))
    code, out, err = spoken(PEAK_OF_BOMB, server.base_url, str(stream), env=os.environ)
    assert (code, err) == (0, "")
    peak, _, message = out.splitlines()[-1].partition(" ")  # behind what was logged
    assert int(peak) < 20 * 2**20
    assert "compressed by 'gzip'" in message


async def test_each_event_of_stream_is_bounded_but_not_whole_stream(server: FakeOpenAI) -> None:
    provider = OpenAIProvider(None, server.base_url, max_body_bytes=100_000)
    body = str(streamed(*[{"content": "word "}] * 4000).body)
    assert len(body) > 200_000
    for text in (body, body.replace("\n", "\r\n")):
        server.queue(Answer(body=text, content_type="text/event-stream"))
        assert (await ask(provider, setup("m"))).text == "word " * 4000
    for text in (f"data: {'x' * 400_000}\n\n", "data: x\n" * 50_000):
        server.queue(Answer(body=text, content_type="text/event-stream"))
        assert (await failure(provider, setup("m"))).type == "reply_too_large"
    await provider.close()


@BOTH
async def test_key_repeated_by_server_is_in_no_part_of_reply(
    provider: OpenAIProvider, server: FakeOpenAI, stream: bool
) -> None:
    forms = [KEY, base64.b64encode(KEY.encode()).decode(), KEY.encode().hex()]
    pieces = [{"content": KEY[:7]}, {"content": f"{KEY[7:]} and sk-"}, {"content": f" {' '.join(forms)}"}]
    made = [call(f"id {KEY}", f"tool {KEY}", json.dumps({"a": forms}))]
    streams = streamed(*pieces, {"tool_calls": made})
    content = "".join(piece["content"] for piece in pieces)
    server.queue(streams if stream else whole({"content": content, "tool_calls": made}, model=f"m {KEY}"))
    shown: list[str] = []
    reply = await ask(provider, setup("m", stream), on_text=shown.append)
    assert reply.text.startswith("[key] and sk- [key] [key]")
    assert "".join(shown) == (reply.text if stream else "")
    assert (reply.tool_calls[0].id, reply.tool_calls[0].name) == ("id [key]", "tool [key]")
    assert not any(form.rstrip("=") in reply.model_dump_json() for form in forms)


async def test_short_key_is_a_word_like_any_other(server: FakeOpenAI) -> None:
    provider = OpenAIProvider(SecretStr("ollama"), server.base_url)
    assert (await ask(provider, setup("say:ollama is a llama"))).text == "ollama is a llama"
    await provider.close()


# -- event loops ---------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("model", ["stall", "slow:0.1"])
async def test_cancelling_closes_the_connection(
    provider: OpenAIProvider, server: FakeOpenAI, model: str, stream: bool
) -> None:
    task = asyncio.create_task(ask(provider, setup(model, stream)))
    assert await asyncio.to_thread(server.request_came.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert await asyncio.to_thread(server.client_left.wait, 5)


FIRST_CALL = """
import asyncio, sys, threading
from activities.contracts import Conversation, Message, ModelSpec, Setup
from activities.provider import ModelCall
from activities.providers import load_providers
from activities.settings import Settings

class Finder:
    def find_spec(self, name, path=None, target=None):
        main = threading.current_thread() is threading.main_thread()
        if name.partition(".")[0] in ("openai", "httpx2", "genai_prices"):
            print("on the event loop" if main else "in a thread")

sys.meta_path.insert(0, Finder())
provider = load_providers(Settings())["openai"]
conversation = Conversation([Message(role="user", content="hi")])
asyncio.run(provider.complete(ModelCall(Setup(model=ModelSpec(name="echo")), conversation)))
"""


async def test_first_call_imports_the_library_in_a_thread(server: FakeOpenAI) -> None:
    """Half a second of CPU on the worker's event loop would cost heartbeats."""
    environment = {**os.environ, "OPENAI_BASE_URL": server.base_url, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FIRST_CALL, env=environment, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert set(output.decode().splitlines()) == {"in a thread"}


class Watched(Conversation):
    """Notes the threads in which what is sent is made of it."""

    threads: ClassVar[set[threading.Thread]] = set()

    def without(self, start: int, end: int) -> tuple[Message, ...]:
        self.threads.add(threading.current_thread())
        return super().without(start, end)


async def test_long_request_is_made_in_a_thread(provider: OpenAIProvider) -> None:
    """Ten megabytes take a second of CPU, in which a worker could serve no other run."""
    await ask(provider, setup("echo"), Watched(CONVERSATION.messages))
    assert Watched.threads
    assert threading.current_thread() not in Watched.threads
