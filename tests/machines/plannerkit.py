"""What the tests of the planner and of the simple machine share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from activities.contracts import CallTools, ToolResult, ToolsReturned
from tests.machines.driver import Play, run_script, tool
from workflows.kernel.design import Parts

__all__ = ["LOOK", "WRITE", "path", "planner", "returned"]

LOOK = tool("look", q={"type": "string"})
WRITE = tool("write", text={"type": "string"})


def planner(*answers: Any, hooks: dict[str, Callable[..., Any]] | None = None, **more: Any) -> Play:
    """A planner run with two tools at hand; keywords that are knobs go to the machine."""
    known = {"goal", "instructions", "ledger", "changed", "tools"}
    options = {name: more.pop(name) for name in list(more) if name not in known}
    parts = Parts(hooks=hooks or {})
    return run_script("planner", answers, options=options, parts=parts, **{"tools": (LOOK, WRITE), **more})


def path(run: Play) -> str:
    """The states in order, by their first letters: `I P D E O L E F`."""
    return " ".join(name[0] for name in run.visited.split())


def returned(output: str, *marks: str, error: Any = None, cost: float = 0) -> Callable[[Any], ToolsReturned]:
    """The tool that was asked for returns this."""

    def answer(effect: CallTools) -> ToolsReturned:
        (run,) = effect.runs
        result = ToolResult(id=run.id, tool=run.tool, output=output, marks=marks, error=error, cost_usd=cost)
        return ToolsReturned(results=(result,))

    return answer
