"""The interpreters of a worker: when all are busy, when none starts, and what one leaves to the next."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.code import TIGHT, CodeActivities
from activities.code_pool import PROCESSES
from activities.contracts_code import CodeLimits, RunCode
from activities.store import BlobStore
from tests.activities.codekit import SHORT, Sandbox, sandbox_in

QUICK = SHORT.model_copy(update={"seconds": 0.5})
LONGER = SHORT.model_copy(update={"seconds": 30})
LARGE = "x" * (SHORT.memory_bytes // TIGHT + 1000)
"""A state with this in it is tried out."""


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with sandbox_in(tmp_path) as sandbox:
        yield sandbox


# -- all are busy ----------------------------------------------------------------------------------


async def test_a_block_waits_for_a_place_under_heartbeats_and_its_time_begins_behind_that(
    sandbox: Sandbox,
) -> None:
    places = sandbox.activities.pool.places
    for _ in range(PROCESSES):
        await places.acquire()
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(
        ActivityEnvironment.default_info(), heartbeat_timeout=timedelta(seconds=0.4)
    )
    beats: list[object] = []
    environment.on_heartbeat = lambda *details: beats.append(details)
    effect = RunCode(block="print('done')", limits=QUICK)
    running = asyncio.create_task(environment.run(sandbox.activities.run_code, effect))
    await asyncio.sleep(1.2)
    assert not running.done()
    assert len(beats) >= 8
    for _ in range(PROCESSES):
        places.release()
    stepped = await running
    assert (stepped.printed, stepped.fatal) == ("done\n", False)
    assert stepped.seconds < 1


async def test_a_block_that_waits_for_a_place_can_be_cancelled(sandbox: Sandbox) -> None:
    for _ in range(PROCESSES):
        await sandbox.activities.pool.places.acquire()
    environment = ActivityEnvironment()
    running = asyncio.create_task(environment.run(sandbox.activities.run_code, RunCode(block="1")))
    await asyncio.sleep(0.1)
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 1)


async def test_endless_blocks_of_others_end_nobody_elses_run(sandbox: Sandbox) -> None:
    """They keep all interpreters busy for longer than an interpreter is waited for."""
    endless = [sandbox.step(block="while True: pass") for _ in range(10 * PROCESSES)]
    *ended, innocent = await asyncio.gather(*endless, sandbox.step(block="print('innocent')"))
    assert all(stepped.fatal for stepped in ended)
    assert (innocent.printed, innocent.error) == ("innocent\n", None)


async def test_a_finished_block_is_kept_though_its_state_cannot_be_tried_out(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """While the block runs, the means to start another interpreter go away."""
    pool = sandbox.activities.pool
    block = f"n = 0\nwhile n < 20_000_000: n += 1\nx = 'x' * {len(LARGE)}"
    async with pool.session(SHORT):
        running = asyncio.create_task(sandbox.step(block=block, limits=LONGER))
        await asyncio.sleep(0.2)
        fence(tmp_path).unlink()
        stepped = await running
    assert (stepped.error, stepped.fatal) == (None, False)
    assert (await sandbox.step(block="print(len(x))", session=stepped.session)).printed == f"{len(LARGE)}\n"


async def test_a_large_state_at_a_call_goes_on_behind_it(sandbox: Sandbox) -> None:
    stepped = await sandbox.run(f"x = 'x' * {len(LARGE)}\nask()\nprint(len(x))")
    assert (stepped.error, stepped.printed) == (None, f"{len(LARGE)}\n")


async def test_a_step_whose_store_hangs_is_given_up_as_a_whole(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs.db", durable=True)
    await store.put(b"there is a file")
    activities = CodeActivities(store, overhead=0.5)
    other = sqlite3.connect(tmp_path / "blobs.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    block = "import random\ny = [random.random() for _ in range(5000)]"
    effect = RunCode(block=block, before="inline:before", limits=QUICK)
    stepped = await ActivityEnvironment().run(activities.run_code, effect)
    other.close()
    assert (stepped.fatal, stepped.session) == (True, "inline:before")
    assert stepped.error is not None
    assert "TimeoutError: the step took longer than 1 s" in stepped.error
    await activities.close()
    store.close()


# -- none starts -----------------------------------------------------------------------------------


async def test_the_fence_is_made_again_when_its_file_has_vanished(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.run("x = 1")
    fence(tmp_path).unlink()
    assert (await sandbox.run("print(x)")).printed == "1\n"
    assert fence(tmp_path).exists()


async def test_a_fence_that_vanishes_while_others_run_is_tried_again_and_harms_them_not(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    pool = sandbox.activities.pool
    async with pool.session(SHORT) as session:
        fence(tmp_path).unlink()
        with pytest.raises(OSError, match="no interpreter could be started"):
            async with pool.session(SHORT):
                pass
        await session.feed_start("None")
    assert (await sandbox.run("print(1)")).printed == "1\n"


async def test_nothing_is_left_but_one_file_in_the_data_directory(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.run("x = 1")
    await sandbox.activities.close()
    kept = {name for name in os.listdir(tmp_path) if not name.startswith("blobs.db")}
    assert kept == {fence(tmp_path).name}
    other = CodeActivities(sandbox.store)
    async with other.pool.session(SHORT):
        assert fence(tmp_path).name in kept
    await other.close()


def fence(folder: Path) -> Path:
    """The only program in a folder."""
    (found,) = folder.glob("interpreter-*")
    return found


MISSING = """
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


def test_an_interpreter_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MISSING, str(tmp_path)],
        env={**os.environ, "MONTY_BIN": "/nowhere/monty"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Transient False Transient: no interpreter could be started" in done.stdout, done.stderr
    assert "/nowhere/monty" in done.stdout


# -- what one leaves to the next -------------------------------------------------------------------


async def test_every_step_has_an_interpreter_of_its_own(sandbox: Sandbox) -> None:
    pids = []
    for _ in range(3):
        async with sandbox.activities.pool.session(SHORT) as session:
            await session.feed_start("None")
            pids.append(session.worker_pid)
    assert len(set(pids)) == 3


async def test_questions_to_the_host_are_bounded(sandbox: Sandbox) -> None:
    block = "n = 0\nwhile n < 60_000:\n    try: nobody()\n    except NameError: n += 1"
    stepped = await sandbox.run(block, limits=CodeLimits(seconds=60))
    assert stepped.error is not None
    assert "suspension limit 50000 exceeded" in stepped.error
