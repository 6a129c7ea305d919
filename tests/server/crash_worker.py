"""Workers to be killed: `python -m tests.server.crash_worker ADDRESS HOME`.

For each line on its input it forks a worker that has imported everything, and prints its process id.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from activities.settings import Settings
from client.connection import open_client
from tests.server.conftest import TOOLS
from worker import build_worker


async def work(address: str, home: Path) -> None:
    """Work until killed."""
    settings = Settings(data_dir=home / ".ratchet", files_root=home, modules=(str(TOOLS),))
    client = await open_client(settings, {"target_host": address})
    async with build_worker(client, settings):
        await asyncio.Event().wait()


def main(address: str, home: Path) -> None:
    """Fork workers; each is waited for when the next one is wanted."""
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the worker's log
            asyncio.run(work(address, home))
            os._exit(0)
        print(pid, flush=True)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
