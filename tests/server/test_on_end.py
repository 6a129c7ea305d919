"""Runs that Temporal shall show as Failed or Canceled: it does, and the whole result is there as well."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import Client

from activities.contracts import ScriptedReply
from activities.settings import Settings
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.server.trials import Run, begin, calls, command, replayed, scripted, task, until
from workflows.api import OnEnd, RunResult

SHOWN = OnEnd(failed="fail_workflow", cancelled="cancel_workflow")
MARK = calls(("mark", {"line": "one"}))
LONG = "note this: " * 1500


async def outcome(working: Client, settings: Settings, run: Run) -> tuple[str, RunResult]:
    """How Temporal shows a run, and its result for the client."""
    agents = AgentClient(Connection(working, settings, "the test server"))
    result = await agents.result(run.id)
    status = (await run.describe()).status
    await replayed(run, settings)
    assert status is not None
    return status.name, result


async def test_cancelled_run_shows_as_canceled_whatever_its_result_holds(
    working: Client, settings: Settings
) -> None:
    slow = {"default": scripted("done", delay_seconds=30)}
    run = await begin(working, task(models=slow, on_end=SHOWN))
    await until(run, lambda status: bool(status.doing))
    await command(run, "steer", text=LONG)
    await run.cancel()
    status, result = await outcome(working, settings, run)
    assert (status, result.exit_reason, result.unheard) == ("CANCELED", "cancelled", (LONG,))


@pytest.mark.parametrize(
    "machine",
    [
        "react",
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("tools", "code", "staged", "planner")),
        "contract",
    ],
)
async def test_on_end_decides_for_every_machine_how_a_failure_shows(
    working: Client, settings: Settings, machine: str
) -> None:
    """A model that fails for good: some machines raise in memory, but no run fails in Temporal by itself."""
    refused = {"default": scripted(ScriptedReply(reply="", expect="a text that nobody writes"))}
    shown = []
    for on_end in (OnEnd(), OnEnd(failed="complete"), OnEnd(failed="fail_workflow")):
        run = await begin(working, task(machine=machine, models=refused, on_end=on_end))
        status, result = await outcome(working, settings, run)
        shown.append(status)
        assert not result.ok
        assert "a text that nobody writes" in str(result.error)
    assert shown == ["COMPLETED", "COMPLETED", "FAILED"]


async def test_failed_run_shows_failed_and_gives_outer_run_its_result(
    working: Client, settings: Settings
) -> None:
    inner: dict[str, Any] = {
        "machine": "tools",
        "goal": "inside",
        "give": ["mark"],
        "limits": {"tool_calls": 1},
    }
    given = task(
        MARK, calls(("mark", {"line": "two"})), machine="nester", options={"inner": [inner]}, on_end=SHOWN
    )
    run = await begin(working, given)
    status, result = await outcome(working, settings, run)
    assert status == "COMPLETED"
    assert "limit" in str(result.answer)
    assert [call.tool for call in result.calls] == ["mark"]
    assert result.counters["tool_calls"] == 1
    children = [one async for one in working.list_workflows(f"ParentWorkflowId = '{run.id}'")]
    assert len(children) == 1
    status, result = await outcome(working, settings, working.get_workflow_handle(children[0].id))
    assert (status, result.exit_reason, result.raises) == ("FAILED", "limit", None)
    assert [call.tool for call in result.calls] == ["mark"]
    result.raise_if_failed()
