"""Recorded histories replay with today's code: runs that wait in production survive a deploy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from activities.settings import Settings
from client.plugin import RatchetPlugin
from tests.conftest import MACHINES
from tests.workflows.record import HISTORIES, SCENARIOS

RECORDED = sorted(HISTORIES.glob("*.json"))


@pytest.fixture
def replayer(tmp_path: Path) -> Replayer:
    """As a worker with an empty data directory replays."""
    settings = Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=(str(MACHINES),))
    return Replayer(workflows=[], plugins=[RatchetPlugin(settings)])


def test_every_scenario_is_recorded() -> None:
    assert {path.stem for path in RECORDED} >= set(SCENARIOS)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_a_recorded_history_replays(path: Path, replayer: Replayer) -> None:
    await replayer.replay_workflow(_history(path.stem, str))


def _history(name: str, change: Callable[[str], str]) -> WorkflowHistory:
    text = change((HISTORIES / f"{name}.json").read_text())
    started = json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], text)  # ids of children begin with it


async def test_a_machine_that_takes_another_way_is_found_on_replay(replayer: Replayer) -> None:
    drifted = _history("react-tools", lambda text: text.replace('"action#3:1"', '"action#4:1"'))
    with pytest.raises(NondeterminismError):
        await replayer.replay_workflow(drifted)
