"""A world that is a script: in memory its answers are taken in order, on the server by activity id.

`play` runs a scenario through the loop of production without Temporal and notes what each call got. The fake
activities have the names of the real ones, and give the same calls the same answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.contracts import (
    FATAL,
    RECOVERABLE,
    TRANSIENT,
    ArchiveRequest,
    ArtifactsRead,
    CallBlocked,
    CallTools,
    CodeStepped,
    Compensated,
    CompensateInput,
    EffectFailed,
    LogRead,
    LogWanted,
    ModelInput,
    ModelReplied,
    Notice,
    Noticed,
    ReadArtifacts,
    Reconciled,
    ReconcileInput,
    RunCode,
    ToolCall,
    ToolInput,
    ToolResult,
    ToolsDescribed,
    ToolSpec,
    ToolsReturned,
    ToolsWanted,
)
from activities.handover import with_early_reply
from client.plugin import PASSED_THROUGH
from workflows.api import AgentTask
from workflows.engine.loop import Drive
from workflows.hosts import CallSite, HostCall
from workflows.hosts.memory import LocalOutcome, LocalRuns
from workflows.people import Decision, Request, Verb
from workflows.workflow import AgentWorkflow

__all__ = ["FakeActivities", "FakeWorld", "Scenario", "decision", "fake_worker", "play"]

TYPES = {"transient": TRANSIENT, "recoverable": RECOVERABLE, "fatal": FATAL, "unknown_outcome": FATAL}


@dataclass(frozen=True)
class Scenario:
    """One run: its task, its tools, what the world answers in order, and what people decide."""

    name: str
    task: AgentTask
    specs: tuple[ToolSpec, ...]
    answers: tuple[Any, ...]
    """Answers of the vocabulary, or functions (effect -> answer) as the scripts of machines have them."""
    exit_reason: str
    decisions: tuple[tuple[Verb, dict[str, Any]], ...] = ()
    """Verb and other fields of a decision, for the requests in their order."""


@dataclass
class FakeWorld:
    """What each call of each run gets: root workflow id -> (names of inner runs, activity id) -> answer."""

    answers: dict[str, dict[tuple[str, ...], Any]] = field(default_factory=dict)
    specs: dict[str, tuple[ToolSpec, ...]] = field(default_factory=dict)


def decision(request: Request, verb: Verb, more: dict[str, Any]) -> Decision:
    """Ann decides."""
    return Decision(request=request.id, digest=request.digest, decision=verb, by="ann", **more)


async def play(
    scenario: Scenario, run_id: str, world: FakeWorld, watch: Callable[[Drive], None] | None = None
) -> LocalOutcome:
    """Run it in memory, a second for each answer; the world knows its answers from then on."""
    left, decisions = list(scenario.answers), list(scenario.decisions)
    known = world.answers.setdefault(run_id, {})
    world.specs[run_id] = scenario.specs

    def perform(call: HostCall, site: CallSite) -> Any:
        both = site.key.removesuffix(f"/{site.activity_id}").rpartition("/")[0]
        workflow_id = both.removesuffix(f"/{run_id}")  # in memory a run's origin is its own id
        answer = left.pop(0)
        known[*_names(workflow_id), site.activity_id] = given = _given(answer, call)
        return given

    outcome = await LocalRuns(
        {spec.name: spec for spec in scenario.specs},
        decide=lambda request: decision(request, *decisions.pop(0)),
        now=lambda: 1000.0 + len(scenario.answers) - len(left),
        watch=watch,
    ).run(scenario.task, perform, trace_id=run_id)
    assert (left, decisions) == ([], []), f"{scenario.name}: more answers than questions: {outcome.result}"
    return outcome


def _names(workflow_id: str) -> tuple[str, ...]:
    """Root and names of the inner runs: an inner run is `<outer>/<first characters of its origin>/<name>`."""
    return tuple(workflow_id.split("/")[2::2])


def _given(answer: Any, call: HostCall) -> Any:
    """What this call gets. Functions of machines' scripts answer a whole `CallTools`."""
    if callable(answer):
        if type(call) is ToolInput:
            run = ToolCall(id=call.id, tool=call.tool, arguments=call.arguments, artifacts=call.artifacts)
            answer = answer(CallTools(calls=(run,)))
        else:
            answer = answer(call)
    return answer.results[0] if isinstance(answer, ToolsReturned) else answer


class FakeActivities:
    """Activities with the names of the real ones, which answer as the world says."""

    def __init__(self, world: FakeWorld) -> None:
        self.world = world

    async def _answer(self, key: str = "") -> Any:
        info = activity.info()
        root = str(info.workflow_id).split("/")[0]
        # a question behind a tool call is asked in the call's activity; its key has its own id and digest
        place = (
            *_names(str(info.workflow_id)),
            key.split("/")[-2] if key else info.activity_id.rpartition("@")[0],
        )
        answer = self.world.answers[root].get(
            place, EffectFailed(error="fatal", type="NoAnswer", message=str(place))
        )
        if isinstance(answer, EffectFailed):
            details = {"type": answer.type, "message": answer.message}
            kind = TYPES[answer.error]
            raise ApplicationError(answer.message, details, type=kind, non_retryable=True)
        return answer

    def _specs(self, names: tuple[str, ...]) -> tuple[ToolSpec, ...]:
        root = str(activity.info().workflow_id).split("/")[0]
        specs = {spec.name: spec for spec in self.world.specs[root]}
        return tuple(specs[name] for name in names)

    @activity.defn
    async def ask_model(self, request: ModelInput) -> ModelReplied:
        answer = await self._answer(request.key)
        replied: ModelReplied = answer.model_copy(update={"tools": self._specs(request.describe)})
        return replied

    @activity.defn
    async def call_tool(self, request: ToolInput) -> ToolResult:
        return await with_early_reply(request.key, await self._answer(), self.ask_model)

    @activity.defn
    async def reconcile_tool(self, request: ReconcileInput) -> Reconciled:
        answer: Reconciled = await self._answer()
        return answer

    @activity.defn
    async def block_call(self, request: ToolInput) -> CallBlocked:
        return CallBlocked()

    @activity.defn
    async def compensate_tool(self, request: CompensateInput) -> Compensated:
        answer: Compensated = await self._answer()
        return answer

    @activity.defn
    async def run_code(self, effect: RunCode) -> CodeStepped:
        answer: CodeStepped = await self._answer()
        return answer

    @activity.defn
    async def read_artifacts(self, effect: ReadArtifacts) -> ArtifactsRead:
        answer: ArtifactsRead = await self._answer()
        return answer

    @activity.defn
    async def describe_tools(self, wanted: ToolsWanted) -> ToolsDescribed:
        return ToolsDescribed(tools=self._specs(wanted.names))

    @activity.defn
    async def archive_log(self, request: ArchiveRequest) -> None:
        """Nothing is kept."""

    @activity.defn
    async def read_log(self, wanted: LogWanted) -> LogRead:
        raise ApplicationError("nothing is kept", type=FATAL, non_retryable=True)

    @activity.defn
    async def notify(self, notice: Notice) -> Noticed:
        return Noticed()


def activities_of(fakes: FakeActivities) -> Iterable[Any]:
    """All of them, for a worker."""
    return [
        fakes.ask_model, fakes.call_tool, fakes.reconcile_tool, fakes.block_call, fakes.compensate_tool,
        fakes.run_code, fakes.read_artifacts, fakes.describe_tools, fakes.archive_log, fakes.read_log,
        fakes.notify,
    ]  # fmt: skip


@asynccontextmanager
async def fake_worker(
    client: Client, queue: str, world: FakeWorld, kind: type[FakeActivities] = FakeActivities, *passed: str
) -> AsyncIterator[None]:
    """A worker on this queue that knows the workflow and the fakes only. `passed`: modules that the sandbox
    does not import again, beside our own."""
    plain = Client(client.service_client, namespace=client.namespace, data_converter=client.data_converter)
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH, *passed)
    worker = Worker(
        plain,
        task_queue=queue,
        workflows=[AgentWorkflow],
        activities=list(activities_of(kind(world))),
        workflow_runner=SandboxedWorkflowRunner(restrictions=restrictions),
    )
    async with worker:
        yield
