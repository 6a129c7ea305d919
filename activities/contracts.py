"""What a machine may ask of the world, and what the world answers: plain frozen data.

The leaf of the project, with its parts `specs` and `transcript`. An *effect* is what a
machine wants done; `workflows/perform.py` turns it into a *request* to an activity; the *answer*
goes back to the machine.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from pydantic import Field

from activities.specs import (
    Artifact,
    ArtifactSpec,
    ContextRef,
    Frozen,
    InnerLimits,
    JsonObject,
    ModelSpec,
    Price,
    ScriptedReply,
    Strict,
    ToolEffect,
    ToolSpec,
)
from activities.transcript import Message, ToolCall, Transcript

__all__ = [
    "Frozen", "Strict", "JsonObject", "ToolEffect", "ErrorClass", "Price", "ScriptedReply", "ModelSpec",
    "ToolSpec", "Effect", "CallModel", "CallModels", "CallTools", "ToolRun", "ArtifactSpec", "Artifact",
    "AskPerson", "ContextRef", "GOAL_BYTES", "InnerLimits", "RunMachine", "Usage", "ModelReplied",
    "ModelsReplied", "ToolError", "ToolResult", "ToolsReturned", "PersonDecided", "MachineEnded",
    "EffectFailed", "Answer", "Setup", "ModelRequest", "ToolRequest", "ToolsWanted", "ToolsDescribed",
    "ArchiveRequest", "LogRead", "LogWanted", "TRANSCRIPT_MISSING", "TRANSIENT", "RECOVERABLE", "FATAL",
    "Transcript", "Message", "ToolCall",
]  # fmt: skip

# -- effects: what a machine wants done --------------------


class Effect(Frozen):
    """What a machine wants done. `kind` is what a state's `grants` speaks of."""

    kind: str

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools that the effect would run or offer."""
        return ()

    @property
    def title(self) -> str:
        """A few words for people: the activity's summary in Temporal's UI."""
        return self.kind


class CallModel(Effect):
    """Ask the model in `role` for the next message."""

    kind: Literal["call_model"] = "call_model"
    role: str = "default"
    transcript: Transcript
    offer: tuple[str, ...] = ()
    """Names of the tools offered natively; empty where tools are described in the prompt."""
    tool_choice: Literal["auto", "none", "required"] = "auto"
    response_schema: JsonObject | None = None
    attempts: int = Field(default=6, ge=1)
    """In all, for transient failures; the model's own setting wins."""
    label: str = "call model"

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that are offered to the model."""
        return self.offer

    @property
    def title(self) -> str:
        """What the machine calls this step, such as `think #3`."""
        return self.label


class CallModels(Effect):
    """Ask models side by side, at most ten at a time; each question stands for itself."""

    kind: Literal["call_models"] = "call_models"
    calls: tuple[CallModel, ...] = Field(min_length=1)
    label: str = "call models"

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that are offered in any of them."""
        return tuple(sorted({name for call in self.calls for name in call.offer}))

    @property
    def title(self) -> str:
        """What the machine calls this step."""
        return f"{self.label} ({len(self.calls)})"


class ToolRun(Frozen):
    """One tool with its arguments; `id` names the call within the run."""

    id: str
    tool: str
    arguments: JsonObject = {}
    artifacts: tuple[ArtifactSpec, ...] = ()
    """The whole result is kept under these names: an object's keys by name, else as the first one."""

    @property
    def title(self) -> str:
        """The call as a person would write it, cut: `search_files("ERROR")`."""
        words = [f'"{v}"' if isinstance(v, str) else str(v) for v in self.arguments.values()]
        return f"{self.tool}({', '.join(w[:60] for w in words)[:120]})"


class CallTools(Effect):
    """Run tools in order, or side by side when `parallel` and every one may be repeated."""

    kind: Literal["call_tools"] = "call_tools"
    runs: tuple[ToolRun, ...] = Field(min_length=1)
    parallel: bool = False
    attempts: int = Field(default=3, ge=1)
    """Per tool, for transient failures of tools that may be repeated; waits of 1 s, 2 s, ..."""

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that are run, in order."""
        return tuple(run.tool for run in self.runs)

    @property
    def title(self) -> str:
        """The calls, cut to one line."""
        return "; ".join(run.title for run in self.runs)[:200]


class AskPerson(Effect):
    """Ask a person and wait; `options` are the decisions that make sense here."""

    kind: Literal["ask_person"] = "ask_person"
    about: Literal["escalation", "question", "interrupt"]
    text: str
    options: tuple[Literal["resume", "abort", "answer"], ...] = ("resume", "abort")

    @property
    def title(self) -> str:
        """What is asked."""
        return f"ask a person: {self.text[:120]}"


GOAL_BYTES = 200_000
"""The longest goal of a run, in UTF-8."""


class RunMachine(Effect):
    """Run another machine to its end as one step of this one (spec 1.9)."""

    kind: Literal["run_machine"] = "run_machine"
    machine: str
    machine_version: str | None = None
    goal: str
    options: JsonObject = {}
    instructions: str = ""
    tools_given: tuple[str, ...] = ()
    """Of the run's tools; the inner machine has no others."""
    roles: dict[str, str] = {}
    """Model role of the inner machine -> role of this run; others keep their names."""
    limits: InnerLimits = InnerLimits()
    """Its own caps; what the run has left is a cap too."""
    values: JsonObject = {}
    """What of the outer state it begins with (for machines that take it, such as ReAct's metadata)."""
    context: str | ContextRef | None = None
    mode: Literal["inline", "child"] = "inline"
    """inline: in the same workflow and log; child: a workflow of its own."""
    label: str = ""

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that are handed on."""
        return self.tools_given

    @property
    def title(self) -> str:
        """What the machine calls this step."""
        return self.label or f"run {self.machine}: {self.goal[:100]}"


# -- answers: what the world says --------------------


class Usage(Frozen):
    """Tokens of one or more model calls."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """How many of the input tokens the provider had cached."""


class ModelReplied(Frozen):
    """A model's reply."""

    kind: Literal["model_replied"] = "model_replied"
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    model: str = ""
    """The name that the provider gives for what answered."""
    usage: Usage = Usage()
    cost_usd: float = Field(default=0, ge=0, allow_inf_nan=False)
    cost_known: bool = True
    """False when neither the price library nor the task knows the model's price."""
    attempt: int = 1
    seconds: float = 0
    transcript: str = ""
    """Digest of the transcript with this reply behind it; the store holds it."""

    @property
    def message(self) -> Message:
        """The reply as a message of the transcript; must equal what the activity stored."""
        return Message(role="assistant", content=self.text, tool_calls=self.tool_calls)


ToolError = Literal[
    "unknown_tool", "bad_arguments", "failed", "transient", "timeout", "unknown_outcome", "rejected",
    "expired",
]  # fmt: skip
"""rejected: a person said no. expired: nobody decided in time. Neither was run."""


class ToolResult(Frozen):
    """What one tool returned: its output as text, or an error in words for the model."""

    id: str
    tool: str
    output: str
    """What the model is shown, capped."""
    error: ToolError | None = None
    attempts: int = 1
    seconds: float = 0
    cost_usd: float = Field(default=0, ge=0, allow_inf_nan=False)
    bytes: int = 0
    """Size of the whole output in UTF-8."""
    whole: str | None = None
    """Digest of the whole output in the durable store, when `output` was cut."""
    marks: tuple[str, ...] = ()
    """Progress marks that the tool reports (spec 4.14)."""
    artifacts: tuple[Artifact, ...] = ()
    """What the call's `artifacts` asked to keep."""

    @property
    def ok(self) -> bool:
        """The tool ran and returned."""
        return self.error is None


class ToolsReturned(Frozen):
    """The results of a `CallTools`, in the order of its runs; shorter if it was cut off."""

    kind: Literal["tools_returned"] = "tools_returned"
    results: tuple[ToolResult, ...]


class PersonDecided(Frozen):
    """What a person decided; `unavailable` when nobody can be asked."""

    kind: Literal["person_decided"] = "person_decided"
    decision: Literal["resume", "abort", "answer", "unavailable"]
    text: str = ""
    by: str = ""


ErrorClass = Literal["transient", "recoverable", "fatal", "unknown_outcome"]
"""transient: retried in vain; recoverable: the machine may go on; fatal: it must not."""


class EffectFailed(Frozen):
    """An effect that could not be performed; the machine's `on_error` decides."""

    kind: Literal["effect_failed"] = "effect_failed"
    error: ErrorClass
    type: str
    """The cause by name, such as `context_too_long`, `HTTP401`."""
    message: str
    attempts: int = 1
    spent: dict[str, float] = {}
    """What it cost all the same, by counter: an inner machine that broke a rule."""


class ModelsReplied(Frozen):
    """The replies to a `CallModels`, in the order of its calls, or why there is none."""

    kind: Literal["models_replied"] = "models_replied"
    replies: tuple[ModelReplied | EffectFailed, ...]


class MachineEnded(Frozen):
    """How an inner machine ended."""

    kind: Literal["machine_ended"] = "machine_ended"
    machine: str
    ok: bool
    exit_reason: str
    answer: str | None = None
    error: str | None = None
    outcome: JsonObject = {}
    spent: dict[str, float] = {}
    """Its ledger; added to the outer one, once."""
    workflow_id: str = ""
    """Of the child workflow, if it was one."""


Answer = Annotated[
    ModelReplied | ModelsReplied | ToolsReturned | PersonDecided | MachineEnded | EffectFailed,
    Field(discriminator="kind"),
]

# -- requests to activities --------------------

TRANSCRIPT_MISSING = "TranscriptMissing"
"""Error type: the store holds no such base or setup; the workflow sends everything once."""
TRANSIENT = "Transient"
"""Error type of a failure that goes away by itself; retried by Temporal."""
RECOVERABLE = "Recoverable"
"""Error type of a failure that the machine may answer, such as a context that is too long."""
FATAL = "Fatal"
"""Error type of a failure that no retry mends, such as a refused key."""


class Setup(Frozen):
    """What does not change from call to call of one role: sent once, then named by its digest."""

    model: ModelSpec
    tools: tuple[ToolSpec, ...] = ()
    response_schema: JsonObject | None = None

    @property
    def digest(self) -> str:
        """32 hexadecimal characters."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]


class ModelRequest(Frozen):
    """Input of the activity `call_model`: the conversation so far by reference, and what is new."""

    role: str
    setup: str
    """Digest of the setup."""
    full_setup: Setup | None = None
    """Given when the store may not hold it."""
    base: str | None = None
    """Digest of the transcript that the store holds; None: `messages` are all there is."""
    messages: tuple[Message, ...] = ()
    """What comes behind the base."""
    tool_choice: Literal["auto", "none", "required"] = "auto"
    key: str = ""
    """Idempotency key: stable over attempts, sent to the provider as a header."""
    attempts: int = 6
    """In all, for transient failures: from this attempt on, a transient failure is not retried.
    Temporal's own maximum is higher, because attempts that died with their worker count there."""


class ToolRequest(Frozen):
    """Input of the activity `call_tool`."""

    id: str
    tool: str
    arguments: JsonObject
    key: str
    """Idempotency key: stable over attempts, crashes and continue-as-new."""
    attempts: int = 3
    """As in `ModelRequest`; 1 for tools that must not be repeated."""
    artifacts: tuple[ArtifactSpec, ...] = ()
    """Named results to keep whole in the durable store."""


class ToolsWanted(Frozen):
    """Input of the activity `describe_tools`."""

    names: tuple[str, ...]


class ToolsDescribed(Frozen):
    """Answer of `describe_tools`: the specs of those that the worker has, in the order asked."""

    tools: tuple[ToolSpec, ...]
    missing: tuple[str, ...] = ()
    available: tuple[str, ...] = ()
    """All that the worker has; given when one is missing."""


class ArchiveRequest(Frozen):
    """Input of the activity `archive_log`: records of one run, the next part of its chain."""

    workflow_id: str
    run_id: str
    after: str
    """Hash of the record before the first of these; the empty string at the start."""
    records: tuple[dict[str, Any], ...]
    result: JsonObject | None = None
    """The run's result, with the last part."""


class LogWanted(Frozen):
    """Input of the activity `read_log`."""

    workflow_id: str
    run_id: str
    """Of the first run of the chain."""


class LogRead(Frozen):
    """Answer of `read_log`: the records as JSON, in order."""

    records: tuple[dict[str, Any], ...]
