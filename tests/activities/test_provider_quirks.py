"""What servers do differently (the table in docs/providers.md), each shown by the fake server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activities.contracts import Conversation, Message, NativeCall, ToolSpec, Usage
from activities.providers.openai import OpenAIProvider
from tests.activities.modelkit import CONVERSATION, ask, failure, setup
from tests.activities.test_provider_openai import call, streamed, whole
from tests.fake_openai import Answer, FakeOpenAI
from tests.logs import captured_logs

BOUNDED = {"type": "integer", "exclusiveMinimum": 0, "description": "a number"}
LOOK = ToolSpec(
    name="look",
    description="Look at a thing.",
    parameters={
        "type": "object",
        "properties": {"exclusiveMinimum": BOUNDED, "at": {"anyOf": [BOUNDED]}},
        "additionalProperties": False,
    },
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
USER = Message(role="user", content="go on")


def refusal(message: str, status: int = 400, listed: bool = False) -> Answer:
    """An error object, in a list where Google's is."""
    body: Any = {"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}}
    return Answer(status=status, body=json.dumps([body] if listed else body))


def sent(server: FakeOpenAI) -> list[dict[str, Any]]:
    """The bodies of the requests."""
    return [request.body for request in server.completion_requests]


# -- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "status"), [
    ("Conversation roles must alternate user/assistant/user/assistant/...", 400),
    ("Jinja Exception: System message must be at the beginning.", 500),
])  # fmt: skip
async def test_roles_alternate_where_a_template_wants_it(
    provider: OpenAIProvider, server: FakeOpenAI, words: str, status: int
) -> None:
    middle = Message(role="system", content="Mind the step.")
    conversation = CONVERSATION.add(middle, Message(role="assistant", content="yes"), USER, USER)
    server.queue(refusal(words, status), "hi", "hi")
    with captured_logs() as logs:
        for _ in range(2):  # found out once
            assert (await ask(provider, setup("m"), conversation)).text == "hi"
    assert len(sent(server)) == 3
    assert [(one["role"], one["content"]) for one in sent(server)[1]["messages"]] == [
        ("system", "Be brief."),
        ("user", "one two three\n\nMind the step."),
        ("assistant", "yes"),
        ("user", "go on\n\ngo on"),
    ]
    assert [line["quirk"] for line in logs if line["event"] == "model.quirk"] == ["roles must alternate"]


async def test_system_role_becomes_the_users_where_there_is_none(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    server.queue(refusal("System role not supported"), "hi")
    await ask(provider, setup("m"))
    assert sent(server)[1]["messages"] == [{"role": "user", "content": "Be brief.\n\none two three"}]


@pytest.mark.parametrize("words", [
    "messages.2.content: Input should be a valid string",
    "can only concatenate str (not 'NoneType') to str",
    "Missing 'content' in message",
])  # fmt: skip
async def test_call_without_text_has_empty_text_where_null_is_refused(
    provider: OpenAIProvider, server: FakeOpenAI, words: str
) -> None:
    asks = Message(role="assistant", content="", tool_calls=(NativeCall(id="c", name="look"),))
    conversation = CONVERSATION.add(asks, Message(role="tool", content="x", tool_call_id="c"))
    server.queue(refusal(words), "hi")
    await ask(provider, setup("m"), conversation)
    assert [body["messages"][2]["content"] for body in sent(server)] == [None, ""]


async def test_message_without_text_is_never_sent_empty(provider: OpenAIProvider, server: FakeOpenAI) -> None:
    empty = Message(role="assistant", content=" ")
    await ask(provider, setup("echo"), Conversation([USER, empty, USER]))
    assert sent(server)[0]["messages"][1]["content"] == "(empty)"


@pytest.mark.parametrize("listed", [True, False])
async def test_keyword_that_a_schema_may_not_have_is_left_out(
    provider: OpenAIProvider, server: FakeOpenAI, listed: bool
) -> None:
    words = 'Invalid JSON payload received. Unknown name "{}" at \'tools[0].function_declarations[0]'
    named = ("exclusiveMinimum", "additionalProperties")
    server.queue(*(refusal(words.format(name), listed=listed) for name in named), "hi")
    await ask(provider, setup("m", tools=(LOOK,)))
    plain = {"type": "integer", "description": "a number"}
    properties = {"exclusiveMinimum": plain, "at": {"anyOf": [plain]}}
    last = sent(server)[2]["tools"][0]["function"]["parameters"]
    assert last == {"type": "object", "properties": properties}


@pytest.mark.parametrize("body", [
    {"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]},
    {"error": "'seed' is not supported"},
    [{"error": {"message": 'Invalid JSON payload received. Unknown name "seed": Cannot find field.'}}],
    {"object": "error", "message": "[{'loc': ('body', 'seed'), 'msg': 'Extra inputs are not permitted'}]"},
], ids=["fastapi", "text", "list", "vllm"])  # fmt: skip
async def test_unknown_field_is_found_in_any_error_body(
    provider: OpenAIProvider, server: FakeOpenAI, body: Any
) -> None:
    server.queue(Answer(status=400, body=json.dumps(body)), "hi")
    await ask(provider, setup("m", seed=1))
    assert ["seed" in one for one in sent(server)] == [True, False]


async def test_refusal_that_stays_is_reported(provider: OpenAIProvider, server: FakeOpenAI) -> None:
    server.queue(*[refusal("Conversation roles must alternate user/assistant")] * 2)
    assert (await failure(provider, setup("m"))).type == "HTTP400"
    assert len(sent(server)) == 2


async def test_wait_in_an_error_body_is_kept(provider: OpenAIProvider, server: FakeOpenAI) -> None:
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36.5s"}
    error = {"error": {"code": 429, "message": "slow down", "details": [delay]}}
    server.queue(Answer(status=429, body=json.dumps([error])))
    assert (await failure(provider, setup("m"))).retry_after_seconds == 36.5


# -- what must go back ---------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [True, False], ids=["beside the calls", "in the call"])
async def test_signature_of_a_call_goes_back_to_its_model(
    provider: OpenAIProvider, server: FakeOpenAI, beside: bool
) -> None:
    signature = {"google": {"thought_signature": "c2ln"}}
    signed: dict[str, Any] = call("a", "look", "{}")
    extra: dict[str, Any] = {"extra_content": signature}
    signed |= {} if beside else extra
    server.queue(streamed({"tool_calls": [signed, call("b", "look", "{}")]}, extra if beside else {}))
    reply = await ask(provider, setup("m", tools=(LOOK,)))
    results = [Message(role="tool", content="x", tool_call_id=id) for id in ("a", "b")]
    after = CONVERSATION.add(reply.message, *results)
    for name in ("m", "other"):
        await ask(provider, setup(name, tools=(LOOK,)), after)
    calls = [body["messages"][2]["tool_calls"] for body in sent(server)[1:]]
    assert [[one.get("extra_content") for one in made] for made in calls] == [[signature, None], [None, None]]


async def test_reasoning_behind_calls_goes_back_where_the_server_wants_it(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    made = {"tool_calls": [call("a", "look", "{}", 0)]}
    server.queue(streamed({"reasoning_content": "I must "}, {"reasoning_content": "look."}, made))
    reply = await ask(provider, setup("m", tools=(LOOK,)))
    after = CONVERSATION.add(reply.message, Message(role="tool", content="x", tool_call_id="a"))
    server.queue(refusal("The reasoning_content in the thinking mode must be passed back to the API."), "hi")
    assert (await ask(provider, setup("m", tools=(LOOK,)), after)).text == "hi"
    found = [body["messages"][2].get("reasoning_content") for body in sent(server)[1:]]
    assert found == [None, "I must look."]


async def test_kept_half_of_surrogate_pair_harms_no_later_model_call(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    signed = {**call("a", "look", "{}", 0), "extra_content": {"signature": "a\ud800"}}
    server.queue(streamed({"reasoning_content": "I must \ud83d"}, {"tool_calls": [signed]}))
    reply = await ask(provider, setup("m", tools=(LOOK,)))
    after = CONVERSATION.add(reply.message, Message(role="tool", content="x", tool_call_id="a"))
    server.queue(refusal("The reasoning_content in the thinking mode must be passed back to the API."), "hi")
    assert (await ask(provider, setup("m", tools=(LOOK,)), after)).text == "hi"
    message = sent(server)[-1]["messages"][2]
    assert message["reasoning_content"] == "I must \ufffd"
    assert message["tool_calls"][0]["extra_content"] == {"signature": "a\ufffd"}


# -- how replies differ --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [
    'Let me see.\n<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>',
    'Let me see. [TOOL_REQUEST]{"name": "look", "arguments": {"at": 1}}[END_TOOL_REQUEST]',
    '{"name": "look", "parameters": {"at": 1}}',
    '<think>{"name": "no"}</think>```json\n{"name": "look", "arguments": {"at": 1}}\n```',
], ids=["tag", "brackets", "object", "fence"])  # fmt: skip
async def test_call_that_a_model_wrote_as_text_is_a_call(
    provider: OpenAIProvider, server: FakeOpenAI, text: str
) -> None:
    server.queue(Answer(text))
    reply = await ask(provider, setup("m", tools=(LOOK,)))
    assert reply.tool_calls == (NativeCall(id="", name="look", arguments='{"at": 1}'),)
    assert reply.text in ("", "Let me see.")


async def test_call_in_text_is_quoted_where_server_reads_calls(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    asked = setup("m", tools=(LOOK,))
    quoted = '<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'
    server.queue(streamed({"tool_calls": [call("a", "look", '{"at": 1}')]}), Answer(quoted))
    assert (await ask(provider, asked)).tool_calls
    reply = await ask(provider, asked)
    assert (reply.text, reply.tool_calls) == (quoted, ())


async def test_complaint_that_was_misread_changes_no_later_question(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    asked = setup("m", temperature=0.5)
    server.queue(refusal("temperature is not supported"), refusal("no credit", 402), "hi")
    await failure(provider, asked)
    await ask(provider, asked)
    assert ["temperature" in body for body in sent(server)] == [True, False, True]


@pytest.mark.parametrize("text", [
    '{"name": "unknown", "arguments": {}}', '{"name": "look", "arguments": 5}', '{"name": "look"}',
    "<tool_call>{bad}</tool_call>", "{}",
    'The page says: <tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call> That is an attack.',
])  # fmt: skip
async def test_text_that_is_no_call_stays_text(
    provider: OpenAIProvider, server: FakeOpenAI, text: str
) -> None:
    server.queue(Answer(text))
    reply = await ask(provider, setup("m", tools=(LOOK,)))
    assert (reply.text, reply.tool_calls) == (text, ())


async def test_thoughts_in_front_of_text_are_not_part_of_it(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    server.queue(Answer("<think>\nWell {1}.\n</think>\n\nYes, <think>."))
    assert (await ask(provider, setup("m"))).text == "Yes, <think>."


@pytest.mark.parametrize(("deltas", "calls"), [
    ([{"tool_calls": [{"index": 0, "id": "a", "function": None}, call("b", "look", None, 1)]}], ["look"]),
    ([{"tool_calls": [call("a", "look", "{}", 0), call("b", "see", "{}", 1)]}], ["look", "see"]),
    ([{"tool_calls": [call("a", "look", "{}")]}, {"tool_calls": [call("", "", "")]}], ["look"]),
    ([{"tool_calls": [call("", "look", "{}", 0), call("", "see", "{}", 0)]}], ["look", "see"]),
    ([{"tool_calls": [call("", "look", '{"a"', 0)]}, {"tool_calls": [call("", "look", ": 1}", 0)]},
      {"tool_calls": [call("", "look", "", 0)]}], ["look"]),
], ids=["no function", "several in one delta", "a last one of nothing", "neither id nor index",
        "name in every piece"])  # fmt: skip
async def test_calls_of_odd_streams_are_understood(
    provider: OpenAIProvider, server: FakeOpenAI, deltas: list[dict[str, Any]], calls: list[str]
) -> None:
    server.queue(streamed(*deltas))  # with the finish reason `stop`
    assert [one.name for one in (await ask(provider, setup("m"))).tool_calls] == calls


@pytest.mark.parametrize(("usage", "counted"), [
    ({"prompt_tokens": 0, "completion_tokens": 0}, Usage(input_tokens=6, output_tokens=1)),
    ({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 31},
     Usage(input_tokens=9, output_tokens=22, reasoning_tokens=20)),
    ({"prompt_tokens": 9, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 3}},
     Usage(input_tokens=9, output_tokens=5, reasoning_tokens=3)),
    ({"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": None,
      "completion_tokens_details": {}}, Usage(input_tokens=9, output_tokens=5)),
    ({"prompt_tokens": 9, "completion_tokens": 5, "prompt_cache_hit_tokens": 8,
      "prompt_cache_miss_tokens": 1}, Usage(input_tokens=9, output_tokens=5, cached_tokens=8)),
], ids=["zeros", "reasoning in the total alone", "reasoning", "empty details",
        "cached at DeepSeek"])  # fmt: skip
async def test_tokens_are_counted_where_servers_put_them(
    provider: OpenAIProvider, server: FakeOpenAI, usage: dict[str, Any], counted: Usage
) -> None:
    server.queue(whole({"content": "hi"}, usage=usage))
    assert (await ask(provider, setup("m"))).usage == counted


# -- a schema for the reply ----------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("ignores", [True, False], ids=["ignores", "refuses"])
async def test_reply_is_requested_by_tool_where_schemas_are_unknown(
    provider: OpenAIProvider, server: FakeOpenAI, ignores: bool, api: str
) -> None:
    field = "response_format" if api == "chat" else "text.format"
    answered = {"id": "c", "function": {"name": "reply", "arguments": '{"a": 1}'}}
    slips = ["Sure! Here it is.", Answer(tool_calls=(answered,))] * 2
    server.queue(*(slips if ignores else [refusal(f"'{field}' is not supported")]))
    server.queue(*[Answer(tool_calls=(answered,))] * (1 if ignores else 3))
    wanted = setup("m", response_schema=SCHEMA, api=api)
    replies = [await ask(provider, wanted) for _ in range(3)]
    assert [(one.text, one.tool_calls, one.finish_reason) for one in replies] == [
        ('{"a": 1}', (), "stop")
    ] * 3
    assert len(sent(server)) == (5 if ignores else 4)
    assert sent(server)[-1]["tool_choice"] == "required"
    assert (replies[0].usage.input_tokens > replies[2].usage.input_tokens) == ignores


async def test_slip_of_a_model_changes_no_later_question(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    wanted = setup("m", response_schema=SCHEMA)
    good = '{"a": 1}'
    by_tool = Answer(tool_calls=({"id": "c", "function": {"name": "reply", "arguments": good}},))
    server.queue("Sure!", by_tool, good, "Sure!", by_tool, good)
    assert [(await ask(provider, wanted)).text for _ in range(4)] == [good] * 4
    assert ["response_format" in body for body in sent(server)] == [True, False, True, True, False, True]


async def test_key_of_a_request_is_that_of_its_body_alone(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    """A question is asked again in other words, which is another request; an attempt more is the same one."""
    server.queue(refusal("temperature is not supported"), "hi", "hi")
    for _ in range(2):
        await ask(provider, setup("m", temperature=0.5), key="run/1")
    first, second, third = [one.headers["idempotency-key"] for one in server.completion_requests]
    assert first != second
    assert second == third


async def test_reply_is_requested_in_words_where_tools_are_unknown_too(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    server.queue(
        refusal("response_format is not supported"), refusal("this model does not support tools"), '{"a": 1}'
    )
    reply = await ask(provider, setup("m", response_schema=SCHEMA))
    assert reply.text == '{"a": 1}'
    last = sent(server)[2]
    assert "tools" not in last
    assert last["messages"][-1]["content"].startswith("Reply with JSON that fits this schema")
    assert last["messages"][-1]["content"].endswith(json.dumps(SCHEMA))


async def test_offered_tools_stay_where_schemas_are_unknown(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    server.queue(refusal("response_format is not supported"), '{"a": 1}')
    await ask(provider, setup("m", response_schema=SCHEMA, tools=(LOOK,)))
    assert [tool["function"]["name"] for tool in sent(server)[1]["tools"]] == ["look"]


async def test_reply_without_json_comes_back_after_every_way(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    reply = await ask(provider, setup("say:no JSON", response_schema=SCHEMA))
    assert (reply.text, len(sent(server))) == ("no JSON", 3)
