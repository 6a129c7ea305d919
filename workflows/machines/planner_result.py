"""How a planner run ended, for people and programs (spec 4.7)."""

from __future__ import annotations

from typing import Any

from activities.contracts import JsonObject
from workflows.kernel.machine import Exit
from workflows.machines.planner_context import Context
from workflows.machines.planner_fsm import S

__all__ = ["result_of"]


def result_of(c: Context, state: Any) -> Exit:
    """The result, with the run's one audit record; HALT raises (R-003-9)."""
    done, reason = state is S.FINALIZE, c.exit_reason or "running"
    ended: JsonObject = {"done": done, "iterations": c.iteration}
    ended |= {"final_message": c.final_message} if done else {"error": c.error or reason}
    plan = c.state.get("plan")
    audit: JsonObject = {
        "input": c.goal,
        "decision": None if plan is None else {"action": "plan", "params": plan},
        "result": ended,
    }
    more: JsonObject = {"summary_error": c.summary_error} if c.summary_error else {}
    outcome = {**ended, "state": c.shared, "fsm_history": list(c.history), **more, "audit": audit}
    if done:
        return Exit(reason=reason, ok=True, answer=c.final_message, outcome=outcome)
    raises = "MaxIterationsExceeded" if reason == "max_iterations" else "ExecutionError"
    halted = state is S.HALT
    return Exit(
        reason=reason,
        error=f"Agent halted: {c.error}" if halted else c.error,
        outcome=outcome,
        raises=raises if halted else None,
    )
