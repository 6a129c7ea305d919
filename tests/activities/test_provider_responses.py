"""The openai provider and the Responses API: what is sent, how responses are read, what goes back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activities.contracts import Message, NativeCall, ToolSpec, Usage
from activities.providers.openai import OpenAIProvider
from tests.activities.modelkit import BOTH, CONVERSATION, ask, failure, setup
from tests.fake_openai import Answer, FakeOpenAI

LOOK = ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
CALL = {"id": "call_7", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}


@BOTH
async def test_nothing_is_stored_and_encrypted_reasoning_is_asked_for(
    provider: OpenAIProvider, server: FakeOpenAI, stream: bool
) -> None:
    wanted = setup("echo", stream, api="responses", tools=(LOOK,), max_output_tokens=9, reasoning="low")
    seen: list[str] = []
    reply = await ask(provider, wanted, tool_choice="required", on_text=seen.append)
    assert (reply.text, reply.finish_reason, reply.kept) == ("one two three", "stop", "")
    assert reply.usage == Usage(input_tokens=5, output_tokens=10, cached_tokens=2, reasoning_tokens=7)
    assert "".join(seen) == (reply.text if stream else "")
    (request,) = server.completion_requests
    assert request.path == "/v1/responses"
    assert request.body == {
        "model": "echo",
        "input": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one two three"},
        ],
        "temperature": 0,
        "reasoning": {"effort": "low"},
        "max_output_tokens": 9,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream": stream,
        "tools": [
            {
                "type": "function", "name": "look", "description": "Look.",
                "parameters": LOOK.parameters, "strict": False,
            }
        ],
        "tool_choice": "required",
    }  # fmt: skip


@BOTH
async def test_reasoning_goes_back_in_its_place(
    provider: OpenAIProvider, server: FakeOpenAI, stream: bool
) -> None:
    wanted = setup("m", stream, api="responses", tools=(LOOK,))
    server.queue(Answer("I look.", (CALL,), reasoning=(THOUGHT,)), "done")
    reply = await ask(provider, wanted)
    assert reply.tool_calls == (NativeCall(id="call_7", name="look", arguments='{"at": 1}'),)
    assert (reply.text, reply.finish_reason) == ("I look.", "tool_calls")
    result = Message(role="tool", content="", tool_call_id="call_7")
    await ask(provider, wanted, CONVERSATION.add(reply.message, result))
    assert server.completion_requests[1].body["input"][2:] == [
        THOUGHT,
        {"type": "message", "role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "call_7", "name": "look", "arguments": '{"at": 1}'},
        {"type": "function_call_output", "call_id": "call_7", "output": "(empty)"},
    ]


@BOTH
@pytest.mark.parametrize(
    ("item", "back"),
    [
        ({"encrypted_content": "x"}, []),
        ({"type": "", "encrypted_content": "x"}, []),
        ({**THOUGHT, "encrypted_content": "a\ud800"}, [{**THOUGHT, "encrypted_content": "a\ufffd"}]),
        ({**THOUGHT, "\udc00": ["\ud83d"]}, [{**THOUGHT, "\ufffd": ["\ufffd"]}]),
        ({**THOUGHT, "weight": float("nan")}, []),
    ],
    ids=["no type", "empty type", "half a pair", "half a pair in a name", "no number"],
)
async def test_malformed_item_harms_no_later_question(
    provider: OpenAIProvider, server: FakeOpenAI, stream: bool, item: dict[str, Any], back: list[Any]
) -> None:
    wanted = setup("m", stream, api="responses", tools=(LOOK,))
    server.queue(Answer("I look.", (CALL,), reasoning=(item,)), "done")
    reply = await ask(provider, wanted)
    after = CONVERSATION.add(reply.message, Message(role="tool", content="seen", tool_call_id="call_7"))
    assert (await ask(provider, wanted, after)).text == "done"
    sent = server.completion_requests[1].body["input"][2:]
    assert [one for one in sent if one.get("type") == "reasoning" or "encrypted_content" in one] == back
    assert [one.get("type") for one in sent][-2:] == ["function_call", "function_call_output"]


@pytest.mark.parametrize("kept", ['{"encrypted_content": "x"}', '{"type": "reasoning", "id": "\\ud800"}'])
async def test_malformed_item_that_an_older_release_kept_harms_no_question(
    provider: OpenAIProvider, server: FakeOpenAI, kept: str
) -> None:
    wanted = setup("m", api="responses")
    server.queue(Answer("hm", reasoning=(THOUGHT,)))
    reply = await ask(provider, wanted)
    by = json.loads(reply.kept)["by"]
    old = reply.message.model_copy(update={"kept": f'{{"by": "{by}", "kept": {{"items": [{kept}]}}}}'})
    assert (
        await ask(provider, wanted, CONVERSATION.add(old, Message(role="user", content="on")))
    ).text == "on"


async def test_reasoning_of_another_model_is_not_sent(provider: OpenAIProvider, server: FakeOpenAI) -> None:
    server.queue(Answer("hm", reasoning=(THOUGHT,)))
    reply = await ask(provider, setup("a", api="responses"))
    after = CONVERSATION.add(reply.message, Message(role="user", content="on"))
    for other in (setup("b", api="responses"), setup("a")):
        await ask(provider, other, after)
        assert "gAAA" not in json.dumps(server.completion_requests[-1].body)


async def test_reasoning_that_the_server_cannot_decrypt_is_left_out(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    server.queue(Answer("hm", reasoning=(THOUGHT,)))
    wanted = setup("a", api="responses")
    reply = await ask(provider, wanted)
    error = {"code": "invalid_encrypted_content", "message": "The encrypted content could not be verified."}
    server.queue(Answer(status=400, body=json.dumps({"error": error})), "on")
    after = CONVERSATION.add(reply.message, Message(role="user", content="on"))
    assert (await ask(provider, wanted, after)).text == "on"


async def test_model_without_reasoning_is_not_asked_for_it(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    message = "Encrypted content is not supported with this model."
    server.queue(Answer(status=400, body=json.dumps({"error": {"message": message, "param": "include"}})))
    assert (await ask(provider, setup("echo", api="responses"))).text == "one two three"
    assert "include" not in server.completion_requests[1].body


@BOTH
@pytest.mark.parametrize("closed", [True, False])
async def test_schema_is_the_format_of_the_text(
    provider: OpenAIProvider, server: FakeOpenAI, stream: bool, closed: bool
) -> None:
    schema: dict[str, Any] = {
        "type": "object", "properties": {"a": {"type": "integer"}},
        "required": ["a"], "additionalProperties": not closed,
    }  # fmt: skip
    reply = await ask(provider, setup("schema", stream, api="responses", response_schema=schema))
    assert reply.text == '{"a": 1}'
    wanted = {"type": "json_schema", "name": "reply", "schema": schema, "strict": closed}
    assert server.completion_requests[0].body["text"] == {"format": wanted}


@BOTH
@pytest.mark.parametrize(("answer", "reason"), [
    (Answer("no", refusal=True), "refusal"),
    (Answer("half", finish_reason="length"), "length"),
])  # fmt: skip
async def test_refusal_and_cut_have_the_reasons_of_chat(
    provider: OpenAIProvider, server: FakeOpenAI, answer: Answer, reason: str, stream: bool
) -> None:
    server.queue(answer)
    reply = await ask(provider, setup("m", stream, api="responses"))
    assert (reply.text, reply.finish_reason) == (answer.text, reason)


def events(*found: dict[str, Any]) -> Answer:
    """A stream of these events."""
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in found)
    return Answer(body=body, content_type="text/event-stream")


def failed(code: str) -> dict[str, Any]:
    """The last event of a response that failed."""
    error = {"code": code, "message": "it broke"}
    return {"type": "response.failed", "response": {"status": "failed", "error": error, "output": []}}


@pytest.mark.parametrize(("answer", "kind", "cause"), [
    ("status:429", "transient", "HTTP429"),
    ("status:401", "fatal", "HTTP401"),
    ("context", "recoverable", "context_too_long"),
    ("filter", "recoverable", "content_filter"),
    ("cut", "transient", "stream_cut"),
    ("html", "fatal", "web_page"),
    *((events(failed(code)), "transient", code)
      for code in ("server_error", "rate_limit_exceeded", "vector_store_timeout")),
    *((events(failed(code)), "fatal", code) for code in ("invalid_prompt", "invalid_image_url", "new_code")),
    (events({"type": "error", "code": "invalid_prompt", "message": "no"}), "fatal", "invalid_prompt"),
    (events(failed("context_length_exceeded")), "recoverable", "context_too_long"),
    (events({"type": "error", "code": "insufficient_quota", "message": "no"}), "fatal", "insufficient_quota"),
    (events({"type": "response.output_item.done", "item": {"content": 5}}), "transient", "bad_response"),
])  # fmt: skip
async def test_failures_have_the_classes_of_chat(
    provider: OpenAIProvider, server: FakeOpenAI, answer: Answer | str, kind: str, cause: str
) -> None:
    if isinstance(answer, Answer):
        server.queue(answer)
    error = await failure(provider, setup(str(answer) if isinstance(answer, str) else "m", api="responses"))
    assert (error.error, error.type) == (kind, cause)
