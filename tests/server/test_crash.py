"""kill -9: a worker dies at any moment, another takes over, and nothing that was done is done again."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.contracts import ModelSpec, ScriptedReply
from activities.settings import Settings
from client.errors import RatchetError
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.fake_openai import FakeOpenAI
from tests.link import Link, port_of
from tests.server.conftest import TOOLS, Workers, real_server, worker_processes
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
    scripted,
    task,
    until,
)
from worker import build_worker
from workflows.api import TASK_QUEUE, AgentTask
from workflows.people import People

LINES = 6
SOURCE = """\
total = 0
for line in context.strip().split("\\n"):
    square = llm_query(line).split(" -> ")[1]
    pay(line=square, file="paid-NAME.txt")
    mark_once(line=square, file="once-NAME.txt", seconds=0.02)
    total += int(square)
print("the sum is", total)"""
"""Each round asks a model, pays by key, and makes a call that must not be repeated."""
SQUARE = ScriptedReply(
    expect=r"the number is (?P<n>\d+) (?P<square>\d+)", reply="{n} -> {square}", delay_seconds=0.05
)
LAST = ScriptedReply(expect=r"the sum is (?P<sum>\d+)", reply="FINAL({sum})")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A folder of its own."""
    home = tmp_path_factory.mktemp("crash")
    return Settings(data_dir=home / ".ratchet", files_root=home, modules=(str(TOOLS),), shutdown_seconds=1)


@pytest.fixture(scope="module")
async def quiet(own: Settings) -> AsyncIterator[Client]:
    """A server that has no worker."""
    async with real_server(own) as client:
        yield client


def paying(name: str) -> AgentTask:
    """A run of the code machine whose block makes each kind of call, with files of this name."""
    context = "".join(f"the number is {n} {n * n}\n" for n in range(1, LINES + 1))
    block = f"```repl\n{SOURCE.replace('NAME', name)}\n```"
    return AgentTask(
        goal="What is the sum?",
        machine="code",
        material=context,
        tools=("pay", "mark_once"),
        models={"default": scripted(block, LAST), "sub": scripted(SQUARE)},
        heartbeat_seconds=3,
        approvals=FREELY,
    )


async def lines_of(own: Settings, file: str) -> Counter[str]:
    """How often each line was written."""
    path = own.files_root / file
    return Counter(line.split()[0] for line in path.read_text().splitlines()) if path.exists() else Counter()


async def look_after(run: Run, own: Settings) -> None:
    """Until the run is over, somebody looks up each unknown outcome, and says what happened."""
    while not (await until(run, lambda s: s.requests > 0 or s.finished is not None, patience=300)).finished:
        request = await open_request(run, "outcome")
        arguments: dict[str, Any] = request.arguments or {}
        if (await lines_of(own, arguments["file"]))[arguments["line"]]:
            await decide(run, "answer", request, text="it is written")
        else:
            await decide(run, "retry", request)


async def attempts(run: Run) -> tuple[Counter[str], int]:
    """How often each activity was scheduled, and how many attempts were lost."""
    scheduled: Counter[str] = Counter()
    lost = 0
    async for event in run.fetch_history_events():
        if event.HasField("activity_task_scheduled_event_attributes"):
            scheduled[event.activity_task_scheduled_event_attributes.activity_id] += 1
        if event.HasField("activity_task_started_event_attributes"):
            lost += event.activity_task_started_event_attributes.attempt - 1
    return scheduled, lost


async def paid_once(run: Run, own: Settings, name: str, kills: int) -> None:
    """The run ended as it should, and nothing was done twice."""
    result = await run.result()
    squares = {str(n * n): 1 for n in range(1, LINES + 1)}
    assert result.answer == "91"
    assert await lines_of(own, f"paid-{name}.txt") == squares
    assert await lines_of(own, f"once-{name}.txt") == squares
    scheduled, lost = await attempts(run)
    again = [name for name in scheduled if re.search(r"\+\d+@\w+$", name)]
    asked = [decided for decided in result.decisions if decided.kind == "outcome"]
    assert lost + len(asked) <= kills, "only what was under way was lost"
    retried = [decided for decided in asked if decided.outcome == "retried"]
    assert len(again) == len(retried), "no other call was made again"
    assert set(scheduled.values()) == {1}


async def came_to(run: Run, events: int) -> bool:
    """The run's history is so long."""
    return (await run.describe()).history_length >= events


async def test_killed_worker_repeats_no_keyed_and_no_unsafe_call(
    quiet: Client, own: Settings, workers: Workers
) -> None:
    """One kill meets four runs at four moments, and two in the middle of a keyed and an unsafe call."""
    in_call, in_keyed = [
        await begin(
            quiet,
            task(
                calls((tool, {"line": "killed", "file": f"{tool}.txt", "seconds": 3600})),
                "done",
                tools=(tool,),
                people=People(),
            ),
        )
        for tool in ("mark_once", "pay")
    ]
    await workers.start()
    await eventually(lambda: lines_of(own, "mark_once.txt"))
    await eventually(lambda: lines_of(own, "pay.txt"))
    names = "abcd"
    runs = [await begin(quiet, paying(name)) for name in names]
    async with asyncio.TaskGroup() as people:
        for run in (*runs, in_call):
            people.create_task(look_after(run, own))
        await eventually(lambda: came_to(runs[0], 120))
        workers.kill()
        await workers.start()
    for run, name in zip(runs, names, strict=True):
        await paid_once(run, own, name, 1)
    assert [decided.outcome for decided in (await in_call.result()).decisions] == ["answered"]
    assert (await in_keyed.result()).ok
    for file in ("mark_once.txt", "pay.txt"):
        assert await lines_of(own, file) == {"killed": 1}


async def test_keyed_call_failing_while_stopping_is_repeated_with_its_key(
    quiet: Client, own: Settings, workers: Workers
) -> None:
    """Paused at once and resumed: of a call that is to stop, Temporal gives out no further attempt, be it
    lost with its worker or failed for now. The model was told that it failed, and paid under another key."""
    order = calls(("pay", {"line": "stopped", "file": "pay-stopped.txt", "seconds": 3}))
    run = await begin(quiet, task(order, "done", tools=("pay",), people=People(), heartbeat_seconds=60))
    await workers.start()
    await eventually(lambda: lines_of(own, "pay-stopped.txt"))
    workers.kill()
    async with Worker(quiet, task_queue=TASK_QUEUE, no_remote_activities=True), asyncio.TaskGroup() as people:
        people.create_task(command(run, "pause", at_once=True))
        call = await eventually(partial(to_be_cancelled, run))
        people.create_task(command(run, "resume"))
        lost = quiet.get_async_activity_handle(workflow_id=run.id, run_id=run.result_run_id, activity_id=call)
        await lost.fail(ApplicationError("not now"))
    await workers.start()
    assert (await run.result()).answer == "done"
    assert await lines_of(own, "pay-stopped.txt") == {"stopped": 1}
    answered = [call for record in await log_of(run) for call in record.answered if call.call]
    assert [(call.error, call.output) for call in answered] == [(None, "paid stopped")]


async def to_be_cancelled(run: Run) -> str | None:
    """The id of its activity that is to stop."""
    pending = (await run.describe()).raw_description.pending_activities
    asked = PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED
    return next((one.activity_id for one in pending if one.state == asked), None)


async def test_killed_worker_and_the_next_post_the_same_question(quiet: Client, own: Settings) -> None:
    """Byte by byte and under the same key, so that a gateway answers and bills it once: a question in an
    activity of its own, and one behind a tool's call."""
    address = quiet.service_client.config.target_host
    with FakeOpenAI() as server:
        environment = {"OPENAI_BASE_URL": server.base_url}
        async with worker_processes(address, own.files_root, TOOLS, **environment) as workers:
            await workers.start()
            runs = []
            for fuse in ("off", "auto"):
                name = f'tool:mark:{{"line": "{fuse}"}}+stall+say:done'
                models = {"default": ModelSpec(name=name)}
                runs.append(await begin(quiet, task(models=models, fuse=fuse)))

            async def both_answer() -> bool:
                return len(server.completion_requests) == 4

            await eventually(both_answer)
            workers.kill()
            await workers.start()
            assert [(await run.result()).answer for run in runs] == ["done", "done"]
    for run, fuse in zip(runs, ("off", "auto"), strict=True):
        sent = [one for one in server.completion_requests if f'"{fuse}"' in str(one.body["model"])]
        assert (await attempts(run))[1] == 1
        first, second = sent[1:]
        assert second.content == first.content
        assert second.headers["idempotency-key"] == first.headers["idempotency-key"]


async def test_unsafe_call_whose_worker_was_stopped_ends_in_a_question(quiet: Client, own: Settings) -> None:
    """As by Ctrl-C: the worker cancels what does not end in time."""
    unsafe = calls(("mark_once", {"line": "stopped", "file": "stopped.txt", "seconds": 60}))
    given = task(unsafe, "done", tools=("mark_once",), people=People(), approvals=FREELY)
    async with build_worker(quiet, own):
        run = await begin(quiet, given)
        await eventually(lambda: lines_of(own, "stopped.txt"))
    async with build_worker(quiet, own):
        request = await open_request(run, "outcome")
        assert "Its worker was lost, and may still make it until" in request.text
        await decide(run, "abort", request)
        result = await run.result()
    assert result.exit_reason == "aborted"
    assert await lines_of(own, "stopped.txt") == {"stopped": 1}


def stands_still(pid: int) -> bool:
    """All of the process's threads have stopped."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all("State:\tT" in (thread / "status").read_text() for thread in threads)


async def test_worker_that_stood_still_does_not_pay_as_well(
    quiet: Client, own: Settings, workers: Workers
) -> None:
    """SIGSTOP in the middle of a payment: another worker finds none and pays, then the first one wakes up."""
    order = calls(("transfer", {"to": "Harbour Realty", "cents": 48000}))
    given = task(order, "done", tools=("transfer",), people=People(), heartbeat_seconds=3)
    async with Link(port_of(quiet)) as link:
        await workers.start(address=link.address)
        run = await begin(quiet, given)
        await eventually(lambda: there_is(own, "ordered.txt"))
        os.kill(workers.pid, signal.SIGSTOP)
        await eventually(
            partial(asyncio.to_thread, stands_still, workers.pid)
        )  # else it holds the bank's lock
        link.cut()  # else the server gives it tasks, and waits for each until it times out
        (own.files_root / "open.txt").touch()
        async with build_worker(quiet, own):
            result = await run.result()
            os.kill(workers.pid, signal.SIGCONT)
            await eventually(lambda: there_is(own, "refused.txt"))
    with closing(sqlite3.connect(own.files_root / "bank.sqlite")) as bank:
        paid = bank.execute("SELECT cents FROM statement").fetchall()
    assert (result.ok, result.decisions) == (True, ())
    assert paid == [(48000,)]


async def test_calls_wait_while_the_call_store_is_away(quiet: Client, own: Settings) -> None:
    """A folder is in its place; of a paused run the call is not made when it is back."""
    tools = ("mark_once", "pay")
    agents = AgentClient(Connection(quiet, own, "the test server"))
    own.calls_file.unlink(missing_ok=True)
    own.calls_file.mkdir(parents=True)
    async with build_worker(quiet, own):
        given = [
            task(calls((tool, {"line": "waited", "file": f"waited-{number}.txt"})), "done", tools=(tool,))
            for number, tool in enumerate((*tools, "mark_once"))
        ]
        runs = [await begin(quiet, one) for one in given]
        for run in runs:
            failing = await eventually(partial(failure_of, agents, run))
            assert "was not begun, and waits" in failing
            assert str(own.calls_file) in failing
        await command(runs[2], "pause")
        own.calls_file.rmdir()
        for run in runs[:2]:
            assert (await run.result()).ok
        assert not (own.files_root / "waited-2.txt").exists()
        await command(runs[2], "resume")
        for number, run in enumerate(runs):
            result = await run.result()
            assert (result.answer, result.counters["tool_calls"]) == ("done", 1)
            assert await lines_of(own, f"waited-{number}.txt") == {"waited": 1}
            await replayed(run, own)


async def failure_of(agents: AgentClient, run: Run) -> str | None:
    """What `ratchet show` says of a call that fails."""
    with suppress(RatchetError):  # its worker has just begun
        return (await agents.live_status(run.id)).failing
    return None


async def there_is(own: Settings, file: str) -> bool:
    """A tool has written it."""
    return (own.files_root / file).exists()
