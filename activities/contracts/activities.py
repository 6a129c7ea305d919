"""Inputs and results of activities."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field

from activities.contracts.answers import ToolResult
from activities.contracts.base import Frozen, JsonObject
from activities.contracts.conversation import Message
from activities.contracts.specs import ArtifactSpec, ModelSpec, ToolSpec

__all__ = [
    "CONVERSATION_MISSING",
    "FATAL",
    "OUT_OF_REQUESTS",
    "NOT_BEGUN",
    "RECOVERABLE",
    "TRANSIENT",
    "UNKNOWN_TOOLS",
    "AfterReset",
    "ArchiveRequest",
    "CallBlocked",
    "CompensateInput",
    "Compensated",
    "Digests",
    "LogRead",
    "LogWanted",
    "MachineNamed",
    "ModelInput",
    "NoticeMoment",
    "QUOTED_CHARS",
    "Quote",
    "Notice",
    "Noticed",
    "ReconcileInput",
    "Reconciled",
    "Setup",
    "ToolInput",
    "ToolsDescribed",
    "ToolsWanted",
    "text_digest",
]

CONVERSATION_MISSING = "ConversationMissing"
"""Error type: the store lacks the base or the setup; the workflow sends everything once."""
TRANSIENT = "Transient"
"""Error type of a failure that goes away by itself; retried by Temporal."""
RECOVERABLE = "Recoverable"
"""Error type of a failure that the machine may answer, such as a conversation that is too long."""
FATAL = "Fatal"
"""Error type of a failure that no retry mends, such as a refused key."""
OUT_OF_REQUESTS = "out_of_requests"
"""Cause of a model call's failure: the run's limit of `model_calls` lets no further request through."""
NOT_BEGUN = "NotBegun"
"""Error type: the worker could not write down that the call begins, and did not begin it. The first detail is
when it tried, as in `NotBegun.at`."""
UNKNOWN_TOOLS = "UnknownTools"
"""Error type: the worker lacks tools of the task; the message names them, and those that it has."""


class Setup(Frozen):
    """What does not change from call to call of one role: sent once, then named by its digest."""

    model: ModelSpec
    tools: tuple[ToolSpec, ...] = ()
    response_schema: JsonObject | None = None

    @property
    def digest(self) -> str:
        """32 hexadecimal characters."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]


QUOTED_CHARS = 200
"""Tool outputs of this length or more travel by reference to the next question."""


def text_digest(text: str) -> str:
    """32 hexadecimal characters."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


class Quote(Frozen):
    """A tool's output that belongs into a message: the store has it since the tool ran."""

    message: int
    """Which message of the request."""
    at: int
    """Before this character of its content."""
    output: str
    """Digest of the text."""
    escaped: bool = False
    """It is inside a JSON string there."""

    @staticmethod
    def escape(output: str) -> str:
        """The output as it is inside a JSON string."""
        return json.dumps(output, ensure_ascii=False)[1:-1]


class ModelInput(Frozen):
    """Input of the activity `ask_model`: the conversation so far by reference, and what is new."""

    role: str
    setup: str
    """Digest of the setup."""
    full_setup: Setup | None = None
    """Given when the store may lack it."""
    describe: tuple[str, ...] = ()
    """Names of the run's tools, as long as it does not know their specs: the reply brings them."""
    offer: tuple[str, ...] = ()
    """Those of them that belong into the setup."""
    base: str | None = None
    """Digest of the conversation that the store holds; None: `messages` are the whole."""
    messages: tuple[Message, ...] = ()
    """What follows the base."""
    quotes: tuple[Quote, ...] = ()
    """What was left out of them, at most one for each."""
    skip: tuple[int, int] = (0, 0)
    """The model is not sent the messages from the first number up to the second."""
    tool_choice: Literal["auto", "none", "required"] = "auto"
    key: str = ""
    """Idempotency key: stable over attempts; the provider is sent a digest of it and of what is posted."""
    attempts: int = 6
    """In all, for transient failures: from this attempt on, a transient failure is not retried.
    Temporal's own maximum is higher, because attempts that died with their worker count there."""
    most_requests: int | None = None
    """How many requests the run may send a provider for it, over all attempts; None: it has no limit."""


class MachineNamed(Frozen):
    """A machine as a task names it."""

    name: str
    version: str | None
    options: JsonObject


class Digests(Frozen):
    """What a machine and its tools are, as a worker has them, in digests."""

    machine: str
    version: str
    ratchet: str
    """Of the code of Ratchet that runs and verifies machines."""
    code: dict[str, str]
    """Module -> SHA-256 of its file: the machine's own code, and what of its author's it imports."""
    table: str
    options_schema: str
    options: str
    """Of the values of all options."""
    tools: dict[str, str]
    """Tool -> digest of its spec."""
    given: tuple[str, ...] = Field(default=(), exclude_if=lambda given: not given)
    """Rules, policies and hooks that are of no module, such as `rule again`: functions in memory."""


class ToolsWanted(Frozen):
    """Input of the activity `describe_tools`."""

    names: tuple[str, ...]
    machine: MachineNamed | None = Field(default=None, exclude_if=lambda machine: machine is None)
    """Given where the run began under a certificate: what the worker has is compared with it."""


class ToolsDescribed(Frozen):
    """Result of `describe_tools`: the specs, in the order of the names."""

    tools: tuple[ToolSpec, ...]
    machine: Digests | None = Field(default=None, exclude_if=lambda machine: machine is None)
    """Where they were asked for; None also where the worker does not have the machine."""


class AfterReset(Frozen):
    """What a run that was reset, and so has forgotten calls, sends with a call."""

    since: float
    """When it began, in seconds since 1970."""
    run: str
    """The keys of its calls begin with this."""
    keys: tuple[str, ...] = ()
    """Keys under which it knows that it has made the same call, with the same arguments."""


class ToolInput(Frozen):
    """Input of the activity `call_tool`."""

    id: str
    tool: str
    arguments: JsonObject
    key: str
    """Idempotency key: stable over attempts, crashes, continue-as-new and resets."""
    attempts: int = 3
    """As in `ModelInput`; 1 for tools that must not be repeated."""
    artifacts: tuple[ArtifactSpec, ...] = ()
    """Named results to keep whole in the durable store."""
    after_reset: AfterReset | None = None
    """The run was reset: its history does not tell whether the call was made."""
    void: tuple[float, ...] = ()
    """Times of notes in the call store that count for nothing: `NotBegun.at` of this call."""


class ReconcileInput(ToolInput):
    """Input of the activity `reconcile_tool`: the call as it was made, with its key.

    `attempts` counts those of the question, which may be repeated; the call itself never is.
    """


class Reconciled(Frozen):
    """What a tool's `reconcile` found out about a call."""

    outcome: Literal["happened", "not_happened", "unknown"]
    result: ToolResult | None = None
    """What the call would have answered, if it happened."""
    text: str = ""
    """For a person: what was found, or why nothing was."""


class CallBlocked(Frozen):
    """Result of `block_call`: an attempt that was lost cannot begin any more."""

    begun: bool = False
    """It has begun before, and its worker may go on with it."""


class CompensateInput(Frozen):
    """Input of the activity `compensate_tool`: undo this call."""

    tool: str
    arguments: JsonObject
    output: str = ""
    """What the call answered, as far as the run still has it."""
    key: str
    """Of the call to undo; the compensation's own key is this one with `/undo` at its end."""
    attempts: int = 3
    """In all, for transient failures of tools that may be repeated."""
    void: tuple[float, ...] = ()
    """As in `ToolInput`, of the compensation."""


class Compensated(Frozen):
    """What a compensation did."""

    ok: bool
    """The tool says that the call is undone."""
    text: str
    """For a person: what was done, or what went wrong."""
    cost_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)


NoticeMoment = Literal["opened", "expiring", "closed"]
"""Of a request to people: it was opened, its deadline is near, it was closed."""


class Notice(Frozen):
    """Input of the activity `notify`: tell people about a request."""

    moment: NoticeMoment
    request: JsonObject
    """The request as the run knows it; only what a person needs is passed on."""
    run: str
    """Workflow id."""
    agent: str = ""
    attempts: int = 6
    """In all, for transient failures: half a minute of an outage, and the time of the attempts."""


class Noticed(Frozen):
    """What the worker's notification hook did."""

    ok: bool = True
    """Nothing went wrong; also true when there is nobody to notify."""
    sent: tuple[Literal["webhook", "command"], ...] = ()
    text: str = ""
    """What went wrong, or that the worker has no hook."""


class ArchiveRequest(Frozen):
    """Input of the activity `archive_log`: records of one run, the next part of its chain."""

    workflow_id: str
    run_id: str
    after: str
    """Hash of the record before the first of these; empty at the start."""
    records: tuple[dict[str, Any], ...]
    result: JsonObject | None = None
    """The run's result, with the last part."""
    behind_gap: bool = Field(default=False, exclude_if=lambda behind_gap: not behind_gap)
    """An earlier part could not be written, so this one is not written either: a worker writes all of them in
    their order when the archive is back. It is here to be in Temporal's history."""


class LogWanted(Frozen):
    """Input of the activity `read_log`."""

    workflow_id: str
    run_id: str
    """Of the first execution of the chain."""
    head: str
    """Hash of the last wanted record."""


class LogRead(Frozen):
    """Result of `read_log`: the records as JSON, in order."""

    records: tuple[dict[str, Any], ...]
