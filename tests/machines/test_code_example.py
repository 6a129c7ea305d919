"""The example `promise_keeper`: real blocks in the real sandbox; a changed text changes the answer."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.testing import ActivityEnvironment

from activities.code import CodeActivities
from activities.context import keep_context
from activities.contracts import (
    CallModel,
    CallModels,
    ContextRef,
    ModelReplied,
    ModelSpec,
    ModelsReplied,
    Setup,
)
from activities.contracts_code import RunCode
from activities.provider import ProviderCall
from activities.providers.scripted import ScriptedProvider
from activities.store import BlobStore
from client.choose import Choice
from examples.make_chats import CHATS, KINDS, Chat, chats, main
from workflows.kernel.design import Brief, Parts
from workflows.kernel.machine import Exit
from workflows.kernel.step import advance, start
from workflows.registry import design

AGENT = Path(__file__).resolve().parents[2] / "examples/agents/promise_keeper.yaml"


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[BlobStore]:
    """A store for the text and the sessions."""
    opened = BlobStore(tmp_path / "blobs.db", durable=True)
    yield opened
    opened.close()


def _at_once(model: ModelSpec) -> Setup:
    script = tuple(entry.model_copy(update={"delay_seconds": 0}) for entry in model.script)
    return Setup(model=model.model_copy(update={"script": script}))


async def kept(text: str, store: BlobStore) -> Exit:
    """Run the example on a text: the workflow's loop, with the real sandbox."""
    agent, _ = Choice(agent=str(AGENT)).finish()
    made = design(agent.machine)
    knobs = made.options.model_validate(agent.options)
    models, provider = {role: _at_once(spec) for role, spec in agent.models.items()}, ScriptedProvider()

    async def reply(ask: CallModel) -> ModelReplied:
        return await provider.complete(models[ask.role], ask.transcript, ProviderCall())

    code, world = CodeActivities(store), ActivityEnvironment()
    material: str | ContextRef = await keep_context(text, store) if len(text) > 100_000 else text
    brief = Brief("Which promises were not kept?", "trace", agent.instructions, context=material)
    machine = made.build(knobs, Parts())
    step = start(machine, made.begin(brief, knobs), now=0)
    try:
        for now in itertools.count(1):
            match step.effect:
                case CallModel() as ask:
                    step = advance(machine, step, await reply(ask), now=now)
                case CallModels() as many:
                    replies = tuple([await reply(ask) for ask in many.calls])
                    step = advance(machine, step, ModelsReplied(replies=replies), now=now)
                case RunCode() as block:
                    stepped = await world.run(code.run_code, block)
                    step = advance(machine, step, stepped, now=now)
                case _:
                    break
    finally:
        await code.close()
    assert step.exit is not None
    return step.exit


def written(told: list[Chat]) -> str:
    """The conversations as the file has them."""
    return "".join(f"{chat}\n" for chat in told)


def complaints(told: list[Chat]) -> list[Chat]:
    """The first conversations of orders whose promise was not kept."""
    return [chat for chat in told if chat.kept is False]


def test_the_chats_are_what_their_program_writes(tmp_path: Path) -> None:
    target = tmp_path / "chats.txt"
    main([str(target)])
    assert target.read_bytes() == CHATS.read_bytes()
    assert len(CHATS.read_bytes()) > 300_000


async def test_the_example_finds_every_promise_that_was_not_kept_and_who_made_it(store: BlobStore) -> None:
    """What it must answer is worked out from how the chats were made."""
    told = chats()
    broken, promised = complaints(told), [chat for chat in told if chat.kept is not None]
    ended = await kept(CHATS.read_text(encoding="utf-8"), store)
    assert (ended.reason, ended.ok) == ("stop", True)
    answer = str(ended.answer)
    assert answer.startswith(f"{len(broken)} of {len(promised)} promises were not kept;")
    by, of = Counter(chat.agent for chat in broken), Counter(chat.agent for chat in promised)
    for who, count in by.items():
        assert f"\n{who}: {count} of {of[who]}." in answer
    for chat in broken:
        assert f"\n- {chat.at:%Y-%m-%d} {chat.agent}, order {chat.order}: " in answer
    assert len(re.findall("^- ", answer, re.MULTILINE)) == len(broken)


async def test_a_promise_that_is_kept_after_all_changes_the_answer(store: BlobStore) -> None:
    told = chats()
    first = complaints(told)[0]
    thanks = f"customer: {KINDS[0].kept.format(product='rug')}"
    told.append(Chat(told[-1].at, first.order, "Mira", (thanks,)))
    ended = await kept(written(told), store)
    assert str(ended.answer).startswith(f"{len(complaints(told)) - 1} of ")
    assert f"order {first.order}:" not in str(ended.answer)


@pytest.mark.parametrize("count", [60, 150])
async def test_a_short_text_is_read_too(store: BlobStore, count: int) -> None:
    told = chats()[:count]
    ended = await kept(written(told), store)
    assert re.match(r"\d+ of \d+ promises", str(ended.answer))


async def test_a_text_without_promises_is_said_to_have_none(store: BlobStore) -> None:
    told = [chat for chat in chats() if chat.kept is None][:20]
    ended = await kept(written(told), store)
    assert ended.answer == "No line of the team holds a promise, so none was broken."
