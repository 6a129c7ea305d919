"""What the ReAct machine remembers, and its knobs (spec 1.4, 1.7)."""

from __future__ import annotations

from enum import Enum
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Field

from activities.contracts import Frozen, JsonObject, Strict
from activities.transcript import Transcript
from workflows.kernel.fields import APPEND, MERGE, PUT, Reducer
from workflows.kernel.frozen import FrozenList
from workflows.kernel.rules import RuleSpec
from workflows.machines.react_reply import final_answer

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
    whole: str | None = None
    """Digest of the tool's whole output in the durable store, when the observation was cut."""
    status: Literal["draft", "validated", "executed", "committed", "failed"] = "draft"
    timestamp: float = 0
    """Seconds since 1970."""
    messages: int = 0
    """How long the conversation was with the reply that made the step; 0: unknown."""

    @property
    def closed(self) -> bool:
        """Never changes again."""
        return self.status in {"committed", "failed"}


def _parts(delta: Any) -> tuple[Any, ...]:
    return delta if isinstance(delta, tuple) else (delta,)


def _folded(old: Any, delta: Any) -> dict[str, Any]:
    merged: dict[str, Any] = dict(MERGE.fold(old, delta))
    told = [part["tool_history"] for part in _parts(delta) if "tool_history" in part]
    if told:
        merged["tool_history"] = FrozenList([*old.get("tool_history", ()), *chain.from_iterable(told)])
    return merged


METADATA = Reducer(
    "metadata",
    _folded,
    lambda first, later: (*_parts(first), *_parts(later)),
    chained=True,
    frozen=True,
    gather=MERGE.gather,
)
"""Key by key, as `MERGE` does it; `tool_history` is appended to, so that the log grows linearly."""


class Context(Frozen):
    """All that a ReAct run remembers between states (spec 1.4)."""

    trace_id: str
    tools: tuple[str, ...] = ()
    steps: Annotated[tuple[ReasoningStep, ...], PUT] = ()
    metadata: Annotated[JsonObject, METADATA] = {}
    terminated: bool = False
    transcript: Annotated[Transcript, APPEND] = Transcript()
    cache: Annotated[dict[str, str], MERGE] = {}
    """Digest of a prompt -> the reply it got, if the reply had the right format (R-000-5)."""

    @property
    def answer(self) -> str | None:
        """The final answer, when the newest step gives one."""
        if not self.steps:
            return None
        step = self.steps[-1]
        action = None if step.action in self.tools else step.action  # a tool may be named `finish`
        return final_answer(step.thought, action, step.action_input)

    @property
    def total_cost(self) -> float:
        """USD spent so far."""
        cost: Any = self.metadata.get("total_cost", 0)
        return float(cost)

    @property
    def retry_count(self) -> int:
        """Rejected thoughts since the run began, or since a person resumed it."""
        count: Any = self.metadata.get("retry_count", 0)
        return int(count)


class Options(Strict):
    """The knobs of spec 1.7."""

    max_steps: int = Field(default=20, ge=1, le=10_000, description="steps, failed drafts included [1.7]")
    max_transitions: int | None = Field(
        default=None, ge=1, description="node visits; null: 10 * max_steps [R-000-11]"
    )
    cost_limit: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="USD; the run ends when it is exceeded [1.7]"
    )
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
