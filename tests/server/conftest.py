"""One real Temporal server and one worker for all tests of this folder."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment

from activities.settings import Settings
from client.plugin import RatchetPlugin
from client.server.embedded import DYNAMIC_CONFIG, temporal_binary
from tests.forked import PIPE, Forked
from worker import build_worker
from workflows.api import ATTRIBUTES, TASK_QUEUE

ROOT = Path(__file__).parents[2]
OUTER_MACHINE = Path(__file__).with_name("outer_machine.py")
"""A machine that runs other machines."""
STARTS_WITHIN = timedelta(minutes=2)
"""The SDK gives up after 5 s, which a busy machine needs."""
TOOLS = Path(__file__).with_name("trial_tools.py")
"""Tools that count their runs in files, fail, hang or return too much."""


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A worker's settings over an empty folder, with the trial tools loaded."""
    home = tmp_path_factory.mktemp("home")
    return Settings(
        data_dir=home / ".ratchet",
        files_root=home,
        modules=(str(TOOLS), str(OUTER_MACHINE)),
        shutdown_seconds=1,
    )


@asynccontextmanager
async def real_server(settings: Settings, *more: str, database: Path | None = None) -> AsyncIterator[Client]:
    """A client of a real server in memory, or with a file, tuned like the embedded one; `more` is dynamic
    configuration."""
    flags = [word for value in (*DYNAMIC_CONFIG, *more) for word in ("--dynamic-config-value", value)]
    settings.data_dir.mkdir(exist_ok=True)
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(temporal_binary()),
        dev_server_database_filename=None if database is None else str(database),
        dev_server_extra_args=flags,
        dev_server_log_level="error",
        dev_server_startup_timeout=STARTS_WITHIN,
        search_attributes=[_key(name) for name in ATTRIBUTES],
        plugins=[RatchetPlugin(settings)],
    ) as environment:
        yield environment.client


def _key(name: str) -> SearchAttributeKey[Any]:
    if ATTRIBUTES[name] == "Datetime":
        return SearchAttributeKey.for_datetime(name)
    return SearchAttributeKey.for_keyword(name)


@pytest.fixture(scope="session")
async def temporal(settings: Settings) -> AsyncIterator[Client]:
    """A client of the session's server."""
    async with real_server(settings) as client:
        yield client


@pytest.fixture(scope="session")
async def working(temporal: Client, settings: Settings) -> AsyncIterator[Client]:
    """The same client while a worker runs."""
    async with build_worker(temporal, settings):
        yield temporal


class Workers:
    """Worker processes that can be killed."""

    def __init__(self, process: Forked) -> None:
        self.process, self.pid = process, 0
        """Of the newest."""
        self._starting = asyncio.Lock()

    async def start(self, queue: str = TASK_QUEUE, address: str = "") -> int:
        """Start one, at another address of the server if one is given; its process id."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        async with self._starting:
            self.process.stdin.write(f"{queue} {address}\n")
            self.process.stdin.flush()
            self.pid = int(await asyncio.to_thread(self.process.stdout.readline))
            return self.pid

    def kill(self) -> None:
        """kill -9 the newest."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.pid = 0


@asynccontextmanager
async def worker_processes(
    address: str, home: Path, *modules: Path, **environment: str
) -> AsyncIterator[Workers]:
    """None runs yet; in the end all are killed."""
    program = "from tests.server.crash_worker import main; main()"
    words, env = (address, str(home), *map(str, modules)), {**os.environ, **environment}
    with Forked(program, *words, env=env, stdin=PIPE, stdout=PIPE) as process:
        try:
            yield Workers(process)
        finally:
            with suppress(ProcessLookupError):  # it has no group yet, so no worker either
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
async def workers(quiet: Client, own: Settings) -> AsyncIterator[Workers]:
    """None runs yet."""
    address = quiet.service_client.config.target_host
    async with worker_processes(address, own.files_root, TOOLS) as processes:
        yield processes
