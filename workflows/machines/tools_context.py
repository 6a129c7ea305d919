"""What the tools machine remembers, and its knobs (spec 2.5, 2.8)."""

from __future__ import annotations

from enum import Enum
from itertools import dropwhile, takewhile
from typing import Annotated, Literal

from pydantic import Field

from activities.contracts import Frozen, JsonObject, Strict
from activities.transcript import Message, ToolCall, Transcript
from workflows.kernel.fields import APPEND, COUNT, FIRST, MERGE
from workflows.kernel.policies import PolicySpec

__all__ = ["Context", "Options", "S", "brought"]


class S(Enum):
    """The states of spec 2.5."""

    INIT = "INIT"
    PROMPTING = "PROMPTING"
    EXECUTING_TOOLS = "EXECUTING_TOOLS"
    DONE = "DONE"


class Context(Frozen):
    """All that a run with native tool calls remembers between states."""

    tools: tuple[str, ...]
    depth: int = 0
    transcript: Annotated[Transcript, APPEND] = Transcript()
    open_calls: bool = False
    """The newest message asks for tools, and their results are not there yet."""
    cut: bool = False
    """The newest reply ended at the limit of the model's output."""
    held: tuple[str, ...] = ()
    """What a person said while calls were open; nothing may come between calls and their results."""
    iteration: Annotated[int, COUNT] = 0
    """Tool turns that are complete."""
    policy_memory: Annotated[JsonObject, MERGE] = {}
    """What each stopping policy remembers."""
    finish: Annotated[str | None, FIRST] = None
    """Why the run ended."""
    policy: str | None = None
    """The policy that stopped it."""
    error: str | None = None
    raises: str | None = None
    """Name of the error that leaves the run."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that wait for their results."""
        return self.transcript.messages[-1].tool_calls if self.open_calls else ()

    @property
    def reply(self) -> str:
        """The text of the newest message, which is the model's wherever this is read."""
        return self.transcript.messages[-1].content

    @property
    def last_result(self) -> str:
        """What the last complete iteration brought; empty before the first."""
        return brought(self.transcript.messages)


def brought(messages: tuple[Message, ...]) -> str:
    """The contents of the newest tool turn, one below the other; empty before the first."""
    turn = dropwhile(lambda message: message.role != "tool", reversed(messages))
    contents = [message.content for message in takewhile(lambda message: message.role == "tool", turn)]
    return "\n".join(reversed(contents))


class Options(Strict):
    """The knobs of spec 2.8 for tools mode."""

    max_iterations: int = Field(
        default=10, ge=1, le=10_000, description="tool turns; then the model must answer [2.5, 2.8]"
    )
    unknown_tool: Literal["raise", "report"] = Field(
        default="raise", description="raise: the run fails; report: the model is told [R-001-7]"
    )
    parallel_tools: bool = Field(
        default=False, description="calls of one reply run side by side if all may be repeated [2.5]"
    )
    max_calls_per_reply: int = Field(
        default=100,
        ge=1,
        le=10_000,
        description="tool calls of one reply that may run; the model is told that the rest were not run",
    )
    policies: tuple[PolicySpec, ...] = Field(
        default=(),
        description="stopping policies, asked in this order: max_tokens, max_cost, no_progress, "
        "repeated_call, or one that the worker has loaded [2.6]",
    )
    max_tool_attempts: int = Field(
        default=1, ge=1, le=20, description="per tool call, in all; 1: none is repeated [6.1]"
    )
    max_model_attempts: int = Field(
        default=1, ge=1, le=20, description="per model call, in all; 1: none is repeated [6.1]"
    )
