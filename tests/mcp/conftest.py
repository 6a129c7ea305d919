"""Servers of the tests' own, as processes and over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from activities.contracts import ToolResult
from activities.mcp.config import McpConfig
from activities.mcp.servers import McpServers
from activities.settings import Settings
from activities.tools import TransientError
from activities.tools.run import ToolRunner
from tests.activities.toolkit import Memory, request_for

HERE = Path(__file__).parent
OWN, RUDE = HERE / "own_server.py", HERE / "rude_server.py"
PATIENCE = 120

if find_spec("mcp") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was left out."""
    if "collect_ignore_glob" in globals():
        terminalreporter.write_line("tests/mcp skipped: the extra `mcp` is not installed")


@dataclass
class Served:
    """A server, its folder, and a runner of its tools."""

    folder: Path
    config: McpConfig
    runner: ToolRunner
    beats: list[str] = field(default_factory=list)
    process: asyncio.subprocess.Process | None = None
    """Of a server over HTTP, which nobody starts again but the test."""

    async def call(self, tool: str, attempts: int = 1, attempt: int = 1, **arguments: Any) -> ToolResult:
        """One attempt of a call."""
        request = request_for(f"own__{tool}", attempts=attempts, **arguments)
        return await self.runner.run_tool(request, attempt, self.beats.append)

    def notes(self) -> list[str]:
        """What its tools have written, without process ids."""
        with suppress(FileNotFoundError):
            return [
                " ".join(line.split()[:2]) for line in (self.folder / "calls.txt").read_text().splitlines()
            ]
        return []

    async def noted(self, line: str, times: int = 1) -> None:
        """Wait until its tools have written this."""
        async with asyncio.timeout(PATIENCE):
            while self.notes().count(line) < times:  # noqa: ASYNC110  # another process writes it
                await asyncio.sleep(0.02)

    async def ready(self) -> None:
        """Wait until it answers, and forget what was noted before."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(TransientError):
                    if (await self.call("add", a=1, b=2)).output == "3":
                        break
                await asyncio.sleep(0.1)
        (self.folder / "calls.txt").unlink(missing_ok=True)
        self.beats.clear()

    async def kill(self) -> None:
        """kill -9, and start it again where it is ours to do so."""
        pid = int((self.folder / "starts.txt").read_text().split()[-1])
        os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            await self.process.wait()
            await self.start()

    async def start(self) -> None:
        """Start a server over HTTP."""
        port = str(self.config.url).rpartition(":")[2].partition("/")[0]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, str(OWN), str(self.folder), "--http", port, stderr=asyncio.subprocess.DEVNULL
        )


def runner_of(**configs: McpConfig) -> ToolRunner:
    """A runner of these servers' tools."""
    return ToolRunner({}, Settings(), Memory(), mcp=McpServers(configs))


def own_config(folder: Path, **more: Any) -> McpConfig:
    """Our own server as a process."""
    return McpConfig(command=sys.executable, args=(str(OWN), str(folder)), **more)


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="session", params=["stdio", "http"])
async def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    """Our own server, once each way."""
    folder = tmp_path_factory.mktemp(request.param)
    config = own_config(folder, timeout_seconds=2 * PATIENCE)
    if request.param == "http":
        config = McpConfig(url=f"http://127.0.0.1:{free_port()}/mcp", timeout_seconds=2 * PATIENCE)
    served = Served(folder, config, runner_of(own=config))
    if request.param == "http":
        await served.start()
    yield served
    await served.runner.mcp.close()
    if served.process is not None:
        served.process.kill()
        await served.process.wait()


@pytest.fixture
async def served(running: Served) -> Served:
    """The server, ready, with nothing noted."""
    await running.ready()
    return running
