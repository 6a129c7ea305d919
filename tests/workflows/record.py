"""Records the histories that CI replays: `python -m tests.workflows.record`.

Record anew only for a new scenario or a new version of a machine: an old history that no longer
replays is a run in production that would break. Existing files are kept unless they are named.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import pkgutil
import re
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from activities.settings import Settings
from tests.conftest import MACHINES, TOOLS, real_server
from tests.workflows.trials import act, begin, final, task, until
from worker import build_worker
from workflows.api import Limits

HISTORIES = Path(__file__).parent / "histories"
MARK = ("mark",)
LONG = {"people-continues", "people-continued"}
"""Scenarios whose run goes on as new: the server suggests it early."""


async def _answer(client: Client) -> Any:
    return await begin(client, task(final("at once")))


async def _tools(client: Client) -> Any:
    replies = [act("mark", line="one"), act("crash", line="two"), act("hammer"), act("mark", line=3)]
    return await begin(client, task(*replies, final("done"), tools=("mark", "crash"), visibility="state"))


async def _format(client: Client) -> Any:
    return await begin(client, task("nonsense", "again", final("third time"), tools=MARK))


async def _bad_format(client: Client) -> Any:
    return await begin(client, task("nonsense", "nonsense", "nonsense"))


async def _rejected(client: Client) -> Any:
    return await begin(client, task({"thought": "I guess"}, {"thought": "It might be"}, final("sure")))


async def _escalated(client: Client) -> Any:
    return await begin(client, task(*[{"thought": "probably"}] * 4))


async def _flaky(client: Client) -> Any:
    return await begin(
        client, task(act("flaky", line="f"), act("broken", line="b"), final("ok"), tools=("flaky", "broken"))
    )


async def _limit(client: Client) -> Any:
    replies = [act("mark", line="l")] * 4
    return await begin(client, task(*replies, tools=MARK, limits=Limits(tool_calls=2)))


async def _max_steps(client: Client) -> Any:
    return await begin(client, task(*[act("mark", line="m")] * 3, tools=MARK, options={"max_steps": 2}))


async def _fatal(client: Client) -> Any:
    return await begin(client, task(act("mark", line="x"), tools=MARK))  # the script ends too early


async def _cancelled(client: Client) -> Any:
    handle = await begin(client, task(act("mark", line="c", seconds=30), tools=MARK))
    await until(handle, lambda status: status.state == "action")
    await handle.cancel()
    return handle


async def _signalled(client: Client) -> Any:
    handle = await begin(client, task(act("mark", line="s", seconds=0.5), final("ok"), tools=MARK))
    await handle.signal("nonsense", args=[])
    return handle


Scenario = Callable[[Client], Awaitable[WorkflowHandle[Any, Any]]]
SCENARIOS: dict[str, Scenario] = {
    "react-answer": _answer,
    "react-tools": _tools,
    "react-format-retry": _format,
    "react-bad-format": _bad_format,
    "react-rejected": _rejected,
    "react-escalated": _escalated,
    "react-flaky-tools": _flaky,
    "react-limit": _limit,
    "react-max-steps": _max_steps,
    "react-fatal": _fatal,
    "react-cancelled": _cancelled,
    "react-signalled": _signalled,
}


def _of_the_machines() -> Iterator[tuple[str, Scenario]]:
    """What `scenarios_<machine>.py` beside this file hold."""
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if info.name.startswith("scenarios_"):
            yield from importlib.import_module(f"tests.workflows.{info.name}").SCENARIOS.items()


SCENARIOS.update(_of_the_machines())


def _scrubbed(value: Any) -> Any:
    """A history without the names of the machine that made it."""
    if isinstance(value, dict):
        return {k: "" if k == "stackTrace" else _scrubbed(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_scrubbed(item) for item in value]
    if isinstance(value, str):
        return re.sub(rf"\d+@{re.escape(socket.gethostname())}", "1@recorder", value)
    return value


async def main(names: list[str]) -> None:
    """Record what is missing, and what is named."""
    wanted = [name for name in SCENARIOS if name in names or not (HISTORIES / f"{name}.json").exists()]
    await _record([name for name in wanted if name not in LONG])
    await _record([name for name in wanted if name in LONG], "limit.historyCount.suggestContinueAsNew=60")


async def _record(names: list[str], *flags: str) -> None:
    """On a server with these flags."""
    if not names:
        return
    home = Path(tempfile.mkdtemp())
    modules = (str(TOOLS), str(MACHINES))
    settings = Settings(data_dir=home / ".ratchet", files_root=home, modules=modules)
    async with real_server(settings, *flags) as client, build_worker(client, settings):
        for name in names:
            handle = await SCENARIOS[name](client)
            with suppress(WorkflowFailureError):  # a machine may end by raising
                await handle.result()
            history = json.loads((await handle.fetch_history()).to_json())
            (HISTORIES / f"{name}.json").write_text(json.dumps(_scrubbed(history), indent=1) + "\n")
            print(f"recorded {name}: {len(history['events'])} events")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
