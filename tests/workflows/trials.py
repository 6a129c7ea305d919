"""Tasks for the scripted provider, and how to run them on the real server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from temporalio.client import Client, WorkflowHandle

from activities.contracts import ModelSpec, ScriptedReply
from workflows.api import TASK_QUEUE, AgentResult, AgentStatus, AgentTask, LogPage, PageQuery
from workflows.kernel.log import Record
from workflows.people import Approvals, People

__all__ = ["ALONE", "FREELY", "act", "begin", "final", "log_of", "scripted", "task", "until"]


ALONE = People(unattended=True)
"""Nobody is there."""
FREELY = Approvals(effects={"unsafe": "never"})
"""No call needs a person."""


def act(tool: str, *, thought: str = "Next.", **arguments: Any) -> dict[str, Any]:
    """A reply that asks for a tool."""
    return {"thought": thought, "action": tool, "action_input": arguments}


def final(text: str) -> dict[str, Any]:
    """A reply that ends the run."""
    return {"thought": f"FINAL ANSWER: {text}", "action": None}


def scripted(*replies: Any, delay_seconds: float = 0) -> ModelSpec:
    """A scripted model that gives these replies, each so much later."""
    script = tuple(
        one if isinstance(one, ScriptedReply) else ScriptedReply(reply=one, delay_seconds=delay_seconds)
        for one in replies
    )
    return ModelSpec(provider="scripted", name="script", script=script)


def task(*replies: Any, tools: tuple[str, ...] = (), **more: Any) -> AgentTask:
    """A ReAct task with a script; nobody is asked for anything unless `people` and `approvals` say so."""
    models = {"default": scripted(*replies)}
    alone = {"people": ALONE, "approvals": FREELY}
    return AgentTask(goal="try it", tools=tools, models=models, heartbeat_seconds=3, **{**alone, **more})


async def begin(client: Client, given: Any, **more: Any) -> WorkflowHandle[Any, AgentResult]:
    """Start a run under a new id."""
    return await client.start_workflow(
        "AgentWorkflow", given, id=f"trial-{uuid.uuid4().hex[:12]}", task_queue=TASK_QUEUE,
        result_type=AgentResult, **more,
    )  # fmt: skip


async def until(handle: WorkflowHandle[Any, Any], reached: Callable[[AgentStatus], bool]) -> None:
    """Wait until the run's status is as wanted."""
    while not reached(await handle.query("status", result_type=AgentStatus)):  # noqa: ASYNC110  # the run is in another process
        await asyncio.sleep(0.02)


async def log_of(handle: WorkflowHandle[Any, Any]) -> list[Record]:
    """The whole log, page by page."""
    records: list[Record] = []
    while True:
        query = PageQuery(since=len(records), full=True)
        page: LogPage = await handle.query("log", query, result_type=LogPage)
        records += page.records
        if len(records) >= page.total:
            return records
