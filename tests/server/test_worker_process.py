"""`python worker.py` as a process: a server that is not there yet, or goes away while the worker starts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.link import Link, port_of
from tests.server.conftest import ROOT
from tests.server.trials import PATIENCE


@asynccontextmanager
async def worker(address: str, home: Path, **more: str) -> AsyncIterator[Process]:
    """A worker of that server, with more variables in its environment; it is killed at the end."""
    environment = {
        **os.environ,
        "TEMPORAL_ADDRESS": address,
        "RATCHET_DATA_DIR": str(home),
        "RATCHET_LOG_FORMAT": "json",
        **more,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "worker.py", cwd=ROOT, env=environment, stderr=PIPE
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def logged(process: Process, event: str) -> dict[str, Any]:
    """The next line of the log about this event."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while line := await process.stderr.readline():
            with suppress(ValueError):
                if (found := json.loads(line))["event"] == event:
                    return dict(found)
    raise AssertionError(f"the worker ended without {event}")


async def ended(process: Process, number: signal.Signals) -> int:
    """The exit code after this signal."""
    process.send_signal(number)
    async with asyncio.timeout(PATIENCE):
        await process.communicate()
    assert process.returncode is not None
    return process.returncode


@pytest.mark.parametrize(
    "pieces",
    [pytest.param((1, 5), id="twice"), pytest.param(range(8), id="anywhere", marks=pytest.mark.exhaustive)],
)
async def test_server_that_goes_away_during_the_start_is_waited_for(
    temporal: Client, tmp_path: Path, pieces: Iterable[int]
) -> None:
    async with Link(port_of(temporal), *pieces) as link, worker(link.address, tmp_path) as process:
        started = await logged(process, "worker.started")
        assert (started["server"], started["namespace"], started["task_queue"]) == (
            link.address, temporal.namespace, "ratchet",
        )  # fmt: skip
        assert "react" in started["machines"]
        assert "calculator" in started["tools"]
        assert await ended(process, signal.SIGTERM) == 0


async def test_worker_that_waits_for_its_server_can_be_stopped(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        async with worker(address, tmp_path) as process:
            assert address in (await logged(process, "worker.waiting"))["reason"]
            assert (await logged(process, "worker.waiting"))["seconds"] == 2
            assert await ended(process, signal.SIGINT) == 0
