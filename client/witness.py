"""Temporal's own replay of a recorded history, and what the code of today does in it.

Nothing is called: what activities answered, what people said and what the time was comes from the
history, and the workflow's code runs over it. A witness notes which calls the code asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pydantic_core import to_jsonable_python
from temporalio import workflow
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import (
    ContinueAsNewInput,
    ExecuteWorkflowInput,
    Interceptor,
    Replayer,
    StartActivityInput,
    StartChildWorkflowInput,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from client.errors import RatchetError
from client.plugin import RatchetPlugin
from client.recorded import CONTINUED
from workflows.agent import AgentWorkflow
from workflows.api import PageQuery
from workflows.kernel.log import Record

__all__ = ["AskedCall", "Witnessed", "plugin_of", "replayed"]


@dataclass(frozen=True)
class AskedCall:
    """A call that the code of today asks for."""

    id: str
    activity: str
    argument: Any
    """What it would be called with: the activity's own model."""
    records: int
    """How many records the log had by then."""
    options: StartActivityInput | None = None
    """Timeouts and retry policy of an activity, as the code asks for them."""

    @property
    def input(self) -> Any:
        """The argument as JSON."""
        return to_jsonable_python(self.argument)


@dataclass
class Witnessed:
    """What the code of today did with a history."""

    calls: list[AskedCall] = field(default_factory=list)
    failure: Exception | None = None
    """Why Temporal could not replay it to its end."""
    run: AgentWorkflow | None = None
    end: str = ""
    """How it ends the run, in words; empty: it does not."""
    total: int = 0
    """How many records the log had when the history was at its end. When a replay is over, the workflow is
    cancelled to be thrown away, and may write that down too."""

    @property
    def first(self) -> int:
        """Sequence number of the first record that this execution holds."""
        return self.run.log(PageQuery()).first if self.run else 0

    @property
    def records(self) -> tuple[Record, ...]:
        """The log that the code of today writes."""
        found: list[Record] = []
        since = self.first
        while self.run is not None and since < self.total:
            page = self.run.log(PageQuery(since=since, full=True))
            found += page.records
            since = page.next
        return tuple(record for record in found if record.seq < self.total)

    def count(self) -> int:
        """How many records the log has at this moment."""
        begun = self.run is not None and self.run.stack is not None
        return self.run.log(PageQuery()).total if self.run is not None and begun else 0


async def replayed(temporal: Client, history: WorkflowHistory) -> Witnessed:
    """Replay one execution with the code of today. Never raises for what the code does."""
    witness = _Witness()
    replayer = Replayer(
        workflows=[],
        plugins=[plugin_of(temporal)],
        interceptors=[witness],
        # Without the sandbox, which would give the workflow and the witness copies of our modules.
        workflow_runner=_Runner(witness.seen),
    )
    outcome = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    witness.seen.failure = outcome.replay_failure
    return witness.seen


def plugin_of(temporal: Client) -> RatchetPlugin:
    """The plugin that a client was made with.

    Raises:
        RatchetError: it was made without.
    """
    for plugin in temporal.config()["plugins"]:
        if isinstance(plugin, RatchetPlugin):
            return plugin
    raise RatchetError(
        "the Temporal client does not speak as Ratchet does; make it with "
        "`plugins=[RatchetPlugin(settings)]`, or by `AgentClient.connect`"
    )


class _Witness(Interceptor):
    def __init__(self) -> None:
        self.seen = Witnessed()

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor]:
        seen = self.seen

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(_Outbound(outbound, seen))

            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                seen.run = workflow.instance()
                return await super().execute_workflow(input)

        return Inbound


class _Runner(UnsandboxedWorkflowRunner):
    """Makes workflow instances that are looked at behind each activation."""

    def __init__(self, seen: Witnessed) -> None:
        self._seen = seen

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Instance(super().create_instance(det), self._seen)


class _Instance(WorkflowInstance):
    def __init__(self, inner: WorkflowInstance, seen: Witnessed) -> None:
        self._inner, self._seen = inner, seen

    def activate(self, act: Any) -> Any:
        done = self._inner.activate(act)
        if not any(job.HasField("remove_from_cache") for job in act.jobs):
            self._seen.total = self._seen.count()
            self._seen.end = next(filter(None, map(_end, done.successful.commands)), "")
        return done

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._inner.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._inner.get_external_store_context(command_info)

    def get_info(self) -> workflow.Info:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        return self._inner.get_thread_id()


def _end(command: Any) -> str:
    """How a command ends the run: one that comes to a good end archives its log first, which is a call."""
    if command.HasField("fail_workflow_execution"):
        return f"fails the run: {command.fail_workflow_execution.failure.message}"
    return ""


class _Outbound(WorkflowOutboundInterceptor):
    """Notes what is asked for; Temporal answers it from the history."""

    def __init__(self, next: WorkflowOutboundInterceptor, seen: Witnessed) -> None:
        super().__init__(next)
        self._seen = seen

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        self._note(input.activity_id or "", input.activity, input.args, input)
        return super().start_activity(input)

    async def start_child_workflow(
        self, input: StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        self._note(input.id, input.workflow, input.args)
        return await super().start_child_workflow(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:
        self._note(CONTINUED, CONTINUED, input.args)
        super().continue_as_new(input)

    def _note(self, name: str, kind: str, arguments: Any, options: StartActivityInput | None = None) -> None:
        argument = arguments[0] if arguments else None
        kept = dict(argument) if isinstance(argument, Mapping) else argument
        self._seen.calls.append(AskedCall(name, kind, kept, self._seen.count(), options))
