"""Workers to be killed; its words are the address of a server, a folder and modules.

For each line on its input, a task queue and perhaps another address, it forks a worker that has imported
everything, and prints its process id.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from activities.logs import configure
from activities.settings import Settings
from client.errors import RatchetError
from client.server.connection import open_client
from worker import build_worker


async def work(address: str, settings: Settings, queue: str) -> None:
    """Work until killed; wait for a server that is away, as `python worker.py` does."""
    while True:
        try:
            client = await open_client(settings, {"target_host": address})
            async with build_worker(client, settings, queue):
                await asyncio.Event().wait()
        except (RatchetError, RuntimeError) as error:
            print(f"begins again: {error}", flush=True)
            await asyncio.sleep(0.5)


def main() -> None:
    """Fork workers in a group of processes of their own; the system takes away those that were killed."""
    os.setsid()
    address, home, modules = sys.argv[1], Path(sys.argv[2]), tuple(sys.argv[3:])
    with (home / "workers.log").open("ab") as file:  # through a pipe: a worker's disk may be full
        log = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file).stdin
    assert log is not None
    settings = Settings(data_dir=home / ".ratchet", files_root=home, modules=modules)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
            configure(settings)
            queue, _, other = line.strip().partition(" ")
            asyncio.run(work(other or address, settings, queue))
            os._exit(0)
        print(pid, flush=True)
