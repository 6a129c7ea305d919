"""Results are in Temporal's history, however long they are, so that programs without our store read them."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter

from activities.settings import Settings
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests import forked
from tests.server.trials import Run, begin, command, scripted, task, until
from worker import build_worker
from workflows.api import AgentTask, OnEnd

LONG = "an answer, äöü 漢. " * 10_000
GOAL = "what is to be done " * 4000
TASKS: dict[str, AgentTask] = {
    "long answer": task(LONG),
    "long goal": task(
        json.dumps({"goal": GOAL, "required_capabilities": [], "initial_steps": []}), "short", "short",
        machine="planner", goal=GOAL,
    ),
    "long error": task(machine="planner", goal=GOAL, models={"default": scripted("no plan " * 30_000)}),
}  # fmt: skip


async def on_the_wire(run: Run) -> list[Any]:
    """The payloads of the event that ended the run."""
    last = (await run.fetch_history()).events[-1]
    if last.HasField("workflow_execution_failed_event_attributes"):
        failure = last.workflow_execution_failed_event_attributes.failure
        return list(failure.application_failure_info.details.payloads)
    return list(last.workflow_execution_completed_event_attributes.result.payloads)


@pytest.mark.parametrize(
    "name",
    [
        "long answer",
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("long goal", "long error")),
    ],
)
async def test_result_is_in_history_and_the_whole_in_pages(
    name: str, working: Client, settings: Settings, tmp_path: Path
) -> None:
    run = await begin(working, TASKS[name])
    whole = await AgentClient(Connection(working, settings, "the test server")).result(run.id)
    (payload,) = await on_the_wire(run)
    shown = json.loads(payload.data)
    assert (dict(payload.metadata), len(payload.data) < 100_000) == ({"encoding": b"json/plain"}, True)
    assert (shown["ok"], shown["exit_reason"]) == (whole.ok, whole.exit_reason)
    assert "query `result`" in shown["cut"]
    assert json.dumps(shown).count(GOAL) <= 1

    # a client with Temporal's own converter, and one of ours that cannot read the workers' archive
    stranger = Client(
        working.service_client, namespace=working.namespace, data_converter=pydantic_data_converter
    )
    text, total = "", 1
    while len(text) < total:
        page = await stranger.get_workflow_handle(run.id).query("result", {"since": len(text)})
        text, total = text + page["text"], page["total"]
    assert json.loads(text) == whole.model_dump(mode="json")
    elsewhere = settings.model_copy(update={"data_dir": tmp_path})
    assert await AgentClient(Connection(working, elsewhere, "the test server")).result(run.id) == whole
    if name == "long answer":
        assert whole.answer == LONG
        assert str(whole.answer).startswith(shown["answer"].partition(" [... ")[0])
    if name == "long goal":
        assert (whole.answer, shown["answer"]) == ("short", "short")


async def test_cut_result_is_given_where_whole_is_out_of_reach(
    temporal: Client, settings: Settings, tmp_path: Path
) -> None:
    """No worker runs any more, and the archive is elsewhere: the command line says where the whole is."""
    queue = "no worker any more"
    async with build_worker(temporal, settings, queue):
        run = await begin(temporal, TASKS["long answer"], task_queue=queue)
        await run.result()
    elsewhere = settings.model_copy(update={"data_dir": tmp_path})
    result = await AgentClient(Connection(temporal, elsewhere, "the test server")).result(run.id)
    assert (result.ok, result.exit_reason, "query `result`" in result.cut) == (True, "stop", True)
    assert str(result.answer).startswith(LONG[:1000])
    address = temporal.service_client.config.target_host
    words = ["result", run.id, "--data-dir", str(tmp_path), "--address", address]
    for more, shown in (([], "an answer, "), (["--json"], "{")):
        code, out, err = await spoken(*words, *more)
        assert (code, out.startswith(shown)) == (0, True)
        assert "answer: cut here" in err
        assert err.endswith(". The workers' directory, named with --data-dir, may have the whole.\n")


async def spoken(*words: str) -> tuple[int, str, str]:
    """Exit code and output of a command."""
    return await asyncio.to_thread(forked.spoken, forked.RATCHET, *words, env=os.environ)


async def test_result_of_a_cancelled_workflow_is_in_its_memo(working: Client) -> None:
    slow = {"default": scripted("done", delay_seconds=30)}
    run = await begin(working, task(models=slow, on_end=OnEnd(cancelled="cancel_workflow")))
    await until(run, lambda status: bool(status.doing))
    for _ in range(8):
        await command(run, "steer", text="note this: " * 1500)
    await run.cancel()
    with pytest.raises(WorkflowFailureError):
        await run.result()
    payload = (await run.describe()).raw_info.memo.fields["result"]
    assert dict(payload.metadata) == {"encoding": b"json/plain"}
    assert "unheard: cut here" in json.loads(payload.data)["cut"]
