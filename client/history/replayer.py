"""`replay`: a run again from its history, with today's code and without calling anything.

Temporal's verdict says whether an open run could go on. The log that today's code writes is compared with the
recorded one. A workflow's clock is replayed too, so records must be equal with all their times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from temporalio import workflow
from temporalio.client import Client, WorkflowHistory
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

from activities.contracts import Frozen
from client.errors import NoWorker, RatchetError, StoreNotShared, UnknownRun, clear_errors
from client.history.differences import Difference, first_difference
from client.history.recorded import Execution, by_number, executions_of, recorded_log
from client.plugin import RatchetPlugin
from client.runs.reading import RunReader
from client.server.workerconfig import register_modules
from workflows.engine.loop import Drive
from workflows.kernel.log import Record
from workflows.signals import Messages
from workflows.workflow import AgentWorkflow

__all__ = [
    "ReplayResult",
    "Replayed",
    "StepDifference",
    "Watcher",
    "explained",
    "first_changed",
    "plugin_of",
    "replay",
    "replayed",
]


class StepDifference(Frozen):
    """The first record that today's code writes in another way."""

    seq: int
    step: int
    recorded: str
    """`state: event`; empty: today there is one record more."""
    today: str
    """The same of today's record; empty: today there is none."""
    difference: Difference | None = None
    """What differs in it first; left is recorded, right today's."""


class ReplayResult(Frozen):
    """What a replay showed."""

    run: str
    before: int | None = None
    """Only records with smaller numbers were compared; None: all."""
    same: bool
    """Nothing differs in all that was compared."""
    can_continue: bool | None
    """Temporal can go on with this history; None: the run is over."""
    failure: str = ""
    """Why Temporal could not replay the history; empty: it could."""
    records: int
    """How many records were compared."""
    difference: StepDifference | None = None
    notes: tuple[str, ...] = ()
    """What could not be compared."""


@dataclass
class Replayed:
    """What today's code did with one history."""

    watcher: Watcher | None = None
    instance: AgentWorkflow | None = None
    failure: Exception | None = None
    """Why Temporal could not replay it to its end."""
    length: int = 0
    """Records at the end of the history; then a cancellation throws the workflow away, and that is logged."""

    @property
    def records(self) -> tuple[Record, ...]:
        """The log that today's code writes."""
        return tuple(self.instance.archived.records[: self.length]) if self.instance else ()

    def note_length(self) -> None:
        """The history has come this far."""
        self.length = len(self.instance.archived.records) if self.instance else 0


async def replay(agents: RunReader, run: str, before: int | None = None) -> ReplayResult:
    """Replay a run; nothing is called, and nothing changes.

    Args:
        before: compare only records with smaller numbers.

    Raises:
        UnknownRun: Temporal has no history of the run any more.
        UsageError: a module of the settings cannot be loaded.
    """
    register_modules(agents.connection.settings.modules)
    try:
        async with clear_errors(agents.where, run):
            executions = await executions_of(agents.temporal, run)
    except UnknownRun as error:
        raise UnknownRun(
            f"{error}. A replay needs Temporal's history of the run; when its retention is over, "
            f"`ratchet log {run}` and `ratchet show {run} --step N` still read the archive"
        ) from error
    recorded, notes = await _recorded(agents, run, executions)
    if executions[0].beginning.continues:
        notes = (*notes, "Temporal has the run's later executions only; the earlier ones were not replayed")
    plugin = plugin_of(agents.temporal)
    found = [await replayed(plugin, execution.history) for execution in executions]
    today = by_number(*(one.records for one in found))
    failed = next((one for one in found if one.failure), None)
    if before is not None and max(today, default=-1) + 1 >= before:
        failed = None  # it failed later
    whole = executions[-1].ended and failed is None
    difference, count = first_changed(recorded, today, whole=whole, before=before)
    return ReplayResult(
        run=run,
        before=before,
        same=failed is None and difference is None,
        can_continue=None if executions[-1].ended else failed is None,
        failure=explained(failed.failure) if failed else "",
        records=count,
        difference=difference,
        notes=notes,
    )


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

        def noted(act: Any) -> Any:
            is_last = any(job.HasField("remove_from_cache") for job in act.jobs)
            if is_last and self._found.watcher is not None:
                self._found.watcher.end()
            done = activate(act)
            if not is_last:
                self._found.note_length()
            return done

        instance.activate = noted  # type: ignore[method-assign]  # a subclass would wrap all of the SDK's own
        return instance


def first_changed(
    recorded: Mapping[int, Record], today: Mapping[int, Record], *, whole: bool, before: int | None = None
) -> tuple[StepDifference | None, int]:
    """The first record that differs, and how many were compared.

    Args:
        whole: both logs are complete, so one record more on either side is a difference.
        before: only records with smaller numbers count.
    """
    if not recorded or not today:
        return None, 0
    first = max(min(recorded), min(today))
    end = max(*recorded, *today) if whole else min(max(recorded), max(today))
    end = end + 1 if before is None else min(end + 1, before)
    for count, seq in enumerate(range(first, end), start=1):
        was, now = recorded.get(seq), today.get(seq)
        if was != now:
            return _step_difference(was, now), count
    return None, max(end - first, 0)


def _step_difference(was: Record | None, now: Record | None) -> StepDifference:
    names = [f"{record.state}: {record.event}" if record else "" for record in (was, now)]
    found = None
    if was and now:
        found = first_difference(was.model_dump(mode="json"), now.model_dump(mode="json"))
    one = was or now
    assert one is not None
    return StepDifference(seq=one.seq, step=one.step, recorded=names[0], today=names[1], difference=found)


async def _recorded(
    agents: RunReader, run: str, executions: Sequence[Execution]
) -> tuple[dict[int, Record], tuple[str, ...]]:
    """The log as the run wrote it: from the history as far as it has it, then from the run itself."""
    found = await recorded_log(agents.temporal, executions)
    if executions[-1].ended and found:
        return found, ()
    try:
        more = await agents.records(run, max(found, default=-1) + 1, full=True)
    except (NoWorker, StoreNotShared) as error:
        return found, (f"the newest records were not compared, because the run cannot answer: {error}",)
    return found | by_number(more), ()


def explained(failure: Exception | None) -> str:
    """Why a history could not be replayed: the innermost of the messages that Temporal's core nests."""
    messages: list[str] = re.findall(r'message: "((?:[^"\\]|\\.)*)"', str(failure))
    text = (messages[-1] if messages else str(failure)).removeprefix("[TMPRL1100] ").strip()
    if isinstance(failure, workflow.NondeterminismError):
        return f"today's code does something else than the run did, so an open run cannot go on: {text}"
    return f"today's code fails on this history: {text}"
