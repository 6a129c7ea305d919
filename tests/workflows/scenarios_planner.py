"""The planner machine's main ways on the real server."""

from __future__ import annotations

import json
from typing import Any

from temporalio.client import Client, WorkflowHandle

from activities.contracts import ModelSpec, ScriptedReply, ToolCall
from tests.workflows.trials import ALONE, FREELY, begin, scripted
from workflows.api import AgentResult, AgentTask

__all__ = ["SCENARIOS"]

Handle = WorkflowHandle[Any, AgentResult]
PLAN = {"goal": "leave marks", "required_capabilities": ["mark"], "initial_steps": ["mark twice"]}
TOOLS = ("mark", "mark_once", "crash")


def _calls(*wanted: tuple[str, dict[str, Any]]) -> ScriptedReply:
    made = (ToolCall(id="", name=name, arguments=json.dumps(given)) for name, given in wanted)
    return ScriptedReply(reply="", tool_calls=tuple(made))


def _task(*replies: Any, models: dict[str, ModelSpec] | None = None, **options: Any) -> AgentTask:
    given = {"default": scripted(*replies), **(models or {})}
    return AgentTask(
        goal="try it",
        machine="planner",
        tools=TOOLS,
        models=given,
        options=options,
        heartbeat_seconds=3,
        people=ALONE,
        approvals=FREELY,
    )


MARKS = _calls(("mark", {"line": "one"}), ("mark", {"line": "two", "text": '{"n": 2}'}))


async def _answer(client: Client) -> Handle:
    return await begin(client, _task(PLAN, "nothing to do"))


async def _tools(client: Client) -> Handle:
    models = {"decide": scripted({"continue": True, "reason": "it is safe"})}
    replies = (PLAN, MARKS, _calls(("mark_once", {"line": "three"})), "three marks", "in short: marks")
    return await begin(client, _task(*replies, models=models, decide="model", finalize_summary=True))


async def _recorded(client: Client) -> Handle:
    failing = _calls(("crash", {"line": "x"}), ("nosuch", {}), ("mark", {"line": "after"}))
    return await begin(client, _task(PLAN, failing, "one mark", on_tool_error="record"))


async def _halted(client: Client) -> Handle:
    return await begin(client, _task(PLAN, _calls(("mark", {"line": "kept"}), ("crash", {"line": "x"}))))


async def _limit(client: Client) -> Handle:
    return await begin(client, _task(PLAN, MARKS, MARKS, max_iterations=2))


async def _no_plan(client: Client) -> Handle:
    return await begin(client, _task({"steps": []}))


SCENARIOS = {
    "planner-answer": _answer,
    "planner-tools": _tools,
    "planner-recorded": _recorded,
    "planner-halted": _halted,
    "planner-limit": _limit,
    "planner-no-plan": _no_plan,
}
