"""Fixtures for the client: an environment without settings of whoever runs the tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.settings import Settings
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from client.server.embedded import stop_server
from tests.server import conftest as server
from workflows.api import TASK_QUEUE

ROOT = Path(__file__).resolve().parents[2]
settings, temporal, working = server.settings, server.temporal, server.working
"""Fixtures: one real server and one worker for this folder, too."""
FOREIGN = (
    "RATCHET_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "XDG_STATE_HOME",
    "PYTHONUNBUFFERED",
)  # fmt: skip


@pytest.fixture(autouse=True, scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No keys, servers and settings of whoever runs the tests; gives the user's state folder."""
    foreign = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(FOREIGN)}
    home = tmp_path_factory.mktemp("state")
    os.environ.update({"XDG_STATE_HOME": str(home), "TEMPORAL_CONFIG_FILE": os.devnull})
    yield home
    del os.environ["XDG_STATE_HOME"], os.environ["TEMPORAL_CONFIG_FILE"]
    os.environ.update(foreign)


@pytest.fixture
async def data_dir(tmp_path: Path) -> AsyncIterator[Path]:
    """A data directory; a server that a test leaves there is stopped."""
    home = tmp_path / "data"
    home.mkdir()
    yield home
    await stop_server(home)


@pytest.fixture(scope="session")
def agents(working: Client, settings: Settings) -> AgentClient:
    """A client of the real server with a worker."""
    return AgentClient(Connection(working, settings, "the test server", queues=(TASK_QUEUE,)))
