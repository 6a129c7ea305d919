"""The simple machine's main ways on the real server."""

from __future__ import annotations

from typing import Any

from temporalio.client import Client, WorkflowHandle

from tests.workflows.trials import ALONE, FREELY, begin, scripted
from workflows.api import AgentResult, AgentTask

__all__ = ["SCENARIOS"]

Handle = WorkflowHandle[Any, AgentResult]


def _act(action: str, **params: Any) -> dict[str, Any]:
    return {"action": action, "params": params}


def _task(*replies: Any, **options: Any) -> AgentTask:
    return AgentTask(
        goal="try it", machine="simple", tools=("mark", "crash"), models={"default": scripted(*replies)},
        options=options, heartbeat_seconds=3, people=ALONE, approvals=FREELY,
    )  # fmt: skip


MARK = _act("mark", **{":line": "one"})


async def _finish(client: Client) -> Handle:
    return await begin(client, _task(MARK, _act("finish", answer="marked")))


async def _converged(client: Client) -> Handle:
    return await begin(client, _task(MARK, converged=["step_completed"]))


async def _failed(client: Client) -> Handle:
    return await begin(client, _task(MARK, _act("crash", line="x")))


async def _forbidden(client: Client) -> Handle:
    return await begin(client, _task({**MARK, "confidence": 0.3}))


async def _limit(client: Client) -> Handle:
    return await begin(client, _task(MARK, MARK, max_iterations=2))


SCENARIOS = {
    "simple-finish": _finish,
    "simple-converged": _converged,
    "simple-failed": _failed,
    "simple-forbidden": _forbidden,
    "simple-limit": _limit,
}
