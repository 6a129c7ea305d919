"""A server with its database in a file, as `ratchet` starts it, and workers in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from activities.settings import Settings
from benchmarks.sides import TOOLS, run_together
from client.sdk.agent import AgentClient
from client.server.embedded import EmbeddedServer

ROOT = Path(__file__).parent.parent
PROGRAMS = {"bare": ["-m", "benchmarks.bare"], "off": ["worker.py"], "auto": ["worker.py"]}
"""Kind -> a worker's program, to be run by Python."""
MIB = 1024 * 1024


@dataclass(frozen=True)
class Server:
    """A server that runs, and the SDK that is connected to it."""

    home: Path
    agents: AgentClient

    @property
    def environment(self) -> dict[str, str]:
        """What workers and commands of this server are started with: no settings from outside."""
        ours = ("RATCHET_", "TEMPORAL_", "OPENAI_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {
            **kept, "TEMPORAL_ADDRESS": self.agents.where, "RATCHET_DATA_DIR": str(self.home / ".ratchet"),
            "RATCHET_FILES_ROOT": str(self.home), "RATCHET_MODULES": json.dumps([str(TOOLS)]),
            "RATCHET_SHUTDOWN_SECONDS": "1",
        }  # fmt: skip


@asynccontextmanager
async def server() -> AsyncIterator[Server]:
    """Start a server in an empty directory, and stop it."""
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-", ignore_cleanup_errors=True) as folder:
        settings = Settings(data_dir=Path(folder) / ".ratchet")
        async with (
            await EmbeddedServer.attach(settings.data_dir) as embedded,
            AgentClient.connect(address=embedded.record.address, settings=settings) as agents,
        ):
            yield Server(Path(folder), agents)


class Workers:
    """The worker processes of one kind."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self.processes = processes

    def cpu_seconds(self) -> float:
        """Of all of them together, since they began."""
        times = [process.cpu_times() for process in self.processes]
        return sum(one.user + one.system for one in times)

    def mib(self) -> float:
        """Resident memory of one of them, on average."""
        return sum(process.memory_info().rss for process in self.processes) / len(self.processes) / MIB


@asynccontextmanager
async def workers(
    server: Server, kind: str, count: int = 1, under: Sequence[str] = ()
) -> AsyncIterator[Workers]:
    """Start worker processes, let them do a few runs first, and stop them.

    Args:
        under: a command that starts the worker as its child, such as a profiler's.

    Raises:
        RuntimeError: one has ended by itself.
    """
    log = server.home / f"worker-{kind}.log"
    async with AsyncExitStack() as stack:
        command = [*under, sys.executable, *PROGRAMS[kind]]
        started = [await stack.enter_async_context(_process(server, command, log)) for _ in range(count)]
        warming = asyncio.create_task(run_together(server.agents.temporal, kind, 20 * count, 1))
        ended = [asyncio.create_task(process.wait()) for process in started]
        await asyncio.wait([warming, *ended], return_when=asyncio.FIRST_COMPLETED)
        if not warming.done():
            warming.cancel()
            raise RuntimeError(f"a worker ended by itself: {' '.join(command)}\n{log.read_text()[-2000:]}")
        await warming
        yield Workers([_worker(process.pid) for process in started])


@asynccontextmanager
async def _process(server: Server, command: Sequence[str], log: Path) -> AsyncIterator[Process]:
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=server.environment, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            with suppress(psutil.NoSuchProcess):  # Ctrl-C reaches it, too
                _worker(process.pid).terminate()
        await process.wait()


def _worker(pid: int) -> psutil.Process:
    """The process itself, or that which a profiler has started; a worker starts none for these runs."""
    process = psutil.Process(pid)
    return next(iter(process.children()), process)
