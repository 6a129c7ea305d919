"""Runs that ask people, and how to wait for them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from activities.settings import Settings
from client.errors import NoWorker
from client.sdk.agent import AgentClient
from tests.server.trials import calls, eventually, task
from workflows.api import AgentTask
from workflows.people import Approvals, People, Request

__all__ = ["asking", "bounded", "marks", "newer", "opened", "talk", "without_worker"]


def talk(**more: Any) -> AgentTask:
    """A run of three steps."""
    return task(calls(("mark", {"line": "one"})), calls(("mark", {"line": "two"})), "both", **more)


def asking(*lines: str, **more: Any) -> AgentTask:
    """A run that wants to make unsafe calls, one after another; each writes a line."""
    replies = [calls(("mark_once", {"line": line})) for line in lines]
    defaults = {"tools": ("mark_once",), "people": People(), "approvals": Approvals()}
    return task(*replies, "done", **{**defaults, **more})


def bounded(*lines: str, calls: int) -> AgentTask:
    """The same; so many calls pass unasked."""
    rule = {"tools": ["mark_once"], "ask": "never", "at_most": {"calls": calls}}
    return asking(*lines, approvals=Approvals.model_validate({"rules": [rule]}))


async def opened(agents: AgentClient, run: str) -> Request:
    """Wait for an open request."""

    async def ask() -> tuple[Request, ...]:
        with suppress(NoWorker):  # it has just been started
            return await agents.requests(run)
        return ()

    found: tuple[Request, ...] = await eventually(ask)
    return found[0]


def marks(settings: Settings, line: str) -> int:
    """How often a call has written the line."""
    path = settings.files_root / "marks.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [one.split()[0] for one in lines].count(line)


async def newer(agents: AgentClient, run: str, than: Request) -> Request | None:
    """An open request other than that one."""
    return next((one for one in await agents.requests(run) if one.id != than.id), None)


async def without_worker(agents: AgentClient) -> bool:
    """No worker polls any more."""
    return not await agents.has_worker()
