"""Signals that nobody can use: recorded in the log, never harmful (facts of Temporal's own UI and CLI)."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.worker import Replayer

from activities.settings import Settings
from client.plugin import RatchetPlugin
from client.serverprocess import temporal_binary
from tests.workflows.trials import act, begin, final, log_of, task, until


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param([], id="no input"),
        pytest.param([1, 2], id="two inputs"),
        pytest.param([{"decision": None}], id="an object"),
        pytest.param(["x" * 100_000], id="a long text"),
    ],
)
async def test_an_unknown_signal_is_in_the_log_and_the_run_goes_on(
    working: Client, settings: Settings, inputs: list[Any]
) -> None:
    given = task(act("mark", line="s", seconds=0.5), final("unharmed"), tools=("mark",))
    handle = await begin(working, given)
    await until(handle, lambda status: status.state == "action")
    await handle.signal("decied", args=inputs)
    result = await handle.result()
    assert result.answer == "unharmed"
    (noted,) = [r for r in await log_of(handle) if r.event == "UnusableSignal"]
    assert (noted.by, noted.to) == ("signal", None)
    assert f"'decied' with {len(inputs)} values" in noted.reason
    await Replayer(workflows=[], plugins=[RatchetPlugin(settings)]).replay_workflow(
        await handle.fetch_history()
    )


async def test_a_signal_that_comes_with_the_start_is_in_the_log_too(working: Client) -> None:
    handle = await begin(working, task(final("early")), start_signal="hello", start_signal_args=[])
    assert (await handle.result()).answer == "early"
    assert [r.event for r in await log_of(handle)][1] == "UnusableSignal"


async def test_temporals_own_command_line_starts_signals_and_reads_a_run(working: Client) -> None:
    address = working.service_client.config.target_host

    def temporal(*words: str) -> str:
        command = [temporal_binary(), *words, "--address", address]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout

    given = task(act("mark", line="cli", seconds=1), final("by hand"), tools=("mark",), visibility="state")
    start = ("workflow", "start", "--type", "AgentWorkflow", "--task-queue", "ratchet", "-w", "by-hand")
    await asyncio.to_thread(temporal, *start, "--input", given.model_dump_json(exclude={"carry"}))
    await asyncio.to_thread(temporal, "workflow", "signal", "-w", "by-hand", "--name", "nonsense")
    result = await working.get_workflow_handle("by-hand").result()
    assert result["answer"] == "by hand"
    for query, text in (
        ("status", '"exit_reason":"goal_achieved"'),
        ("steps", '"summary":"Next. -\\u003e mark'),
        ("log", '"event":"GoalAchieved"'),
        ("transcript", '"role":"system"'),
        ("diagram", "class state_end current"),
    ):
        told = await asyncio.to_thread(temporal, "workflow", "query", "-w", "by-hand", "--type", query)
        assert text in told.replace(": ", ":") or text in told, (query, told[:500])
    found = await asyncio.to_thread(
        temporal, "workflow", "list", "--query", "AgentMachine='react' AND AgentState='__end__'"
    )
    assert "by-hand" in found
