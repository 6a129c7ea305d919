"""What the ReAct machine remembers, and its knobs (spec 1.4, 1.7)."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from activities.contracts import Frozen, JsonObject, Strict
from activities.transcript import Transcript
from workflows.kernel.fields import APPEND, MERGE, PUT
from workflows.kernel.rules import RuleSpec

__all__ = ["Context", "Options", "ReasoningStep", "S"]


class S(Enum):
    """The nodes of spec 1.2."""

    THOUGHT = "thought"
    VALIDATE = "validate"
    ACTION = "action"
    OBSERVATION = "observation"
    COMMIT = "commit"
    HUMAN_APPROVAL = "human_approval"
    END = "__end__"


class ReasoningStep(Frozen):
    """One reasoning step; `id` is its index."""

    id: int
    thought: str
    action: str | None = None
    action_input: JsonObject = {}
    observation: str | None = None
    status: Literal["draft", "validated", "executed", "committed", "failed"] = "draft"
    timestamp: float = 0
    """Seconds since 1970."""

    @property
    def closed(self) -> bool:
        """Never changes again."""
        return self.status in {"committed", "failed"}


class Context(Frozen):
    """All that a ReAct run remembers between states (spec 1.4)."""

    trace_id: str
    tools: tuple[str, ...] = ()
    steps: Annotated[tuple[ReasoningStep, ...], PUT] = ()
    metadata: Annotated[JsonObject, MERGE] = {}
    terminated: bool = False
    transcript: Annotated[Transcript, APPEND] = Transcript()
    cache: Annotated[dict[str, str], MERGE] = {}
    """Digest of a prompt -> the reply it got, if the reply had the right format (R-000-5)."""


class Options(Strict):
    """The knobs of spec 1.7."""

    max_steps: int = Field(default=20, ge=1, le=10_000, description="steps, failed drafts included [1.7]")
    max_transitions: int | None = Field(
        default=None, ge=1, description="node visits; null: 10 * max_steps [R-000-11]"
    )
    cost_limit: float = Field(default=1.0, gt=0, description="USD; the run ends when it is exceeded [1.7]")
    max_tool_attempts: int = Field(default=3, ge=1, le=20, description="per tool call, in all [1.5]")
    max_model_attempts: int = Field(default=3, ge=1, le=20, description="per model call, in all [R-000-8]")
    max_format_attempts: int = Field(default=3, ge=1, le=20, description="model calls in one visit [R-000-4]")
    max_retries_before_human: int = Field(
        default=3, ge=0, description="rejected thoughts; one more asks a person [R-000-1]"
    )
    rules: tuple[RuleSpec, ...] | None = Field(
        default=None, description="null: max_depth, cost_limit, forbid_guessing; see spec 1.6"
    )
    reply_format: Literal["text", "json_schema"] = Field(
        default="text", description="json_schema: the provider holds replies to the schema"
    )

    def rule_specs(self) -> tuple[RuleSpec, ...]:
        """The declared rules; by default those of spec 1.6, which follow a knob that was set."""
        if self.rules is not None:
            return self.rules
        depth = max(20, self.max_steps)
        cost = self.cost_limit if "cost_limit" in self.model_fields_set else 0.50
        return (
            RuleSpec(type="max_depth", value=depth),
            RuleSpec(type="cost_limit", value=cost),
            RuleSpec(type="forbid_guessing"),
            RuleSpec(type="require_tool_use", enabled=False),
        )
