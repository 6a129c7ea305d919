"""Replaying one execution with today's code, without calling anything.

Temporal's verdict says whether an open run could go on. A workflow's clock is replayed too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from temporalio import workflow
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client, WorkflowHistory
from temporalio.exceptions import FailureError
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    Replayer,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowInterceptorClassInput,
)

from client.errors import RatchetError
from client.plugin import RatchetPlugin
from workflows.engine.loop import Drive
from workflows.kernel.log import Record
from workflows.signals import Messages
from workflows.workflow import AgentWorkflow

__all__ = ["Replayed", "Watcher", "explained", "plugin_of", "plugin_with", "replayed"]


@dataclass
class Replayed:
    """What today's code did with one history."""

    watcher: Watcher | None = None
    instance: AgentWorkflow | None = None
    failure: Exception | None = None
    """Why Temporal could not replay it to its end. What fails in the newest, open task is in `bug` alone."""
    bug: str = ""
    """What the code raised, with file and line; empty: nothing."""
    length: int = 0
    """Records at the end of the history; then a cancellation throws the workflow away, and that is logged."""
    before: int = 0
    """Records before the last activation that was replayed."""

    @property
    def records(self) -> tuple[Record, ...]:
        """The log that today's code writes."""
        return tuple(self.instance.log_writer.records[: self.length]) if self.instance else ()

    @property
    def sure_records(self) -> tuple[Record, ...]:
        """Those of them that follow from the history: not what today's code did where the run did something
        else, which Temporal finds out after the activation."""
        is_other = isinstance(self.failure, workflow.NondeterminismError)
        return self.records[: self.before] if is_other else self.records

    def note_length(self) -> None:
        """The history has come this far."""
        self.before = self.length
        self.length = len(self.instance.log_writer.records) if self.instance else 0


class Watcher(Protocol):
    """Sees the run of a replay while it goes on."""

    def watch(self, drive: Drive) -> None:
        """The run is about to begin."""

    def end(self) -> None:
        """The history is at its end, and the run as it was there."""


def plugin_of(temporal: Client) -> RatchetPlugin:
    """What a client was made with. Raises RatchetError."""
    for one in temporal.config()["plugins"]:
        if isinstance(one, RatchetPlugin):
            return one
    raise RatchetError("the Temporal client has no `RatchetPlugin`; make it by `AgentClient.connect`")


def plugin_with(temporal: Client, modules: Sequence[str]) -> RatchetPlugin:
    """The same with these modules of users. Raises RatchetError."""
    plugin = plugin_of(temporal)
    settings = plugin.settings.model_copy(update={"modules": tuple(modules)})
    return RatchetPlugin(settings, plugin.stores)


async def replayed(
    plugin: RatchetPlugin, history: WorkflowHistory, watcher: Watcher | None = None
) -> Replayed:
    """Replay one execution with today's code. It does not raise for what the code does."""
    found = Replayed(watcher)
    replayer = Replayer(
        workflows=[],
        plugins=[plugin],
        interceptors=[_InstanceFinder(found)],
        # The sandbox would give the workflow copies of our modules, which cannot be compared with ours.
        workflow_runner=_Runner(found),
    )
    outcome = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    found.failure = outcome.replay_failure
    return found


class _InstanceFinder(Interceptor):
    """Keeps the workflow object of a replay."""

    def __init__(self, found: Replayed) -> None:
        self._found = found

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor]:
        found = self._found

        class Inbound(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                found.instance = instance = workflow.instance()
                if found.watcher is not None:
                    _announce(instance.messages, found.watcher)
                return await super().execute_workflow(input)

        return Inbound


def _announce(messages: Messages, watcher: Watcher) -> None:
    """Tell of the run when it is made, before anything that people sent reaches it."""
    begin = messages.begin

    def begun(drive: Drive, unusable: Sequence[str] = ()) -> None:
        watcher.watch(drive)
        begin(drive, unusable)

    messages.begin = begun  # type: ignore[method-assign]  # a replay's own instance


class _Runner(UnsandboxedWorkflowRunner):
    """Notes the length of the log after each activation but the last, which throws the workflow away."""

    def __init__(self, found: Replayed) -> None:
        self._found = found

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = super().create_instance(det)
        activate = instance.activate

        def noted(act: Any) -> WorkflowActivationCompletion:
            is_last = any(job.HasField("remove_from_cache") for job in act.jobs)
            if is_last and self._found.watcher is not None:
                self._found.watcher.end()
            done = activate(act)
            if not is_last:
                self._found.note_length()
            if done.HasField("failed"):  # before it is encrypted for the server
                failure = done.failed.failure
                raised = det.failure_converter_class().from_failure(failure, det.payload_converter_factory())
                self._found.bug = raised.message if isinstance(raised, FailureError) else str(raised)
            return done

        instance.activate = noted  # type: ignore[method-assign]  # a subclass would wrap all of the SDK's own
        return instance


def explained(found: Replayed) -> str:
    """Why a history could not be replayed: what the code raised, why it refuses the task, else the innermost
    of the messages that Temporal's core nests; empty: it could."""
    failure = found.failure
    if found.bug:
        return f"today's code fails on this history: {found.bug}"
    if failure is None:
        return ""
    if found.instance and found.instance.problem:
        return found.instance.problem
    messages: list[str] = re.findall(r'message: "((?:[^"\\]|\\.)*)"', str(failure))
    text = (messages[-1] if messages else str(failure)).removeprefix("[TMPRL1100] ").strip()
    if isinstance(failure, workflow.NondeterminismError):
        return f"today's code does something else than the run did, so an open run cannot go on: {text}"
    return f"today's code fails on this history: {text}"
