"""The options of code mode, and what a run remembers besides the conversation (spec 2.2, 2.8)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, JsonValue, model_validator

from activities.contracts import MODEL_ATTEMPTS, CodeLimits, Strict, bare_name_too
from workflows.machines.authoring import Context, InnerLimits, JsonObject
from workflows.machines.common.options import ModelAttempts, NamesMachine, ToolAttempts
from workflows.machines.common.stopping import PolicySpec

__all__ = ["Code", "Compression", "Nested", "Options"]


class Compression(Strict):
    """When old messages are no longer sent: the first two and the last ones stay."""

    window_tokens: int = Field(ge=1000, le=10**9, description="tokens that the model can take in [2.8]")
    at: float = Field(default=0.92, gt=0, le=1, description="part of the window that a call may fill [2.8]")
    keep_last: int = Field(default=6, ge=1, le=1000, description="newest messages that are sent [2.8]")
    least: int = Field(default=8, ge=4, le=1000, description="with fewer messages all are sent [2.8]")

    def first_sent(self, messages: int, tokens: int, dropped: int) -> int:
        """The first of so many messages to send after the first two, after a call of so many tokens.

        `dropped`: the one so far. In place of those that are left out the model gets a note.
        """
        if tokens < self.at * self.window_tokens:
            return dropped
        sent = messages - max(dropped - 3, 0)
        return dropped if sent < self.least else max(dropped, messages - self.keep_last)


class Nested(NamesMachine):
    """When a sub-query becomes a run of its own with depth + 1, and how."""

    model_config = ConfigDict(json_schema_extra=bare_name_too)

    policy: str = Field(
        default="never",
        description="never, always, or the name of a hook `(prompt, depth) -> bool` that the worker has "
        "loaded [R-001-6]",
    )
    machine: str = Field(
        default="code", description="the machine of that run; `code` gets these options, too"
    )
    options: JsonObject = Field(default_factory=dict, description="options of that run that differ")
    tools: tuple[str, ...] | None = Field(default=None, description="null: the tools of this run")
    limits: InnerLimits = Field(
        default=InnerLimits(),
        description="limits of that run, such as model_calls; what this run has left is a limit, too",
    )

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, given: Any) -> Any:
        """A bare name is the policy with the defaults."""
        return {"policy": given} if isinstance(given, str) else given


class Options(Strict):
    """The options of spec 2.8 for code mode."""

    max_iterations: int = Field(
        default=30,
        ge=1,
        le=10_000,
        description="replies of the model; then it must answer [2.2]",
    )
    max_depth: int = Field(
        default=1, ge=0, le=50, description="a run at this depth asks the model once, without code [2.2]"
    )
    final_var_missing: Literal["retry", "answer"] = Field(
        default="retry",
        description="if FINAL_VAR names no variable: the model is told, or the error is the answer [R-001-3]",
    )
    block: CodeLimits = Field(default=CodeLimits(), description="what a block may use [2.4, 2.8]")
    policies: tuple[PolicySpec, ...] = Field(
        default=(), description="stopping policies, asked before blocks are run and after them [R-001-8]"
    )
    nested: Nested = Field(
        default=Nested(), description="which sub-queries become runs of their own [R-001-6]"
    )
    compression: Compression | None = Field(
        default=None, description="null: every message is sent each time [2.8, R-001-6]"
    )
    shallow_chars: int = Field(
        default=100_000,
        ge=0,
        le=1_000_000,
        description="characters of the context in the one prompt of a shallow call [2.2]",
    )
    max_model_attempts: ModelAttempts = MODEL_ATTEMPTS
    max_tool_attempts: ToolAttempts = 1


class Code(Context):
    """What a run remembers besides the conversation."""

    # of the newest reply
    cut: bool = False
    """It ended at the limit of the model's output."""
    tokens: int = 0
    """Input and output tokens of its call."""
    blocks: tuple[str, ...] = ()
    next: int = 0
    """The block to run next. An index: a shrinking tuple would cost its square in the log."""
    outputs: tuple[int, ...] = ()
    """Where in the conversation the output of each block that has run is."""
    reply_bytes: int = 0
    """What its blocks have sent outside and got back, in UTF-8."""
    # of the run
    session: str = ""
    """The sandbox after the last block; empty: a fresh one."""
    run_bytes: int = 0
    """What all blocks have sent outside and got back, in UTF-8."""
    reaches: bool = False
    """Some reply names `context_slice` or its like, which read what travels with each step."""
    dropped: int = 0
    """Messages before this one are no longer sent, except for the first two; 0: all are sent."""
    iteration: int = 0
    """Replies whose blocks have run."""
    policy_memory: dict[str, JsonValue] = {}
    """What each stopping policy remembers."""
    last_result: str = ""
    """For policies: the output of the last complete iteration."""
    # of the end
    finish: str = ""
    """Why the run ended (R-001-2)."""
    answer: str | None = None
    """May be empty; then the whole reply is the answer (2.2)."""
    policy: str | None = None
    """The policy that stopped the run."""
    error: str | None = None
    raises: str | None = None
    """Name of the error that leaves the run."""
    outcome_unknown: bool = False
    """The run ended because nobody knows whether an unsafe tool took effect."""
