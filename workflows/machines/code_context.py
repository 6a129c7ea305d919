"""What the code machine remembers, and its knobs (spec 2.2, 2.8)."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from activities.contracts import ContextRef, Frozen, InnerLimits, JsonObject, Strict, ToolRun
from activities.contracts_code import CodeAnswer, CodeLimits
from activities.transcript import Transcript
from workflows.kernel.fields import APPEND, COUNT, FIRST, MERGE, Fields, Patch
from workflows.kernel.policies import PolicySpec

__all__ = ["Ahead", "Compression", "Context", "Nested", "Offered", "Options", "Place", "Query", "S"]


class S(Enum):
    """The states of spec 2.2."""

    INIT = "INIT"
    SHALLOW_CALL = "SHALLOW_CALL"
    PROMPTING = "PROMPTING"
    EXECUTING = "EXECUTING"
    DONE = "DONE"


class Offered(Frozen):
    """A tool as blocks call it."""

    name: str
    """In blocks: the tool's name, made an identifier."""
    tool: str
    parameters: tuple[str, ...] = ()
    """In the order of the schema's properties, for positional arguments."""


class Query(Frozen):
    """A sub-query of a block."""

    block: int
    prompt: str
    role: str = "sub"


class Place(Frozen):
    """How far a visit of EXECUTING has come, so that it can be gone on with at any effect."""

    stage: Literal["block", "query", "tool", "lookup", "reply", "forced"] = "block"
    """What is waited for: a block, a sub-query, a tool, a variable, the next reply, the last reply."""
    index: int = 0
    """The block at work; behind the last one: all have run."""
    before: str = ""
    """The session before the block, while it waits for a call."""
    answer: CodeAnswer | None = None
    """What the block goes on with; None: it is begun."""
    calls: int = 0
    """Outside calls of the block so far, each prompt of a batch counted."""
    since: int = 0
    """How many answers there were before the call at hand."""
    batched: bool = False
    run: ToolRun | None = None
    shown: int = 0
    """The first of `printed` that belongs to the block."""
    left_out: int = 0
    """Characters of the block's output that were cut."""
    wanted: str | None = None
    """The variable that `FINAL_VAR` names."""


class Context(Frozen):
    """All that a run in code mode remembers between states."""

    goal: str
    """The question, also called the root prompt."""
    trace_id: str
    depth: int = 0
    material: str | ContextRef | None = None
    """What blocks see as `context`; None: the goal itself."""
    tools: tuple[Offered, ...] = ()
    transcript: Annotated[Transcript, APPEND] = Transcript()
    tokens: int = 0
    """Of the newest main model call, input and output."""
    cut: bool = False
    """The newest reply was cut at its length limit."""
    reaches: bool = False
    """Some reply names `context_slice` or its like, which read what travels with the step."""
    dropped: int = 0
    """Messages before this one are not sent any more, but for the first two; 0: all are sent."""
    iteration: Annotated[int, COUNT] = 0
    blocks: tuple[str, ...] = ()
    """Of the reply at hand."""
    session: str = ""
    """The sandbox as the last block left it; empty: a fresh one."""
    place: Place = Place()
    printed: Annotated[tuple[str, ...], APPEND] = ()
    """What blocks printed before they called something."""
    asked: tuple[Query, ...] = ()
    """The sub-queries of the call at hand; empty once all of them are answered."""
    answers: Annotated[tuple[str, ...], APPEND] = ()
    """To sub-queries, in their order."""
    visit_bytes: Annotated[int, COUNT] = 0
    """What the blocks of the reply at hand have sent outside and got back, in UTF-8."""
    run_bytes: Annotated[int, COUNT] = 0
    """The same of the whole run."""
    missing: bool = False
    """The reply's `FINAL_VAR` names no variable, and the model has been told so."""
    answer: Annotated[str | None, FIRST] = None
    """The final answer; may be empty."""
    finish: Annotated[str | None, FIRST] = None
    """Why the run ended (R-001-2)."""
    policy: str | None = None
    """The policy that stopped it."""
    error: str | None = None
    raises: str | None = None
    """Name of the error that leaves the run."""
    unsure: bool = False
    """The run ended because nobody knows what an unsafe tool did."""
    policy_memory: Annotated[JsonObject, MERGE] = {}
    last_result: str = ""
    """For policies: what the last complete iteration brought."""

    @property
    def reply(self) -> str:
        """The newest reply of the model."""
        replies = (m.content for m in reversed(self.transcript.messages) if m.role == "assistant")
        return next(replies, "")


class Ahead:
    """A context as it will be once a patch is kept. Reads go through the view, so they are declared."""

    def __init__(self, view: Any, patch: Patch) -> None:
        self._view, self._patch = view, patch

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._view, name)
        return Fields.of(Context).fold(name, value, self._patch[name]) if name in self._patch else value

    @property
    def reply(self) -> str:
        """As `Context.reply`."""
        found: Any = Context.__dict__["reply"]
        text: str = found.fget(self)
        return text


class Nested(Strict):
    """When a sub-query becomes a run of its own with depth + 1, and how (R-001-6)."""

    policy: str = Field(
        default="never",
        description="never, always, or the name of a hook `(prompt, depth) -> bool` that the worker has "
        "loaded [R-001-6]",
    )
    machine: str = Field(default="code", description="that runs it; `code` has this run's knobs too")
    mode: Literal["child", "inline"] = Field(
        default="child", description="child: a workflow of its own; inline: in this run's log"
    )
    options: JsonObject = Field(default_factory=dict, description="knobs that are set differently there")
    tools: tuple[str, ...] | None = Field(default=None, description="null: the tools of this run")
    limits: InnerLimits = Field(
        default=InnerLimits(),
        description="caps of its own, such as model_calls; what this run has left counts too",
    )

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, given: Any) -> Any:
        """A bare name is the policy with the defaults."""
        return {"policy": given} if isinstance(given, str) else given


class Compression(Strict):
    """When old messages are no longer sent: the first two and the last ones stay."""

    window_tokens: int = Field(ge=1000, le=10**9, description="what the model can take in [2.8]")
    at: float = Field(default=0.92, gt=0, le=1, description="of the window, by the newest call [2.8]")
    keep_last: int = Field(default=6, ge=1, le=1000, description="messages [2.8]")
    least: int = Field(default=8, ge=4, le=1000, description="with fewer messages nothing is left out [2.8]")


class Options(Strict):
    """The knobs of spec 2.8."""

    max_iterations: int = Field(default=30, ge=1, le=10_000, description="looks at a reply [2.2, 2.8]")
    max_depth: int = Field(
        default=1, ge=0, le=50, description="a run nested so deep asks the model once, without code [2.2]"
    )
    final_var_missing: Literal["retry", "answer"] = Field(
        default="retry",
        description="of an unknown variable: the model is told, or the error is the answer [R-001-3]",
    )
    block: CodeLimits = Field(default=CodeLimits(), description="what a block may use [2.4, 2.8]")
    policies: tuple[PolicySpec, ...] = Field(
        default=(), description="stopping policies, asked before blocks are run and after them [R-001-8]"
    )
    nested: Nested = Field(default=Nested(), description="which sub-queries are runs of their own [R-001-6]")
    compression: Compression | None = Field(
        default=None, description="null: every message is sent each time [2.8, R-001-6]"
    )
    shallow_chars: int = Field(
        default=100_000,
        ge=0,
        le=1_000_000,
        description="of the context in the one prompt of a shallow call [2.2]",
    )
    max_model_attempts: int = Field(
        default=1, ge=1, le=20, description="per model call, in all; a model's own `attempts` wins [2.2]"
    )
    max_tool_attempts: int = Field(
        default=1, ge=1, le=20, description="per tool call, in all, for transient failures [6.1]"
    )
