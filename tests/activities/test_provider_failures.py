"""The openai provider against real HTTP: every way to fail, told apart."""

from __future__ import annotations

import pytest

from activities.providers.openai import OpenAIProvider
from tests.activities.providerkit import BOTH, failure, setup
from tests.fake_openai import Answer, FakeOpenAI

TRANSIENT_FAILURES = [
    *((f"status:{code}", f"HTTP{code}") for code in (408, 409, 429, 500, 502, 503, 529)),
    ("hangup", "connection"),
    ("html", "bad_response"),
    ("broken", "bad_response"),
    ("empty", "bad_response"),
    ("null", "bad_response"),
    ("nochoices", "bad_response"),
    ("error200", "error_in_reply"),
    ("error200:overloaded", "overloaded"),
]
OTHER_FAILURES = [
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
@pytest.mark.parametrize(("model", "cause"), TRANSIENT_FAILURES)
async def test_failures_that_pass_by_themselves(
    provider: OpenAIProvider, model: str, cause: str, stream: bool
) -> None:
    error = await failure(provider, setup(model, stream))
    assert (error.error, error.type) == ("transient", cause)
    assert error.message.startswith(f"model {model} at http://127.0.0.1")


@BOTH
@pytest.mark.parametrize(("model", "kind", "cause"), OTHER_FAILURES)
async def test_failures_that_do_not(
    provider: OpenAIProvider, model: str, kind: str, cause: str, stream: bool
) -> None:
    error = await failure(provider, setup(model, stream))
    assert (error.error, error.type) == (kind, cause)


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        ("cut", "stream_cut"),
        ("badchunk", "bad_response"),
        ("stream-error", "error_in_reply"),
        ("stream-error:overloaded", "overloaded"),
    ],
)
async def test_streams_that_break_are_transient(provider: OpenAIProvider, model: str, cause: str) -> None:
    error = await failure(provider, setup(model))
    assert (error.error, error.type) == ("transient", cause)


async def test_a_body_that_is_cut_is_transient(provider: OpenAIProvider) -> None:
    error = await failure(provider, setup("cut", stream=False))
    assert (error.error, error.type) == ("transient", "connection")


@BOTH
async def test_a_stall_is_a_timeout(provider: OpenAIProvider, stream: bool) -> None:
    error = await failure(provider, setup("stall", stream, timeout_seconds=0.3))
    assert (error.error, error.type) == ("transient", "timeout")


async def test_a_refused_connection_says_what_to_check() -> None:
    provider = OpenAIProvider(None, "http://127.0.0.1:1/v1")
    error = await failure(provider, setup("m"))
    assert (error.error, error.type) == ("transient", "connection")
    assert "check that the server runs and that the base URL is right" in error.message
    await provider.close()


@pytest.mark.parametrize(
    ("wait", "least", "most"),
    [
        ("7", 7, 7),
        ("0.5", 0.5, 0.5),
        ("ms250", 0.25, 0.25),
        ("date5", 2, 5),
        ("date-60", 0, 0),
        ("999999", 3600, 3600),
    ],
)
async def test_retry_after_is_read_in_its_three_forms(
    provider: OpenAIProvider, wait: str, least: float, most: float
) -> None:
    error = await failure(provider, setup(f"status:429@{wait}"))
    assert error.retry_after_seconds is not None
    assert least <= error.retry_after_seconds <= most


@pytest.mark.parametrize("wait", ["", "soon", "nan", "-inf"])
async def test_a_useless_retry_after_is_none(provider: OpenAIProvider, wait: str) -> None:
    assert (await failure(provider, setup(f"status:503@{wait}"))).retry_after_seconds is None


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 8192 tokens",
        "the request exceeds the available context size (4096 tokens)",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Input is too long for requested model.",
    ],
)
async def test_a_context_that_is_too_long_is_known_by_its_words(
    provider: OpenAIProvider, server: FakeOpenAI, said: str
) -> None:
    server.say(Answer(status=400, body=f'{{"error": {{"message": "{said}"}}}}'))
    error = await failure(provider, setup("m"))
    assert (error.error, error.type) == ("recoverable", "context_too_long")


async def test_an_unknown_model_is_answered_with_the_models_there_are(provider: OpenAIProvider) -> None:
    error = await failure(provider, setup("unknown"))
    assert "it has 3, such as: echo, gpt-5-mini, llama3.2:latest" in error.message
