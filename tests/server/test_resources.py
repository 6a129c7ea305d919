"""Resources of tools in a worker: opened once, shared by its runs, closed behind the last call."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from temporalio.client import Client

from activities.settings import Settings
from client.server.connection import open_client
from client.server.worker import build_worker
from tests.server.trials import begin, calls, task

MODULE = '''
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel
from ratchet import Resource, Tool

FILE = Path(__file__).with_name("happened.txt")

def note(text: str) -> None:
    with FILE.open("a") as file:
        file.write(text + "\\n")

@asynccontextmanager
async def open_book() -> AsyncIterator[str]:
    note("open")
    yield "book"
    note("close")

class Params(BaseModel):
    """Write into the book."""
    line: str

async def write(params: Params, book: Annotated[str, Resource(open_book)]) -> str:
    note(f"{book}: {params.line}")
    return "written"

TOOL = Tool(name="book_line", params=Params, run=write, effect="idempotent")
'''


async def test_runs_of_a_worker_share_what_is_opened_once(
    temporal: Client, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "book.py").write_text(MODULE)
    own = settings.model_copy(update={"modules": (str(tmp_path / "book.py"),)})
    client = await open_client(own, {"target_host": temporal.service_client.config.target_host})
    queue, happened = uuid.uuid4().hex, tmp_path / "happened.txt"
    lines = ("one", "two")
    tasks = [task(calls(("book_line", {"line": line})), "done", tools=("book_line",)) for line in lines]
    async with build_worker(client, own, queue):
        assert not happened.exists()
        runs = await asyncio.gather(*(begin(client, one, task_queue=queue) for one in tasks))
        assert [(await run.result()).ok for run in runs] == [True, True]
        assert "close" not in happened.read_text()
    opened, *written, closed = happened.read_text().splitlines()
    assert (opened, sorted(written), closed) == ("open", ["book: one", "book: two"], "close")
