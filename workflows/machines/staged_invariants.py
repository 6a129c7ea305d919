"""What must hold in each lifecycle (spec 3.5); the kernel asks before a state is kept."""

from __future__ import annotations

from collections.abc import Callable

from workflows.kernel.log import Record
from workflows.machines.staged_context import (
    ACTING,
    FAILED,
    FINISHED,
    INITIALIZED,
    OBSERVING,
    THINKING,
    AgentState,
)
from workflows.machines.staged_options import Options

__all__ = ["invariant"]

Invariant = Callable[[AgentState, Record | None], str]
"""The empty string: it holds. Else what is wrong."""


def _initialized(c: AgentState, last: Record | None) -> str:
    if not (c.user_input or "").strip():
        return "`user_input` is not set"
    filled = [name for name in ("thought", "action", "observation") if getattr(c, name) is not None]
    return f"`{filled[0]}` is set before any stage ran" if filled else ""


def _thinking(c: AgentState, last: Record | None) -> str:
    return "" if (c.user_input or "").strip() else "`user_input` is not set"


def _acting(intents: tuple[str, ...]) -> Invariant:
    def holds(c: AgentState, last: Record | None) -> str:
        if c.thought is None:
            return "`thought` is not set"
        return "" if c.thought.intent in intents else f"the intent {c.thought.intent!r} is not defined"

    return holds


def _observing(c: AgentState, last: Record | None) -> str:
    acted = last is not None and last.state == ACTING
    return "`action` is not set, although Acting came before" if acted and c.action is None else ""


def _finished(c: AgentState, last: Record | None) -> str:
    answered = c.observation is not None and c.observation.final_answer.strip()
    return "" if answered else "`observation` has no final answer"


def _failed(c: AgentState, last: Record | None) -> str:
    return "" if c.last_error else "`last_error` is not set"


def invariant(lifecycle: str, options: Options) -> Invariant:
    """The invariant of a lifecycle; the state's own word for where it is must be true, too."""
    known: dict[str, Invariant] = {
        INITIALIZED: _initialized,
        THINKING: _thinking,
        ACTING: _acting(options.intents),
        OBSERVING: _observing,
        FINISHED: _finished,
        FAILED: _failed,
    }
    own = known.get(lifecycle)

    def holds(c: AgentState, last: Record | None) -> str:
        if c.lifecycle != lifecycle:
            return f"`lifecycle` says {c.lifecycle}"
        return own(c, last) if own else ""

    return holds
