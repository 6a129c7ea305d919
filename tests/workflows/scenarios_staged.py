"""Histories of the staged machine: its main ways on the real server.

Each stage makes its prompt anew, so each role's script has one entry: `expect` looks at the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio.client import Client

from activities.contracts import ModelSpec, ScriptedReply, ToolCall
from tests.workflows.trials import ALONE, FREELY, begin, final
from workflows.api import AgentTask

__all__ = ["SCENARIOS", "acts", "models", "observes", "staged", "thinks"]

TOOLS = ("mark", "crash")


def thinks(*tools: str, otherwise: Any = None, expect: str | None = None) -> ScriptedReply:
    """A thought that suggests these tools."""
    thought = {"intent": "change", "suggested_tools": list(tools), "reasoning": "mark it"}
    return ScriptedReply(reply=thought, expect=expect, otherwise=otherwise)


def acts(*calls: tuple[str, Any]) -> ScriptedReply:
    """A reply that asks for these tools."""
    made = tuple(
        ToolCall(id=f"c{n}", name=name, arguments=given if isinstance(given, str) else json.dumps(given))
        for n, (name, given) in enumerate(calls)
    )
    return ScriptedReply(reply="", tool_calls=made)


def observes(answer: str = "", **more: Any) -> ScriptedReply:
    """An observation: with an answer the last one, without one there is to be another pass."""
    seen = {"summary": "marked", "final_answer": answer, "need_loop": not answer}
    return ScriptedReply(reply=seen, **more)


def models(**replies: ScriptedReply) -> dict[str, ModelSpec]:
    """A script of one entry for each role."""
    made = {r: ModelSpec(provider="scripted", name="script", script=(one,)) for r, one in replies.items()}
    return {"default": ModelSpec(provider="scripted", name="script"), **made}


def staged(replies: dict[str, ModelSpec], **options: Any) -> AgentTask:
    """A task of the staged machine."""
    return AgentTask(
        goal="mark it",
        machine="staged",
        tools=TOOLS,
        models=replies,
        options=options,
        heartbeat_seconds=3,
        people=ALONE,
        approvals=FREELY,
    )


FIRST = "Pass 1 of"
NO_TOOL = {"intent": "general_inquiry", "suggested_tools": [], "reasoning": "all is known"}
DONE = {"summary": "marked", "final_answer": "it is marked", "need_loop": False}
MARKS = acts(("mark", {"line": "one"}), ("crash", {"line": "two"}), ("mark", "{bad"), ("nosuch", {}))


async def _answer(client: Client) -> Any:
    return await begin(client, staged(models(think=thinks(), observe=observes("at once"))))


async def _passes(client: Client) -> Any:
    """Two passes; of the first one's tools one works, one fails, and two cannot be run."""
    replies = models(
        think=thinks("mark", "crash", expect=FIRST, otherwise=NO_TOOL),
        act=MARKS,
        observe=observes(expect=FIRST, otherwise=DONE),
    )
    return await begin(client, staged(replies))


async def _forced(client: Client) -> Any:
    """It never has enough, so the second pass has to answer, and does not."""
    replies = models(think=thinks("mark"), act=acts(("mark", {"line": "f"})), observe=observes())
    return await begin(client, staged(replies, max_iterations=2))


async def _exhausted(client: Client) -> Any:
    """The same with a limit that fails the run, and a failure that is raised."""
    replies = models(think=thinks("mark"), act=acts(("mark", {"line": "e"})), observe=observes())
    options = {"max_iterations": 2, "on_max_iterations": "fail", "raise_on_failure": True}
    return await begin(client, staged(replies, **options))


async def _no_call(client: Client) -> Any:
    """Tools are suggested, and the model asks for none."""
    return await begin(client, staged(models(think=thinks("mark"), act=ScriptedReply(reply="I would not"))))


STAGES = [
    {"name": "think", "flow_type": "think", "enters": "Thinking", "exits": ["Acting"]},
    {
        "name": "ask", "flow_type": "machine", "enters": "Acting", "exits": ["Observing"], "tools": ["mark"],
        "reads": ["thought"], "writes": ["action"], "machine": {"name": "react", "merge": "action"},
    },
    {"name": "observe", "flow_type": "observe", "enters": "Observing", "exits": ["Reviewing", "Thinking"]},
    {
        "name": "review", "flow_type": "model", "enters": "Reviewing", "exits": ["Finished", "Thinking"],
        "reads": ["iteration", "observation"], "writes": ["extensions"], "extension": {"remark": "?"},
    },
]  # fmt: skip


async def _review(client: Client) -> Any:
    """A whole machine in the place of the tools, and a review that sends the first answer back."""
    back = {"lifecycle": "Thinking", "extensions": {"remark": "look again"}}
    good = {"lifecycle": "Finished", "extensions": {"remark": "nothing"}}
    replies = models(
        think=thinks("mark"),
        observe=observes("seen", expect="react .*returned:\nit is there"),
        custom=ScriptedReply(reply=back, expect=FIRST, otherwise=good),
        default=ScriptedReply(reply=final("it is there")),
    )
    return await begin(client, staged(replies, stages=STAGES))


SCENARIOS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "staged-answer": _answer,
    "staged-passes": _passes,
    "staged-forced": _forced,
    "staged-exhausted": _exhausted,
    "staged-no-call": _no_call,
    "staged-review": _review,
}
