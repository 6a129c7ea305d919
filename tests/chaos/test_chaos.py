"""Nothing twice, nothing lost: a short chaos, a kill at each event of each machine, and a guard removed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from activities.settings import Settings
from client.runs.attributes import WAITING
from tests.chaos import tools
from tests.chaos.actors import People, Runs
from tests.chaos.judge import Verdict, judge_effects
from tests.chaos.runs import KINDS, expected_answer, task_of
from tests.chaos.world import World
from tests.server.conftest import OUTER_MACHINE, ROOT, Workers, real_server, worker_processes
from tests.server.test_fused_steps import same
from tests.server.test_same_log import DIGEST
from tests.server.trials import Run, eventually, log_of
from workflows.api import WORKFLOW_TYPE, RunResult
from workflows.kernel.log import Record

AT_ONCE = 8
"""Runs that are killed side by side, each with a worker of its own."""
PATIENCE = 900
"""Seconds for a run to come to its event, and for a model to answer. On a busy machine all of them are slow,
and the log counts a question that was given up and asked again twice."""


def chaos(home: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The harness as people run it, with one seed."""
    command = (sys.executable, "-m", "tests.chaos.harness", "--seed=1", *more)
    environment = {**os.environ, "TMPDIR": str(home)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1200
    )


@pytest.mark.exhaustive
def test_nothing_is_done_twice_and_nothing_is_lost(tmp_path: Path) -> None:
    """The short version of `make chaos`."""
    ended = chaos(tmp_path, "--faults=40")
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("sabotage", "finding"),
    [
        ("no guard of unsafe calls", "repeated unsafe: "),
        ("forgotten decisions", "lost decisions: "),
        ("stale replies", "repeated "),
        ("stale results", "wrong outputs: "),
        ("dropped records", "broken logs: "),
    ],
)
def test_chaos_is_red_over_a_sabotaged_product(tmp_path: Path, sabotage: str, finding: str) -> None:
    """Four runs are enough, and no fault but this."""
    ended = chaos(tmp_path, f"--sabotage={sabotage}", "--workers=1", "--runs=4", "--faults=0")
    assert ended.returncode == 1, ended.stderr
    assert f"\n{finding}" in ended.stdout


async def came_to_or_ended(run: Run, events: int) -> bool:
    """The run's history is so long, or as long as it gets: retries and fused steps make it vary."""
    described = await run.describe()
    return described.history_length >= events or described.close_time is not None


async def log_if_it_answers(run: Run) -> list[Record] | None:
    """Its log; None where the query went to the worker that was killed, or its time was over."""
    with suppress(RPCError, WorkflowQueryFailedError):
        return list(await log_of(run))
    return None


async def inner_runs(client: Client, run: Run) -> list[Run]:
    """The runs that it has begun, as its history has them."""
    events = (await run.fetch_history()).events
    begun = [one.start_child_workflow_execution_initiated_event_attributes.workflow_id for one in events]
    return [client.get_workflow_handle(name) for name in begun if name]


ALONE = re.compile(
    "WORKFLOW_TASK_(STARTED|COMPLETED)|ACTIVITY_TASK_STARTED|SIGNALED|TIMER_FIRED"
    "|CHILD_WORKFLOW_EXECUTION_(STARTED|COMPLETED)"
)
"""Events that the server does not write together with the one before."""


async def lengths(run: Run) -> list[int]:
    """All lengths that its history has had."""
    events = (await run.fetch_history()).events
    return [one.event_id for one, next in pairwise(events) if ALONE.search(EventType.Name(next.event_type))]


INNER = re.compile(r"NAME/[0-9a-f]{8}/")
"""How ids of inner runs begin: with the name of the outer run, and a part of its run id."""
ATTEMPTS = re.compile(r"('attempts?': )\d+")
"""Workers die, and on a busy machine heartbeats come too late."""


class Kills:
    """Runs of one kind whose workers are killed once they have come to a certain event."""

    def __init__(self, workers: Workers, people: People, world: World) -> None:
        self.workers, self.people, self.world = workers, people, world
        self.slots = asyncio.Semaphore(AT_ONCE)

    async def run(self, name: str, event: int | None = None) -> tuple[Run, str]:
        """A run, and its log; empty if an outcome was looked up, by the tool or by a person, in the run or in
        an inner one. The worker dies when the history is so long."""
        kind = name.partition("-")[0]
        async with self.slots:
            pid = await self.workers.start(name)
            run: Run = await self.people.client.start_workflow(
                WORKFLOW_TYPE,
                task_of(kind, name, seconds=PATIENCE),
                id=name,
                task_queue=name,
                result_type=RunResult,
            )
            person = asyncio.create_task(self.look_after(name))
            if event is not None:
                await eventually(partial(came_to_or_ended, run, event), PATIENCE)
                os.kill(pid, signal.SIGKILL)
                pid = await self.workers.start(name)
            result = await run.result()
            await person
            runs = [run, *await inner_runs(self.people.client, run)]
            logs = [await eventually(partial(log_if_it_answers, one), PATIENCE) for one in runs]
            os.kill(pid, signal.SIGKILL)
        assert (result.ok, result.answer) == (True, expected_answer(name))
        found = Verdict()
        judge_effects({name: result}, self.world, found)
        assert found.is_clean, found
        records = [record for log in logs for record in log]
        looked_up = any(one.event == "Reconciled" or one.about.get("kind") == "outcome" for one in records)
        if looked_up:
            return run, ""
        log = INNER.sub("NAME/#/", DIGEST.sub("#", same(logs[0], name)))
        return run, ATTEMPTS.sub(r"\1#", log)

    async def look_after(self, name: str) -> None:
        """Decide what the run and its inner runs ask, until it ends."""
        client, runs = self.people.client, [name]
        while runs:
            described = await asyncio.gather(*(client.get_workflow_handle(run).describe() for run in runs))
            for one in described:
                if one.typed_search_attributes.get(WAITING):
                    await self.people.look_after(one.id)
            children = [one.workflow_id for one in described[0].raw_description.pending_children]
            runs = [name, *children] if described[0].close_time is None else []
            await asyncio.sleep(0.1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("long", "rolled")])
async def test_kill_at_each_event_changes_nothing(kind: str, tmp_path: Path) -> None:
    """The same answer, each effect once, and the same log where no person had to be asked what happened."""
    settings = Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path)
    with World("kills", tmp_path / "effects.txt") as world:
        async with real_server(settings) as client:
            address = client.service_client.config.target_host
            keys = {"OPENAI_BASE_URL": world.base_url, "OPENAI_API_KEY": "chaos"}
            async with worker_processes(
                address, tmp_path, Path(tools.__file__), OUTER_MACHINE, **keys
            ) as workers:
                people = People(client, world, Runs(client, iter(())), "kills", odd_part=0)
                kills = Kills(workers, people, world)
                first, log = await kills.run(f"{kind}-000")
                async with asyncio.TaskGroup() as all_kills:
                    killed = [
                        all_kills.create_task(kills.run(f"{kind}-{event:03}", event))
                        for event in await lengths(first)
                    ]
    assert {task.result()[1] for task in killed} <= {"", log}
    assert not people.lost
