"""A worker that keeps no run in memory: each task begins anew from the history, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from temporalio.client import WorkflowHandle
from temporalio.worker import Worker

from activities.settings import Settings
from tests.conftest import real_server
from tests.workflows.trials import act, begin, final, task
from workflows.api import TASK_QUEUE, AgentStatus, PageQuery
from workflows.people import Approvals, Command, CommandDone, Decided, Decision, People, RequestsPage


async def waiting(handle: WorkflowHandle[Any, Any], kind: str) -> RequestsPage:
    """Until the run waits so."""
    while (await handle.query("status", result_type=AgentStatus)).waiting != kind:  # noqa: ASYNC110  # another process
        await asyncio.sleep(0.02)
    page: RequestsPage = await handle.query("requests", PageQuery(full=True), result_type=RequestsPage)
    return page


async def test_a_run_that_is_never_kept_in_memory_takes_every_message(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    replies = [act("mark", line="a", seconds=20), act("mark", line="b"), final("done")]
    given = task(*replies, tools=("mark",), people=People(), approvals=Approvals(tools={"mark": "always"}))
    async with (
        real_server(settings) as client,
        Worker(client, task_queue=TASK_QUEUE, max_cached_workflows=0),
    ):
        handle = await begin(client, given)
        (asked,) = (await waiting(handle, "approval")).open
        edited = {"line": "c", "seconds": 20}
        decision = Decision(
            request=asked.id, digest=asked.digest, decision="edit", arguments=edited, by="ann"
        )
        await handle.execute_update("decide", decision, result_type=Decided)
        while (await handle.query("status", result_type=AgentStatus)).waiting:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.02)
        await handle.signal("command", {"command": "pause", "at_once": True})
        await waiting(handle, "paused")
        done: CommandDone = await handle.execute_update(
            "command", Command(command="rollback", step=1, by="ann"), result_type=CommandDone
        )
        assert (done.step, done.branch, done.paused) == (1, 1, True)
        await handle.signal("command", {"command": "resume"})
        (again,) = (await waiting(handle, "approval")).open
        assert again.digest != asked.digest
        await handle.signal("command", {"command": "abort", "text": "enough", "by": "ann"})
        result = await handle.result()
    assert result.exit_reason == "aborted"
    told = [r.getMessage() for r in caplog.records if "vict" in r.getMessage() or "task" in r.getMessage()]
    assert told == []
