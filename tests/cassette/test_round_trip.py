"""A run that is recorded and played takes the same course; whatever is altered in the file is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.cassette.file import Cassette, cassette_of, read_cassette, write_cassette
from client.cassette.playing import play
from client.cassette.recording import Recorder
from tests.server import fakes
from tests.server.fakes import FakeWorld, Scenario
from tests.server.scenarios import SCENARIOS


async def recorded(scenario: Scenario) -> Cassette:
    """The cassette of a scenario that ran in memory."""
    recorder = Recorder()
    await fakes.play(scenario, f"cassette-{scenario.name}", FakeWorld(), recorder.watch)
    return cassette_of(recorder)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
async def test_recorded_run_plays_from_its_file(scenario: Scenario, tmp_path: Path) -> None:
    cassette = await recorded(scenario)
    for name in ("run.yaml", "run.json"):
        write_cassette(cassette, tmp_path / name)
        assert read_cassette(tmp_path / name) == cassette
    verdict = await play(cassette)
    assert verdict.difference == ""
    assert verdict.calls == cassette.count("answer") > 0
