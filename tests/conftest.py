"""Fixtures that need the real Temporal server: one server and one worker for the whole session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.testing import WorkflowEnvironment

from activities.settings import Settings
from client.plugin import RatchetPlugin
from client.serverprocess import DYNAMIC_CONFIG, temporal_binary
from worker import build_worker
from workflows.api import ATTRIBUTES

hypothesis.settings.register_profile(
    "ratchet", deadline=None
)  # how fast a test is, is no matter of its truth
hypothesis.settings.load_profile("ratchet")

TOOLS = Path(__file__).parent / "workflows" / "trial_tools.py"
"""Tools that count their runs in files, fail, hang or return too much."""


def _key(name: str) -> SearchAttributeKey[Any]:
    kinds = {"Keyword": SearchAttributeKey.for_keyword, "Datetime": SearchAttributeKey.for_datetime}
    make: Any = kinds[ATTRIBUTES[name]]
    key: SearchAttributeKey[Any] = make(name)
    return key


MACHINES = Path(__file__).parent / "workflows" / "trial_machines.py"
"""Machines that hold others."""


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A worker's settings over an empty folder, with the trial tools loaded."""
    home = tmp_path_factory.mktemp("home")
    modules = (str(TOOLS), str(MACHINES))
    return Settings(data_dir=home / ".ratchet", files_root=home, modules=modules, shutdown_seconds=1)


@asynccontextmanager
async def real_server(settings: Settings, *more: str) -> AsyncIterator[Client]:
    """A client of a real server in memory, tuned like the embedded one; `more` dynamic config."""
    flags = [word for value in (*DYNAMIC_CONFIG, *more) for word in ("--dynamic-config-value", value)]
    settings.data_dir.mkdir(exist_ok=True)
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=temporal_binary(),
        dev_server_extra_args=flags,
        dev_server_log_level="error",
        search_attributes=[_key(name) for name in ATTRIBUTES],
        plugins=[RatchetPlugin(settings)],
    ) as environment:
        yield environment.client


@pytest_asyncio.fixture(scope="session")
async def temporal(settings: Settings) -> AsyncIterator[Client]:
    """A client of the session's server."""
    async with real_server(settings) as client:
        yield client


@pytest_asyncio.fixture(scope="session")
async def working(temporal: Client, settings: Settings) -> AsyncIterator[Client]:
    """The same client while a worker runs."""
    async with build_worker(temporal, settings):
        yield temporal
