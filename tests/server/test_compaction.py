"""Compaction with real activities: conversations travel by reference, and executions follow each other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.contracts import Message, ModelSpec
from activities.settings import Settings
from activities.store.archive import Archive
from client.history.fork import ForkChanges
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.server.conftest import TOOLS, real_server
from tests.server.test_same_log import comparable
from tests.server.trials import Run, begin, command, replayed, task, until
from worker import build_worker
from workflows.api import AgentTask, PageQuery, RunResult, TranscriptPage
from workflows.kernel.log import Record
from workflows.people import People

LINES = 32


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a worker that has the provider."""
    home = tmp_path_factory.mktemp("windows")
    modules = (str(TOOLS), str(Path(__file__).with_name("window_provider.py")))
    return Settings(data_dir=home / ".ratchet", files_root=home, modules=modules, shutdown_seconds=1)


@pytest.fixture(scope="module")
async def short(own: Settings) -> AsyncIterator[Client]:
    """A server that wants short histories, and a worker."""
    flag = "limit.historyCount.suggestContinueAsNew=120"
    async with real_server(own, flag) as client, build_worker(client, own):
        yield client


def task_with_window(window: int | None, **more: Any) -> AgentTask:
    """A run that marks its lines."""
    model = ModelSpec(provider="window", name="window", window_tokens=window, seed=LINES)
    given = {"models": {"default": model}, "options": {"max_iterations": 100}, "people": People(), **more}
    return task(tools=("mark",), **given)


def log(own: Settings, run: Run) -> list[Record]:
    """The archived log, whole."""
    return [Record.model_validate(one) for one in Archive(own.archive_file).records(run.id)]


async def messages(run: Run) -> list[Message]:
    """The transcript."""
    found: list[Message] = []
    while True:
        query = PageQuery(since=len(found), full=True)
        page: TranscriptPage = await run.query("transcript", query, result_type=TranscriptPage)
        found += page.messages
        if page.next >= page.total:
            return found


async def executions(client: Client, run: Run) -> list[Run]:
    """All of the chain."""
    found = [one.run_id async for one in client.list_workflows(f"WorkflowId='{run.id}'")]
    return [client.get_workflow_handle(run.id, run_id=one) for one in found]


async def ended(client: Client, run: Run) -> RunResult:
    """The result of the newest execution."""
    handle: Run = client.get_workflow_handle(run.id, result_type=RunResult)
    return await handle.result()


async def test_run_outgrows_its_window_over_several_executions(short: Client, own: Settings) -> None:
    # fused, the message may cost one more reply
    begun = await begin(short, task_with_window(3000, fuse="off"))
    run: Run = short.get_workflow_handle(begun.id)
    await until(run, lambda status: status.step >= 5)
    await command(run, "steer", text="Keep to the left.")
    result = await ended(short, run)
    assert result.exit_reason == "stop", result.error
    assert "- Keep to the left." in (result.answer or "")
    summaries = sum(record.event == "Compacted" for record in log(own, run))
    assert summaries > 2
    begun_again = result.counters["model_calls"] - (LINES + 1 + summaries)
    assert begun_again in (0, 1)  # the message may preempt a question
    assert result.counters["cost_usd"] == summaries * 0.5
    assert sum(message.role == "tool" for message in await messages(run)) == LINES
    chain = await executions(short, run)
    assert len(chain) > 1
    for one in chain:
        await replayed(one, own)


async def test_without_a_window_the_provider_is_sent_everything(short: Client) -> None:
    result = await ended(short, await begin(short, task_with_window(None)))
    assert (result.exit_reason, result.answer) == ("stop", "all")
    assert result.counters["model_calls"] == LINES + 1


@pytest.mark.exhaustive  # tests/server/test_fused_steps.py compares the logs of a run without compaction
async def test_log_is_the_same_where_the_tool_asks_the_model(short: Client, own: Settings) -> None:
    logs, asked = [], []
    for fuse in ("off", "auto"):
        run = await begin(short, task_with_window(3000, fuse=fuse))
        await ended(short, run)
        titles = await activities(short, run, "ask_model")
        asked.append(len(titles))
        summaries = [title for title in titles if title.startswith("summarise messages 3 to ")]
        records = log(own, run)
        assert len(summaries) == sum(record.event == "Compacted" for record in records) > 2
        logs.append(comparable(records))
    assert logs[0] == logs[1]
    assert asked[1] < asked[0] / 3


@pytest.mark.exhaustive
async def test_fork_with_a_smaller_window_ends_well(short: Client, own: Settings) -> None:
    react: dict[str, Any] = {"machine": "react", "options": {"max_steps": 60, "rules": [], "cost_limit": 100}}
    source = await begin(short, task_with_window(None, **react))
    whole = await ended(short, source)
    assert whole.exit_reason == "goal_achieved", whole.error
    agents = AgentClient(Connection(short, own, "the test server"))
    small = task_with_window(3000).models
    run: Run = short.get_workflow_handle(await agents.fork(source.id, LINES - 5, ForkChanges(models=small)))
    result = await ended(short, run)
    assert (result.exit_reason, result.answer) == ("goal_achieved", "all"), result.error
    assert sum(record.event == "Compacted" for record in log(own, run)) > 2


async def activities(client: Client, run: Run, name: str) -> list[str]:
    """Titles of the activities of this type."""
    return [
        json.loads(event.user_metadata.summary.data)
        for one in await executions(client, run)
        for event in (await one.fetch_history()).events
        if event.activity_task_scheduled_event_attributes.activity_type.name == name
    ]
