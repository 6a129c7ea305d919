"""Anthropic and Google by name: who is asked, with which key, and what their endpoints do differently.

Their own addresses are asked in clear through a proxy, which is the fake server: so the table is tested as it
is, and nothing leaves this machine.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from activities.contracts import Message, ModelSpec, Setup, Usage
from activities.endpoints import ANTHROPIC, ENDPOINTS, GOOGLE, OPENAI, Endpoint, missing_key, provider_of
from activities.model import ModelActivities
from activities.providers.openai import OpenAIProvider, from_environment
from activities.settings import Settings
from activities.store.cache import ConversationCache
from tests.activities.modelkit import CONVERSATION, ask, failure, setup
from tests.activities.test_model import request, run
from tests.activities.test_provider_openai import call, streamed, whole
from tests.activities.test_provider_quirks import LOOK, SCHEMA, refusal, sent
from tests.conftest import Environ
from tests.fake_openai import FakeOpenAI

KEYS = {name: f"key-of-{name.lower()}-0123456789" for one in ENDPOINTS.values() for name in one.key_variables}
EVERY = pytest.mark.parametrize("endpoint", list(ENDPOINTS.values()), ids=list(ENDPOINTS))
OTHERS = pytest.mark.parametrize("endpoint", [ANTHROPIC, GOOGLE], ids=lambda one: one.provider)


@pytest.fixture
def proxied(server: FakeOpenAI, environ: Environ) -> FakeOpenAI:
    """The fake server, which gets all that is asked by plain HTTP; every key is set, and nothing else."""
    for name in [name for name in environ if name.startswith("OPENAI_") or name.lower().endswith("_proxy")]:
        del environ[name]
    environ.update(KEYS, http_proxy=server.base_url.removesuffix("/v1"))
    return server


@pytest.fixture
async def closing() -> AsyncIterator[list[OpenAIProvider]]:
    """Providers to be closed."""
    made: list[OpenAIProvider] = []
    yield made
    for provider in made:
        await provider.close()


def in_clear(endpoint: Endpoint) -> Endpoint:
    """The endpoint by plain HTTP, which goes through a proxy readably."""
    return replace(endpoint, url=endpoint.url.replace("https:", "http:"))


# -- who is asked --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "base_url", "provider"),
    [
        (ModelSpec(name="claude-sonnet-4-5"), "", "anthropic"),
        (ModelSpec(name="gemini-2.5-flash"), "", "google"),
        (ModelSpec(name="gpt-5-mini"), "", "openai"),
        (ModelSpec(name="my-claude-3"), "", "openai"),
        (ModelSpec(name="claude-sonnet-4-5", provider="openai"), "", "openai"),
        (ModelSpec(name="my-alias", provider="anthropic"), "http://localhost:4000/v1", "anthropic"),
        (ModelSpec(name="claude-sonnet-4-5"), "http://localhost:4000/v1", "openai"),
        (ModelSpec(name="gemini-2.5-flash", base_url="http://localhost:4000/v1"), "", "openai"),
    ],
)
def test_provider_follows_from_task_then_server_then_name(
    environ: Environ, model: ModelSpec, base_url: str, provider: str
) -> None:
    environ["OPENAI_BASE_URL"] = base_url
    assert provider_of(model) == provider


async def test_reply_names_the_provider_that_was_asked(
    proxied: FakeOpenAI, closing: list[OpenAIProvider], tmp_path: Path
) -> None:
    closing.append(from_environment(Settings(), in_clear(ANTHROPIC)))
    models = ModelActivities({"anthropic": closing[0]}, ConversationCache(tmp_path / "cache.db"))
    wanted = Setup(model=ModelSpec(name="claude-sonnet-4-5"))
    reply = await run(models, request(wanted, Message(role="user", content="hi")))
    assert reply.requested == "anthropic/claude-sonnet-4-5"


# -- which key goes where ------------------------------------------------------------------------------


@EVERY
async def test_each_endpoint_is_sent_its_own_key_alone(
    proxied: FakeOpenAI, closing: list[OpenAIProvider], environ: Environ, endpoint: Endpoint
) -> None:
    environ.update(OPENAI_ORG_ID="org-of-mine", OPENAI_PROJECT_ID="project-of-mine")
    closing.append(from_environment(Settings(), in_clear(endpoint)))
    await ask(closing[0], setup("echo"))
    await closing[0].check(ModelSpec(name="echo"))
    assert len(proxied.requests) == 2
    for one in proxied.requests:
        assert one.path.startswith(in_clear(endpoint).url)
        keys = {name for name, key in KEYS.items() if key in str(one.headers)}
        assert keys == {endpoint.key_variables[0]}
        assert endpoint is OPENAI or "of-mine" not in str(one.headers)


@OTHERS
async def test_base_url_of_a_provider_gets_its_key_not_openais(
    proxied: FakeOpenAI, closing: list[OpenAIProvider], environ: Environ, endpoint: Endpoint
) -> None:
    environ["OPENAI_BASE_URL"] = in_clear(endpoint).url
    closing.append(from_environment(Settings()))
    await ask(closing[0], setup("echo"))
    (made,) = proxied.completion_requests
    assert made.headers["authorization"] == f"Bearer {KEYS[endpoint.key_variables[0]]}"
    for name in endpoint.key_variables:
        del environ[name]
    assert endpoint.key_variables[0] in str(missing_key(ModelSpec(name="echo")))
    error = await failure(from_environment(Settings()), setup("echo"))
    assert (error.type, endpoint.key_variables[0] in error.message) == ("no_key", True)
    assert len(proxied.requests) == 1


async def test_server_named_by_task_gets_no_key_of_its_provider(
    proxied: FakeOpenAI, closing: list[OpenAIProvider]
) -> None:
    for endpoint in ENDPOINTS.values():
        named = setup("echo", base_url=proxied.base_url, provider=endpoint.provider)
        refused = from_environment(Settings(base_urls=()), endpoint)
        assert (await failure(refused, named)).type == "base_url_not_allowed"
        closing.append(from_environment(Settings(base_urls=(proxied.base_url,)), endpoint))
        await ask(closing[-1], named)
    headers = [one.headers for one in proxied.completion_requests]
    assert [one["authorization"] for one in headers] == ["Bearer none-needed"] * len(ENDPOINTS)
    assert not any(key in str(headers) for key in KEYS.values())


async def test_second_google_variable_counts_where_first_is_not_set(
    proxied: FakeOpenAI, closing: list[OpenAIProvider], environ: Environ
) -> None:
    del environ["GEMINI_API_KEY"]
    assert missing_key(ModelSpec(name="gemini-2.5-flash")) is None
    closing.append(from_environment(Settings(), in_clear(GOOGLE)))
    await ask(closing[0], setup("echo"))
    assert proxied.requests[0].headers["authorization"] == f"Bearer {KEYS['GOOGLE_API_KEY']}"


@OTHERS
async def test_missing_key_is_one_line_that_names_its_variables(
    environ: Environ, proxied: FakeOpenAI, endpoint: Endpoint
) -> None:
    for name in endpoint.key_variables:
        environ[name] = " "
    model = ModelSpec(name=f"{endpoint.prefixes[0]}x")
    words = str(missing_key(model))
    assert "\n" not in words
    assert f"{model.name} is asked at {endpoint.title}" in words
    assert f"set {endpoint.key_names} where" in words
    assert "OPENAI_API_KEY" not in words
    assert (await failure(from_environment(Settings(), endpoint), Setup(model=model))).message == words


@pytest.mark.parametrize("status", [400, 401])
async def test_refused_key_names_the_variable_to_set(
    proxied: FakeOpenAI, closing: list[OpenAIProvider], status: int
) -> None:
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    error = {"code": status, "message": "API key not valid. Please pass a valid API key.", "details": [info]}
    proxied.queue(replace(refusal("", status), body=json.dumps([{"error": error}])))
    closing.append(from_environment(Settings(), in_clear(GOOGLE)))
    found = await failure(closing[0], setup("gemini-2.5-flash"))
    assert (found.error, found.type) == ("fatal", "HTTP401")
    assert "set GEMINI_API_KEY or GOOGLE_API_KEY to a key" in found.message


# -- what they do differently --------------------------------------------------------------------------


async def test_anthropics_list_of_models_is_asked_in_its_own_way(
    proxied: FakeOpenAI, closing: list[OpenAIProvider]
) -> None:
    proxied.models = ("claude-sonnet-4-5-20250929", "claude-opus-4-6")
    proxied.list_headers = ("x-api-key", "anthropic-version")
    closing.append(from_environment(Settings(), in_clear(ANTHROPIC)))
    for name in (*proxied.models, "claude-sonnet-4-5"):  # an alias is not in the list
        assert await closing[0].check(ModelSpec(name=name)) is None
    assert "nearest: claude-opus-4-6" in str(await closing[0].check(ModelSpec(name="claude-opus-4")))
    listing = proxied.requests[0]
    assert listing.headers["x-api-key"] == KEYS["ANTHROPIC_API_KEY"]
    assert "authorization" not in listing.headers
    assert listing.path.endswith("/models?limit=1000")  # else the newest twenty


async def test_google_lists_each_model_with_a_word_in_front(
    proxied: FakeOpenAI, closing: list[OpenAIProvider]
) -> None:
    proxied.models = ("models/gemini-2.5-flash", "models/gemini-2.5-pro")
    closing.append(from_environment(Settings(), in_clear(GOOGLE)))
    assert await closing[0].check(ModelSpec(name="gemini-2.5-flash")) is None
    assert "nearest: gemini-2.5-pro" in str(await closing[0].check(ModelSpec(name="gemini-2.5-por")))


@pytest.mark.parametrize(
    ("endpoint", "usage", "counted", "cost"),
    [
        pytest.param(
            ANTHROPIC,
            {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100,
             "prompt_tokens_details": None, "completion_tokens_details": None},
            Usage(input_tokens=1000, output_tokens=100), 0.003 + 0.0015, id="anthropic",
        ),
        pytest.param(
            GOOGLE,
            {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1300,
             "prompt_tokens_details": {"cached_tokens": 600}},
            Usage(input_tokens=1000, output_tokens=300, cached_tokens=600, reasoning_tokens=200),
            400 * 0.30e-6 + 600 * 0.03e-6 + 300 * 2.50e-6, id="google",
        ),
    ],
)  # fmt: skip
async def test_usage_of_an_endpoint_is_counted_and_priced(
    proxied: FakeOpenAI,
    closing: list[OpenAIProvider],
    endpoint: Endpoint,
    usage: dict[str, Any],
    counted: Usage,
    cost: float,
) -> None:
    proxied.queue(whole({"content": "hi"}, usage=usage))
    closing.append(from_environment(Settings(), in_clear(endpoint)))
    name = {ANTHROPIC.provider: "claude-sonnet-4-5", GOOGLE.provider: "gemini-2.5-flash"}[endpoint.provider]
    reply = await ask(closing[0], setup(name))
    assert (reply.usage, reply.cost_known) == (counted, True)
    assert reply.cost_usd == pytest.approx(cost)


async def test_what_new_claude_models_refuse_is_left_out(
    proxied: FakeOpenAI, closing: list[OpenAIProvider]
) -> None:
    forced = 'tool_choice: type "tool" and "any" are not supported for this model.'
    proxied.queue(
        refusal("`temperature` is deprecated for this model."),
        "no JSON",  # `response_format` is ignored
        refusal(forced),
        streamed({"tool_calls": [call("a", "reply", '{"a": 1}', 0)]}),
    )
    closing.append(from_environment(Settings(), in_clear(ANTHROPIC)))
    reply = await ask(closing[0], setup("claude-fable-5-1", response_schema=SCHEMA))
    assert json.loads(reply.text) == {"a": 1}
    assert ["temperature" in body for body in sent(proxied)] == [True, False, False, False]
    assert [body.get("tool_choice") for body in sent(proxied)] == [None, None, "required", None]


async def test_signatures_of_gemini_go_back_to_gemini_alone(
    proxied: FakeOpenAI, closing: list[OpenAIProvider]
) -> None:
    signed = {**call("a", "look", "{}"), "extra_content": {"google": {"thought_signature": "c2ln"}}}
    closing += [from_environment(Settings(), in_clear(one)) for one in (GOOGLE, ANTHROPIC)]
    proxied.queue(streamed({"tool_calls": [signed]}))
    wanted = setup("gemini-3-flash-preview", tools=(LOOK,))
    reply = await ask(closing[0], wanted)
    after = CONVERSATION.add(reply.message, Message(role="tool", content="x", tool_call_id="a"))
    for provider in closing:
        await ask(provider, wanted, after)
    calls = [body["messages"][2]["tool_calls"][0] for body in sent(proxied)[1:]]
    assert [one.get("extra_content") for one in calls] == [signed["extra_content"], None]


@OTHERS
async def test_endpoint_without_the_responses_api_says_what_to_leave_out(
    proxied: FakeOpenAI, closing: list[OpenAIProvider], endpoint: Endpoint
) -> None:
    closing.append(from_environment(Settings(), in_clear(endpoint)))
    error = await failure(closing[0], setup("status:404", api="responses"))
    assert (error.error, "leave `api` out" in error.message) == ("fatal", True)


async def test_garbled_key_of_a_provider_is_refused_by_its_variable() -> None:
    provider = OpenAIProvider(SecretStr("two words"), endpoint=GOOGLE)
    error = await failure(provider, setup("gemini-2.5-flash"))
    assert (error.type, "GEMINI_API_KEY or GOOGLE_API_KEY holds spaces" in error.message) == ("no_key", True)
