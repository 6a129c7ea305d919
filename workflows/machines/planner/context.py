"""What the planner machine remembers, and its options (spec 4.3, 4.9, 4.11)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from activities.contracts import MODEL_ATTEMPTS, Strict
from workflows.machines.authoring import Context, Extensions, JsonObject, NativeCall
from workflows.machines.common.named_parts import find_named
from workflows.machines.common.options import ModelAttempts, ToolAttempts
from workflows.machines.planner.plan import plan_schema
from workflows.machines.planner.policy import Hook, Policy

if TYPE_CHECKING:
    from workflows.machines.common.json_schema import Schema

__all__ = ["Options", "Prepared", "Planner", "prepare", "shared"]

Counter = Literal["model_calls", "tool_calls", "tokens", "input_tokens", "output_tokens", "cost_usd"]
"""What a budget may be set for."""


class Options(Strict):
    """The options of spec 4.11."""

    mode: Literal["plan", "simple"] = Field(
        default="plan",
        description="simple: no plan and no native tool calls; one action at a time, as JSON [4.10]",
    )
    max_iterations: int = Field(
        default=50, ge=0, le=100_000, description="visits of EXECUTE; 0: none at all [4.6, R-003-8]"
    )
    plan_schema: JsonObject | None = Field(
        default=None,
        description="JSON schema 2020-12; null: goal, required_capabilities, initial_steps [4.3]",
    )
    reply_format: Literal["text", "json_schema"] = Field(
        default="text", description="json_schema: the provider enforces the schema of JSON replies"
    )
    prompt_builder: str | None = Field(
        default=None,
        description="hook(input, state) -> the text that asks for the plan; null: the goal [4.2]",
    )
    input_builder: str | None = Field(
        default=None,
        description="simple: hook(result, iteration) -> the next step's input; null: the result [4.10]",
    )
    decide: str | None = Field(
        default=None,
        description="null: continue if the plan has a goal; `model`: ask the role `decide`; else "
        "hook(plan, state) -> {continue, reason} [4.3, R-003-1]",
    )
    finalize_summary: bool = Field(default=False, description="one more call, of the role `summary` [4.3]")
    on_tool_error: Literal["halt", "record"] = Field(
        default="halt",
        description="record: the model is told, and the run continues; a call that a person rejects is "
        "always recorded [4.4, R-003-5]",
    )
    on_policy_violation: Literal["halt", "record"] = Field(
        default="halt", description="the same for a call that the policy forbids [4.4, R-003-5]"
    )
    time_limit: float | None = Field(
        default=None, gt=0, description="seconds since the run began, checked in LOOP_CHECK [4.5, R-003-6]"
    )
    budgets: dict[Counter, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="counter -> USD, tokens or calls that may be spent, checked in LOOP_CHECK [R-003-6]",
    )
    min_confidence: float = Field(
        default=0.5, ge=0, le=1, description="a proposal that gives less is a violation [4.8]"
    )
    policy: str | None = Field(
        default=None, description="hook(decision, state) -> None or what is wrong, asked at each check [4.8]"
    )
    converged: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="marks that must all be set, or hook(state, progress) -> true or false [4.5, 4.9]",
    )
    max_tool_attempts: ToolAttempts = 1
    max_model_attempts: ModelAttempts = MODEL_ATTEMPTS

    @model_validator(mode="after")
    def _fit_the_mode(self) -> Self:
        others = {"plan": ("input_builder",), "simple": ("plan_schema", "prompt_builder", "decide")}
        if useless := [name for name in others[self.mode] if getattr(self, name) is not None]:
            raise ValueError(f"{', '.join(useless)}: not used with `mode: {self.mode}`; leave it out")
        return self


class Planner(Context):
    """All that a planner run remembers besides the conversation."""

    state: JsonObject = {}
    """The shared state: goal, started_at, plan, decision; in simple mode what tools returned (4.9)."""
    observations: tuple[JsonObject, ...] = ()
    """Records of this run (R-003-7): `{tool_call_id, name, result}` or `{tool_call_id, name, error}`; in
    simple mode one for each step, `{input, decision, result}`."""
    marks: tuple[str, ...] = ()
    iteration: int = 0
    cut: bool = False
    """The newest reply ended at the limit of the model's output."""
    given: str = ""
    """Simple mode: the input of this step."""
    answer: str | None = None
    history: tuple[JsonObject, ...] = ()
    """Entries `{from, to, reason, iteration}` (spec 4.2)."""
    exit_reason: str = ""
    error: str = ""
    """Why the run is to halt."""
    summary_error: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is made once from the options and the worker's hooks."""

    schema: Schema
    policy: Policy
    prompt_builder: Hook | None
    input_builder: Hook | None
    decider: Hook | None


def prepare(options: Options, extensions: Extensions) -> Prepared:
    """Raises ValueError for an unknown hook, or a schema that cannot be used."""

    def hook(option: str, name: str | None) -> Hook | None:
        return None if name is None else find_named(f"{option}: unknown hook", name, extensions.hooks)

    marks = options.converged if isinstance(options.converged, tuple) else ()
    converged = None if isinstance(options.converged, tuple) else options.converged
    return Prepared(
        schema=plan_schema(options.plan_schema),
        policy=Policy(
            options.min_confidence, hook("policy", options.policy), hook("converged", converged), marks
        ),
        prompt_builder=hook("prompt_builder", options.prompt_builder),
        input_builder=hook("input_builder", options.input_builder),
        decider=hook("decide", None if options.decide == "model" else options.decide),
    )


def shared(c: Planner, pending: Iterable[NativeCall] = ()) -> JsonObject:
    """The shared state as hooks and the result see it."""
    calls: JsonObject = {
        "observations": list(c.observations),
        "pending_tool_calls": [call.model_dump() for call in pending] or None,
    }
    return {**c.state, **calls}
