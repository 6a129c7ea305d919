"""The interpreters of a worker: all are busy, none starts, and nothing is left to the next."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.code import step_code
from activities.code.pool import PROCESSES
from activities.contracts import RunCode
from tests.activities.codekit import LARGE_STATE, SHORT, Sandbox, sandbox_in

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
    blob = sandbox.blobs.path(sandbox.session.removeprefix("digest:"))
    blob.unlink()
    os.mkfifo(blob)  # whoever reads it waits for a writer
    effect = RunCode(block="1", session=sandbox.session, before="inline:before", limits=QUICK)
    stepped = await step_code(effect, sandbox.activities.materials, sandbox.pool, overhead=0.5)
    os.close(os.open(blob, os.O_WRONLY))
    assert (stepped.fatal, stepped.session) == (True, "inline:before")
    assert "TimeoutError" in (stepped.error or "")


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
