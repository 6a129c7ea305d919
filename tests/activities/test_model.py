"""The activity `ask_model`: cache, reply, ids, failures, time, heartbeats, cancellation, logs."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.contracts import (
    CONVERSATION_MISSING,
    FATAL,
    RECOVERABLE,
    TRANSIENT,
    Conversation,
    Message,
    ModelInput,
    ModelReplied,
    ModelSpec,
    NativeCall,
    Price,
    ScriptedReply,
    Setup,
    Usage,
)
from activities.model import ModelActivities
from activities.provider import MAX_CALL_BYTES, MAX_CALLS, MAX_TEXT_BYTES, ModelCall, RequestCount
from activities.providers.openai import OpenAIProvider
from activities.providers.scripted import ScriptedProvider
from activities.store.cache import ConversationCache
from tests.fake_openai import FakeOpenAI

GOAL = Message(role="user", content="the secret goal")


class Fixed:
    """A provider whose every reply is the same."""

    name = "fixed"
    description = "says one thing"

    def __init__(self, reply: ModelReplied) -> None:
        self.reply = reply

    async def complete(self, call: ModelCall) -> ModelReplied:
        return self.reply


@pytest.fixture
def cache(tmp_path: Path) -> ConversationCache:
    return ConversationCache(tmp_path / "cache.db")


@pytest.fixture
def model(cache: ConversationCache, provider: OpenAIProvider) -> ModelActivities:
    """The activities of a worker with both shipped providers."""
    providers = {one.name: one for one in (ScriptedProvider(), provider)}
    models = ModelActivities(providers, cache)
    models.heartbeat_seconds = 0.02
    return models


def scripted(*replies: Any) -> Setup:
    script = tuple(r if isinstance(r, ScriptedReply) else ScriptedReply(reply=r) for r in replies)
    return Setup(model=ModelSpec(provider="scripted", script=script))


def request(
    setup: Setup, *messages: Message, base: str | None = None, known: bool = False, **more: Any
) -> ModelInput:
    full = None if known else setup
    return ModelInput(
        role="default", setup=setup.digest, full_setup=full, base=base, messages=messages, **more
    )


def environment(**info: Any) -> ActivityEnvironment:
    """An activity without limits of time, unless `info` names them."""
    made, unlimited = ActivityEnvironment(), {"schedule_to_close_timeout": None}
    made.info = dataclasses.replace(ActivityEnvironment.default_info(), **{**unlimited, **info})
    return made


async def run(model: ModelActivities, wanted: ModelInput, **info: Any) -> ModelReplied:
    return await asyncio.wait_for(environment(**info).run(model.ask_model, wanted), 20)


async def failure(model: ModelActivities, wanted: ModelInput, **info: Any) -> ApplicationError:
    with pytest.raises(ApplicationError) as caught:
        await run(model, wanted, **info)
    assert caught.value.__cause__ is None
    return caught.value


# -- the conversation ----------------------------------------------------------------------------------


async def test_only_new_messages_travel(model: ModelActivities, cache: ConversationCache) -> None:
    setup = scripted("one", "two", "three")
    conversation, base = Conversation(), None
    for text in ("one", "two", "three"):
        reply = await run(model, request(setup, GOAL, base=base, known=base is not None))
        conversation = conversation.add(GOAL, reply.message)
        assert (reply.text, reply.conversation) == (text, conversation.digest)
        base = reply.conversation
    assert base is not None
    assert cache.load(base) == conversation


async def test_skipped_messages_stay_in_the_conversation(
    model: ModelActivities, cache: ConversationCache, server: FakeOpenAI
) -> None:
    messages = [Message(role="user", content=str(n)) for n in range(5)]
    reply = await run(model, request(Setup(model=ModelSpec(name="echo")), *messages, skip=(1, 4)))
    sent = server.completion_requests[0].body["messages"]
    assert [message["content"] for message in sent] == ["0", "[3 earlier messages are left out here]", "4"]
    whole = Conversation([*messages, reply.message])
    assert reply.conversation == whole.digest
    assert cache.load(whole.digest) == whole


@pytest.mark.parametrize("what", ["setup", "conversation"])
async def test_missing_part_is_requested_and_sent_whole(
    model: ModelActivities, tmp_path: Path, what: str
) -> None:
    setup = scripted("one", "two", "three")
    first = await run(model, request(setup, GOAL))
    fresh = ModelActivities(model.providers, ConversationCache(tmp_path / "other.db"))
    error = await failure(fresh, request(setup, GOAL, base=first.conversation, known=what == "setup"))
    assert (error.type, error.non_retryable) == (CONVERSATION_MISSING, True)
    reply = await run(fresh, request(setup, GOAL, first.message, GOAL))
    assert reply.text == "two"
    assert reply.conversation == Conversation([GOAL, first.message, GOAL, reply.message]).digest
    assert (await run(fresh, request(setup, GOAL, base=reply.conversation, known=True))).text == "three"


# -- the reply -----------------------------------------------------------------------------------------


def call(id: str, name: str = "f") -> NativeCall:
    return NativeCall(id=id, name=name, arguments="{}")


@pytest.mark.parametrize(("before", "came", "ids"), [
    ([], ["a", "b"], ["a", "b"]),
    ([], ["a", "a", "a"], ["a", "call_1", "call_2"]),
    ([], ["", ""], ["call_0", "call_1"]),
    (["a", "b"], ["b", "c"], ["call_0", "c"]),
])  # fmt: skip
async def test_tool_call_ids_are_unique_in_the_conversation(
    cache: ConversationCache, before: list[str], came: list[str], ids: list[str]
) -> None:
    old = [Message(role="assistant", content="", tool_calls=tuple(map(call, before))), GOAL] if before else []
    fixed = Fixed(ModelReplied(text="", tool_calls=tuple(map(call, came))))
    setup = Setup(model=ModelSpec(provider="fixed"))
    reply = await run(ModelActivities({"fixed": fixed}, cache), request(setup, GOAL, *old))
    made = {one.id for one in reply.tool_calls} - set(came)
    shown = [re.sub("_[0-9a-f]{10}_", "_", one.id) for one in reply.tool_calls]
    assert (shown, len(made)) == (ids, sum("call" in id for id in ids))
    assert cache.load(reply.conversation) == Conversation([GOAL, *old, reply.message])


async def test_half_a_character_pair_is_replaced(cache: ConversationCache) -> None:
    halves = ModelReplied(
        text="a\ud83d b\ud83d\ude00",
        tool_calls=(call("\ud83d", "f\ud83d"),),
        kept='"\ud83d"',
        model="m\ud83d",
    )
    setup = Setup(model=ModelSpec(provider="fixed"))
    reply = await run(ModelActivities({"fixed": Fixed(halves)}, cache), request(setup, GOAL))
    assert (reply.text, reply.kept) == ("a\ufffd b\U0001f600", '"\ufffd"')
    restored = ModelReplied.model_validate_json(reply.model_dump_json())
    assert Conversation([GOAL, restored.message]).digest == reply.conversation


@pytest.mark.parametrize("reply", [
    ModelReplied(text="ä" * (MAX_TEXT_BYTES // 2 + 1)),
    ModelReplied(text="", tool_calls=(NativeCall(id="a", name="f", arguments="x" * MAX_CALL_BYTES),)),
    ModelReplied(text="", tool_calls=(NativeCall(id="a" * MAX_CALL_BYTES, name="f"),)),
    ModelReplied(text="", tool_calls=(NativeCall(id="a", name="f"),) * (MAX_CALLS + 1)),
], ids=["text", "arguments", "id", "calls"])  # fmt: skip
async def test_too_large_reply_of_any_provider_is_recoverable(
    cache: ConversationCache, reply: ModelReplied
) -> None:
    setup = Setup(model=ModelSpec(provider="fixed"))
    error = await failure(ModelActivities({"fixed": Fixed(reply)}, cache), request(setup, GOAL))
    assert (error.type, error.details[0]["type"]) == (RECOVERABLE, "reply_too_large")


async def test_reply_has_attempt_and_seconds(model: ModelActivities) -> None:
    slow = ScriptedReply(reply="x", delay_seconds=0.05)
    reply = await run(model, request(scripted(slow), GOAL), attempt=3)
    assert reply.attempt == 3
    assert reply.seconds >= 0.05


# -- failures and time ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "retried", "cause", "delay"),
    [
        ("status:429@7", TRANSIENT, True, "HTTP429", 7),
        ("status:429@ms250", TRANSIENT, True, "HTTP429", 0.25),
        ("status:429@0", TRANSIENT, True, "HTTP429", 1),
        ("status:500", TRANSIENT, True, "HTTP500", 1),
        ("cut", TRANSIENT, True, "stream_cut", 1),
        ("context", RECOVERABLE, False, "context_too_long", None),
        ("status:401", FATAL, False, "HTTP401", None),
        ("quota", FATAL, False, "insufficient_quota", None),
    ],
)
async def test_failure_has_class_cause_and_delay(
    model: ModelActivities, name: str, kind: str, retried: bool, cause: str, delay: float | None
) -> None:
    error = await failure(model, request(Setup(model=ModelSpec(name=name)), GOAL))
    assert (error.type, error.non_retryable) == (kind, not retried)
    assert error.details[0] == {"type": cause, "message": error.message}
    assert error.next_retry_delay == (None if delay is None else timedelta(seconds=delay))


async def test_provider_without_counts_gets_estimate_and_the_tasks_price(
    cache: ConversationCache,
) -> None:
    own = ModelActivities({"fixed": Fixed(ModelReplied(text="yes yes!"))}, cache)
    price = Price(input_per_million=1e6, output_per_million=1e6)
    wanted = Setup(model=ModelSpec(provider="fixed", name="m", price=price))
    reply = await run(own, request(wanted, GOAL))
    assert reply.usage == Usage(input_tokens=4, output_tokens=2)
    assert reply.cost_usd == 6


async def test_last_attempt_is_not_retried(model: ModelActivities) -> None:
    """Attempts count that failed: not those that were lost with their worker, or whose heartbeat was late."""
    wanted = request(Setup(model=ModelSpec(name="status:500")), GOAL, attempts=3)
    for failures in (0, 1):
        error = await failure(model, wanted, attempt=9, heartbeat_details=("", 0, 0, failures))
        assert (error.non_retryable, error.next_retry_delay) == (False, timedelta(seconds=1 + failures))
    assert (await failure(model, wanted, attempt=9, heartbeat_details=("", 0, 0, 2))).non_retryable


async def test_unknown_provider_error_lists_the_available(model: ModelActivities) -> None:
    error = await failure(model, request(Setup(model=ModelSpec(provider="gemini")), GOAL))
    assert error.type == FATAL
    assert all(name in error.message for name in ("gemini", "openai", "scripted"))


SLOW = ScriptedReply(reply="x", delay_seconds=60)


async def test_models_own_timeout_is_retried(model: ModelActivities) -> None:
    setup = Setup(model=ModelSpec(provider="scripted", script=(SLOW,), timeout_seconds=0.1))
    error = await failure(model, request(setup, GOAL))
    assert (error.type, error.details[0]["type"], error.non_retryable) == (TRANSIENT, "timeout", False)
    assert "timeout_seconds" in error.message


async def test_end_of_the_runs_time_is_its_own_cause(model: ModelActivities) -> None:
    scheduled = ActivityEnvironment.default_info().scheduled_time
    error = await failure(
        model,
        request(scripted(SLOW), GOAL),
        schedule_to_close_timeout=timedelta(seconds=10),
        started_time=scheduled + timedelta(seconds=9.8),
    )
    assert (error.details[0]["type"], error.non_retryable) == ("deadline", True)


async def test_wait_beyond_the_runs_time_is_named(model: ModelActivities) -> None:
    """It would be the run's end: a fallback, or a person, is asked at once."""
    wanted = request(Setup(model=ModelSpec(name="status:429@3600")), GOAL)
    error = await failure(model, wanted, schedule_to_close_timeout=timedelta(seconds=90))
    assert (error.details[0]["type"], error.non_retryable) == ("HTTP429", True)
    both = r"the server asked to wait 3600 s, and the run's limit of seconds leaves \d+ s"
    assert re.search(both, error.message)


@pytest.mark.parametrize(("failing", "asked"), [("status:503", 1), ("context", 2)])
async def test_no_model_is_asked_behind_a_call_while_provider_fails(
    model: ModelActivities, server: FakeOpenAI, failing: str, asked: int
) -> None:
    wanted = request(Setup(model=ModelSpec(name=f"{failing}+{failing}+echo")), GOAL)

    async def behind_call() -> ModelReplied | None:
        return await environment().run(model.ask_after_call, wanted, time.monotonic(), RequestCount())

    assert [await behind_call(), await behind_call()] == [None, None]
    assert len(server.completion_requests) == asked


# -- while it runs -------------------------------------------------------------------------------------


async def beats_of(model: ModelActivities, entry: ScriptedReply) -> list[Any]:
    made, beats = environment(), list[Any]()
    made.on_heartbeat = beats.append
    await made.run(model.ask_model, request(scripted(entry), GOAL))
    return beats


async def test_heartbeats_carry_the_end_of_the_text(model: ModelActivities) -> None:
    tails = await beats_of(model, ScriptedReply(reply="ä" * 3000 + "end", delay_seconds=0.5))
    assert all(len(tail.encode()) <= 2048 and "\ufffd" not in tail for tail in tails)
    assert len(set(tails)) > 1
    assert tails[-1].startswith("ä")
