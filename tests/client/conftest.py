"""Fixtures for the client: a clean environment for subprocesses, and the command line as a process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.settings import Settings
from client.agent import AgentClient
from client.archived import ArchivedRuns
from client.server import EmbeddedServer, stop_server

ROOT = Path(__file__).resolve().parents[2]
Ratchet = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = [sys.executable, "-c", "from client.start import main; main()"]


FOREIGN = ("RATCHET_", "TEMPORAL_", "OPENAI_", "XDG_STATE_HOME")


@pytest.fixture(autouse=True, scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Without keys, servers and settings of whoever runs the tests, in this process too.

    The folder that it gives is where commands remember what their workers may load.
    """
    foreign = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(FOREIGN)}
    home = tmp_path_factory.mktemp("state")
    os.environ["XDG_STATE_HOME"] = str(home)
    yield home
    del os.environ["XDG_STATE_HOME"]
    os.environ.update(foreign)


def bare_environment(**more: str) -> dict[str, str]:
    """The environment of a process that shall know nothing of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    if "XDG_STATE_HOME" in os.environ:  # the tests' own, see `state_home`
        kept["XDG_STATE_HOME"] = os.environ["XDG_STATE_HOME"]
    return {**kept, "PYTHONPATH": str(ROOT), "TEMPORAL_CONFIG_FILE": os.devnull, **more}


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A data directory whose server, if a test leaves one, is stopped."""
    home = tmp_path / "data"
    yield home
    stop_server(home)


@pytest.fixture
def made_dir(data_dir: Path) -> Path:
    """The same, there already."""
    data_dir.mkdir()
    return data_dir


@pytest.fixture(scope="session")
def served_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory whose server runs all the time, so that commands need not start it."""
    home = tmp_path_factory.mktemp("served")
    server = asyncio.run(EmbeddedServer.attach(home))
    yield home
    server.release()


def run_ratchet(
    data_dir: Path, *arguments: str, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, with the repository as its folder."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=bare_environment(RATCHET_DATA_DIR=str(data_dir), **environment),
        timeout=120,
    )


def ratchet_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The same in a folder of a user's, with the data directory there; what it loads is not loaded here."""
    return subprocess.run(
        [*PROGRAM, *words],
        cwd=folder,
        env=bare_environment(XDG_STATE_HOME=str(folder / "state")),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def ratchet(data_dir: Path) -> Ratchet:
    """The command line in a data directory of its own."""
    return partial(run_ratchet, data_dir)


@pytest.fixture
def served(served_dir: Path) -> Ratchet:
    """The command line where a server runs already."""
    return partial(run_ratchet, served_dir)


@pytest.fixture(scope="session")
def agents(working: Client, settings: Settings) -> AgentClient:
    """A client of the shared server, at which a worker runs."""
    archive = ArchivedRuns(settings.data_dir / "archive.db")
    client = AgentClient(working, archive, where="the test server")
    client.worker_here = True
    return client
