"""What a host may answer, in few words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from activities.contracts import (
    CallTools,
    EffectFailed,
    ErrorClass,
    Message,
    ModelReplied,
    NativeCall,
    PersonDecided,
    ToolError,
    ToolResult,
    ToolsReturned,
)

__all__ = ["call", "calls", "cut", "decided", "failed", "person", "ran", "replied"]


def replied(text: str, cost: float = 0) -> ModelReplied:
    """The model replied with this text."""
    return ModelReplied(text=text, cost_usd=cost)


def call(name: str = "tool", number: int = 1, **arguments: Any) -> NativeCall:
    """One native tool call."""
    return NativeCall(id=f"c{number}", name=name, arguments=json.dumps(arguments))


def calls(*made: NativeCall | str, text: str = "", cost: float = 0) -> ModelReplied:
    """A reply with native tool calls; a bare name is a call without arguments."""
    whole = tuple(call(one, n) if isinstance(one, str) else one for n, one in enumerate(made, start=1))
    return ModelReplied(text=text, tool_calls=whole, finish_reason="tool_calls", cost_usd=cost)


def cut(reply: ModelReplied) -> ModelReplied:
    """The reply, ended by the limit of the model's output."""
    return reply.model_copy(update={"finish_reason": "length"})


def ran(
    output: str = "found", error: ToolError | None = None, cost: float = 0, **more: Any
) -> Callable[[CallTools], ToolsReturned]:
    """Every tool that was called returns this, or fails so."""

    def answer(effect: CallTools) -> ToolsReturned:
        return ToolsReturned(
            results=tuple(
                ToolResult(id=run.id, tool=run.tool, output=output, error=error, cost_usd=cost, **more)
                for run in effect.calls
            )
        )

    return answer


def failed(
    error: ErrorClass = "fatal", message: str = "server is down", type: str = "HTTP503"
) -> EffectFailed:
    """The effect could not be performed."""
    return EffectFailed(error=error, type=type, message=message)


def decided(
    decision: Literal["approve", "reject", "resume", "abort", "answer", "unavailable"], text: str = ""
) -> PersonDecided:
    """A person decided so."""
    return PersonDecided(decision=decision, text=text, by="ann")


def person(text: str) -> Message:
    """A person says this while an effect is pending."""
    return Message(role="user", content=text)
