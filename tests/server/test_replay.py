"""Every machine's recorded history replays with today's code."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from activities.settings import Settings
from client.history.recorded import Execution, begun, recorded_calls, recorded_log
from client.plugin import RatchetPlugin
from tests.server.conftest import OUTER_MACHINE
from tests.server.record import HISTORIES
from tests.server.scenarios import SCENARIOS
from workflows import registry

RECORDED = json.loads(gzip.decompress(HISTORIES.read_bytes()))
IN_STORE = {"code", "contract", "react", "window"}
"""Their logs were too long for the history, which has a claim in their place."""
NOT_MADE = {"rejected", "expired", "bad_arguments"}


def test_every_machine_has_a_recorded_history() -> None:
    recorded = {scenario.task.machine for scenario in SCENARIOS if scenario.name in RECORDED}
    assert recorded == {machine.name for machine in registry.shipped()}


async def replay(run_id: str, history: Any, home: Path) -> None:
    """Replay as a worker does that has an empty data directory."""
    plugin = RatchetPlugin(Settings(data_dir=home, modules=(str(OUTER_MACHINE),)))
    replayer = Replayer(workflows=[], plugins=[plugin])
    await replayer.replay_workflow(WorkflowHistory.from_json(run_id, history))


@pytest.mark.parametrize("name", sorted(RECORDED))
async def test_recorded_history_replays(name: str, tmp_path: Path) -> None:
    run_id, history = RECORDED[name]
    await replay(run_id, history, tmp_path)


@pytest.mark.parametrize("name", sorted(set(RECORDED) - IN_STORE))
async def test_history_tells_what_the_log_tells(name: str, tmp_path: Path) -> None:
    """Calls and replies, for people: where the code of a run is broken, its history alone has them."""
    run_id, history = RECORDED[name]
    plugin = RatchetPlugin(Settings(data_dir=tmp_path, modules=(str(OUTER_MACHINE),)))
    temporal = await Client.connect("localhost:1", lazy=True, plugins=[plugin])  # for its data converter
    recorded = WorkflowHistory.from_json(run_id, history)
    executions = [Execution(await begun(temporal.data_converter, recorded.events[0]), recorded)]
    log = (await recorded_log(temporal, executions)).values()
    told = await recorded_calls(temporal, executions, ())
    assert log
    calls = {one.id: one for record in told for one in record.answered}
    for logged in [one for record in log for one in record.answered]:
        if logged.kind not in ("call_tools", "run_code") or logged.error in NOT_MADE:
            continue
        found = calls.pop(logged.id)
        assert (found.kind, found.tool) == (logged.kind, logged.tool)
        assert logged.arguments.items() <= found.arguments.items(), "history has the defaults, too"
        assert found.title == logged.title
        if name != "unknown":  # a person has reported what became of that call
            assert (found.output, found.error) == (logged.output, logged.error)
    left = [(one.title.partition("(")[0], one.error) for one in calls.values()]
    assert left == ([("mark", "unknown_outcome")] if name == "cancelled" else [])
    heard = [message for record in log for message in (*record.messages, *record.beside)]
    assert [message for record in told for message in record.messages if message not in heard] == []


async def test_machine_that_takes_another_way_is_found(tmp_path: Path) -> None:
    run_id, history = RECORDED["react"]
    drifted = json.dumps(history).replace('"action#3:0@', '"action#4:0@')
    assert drifted != json.dumps(history)
    with pytest.raises(NondeterminismError):
        await replay(run_id, json.loads(drifted), tmp_path)


async def test_deadline_is_over_by_its_timer_whatever_the_clock_shows(tmp_path: Path) -> None:
    """A worker that sees a run first after a task that timed out was told of the timer with the
    clock of the task before: it waited again, and from then on no replay took its way."""
    run_id, history = RECORDED["deadline"]
    late = json.loads(json.dumps(history))
    fired = next(n for n, one in enumerate(late["events"]) if "timerFiredEventAttributes" in one)
    before = [one for one in late["events"][:fired] if "workflowTaskStartedEventAttributes" in one][-1]
    after = next(one for one in late["events"][fired:] if "workflowTaskStartedEventAttributes" in one)
    after["eventTime"] = before["eventTime"]
    await replay(run_id, late, tmp_path)
