"""The openai provider against real HTTP: what is sent and how replies are read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from activities.contracts import Price, ToolSpec, Usage
from activities.provider import ProviderCall
from activities.providers.openai import OpenAIProvider
from activities.transcript import Message, ToolCall
from tests.activities.providerkit import ASKED, BOTH, KEY, ask, setup
from tests.fake_openai import Answer, FakeOpenAI

TOOL = ToolSpec(
    name="look",
    description="Look at a thing.",
    parameters={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
)


@BOTH
async def test_a_reply_has_text_usage_model_and_finish_reason(provider: OpenAIProvider, stream: bool) -> None:
    reply = await ask(provider, setup("echo", stream))
    assert (reply.text, reply.model, reply.finish_reason) == ("one two three", "echo", "stop")
    assert reply.usage == Usage(input_tokens=5, output_tokens=3)
    assert (reply.cost_usd, reply.cost_known) == (0, False)


async def test_the_request_has_what_the_task_says_and_nothing_else(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    await ask(provider, setup("echo", False, temperature=None))
    await ask(provider, setup("echo", False, temperature=0.5, seed=7, max_output_tokens=9))
    plain, full = server.asked
    assert set(plain.body) == {"model", "messages", "stream"}
    assert (full.body["temperature"], full.body["seed"], full.body["max_completion_tokens"]) == (0.5, 7, 9)
    assert plain.body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one two three"},
    ]
    assert plain.headers["authorization"] == f"Bearer {KEY}"


@BOTH
async def test_tools_are_offered_and_calls_come_back(
    provider: OpenAIProvider, server: FakeOpenAI, stream: bool
) -> None:
    wanted = setup('tool:look:{"at": "moon"}', stream, tools=(TOOL,))
    reply = await ask(provider, wanted, call=ProviderCall(tool_choice="required"))
    assert reply.tool_calls == (ToolCall(id="call_1", name="look", arguments='{"at": "moon"}'),)
    assert (reply.text, reply.finish_reason) == ("", "tool_calls")
    body = server.asked[0].body
    assert body["tool_choice"] == "required"
    assert body["tools"] == [
        {
            "type": "function",
            "function": {"name": "look", "description": "Look at a thing.", "parameters": TOOL.parameters},
        }
    ]


async def test_calls_and_their_results_are_sent_in_the_shape_of_the_protocol(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    call = ToolCall(id="c1", name="look", arguments="{}")
    told = ASKED.add(
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content="a moon", tool_call_id="c1"),
    )
    await ask(provider, setup("echo"), told)
    function = {"name": "look", "arguments": "{}"}
    assert server.asked[0].body["messages"][2:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "a moon", "tool_call_id": "c1"},
    ]


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
async def test_a_reply_is_held_to_a_schema_strictly_where_the_schema_allows(
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
    sent = server.asked[0].body["response_format"]
    assert sent == {
        "type": "json_schema",
        "json_schema": {"name": "reply", "schema": schema, "strict": closed},
    }


async def test_text_so_far_is_told_while_it_streams(provider: OpenAIProvider) -> None:
    seen: list[str] = []
    await ask(provider, setup("echo"), call=ProviderCall(on_text=seen.append))
    assert seen == ["one", "one two", "one two three"]


async def test_the_idempotency_key_is_sent_and_made_fit_for_a_header(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    for key in ("run-7/think#1", "lauf-ü\n", "x" * 500):
        await ask(provider, setup("echo"), call=ProviderCall(key=key))
    plain, odd, long = [one.headers["idempotency-key"] for one in server.asked]
    assert plain == "run-7/think#1"
    assert len(odd) == len(long) == 64
    assert odd != long


async def test_a_server_that_does_not_stream_is_read_all_the_same(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    server.say(Answer(body='{"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}'))
    reply = await ask(provider, setup("gpt-x"))
    assert (reply.text, reply.model) == ("whole", "gpt-x")


@BOTH
async def test_odd_servers_are_understood(provider: OpenAIProvider, server: FakeOpenAI, stream: bool) -> None:
    said = (
        '{"choices": [{"message": {"role": "assistant", "content": [{"type": "text", "text": "a"}],'
        ' "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}},'
        ' {"function": {"name": "g", "arguments": "{}"}}]}, "finish_reason": null}]}'
    )
    server.say(Answer(body=said))
    reply = await ask(provider, setup("odd", stream))
    assert (reply.text, reply.finish_reason) == ("a", "stop")
    assert reply.tool_calls == (
        ToolCall(id="call_2_0", name="f", arguments='{"x": 1}'),
        ToolCall(id="call_2_1", name="g", arguments="{}"),
    )


async def test_an_empty_reply_is_let_through(provider: OpenAIProvider, server: FakeOpenAI) -> None:
    server.say(Answer(""))
    reply = await ask(provider, setup("echo"))
    assert (reply.text, reply.tool_calls) == ("", ())


async def test_half_a_character_pair_becomes_a_replacement_character(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    said = r'{"choices": [{"message": {"content": "a\ud83d b\ud83d\ude00"}, "finish_reason": "stop"}]}'
    server.say(Answer(body=said))
    assert (await ask(provider, setup("echo", False))).text == "a\ufffd b\U0001f600"


async def test_without_counts_tokens_are_estimated_and_the_cost_unknown(provider: OpenAIProvider) -> None:
    price = Price(input_per_million=1, output_per_million=2)
    reply = await ask(provider, setup("nousage", price=price))
    assert reply.usage == Usage(input_tokens=6, output_tokens=4)
    assert (reply.cost_usd, reply.cost_known) == (0.000014, False)


async def test_the_tasks_price_is_applied(provider: OpenAIProvider) -> None:
    price = Price(input_per_million=10, output_per_million=100)
    reply = await ask(provider, setup("echo", price=price))
    assert (reply.cost_usd, reply.cost_known) == (0.00035, True)


@pytest.mark.parametrize("field", ["temperature", "seed", "stream_options", "max_completion_tokens"])
async def test_a_field_that_the_model_refuses_is_left_out_from_then_on(
    provider: OpenAIProvider, server: FakeOpenAI, field: str
) -> None:
    wanted = setup(f"refuses:{field}", seed=1, max_output_tokens=5)
    with capture_logs() as logs:
        for _ in range(2):
            assert (await ask(provider, wanted)).text == "one two three"
    assert [field in one.body for one in server.asked] == [True, False, False]
    left_out = [log["field"] for log in logs if log["event"] == "model.field_left_out"]
    assert left_out == [field]
    if field == "max_completion_tokens":
        assert server.asked[-1].body["max_tokens"] == 5


async def test_one_provider_serves_several_event_loops(server: FakeOpenAI) -> None:
    provider = OpenAIProvider(None, server.base_url)

    async def elsewhere() -> str:
        try:
            return (await ask(provider, setup("echo"))).text
        finally:
            await provider.close()

    assert await elsewhere() == "one two three"
    assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) == "one two three"
    assert await elsewhere() == "one two three"
