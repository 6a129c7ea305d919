"""What the planner machine remembers, and its knobs (spec 4.3, 4.9, 4.11)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from activities.contracts import Frozen, JsonObject, Message, Strict, ToolCall
from activities.transcript import Transcript
from workflows.kernel.fields import ADD, APPEND, COUNT, FIRST, MERGE

__all__ = ["Context", "Counter", "Options"]

Counter = Literal["model_calls", "tool_calls", "tokens", "input_tokens", "output_tokens", "cost_usd"]
"""What a budget may be set for."""


class Context(Frozen):
    """All that a planner run remembers between states."""

    goal: str | None
    """The input; None: there was none."""
    tools: tuple[str, ...] = ()
    abilities: str = ""
    """The tools with their descriptions, for the model that plans."""
    instructions: str = ""
    transcript: Annotated[Transcript, APPEND] = Transcript()
    state: Annotated[JsonObject, MERGE] = {}
    """The shared state but for its lists: goal, started_at, plan, decision."""
    observations: Annotated[tuple[JsonObject, ...], APPEND] = ()
    """Records `{tool_call_id, name, result}` or `{tool_call_id, name, error}` of this run (R-003-7)."""
    pending: tuple[ToolCall, ...] = ()
    """The calls of the newest reply, until they are observed."""
    reply_cut: bool = False
    """The reply with these calls was cut at its length limit."""
    handled: Annotated[int, COUNT] = 0
    """How many of them are done."""
    steered: Annotated[tuple[Message, ...], APPEND] = ()
    """What a person said while tools ran: it comes behind their results."""
    marks: Annotated[tuple[str, ...], ADD] = ()
    iteration: Annotated[int, COUNT] = 0
    history: Annotated[tuple[JsonObject, ...], APPEND] = ()
    """Entries `{from, to, reason, iteration}` (spec 4.2)."""
    exit_reason: Annotated[str | None, FIRST] = None
    error: Annotated[str | None, FIRST] = None
    """Why the run is to halt."""
    summary_error: str | None = None

    @property
    def shared(self) -> JsonObject:
        """The shared state as policies, hooks and the result see it."""
        calls: JsonObject = {
            "observations": list(self.observations),
            "pending_tool_calls": [call.model_dump() for call in self.pending] or None,
        }
        return {**self.state, **calls}

    @property
    def final_message(self) -> str:
        """The content of the last message, whatever its role (spec 4.7); but what a person says on the way,
        even as the run ends, is no answer."""
        messages = self.transcript.messages
        found = next((m for m in reversed(messages) if m.role != "user"), messages[-1] if messages else None)
        return found.content if found else ""


class Options(Strict):
    """The knobs of spec 4.11."""

    max_iterations: int = Field(
        default=50, ge=0, le=100_000, description="visits of EXECUTE; 0: none at all [4.6, R-003-8]"
    )
    plan_schema: JsonObject | None = Field(
        default=None,
        description="JSON schema 2020-12; null: goal, required_capabilities, initial_steps [4.3]",
    )
    plan_format: Literal["text", "json_schema"] = Field(
        default="text", description="json_schema: the provider holds the plan to the schema"
    )
    prompt_builder: str | None = Field(
        default=None,
        description="hook(input, state) -> the text that asks for the plan; null: the goal [4.2]",
    )
    decide: str | None = Field(
        default=None,
        description="null: go on if the plan has a goal; `model`: ask the role `decide`; else "
        "hook(plan, state) -> {continue, reason} [4.3, R-003-1]",
    )
    finalize_summary: bool = Field(default=False, description="one call more, of the role `summary` [4.3]")
    on_tool_error: Literal["halt", "record"] = Field(
        default="halt",
        description="record: the model is told, and the next call goes on; so it is always for a call that "
        "a person rejects [4.4, R-003-5]",
    )
    on_policy_violation: Literal["halt", "record"] = Field(
        default="halt", description="the same for a call that the policy forbids [4.4, R-003-5]"
    )
    time_limit: float | None = Field(
        default=None, gt=0, description="seconds since the run began, looked at in LOOP_CHECK [4.5, R-003-6]"
    )
    budgets: dict[Counter, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="counter -> USD, tokens or calls that may be spent; looked at in LOOP_CHECK [R-003-6]",
    )
    min_confidence: float = Field(
        default=0.5, ge=0, le=1, description="a proposal that says less of itself is a violation [4.8]"
    )
    policy: str | None = Field(
        default=None, description="hook(decision, state) -> None or what is wrong, asked at each check [4.8]"
    )
    converged: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="marks that must all be set, or hook(state, progress) -> true or false [4.5, 4.9]",
    )
