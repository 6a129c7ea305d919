"""Histories of the tools machine: its main ways on the real server."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio.client import Client

from activities.contracts import ScriptedReply, ToolCall
from tests.workflows.trials import begin, task

__all__ = ["SCENARIOS"]


def _asks(*made: tuple[str, Any], text: str = "") -> ScriptedReply:
    """A reply with tool calls: name and arguments, or their text."""
    calls = tuple(
        ToolCall(id=f"c{n}", name=name, arguments=given if isinstance(given, str) else json.dumps(given))
        for n, (name, given) in enumerate(made, start=1)
    )
    return ScriptedReply(reply=text, tool_calls=calls)


def _mark(line: str) -> tuple[str, Any]:
    return "mark", {"line": line}


async def _begin(client: Client, *replies: Any, **options: Any) -> Any:
    tools = ("mark", "mark_once", "crash", "flaky")
    return await begin(client, task(*replies, tools=tools, machine="tools", options=options))


async def _calls(client: Client) -> Any:
    """Several calls of one reply, among them one that fails and two with bad arguments."""
    several = _asks(
        _mark("one"),
        ("crash", {"line": "two"}),
        ("mark", "{bad"),
        ("mark", {"lin": 3}),
        ("mark_once", {"line": "4"}),
    )
    return await _begin(client, several, _asks(_mark("five"), text="once more"), "done")


async def _parallel(client: Client) -> Any:
    several = _asks(_mark("one"), _mark("two"), _mark("three"))
    mixed = _asks(_mark("four"), ("mark_once", {"line": "five"}))  # not side by side: one is unsafe
    return await _begin(client, several, mixed, "done", parallel_tools=True)


async def _max_iterations(client: Client) -> Any:
    asks = _asks(_mark("again"))
    return await _begin(client, asks, asks, _asks(_mark("never"), text="enough"), max_iterations=2)


async def _policy_stop(client: Client) -> Any:
    return await _begin(client, *[_asks(_mark("same"))] * 3, policies=["repeated_call"])


async def _unknown_tool(client: Client) -> Any:
    return await _begin(client, _asks(_mark("one"), ("nosuch", {}), _mark("never")))


async def _reported(client: Client) -> Any:
    replies = [_asks(("nosuch", {}), _mark("one")), _asks(("flaky", {"line": "two"})), "done"]
    return await _begin(client, *replies, unknown_tool="report", max_tool_attempts=3)


async def _model_fails(client: Client) -> Any:
    return await _begin(client, _asks(_mark("one")))  # the script ends too early


SCENARIOS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "tools-calls": _calls,
    "tools-parallel": _parallel,
    "tools-max-iterations": _max_iterations,
    "tools-policy-stop": _policy_stop,
    "tools-unknown-tool": _unknown_tool,
    "tools-reported": _reported,
    "tools-model-fails": _model_fails,
}
