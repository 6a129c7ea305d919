"""A call that the model proposes: judged by the policy, then run (spec 4.4)."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

from workflows.machines.authoring import CallTools, EffectError, NativeCall, Run, ToolCall, ToolResult, do
from workflows.machines.common.json_text import shown_name
from workflows.machines.planner.context import Planner, shared
from workflows.machines.planner.policy import STEP_COMPLETED, TOOL_CALLED, Progress, Proposal, cause

__all__ = ["CallFailure", "forbidden", "marked", "ran"]


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A call that was not run, or failed."""

    reason: str
    """The exit reason, if it halts the run."""
    error: str
    """As it is recorded, for the model."""
    halts: str = ""
    """Why the run halts; empty: it goes on."""


def forbidden(
    c: Planner, run: Run, proposal: Proposal, pending: Iterable[NativeCall] = ()
) -> CallFailure | None:
    """What the policy has against the proposal."""
    violation = run.prepared.policy.violation(proposal, lambda: shared(c, pending))
    if not violation:
        return None
    text = f"Policy violation: {violation}"
    halts = run.options.on_policy_violation == "halt"
    return CallFailure("policy_violation", text, text if halts else "")


def ran(
    run: Run, proposal: Proposal, call_id: str, number: int
) -> Generator[Any, Any, ToolResult | CallFailure]:
    """Run one tool; the result is one that the tool returned. An unknown tool is like one that fails."""
    name = proposal.action or ""
    if name not in run.input.tool_names:
        return _failed(run, name, f"Unknown tool: {shown_name(name)}")
    call = ToolCall(id=call_id, tool=name, arguments=dict(proposal.params))
    effect = CallTools(calls=(call,), attempts=run.options.max_tool_attempts, label=f"call #{number}")
    try:
        returned = yield from do(effect)
    except EffectError as error:
        return _failed(run, name, cause(error), lost=error.error == "unknown_outcome")
    result = returned.results[0]
    if result.ok:
        return result
    if result.error in {"rejected", "expired"}:
        # A person did not let it run. Neither the tool failed nor the policy forbids it: the model is told.
        return CallFailure("", result.output)
    return _failed(run, name, result.output or str(result.error), lost=result.error == "unknown_outcome")


def _failed(run: Run, name: str, text: str, *, lost: bool = False) -> CallFailure:
    """A tool that failed; one whose outcome is unknown always halts the run."""
    halts = lost or run.options.on_tool_error == "halt"
    reason = "unknown_outcome" if lost else "tool_failure"
    return CallFailure(reason, text, f"Tool failure: {shown_name(name)}: {text}" if halts else "")


def marked(c: Planner, result: ToolResult) -> tuple[str, ...]:
    """The marks with those of a tool that ran (R-003-10)."""
    return Progress(c.marks).mark(TOOL_CALLED, STEP_COMPLETED, *result.marks).marks
