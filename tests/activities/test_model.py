"""The activity `call_model`: cache, reply, failures, heartbeats, cancellation, logs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.contracts import (
    FATAL,
    RECOVERABLE,
    TRANSCRIPT_MISSING,
    TRANSIENT,
    ModelReplied,
    ModelRequest,
    ModelSpec,
    ScriptedReply,
    Setup,
)
from activities.converter import StrictConverter
from activities.model import TAIL_BYTES, ModelActivities
from activities.providers.openai import OpenAIProvider
from activities.providers.scripted import ScriptedProvider
from activities.store import BlobStore, TranscriptCache
from activities.transcript import Message, Transcript
from tests.activities.providerkit import KEY
from tests.fake_openai import FakeOpenAI

GOAL = Message(role="user", content="the secret goal")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[BlobStore]:
    store = BlobStore(tmp_path / "cache.db", durable=False)
    yield store
    store.close()


@pytest.fixture
def model(store: BlobStore, provider: OpenAIProvider) -> ModelActivities:
    """The activities of a worker with both providers."""
    providers = {one.name: one for one in (ScriptedProvider(), provider)}
    return ModelActivities(providers, TranscriptCache(store), heartbeat_seconds=0.02)


def scripted(*replies: Any) -> Setup:
    script = tuple(r if isinstance(r, ScriptedReply) else ScriptedReply(reply=r) for r in replies)
    return Setup(model=ModelSpec(provider="scripted", script=script))


def request(setup: Setup, *messages: Message, base: str | None = None, known: bool = False) -> ModelRequest:
    full = None if known else setup
    return ModelRequest(role="default", setup=setup.digest, full_setup=full, base=base, messages=messages)


async def run(model: ModelActivities, asked: ModelRequest, attempt: int = 1) -> ModelReplied:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(ActivityEnvironment.default_info(), attempt=attempt)
    return await asyncio.wait_for(environment.run(model.call_model, asked), 20)


async def failure(model: ModelActivities, asked: ModelRequest) -> ApplicationError:
    with pytest.raises(ApplicationError) as caught:
        await run(model, asked)
    assert caught.value.__cause__ is None
    return caught.value


async def test_a_run_sends_only_what_is_new_and_gets_the_next_reference(model: ModelActivities) -> None:
    setup = scripted("one", "two", "three")
    conversation, base = Transcript(), None
    for said in ("one", "two", "three"):
        reply = await run(model, request(setup, GOAL, base=base, known=base is not None))
        conversation = conversation.add(GOAL, reply.message)
        assert reply.text == said
        assert reply.transcript == conversation.digest
        base = reply.transcript
    assert base is not None
    assert (await model.cache.load(base)).messages == conversation.messages


async def test_what_is_stored_is_what_the_workflow_will_rebuild_from_the_answer(
    model: ModelActivities, server: FakeOpenAI
) -> None:
    setup = Setup(model=ModelSpec(name='tool:look:{"at": "\u00e4"}'))
    reply = await run(model, request(setup, GOAL))
    converter = StrictConverter()
    (come,) = converter.from_payloads(converter.to_payloads([reply]), [ModelReplied])
    assert Transcript([GOAL, come.message]).digest == come.transcript


async def test_attempt_and_seconds_are_told(model: ModelActivities) -> None:
    reply = await run(model, request(scripted(ScriptedReply(reply="x", delay_seconds=0.05)), GOAL), attempt=3)
    assert reply.attempt == 3
    assert reply.seconds >= 0.05


@pytest.mark.parametrize("what", ["setup", "transcript"])
async def test_what_the_cache_lacks_is_asked_for_and_sending_all_helps(
    model: ModelActivities, store: BlobStore, what: str
) -> None:
    setup = scripted("one", "two")
    first = await run(model, request(setup, GOAL))
    store.close()
    store.path.unlink()
    fresh = ModelActivities(model.providers, TranscriptCache(store))
    asked = request(setup, GOAL, base=first.transcript, known=what == "setup")
    error = await failure(fresh, asked)
    assert (error.type, error.non_retryable) == (TRANSCRIPT_MISSING, True)
    reply = await run(fresh, request(setup, GOAL, first.message, GOAL))
    assert reply.text == "two"
    assert reply.transcript == Transcript([GOAL, first.message, GOAL, reply.message]).digest
    again = request(scripted("one", "two", "three"), GOAL, base=reply.transcript)
    assert (await run(fresh, again)).text == "three"


async def test_a_cache_that_cannot_be_used_costs_neither_request_nor_reply(
    tmp_path: Path, model: ModelActivities
) -> None:
    (tmp_path / "file").write_text("")
    store = BlobStore(tmp_path / "file" / "cache.db", durable=False)
    broken = ModelActivities(model.providers, TranscriptCache(store))
    with capture_logs() as logs:
        reply = await run(broken, request(scripted("one"), GOAL))
    assert reply.text == "one"
    assert [log["event"] for log in logs] == ["model.setup_not_kept", "model.reply_not_kept", "model.replied"]
    assert (await failure(broken, request(scripted("one"), GOAL, base="f" * 32))).type == TRANSCRIPT_MISSING


@pytest.mark.parametrize(
    ("name", "kind", "retried", "cause", "delay"),
    [
        ("status:429@7", TRANSIENT, True, "HTTP429", 7),
        ("status:429@ms250", TRANSIENT, True, "HTTP429", 0.25),
        ("status:429@0", TRANSIENT, True, "HTTP429", None),
        ("status:500", TRANSIENT, True, "HTTP500", None),
        ("context", RECOVERABLE, False, "context_too_long", None),
        ("status:401", FATAL, False, "HTTP401", None),
        ("quota", FATAL, False, "insufficient_quota", None),
    ],
)
async def test_failures_carry_class_cause_and_the_servers_delay(
    model: ModelActivities, name: str, kind: str, retried: bool, cause: str, delay: float | None
) -> None:
    error = await failure(model, request(Setup(model=ModelSpec(name=name)), GOAL))
    assert (error.type, error.non_retryable) == (kind, not retried)
    assert error.details[0] == {"type": cause, "message": error.message}
    assert error.next_retry_delay == (None if delay is None else timedelta(seconds=delay))


async def test_an_unknown_provider_is_answered_with_those_there_are(model: ModelActivities) -> None:
    error = await failure(model, request(Setup(model=ModelSpec(provider="gemini")), GOAL))
    assert error.type == FATAL
    assert "no model provider 'gemini'; it has: openai, scripted" in error.message


async def test_a_call_ends_at_its_timeout(model: ModelActivities) -> None:
    slow = ScriptedReply(reply="x", delay_seconds=60)
    spec = ModelSpec(provider="scripted", script=(slow,), timeout_seconds=0.1)
    error = await failure(model, request(Setup(model=spec), GOAL))
    assert error.type == TRANSIENT
    assert error.details[0]["type"] == "timeout"
    assert "raise timeout_seconds" in error.message


async def test_heartbeats_carry_the_end_of_the_text_so_far(model: ModelActivities) -> None:
    environment, beats = ActivityEnvironment(), []
    environment.on_heartbeat = lambda *details: beats.append(details)
    text = "ä" * 3000 + "end"
    slow = ScriptedReply(reply=text, delay_seconds=0.5)
    await environment.run(model.call_model, request(scripted(slow), GOAL))
    tails = [details[0] for details in beats]
    assert tails[0] == ""
    assert 0 < len(tails[-1].encode()) <= TAIL_BYTES
    assert all(len(tail.encode()) <= TAIL_BYTES and "\ufffd" not in tail for tail in tails)
    assert len(set(tails)) > 1


@pytest.mark.parametrize("name", ["stall", "slow:0.1"])
async def test_cancelling_the_activity_stops_the_http_call(
    model: ModelActivities, server: FakeOpenAI, name: str
) -> None:
    environment = ActivityEnvironment()
    asked = request(Setup(model=ModelSpec(name=name)), GOAL)
    task = asyncio.create_task(environment.run(model.call_model, asked))
    assert await asyncio.to_thread(server.came.wait, 10)
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    assert await asyncio.to_thread(server.gone.wait, 10)


async def test_the_log_tells_model_tokens_seconds_and_cost_but_no_text(model: ModelActivities) -> None:
    with capture_logs() as logs:
        await run(model, request(scripted("the secret reply"), GOAL))
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("model.replied", "info")
    assert set(line) >= {"model", "input_tokens", "output_tokens", "seconds", "cost_usd"}
    assert "secret" not in json.dumps(line)


@pytest.mark.parametrize("status", [400, 401, 403, 500])
async def test_no_key_in_errors_or_logs_of_a_server_that_repeats_it(
    model: ModelActivities, status: int
) -> None:
    with capture_logs() as logs:
        error = await failure(model, request(Setup(model=ModelSpec(name=f"leak:{status}")), GOAL))
    everything = f"{error!r} {error.message} {error.details} {logs}"
    assert not any(KEY[i : i + 8] in everything for i in range(len(KEY) - 7))
