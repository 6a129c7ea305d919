"""What a ReAct run remembers, and its options (spec 1.4, 1.7)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import Field, JsonValue

from activities.contracts import MODEL_ATTEMPTS, Frozen, Strict
from workflows.machines.authoring import Context, JsonObject
from workflows.machines.common.options import ModelAttempts, ToolAttempts
from workflows.machines.react.rules import RuleSpec

__all__ = ["CachedReply", "Options", "React", "ReasoningStep"]


class Options(Strict):
    """The options of spec 1.7."""

    max_steps: int = Field(
        default=20,
        ge=1,
        le=10_000,
        description="steps, rejected thoughts included; checked when a step is committed, so thoughts that "
        "are rejected at the end continue until `max_depth` of the rules or `max_transitions` [1.7]",
    )
    max_transitions: int | None = Field(
        default=None, ge=1, description="visits of states; null: 10 * max_steps [R-000-11]"
    )
    cost_limit: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="USD; the run ends when it is exceeded [1.7]"
    )
    max_tool_attempts: ToolAttempts = 3
    max_model_attempts: ModelAttempts = MODEL_ATTEMPTS
    max_format_attempts: int = Field(
        default=3,
        ge=1,
        le=20,
        description="model calls for one thought, if replies are malformed; and answers of a run, if they do "
        "not fit the agent's `output` [R-000-4]",
    )
    max_retries_before_human: int = Field(
        default=3, ge=0, description="rejected thoughts; one more asks a person [R-000-1]"
    )
    rules: tuple[RuleSpec, ...] | None = Field(
        default=None, description="null: max_depth, cost_limit, forbid_guessing; see `ratchet docs rules`"
    )
    reply_format: Literal["text", "json_schema"] = Field(
        default="text",
        description="json_schema: the provider enforces the schema of replies; text: only after a reply that "
        "could not be read",
    )

    def rule_specs(self) -> tuple[RuleSpec, ...]:
        """The declared rules; by default those of spec 1.6, which follow an option that was set."""
        if self.rules is not None:
            return self.rules
        cost = self.cost_limit if "cost_limit" in self.model_fields_set else 0.50
        return (
            RuleSpec(type="max_depth", value=max(20, self.max_steps)),
            RuleSpec(type="cost_limit", value=cost),
            RuleSpec(type="forbid_guessing"),
            RuleSpec(type="require_tool_use", enabled=False),
        )


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
    timestamp: float = 0.0
    """Seconds since 1970."""

    @property
    def closed(self) -> bool:
        """The step never changes again."""
        return self.status in {"committed", "failed"}


class CachedReply(Frozen):
    """A reply that had the right format."""

    prompt: str
    """Digest of the conversation that it answers, without reminders of the format."""
    step: int
    """The reasoning step that it made."""
    text: str


class React(Context):
    """All that a ReAct run remembers (spec 1.4)."""

    trace_id: str
    goal: str
    given: JsonObject = {}
    """Metadata that the run began with (spec 1.9)."""
    past: tuple[ReasoningStep, ...] = ()
    """Steps that are closed, so they never change (R-000-3)."""
    newest: ReasoningStep | None = None
    """The step at which the run is, or has ended; None between steps."""
    count: int = 0
    """How many steps there are."""
    total_cost: float = 0.0
    """USD spent by the whole run, as of the newest thought or action. It never falls, not by a rollback."""
    tool_history: tuple[str, ...] = ()
    """Names of the tools that ran, in order."""
    retry_count: int = 0
    """Rejected thoughts since the run began, or since a person resumed it."""
    retry_reason: str = ""
    """Why the newest thought was rejected; kept until a thought passes."""
    last_retry_reason: str = ""
    """The same, kept for the result."""
    model_failure: str = ""
    """Type of the failure of the model call that the newest step stands for."""
    rolled_back: tuple[int, int] | None = None
    """How many steps there were before the newest rollback, and the last step that it kept."""
    cache: tuple[CachedReply, ...] = ()
    """Every reply so far (R-000-5)."""
    again: dict[str, CachedReply] = {}
    """Replies that a rollback left behind, by the digest of their prompt: only these can be met again."""
    terminated: bool = False
    exit_reason: str = ""
    error: str = ""

    @property
    def steps(self) -> tuple[ReasoningStep, ...]:
        """The log of reasoning steps."""
        return self.past if self.newest is None else (*self.past, self.newest)

    @property
    def metadata(self) -> Mapping[str, JsonValue]:
        """The well-known keys of spec 1.4, over what the run began with."""
        known: JsonObject = {
            "goal": self.goal,
            "retry_count": self.retry_count,
            "retry_reason": self.retry_reason or None,
            "total_cost": self.total_cost,
            "tool_history": list(self.tool_history),
            "exit_reason": self.exit_reason or None,
        }
        if self.exit_reason in {"fatal_error", "rule_violation"}:
            known[self.exit_reason] = self.error
        if self.rolled_back:
            known["rolled_back_from"], known["rolled_back_to"] = self.rolled_back
        return MappingProxyType({**self.given, **known})
