"""The one state that all stages work on (spec 3.3), and who may read and write what of it (spec 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field

from activities.contracts import Frozen, JsonObject
from workflows.kernel.fields import APPEND, COUNT, MERGE

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
    "Material",
    "Observation",
    "OfferedTool",
    "RequestedTool",
    "Rights",
    "Thought",
    "ToolOutput",
    "lifecycles",
]

INITIALIZED, THINKING, ACTING = "Initialized", "Thinking", "Acting"
OBSERVING, FINISHED, FAILED = "Observing", "Finished", "Failed"
GENERAL = "general_inquiry"
"""The intent that needs no tool."""
ORCHESTRATOR = "orchestrator"
"""What is named as the stage where no stage did it."""


class Thought(Frozen):
    """What the user wants, and what would help."""

    intent: str
    suggested_tools: tuple[str, ...] = ()
    reasoning: str = ""


class RequestedTool(Frozen):
    """A tool call as the model asked for it."""

    tool: str
    arguments: JsonObject = {}
    refused: str = ""
    """The kind of error for which it is not run at all; empty: it is run."""
    why: str = ""
    """The same in words."""


class ToolOutput(Frozen):
    """What came of one tool call."""

    tool: str
    output: str
    error: str | None = None
    """The kind of failure; None: it worked."""
    whole: str | None = None
    """Digest of the whole output in the durable store, when `output` was cut."""


class Action(Frozen):
    """The tools that were asked for and their outputs, in the same order."""

    requested_tools: tuple[RequestedTool, ...] = ()
    tool_outputs: tuple[ToolOutput, ...] = ()


class Observation(Frozen):
    """What is known by now, and whether another pass is needed."""

    summary: str = ""
    final_answer: str = ""
    need_loop: bool = True


class LastError(Frozen):
    """Why the run failed (R-002-8)."""

    code: str
    """Such as `PermissionViolation`, `StageError`, `MaxIterationsExceeded`."""
    stage: str
    message: str
    details: JsonObject = {}


class Degradation(Frozen):
    """Something did not go well, and the run went on without it."""

    code: str
    """Such as `failed`, `unknown_tool`, `fallback_used`."""
    stage: str
    message: str = ""


class OfferedTool(Frozen):
    """A tool as prompts speak of it."""

    name: str
    description: str


class Material(Frozen):
    """What prompts are made of beside the state: "prompt material is not state" (spec 3.3)."""

    instructions: str = ""
    tools: tuple[OfferedTool, ...] = ()


class AgentState(Frozen):
    """The shared state (spec 3.3), and three things beside it that no stage owns."""

    lifecycle: str = INITIALIZED
    session_id: str
    user_input: str | None = None
    iteration: Annotated[int, COUNT] = Field(default=0, ge=0)
    """0 in the first pass (R-002-5)."""
    thought: Thought | None = None
    action: Action | None = None
    observation: Observation | None = None
    last_error: LastError | None = None
    extensions: Annotated[JsonObject, MERGE] = {}
    """Stage -> what it keeps beyond the fields above (R-002-1); only that stage writes there."""

    material: Material = Material()
    notes: Annotated[tuple[str, ...], APPEND] = ()
    """What people said on the way: every stage with a prompt is told."""
    working: tuple[RequestedTool, ...] = ()
    """What the stage that runs now has in hand between two of its effects; empty between stages."""
    degraded: Annotated[tuple[Degradation, ...], APPEND] = ()
    """The orchestrator's notes on what did not go well."""


BESIDE = frozenset({"material", "notes", "working", "degraded"})
FIELDS: tuple[str, ...] = tuple(name for name in AgentState.model_fields if name not in BESIDE)
"""The fields that a stage may declare."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What a stage may at most read and write."""

    reads: frozenset[str]
    writes: frozenset[str]


STAGES_WRITE = frozenset({"thought", "action", "observation", "extensions", "lifecycle"})
"""The rest is the orchestrator's (R-002-2), but `last_error`, which the error handler may write too."""


def _rights(reads: str, writes: str) -> Rights:
    return Rights(frozenset(reads.split()) | {"extensions"}, frozenset(writes.split()))


CEILINGS: Mapping[str, Rights] = {
    "think": _rights("session_id user_input iteration observation", "thought extensions lifecycle"),
    "act": _rights("session_id iteration thought", "action extensions lifecycle"),
    "observe": _rights("session_id iteration thought action", "observation extensions lifecycle"),
    "error_handler": Rights(frozenset(FIELDS), frozenset({"last_error", "lifecycle"})),
}
"""Flow type -> the column of spec 3.4: a ceiling, checked when the machine is built (R-002-3)."""


@lru_cache(maxsize=256)
def lifecycles(names: tuple[str, ...]) -> type[Enum]:
    """The states of a machine with these lifecycles; they equal their names, whichever machine made them."""
    made: Any = Enum("Lifecycle", {name: name for name in names}, type=str)  # type: ignore[misc]  # names are data
    found: type[Enum] = made
    return found
