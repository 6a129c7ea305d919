"""Workers of two builds on one queue: runs that wait survive a deploy."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import reduce
from pathlib import Path
from typing import TypeVar

import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.settings import Settings
from tests import forked
from tests.forked import WORKER, Forked
from tests.server.conftest import real_server
from tests.server.trials import Run, begin, command, decide, eventually, open_request
from workflows.api import AgentTask, RunResult
from workflows.people import People
from workflows.temporal_names import TASK_QUEUE

T = TypeVar("T")
TOLD = "system.enableSendTargetVersionChanged=true"
"""Pinned runs are told that another build is the current one."""
NOT_YET = {RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.RESOURCE_EXHAUSTED}
"""The server does not know the build so far."""
FIRST = '''
from enum import Enum

from pydantic import BaseModel

from ratchet import AskPerson, Context, Event, Exit, Machine, Visit, do, state


class S(Enum):
    COUNT, DONE = "count", "done"


class Options(BaseModel, frozen=True):
    pass


class Tally(Context):
    count: int = 0


class More(Event):
    """Not there yet."""


class Enough(Event):
    """Three."""


@state(S.COUNT, asks={AskPerson}, reads={"count"}, writes={"count"}, counts="rounds")
def count(c: Tally, run) -> Visit:
    yield from do(AskPerson(about="question", text=f"old count {c.count + 1}?", options=("approve",)))
    return {"count": c.count + 1}, Enough() if c.count + 1 >= 3 else More()


MACHINE = Machine(
    name="tally_of_two_builds", options=Options, context=Tally, begin=lambda given, options: Tally(),
    initial=S.COUNT, table={S.COUNT: {More: S.COUNT, Enough: S.DONE}}, states=[count], step=S.COUNT,
    result=lambda c, run: Exit(reason="counted", ok=True, answer=f"old {c.count}"),
)
'''
"""A machine as the first build has it."""
MIGRATION = """    version="2",
    migrations={"1": lambda state, values: ("tally", {"total": values["count"]})},
    initial="""
CHANGES = {
    "COUNT": "TALLY",
    '"count", "done"': '"tally", "done"',
    "count: int": "total: int",
    "c.count": "c.total",
    '"count"': '"total"',
    "old ": "new ",
    "    initial=": MIGRATION,
}
SECOND = reduce(lambda text, change: text.replace(*change), CHANGES.items(), FIRST)
"""The same machine with another name for its state and its field, and a migration."""


def environment(client: Client, home: Path, name: str, machine: str) -> dict[str, str]:
    """Of a process that has this machine."""
    module = home / f"build_{name}.py"
    module.write_text(machine)
    return {
        **os.environ,
        "TEMPORAL_ADDRESS": client.service_client.config.target_host,
        "RATCHET_DATA_DIR": str(home / ".ratchet"),
        "RATCHET_MODULES": f'["{module}"]',
    }


@asynccontextmanager
async def build(client: Client, home: Path, name: str, machine: str) -> AsyncIterator[None]:
    """A worker process of a build; without a name it is of none."""
    own = {**environment(client, home, name, machine), "RATCHET_BUILD_ID": name}
    with (home / f"{name}.log").open("wb") as log, Forked(WORKER, env=own, stdout=log, stderr=log):
        yield


async def make_current(client: Client, name: str) -> None:
    """New tasks of runs go to this build: the queue knows it, which has one partition. The deployment's own
    word for it comes minutes later where the machine is busy."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name="ratchet", build_id=name
    )
    service = client.workflow_service
    await _taken(lambda: service.set_worker_deployment_current_version(request))

    async def is_known() -> bool:
        for kind in (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY):
            ask = DescribeTaskQueueRequest(
                namespace=client.namespace, task_queue=TaskQueue(name=TASK_QUEUE), task_queue_type=kind
            )
            found = await service.describe_task_queue(ask)
            if found.versioning_info.current_deployment_version.build_id != name:
                return False
        return True

    await eventually(is_known)


async def _taken(call: Callable[[], Awaitable[T]]) -> T:
    """The server's answer, once it knows the build; it takes few of these calls in a second."""

    async def answer() -> T | None:
        try:
            return await call()
        except RPCError as error:
            if error.status not in NOT_YET:
                raise
            await asyncio.sleep(0.2)
            return None

    return await eventually(answer)


async def checked(client: Client, home: Path, machine: str, *words: str) -> dict[str, tuple[str, ...]]:
    """What `ratchet check` says with this machine: of each run verdict, state, build and reason."""
    env = environment(client, home, "today", machine)
    code, output, _ = await asyncio.to_thread(
        forked.spoken, forked.RATCHET, "check", "--json", *words, env=env
    )
    lines = [json.loads(line) for line in output.splitlines()]
    assert code == (0 if all(line["verdict"] == "goes on" for line in lines) else 1)
    return {
        line["run"]: tuple(line[key] for key in ("verdict", "state", "build", "reason")) for line in lines
    }


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """Of a server of its own: a current build would take runs from workers without one."""
    async with real_server(Settings(data_dir=tmp_path / ".ratchet"), TOLD) as client:
        yield client


async def asked(run: Run, text: str) -> None:
    """The run asks this."""

    async def is_asked() -> bool:
        return (await open_request(run)).text.startswith(text)

    await eventually(is_asked)


async def begun(client: Client) -> Run:
    given = AgentTask(goal="count", machine="tally_of_two_builds", machine_version="1", people=People())
    run = await begin(client, given)
    return client.get_workflow_handle(run.id, result_type=RunResult)  # of the whole chain


async def test_waiting_run_continues_with_new_build_before_its_next_step(
    client: Client, tmp_path: Path
) -> None:
    async with AsyncExitStack() as workers:
        await workers.enter_async_context(build(client, tmp_path, "first", FIRST))
        await make_current(client, "first")
        run = await begun(client)
        await asked(run, "old count 1?")
        assert (await checked(client, tmp_path, SECOND))[run.id] == ("goes on", "count", "first", "")
        *_, reason = (await checked(client, tmp_path, SECOND.replace('"1": lambda', '"0": lambda')))[run.id]
        assert "version 1" in reason
        *_, reason = (await checked(client, tmp_path, SECOND.replace('{"total": v', '{"sum": v')))[run.id]
        assert "sum" in reason
        await workers.enter_async_context(build(client, tmp_path, "second", SECOND))
        await make_current(client, "second")
        await decide(run, "approve")
        await asked(run, "new count 2?")
        await decide(run, "approve")
        await asked(run, "new count 3?")
        await command(run, "rollback", step=2)
        await asked(run, "new count 2?")
        await command(run, "rollback", step=0)
        for number in (1, 2, 3):
            await asked(run, f"new count {number}?")
            await decide(run, "approve")
        result = await run.result()
    assert result.answer == "new 3"
    assert result.machine_version == "2"


@pytest.mark.exhaustive
async def test_waiting_run_of_the_old_build_finishes_there(client: Client, tmp_path: Path) -> None:
    third = FIRST.replace("c.count + 1 >= 3", "True")
    async with AsyncExitStack() as workers:
        await workers.enter_async_context(build(client, tmp_path, "first", third))
        await make_current(client, "first")
        run = await begun(client)
        await asked(run, "old count 1?")
        await workers.enter_async_context(build(client, tmp_path, "second", SECOND))
        await make_current(client, "second")
        await decide(run, "approve")
        assert (await run.result()).answer == "old 1"


async def test_runs_that_a_deploy_would_break_are_named(client: Client, tmp_path: Path) -> None:
    """Without builds any worker takes any run, and replays it."""
    saved = tmp_path / "histories"
    async with build(client, tmp_path, "", FIRST):
        run = await begun(client)
        await asked(run, "old count 1?")
        found = await checked(client, tmp_path, FIRST, "--save", str(saved))
        assert found == {run.id: ("goes on", "count", "", "")}
        await run.terminate()
    verdict, *_, reason = (await checked(client, tmp_path, SECOND, str(saved / f"{run.id}.json")))[run.id]
    assert (verdict, "version 1" in reason) == ("breaks", True)
