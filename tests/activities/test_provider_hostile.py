"""The openai provider and servers that answer what no server should."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import SecretStr

from activities.contracts import Price, Usage
from activities.providers.openai import OpenAIProvider
from tests.activities.providerkit import BOTH, KEY, ask, failure, setup
from tests.fake_openai import Answer, FakeOpenAI

LAST = '{"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}'
DEEP = "[" * 100_000 + "]" * 100_000


def streamed(*events: str) -> Answer:
    """Raw events, whatever they hold."""
    body = "".join(f"data: {event}\n\n" for event in events)
    return Answer(body=body, content_type="text/event-stream")


def completion(**more: Any) -> Answer:
    """A whole reply with `hi` and more fields."""
    choice = {"message": {"content": "hi"}, "finish_reason": "stop"}
    return Answer(body=json.dumps({"choices": [choice], **more}))


@pytest.mark.parametrize("event", ["5", "null", "true", '"x"', "[1]", '{"choices": 5}', f'{{"a": {DEEP}}}'])
async def test_an_event_that_is_no_chunk_is_a_bad_response(
    provider: OpenAIProvider, server: FakeOpenAI, event: str
) -> None:
    server.say(streamed(event, LAST))
    error = await failure(provider, setup("m"))
    assert (error.error, error.type) == ("transient", "bad_response")


@BOTH
async def test_json_that_is_nested_too_deep_is_a_bad_response(
    provider: OpenAIProvider, server: FakeOpenAI, stream: bool
) -> None:
    server.say(Answer(body=DEEP))
    assert (await failure(provider, setup("m", stream))).type == "bad_response"


async def test_what_did_not_fit_is_told_in_one_line_without_links(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    server.say(Answer(body='{"choices": [{"message": 5}]}'))
    message = (await failure(provider, setup("m", False))).message
    assert "choices.0.message" in message
    assert "pydantic" not in message


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": -5, "completion_tokens": 3}, None),
        ({"prompt_tokens": 10.5, "completion_tokens": 3}, None),
        ({"prompt_tokens": 10**400, "completion_tokens": 3}, None),
        ({"prompt_tokens": "many"}, None),
        ([1, 2], None),
        ({"prompt_tokens": 10.0, "completion_tokens": 3}, Usage(input_tokens=10, output_tokens=3)),
        ({"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": 7},
         Usage(input_tokens=10, output_tokens=3)),
    ],
)  # fmt: skip
async def test_a_paid_reply_is_kept_when_its_token_counts_make_no_sense(
    provider: OpenAIProvider, server: FakeOpenAI, usage: Any, counted: Usage | None
) -> None:
    server.say(completion(usage=usage))
    reply = await ask(provider, setup("m", False, price=Price(input_per_million=1, output_per_million=1)))
    assert reply.text == "hi"
    assert reply.cost_known is (counted is not None)
    assert reply.usage == (counted or Usage(input_tokens=6, output_tokens=1))


async def test_ids_and_names_that_are_no_text_are_taken_as_text(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    call = {"id": 5, "function": {"name": "f", "arguments": "{}"}}
    choice = {"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}
    server.say(Answer(body=json.dumps({"choices": [choice], "model": 7})))
    reply = await ask(provider, setup("m", False))
    assert (reply.tool_calls[0].id, reply.model) == ("5", "7")


async def test_a_key_in_an_errors_code_never_appears(provider: OpenAIProvider, server: FakeOpenAI) -> None:
    code = f"{KEY} {'z' * 5000}"
    server.say(Answer(body=json.dumps({"error": {"code": code, "type": KEY}})))
    error = await failure(provider, setup("m"))
    assert KEY not in f"{error.type} {error.message}"
    assert len(error.type) < 100
    assert len(error.message) < 1000


@pytest.mark.parametrize(
    "wait", ["Mon, 01 Jan 2024 00:00:00 +9999999999999", "Mon, 01 Jan 99999 00:00:00 GMT"]
)
async def test_a_retry_after_that_is_no_moment_is_none(
    provider: OpenAIProvider, server: FakeOpenAI, wait: str
) -> None:
    server.say(Answer(status=429, body="{}", headers={"Retry-After": wait}))
    error = await failure(provider, setup("m"))
    assert (error.type, error.retry_after_seconds) == ("HTTP429", None)


@BOTH
async def test_a_reply_that_is_too_large_to_be_one_is_not_read_to_its_end(
    server: FakeOpenAI, stream: bool
) -> None:
    provider = OpenAIProvider(SecretStr(KEY), server.base_url, max_reply_bytes=100_000)
    for answer in (completion(padding="x" * 100_000), streamed('"' + "x" * 100_000 + '"')):
        server.say(answer)
        error = await failure(provider, setup("m", stream))
        assert (error.error, error.type) == ("transient", "bad_response")
        assert "sent more than 100,000 bytes" in error.message
    for _ in range(3):  # it is counted for each reply
        server.say(completion(padding="x" * 50_000))
        assert (await ask(provider, setup("m", stream))).text == "hi"
    await provider.close()
