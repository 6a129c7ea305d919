"""Tool calls as a model's reply carries them: names that may be anything, ids that may be missing. Pure."""

from __future__ import annotations

from activities.contracts import JsonObject, Message, ToolCall
from workflows.machines.json_text import NotJson, read_arguments

__all__ = ["arguments_of", "shown_name", "with_own_ids"]

NAME_SHOWN = 100
"""Characters of a tool's name in errors and messages; no tool has so many."""


def shown_name(name: str) -> str:
    """The name of a tool as a model gave it, which may be anything: cut, and visible if it is empty."""
    return f"{name[: NAME_SHOWN - 1]}…" if len(name) > NAME_SHOWN else name or '""'


def arguments_of(call: ToolCall) -> JsonObject | NotJson:
    """The arguments of a call, or in words for the model why they cannot be used."""
    read = read_arguments(call.arguments)
    if not isinstance(read, NotJson):
        return read
    return NotJson(f"the arguments cannot be used: {read.problem}")


def with_own_ids(message: Message, position: int) -> Message:
    """The reply with an id of its own for each call: a missing one, or one that came before, is made
    from the reply's position in the conversation. Servers refuse two results of one id."""
    made: dict[str, ToolCall] = {}
    for number, call in enumerate(message.tool_calls):
        own = call.id if call.id and call.id not in made else f"call_{position}_{number}"
        while own in made:
            own += f"_{number}"
        made[own] = call.model_copy(update={"id": own})
    return message.model_copy(update={"tool_calls": tuple(made.values())})
