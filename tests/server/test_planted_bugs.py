"""What breaks in a counterexample breaks on the real server, too, in the run's own history."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError

from activities.contracts import ToolInput, ToolResult
from activities.settings import Settings
from client.cassette.file import Cassette, read_cassette, write_cassette
from client.cassette.recording import ANSWERS
from client.history.replayer import replayed
from client.plugin import RatchetPlugin
from client.proof.machine import verify
from client.runs.pending import bug_in
from tests.server import planted
from tests.server.fakes import FakeActivities, FakeWorld, fake_worker
from tests.server.planted import PLANTED, Planted
from tests.server.trials import Run, decide, eventually, log_of, open_request
from workflows import registry
from workflows.api import WORKFLOW_TYPE, AgentTask, RunResult
from workflows.engine.loop import Drive
from workflows.verify.runs.watch import Watch

QUEUE = "planted"
SECONDS = 20
"""For exploring one scenario."""
DEADLINE = 2
"""Seconds after which a request expires, so that no test waits for a minute."""
IN_MAKE_TEST = ("money_desk, all: ask", "tools, unknown tools are reported: INIT", "planner, simple, simple")
"""How the names of those begin that are always played."""
assert all(any(one.text.startswith(name) for one in PLANTED) for name in IN_MAKE_TEST)


@dataclass
class Recorded(FakeWorld):
    """What the worlds of cassettes have answered."""

    rounds: dict[str, Iterator[Any]] = field(default_factory=dict)
    """Run -> the answers of the round, again and again."""
    beyond: set[str] = field(default_factory=set)
    """Runs that have asked what their cassette has no answer for."""


class Recordings(FakeActivities):
    """Activities that answer as the cassettes have it."""

    world: Recorded

    async def _answer(self, key: str = "") -> Any:
        root = str(activity.info().workflow_id)
        try:
            return await super()._answer(key)
        except ApplicationError as error:
            if error.details[0]["type"] != "NoAnswer":
                raise
        if root not in self.world.rounds:
            self.world.beyond.add(root)
            await asyncio.Event().wait()  # the run stands still
        return next(self.world.rounds[root])

    @activity.defn
    async def call_tool(self, request: ToolInput) -> ToolResult:
        result = await super().call_tool(request)
        return result.model_copy(update={"id": request.id, "tool": request.tool})


@pytest.fixture(scope="module")
async def world(temporal: Client) -> AsyncIterator[Recorded]:
    """What activities answer, while their worker runs."""
    registry.add_module(planted)
    world = Recorded()
    async with fake_worker(temporal, QUEUE, world, Recordings, "tests"):
        yield world


class Watching:
    """Watches the replay of a run's history."""

    def __init__(self) -> None:
        self.run = Watch(())

    def watch(self, drive: Drive) -> None:
        self.run = Watch(drive.run.suspension.program.machine.properties)
        self.run.attach(drive)

    def end(self) -> None:
        """Nothing is kept beside what broke."""


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(
            one,
            id=one.text,
            marks=() if one.text.startswith(IN_MAKE_TEST) else pytest.mark.exhaustive,
        )
        for one in PLANTED
    ],
)
async def test_counterexample_breaks_its_property_on_the_server(
    temporal: Client, settings: Settings, world: Recorded, tmp_path: Path, one: Planted
) -> None:
    cassette = found(one, tmp_path / "found.yaml")
    assert cassette.counterexample is not None
    run = await played(temporal, world, cassette)
    watching, bug = Watching(), await bug_in(temporal, run.id)
    again = await replayed(RatchetPlugin(settings), await run.fetch_history(), watching)
    broken = [each.answers for each in watching.run.broken if each.name == one.breaks]
    assert broken, (watching.run.broken, again.failure, bug)
    if not cassette.counterexample.rounds:
        assert broken[0] == len(cassette.counterexample.answers)
    if bug is None:  # else the run waits for mended code, and answers no query
        assert again.records == tuple(await log_of(run))


def found(one: Planted, file: Path) -> Cassette:
    """The counterexample, as `ratchet verify machine --out` writes it."""
    report = verify(one.machine, scenarios=[one.scenario], seconds=SECONDS)
    alike = [each for each in report.counterexamples if each.violation.name == one.breaks]
    assert alike, report.text
    assert alike[0].cassette is not None, alike[0].unlike
    write_cassette(alike[0].cassette, file)
    return read_cassette(file)


async def played(temporal: Client, world: Recorded, cassette: Cassette) -> Run:
    """The run on the server, once it has ended, cannot go on, or asks what the cassette has no answer for."""
    run_id, answers = f"planted-{uuid.uuid4().hex[:12]}", _answers(cassette)
    world.answers[run_id] = {(place,): answer for place, answer in answers.items()}
    world.specs[run_id] = cassette.tools
    if rounds := cassette.counterexample.rounds if cassette.counterexample else 0:
        world.rounds[run_id] = cycle([*answers.values()][-rounds:])
    run = await temporal.start_workflow(
        WORKFLOW_TYPE, _hurried(cassette.task), id=run_id, task_queue=QUEUE, result_type=RunResult
    )
    for entry in cassette.course:
        if "decide" in entry:
            request = await open_request(run)
            assert request.id == entry["decide"]
            await decide(run, str(entry["decision"]), request)

    async def is_over() -> bool:
        is_running = (await run.describe()).status == WorkflowExecutionStatus.RUNNING
        return not is_running or run_id in world.beyond or bool(await bug_in(temporal, run_id))

    await eventually(is_over)
    return run


def _hurried(task: AgentTask) -> AgentTask:
    """The task with requests that soon expire."""
    requests = task.people.requests.model_copy(update={"deadline_seconds": DEADLINE})
    return task.model_copy(update={"people": task.people.model_copy(update={"requests": requests})})


def _answers(cassette: Cassette) -> dict[str, Any]:
    """Activity id -> what the world answered."""
    found: dict[str, Any] = {}
    for entry in cassette.course:
        if "answer" in entry:
            key = next(key for key in ANSWERS if key in entry)
            values: Any = entry[key]
            of_call = {"id": "", "tool": ""} if key == "result" else {}
            found[str(entry["answer"])] = ANSWERS[key].model_validate({**of_call, **values})
    return found
