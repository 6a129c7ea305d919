"""Many runs that wait at once, and many people who decide."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from temporalio.client import Client, Interceptor, ListWorkflowsInput, OutboundInterceptor

from activities.settings import Settings
from client.agent import AgentClient
from client.archived import ArchivedRuns
from client.errors import RatchetError
from tests.client.peoplekit import asking_task, marks, until_true
from workflows.api import AgentTask
from workflows.people import Decided

RUNS, DECIDERS = 200, 20


class CountingCalls(Interceptor):
    """Counts how often the server is asked for a list."""

    def __init__(self) -> None:
        self.lists = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        """Stand before the calls of a client."""
        counter = self

        class Counting(OutboundInterceptor):
            def list_workflows(self, input: ListWorkflowsInput) -> Any:
                counter.lists += 1
                assert input.page_size >= RUNS, "a page of the server holds them all"
                return super().list_workflows(input)

        return Counting(next)


def patient_task(number: int) -> AgentTask:
    """On a busy machine a heartbeat may come late; that is not what is tried here."""
    return asking_task(f"many-{number}", agent="many").model_copy(update={"heartbeat_seconds": 60})


@pytest.mark.exhaustive
async def test_200_waiting_runs_are_one_call_and_each_is_decided_once_by_20_people_at_once(
    working: Client, settings: Settings
) -> None:
    calls = CountingCalls()
    config = working.config()
    config["interceptors"] = [*config["interceptors"], calls]
    agents = AgentClient(Client(**config), ArchivedRuns(settings.data_dir / "archive.db"))
    agents.worker_here = True
    runs = [await agents.start(one) for one in map(patient_task, range(RUNS))]

    async def all_wait() -> bool:
        calls.lists = 0
        return Counter(line.agent for line in await agents.inbox() if line.asks)["many"] == RUNS

    await until_true(all_wait, 120)
    assert calls.lists == 1
    waiting = [line for line in await agents.inbox() if line.agent == "many"]
    since = [line.since for line in waiting if line.since]
    assert since == sorted(since)
    assert all(line.asks[0].tool == "mark_once" for line in waiting)

    async def decide_all(person: int) -> list[tuple[str, str]]:
        """Everybody works through the whole inbox, each in another order."""
        won = []
        for line in random.Random(person).sample(waiting, len(waiting)):
            try:
                done = await agents.approve(line.run, line.asks[0], by=f"person {person}")
            except RatchetError:
                continue
            assert isinstance(done, Decided)
            won.append((line.run, done.by[0]))
        return won

    won = [pair for pairs in await asyncio.gather(*map(decide_all, range(DECIDERS))) for pair in pairs]
    assert sorted(run for run, _ in won) == sorted(runs), "each run has one winner"
    for run, person in won:
        result = await agents.result(run)
        assert [(d.outcome, d.by) for d in result.decisions] == [("approved", (person,))]
    made = Counter(marks(settings.files_root))
    assert {made[f"many-{n}"] for n in range(RUNS)} == {1}, "no call was made twice"
