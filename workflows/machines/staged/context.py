"""The one state that all stages work on (spec 3.3), and who may read and write what of it (spec 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from workflows.machines.authoring import Context, JsonObject

__all__ = [
    "ACTING",
    "CEILINGS",
    "FAILED",
    "FIELDS",
    "FINISHED",
    "GENERAL",
    "INITIALIZED",
    "OBSERVING",
    "ORCHESTRATOR",
    "STAGES_WRITE",
    "THINKING",
    "Action",
    "AgentState",
    "Degradation",
    "LastError",
    "Observation",
    "RequestedTool",
    "Rights",
    "Thought",
    "ToolOutput",
]

INITIALIZED, THINKING, ACTING = "Initialized", "Thinking", "Acting"
OBSERVING, FINISHED, FAILED = "Observing", "Finished", "Failed"
GENERAL = "general_inquiry"
"""The intent that needs no tool."""
ORCHESTRATOR = "orchestrator"
"""Named as the stage for what the machine itself does."""


class StatePart(BaseModel):
    """A part of the state. Fields that it does not have are ignored: models add some."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Thought(StatePart):
    """What the user wants, and what would help."""

    intent: str
    suggested_tools: tuple[str, ...] = ()
    reasoning: str = ""


class RequestedTool(StatePart):
    """A tool call as the model asked for it."""

    tool: str
    arguments: JsonObject = {}


class ToolOutput(StatePart):
    """The result of one tool call."""

    tool: str
    output: str
    error: str | None = None
    """The kind of failure; None: it worked."""
    whole: str | None = None
    """Digest of the whole output in the durable store, when `output` was cut."""


class Action(StatePart):
    """The tools that were asked for and their outputs, in the same order."""

    requested_tools: tuple[RequestedTool, ...] = ()
    tool_outputs: tuple[ToolOutput, ...] = ()


class Observation(StatePart):
    """What is known by now, and whether another pass is needed."""

    summary: str = ""
    final_answer: str = ""
    need_loop: bool = True
    cut: bool = False
    """The reply ended at the limit of the model's output, so the texts may end in the middle."""


class LastError(StatePart):
    """Why the run failed (R-002-8)."""

    code: str
    """Such as `PermissionViolation`, `StageError`, `MaxIterationsExceeded`."""
    stage: str
    message: str
    details: JsonObject = {}


class Degradation(StatePart):
    """Something went wrong, and the run went on without it."""

    code: str
    """Such as `failed`, `unknown_tool`, `fallback_used`."""
    stage: str
    message: str = ""


class AgentState(Context):
    """The shared state (spec 3.3)."""

    lifecycle: str = INITIALIZED
    session_id: str
    user_input: str
    iteration: int = Field(default=0, ge=0)
    """0 in the first pass (R-002-5)."""
    thought: Thought | None = None
    action: Action | None = None
    observation: Observation | None = None
    last_error: LastError | None = None
    extensions: JsonObject = {}
    """Stage -> what it keeps beyond the fields above (R-002-1); only that stage writes there."""
    degraded: tuple[Degradation, ...] = ()
    """The machine's own notes; no stage sees or writes them."""
    fallback_used: bool = False
    """The answer is the fallback text; no stage sees or writes this either."""


FIELDS = tuple(name for name in AgentState.model_fields if name not in ("degraded", "fallback_used"))
"""The fields that a stage may declare."""


class Rights(NamedTuple):
    """What a stage may at most read and write."""

    reads: frozenset[str]
    writes: frozenset[str]


STAGES_WRITE = frozenset({"thought", "action", "observation", "extensions", "lifecycle"})
"""The rest is the machine's own (R-002-2), except `last_error`, which the error handler writes too."""


def _rights(reads: str, writes: str) -> Rights:
    return Rights(frozenset(reads.split()) | {"extensions"}, frozenset(writes.split()))


CEILINGS: Mapping[str, Rights] = {
    "think": _rights("session_id user_input iteration observation", "thought extensions lifecycle"),
    "act": _rights("session_id iteration thought", "action extensions lifecycle"),
    "observe": _rights("session_id iteration thought action", "observation extensions lifecycle"),
    "error_handler": Rights(frozenset(FIELDS), frozenset({"last_error", "lifecycle"})),
}
"""Flow type -> the column of spec 3.4: a ceiling, checked when the options are read (R-002-3)."""
