"""What client and workflow exchange: the task in, status, pages and result out.

One model says what an agent is: `AgentSpec`. An agent file is one, a task adds a goal to it, and the task of
an inner run is made of it. What people and runs say to each other is in `workflows/people.py`.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, Field, StringConstraints, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from activities.contracts import (
    GOAL_BYTES,
    Frozen,
    InnerLimits,
    JsonObject,
    LabelSource,
    MaterialRef,
    Message,
    ModelSpec,
    Strict,
    ToolSpec,
    model_schema,
)
from workflows.certificate import Certificate
from workflows.gate.stuck import StuckSettings
from workflows.kernel.labels import Labels
from workflows.kernel.log import Record
from workflows.people import Amount, Approvals, MaybePerson, People, values_in
from workflows.status import Origin, RunResult, RunStatus, RunSummary
from workflows.steps import StepLine
from workflows.temporal_names import (
    ATTRIBUTES,
    FOR_ARCHIVE,
    LOG_HEAD_KEY,
    RESULT_KEY,
    TASK_QUEUE,
    WORKFLOW_TYPE,
)

__all__ = [
    "ATTRIBUTES",
    "COUNTERS",
    "FOR_ARCHIVE",
    "LOG_HEAD_KEY",
    "MAX_LIMIT",
    "MAX_VALUES",
    "PAGE_BYTES",
    "RESULT_BYTES",
    "RESULT_KEY",
    "TASK_QUEUE",
    "WORKFLOW_TYPE",
    "AgentSpec",
    "AgentTask",
    "Carry",
    "CompactionSettings",
    "EffectsQuery",
    "Fork",
    "Limits",
    "LogPage",
    "Name",
    "OnEnd",
    "Origin",
    "PageQuery",
    "RequestsQuery",
    "ResultPage",
    "RunResult",
    "RunStatus",
    "RunSummary",
    "StepsPage",
    "TranscriptPage",
    "limits_problem",
]

PAGE_BYTES = 12 * 1024
"""Pages of queries stay below the threshold of external storage, so that Temporal's own CLI shows them."""
RESULT_BYTES = 90_000
"""A longer result is cut, so that it stays in Temporal's history, encrypted or not: programs of other
languages cannot read what lies in the store."""
COUNTERS = ("model_calls", "tool_calls", "tokens", "cost_usd", "seconds")
"""Limits that are counters of the ledger; the command `limits` may name these."""
MAX_LIMIT = 10**12
"""No limit may be set higher: larger numbers lose digits on their way through JSON."""
MAX_VALUES = 50_000
"""Values that an agent may have in all its lists and maps. A worker checks so many in a second; Temporal
takes one that needs more than two as stuck, and the run would never begin."""
OF_RUNS = ("fork", "carry")
"""Fields of a task that hold runs, which may be of any length."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


def limits_problem(limits: Mapping[str, float | None]) -> str:
    """Why a command cannot set these limits; empty: it can."""
    if not limits:
        return 'Name the `limits` to set, such as {"model_calls": 100}; null removes one.'
    for name, cap in limits.items():
        if name not in COUNTERS:
            close = difflib.get_close_matches(name, COUNTERS, 1)
            hint = f"did you mean {close[0]}? Limits" if close else "limits"
            return f"There is no limit {name!r}; {hint}: {', '.join(COUNTERS)}."
        if cap is not None and not 0 <= cap <= MAX_LIMIT:
            return f"{name}: expected 0 to {MAX_LIMIT:g} or null, got {cap:g}."
    return ""


# -- in: what an agent is, and what a run begins with --------------------


class Limits(InnerLimits):
    """What a run may spend; null is no limit. Checked before each call."""

    model_calls: int | None = Field(
        default=200, ge=0, le=MAX_LIMIT, description="requests to model providers, retries included"
    )
    depth: int = Field(default=5, ge=0, le=50, description="runs nested in runs [R-000-15]")

    @property
    def caps(self) -> dict[str, float]:
        """The caps of the run's ledger, by counter."""
        return {name: cap for name in COUNTERS if (cap := getattr(self, name)) is not None}


class CompactionSettings(Strict):
    """When older messages of a conversation are summarised, for models with `window_tokens`."""

    at: float = Field(
        default=0.8,
        gt=0,
        le=0.95,
        description="part of the window that a question may fill before; the reply needs the rest",
    )
    keep: float = Field(
        default=0.25, ge=0, lt=0.95, description="part of the window that the newest messages keep"
    )

    @model_validator(mode="after")
    def _leaves_room(self) -> CompactionSettings:
        if self.keep >= self.at:
            raise ValueError(f"keep: must be less than `at`, {self.at:g}; got {self.keep:g}")
        return self


class OnEnd(Strict):
    """How Temporal shows a run that did not reach its goal, whatever its machine. Its result is the same. One
    whose machine broke a rule, or whose task was refused, is Failed in any case."""

    failed: Literal["complete", "fail_workflow"] = Field(
        default="complete", description="any end that is not `ok`, but a cancellation"
    )
    cancelled: Literal["complete", "cancel_workflow"] = Field(
        default="complete", description="an inner run that is cancelled always completes"
    )


class AgentSpec(Strict):
    """An agent, whole: what an agent file resolves to."""

    name: Name = Field(
        default="agent", description="begins the ids of its runs; the search attribute AgentName"
    )
    machine: Name = Field(default="react", description="the state machine that runs it: `ratchet machines`")
    machine_version: str | None = Field(
        default=None,
        description="null: the oldest that the worker has, so that a new version beside it changes no open "
        "run; `ratchet task` and the SDK name the newest",
        examples=["2"],
    )
    options: JsonObject = Field(
        default_factory=dict,
        max_length=1000,
        description="of the machine: `ratchet machines NAME`",
        examples=[{"max_steps": 20}],
    )
    models: dict[Annotated[str, StringConstraints(max_length=100)], ModelSpec] = Field(
        default_factory=lambda: {"default": ModelSpec()},
        max_length=100,
        description="by role; every machine needs `default`. In a file the name of a model is enough",
        examples=["gpt-5-mini"],
    )
    instructions: str = Field(
        default="",
        max_length=100_000,
        description="what the model reads first",
        examples=["Answer briefly, and name your sources."],
    )
    tools: tuple[Name, ...] = Field(
        default=(),
        max_length=500,
        description="names (`ratchet tools`); the agent has no others",
        examples=[["read_file", "calculator"]],
    )
    output: JsonObject | None = Field(
        default=None,
        exclude_if=lambda output: output is None,
        description="JSON schema of an object that the answer must be, or in Python a pydantic model; null: "
        "any text",
        examples=[{"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}],
    )
    limits: Limits = Field(default=Limits(), description="what a run may spend; null is no limit")
    compaction: CompactionSettings = Field(
        default=CompactionSettings(),
        description="when older messages are summarised, for models with `window_tokens`",
    )
    stuck: StuckSettings | None = Field(
        default=StuckSettings(), description="when a run goes round in circles; null: nobody watches"
    )
    visibility: Literal["basic", "state"] = Field(
        default="basic", description="state: the run's state is a search attribute too"
    )
    heartbeat_seconds: float = Field(
        default=10, ge=3, le=600, description="after this long without a heartbeat a worker counts as dead"
    )
    fuse: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: a tool that may be repeated and the model's next reply share one activity",
    )
    on_end: OnEnd = Field(default=OnEnd(), description="whether Temporal shows Failed and Canceled")
    approvals: Approvals = Field(default=Approvals(), description="which tool calls wait for a person")
    people: People = Field(default=People(), description="who decides, how long they have, who is notified")
    labels: Labels = Field(
        default=Labels(), description="what brings untrusted and private text, for `after` in approval rules"
    )

    certificate: Certificate | None = Field(
        default=None,
        exclude_if=lambda certificate: certificate is None,
        description="what was verified of the machine; the run's first record says what differs",
    )

    @model_validator(mode="before")
    @classmethod
    def _is_small(cls, given: object) -> object:
        own = {k: v for k, v in given.items() if k not in OF_RUNS} if isinstance(given, dict) else {}
        if (count := values_in(own)) > MAX_VALUES:
            largest = max(own, key=lambda name: values_in(own[name]))
            most = f", most of them in `{largest}`" if values_in(own[largest]) > count / 2 else ""
            raise ValueError(f"{count:,} values in lists and maps{most}; at most {MAX_VALUES:,} are allowed")
        return given

    @field_validator("models")
    @classmethod
    def _has_default(cls, models: dict[str, ModelSpec]) -> dict[str, ModelSpec]:
        if "default" not in models:
            raise ValueError(
                f"the role `default` is missing; there are: {', '.join(sorted(models)) or 'none'}"
            )
        if wrong := list(_wrong_fallbacks(models)):
            raise ValidationError.from_exception_data(cls.__name__, wrong)
        return models

    @field_validator("output", mode="before")
    @classmethod
    def _of_model(cls, output: object) -> object:
        """A model class as its schema: what travels with a task is data."""
        is_model = isinstance(output, type) and issubclass(output, BaseModel)
        return model_schema(output) if is_model else output  # type: ignore[arg-type]  # a model class

    @field_validator("output")
    @classmethod
    def _is_of_object(cls, output: JsonObject | None) -> JsonObject | None:
        if output is None:
            return None
        from workflows.gate.output import form_problem  # its library takes a while, and few agents need it

        if problem := form_problem(output):
            raise ValueError(problem)
        return output

    @property
    def fallbacks(self) -> set[str]:
        """Names of models that others fall back on; the machine need not have such a role."""
        return {name for model in self.models.values() for name in model.fallback}

    @field_validator("tools")
    @classmethod
    def _named_once(cls, tools: tuple[str, ...]) -> tuple[str, ...]:
        if twice := sorted(name for name, times in Counter(tools).items() if times > 1):
            raise ValueError(f"duplicate tool: {', '.join(twice)}")
        return tools


def _wrong_fallbacks(models: Mapping[str, ModelSpec]) -> Iterator[InitErrorDetails]:
    """Names under `fallback` that cannot be meant, each at its own place."""
    for role, model in models.items():
        others = [name for name in models if name != role]
        for index, name in enumerate(model.fallback):
            if name in others and name not in model.fallback[:index]:
                continue
            known = f"there is no other model {name!r}; there are: {', '.join(others) or 'none'}"
            problem = f"{name!r} is named twice" if name in others else known
            said = PydanticCustomError("wrong_fallback", "{problem}", {"problem": problem})
            yield {"type": said, "loc": (role, "fallback", index), "input": name}


class Fork(Frozen):
    """Another run's log up to a step: the new run goes on from there."""

    origin: Origin
    records: tuple[JsonObject, ...] = ()
    """Of the source run, from its first record up to the step. Empty once the run has begun."""
    message: str = ""
    """For the model: a person's message that the first question brings."""
    by: MaybePerson = ""
    """Who forked it, as its starter says; empty: nobody is named."""

    @property
    def about(self) -> JsonObject:
        """What the record of the fork says: its source, and the SHA-256 of the message, in hex, if any."""
        digest = hashlib.sha256(self.message.encode()).hexdigest()
        return self.origin.model_dump(mode="json") | ({"message": digest} if self.message else {})


class Carry(Frozen):
    """What a run takes over from the execution before it (continue-as-new)."""

    origin_run_id: str
    """Of the first execution of the chain."""
    reset_since: float | None = None
    """When a run began that was reset, in seconds since 1970."""
    drive: JsonObject
    """`Drive.dump()`: the run itself, its requests, and the calls that have ended."""
    specs: tuple[ToolSpec, ...] = ()
    """Its tools, as they were when the chain began."""
    log_head: str = ""
    """Hash of the last archived record."""
    records: tuple[JsonObject, ...] = ()
    """Records that could not be archived yet."""
    held: tuple[str, ...] = ()
    """Digests of setups and conversations that the store holds."""
    unusable: tuple[str, ...] = ()
    """Names of the newest signals that could not be understood."""


class AgentTask(AgentSpec):
    """One run's input: the whole resolved agent, so that a run does not change when a file does."""

    goal: str = Field(min_length=1, description="what the agent shall do; at most 200,000 bytes")
    material: str | MaterialRef | None = Field(
        default=None, description="what the run is about, for machines that take it; long texts by reference"
    )
    values: JsonObject = Field(
        default_factory=dict, max_length=1000, description="of an outer machine that it begins with"
    )
    depth: int = Field(default=0, ge=0, le=50, description="how deep this run is nested in others")
    spent_above_usd: float = Field(
        default=0, ge=0, description="what the runs above it had spent when it began; counts for `cost_above`"
    )
    bounds: dict[str, Amount] | None = Field(
        default=None, description="of an inner run: its part of what bounds of `approvals` had left, by bound"
    )
    labels_above: tuple[LabelSource, ...] = Field(
        default=(),
        max_length=10,
        description="labels that the run above it had, and what brought them",
    )
    fork: Fork | None = Field(default=None, description="of a forked run: its source's log")
    carry: Carry | None = Field(default=None, description="what a run takes over when it continues as new")

    @field_validator("goal")
    @classmethod
    def _goal_fits(cls, goal: str) -> str:
        if not goal.strip():
            raise ValueError("the goal is blank; say what the agent shall do")
        if (size := len(goal.encode(errors="replace"))) > GOAL_BYTES:
            raise ValueError(
                f"the goal is {size:,} bytes, at most {GOAL_BYTES:,} are allowed; put long material into a "
                "file and let the agent read it with `read_file`"
            )
        return goal

    @field_validator("material")
    @classmethod
    def _material_fits(cls, material: str | MaterialRef | None) -> str | MaterialRef | None:
        if isinstance(material, str) and (size := len(material.encode(errors="replace"))) > GOAL_BYTES:
            raise ValueError(
                f"the material is {size:,} bytes, at most {GOAL_BYTES:,} are allowed as text; give a long "
                "one by reference: `ratchet run --material FILE`, or the SDK's `material=`"
            )
        return material

    @property
    def spec(self) -> AgentSpec:
        """The agent alone."""
        return AgentSpec.model_validate({name: getattr(self, name) for name in AgentSpec.model_fields})


# -- pages of queries --------------------


class PageQuery(Strict):
    """Which part of a list a query wants: items from `since` on."""

    since: int = Field(default=0, ge=0, description="index of the first item")
    full: bool = Field(default=False, description="false: long values are cut to fit into the page")


class RequestsQuery(PageQuery):
    """Which open requests a query wants."""

    schemas: bool = Field(
        default=False, description="with the JSON schemas of their tools, which may be long"
    )


class EffectsQuery(Strict):
    """Which calls with outside effects a query wants: of step `step` and later ones, from `since` on."""

    step: int = Field(default=0, ge=0, description="the first step")
    since: int = Field(default=0, ge=0, description="index of the first call")


class LogPage(Frozen):
    """Records of the log from `since` on, at most `PAGE_BYTES`; ask again from `next`."""

    records: tuple[Record, ...]
    """Oldest first."""
    next: int
    """Sequence number to ask from next."""
    total: int
    """How many the run has."""
    finished: bool
    """The run is over, so the log does not grow."""
    first: int = 0
    """From this sequence number on this execution holds the records; the archive has the others."""


class ResultPage(Frozen):
    """A part of a finished run's whole result as JSON, from character `since` on; ask again from `next`."""

    read_by_others: ClassVar[bool] = True
    text: str
    """All parts together are the JSON of a `RunResult`."""
    next: int
    """Character to ask from next."""
    total: int
    """Characters of the whole."""


class StepsPage(Frozen):
    """Steps from index `since` on."""

    steps: tuple[StepLine, ...]
    """Oldest first."""
    next: int
    """Index to ask from next."""
    total: int
    """How many there are."""


class TranscriptPage(Frozen):
    """Messages of the conversation with the model, from number `since` on."""

    messages: tuple[Message, ...]
    """Oldest first."""
    next: int
    """Number to ask from next."""
    total: int
    """How many there are."""
