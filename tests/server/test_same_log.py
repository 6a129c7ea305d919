"""The same script gives the same log in memory and on the server; its history replays, its cassette plays."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from temporalio.client import Client

from activities.settings import Settings
from client.cassette.export import exported
from client.cassette.playing import play as play_cassette
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.server.fakes import FakeWorld, Scenario, decision, fake_worker, play
from tests.server.scenarios import SCENARIOS
from tests.server.trials import log_of, open_request, replayed
from workflows.api import WORKFLOW_TYPE, AgentTask, RunResult
from workflows.hosts.memory import LocalOutcome
from workflows.kernel.log import Record
from workflows.kernel.rollback import restored
from workflows.people import Decided
from workflows.task import program_for

QUEUE = "fakes"
TIMES = re.compile(r"seconds|started|finished|(^|_)at$|^timestamp$|^ended$")
"""Names of fields with times."""
DIGEST = re.compile(r"[0-9a-f]{32,64}")
"""Of what holds times, or the run's ids."""
IN_MAKE_TEST = {"react", "contract", "code_nested", "typed"}
"""A loop with people, stages that are checked, runs inside a run, and an answer that is asked for again."""
DIFFERENT = [
    pytest.param(one, marks=[] if one.name in IN_MAKE_TEST else pytest.mark.exhaustive) for one in SCENARIOS
]


@pytest.fixture(scope="module")
async def world(temporal: Client) -> AsyncIterator[FakeWorld]:
    """The world of all scenarios, while its worker runs."""
    world = FakeWorld()
    async with fake_worker(temporal, QUEUE, world):
        yield world


def timeless(value: Any) -> Any:
    """The value without times and digests."""
    if isinstance(value, dict):
        found = {name: timeless(item) for name, item in value.items() if not TIMES.search(name)}
        return {name: item for name, item in found.items() if item != {"change": {}}}  # only a time changed
    if isinstance(value, list):
        return [timeless(item) for item in value]
    return DIGEST.sub("#", value) if isinstance(value, str) else value


def comparable(records: Iterable[Record]) -> list[Any]:
    """The log as it can be compared."""
    return [timeless(record.model_dump(mode="json")) for record in records]


@pytest.mark.parametrize("fuse", ["auto", pytest.param("off", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("scenario", DIFFERENT, ids=lambda one: one.name)
async def test_log_is_the_same_in_memory_and_on_the_server(
    temporal: Client, settings: Settings, world: FakeWorld, scenario: Scenario, fuse: str
) -> None:
    run_id = f"same-{scenario.name}-{uuid.uuid4().hex[:8]}"
    alone = await play(scenario, run_id, world)
    assert alone.result.exit_reason == scenario.exit_reason
    run = await temporal.start_workflow(
        WORKFLOW_TYPE,
        scenario.task.model_copy(update={"fuse": fuse}),
        id=run_id,
        task_queue=QUEUE,
        result_type=RunResult,
    )
    for verb, more in scenario.decisions:
        request = await open_request(run)
        await run.execute_update("decide", decision(request, verb, more), result_type=Decided)
    result = await run.result()
    log = await log_of(run)
    assert comparable(log) == comparable(alone.records)
    assert (result.answer, result.exit_reason) == (alone.answer, scenario.exit_reason)
    assert (result.ok, result.output) == (alone.ok, alone.output)
    assert_rebuilt(scenario, run_id, log, alone)
    await replayed(run, settings)
    cassette = await exported(AgentClient(Connection(temporal, settings, "the test server")), run_id)
    verdict = await play_cassette(cassette)
    assert verdict.difference == ""
    assert verdict.decisions == len(scenario.decisions)


def assert_rebuilt(scenario: Scenario, run_id: str, log: list[Record], alone: LocalOutcome) -> None:
    """The log of the server gives the state in which the run in memory ended."""
    task = AgentTask.model_validate(scenario.task)
    rebuilt = restored(program_for(task, {spec.name: spec for spec in scenario.specs}, run_id), log)
    assert (rebuilt.state, rebuilt.conversation) == (alone.state, alone.conversation)
    assert timeless(rebuilt.context.model_dump(mode="json")) == timeless(
        alone.context.model_dump(mode="json")
    )
