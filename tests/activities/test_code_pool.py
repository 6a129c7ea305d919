"""The interpreters of a worker: all are busy, none starts, and nothing is left to the next."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pydantic_monty as monty
import pytest
from temporalio.testing import ActivityEnvironment

from activities.code import step_code
from activities.code.pool import PROCESSES, Pool
from activities.contracts import CodeLimits, RunCode
from tests.activities.codekit import LARGE_STATE, SHORT, Sandbox, sandbox_in

ROOT = Path(__file__).parents[2]
QUICK = SHORT.model_copy(update={"seconds": 0.5})


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with sandbox_in(tmp_path) as sandbox:
        yield sandbox


async def test_time_of_waiting_for_a_place_is_not_counted(sandbox: Sandbox) -> None:
    for _ in range(PROCESSES):
        await sandbox.pool.places.acquire()
    running = asyncio.create_task(sandbox.step(block="print('done')", limits=QUICK))
    await asyncio.sleep(QUICK.seconds * 2)
    assert not running.done()
    for _ in range(PROCESSES):
        sandbox.pool.places.release()
    stepped = await running
    assert (stepped.printed, stepped.fatal) == ("done\n", False)


async def test_waiting_for_a_place_can_be_cancelled(sandbox: Sandbox) -> None:
    for _ in range(PROCESSES):
        await sandbox.pool.places.acquire()
    environment = ActivityEnvironment()
    running = asyncio.create_task(environment.run(sandbox.activities.run_code, RunCode(block="1")))
    await asyncio.sleep(0)
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 5)


async def test_step_with_hanging_store_is_given_up(sandbox: Sandbox) -> None:
    await sandbox.run(LARGE_STATE)
    blob = sandbox.file
    blob.unlink()
    os.mkfifo(blob)  # whoever reads it waits for a writer
    effect = RunCode(block="1", session=sandbox.session, before="inline:before", limits=QUICK)
    stepped = await step_code(effect, sandbox.activities.materials, sandbox.pool, overhead=0.5)
    os.close(os.open(blob, os.O_WRONLY))
    assert (stepped.fatal, stepped.session) == (True, "inline:before")
    assert "TimeoutError" in (stepped.error or "")


async def test_block_is_not_stopped_for_time_it_did_not_get(sandbox: Sandbox) -> None:
    """As on a busy machine: its interpreter stands still for longer than the block may compute."""
    limits = SHORT.model_copy(update={"seconds": 2})
    block = "for _ in range(50_000_000): pass\nprint('done')"
    running = asyncio.create_task(sandbox.run(block, limits=limits))
    while not (found := [one for one in children() if one.cpu_times().user > 0.02]):
        await asyncio.sleep(0.005)
        assert not running.done()
    found[0].suspend()
    await asyncio.sleep(limits.seconds * 1.5)
    found[0].resume()
    stepped = await running
    assert (stepped.error, stepped.printed) == (None, "done\n")


class WaitingLong(Pool):
    """Its interpreters do not end by themselves."""

    @asynccontextmanager
    async def session(self, limits: CodeLimits) -> AsyncIterator[monty.AsyncMontySession]:
        async with super().session(limits.model_copy(update={"seconds": 60})) as session:
            yield session


async def test_block_that_the_machine_gives_no_time_says_so(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path, pool=WaitingLong(patience=0)) as sandbox:
        limits = SHORT.model_copy(update={"seconds": 2})  # to be seen before it has computed for so long
        running = asyncio.create_task(sandbox.run("while True: pass", limits=limits))
        while not (found := [one for one in children() if one.cpu_times().user > 0.02]):
            await asyncio.sleep(0.005)
            assert not running.done()
        found[0].suspend()
        stepped = await running
    assert stepped.fatal
    assert "did not end within 5 s by the clock; it computed for" in (stepped.error or "")


class DyingAtOnce(Pool):
    """Its interpreters are dead before they are asked anything."""

    @asynccontextmanager
    async def session(self, limits: CodeLimits) -> AsyncIterator[monty.AsyncMontySession]:
        async with super().session(limits) as session:
            assert session.worker_pid is not None
            os.kill(session.worker_pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                await asyncio.to_thread(os.waitpid, session.worker_pid, 0)
            yield session


async def test_interpreter_that_dies_at_once_costs_its_block_alone(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path, pool=DyingAtOnce()) as sandbox:
        stepped = await sandbox.run("print('never')")
        assert (stepped.fatal, stepped.printed) == (True, "")
        assert "The variables are again as they were before this block." in (stepped.error or "")


def children() -> list[psutil.Process]:
    """The interpreters of this process."""
    return [one for one in psutil.Process().children() if "monty" in one.name()]


async def test_every_step_has_its_own_interpreter(sandbox: Sandbox) -> None:
    pids = []
    for _ in range(3):
        async with sandbox.pool.session(SHORT) as session:
            await session.feed_start("None")
            pids.append(session.worker_pid)
    assert len(set(pids)) == 3


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="this system shows no processes as files")
async def test_interpreter_gets_no_environment(sandbox: Sandbox) -> None:
    async with sandbox.pool.session(SHORT) as session:
        await session.feed_start("None")
        environment = await asyncio.to_thread(Path(f"/proc/{session.worker_pid}/environ").read_bytes)
    assert b"HOME=" not in environment
    assert b"PATH=" not in environment


RUNS_ONE_BLOCK = """
import asyncio, sys
from pathlib import Path
from temporalio.exceptions import ApplicationError
from tests.activities.codekit import sandbox_in

async def main():
    async with sandbox_in(Path(sys.argv[1])) as sandbox:
        try:
            await sandbox.run("1")
        except ApplicationError as error:
            print(error.type, error.non_retryable, error)

asyncio.run(main())
"""


def test_missing_interpreter_is_a_clear_error_that_retries_may_mend(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNS_ONE_BLOCK, str(tmp_path)],
        cwd=ROOT, env={**os.environ, "MONTY_BIN": "/nowhere/monty"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "Transient False" in done.stdout, done.stderr
    assert "no interpreter could be started" in done.stdout
    assert "/nowhere/monty" in done.stdout


GAUGE = """
import asyncio, os, resource, sys
from pathlib import Path
from activities.contracts import CodeLimits
from tests.activities.codekit import sandbox_in

def peak(who):
    return resource.getrusage(who).ru_maxrss // 1024

async def main():
    async with sandbox_in(Path(sys.argv[1]), CodeLimits(seconds=1, memory_bytes=64 * 2**20)) as sandbox:
        await sandbox.run("1")
        before = peak(resource.RUSAGE_SELF)
        for block in sys.stdin.read().split("\\n---\\n"):
            await sandbox.run(block)
        grown = peak(resource.RUSAGE_SELF) - before
        await sandbox.pool.close()
        print(grown, peak(resource.RUSAGE_CHILDREN), flush=True)

asyncio.run(main())
os._exit(0)  # as the worker ends: threads of Rust libraries can abort the interpreter's own exit
"""
GREEDY = [
    "while True: print('x' * 1000)",
    "ask('x' * 15_000_000)",
    "raise ValueError('x' * 15_000_000)",
    "a = 'x' * 1000\nwhile True: a += a",
    "a = {}\nn = 0\nwhile True:\n    a[n] = 'x' * 100\n    n += 1",
]


@pytest.mark.exhaustive
def test_memory_of_worker_and_interpreter_stays_bounded(tmp_path: Path) -> None:
    """In MB: the worker grows by little more than what a block may have."""
    done = subprocess.run(
        [sys.executable, "-c", GAUGE, str(tmp_path)], cwd=ROOT, input="\n---\n".join(GREEDY),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    worker, interpreter = map(int, done.stdout.splitlines()[-1].split())
    assert worker < 128
    assert interpreter < 200
