"""What the world may answer, in few words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from activities.contracts import (
    CallTools,
    EffectFailed,
    ErrorClass,
    ModelReplied,
    PersonDecided,
    ToolError,
    ToolResult,
    ToolsReturned,
)

__all__ = ["act", "decided", "failed", "final", "said", "thought", "tool_failed", "tool_said"]


def said(text: str, cost: float = 0) -> ModelReplied:
    """The model replied with this text."""
    return ModelReplied(text=text, cost_usd=cost)


def thought(text: str, cost: float = 0) -> ModelReplied:
    """A thought without an action."""
    return said(json.dumps({"thought": text, "action": None, "action_input": {}}), cost)


def act(action: str, words: str = "I look", cost: float = 0, **given: Any) -> ModelReplied:
    """A thought with an action."""
    return said(json.dumps({"thought": words, "action": action, "action_input": given}), cost)


def final(answer: str = "42", cost: float = 0) -> ModelReplied:
    """A thought with the final answer."""
    return thought(f"FINAL ANSWER: {answer}", cost)


def tool_said(output: str = "found", cost: float = 0) -> Callable[[CallTools], ToolsReturned]:
    """Every tool that was asked for returns this."""
    return _each(output, None, cost)


def tool_failed(
    error: ToolError, output: str = "broken", cost: float = 0
) -> Callable[[CallTools], ToolsReturned]:
    """Every tool that was asked for fails so."""
    return _each(output, error, cost)


def _each(output: str, error: ToolError | None, cost: float) -> Callable[[CallTools], ToolsReturned]:
    def answer(effect: CallTools) -> ToolsReturned:
        results = (
            ToolResult(id=run.id, tool=run.tool, output=output, error=error, cost_usd=cost)
            for run in effect.runs
        )
        return ToolsReturned(results=tuple(results))

    return answer


def decided(decision: Literal["resume", "abort", "answer", "unavailable"], text: str = "") -> PersonDecided:
    """A person decided so."""
    return PersonDecided(decision=decision, text=text, by="ann")


def failed(error: ErrorClass, message: str = "server is down", kind: str = "HTTP503") -> EffectFailed:
    """The effect could not be performed."""
    return EffectFailed(error=error, type=kind, message=message)
