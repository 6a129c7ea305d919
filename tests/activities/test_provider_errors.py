"""The openai provider against real HTTP: every way to fail, and where the key goes."""

from __future__ import annotations

import json

import pytest
from pydantic import SecretStr

from activities.contracts import ModelSpec
from activities.providers.openai import OpenAIProvider
from tests.activities.modelkit import BOTH, KEY, ask, failure, setup
from tests.fake_openai import Answer, FakeOpenAI
from tests.logs import captured_logs

NOWHERE = "http://127.0.0.1:1/v1"

FAILURES = [
    *((f"status:{code}", "transient", f"HTTP{code}") for code in (408, 409, 429, 500, 502, 503, 529)),
    ("hangup", "transient", "connection_lost"),
    ("html", "fatal", "web_page"),
    ("broken", "transient", "bad_response"),
    ("empty", "transient", "bad_response"),
    ("null", "transient", "bad_response"),
    ("nochoices", "transient", "bad_response"),
    ("error200", "transient", "error_in_reply"),
    ("error200:overloaded", "transient", "overloaded"),
    *((f"status:{code}", "fatal", f"HTTP{code}") for code in (400, 401, 402, 403, 404, 418, 422)),
    ("status:503@never", "fatal", "HTTP503"),
    ("quota", "fatal", "insufficient_quota"),
    ("unknown", "fatal", "model_not_found"),
    ("error200:insufficient_quota", "fatal", "insufficient_quota"),
    ("redirect:http://127.0.0.1:1/elsewhere", "fatal", "HTTP302"),
    ("context", "recoverable", "context_too_long"),
    ("status:413", "recoverable", "context_too_long"),
    ("error200:context_length_exceeded", "recoverable", "context_too_long"),
    ("error:content_filter", "recoverable", "content_filter"),
    ("filter", "recoverable", "content_filter"),
]


@BOTH
@pytest.mark.parametrize(("model", "kind", "cause"), FAILURES)
async def test_failures_have_class_and_cause(
    provider: OpenAIProvider, model: str, kind: str, cause: str, stream: bool
) -> None:
    error = await failure(provider, setup(model, stream))
    assert (error.error, error.type) == (kind, cause)
    assert error.message.startswith(f"model {model} at http://127.0.0.1")


@pytest.mark.parametrize(
    ("model", "stream", "cause"),
    [
        ("cut", True, "stream_cut"),
        ("cut", False, "connection_lost"),
        ("badchunk", True, "bad_response"),
        ("stream-error", True, "error_in_reply"),
        ("stream-error:overloaded", True, "overloaded"),
        ("stall", True, "timeout"),
        ("stall", False, "timeout"),
    ],
)
async def test_broken_answers_are_transient(
    provider: OpenAIProvider, model: str, stream: bool, cause: str
) -> None:
    error = await failure(provider, setup(model, stream, timeout_seconds=2))
    assert (error.error, error.type) == ("transient", cause)


@pytest.mark.parametrize("url", [NOWHERE, "http://no-such-host.invalid/v1"])
async def test_unreachable_server_is_named_plainly(url: str) -> None:
    provider = OpenAIProvider(None, url)
    error = await failure(provider, setup("m"))
    assert (error.error, error.type) == ("transient", "unreachable")
    assert url in error.message
    await provider.close()


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("event", ["5", "null", '"x"', "[1]", '{"choices": 5}', f'{{"a": {DEEP}}}'])
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_json_of_another_shape_is_a_bad_response(
    provider: OpenAIProvider, server: FakeOpenAI, event: str, kind: str
) -> None:
    last = '{"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}'
    body = f"data: {event}\n\ndata: {last}\n\n" if kind == "text/event-stream" else event
    server.queue(Answer(body=body, content_type=kind))
    error = await failure(provider, setup("m"))
    assert (error.error, error.type) == ("transient", "bad_response")
    assert "\n" not in error.message


@pytest.mark.parametrize(
    ("wait", "least", "most"),
    [("7", 7, 7), ("0.5", 0.5, 0.5), ("ms250", 0.25, 0.25), ("date5", 2, 5), ("date-60", 0, 0),
     ("999999", 3600, 3600)],
)  # fmt: skip
async def test_retry_after_has_three_forms(
    provider: OpenAIProvider, wait: str, least: float, most: float
) -> None:
    error = await failure(provider, setup(f"status:429@{wait}"))
    assert error.retry_after_seconds is not None
    assert least <= error.retry_after_seconds <= most


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 8192 tokens",
        "the request exceeds the available context size (4096 tokens)",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Input is too long for requested model.",
    ],
)
async def test_too_long_context_is_recognised_by_words(
    provider: OpenAIProvider, server: FakeOpenAI, words: str
) -> None:
    server.queue(Answer(status=400, body=json.dumps({"error": {"message": words}})))
    assert (await failure(provider, setup("m"))).type == "context_too_long"


async def test_unknown_model_error_lists_the_available(provider: OpenAIProvider) -> None:
    assert "echo, gpt-5-mini, llama3.2:latest" in (await failure(provider, setup("unknown"))).message


# -- where the key goes --------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("status", [400, 401, 403, 429, 500])
async def test_key_that_the_server_repeats_never_appears(
    provider: OpenAIProvider, status: int, stream: bool
) -> None:
    with captured_logs() as logs:
        error = await failure(provider, setup(f"leak:{status}", stream))
    everything = f"{error!r} {error.message} {error.__dict__} {error.__context__} {logs} {vars(provider)}"
    assert not any(KEY[i : i + 8] in everything for i in range(len(KEY) - 7))
    assert "[key]" in error.message


async def test_key_in_an_error_code_never_appears(provider: OpenAIProvider, server: FakeOpenAI) -> None:
    server.queue(Answer(body=json.dumps({"error": {"code": f"{KEY} {'z' * 5000}", "type": KEY}})))
    error = await failure(provider, setup("m"))
    assert KEY not in f"{error.type} {error.message}"
    assert len(error.type) < 100
    assert len(error.message) < 1000


@pytest.mark.parametrize("key", ["sk-with space", "sk-schlüssel", "sk-line\nbreak"])
async def test_garbled_key_is_refused_unseen(server: FakeOpenAI, key: str) -> None:
    error = await failure(OpenAIProvider(SecretStr(key), server.base_url), setup("echo"))
    assert (error.error, error.type) == ("fatal", "no_key")
    assert key not in error.message
    assert server.requests == []


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_key_error_says_what_to_set(server: FakeOpenAI, status: int) -> None:
    refused = setup(f"status:{status}", base_url=server.base_url)
    own = OpenAIProvider(SecretStr(KEY), server.base_url)
    assert "set OPENAI_API_KEY" in (await failure(own, refused)).message
    listed = OpenAIProvider(SecretStr(KEY), NOWHERE, allowed=[server.base_url])
    message = (await failure(listed, refused)).message
    assert all(word in message for word in ("no key was sent", "--base-url", "OPENAI_BASE_URL"))
    await own.close()
    await listed.close()


async def test_missing_key_error_names_every_way_out() -> None:
    error = await failure(OpenAIProvider(), setup("gpt-5-mini"))
    assert (error.error, error.type) == ("fatal", "no_key")
    for way in ("OPENAI_API_KEY", "--base-url", "OPENAI_BASE_URL", "--model scripted"):
        assert way in error.message


async def test_task_cannot_choose_an_unlisted_server(provider: OpenAIProvider) -> None:
    with FakeOpenAI() as other:
        error = await failure(provider, setup("echo", base_url=other.base_url))
        assert (error.error, error.type) == ("fatal", "base_url_not_allowed")
        assert "RATCHET_BASE_URLS" in error.message
        assert other.requests == []


async def test_listed_server_never_gets_the_key(server: FakeOpenAI) -> None:
    provider = OpenAIProvider(SecretStr(KEY), NOWHERE, allowed=[server.base_url + "/"])
    assert (await ask(provider, setup("echo", base_url=server.base_url))).text == "one two three"
    sent = server.completion_requests[0].headers
    assert sent["authorization"] == "Bearer none-needed"
    assert not [name for name in sent if name.startswith(("openai", "x-"))]
    assert await provider.check(ModelSpec(name="echo", base_url=server.base_url)) is None
    await provider.close()


async def test_redirect_is_not_followed(provider: OpenAIProvider) -> None:
    with FakeOpenAI() as other:
        await failure(provider, setup(f"redirect:{other.base_url}/chat/completions"))
        assert other.requests == []


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://host/v1", "http://", "no url", "http://a:b/v1"])
async def test_bad_base_url_is_refused(url: str) -> None:
    error = await failure(OpenAIProvider(None, url), setup("m"))
    assert (error.error, error.type) == ("fatal", "bad_base_url")


async def test_credentials_in_a_base_url_never_appear() -> None:
    provider = OpenAIProvider(None, "http://user:hunter2hunter2@127.0.0.1:1/v1")
    assert "hunter2" not in (await failure(provider, setup("m"))).message
    unlisted = setup("m", base_url="http://user:hunter2hunter2@elsewhere/v1")
    assert "hunter2" not in (await failure(provider, unlisted)).message
    await provider.close()


async def test_key_in_the_place_of_a_url_never_appears() -> None:
    key = "sk-proj-hunter2hunter2"
    swapped, other = OpenAIProvider(None, key), OpenAIProvider(None, None, allowed=(f"https//gateway/{key}",))
    for provider, url in ((swapped, None), (other, "https://elsewhere/v1")):
        error = await failure(provider, setup("m", base_url=url))
        assert (error.type, key in error.message) == ("bad_base_url", False)


async def test_check_finds_problems_before_a_run(provider: OpenAIProvider, server: FakeOpenAI) -> None:
    assert await provider.check(ModelSpec(name="gpt-5-mini")) is None
    assert await provider.check(ModelSpec(name="llama3.2")) is None
    assert "nearest: gpt-5-mini" in str(await provider.check(ModelSpec(name="gpt5-mini")))
    assert "base URL" in str(await OpenAIProvider(None, NOWHERE).check(ModelSpec()))
    assert "OPENAI_API_KEY" in str(await OpenAIProvider().check(ModelSpec()))
    assert "expected an http(s) URL" in str(await OpenAIProvider(None, "nonsense").check(ModelSpec()))
    assert server.completion_requests == []
