"""A worker as its own process, to be killed: `python -m tests.workflows.crash_worker ADDRESS HOME`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from activities.settings import Settings
from client.plugin import connect
from tests.conftest import TOOLS
from worker import build_worker


async def main(address: str, home: Path) -> None:
    """Work until killed."""
    settings = Settings(data_dir=home / ".ratchet", files_root=home, modules=(str(TOOLS),))
    client = await connect(settings, target_host=address)
    async with build_worker(client, settings):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
