"""Every machine's recorded history replays with today's code."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from activities.settings import Settings
from client.plugin import RatchetPlugin
from tests.server.record import HISTORIES
from tests.server.scenarios import SCENARIOS
from workflows import registry

RECORDED = json.loads(gzip.decompress(HISTORIES.read_bytes()))


def test_every_machine_has_a_recorded_history() -> None:
    recorded = {scenario.task.machine for scenario in SCENARIOS if scenario.name in RECORDED}
    assert recorded == {machine.name for machine in registry.shipped()}


@pytest.mark.parametrize("name", sorted(RECORDED))
async def test_recorded_history_replays(name: str, tmp_path: Path) -> None:
    history = WorkflowHistory.from_json(*RECORDED[name])
    plugin = RatchetPlugin(Settings(data_dir=tmp_path))
    await Replayer(workflows=[], plugins=[plugin]).replay_workflow(history)
