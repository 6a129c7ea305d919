"""What Temporal's history holds of a run: its input, the calls that it made, what they answered, its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes, HistoryEvent
from temporalio.client import Client, WorkflowHistory
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.contracts import ArchiveRequest
from client.errors import RatchetError
from workflows.api import AgentTask
from workflows.kernel.log import Record

__all__ = [
    "ARCHIVE",
    "CONTINUED",
    "DESCRIBED",
    "Begun",
    "Part",
    "RecordedCall",
    "begun",
    "part_of",
    "parts_of",
]

ARCHIVE = "archive_log"
"""The activity that hands the log out of the workflow."""
DESCRIBED = "describe_tools"
"""The activity that tells a run of its tools."""
CONTINUED = "continue-as-new"
"""What stands for the activity where an execution hands the run on to the next one."""
ENDED = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
}
"""How a history closes when the run itself came to its end; one that was terminated did not."""


@dataclass(frozen=True)
class Begun:
    """How an execution began."""

    task: AgentTask | None
    """Its input; None when it cannot be read."""
    run_id: str
    first_run_id: str
    """Of the chain that it belongs to."""
    continues: str
    """The execution before it in the chain; empty for the first."""


@dataclass(frozen=True)
class RecordedCall:
    """One activity, run inside, or going on in another execution, as the history holds it."""

    id: str
    activity: str
    payloads: Sequence[Payload]
    answers: list[Payload] = field(default_factory=list)
    """Empty while it is not done, and where it failed."""
    options: ActivityTaskScheduledEventAttributes | None = None
    """Timeouts and retry policy of an activity, as the server has completed them."""

    async def input(self, temporal: Client, kind: type) -> Any:
        """What it was called with; plain JSON where today's type does not take it any more."""
        try:
            return await _one(temporal, self.payloads, kind)
        except ApplicationError:
            return await _one(temporal, self.payloads, None)

    async def answer(self, temporal: Client, kind: type) -> Any:
        """What it answered; None while there is none, or none that today's type takes."""
        if not self.answers:
            return None
        try:
            return await _one(temporal, self.answers, kind)
        except ApplicationError:
            return None  # the replay fails on it, and says so


@dataclass(frozen=True)
class Part:
    """One execution of a run's chain."""

    begun: Begun
    history: WorkflowHistory
    calls: tuple[RecordedCall, ...]
    """In the order in which they were asked for."""

    @property
    def ended(self) -> bool:
        """The run came to its end here."""
        return self.history.events[-1].event_type in ENDED

    async def records(self, temporal: Client) -> tuple[Record, ...]:
        """The log as far as this execution handed it to the archive."""
        found: dict[int, Record] = {}
        for call in self.calls:
            if call.activity == ARCHIVE:
                request: ArchiveRequest = await call.input(temporal, ArchiveRequest)
                found |= {int(one["seq"]): Record.model_validate(one) for one in request.records}
        return tuple(found[seq] for seq in sorted(found))


async def begun(temporal: Client, workflow_id: str, run_id: str | None = None) -> Begun:
    """How an execution began; of the newest one when no run id is given. Raises RPCError."""
    handle = temporal.get_workflow_handle(workflow_id, run_id=run_id)
    async for event in handle.fetch_history_events(page_size=1):
        return await _begun(temporal, event)
    raise RatchetError(f"the history of run {workflow_id} is empty, so there is nothing to read")


async def parts_of(temporal: Client, workflow_id: str) -> tuple[Part, ...]:
    """The executions of a run's chain that Temporal still holds, the first one first. Raises RPCError."""
    parts: list[Part] = []
    run_id: str | None = None
    while True:
        try:
            parts.insert(0, await _part(temporal, workflow_id, run_id))
        except RPCError as error:
            if not parts or error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return tuple(parts)  # its retention has passed
        run_id = parts[0].begun.continues
        if not run_id:
            return tuple(parts)


async def _part(temporal: Client, workflow_id: str, run_id: str | None) -> Part:
    return await part_of(
        temporal, await temporal.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    )


async def part_of(temporal: Client, history: WorkflowHistory) -> Part:
    """What a history holds. Raises RatchetError for one without events."""
    if not history.events:
        raise RatchetError(f"the history of run {history.workflow_id} is empty: there is nothing to replay")
    return Part(await _begun(temporal, history.events[0]), history, _calls(history.events))


def _calls(events: Sequence[HistoryEvent]) -> tuple[RecordedCall, ...]:
    calls: dict[int, RecordedCall] = {}
    for event in events:
        if (call := _call(event)) is not None:
            calls[event.event_id] = call
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            done = event.activity_task_completed_event_attributes
            calls[done.scheduled_event_id].answers.extend(done.result.payloads)
    return tuple(calls.values())


def _call(event: HistoryEvent) -> RecordedCall | None:
    """What an event asks for; None when it asks for nothing."""
    if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
        asked = event.activity_task_scheduled_event_attributes
        kind = asked.activity_type.name
        return RecordedCall(asked.activity_id, kind, list(asked.input.payloads), options=asked)
    if event.event_type == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
        child = event.start_child_workflow_execution_initiated_event_attributes
        return RecordedCall(child.workflow_id, child.workflow_type.name, list(child.input.payloads))
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
        handed = event.workflow_execution_continued_as_new_event_attributes
        return RecordedCall(CONTINUED, CONTINUED, list(handed.input.payloads))
    return None


async def _begun(temporal: Client, event: HistoryEvent) -> Begun:
    started = event.workflow_execution_started_event_attributes
    task: AgentTask | None = None
    try:
        task = await _one(temporal, started.input.payloads, AgentTask)
    except Exception:  # noqa: BLE001  # whatever it is: the run itself was refused for it, too
        task = None
    return Begun(
        task=task.model_copy(update={"carry": None}) if task else None,
        run_id=started.original_execution_run_id,
        first_run_id=started.first_execution_run_id or started.original_execution_run_id,
        continues=started.continued_execution_run_id,
    )


async def _one(temporal: Client, payloads: Sequence[Payload], kind: type | None) -> Any:
    values = await temporal.data_converter.decode(payloads, None if kind is None else [kind])
    return values[0] if values else None
