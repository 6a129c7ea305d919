"""What a run needs of the world: the `Host` protocol. Temporal in production, asyncio alone without it.

The host holds the `Drive` that it serves. It performs single calls. The drive sees to all else: approvals,
calls side by side, calls that have ended already, commands, limits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from activities.contracts import (
    ArtifactsRead,
    AskModel,
    CodeStepped,
    Compensated,
    CompensateInput,
    Conversation,
    EffectFailed,
    ModelReplied,
    NotBegun,
    NoticeMoment,
    ReadArtifacts,
    Reconciled,
    ReconcileInput,
    RunCode,
    ToolInput,
    ToolResult,
)
from workflows.api import AgentTask, RunResult
from workflows.kernel.log import Record
from workflows.people import Command, Request

__all__ = ["HostCall", "CallAnswer", "CallSite", "ChildRun", "Host", "Identity"]

HostCall = AskModel | ToolInput | RunCode | ReadArtifacts | ReconcileInput | CompensateInput
"""What a host performs. A `CallTools` comes as one `ToolInput` per tool, a `Together` as its members."""
CallAnswer = (
    ModelReplied | ToolResult | CodeStepped | ArtifactsRead | Reconciled | Compensated | EffectFailed
    | NotBegun
)  # fmt: skip
"""AskModel: ModelReplied or EffectFailed. ToolInput: ToolResult, with the error `unknown_outcome` for an
unsafe call whose worker died. RunCode: CodeStepped or EffectFailed. ReadArtifacts: ArtifactsRead.
ReconcileInput: Reconciled. CompensateInput: Compensated. A `ToolInput` and the last two may also get
NotBegun: they are given out again."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which run this is."""

    workflow_id: str
    origin: str
    """Run id of the first execution of the chain. A reset keeps it."""
    parents: tuple[tuple[str, str], ...] = ()
    """The runs above a child run, outermost first: workflow id and origin of each."""
    old_command_ids: tuple[str, ...] = ()
    """Ids of signed commands that those had accepted when it began."""
    reset_since: float | None = None
    """A run that was reset, or one above it: when that began, in seconds since 1970."""

    @property
    def root(self) -> str:
        """Origin of the outermost run. A child that is begun again after a reset has another origin, but the
        same workflow id and the same root."""
        return self.parents[0][1] if self.parents else self.origin


@dataclass(frozen=True, slots=True)
class CallSite:
    """Which call of the run this is."""

    activity_id: str
    """`<state>#<visit>:<effect>`, with `.<n>` for one of several, `+<n>` for a question or tool call that is
    asked or made again, `~compact` for a summary that comes before it; at most 800 bytes. Calls with the
    same id are never under way together. Temporal's activity has a digest of the call at its end."""
    key: str
    """Idempotency key: `<workflow id>/<root>/<branch>/<activity id>`."""
    title: str
    """For people: the summary in Temporal's UI; one line, at most 200 characters."""
    seconds: float
    """What `limits.seconds` leaves; infinite without that limit. A call that takes longer is ended, unless it
    is unsafe, and the drive reports the limit."""
    requests: float = math.inf
    """AskModel: how many requests it may send a provider; infinite without a limit of `model_calls`."""
    conversation: Conversation = field(default_factory=Conversation)
    """AskModel: all messages that are sent, its own `say` at the end (`skip` is not applied)."""
    reply: ModelReplied | None = None
    """AskModel: its reply, where the question was asked already."""
    next_question: NextQuestion | None = None
    """ToolInput: what the machine will ask a model after it. A host may ask that at once, where the tool
    ran, and return the reply as `ToolResult.early`."""

    def digest(self, effect: AskModel) -> str:
        """Of a question at this site; 32 hexadecimal characters."""
        parts = (self.key, self.conversation.digest, effect.model_dump_json())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


NextQuestion = Callable[[ToolResult, float], tuple[AskModel, CallSite] | None]
"""From a call's result and the time in seconds since 1970; None: no question follows, or not at once."""


@dataclass(frozen=True, slots=True)
class ChildRun:
    """An inner run to be started."""

    workflow_id: str
    task: AgentTask
    title: str
    parents: tuple[tuple[str, str], ...]
    """For its `Identity`."""
    old_command_ids: tuple[str, ...]
    reset_since: float | None
    """For its `Identity`. After a reset one of the same id may still run: it is ended."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Model role of the inner run -> that of the outer run which answers it; others have the same name. The
    task has their models already."""


class Host(Protocol):
    """What is around a run."""

    def now(self) -> float:
        """Seconds since 1970."""

    def cancelled(self) -> bool:
        """The run was asked to stop from outside."""

    async def wait(self, condition: Callable[[], bool], seconds: float | None, why: str) -> None:
        """Wait until the condition holds or the time is over; may return earlier. `why` is for people.

        It wakes up early when the run should go on in a new execution, so that `between` is called.
        """

    async def perform(self, call: HostCall, site: CallSite) -> CallAnswer:
        """Perform one call. When cancelled it ends the call and raises asyncio.CancelledError, or returns the
        answer that came first."""

    def stop_early_questions(self) -> None:
        """A command came: calls under way return what their tools returned, and ask no model."""

    async def run_child(self, child: ChildRun) -> RunResult | EffectFailed:
        """Run it to its end, whatever that is; when cancelled, cancel it and return the result that it gives.

        EffectFailed with the error `unknown_outcome` when it ended without a result, such as one that was
        terminated; with another error when it was never started.
        """

    async def tell_child(self, workflow_id: str, command: Command) -> bool:
        """Pass `pause` or `resume` on to a child run under way; False: it has just ended.

        Raises ValueError when it cannot be reached."""

    def publish(self, records: Sequence[Record]) -> None:
        """Records were added, or (without any) what the run waits for has changed."""

    def notify(self, moment: NoticeMoment, request: Request) -> None:
        """Tell people about a request in the background; never fails."""

    async def log(self) -> Sequence[Record]:
        """The whole log, what is only in the archive included. Raises ValueError when it cannot be read."""

    async def between(self) -> None:
        """Nothing is under way: a long run goes on in a new execution here, with `Drive.dump`."""
