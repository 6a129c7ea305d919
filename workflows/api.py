"""What client and workflow exchange: the task in, status, pages and result out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from activities.contracts import (
    GOAL_BYTES,
    ContextRef,
    Frozen,
    JsonObject,
    Message,
    ModelSpec,
    Strict,
    ToolSpec,
)
from workflows.kernel.errors import error_named
from workflows.kernel.log import Record
from workflows.people import Approvals, Decided, DoneCall, People

__all__ = [
    "AgentResult",
    "AgentStatus",
    "AgentTask",
    "Carry",
    "EffectsQuery",
    "Fork",
    "Origin",
    "Limits",
    "LogPage",
    "Name",
    "PageQuery",
    "StepLine",
    "StepsPage",
    "TranscriptPage",
    "ATTRIBUTES",
    "GOAL_BYTES",
    "COUNTERS",
    "NO_COUNTERS",
    "MOST",
    "PAGE_BYTES",
    "TASK_QUEUE",
    "WORKFLOW_TYPE",
]

WORKFLOW_TYPE = "AgentWorkflow"
TASK_QUEUE = "ratchet"
PAGE_BYTES = 12 * 1024
"""Pages of queries stay below the threshold of external storage, so that `temporal` shows them."""


ATTRIBUTES: dict[str, Literal["Keyword", "Datetime"]] = {
    "AgentName": "Keyword",
    "AgentMachine": "Keyword",
    "AgentState": "Keyword",
    "AgentWaiting": "Keyword",
    "AgentWaitingSince": "Datetime",
    "AgentDeadline": "Datetime",
    "AgentExit": "Keyword",
}
"""Search attributes of a run, to be registered in the namespace."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


MOST = 10**12
"""No limit may be set higher: larger numbers lose digits on their way through JSON."""


class Limits(Strict):
    """What a run may spend at most; None is no limit. Checked before each call."""

    model_calls: int | None = Field(default=200, ge=0, le=MOST)
    tool_calls: int | None = Field(default=None, ge=0, le=MOST)
    tokens: int | None = Field(default=None, ge=0, le=MOST, description="input and output tokens together")
    cost_usd: float | None = Field(default=None, ge=0, le=MOST)
    seconds: float | None = Field(default=None, gt=0, le=MOST, description="since the run began")
    max_transitions: int | None = Field(
        default=None, gt=0, le=MOST, description="of the machine; None: the machine's own default"
    )
    depth: int = Field(default=5, ge=0, le=50, description="runs nested in runs [R-000-15]")


COUNTERS = ("model_calls", "tool_calls", "tokens", "cost_usd", "seconds")
"""Limits that are counters of the ledger; `limits` of a command may name these."""
NO_COUNTERS = {"max_transitions", "depth"}
"""Limits that are no counters of the ledger."""


class Carry(Frozen):
    """What a run takes over from the one before it when its history gets long (continue-as-new)."""

    origin_run_id: str
    snapshot: JsonObject
    ledger: JsonObject
    effect: JsonObject
    """What the machine wanted done when the run before ended."""
    inner: tuple[JsonObject, ...] = ()
    """Machines at work inside: snapshot, ledger, and the call that opened each."""
    log_head: str = ""
    """Hash of the last archived record."""
    records: tuple[JsonObject, ...] = ()
    """Records that could not be archived yet."""
    held: tuple[str, ...] = ()
    """Digests of set-ups and conversations that the store holds."""
    remembered: dict[str, JsonObject] = {}
    """Results of tools with `cache: run`, by call."""
    people: JsonObject = {}
    """Open requests, remembered approvals, what waits to be told, calls that were made."""
    unusable: tuple[str, ...] = ()
    """Names of the newest signals that could not be understood."""
    specs: tuple[ToolSpec, ...] = ()
    """Its tools, as they were when the chain began."""


class Origin(Frozen):
    """Where a forked run comes from."""

    workflow_id: str
    run_id: str
    """Id of the first execution of its chain."""
    step: int
    """The step that the fork began again."""


class Fork(Frozen):
    """Another run's log up to a step: the new run goes on from there."""

    origin: Origin
    records: tuple[JsonObject, ...]
    """Of the whole source run up to the step, as in its log."""
    retold: bool = True
    """What changed in goal, instructions and tools replaces what the source run began with."""


class AgentTask(Strict):
    """One run's input: the whole resolved agent, so that a run does not change when a file does."""

    goal: str = Field(min_length=1)
    agent: Name = "agent"
    machine: Name = "react"
    machine_version: str | None = Field(
        default=None,
        description="None: the oldest the worker has, so that a new version beside it changes no open run; "
        "`ratchet task` and the SDK name the newest",
    )
    options: JsonObject = Field(default_factory=dict, description="the machine's knobs")
    models: dict[str, ModelSpec] = Field(default_factory=lambda: {"default": ModelSpec()})
    instructions: str = Field(default="", max_length=100_000)
    tools: tuple[Name, ...] = ()
    limits: Limits = Limits()
    visibility: Literal["basic", "state"] = Field(
        default="basic", description="state: the run's state is a search attribute too"
    )
    heartbeat_seconds: float = Field(
        default=10, ge=3, le=600, description="after so long without a sign a worker counts as dead"
    )
    context: str | ContextRef | None = Field(
        default=None,
        description="material that the run is about, for machines that take it; long texts by reference",
    )
    depth: int = Field(default=0, ge=0, le=50, description="how deep this run is nested in others")
    values: JsonObject = Field(default_factory=dict, description="what of an outer machine it begins with")
    spent_before_usd: float = Field(
        default=0, ge=0, description="what the runs above it had spent by then; counts for `cost_above`"
    )
    approvals: Approvals = Approvals()
    people: People = People()
    fork: Fork | None = None
    carry: Carry | None = None

    @field_validator("context")
    @classmethod
    def _context_fits(cls, context: str | ContextRef | None) -> str | ContextRef | None:
        if isinstance(context, str) and (size := len(context.encode())) > GOAL_BYTES:
            raise ValueError(
                f"the context is {size:,} bytes, at most {GOAL_BYTES:,} are allowed as text; "
                "give a long one by reference: `ratchet run --context FILE`, or the SDK's `context=`"
            )
        return context

    @field_validator("goal")
    @classmethod
    def _fits(cls, goal: str) -> str:
        if not goal.strip():
            raise ValueError("the goal is blank; say what the agent shall do")
        size = len(goal.encode())
        if size > GOAL_BYTES:
            raise ValueError(
                f"the goal is {size:,} bytes, at most {GOAL_BYTES:,} are allowed; "
                "put long material into a file and let the agent read it with read_file"
            )
        return goal

    @field_validator("models")
    @classmethod
    def _has_default(cls, models: dict[str, ModelSpec]) -> dict[str, ModelSpec]:
        if "default" not in models:
            raise ValueError(f"models lacks the role `default`; it has {sorted(models)}")
        return models


class AgentStatus(Frozen):
    """Where a run is: the query `status`."""

    agent: str
    machine: str
    machine_version: str
    state: str
    step: int
    visit: int
    branch: int = 0
    inside: tuple[str, ...] = ()
    """`machine: state` of the machines at work inside, the innermost last; `machine: run ID` of a child."""
    child: str = ""
    """Workflow id of the child run at work: it hears `pause` and `resume`, too."""
    doing: str = ""
    """Title of the effect that is being performed."""
    finished: bool = False
    exit_reason: str | None = None
    answer: str | None = None
    error: str | None = None
    """Why the run ended without success, and who ended it: `ann (claimed) ended the run: ...`; cut."""
    counters: dict[str, float] = {}
    """Spent so far: model_calls, tool_calls, input_tokens, output_tokens, cost_usd, seconds."""
    caps: dict[str, float] = {}
    records: int = 0
    """How many records the log has."""
    waiting: str = ""
    """Kind of the oldest open request, or `paused`; empty: the run waits for nobody."""
    paused: bool = False
    requests: int = 0
    """Open requests; see the query `requests`."""
    origin: Origin | None = None
    unusable_messages: tuple[str, ...] = ()
    """Signals that could not be understood; each is in the log too."""


class PageQuery(Strict):
    """Which part of a list a query wants: items from `since` on."""

    since: int = Field(default=0, ge=0)
    full: bool = Field(default=False, description="false: long values are cut to fit into the page")


class EffectsQuery(Strict):
    """Which calls with outside effects a query wants: of step `step` and later ones, from `since` on."""

    step: int = Field(default=0, ge=0)
    since: int = Field(default=0, ge=0)


class LogPage(Frozen):
    """Records of the log from `since` on, at most `PAGE_BYTES`; ask again from `next`."""

    records: tuple[Record, ...]
    next: int
    """Sequence number to ask from next."""
    total: int
    finished: bool
    """The run is over, so the log does not grow."""
    first: int = 0
    """Sequence number from which on this run of the chain holds records; the archive has the others."""


class StepLine(Frozen):
    """One step in one line."""

    step: int
    states: tuple[str, ...]
    summary: str
    counters: dict[str, float] = {}
    started: float = 0
    finished: float = 0


class StepsPage(Frozen):
    """Steps from number `since` on."""

    steps: tuple[StepLine, ...]
    next: int
    total: int


class TranscriptPage(Frozen):
    """Messages of the conversation with the model from number `since` on."""

    messages: tuple[Message, ...]
    next: int
    total: int


class AgentResult(Frozen):
    """What came out of a run, also of one that was stopped."""

    ok: bool
    """The goal was achieved, as the machine understands it."""
    exit_reason: str
    answer: str | None = None
    error: str | None = None
    """What went wrong, for a person; where people ended the run, who: `ann (claimed) ended the run: ...`."""
    agent: str
    machine: str
    machine_version: str
    state: str
    steps: int
    counters: dict[str, float]
    outcome: dict[str, Any] = {}
    """What the machine adds to its result (the ReAct machine: metadata)."""
    workflow_id: str
    run_id: str
    records: int
    log_head: str
    """Hash of the last record; the archive's chain must end in it."""
    branch: int = 0
    """How often the run was rolled back."""
    calls: tuple[DoneCall, ...] = ()
    """What was done outside, oldest first, also in branches that were left, and in child runs: the newest
    1,000 calls that are neither `pure` nor `read`."""
    decisions: tuple[Decided, ...] = ()
    """The newest 100 requests that were decided, expired or withdrawn, oldest first."""
    origin: Origin | None = None
    """The run that this one was forked from."""
    raises: str | None = None
    """The error that the machine ended with, where it raises instead of returning: the workflow has
    failed then, with this type, and this result in the error's details."""

    def raise_if_failed(self) -> None:
        """Raise what the machine ended with, such as `MaxIterationsExceeded`, if it does so."""
        if self.raises is not None:
            raise error_named(self.raises, self.machine, self.state, self.error or self.exit_reason)
