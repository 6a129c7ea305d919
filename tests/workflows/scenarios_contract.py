"""The contract machine's main ways on the real server."""

from __future__ import annotations

from typing import Any

from temporalio.client import Client, WorkflowHandle

from activities.contracts import ScriptedReply
from tests.workflows.trials import ALONE, FREELY, begin, scripted
from workflows.api import AgentResult, AgentTask

__all__ = ["SCENARIOS"]

Handle = WorkflowHandle[Any, AgentResult]
ANSWER = {"name": "answer", "budget": {"explore": 2, "exploit": 2}}


def _task(*replies: Any, slots: tuple[Any, ...] = (ANSWER,), **options: Any) -> AgentTask:
    return AgentTask(
        goal="try it",
        machine="contract",
        tools=("mark", "crash"),
        models={"default": scripted(*replies)},
        options={"slots": list(slots), **options},
        heartbeat_seconds=3,
        people=ALONE,
        approvals=FREELY,
    )


def _call(tool: str, *names: str, strategy: str = "explore", **params: Any) -> dict[str, Any]:
    spec = [{"name": name} for name in names]
    call = {"tool_id": tool, "params": params, "out_artifacts_spec": spec}
    return {"action": "call_tool", "strategy": strategy, "notes": "next", "tool_call": call}


def _done(*pairs: tuple[str, str]) -> dict[str, Any]:
    maps = [{"slot_name": slot, "source_path": path} for slot, path in pairs]
    return {"action": "complete", "strategy": "exit", "completion_summary": "done", "map_slots": maps}


ROWS = _call("mark", "rows", "note", line="", text='{"rows": [{"name": "Ann"}], "note": "one row"}')
SHOW = {"action": "decision", "strategy": "exploit", "show_artifacts": ["rows"], "show_skills": ["style"]}


async def _answer(client: Client) -> Handle:
    """Two slots out of one object, one of them by a path; the model reads a part of it before."""
    heard = ScriptedReply(
        expect=r'SHOWN artifact rows\n<<<\n\[\{"name":"(?P<name>\w+)"',
        reply={**_done(("answer", "rows[0].name"), ("note", "note")), "completion_summary": "it is {name}"},
    )
    slots = (ANSWER, {"name": "note"})
    return await begin(
        client,
        _task(_call("crash", "x", line="c"), ROWS, SHOW, heard, slots=slots, skills={"style": "Be brief."}),
    )


async def _wrapped_up(client: Client) -> Handle:
    return await begin(client, _task(ROWS, _done(), _done(("answer", "note"))))


async def _violations(client: Client) -> Handle:
    return await begin(client, _task("nonsense", _call("nosuch", "x"), _call("mark", line="l"), _done()))


async def _overdraft(client: Client) -> Handle:
    exploit = _call("mark", "b", line="two", strategy="exploit")
    caps = {"tool_calls": 1, "exploit": 1}
    replies = (_call("mark", "a", line="one"), exploit, _done(("answer", "b"), ("answer", "nosuch")))
    return await begin(client, _task(*replies, caps=caps))


async def _long(client: Client) -> Handle:
    """A slot whose text is read when the run ends; every payload stays small enough for the history."""
    return await begin(
        client, _task(_call("mark", "text", line="l", text="x" * 4200), _done(("answer", "text")))
    )


async def _fatal(client: Client) -> Handle:
    return await begin(client, _task(ROWS))  # the script ends too early


SCENARIOS = {
    "contract-answer": _answer,
    "contract-wrapped-up": _wrapped_up,
    "contract-violations": _violations,
    "contract-overdraft": _overdraft,
    "contract-long": _long,
    "contract-fatal": _fatal,
}
