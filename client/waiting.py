"""Runs that wait in the embedded server: can a worker here go on with them, and how do they fare?"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from activities.settings import Settings
from client.agent import AgentClient
from client.catalog import Catalog, check_key
from client.errors import RatchetError, UsageError
from client.listing import RunLine
from client.view import LiveView
from client.workerconfig import recalled
from workflows.api import AgentTask

__all__ = ["check_waiting", "telling_trouble", "use_remembered_server"]

LOOK_SECONDS = 1.0


async def check_waiting(agents: AgentClient, settings: Settings, lines: Iterable[RunLine]) -> None:
    """Raise a UsageError when a worker here would break a waiting run for want of a key or a module.

    Runs that were asked to stop need nothing more.
    """
    catalog = Catalog.load(settings)
    found = []
    for line in lines:
        task = await agents.waiting_task(line.id)
        if task is not None:
            found += [f"  {line.id}: {problem}" for problem in _lacks(task, catalog, settings)]
    if found:
        raise UsageError(
            "a worker here would break runs that wait in this directory:\n"
            + "\n".join(found)
            + "\nGive them what they need, end them with `ratchet cancel RUN`, or name another "
            "directory with --data-dir"
        )


def _lacks(task: AgentTask, catalog: Catalog, settings: Settings) -> Iterable[str]:
    if not any(design.name == task.machine for design in catalog.designs):
        yield f"there is no machine {task.machine}; name its module with RATCHET_MODULES"
    there = {tool.name for tool in catalog.tools}
    missing = [name for name in task.tools if name not in there]
    if missing:
        yield f"there is no tool {', '.join(missing)}; name its module with RATCHET_MODULES"
    typed = recalled(settings.data_dir).openai_base_url
    server = os.environ.get("OPENAI_BASE_URL", "").strip()
    for spec in task.models.values():
        if typed and spec.base_url == typed != server:
            yield f"it was given the server {typed}; go on with `ratchet run --resume`"
    try:
        check_key(task.models.values())
    except UsageError as error:
        yield str(error)


def use_remembered_server(settings: Settings) -> None:
    """The server that was typed for a run of this directory is sent the key again."""
    typed = recalled(settings.data_dir).openai_base_url
    if typed and not os.environ.get("OPENAI_BASE_URL", "").strip():
        os.environ["OPENAI_BASE_URL"] = typed


@asynccontextmanager
async def telling_trouble(agents: AgentClient, run_id: str, view: LiveView) -> AsyncIterator[None]:
    """Meanwhile, show what a model is saying, and say when something fails and is tried again."""
    looking = asyncio.create_task(_look(agents, run_id, view))
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


async def _look(agents: AgentClient, run_id: str, view: LiveView) -> None:
    told = ""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        with suppress(RatchetError):
            now = await agents.now(run_id)
            view.saying(now.text)
            if now.trouble and now.trouble != told:
                view.trouble(now.trouble)
            told = now.trouble or told
