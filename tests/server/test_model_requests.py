"""What a model's provider is sent, what of it a run counts, and the limit on it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from temporalio.client import Client

from activities.contracts import ModelSpec
from activities.settings import Settings
from client.server.connection import open_client
from tests.fake_openai import FakeOpenAI
from tests.server.trials import Run, begin, command, eventually, task
from worker import build_worker
from workflows.api import AgentTask, Limits

SCHEMA = {"reply_format": "json_schema"}
MARK = 'tool:mark:{"line": "LINE"}'
"""The model calls a tool."""
BUSY = "status:503@ms10"


@pytest.fixture(scope="module")
def running() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as server:
        yield server


@pytest.fixture(scope="module")
async def queue(temporal: Client, settings: Settings, running: FakeOpenAI) -> AsyncIterator[str]:
    """The task queue of a worker that may ask the server."""
    name, allowed = uuid.uuid4().hex, settings.model_copy(update={"base_urls": (running.base_url,)})
    client = await open_client(allowed, {"target_host": temporal.service_client.config.target_host})
    async with build_worker(client, allowed, name):
        yield name


@pytest.fixture
def server(running: FakeOpenAI) -> FakeOpenAI:
    """It has had no request yet."""
    running.reset()
    return running


def asking(server: FakeOpenAI, model: str, **more: Any) -> AgentTask:
    """A run whose model behaves as its name says."""
    name = model.replace("LINE", uuid.uuid4().hex)
    return task(models={"default": ModelSpec(name=name, base_url=server.base_url)}, **more)


@pytest.mark.parametrize(
    ("model", "more"),
    [
        pytest.param("say:no JSON", {"machine": "react", "options": SCHEMA}, id="ignores the format"),
        pytest.param(BUSY, {}, id="is busy"),
        pytest.param("refuses:temperature", {"machine": "react", "options": SCHEMA}, id="refuses a field"),
        pytest.param(f"{MARK}+{BUSY}", {"fuse": "auto"}, id="is busy behind a call"),
    ],
)
async def test_limit_of_two_lets_two_requests_through(
    temporal: Client, queue: str, server: FakeOpenAI, model: str, more: dict[str, Any]
) -> None:
    given = asking(server, model, limits=Limits(model_calls=2), **more)
    result = await (await begin(temporal, given, task_queue=queue)).result()
    assert (result.exit_reason, result.counters["model_calls"]) == ("limit", 2)
    assert len(server.completion_requests) == 2


@pytest.mark.parametrize("model", [f"{BUSY}+{BUSY}+say:done", f"{MARK}+{BUSY}+say:done"])
async def test_every_attempt_counts_and_the_run_goes_on(
    temporal: Client, queue: str, server: FakeOpenAI, model: str
) -> None:
    run = await begin(temporal, asking(server, model, fuse="auto"), task_queue=queue)
    result = await run.result()
    assert (result.answer, result.counters["model_calls"]) == ("done", 3)
    assert len(server.completion_requests) == 3


@pytest.mark.parametrize("how", ["steer", "pause", "cancel"])
@pytest.mark.parametrize(
    ("model", "more"),
    [
        pytest.param(f"{MARK}+stall+say:done", {"fuse": "auto"}, id="behind a call"),
        pytest.param(
            "say:LINE is no JSON+stall+say:FINAL ANSWER", {"machine": "react", "options": SCHEMA}, id="alone"
        ),
    ],
)
async def test_question_that_is_stopped_counts(
    temporal: Client, queue: str, server: FakeOpenAI, model: str, more: dict[str, Any], how: str
) -> None:
    async def came() -> bool:
        return len(server.completion_requests) == 2

    run: Run = await begin(temporal, asking(server, model, **more), task_queue=queue)
    await eventually(came)
    match how:
        case "steer":
            await command(run, "steer", text="be quick")
        case "pause":
            await command(run, "pause", at_once=True)
            await command(run, "resume")
        case "cancel":
            await run.cancel()
    result = await run.result()
    assert result.exit_reason == "cancelled" if how == "cancel" else len(server.completion_requests) > 2
    assert result.counters["model_calls"] == len(server.completion_requests)
