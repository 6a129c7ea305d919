"""The openai provider: where the key goes, what a check finds, how fast it stops."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from activities.contracts import ModelSpec
from activities.providers import load_providers
from activities.providers.openai import OpenAIProvider, from_environment
from activities.settings import Settings
from tests.activities.providerkit import BOTH, KEY, ask, failure, setup
from tests.fake_openai import FakeOpenAI


@BOTH
@pytest.mark.parametrize("status", [400, 401, 403, 429, 500])
async def test_a_key_that_the_server_repeats_never_appears(
    provider: OpenAIProvider, status: int, stream: bool
) -> None:
    with capture_logs() as logs:
        error = await failure(provider, setup(f"leak:{status}", stream))
    everything = f"{error!r} {error.message} {error.__dict__} {logs} {vars(provider)}"
    assert not any(KEY[i : i + 8] in everything for i in range(len(KEY) - 7))
    assert "Incorrect API key provided: [key] [key]" in error.message


@pytest.mark.parametrize(("status", "advice"), [(401, "set OPENAI_API_KEY"), (403, "set OPENAI_API_KEY")])
async def test_a_refused_key_says_which_variable_to_set(
    provider: OpenAIProvider, status: int, advice: str
) -> None:
    assert advice in (await failure(provider, setup(f"status:{status}"))).message


@pytest.mark.parametrize("status", [401, 403])
async def test_where_no_key_was_sent_a_refusal_says_how_one_is(server: FakeOpenAI, status: int) -> None:
    listed = OpenAIProvider(SecretStr(KEY), "http://127.0.0.1:1/v1", allowed=[server.base_url])
    refused = setup(f"status:{status}", base_url=server.base_url)
    message = (await failure(listed, refused)).message
    advice = message[message.index("; ") :]
    assert "no key was sent" in advice
    assert advice.index("--base-url") < advice.index("OPENAI_BASE_URL") < advice.index("OPENAI_API_KEY")
    own = OpenAIProvider(SecretStr(KEY), server.base_url, allowed=[server.base_url])
    assert "no key was sent" not in (await failure(own, refused)).message
    await listed.close()
    await own.close()


async def test_without_key_and_server_the_message_names_every_way_out() -> None:
    error = await failure(OpenAIProvider(), setup("gpt-5-mini"))
    assert (error.error, error.type) == ("fatal", "no_key")
    for way in ("OPENAI_API_KEY", "--base-url", "OPENAI_BASE_URL", "--model scripted"):
        assert way in error.message


@pytest.mark.parametrize("key", ["sk-with space", "sk-schlüssel", "sk-line\nbreak"])
async def test_a_garbled_key_is_refused_without_repeating_it(server: FakeOpenAI, key: str) -> None:
    error = await failure(OpenAIProvider(SecretStr(key), server.base_url), setup("echo"))
    assert (error.error, error.type) == ("fatal", "no_key")
    assert key not in error.message
    assert server.requests == []


async def test_a_task_cannot_send_the_key_to_a_server_of_its_own(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    with FakeOpenAI() as other:
        error = await failure(provider, setup("echo", base_url=other.base_url))
        assert (error.error, error.type) == ("fatal", "base_url_not_allowed")
        assert "RATCHET_BASE_URLS" in error.message
        assert other.base_url in error.message
        assert other.requests == []


async def test_a_listed_server_that_cannot_stream_is_asked_and_told_of_like_any_other(
    server: FakeOpenAI,
) -> None:
    provider = OpenAIProvider(SecretStr(KEY), "http://127.0.0.1:1/v1", allowed=[server.base_url])
    whole = setup("echo", base_url=server.base_url, stream=False)
    assert (await ask(provider, whole)).text == "one two three"
    error = await failure(provider, setup("unknown", base_url=server.base_url))
    assert (error.error, error.type) == ("fatal", "model_not_found")
    assert "echo" in error.message, "the models that there are"
    assert await provider.check(whole.model) is None
    await provider.close()


async def test_a_listed_server_is_asked_without_the_key(server: FakeOpenAI) -> None:
    provider = OpenAIProvider(SecretStr(KEY), "http://127.0.0.1:1/v1", allowed=[server.base_url + "/"])
    assert (await ask(provider, setup("echo", base_url=server.base_url))).text == "one two three"
    sent = server.asked[0].headers
    assert KEY not in str(sent)
    assert sent["authorization"] == "Bearer none-needed"
    assert not [name for name in sent if name.startswith(("openai", "x-"))]
    await provider.close()


async def test_the_configured_server_may_be_named_by_the_task(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    await ask(provider, setup("echo", base_url=server.base_url.upper().replace("/V1", "/v1/")))
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_redirect_is_not_followed(provider: OpenAIProvider) -> None:
    with FakeOpenAI() as other:
        await failure(provider, setup(f"redirect:{other.base_url}/chat/completions"))
        assert other.requests == []


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://host/v1", "http://", "no url"])
async def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    error = await failure(OpenAIProvider(None, url), setup("m"))
    assert (error.error, error.type) == ("fatal", "bad_base_url")


async def test_credentials_in_a_base_url_are_not_shown() -> None:
    provider = OpenAIProvider(None, "http://user:hunter2hunter2@127.0.0.1:1/v1")
    assert "hunter2" not in (await failure(provider, setup("m"))).message
    listed = await failure(provider, setup("m", base_url="http://user:hunter2hunter2@elsewhere/v1"))
    assert "hunter2" not in listed.message
    await provider.close()


async def test_check_finds_what_is_wrong_before_a_run_does(
    provider: OpenAIProvider, server: FakeOpenAI
) -> None:
    assert await provider.check(ModelSpec(name="gpt-5-mini")) is None
    assert await provider.check(ModelSpec(name="llama3.2")) is None
    problem = await provider.check(ModelSpec(name="gpt5-mini"))
    assert problem is not None
    assert "has no model gpt5-mini; it has 3, nearest: gpt-5-mini" in problem
    assert "base URL" in str(await OpenAIProvider(None, "http://127.0.0.1:1/v1").check(ModelSpec()))
    assert "OPENAI_API_KEY" in str(await OpenAIProvider().check(ModelSpec()))
    assert "no http(s) URL" in str(await OpenAIProvider(None, "nonsense").check(ModelSpec()))
    assert server.asked == []


@pytest.mark.parametrize("model", ["stall", "slow:0.1"])
@BOTH
async def test_cancelling_closes_the_connection_at_once(
    provider: OpenAIProvider, server: FakeOpenAI, model: str, stream: bool
) -> None:
    task = asyncio.create_task(ask(provider, setup(model, stream)))
    assert await asyncio.to_thread(server.came.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert await asyncio.to_thread(server.gone.wait, 5)


async def test_the_environment_gives_key_and_server(server: FakeOpenAI) -> None:
    settings = Settings(base_urls=("http://listed:1/v1",))
    provider = from_environment(settings, {"OPENAI_API_KEY": f" {KEY}\n", "OPENAI_BASE_URL": server.base_url})
    await ask(provider, setup("echo"))
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    await provider.close()


def test_the_folder_is_the_registry() -> None:
    providers = load_providers(Settings())
    assert {name: one.name for name, one in providers.items()} == {"openai": "openai", "scripted": "scripted"}
    assert all(one.description for one in providers.values())
