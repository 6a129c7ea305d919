"""What Temporal's history has of a run: its executions, how each began, and the log that it archived."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from activities.contracts import (
    ArchiveRequest,
    CodeStepped,
    EffectFailed,
    ModelReplied,
    ToolInput,
    ToolResult,
    ToolsDescribed,
    ToolSpec,
    ToolsReturned,
)
from activities.contracts.titles import THEN_THE_MODEL
from activities.store.encryption import KeyMissing, NotDecrypted
from client.errors import RatchetError
from client.runs.archived import ArchivedRuns
from client.runs.readings import title_of
from workflows.api import AgentTask
from workflows.kernel.log import STARTED, LoggedCall, Record
from workflows.kernel.logged_calls import ended_call

__all__ = [
    "HISTORY", "Beginning", "Execution", "archive_requests", "archived_executions", "beginning_of", "begun",
    "by_number", "executions_of", "payloads_in", "recorded_calls", "recorded_log", "recorded_tools",
    "workflow_id_of",
]  # fmt: skip

ARCHIVE = "archive_log"
"""The activity that writes the log to the archive."""
BRING_TOOLS: dict[str, type[ModelReplied | ToolsDescribed]] = {
    "ask_model": ModelReplied,
    "describe_tools": ToolsDescribed,
}
"""Activities whose results bring the specs of a run's tools."""
ANSWER_TYPES: dict[str, type[ModelReplied | ToolResult | CodeStepped]] = {
    "ask_model": ModelReplied,
    "call_tool": ToolResult,
    "run_code": CodeStepped,
}
"""Activities that are an agent's calls, and what they give."""
ENDED_CALL = {
    "activity_task_completed_event_attributes",
    "activity_task_failed_event_attributes",
    "activity_task_timed_out_event_attributes",
    "activity_task_canceled_event_attributes",
}
"""How the events that end an activity name what they have."""
ID_END = re.compile(r"(\+\d+)?@[^@]*$")
"""Of an activity's id: how often the call was made again, and its digest. The log has the id without them."""
HISTORY = "history"
"""In `about` of a record that no machine wrote: a call, as Temporal's history has it."""
ENDS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
}
"""How a history closes when the run came to its own end; a terminated run did not."""


@dataclass(frozen=True)
class Beginning:
    """How an execution began."""

    task: AgentTask | None
    """Its input without what it carried; None when it cannot be read."""
    first_run_id: str
    """Of the chain that it belongs to."""
    continues: str
    """Run id of the execution before it; empty for the first."""


@dataclass(frozen=True)
class Execution:
    """One execution of a run's chain."""

    beginning: Beginning
    history: WorkflowHistory

    @property
    def ended(self) -> bool:
        """The run came to its end here."""
        return self.history.events[-1].event_type in ENDS


def by_number(*logs: Iterable[Record]) -> dict[int, Record]:
    """Logs as one. A record counts as the first log has it."""
    return {record.seq: record for log in reversed(logs) for record in log}


def workflow_id_of(history: WorkflowHistory) -> str:
    """The id of the run that a history is of."""
    return history.events[0].workflow_execution_started_event_attributes.workflow_id


async def recorded_log(temporal: Client, executions: Iterable[Execution]) -> dict[int, Record]:
    """The log by sequence number, as far as these executions have sent it to the archive."""
    found: dict[int, Record] = {}
    for execution in executions:
        for request in await archive_requests(temporal, execution.history):
            found |= by_number(map(Record.model_validate, request.records))
    return dict(sorted(found.items()))


async def recorded_calls(
    temporal: Client, executions: Iterable[Execution], after: Sequence[Record]
) -> tuple[Record, ...]:
    """A record for each call that has ended and that these records do not know, for people: where the
    machine's code fails or is not there, nobody can say what it made of them. They are cut as in the log;
    their arguments are those that the tool got, with its defaults. Raises as the converter."""
    found: list[Record] = []
    known = [one for one in after if one.answered or one.event == STARTED]
    since, last = known[-1].at if known else 0, after[-1] if after else None
    for execution in executions:
        task, asked = execution.beginning.task, dict[int, HistoryEvent]()
        for event in execution.history.events:
            if event.HasField("activity_task_scheduled_event_attributes"):
                asked[event.event_id] = event
            name = event.WhichOneof("attributes")
            call = asked.get(getattr(event, name).scheduled_event_id) if name in ENDED_CALL else None
            at = event.event_time.ToMicroseconds() / 1e6
            if call is None or at <= since:
                continue
            common = {
                "machine": task.machine if task else "",
                "state": call.activity_task_scheduled_event_attributes.activity_id.partition("#")[0],
                "step": last.step if last else 0,
                "of_step": last.of_step if last else 0,
                "about": {HISTORY: True},
                "started": call.event_time.ToMicroseconds() / 1e6,
                "at": at,
            }
            for told in await _answer_fields(temporal, call, event):
                seq = (last.seq + 1 if last else 0) + len(found)
                found.append(Record(seq=seq, **common, **told))
    return tuple(found)


async def _answer_fields(
    temporal: Client, call: HistoryEvent, event: HistoryEvent
) -> Iterable[dict[str, Any]]:
    """What a call that has ended says, as fields of records."""
    scheduled, converter = call.activity_task_scheduled_event_attributes, temporal.data_converter
    activity = kind = scheduled.activity_type.name
    if activity not in ANSWER_TYPES:
        return ()
    title = (await _value(converter, [call.user_metadata.summary], str)).removesuffix(THEN_THE_MODEL)
    tool, arguments = "", dict[str, Any]()
    if activity == "call_tool":
        wanted = await _value(converter, scheduled.input.payloads, ToolInput)
        kind, tool, arguments = "call_tools", wanted.tool, wanted.arguments
    place = ID_END.sub("", scheduled.activity_id)
    ended = partial(ended_call, kind, title, id=place, tool=tool, arguments=arguments)
    if not event.HasField("activity_task_completed_event_attributes"):
        failed, text = event.activity_task_failed_event_attributes, ""
        error = "failed" if event.HasField("activity_task_failed_event_attributes") else "unknown_outcome"
        if failed.HasField("failure"):
            text = str(await converter.decode_failure(failed.failure))
        return ({"event": EffectFailed.__name__, "answered": (ended(text, error),)},)
    answer = await _value(
        converter, event.activity_task_completed_event_attributes.result.payloads, ANSWER_TYPES[activity]
    )
    match answer:
        case ModelReplied():
            return (_reply(answer),)
        case CodeStepped():
            raised = "raised" if answer.error else None
            one = ended(answer.error or answer.printed, raised)
            return ({"event": CodeStepped.__name__, "answered": (one,)},)
        case ToolResult():
            one = ended(answer.output, answer.error, seconds=round(answer.seconds, 3))
            early = [_reply(answer.early.reply)] if answer.early else []
            return ({"event": ToolsReturned.__name__, "answered": (one,)}, *early)
    return ()


def _reply(reply: ModelReplied) -> dict[str, Any]:
    wanted = tuple(
        LoggedCall(kind="call_tools", tool=one.name, title=title_of(one)) for one in reply.tool_calls
    )
    return {
        "event": ModelReplied.__name__,
        "thought": reply.text,
        "messages": (reply.message,),
        "asked": wanted,
    }


async def archive_requests(temporal: Client, history: WorkflowHistory) -> tuple[ArchiveRequest, ...]:
    """What an execution has sent to the archive, whether or not it came there."""
    calls = [event.activity_task_scheduled_event_attributes for event in history.events]
    inputs = [call.input.payloads for call in calls if call.activity_type.name == ARCHIVE]
    return tuple([await _value(temporal.data_converter, one, ArchiveRequest) for one in inputs])


async def beginning_of(temporal: Client, run: str) -> Beginning:
    """How the newest execution of a run began. Raises RPCError."""
    async for event in temporal.get_workflow_handle(run).fetch_history_events(page_size=1):
        return await begun(temporal.data_converter, event)
    raise RatchetError(f"the history of run {run} is empty, so there is nothing to read")


async def recorded_tools(temporal: Client, run: str) -> dict[str, ToolSpec]:
    """The specs of a run's tools by name, as its history has them. Empty: no reply has brought them yet, or
    they cannot be read here. Raises RPCError."""
    brings: dict[int, type[ModelReplied | ToolsDescribed]] = {}
    try:
        async for event in temporal.get_workflow_handle(run).fetch_history_events():
            begins = event.workflow_execution_started_event_attributes.input.payloads
            call = event.activity_task_scheduled_event_attributes
            done = event.activity_task_completed_event_attributes
            tools: Sequence[ToolSpec] = ()
            if call.activity_type.name in BRING_TOOLS:
                brings[event.event_id] = BRING_TOOLS[call.activity_type.name]
            elif begins:
                task = await _value(temporal.data_converter, begins, AgentTask)
                tools = task.carry.specs if task.carry else ()
            elif kind := brings.get(done.scheduled_event_id):
                tools = (await _value(temporal.data_converter, done.result.payloads, kind)).tools
            if tools:
                return {spec.name: spec for spec in tools}
    except RPCError:
        raise
    except Exception:  # noqa: BLE001  # a key or a store that is not here, an older version: nothing is known
        return {}
    return {}


async def executions_of(temporal: Client, run: str) -> tuple[Execution, ...]:
    """The executions of a run's chain that Temporal still has, the first one first. Raises RPCError."""
    found: list[Execution] = []
    run_id: str | None = None
    while run_id != "":
        handle = temporal.get_workflow_handle(run, run_id=run_id)
        try:
            history = await handle.fetch_history()
        except RPCError as error:
            if not found or error.status is not RPCStatusCode.NOT_FOUND:
                raise
            break  # its retention is over
        if not history.events:
            raise RatchetError(f"the history of run {run} is empty, so there is nothing to read")
        found.insert(0, Execution(await begun(temporal.data_converter, history.events[0]), history))
        run_id = found[0].beginning.continues
    return tuple(found)


async def archived_executions(temporal: Client, archive: ArchivedRuns, run: str) -> tuple[Execution, ...]:
    """The executions of a run's chain whose histories the archive has, the first one first; not those that a
    reset has replaced."""
    kept, found = await archive.histories(run), list[Execution]()
    run_id = next(reversed(kept), "")
    while run_id in kept:
        history = WorkflowHistory(run, list(History.FromString(kept[run_id]).events))
        found.insert(0, Execution(await begun(temporal.data_converter, history.events[0]), history))
        run_id = found[0].beginning.continues
    return tuple(found)


async def begun(converter: DataConverter, event: HistoryEvent) -> Beginning:
    """How an execution began, by its first event. Raises `KeyMissing` or `NotDecrypted`."""
    started = event.workflow_execution_started_event_attributes
    task: AgentTask | None = None
    try:
        task = await _value(converter, started.input.payloads, AgentTask)
    except (KeyMissing, NotDecrypted):
        raise
    except Exception:  # noqa: BLE001  # whatever is wrong with it: the run itself was refused for it
        task = None
    return Beginning(
        task=task.model_copy(update={"carry": None}) if isinstance(task, AgentTask) else None,
        first_run_id=started.first_execution_run_id or started.original_execution_run_id,
        continues=started.continued_execution_run_id,
    )


async def _value(converter: DataConverter, payloads: Sequence[Payload], kind: type) -> Any:
    values = await converter.decode(payloads, [kind])
    return values[0] if values else None


def payloads_in(message: Message) -> Iterator[Payload]:
    """Every payload in a message."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            is_map = field.message_type.GetOptions().map_entry
            for one in value.values() if is_map else value if field.is_repeated else [value]:
                if isinstance(one, Message):
                    yield from payloads_in(one)
