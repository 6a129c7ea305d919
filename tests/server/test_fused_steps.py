"""A tool and the question behind it in one activity: the run is the same, whatever happens in between."""

from __future__ import annotations

import asyncio
import re
import shutil
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from activities.contracts import EarlyReply, ScriptedReply, ToolInput, ToolResult, added
from activities.handover import with_early_reply
from activities.settings import Settings
from client.agents.agentfile import load_agent
from client.cassette.export import exported
from client.cassette.playing import play as play_cassette
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.server.conftest import ROOT, TOOLS, Workers, real_server
from tests.server.fakes import FakeActivities, FakeWorld, decision, fake_worker, play
from tests.server.scenarios import SCENARIOS
from tests.server.test_crash import came_to, lines_of, look_after, paying
from tests.server.test_same_log import comparable
from tests.server.test_small_steps import activities_of
from tests.server.trials import (
    FREELY,
    Run,
    begin,
    calls,
    command,
    decide,
    eventually,
    log_of,
    open_request,
    replayed,
    task,
)
from worker import build_worker
from workflows.api import TASK_QUEUE, WORKFLOW_TYPE, AgentTask, RunResult
from workflows.kernel.log import Record
from workflows.people import Decided, People

AGENTS = (
    "csv_question", "delivery_report", "incident_triage", "invoice_checker", "login_audit",
)  # fmt: skip
"""Shipped agents whose models are scripts."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A folder with the examples' data."""
    home = tmp_path_factory.mktemp("fused")
    shutil.copytree(ROOT / "examples" / "data", home / "examples" / "data")
    modules = (str(TOOLS), str(ROOT / "examples" / "tools" / "compose.py"))
    return Settings(data_dir=home / ".ratchet", files_root=home, modules=modules, shutdown_seconds=1)


@pytest.fixture(scope="module")
async def quiet(own: Settings) -> AsyncIterator[Client]:
    """A server that has no worker."""
    async with real_server(own) as client:
        yield client


def same(log: Any, *names: str) -> str:
    """The log without times, digests, attempts, these names, and packed sessions of code."""
    text = re.sub(r"inline:[\w+/=-]+", "SESSION", str(comparable(log)))
    for name in names:
        text = text.replace(name, "NAME")
    return text.replace("'attempts': 2", "'attempts': 1").replace("'attempt': 2", "'attempt': 1")


# -- the same run --------------------


def agent_task(name: str) -> AgentTask:
    """A run of a shipped agent, whose scripts do not wait; `code` is a block with calls of each kind."""
    if name == "code":
        return paying("fused")
    given = load_agent(name).task("Find out.")
    models = {
        role: model.model_copy(
            update={"script": tuple(one.model_copy(update={"delay_seconds": 0}) for one in model.script)}
        )
        for role, model in given.models.items()
    }
    return given.model_copy(update={"models": models, "modules": ()})


@pytest.mark.parametrize(
    "name", [*(pytest.param(one, marks=pytest.mark.exhaustive) for one in (*AGENTS, "code")), "log_detective"]
)
async def test_log_of_real_run_is_the_same_in_fewer_activities(
    quiet: Client, own: Settings, name: str
) -> None:
    logs, results, asked = [], [], []
    async with build_worker(quiet, own):
        for fuse in ("off", "auto"):
            run = await begin(quiet, agent_task(name).model_copy(update={"fuse": fuse}))
            results.append(await run.result())
            logs.append(same(await log_of(run), run.id))
            asked.append((await activities_of(run))["ask_model"])
            await replayed(run, own)
            cassette = await exported(AgentClient(Connection(quiet, own, "the test server")), run.id)
            assert (await play_cassette(cassette)).difference == ""
    assert (results[0].ok, results[1].answer) == (True, results[0].answer)
    assert logs[0] == logs[1]
    assert asked[1] == asked[0] if name == "code" else asked[1] < asked[0]


# -- another question than expected --------------------


@dataclass
class Unforeseen(FakeWorld):
    """Activities in it expect other questions than the machine asks."""

    replies: list[EarlyReply] = field(default_factory=list)
    """To those questions."""


class Disagreeing(FakeActivities):
    """The question behind a call is computed from another result than the one that is returned."""

    world: Unforeseen

    @activity.defn
    async def call_tool(self, request: ToolInput) -> ToolResult:
        answer: ToolResult = await self._answer()
        other = answer.model_copy(update={"output": f"not {answer.output}"})
        early = (await with_early_reply(request.key, other, self.ask_model)).early
        self.world.replies += [early] if early else []
        return answer.model_copy(update={"early": early})


async def test_reply_to_another_question_is_dropped_and_paid(quiet: Client, own: Settings) -> None:
    world, run_id = Unforeseen(), f"unforeseen-{uuid.uuid4().hex[:8]}"
    scenario = next(one for one in SCENARIOS if one.name == "react")
    alone = await play(scenario, run_id, world)
    async with fake_worker(quiet, "unforeseen", world, Disagreeing):
        run: Run = await quiet.start_workflow(
            WORKFLOW_TYPE, scenario.task.model_copy(update={"fuse": "auto"}), id=run_id,
            task_queue="unforeseen", result_type=RunResult,
        )  # fmt: skip
        for verb, more in scenario.decisions:
            request = await open_request(run)
            await run.execute_update("decide", decision(request, verb, more), result_type=Decided)
        result = await run.result()
        log = await log_of(run)
    await replayed(run, own)
    assert len(world.replies) == 3
    assert result.answer == alone.answer
    paid = added(alone.result.counters, *(early.cost for early in world.replies))
    assert {**result.counters, "seconds": 0} == pytest.approx({**paid, "seconds": 0})
    assert spoken(log) == spoken(alone.records)
    cassette = await exported(AgentClient(Connection(quiet, own, "the test server")), run_id)
    assert cassette.count("lost") == 3
    assert (await play_cassette(cassette)).difference == ""


def spoken(log: Iterable[Record]) -> list[Any]:
    """What happened, and what was said."""
    return [(one.event, one.to, one.reason, one.messages) for one in log]


async def test_question_behind_an_edited_call_is_foreseen(quiet: Client, own: Settings) -> None:
    careful: dict[str, Any] = {"approvals": {"tools": {"mark": "always"}}, "people": People()}
    async with build_worker(quiet, own):
        run = await begin(quiet, task(calls(("mark", {"line": "more"})), "done", fuse="auto", **careful))
        await decide(run, "edit", arguments={"line": "less"})
        result = await run.result()
        log = await log_of(run)
    await replayed(run, own)
    assert (result.answer, (await activities_of(run))["ask_model"]) == ("done", 1)
    assert result.counters["model_calls"] == 2
    assert any("A person changed" in note.content for record in log for note in record.notes)


# -- stopped while the model answers --------------------


async def in_the_models_part(run: Run) -> bool:
    """The model is answering: its words come by heartbeat."""
    pending = (await run.describe()).raw_description.pending_activities
    return any(b"sunny" in one.heartbeat_details.SerializeToString() for one in pending)


LONG = ScriptedReply(reply="sunny " * 200, delay_seconds=60)


@pytest.mark.parametrize("how", [pytest.param("abort", marks=pytest.mark.exhaustive), "cancel"])
async def test_run_stopped_in_models_part_knows_what_tool_did(quiet: Client, own: Settings, how: str) -> None:
    async with build_worker(quiet, own):
        run = await begin(quiet, task(calls(("mark", {"line": how})), LONG, fuse="auto"))
        await eventually(lambda: in_the_models_part(run))
        await (run.cancel() if how == "cancel" else command(run, "abort"))
        result = await run.result()
    assert result.exit_reason == {"abort": "aborted", "cancel": "cancelled"}[how]
    assert [(call.output, call.error) for call in result.calls] == [(f"done {how}", None)]


async def test_status_says_when_a_call_has_come_to_its_question(quiet: Client, own: Settings) -> None:
    agents = AgentClient(Connection(quiet, own, "the test server", queues=(TASK_QUEUE,)))
    async with build_worker(quiet, own):
        run = await begin(quiet, task(calls(("mark", {"line": "long"})), LONG, fuse="auto"))

        async def is_asking() -> bool:
            is_called = "mark" in str(await log_of(run))
            return is_called and (await agents.status(run.id)).doing == "asking the model"

        await eventually(is_asking)
        status = await agents.status(run.id)
        (call,) = (await run.describe()).raw_description.pending_activities
        assert call.activity_type.name == "call_tool"
        assert status.doing_since == pytest.approx(call.last_started_time.ToSeconds(), abs=5)
        await command(run, "abort")
        await run.result()


# -- workers --------------------


def paid(name: str, *, slow: bool = False, words: ScriptedReply | str = "all is paid") -> AgentTask:
    """Calls of each kind that write lines into files of this name, and the model's last words."""
    file = {"file": f"{name}.txt"}
    pause = ScriptedReply(reply="", delay_seconds=0.1)
    scripts = [
        calls(("pay", {"line": "one", **file, "seconds": 3600 if slow else 0})),
        calls(("mark", {"line": "two", "file": f"{name}.log", "text": "long " * 100})),
        calls(("pay", {"line": "three", **file}), ("pay", {"line": "four", **file})),
        calls(("mark_once", {"line": "five", **file})),
        calls(("pay", {"line": "six", **file})),
    ]
    timed = [one.model_copy(update={"delay_seconds": pause.delay_seconds}) for one in scripts]
    numbered = [
        one.model_copy(update={"tool_calls": tuple(
            call.model_copy(update={"id": f"c{n}.{m}"}) for m, call in enumerate(one.tool_calls)
        )})
        for n, one in enumerate(timed)
    ]  # fmt: skip
    return task(
        *numbered, words, tools=("pay", "mark", "mark_once"), people=People(), approvals=FREELY, fuse="auto"
    )


ONCE = {"one": 1, "three": 1, "four": 1, "five": 1, "six": 1}
"""What is in the file of such a run, however often its workers die."""


async def assert_as_without_kills(run: Run, own: Settings, name: str, log: str) -> None:
    """Nothing was done twice, and the log is the same, but for what a person was asked."""
    result = await run.result()
    assert result.answer == "all is paid"
    assert await lines_of(own, f"{name}.txt") == ONCE
    if not result.decisions:
        assert same(await log_of(run), run.id, name) == log


async def log_without_kills(quiet: Client, own: Settings) -> tuple[str, int]:
    """The log of such a run, and how many events its history has."""
    name = uuid.uuid4().hex[:8]
    run = await begin(quiet, paid(name))
    await assert_as_without_kills(run, own, name, same(await log_after(run), run.id, name))
    assert (await activities_of(run))["ask_model"] < 4
    return same(await log_of(run), run.id, name), (await run.describe()).history_length


async def log_after(run: Run) -> list[Record]:
    """The log of a run that has ended."""
    await run.result()
    return await log_of(run)


@pytest.mark.exhaustive  # tests/chaos kills fused runs, too
async def test_killed_worker_changes_no_fused_run(quiet: Client, own: Settings, workers: Workers) -> None:
    """One kill meets five runs: in a tool, while the model answers, and at three events."""
    await workers.start()
    log, _ = await log_without_kills(quiet, own)
    names = [uuid.uuid4().hex[:8] for _ in range(5)]
    told = task(calls(("pay", {"line": "x", "file": "answering.txt"})), SUNNY, tools=("pay",), fuse="auto")
    answering = await begin(quiet, told)
    in_tool = await begin(quiet, paid(names[0], slow=True))
    await eventually(lambda: in_the_models_part(answering))
    await eventually(lambda: lines_of(own, f"{names[0]}.txt"))
    runs = [in_tool]
    for name, events in zip(names[1:], (0, 11, 17, 23), strict=True):
        runs.append(await begin(quiet, paid(name)))
        await eventually(partial(came_to, runs[-1], events))
    workers.kill()
    await workers.start()
    async with asyncio.TaskGroup() as people:
        for run in runs:
            people.create_task(look_after(run, own))
    for run, name in zip(runs[1:], names[1:], strict=True):
        await assert_as_without_kills(run, own, name, log)
    assert (await in_tool.result()).answer == "all is paid"
    assert await lines_of(own, f"{names[0]}.txt") == ONCE
    assert (await answering.result()).answer == SUNNY.reply
    assert await lines_of(own, "answering.txt") == {"x": 1}


SUNNY = ScriptedReply(reply="sunny " * 200, delay_seconds=6)


@pytest.mark.exhaustive
async def test_worker_without_workflows_asks_no_model_behind_a_call(
    quiet: Client, own: Settings, workers: Workers
) -> None:
    name = uuid.uuid4().hex[:8]
    async with Worker(quiet, task_queue=TASK_QUEUE, no_remote_activities=True):
        run = await begin(quiet, paid(name))
        await eventually(lambda: came_to(run, 5))  # its workflow tasks come here from now on
        await workers.start()
        apart = same(await log_after(run), run.id, name)
        scheduled = await activities_of(run)
        assert scheduled["ask_model"] == (await run.result()).counters["model_calls"] == 6
    assert apart == (await log_without_kills(quiet, own))[0]
