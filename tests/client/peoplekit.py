"""Runs that ask, for tests of those who answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from client.agent import AgentClient
from tests.workflows.trials import act, final, task
from workflows.api import AgentTask
from workflows.people import Approvals, People, Request

__all__ = ["ATTENDED", "asking_task", "attended", "marks", "opened", "until_true"]

ATTENDED: dict[str, Any] = {"people": People(), "approvals": Approvals()}
"""What a task says when it says nothing of people."""


def asking_task(line: str, *, tool: str = "mark_once", **more: Any) -> AgentTask:
    """A run that wants to make one unsafe call, which writes the line, and then ends."""
    return attended(act(tool, line=line), final("done"), tools=(tool,), **more)


def attended(*replies: Any, **more: Any) -> AgentTask:
    """A trial with people around, who are asked as agents ask by themselves."""
    return task(*replies, **{**ATTENDED, **more})


async def opened(agents: AgentClient, run_id: str, count: int = 1) -> tuple[Request, ...]:
    """Wait until the run asks so many things."""
    for _ in range(1000):
        found = await agents.requests(run_id)
        if len(found) >= count:
            return found
        status = await agents.status(run_id)
        assert not status.finished, f"{run_id} ended without a question: {status}"
        await asyncio.sleep(0.02)
    raise AssertionError(f"{run_id} asks nothing")


async def until_true(holds: Callable[[], Any], seconds: float = 20) -> Any:
    """Wait until what an async function gives is true; gives it."""
    async with asyncio.timeout(seconds):
        while not (found := await holds()):  # noqa: ASYNC110  # the run is in another process
            await asyncio.sleep(0.05)
        return found


def marks(root: Path) -> list[str]:
    """The lines that calls have written, in order."""
    path = root / "marks.txt"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []
