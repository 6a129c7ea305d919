"""The activity ids of an effect's calls."""

from __future__ import annotations

from typing import Any

from activities.contracts import CallTools, Effect, Together, ToolCall

__all__ = ["members", "tool_calls"]


def members(effect: Effect[Any], place: str) -> tuple[tuple[str, Effect[Any]], ...]:
    """The effect's single effects with their activity ids."""
    if not isinstance(effect, Together):
        return ((place, effect),)
    return tuple((f"{place}.{number}", member) for number, member in enumerate(effect.effects))


def tool_calls(effect: Effect[Any], place: str) -> dict[str, ToolCall]:
    """The tool calls among them, by activity id."""
    return {
        (name if len(member.calls) == 1 else f"{name}.{number}"): call
        for name, member in members(effect, place)
        if isinstance(member, CallTools)
        for number, call in enumerate(member.calls)
    }
