"""What is compared: bare Temporal loops, agents, agents whose steps are fused; and a line of the table."""

from __future__ import annotations

import asyncio
import statistics
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle

from activities.contracts import ModelSpec
from benchmarks.bare import QUEUE, BareLoop, BareWait
from client.agents.catalog import pinned
from client.runs.attributes import start_attributes, start_memo
from workflows.api import TASK_QUEUE, WORKFLOW_TYPE, AgentTask, Limits

Handle = WorkflowHandle[Any, Any]
KINDS = ("bare", "off", "auto")
"""The bare loop, and agents by their `fuse`."""
TOOLS = Path(__file__).with_name("tools.py")
AT_ONCE = 100
"""Requests of the client at once: more are no faster, and the server refuses long polls beyond a limit."""
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    found: dict[str, float]
    """By kind; a kind that was not measured is missing."""
    target: str = ""
    ratio: bool = True
    """The targets are ratios to the bare loop."""

    def __str__(self) -> str:
        cells = [self._cell(kind) for kind in KINDS]
        return f"| {' | '.join([self.what, *cells, self.target])} |"

    def _cell(self, kind: str) -> str:
        value = self.found.get(kind)
        if value is None:
            return ""
        text = f"{value:,.2f}" if value < 1 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
        bare = self.found.get("bare")
        return f"{text} ({value / bare:.2f})" if self.ratio and bare and kind != "bare" else text


def heading(title: str) -> str:
    """The lines above a part of the table."""
    return f"\n### {title}\n\n| what | bare | unfused (ratio) | fused (ratio) | targets |\n|{' --- |' * 5}"


def agent(steps: int, size: int, tool: str = "text", fuse: str = "auto") -> AgentTask:
    """An agent that calls a tool so often, with results of `size` characters, then answers."""
    return AgentTask.model_validate({
        "goal": "measure", "machine": "tools", "tools": (tool,), "fuse": fuse,
        "options": {"max_iterations": steps + 2}, "limits": Limits(model_calls=steps + 2),
        "models": {"default": ModelSpec(provider="steps", name=f"{tool} {steps} {size}")},
    })  # fmt: skip


async def start(client: Client, kind: str, steps: int, size: int = 1024) -> Handle:
    """One run."""
    if kind == "bare":
        return await client.start_workflow(BareLoop.run, args=[steps, size], id=_name(kind), task_queue=QUEUE)
    return await _started(client, agent(steps, size, fuse=kind), kind)


async def start_waiting(client: Client, kind: str) -> Handle:
    """A run that will ask a model, then wait for a person, then call a tool."""
    if kind == "bare":
        return await client.start_workflow(BareWait.run, id=_name(kind), task_queue=QUEUE)
    return await _started(client, agent(1, 10, "text_once", kind), kind)


async def bare_waits(handle: Handle) -> bool:
    """A bare run has asked its model, and waits for a person."""
    events = (await handle.fetch_history()).events
    return any(event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED for event in events)


async def _started(client: Client, task: AgentTask, kind: str) -> Handle:
    """A run as the SDK starts it: with its attributes and memo."""
    task = pinned(task)
    return await client.start_workflow(
        WORKFLOW_TYPE, task, id=_name(kind), task_queue=TASK_QUEUE, memo=start_memo(task),
        search_attributes=start_attributes(task),
    )  # fmt: skip


def _name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


async def gathered(work: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """All of this, `AT_ONCE` at a time, in its order."""
    free = asyncio.Semaphore(AT_ONCE)

    async def limited(one: Callable[[], Awaitable[T]]) -> T:
        async with free:
            return await one()

    return list(await asyncio.gather(*(limited(one) for one in work)))


async def run_together(client: Client, kind: str, runs: int, steps: int) -> None:
    """Start so many runs at once, and wait until all have ended."""
    handles = await gathered([lambda: start(client, kind, steps)] * runs)
    await gathered([handle.result for handle in handles])


def medians(rounds: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The median of all rounds, by kind."""
    found: dict[str, list[float]] = {}
    for kind, value in rounds:
        found.setdefault(kind, []).append(value)
    return {kind: statistics.median(values) for kind, values in found.items()}
