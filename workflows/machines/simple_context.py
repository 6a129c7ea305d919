"""What the simple machine remembers, and its knobs (spec 4.10, 4.11)."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from activities.contracts import Frozen, JsonObject, Strict
from activities.transcript import Transcript
from workflows.kernel.fields import ADD, APPEND, COUNT, FIRST, MERGE

__all__ = ["Context", "Options", "S"]


class S(Enum):
    """Decide, act, and the two ends."""

    DECIDE = "decide"
    ACT = "act"
    DONE = "done"
    FAILED = "failed"


class Context(Frozen):
    """All that a simple run remembers between states."""

    goal: str
    tools: tuple[str, ...] = ()
    transcript: Annotated[Transcript, APPEND] = Transcript()
    given: str = ""
    """The input of this step."""
    decision: JsonObject | None = None
    """`{action, params, confidence}` of this step."""
    state: Annotated[JsonObject, MERGE] = {}
    """What tools returned as JSON objects, merged deeply (spec 4.9)."""
    result: JsonValue = None
    """Of the newest step."""
    audit: Annotated[tuple[JsonObject, ...], APPEND] = ()
    """A record `{input, decision, result}` of each step."""
    marks: Annotated[tuple[str, ...], ADD] = ()
    iteration: Annotated[int, COUNT] = 0
    answer: str | None = None
    exit_reason: Annotated[str | None, FIRST] = None
    error: Annotated[str | None, FIRST] = None


class Options(Strict):
    """The knobs of the simple loop."""

    max_iterations: int = Field(default=50, ge=0, le=100_000, description="steps; one more raises [4.10]")
    min_confidence: float = Field(
        default=0.5, ge=0, le=1, description="a decision that says less of itself is a violation [4.8]"
    )
    policy: str | None = Field(
        default=None, description="hook(decision, state) -> None or what is wrong, asked at each step [4.8]"
    )
    converged: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="marks that must all be set, or hook(state, progress) -> true or false [4.9, 4.10]",
    )
    input_builder: str | None = Field(
        default=None, description="hook(result, iteration) -> the next step's input; null: the result [4.10]"
    )
    reply_format: Literal["text", "json_schema"] = Field(
        default="text", description="json_schema: the provider holds replies to the schema"
    )
