"""What the benchmark's agents use: tools and a model that take no time."""

from __future__ import annotations

from pydantic import BaseModel

from activities.contracts import ModelReplied, NativeCall
from activities.provider import ModelCall
from activities.settings import Settings
from ratchet import Tool


class Wanted(BaseModel, frozen=True, extra="forbid"):
    """Return a text."""

    size: int
    """In characters."""


async def text(params: Wanted) -> str:
    """So many characters."""
    return "x" * params.size


TOOLS = [
    Tool(name="text", params=Wanted, run=text, effect="read", news="always"),
    Tool(name="text_once", params=Wanted, run=text, effect="unsafe", news="always"),
]


class Steps:
    """A model that is named after what it does: `<tool> <calls> <characters>`; then it answers."""

    name, description = "steps", "calls a tool so often, then answers"

    def __init__(self, settings: Settings) -> None:
        """It needs none."""

    async def complete(self, call: ModelCall) -> ModelReplied:
        """The next call."""
        tool, calls, size = call.model.name.split()
        done = len(call.conversation) // 2 - 1  # instructions and goal, then a reply and a result for each
        if done == int(calls):
            return ModelReplied(text="done")
        return ModelReplied(
            text="", tool_calls=(NativeCall(id=f"c{done}", name=tool, arguments=f'{{"size": {size}}}'),)
        )


PROVIDER = Steps
