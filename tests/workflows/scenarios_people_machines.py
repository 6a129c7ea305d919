"""Histories of every machine in the hands of people: asked, steered, gone back, paused, stopped."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowUpdateFailedError
from temporalio.service import RPCError

from activities.contracts import ModelSpec, ScriptedReply, ToolCall
from tests.people.temporalkit import Handle, begun, decision, reached, requests
from tests.workflows.scenarios_code import wrote
from tests.workflows.scenarios_people import order, signal, update
from tests.workflows.trials import act, begin, final, scripted, task
from workflows.api import AgentTask
from workflows.people import Approvals, People, Request

__all__ = ["SCENARIOS"]


def _calls(*lines: str) -> ScriptedReply:
    made = (
        ToolCall(id=f"c{n}", name="mark_once", arguments=json.dumps({"line": line}))
        for n, line in enumerate(lines)
    )
    return ScriptedReply(reply="", tool_calls=tuple(made))


def _contract(line: str) -> dict[str, Any]:
    call = {"tool_id": "mark_once", "params": {"line": line}, "out_artifacts_spec": [{"name": "note"}]}
    return {"action": "call_tool", "strategy": "explore", "notes": "next", "tool_call": call}


MAPPED = {
    "action": "complete",
    "strategy": "exit",
    "completion_summary": "done",
    "map_slots": [{"slot_name": "answer", "source_path": "note"}],
}
PLAN = {"goal": "leave marks", "required_capabilities": ["mark_once"], "initial_steps": ["mark"]}
THOUGHT = {"intent": "change", "suggested_tools": ["mark_once"], "reasoning": "mark it"}
AGAIN = {"summary": "marked", "final_answer": "", "need_loop": True}
BLOCK = "a = mark_once('one')\nb = mark_once('two')\nprint(a, b)"


def _params(line: str) -> dict[str, Any]:
    return {"action": "mark_once", "params": {":line": line}}


SCRIPTS: dict[str, dict[str, ModelSpec]] = {
    "react": {"default": scripted(act("mark_once", line="one"), act("mark_once", line="two"), final("both"))},
    "tools": {"default": scripted(_calls("one", "two"), _calls("three"), "all")},
    "code": {"default": scripted(wrote(BLOCK), wrote("mark_once('three')", behind="FINAL(all)"))},
    "simple": {
        "default": scripted(
            _params("one"), _params("two"), {"action": "finish", "params": {"answer": "both"}}
        )
    },
    "staged": {
        "default": scripted(),
        "think": scripted(ScriptedReply(reply=THOUGHT)),
        "act": scripted(_calls("one")),
        "observe": scripted(ScriptedReply(reply=AGAIN)),
    },
    "planner": {"default": scripted(PLAN, _calls("one"), _calls("two"), "both")},
    "contract": {"default": scripted(_contract("one"), _contract("two"), MAPPED)},
}
"""Two unsafe calls, or more, for each machine."""
OPTIONS: dict[str, Any] = {
    "staged": {"max_iterations": 3},
    "contract": {"slots": [{"name": "answer", "budget": {"explore": 3, "exploit": 2}}]},
}


def _task(name: str, people: People, approvals: Approvals) -> AgentTask:
    more: dict[str, Any] = {"options": OPTIONS.get(name, {}), "people": people, "approvals": approvals}
    given = task(tools=("mark_once",), machine=name, **more)
    return given.model_copy(update={"models": SCRIPTS[name]})


async def _asked(handle: Handle, besides: tuple[str, ...] = ()) -> Request | None:
    """The next request that was not seen, or None when the run is over."""

    async def found() -> Any:
        over = (await handle.describe()).status != WorkflowExecutionStatus.RUNNING
        return [r for r in await requests(handle) if r.id not in besides] or ("over" if over else None)

    seen = await reached(found)
    return None if seen == "over" else seen[0]


async def _decided(name: str, client: Client) -> Handle:
    """Steered, refused, approved, gone back, paused, edited, resumed; what is asked then is rejected."""
    handle, first = await begun(client, _task(name, People(), Approvals()))
    await order(handle, "steer", by_signal=True, text="mind the gap")
    await handle.signal("decide", {**decision(first, "approve"), "digest": "0" * 32})
    await signal(handle, first, "approve", text="fine")
    second = await _asked(handle, (first.id,))
    if second is not None:
        await order(handle, "rollback", step=1)
    seen = (first.id, second.id) if second else (first.id,)
    again = await _asked(handle, seen)
    if again is not None:
        await order(handle, "pause", by_signal=True)
        await signal(handle, again, "edit", arguments={"line": "other"})
        await order(handle, "resume")
    return await _to_the_end(handle)


async def _to_the_end(handle: Handle) -> Handle:
    """Reject what is still asked; abort what does not end by it."""
    for _ in range(6):
        request = await _asked(handle)
        if request is None:
            return handle
        with suppress(WorkflowUpdateFailedError, RPCError):
            await update(handle, request, "reject", text="enough")
    await order(handle, "abort", text="enough")
    return handle


async def _stopped(name: str, client: Client) -> Handle:
    """It stands still before its second step, is told something, and is aborted there."""
    people = People(interrupt_every=1, notify=("opened", "closed"))
    free = Approvals(effects={"unsafe": "never"})
    handle = await begin(client, _task(name, people, free))
    request = await _asked(handle)
    if request is not None:
        await update(handle, request, "resume", text="go on, and mind the gap")
        await order(handle, "abort", by_signal=True, text="enough")
    return handle


SCENARIOS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    **{f"people-{name}-decided": partial(_decided, name) for name in SCRIPTS},
    **{f"people-{name}-stopped": partial(_stopped, name) for name in SCRIPTS},
}
