"""kill -9: a worker dies at any moment, another takes over, and nothing recorded is done again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle

from activities.settings import Settings
from client.plugin import connect
from client.server import EmbeddedServer, Ports
from tests.conftest import TOOLS, real_server
from tests.workflows.trials import act, begin, final, log_of, task, until
from worker import build_worker
from workflows.api import AgentResult, AgentTask

ROOT = Path(__file__).parents[2]
STEPS = 5


@pytest_asyncio.fixture
async def home(tmp_path: Path) -> AsyncIterator[Path]:
    (tmp_path / ".ratchet").mkdir()
    yield tmp_path


class _Worker:
    """A worker process that can be killed and started again."""

    def __init__(self, address: str, home: Path) -> None:
        self.command = [sys.executable, "-m", "tests.workflows.crash_worker", address, str(home)]
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


async def _attempts(handle: WorkflowHandle[Any, Any]) -> list[int]:
    """How often each activity that ended was started."""
    started = EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
    return [
        event.activity_task_started_event_attributes.attempt
        for event in (await handle.fetch_history()).events
        if event.event_type == started
    ]


def _five_steps(file: str) -> AgentTask:
    steps = [act("mark", line=f"step{n}", file=file, seconds=0.15) for n in range(STEPS)]
    given = task(*steps, final("all five"), tools=("mark",))
    return given.model_copy(update={"heartbeat_seconds": 3.0})


def _runs(file: Path) -> Counter[str]:
    """How often each line was written."""
    return Counter(line.split()[0] for line in file.read_text().splitlines())


async def _went_on(handle: WorkflowHandle[Any, AgentResult], file: Path, kills: int) -> str | None:
    """Wait for the end; nothing recorded was repeated, the call in flight at most once per kill."""
    result = await asyncio.wait_for(handle.result(), 60)
    ran = _runs(file)
    assert set(ran) == {f"step{n}" for n in range(STEPS)}
    assert sum(ran.values()) <= STEPS + kills, "only the call in flight may run once more"
    assert sum(n - 1 for n in await _attempts(handle)) <= kills
    assert result.steps == STEPS + 1
    return result.answer


async def test_ten_runs_killed_at_ten_moments_end_with_the_same_answer_and_repeat_nothing(home: Path) -> None:
    """The runs begin one after the other, so that one kill of their worker meets each elsewhere."""
    async with await EmbeddedServer.attach(home / ".ratchet", Ports()) as server:
        settings = Settings(data_dir=home / ".ratchet", files_root=home)
        client = await connect(settings, target_host=server.address)
        worker = _Worker(server.address, home)
        worker.start()
        try:
            handles = []
            for number in range(10):
                handles.append(await begin(client, _five_steps(f"run{number}.txt")))
                await asyncio.sleep(0.1)
            worker.kill()
            worker.start()
            ends = [_went_on(h, home / f"run{n}.txt", 1) for n, h in enumerate(handles)]
            assert set(await asyncio.gather(*ends)) == {"all five"}
        finally:
            worker.kill()


@pytest.mark.exhaustive
async def test_one_run_killed_ten_times_ends_with_the_same_answer(home: Path) -> None:
    async with await EmbeddedServer.attach(home / ".ratchet", Ports()) as server:
        settings = Settings(data_dir=home / ".ratchet", files_root=home)
        client = await connect(settings, target_host=server.address)
        worker = _Worker(server.address, home)
        worker.start()
        try:
            handle = await begin(client, _five_steps("often.txt"))
            for moment in range(10):
                await asyncio.sleep(0.15 * (moment % 4) + 0.1)
                worker.kill()
                worker.start()
            assert await _went_on(handle, home / "often.txt", 10) == "all five"
        finally:
            worker.kill()


async def test_an_unsafe_call_whose_worker_died_is_not_run_again_and_the_run_says_so(home: Path) -> None:
    async with await EmbeddedServer.attach(home / ".ratchet", Ports()) as server:
        settings = Settings(data_dir=home / ".ratchet", files_root=home)
        client: Client = await connect(settings, target_host=server.address)
        worker = _Worker(server.address, home)
        worker.start()
        try:
            given = task(act("mark_once", line="paid", seconds=60), final("never"), tools=("mark_once",))
            handle = await begin(client, given.model_copy(update={"heartbeat_seconds": 3.0}))
            await _exists(home / "marks.txt")
            worker.kill()
            worker.start()
            result: AgentResult = await asyncio.wait_for(handle.result(), 30)
        finally:
            worker.kill()
    assert (result.ok, result.exit_reason) == (False, "fatal_error")
    assert 'nobody knows whether mark_once("paid"' in str(result.error)
    assert (home / "marks.txt").read_text().count("paid") == 1


async def test_an_unsafe_call_whose_worker_was_stopped_in_the_middle_is_not_run_again(home: Path) -> None:
    """As after Ctrl-C: the worker cancels what does not end in time."""
    settings = Settings(
        data_dir=home / ".ratchet", files_root=home, modules=(str(TOOLS),), shutdown_seconds=1
    )
    async with real_server(settings) as client:
        async with build_worker(client, settings):
            replies = (act("mark_once", line="sent", seconds=60), final("never"))
            handle = await begin(client, task(*replies, tools=("mark_once",)))
            await _exists(home / "marks.txt")
        async with build_worker(client, settings):
            result = await asyncio.wait_for(handle.result(), 30)
    assert (result.exit_reason, result.counters["tool_calls"]) == ("fatal_error", 1)
    assert "nobody knows whether mark_once" in str(result.error)
    assert (home / "marks.txt").read_text().count("sent") == 1


async def test_a_server_that_is_killed_too_goes_on_from_its_file(home: Path) -> None:
    """The server dies with the worker; both come back; the run ends."""
    import os
    import signal

    settings = Settings(data_dir=home / ".ratchet", files_root=home)
    replies = [act("mark", line=f"step{n}", seconds=0.2) for n in range(4)]
    given = task(*replies, final("back"), tools=("mark",)).model_copy(update={"heartbeat_seconds": 3.0})
    server = await EmbeddedServer.attach(home / ".ratchet", Ports())
    worker = _Worker(server.address, home)
    async with server:
        worker.start()
        client = await connect(settings, target_host=server.address)
        handle = await begin(client, given)
        await until(handle, lambda status: status.step == 3)
        os.kill(int(server.record.pid or 0), signal.SIGKILL)
        worker.kill()
    async with await EmbeddedServer.attach(home / ".ratchet", Ports()) as again:
        worker = _Worker(again.address, home)
        worker.start()
        try:
            client = await connect(settings, target_host=again.address)
            handle = client.get_workflow_handle(handle.id, result_type=AgentResult)
            result = await asyncio.wait_for(handle.result(), 40)
            records = await log_of(handle)
        finally:
            worker.kill()
    assert (result.answer, records[-1].to) == ("back", "__end__")
    ran = _runs(home / "marks.txt")
    assert sorted(ran) == [f"step{n}" for n in range(4)]
    assert sum(ran.values()) <= 5


async def _exists(path: Path, check: Callable[[Path], bool] = Path.exists) -> None:
    while not check(path):  # noqa: ASYNC110  # another process writes it
        await asyncio.sleep(0.02)
