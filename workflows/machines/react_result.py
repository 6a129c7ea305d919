"""How a ReAct run ended, for people and programs (spec 1.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workflows.kernel.machine import Exit
from workflows.machines.react_context import Context, Options

__all__ = ["result_of"]


def result_of(options: Options) -> Callable[[Context, Any], Exit]:
    """The machine's `result` under these knobs."""

    def result(c: Context, state: Any) -> Exit:
        reason = str(c.metadata.get("exit_reason") or "running")
        ok = reason == "goal_achieved"
        return Exit(
            reason=reason,
            ok=ok,
            answer=c.answer if ok else None,
            error=None if ok else _error(c, options, reason),
            outcome=dict(c.metadata),
        )

    return result


def _error(c: Context, options: Options, reason: str) -> str:
    metadata = c.metadata
    why = metadata.get("retry_reason") or "no reason was recorded"
    last = c.steps[-1] if c.steps else None
    failed = (
        f"; the last step failed: {last.observation[:300]}"
        if last and not last.thought and last.observation
        else ""
    )
    words = {
        "max_steps": f"no final answer within {len(c.steps)} steps; `max_steps` is {options.max_steps}"
        + failed,
        "cost_limit": f"{c.total_cost:g} USD were spent; `cost_limit` is {options.cost_limit:g}",
        "rule_violation": metadata.get("rule_violation"),
        "fatal_error": metadata.get("fatal_error"),
        "aborted": "a person ended the run",
        "flagged": "the run ended because its state was marked `terminated`",
        "retries_exhausted": f"{c.retry_count} thoughts were rejected and no person could be asked: {why}",
    }
    return str(words.get(reason) or reason)
