"""What a run does at this moment, as the server and the workers' heartbeats tell: what fails, what waits."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, PendingActivityState, TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client
from temporalio.exceptions import FailureError
from temporalio.service import RPCError

from activities.store.encryption import KeyMissing, NotDecrypted
from workflows.status import ASKING, RunStatus

__all__ = ["Heartbeat", "bug_in", "has_begun", "heartbeat_in", "newest_state", "with_heartbeat"]

QUESTION, CALL, CALL_DETAILS = "ask_model", "call_tool", 3
"""The activities of a question and of a tool's call, and how many details a call's heartbeat has while it
asks the model."""
DESCRIBE = "describe_tools"
"""The activity that a run may wait for before it begins."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the server knows of a run at this moment from its workers' heartbeats."""

    text: str = ""
    """The end of what the model has said in the present call, or a tool's progress; a second old at most."""
    is_of_model: bool = False
    """It is what a model says."""
    asks_since: float | None = None
    """The worker of a tool's call has the tool's result and asks the model in the same activity, since then,
    in seconds since 1970; None: none does."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """What fails and is tried again, each in one line; the key is another one for each attempt.
    That of a bug, which stops the run itself, is its text."""
    paused_calls: tuple[str, ...] = ()
    """Calls that an operator has paused in Temporal, each in one line."""
    attempt: int = 0
    """Number of the attempt that is under way or comes next, of what is tried again first."""
    next_try: float | None = None
    """When it comes, in seconds since 1970; None: it is under way, or nothing fails."""

    @property
    def failure(self) -> str | None:
        """The first of the failures; None: nothing fails."""
        return next(iter(self.failures.values()), None)


async def heartbeat_in(temporal: Client, description: DescribeWorkflowExecutionResponse) -> Heartbeat:
    """The heartbeat in the description of a workflow."""
    text, is_of_model, attempt = "", False, 0
    asks_since: float | None = None
    next_try: float | None = None
    run = description.workflow_execution_info.execution.workflow_id
    paused = [one for one in description.pending_activities if one.paused]
    failed = sorted(
        (one for one in description.pending_activities if one.HasField("last_failure") and not one.paused),
        key=_tried_first,
    )
    if failed:
        attempt, next_try = failed[0].attempt, _next_try(failed[0])
    titles = await _titles(temporal, run) if failed or paused else {}
    failures = {
        f"{one.activity_id} attempt {one.attempt}": await _failure_text(
            temporal, one.last_failure, titles.get(one.activity_id, one.activity_id)
        )
        for one in failed
    }
    for pending in description.pending_activities:
        with suppress(Exception):  # another version's heartbeat: nothing to show
            details = await temporal.data_converter.decode(pending.heartbeat_details.payloads)
            kind = pending.activity_type.name
            asks = kind == CALL and len(details) == CALL_DETAILS and _is_of_this(pending)
            if asks:
                asks_since = float(details[-1])
            if details and details[0]:
                text, is_of_model = str(details[0]), asks or kind == QUESTION
    if not failed and description.pending_workflow_task.attempt > 1 and (bug := await bug_in(temporal, run)):
        failures = {bug: bug}
    held = tuple(_paused_text(one, titles.get(one.activity_id, one.activity_id), run) for one in paused)
    return Heartbeat(text, is_of_model, asks_since, failures, held, attempt, next_try)


def _is_of_this(pending: PendingActivityInfo) -> bool:
    """The heartbeat is of the attempt that is under way: Temporal keeps that of a worker that has died."""
    is_begun = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    began, beat = pending.last_started_time, pending.last_heartbeat_time
    return is_begun and (began.seconds, began.nanos) <= (beat.seconds, beat.nanos)


def with_heartbeat(status: RunStatus, beat: Heartbeat) -> RunStatus:
    """A status with what the server alone knows; the very same where it knows nothing more."""
    more: dict[str, Any] = {"paused_calls": beat.paused_calls} if beat.paused_calls else {}
    if beat.failure is not None:
        more |= {"failing": beat.failure, "attempt": beat.attempt, "next_try": beat.next_try}
    if beat.asks_since is not None:
        more |= {"doing": ASKING, "doing_since": beat.asks_since}
    return status.model_copy(update=more) if more else status


def _paused_text(pending: PendingActivityInfo, title: str, run: str) -> str:
    who = pending.pause_info.manual
    by = f"by {who.identity}" if who.identity else "by a rule"
    why = f" ({' '.join(who.reason.split())[:300]})" if who.reason else ""
    return (
        f"{title} is paused in Temporal {by}{why}; `temporal activity unpause --workflow-id {run} "
        f"--activity-id {pending.activity_id}` lets it go on"
    )


def _next_try(pending: PendingActivityInfo) -> float | None:
    """In seconds since 1970; None: an attempt is under way."""
    waits = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    at = pending.next_attempt_schedule_time.ToMilliseconds() / 1000
    return at if waits and at > time.time() else None


def _tried_first(pending: PendingActivityInfo) -> tuple[float, str]:
    """The order of what fails: those that wait for their next attempt first."""
    return _next_try(pending) or math.inf, pending.activity_id


async def _failure_text(temporal: Client, failure: Failure, title: str) -> str:
    if failure.timeout_failure_info.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT:
        return f"{title}: its worker was gone; it is made again"
    words = " ".join((await _message(temporal, failure)).split())[:300]
    return f"{title} failed and is tried again: {words}"


async def _titles(temporal: Client, run: str) -> dict[str, str]:
    """What the newest activities of a run are called for people, by their ids."""
    titles = {}
    with suppress(RPCError):
        for event in await _newest_events(temporal, run):
            with suppress(Exception):  # without the key it has no name
                summary = await temporal.data_converter.decode([event.user_metadata.summary], [str])
                titles[event.activity_task_scheduled_event_attributes.activity_id] = str(summary[0])
    return titles


async def bug_in(temporal: Client, run: str) -> str | None:
    """Why the run's workflow task fails and is tried again: exception, file and line; None: it does not.

    While it fails the run answers no query, so the end of its history is read.
    """
    for event in await _newest_events(temporal, run):
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            return None
        failed = event.workflow_task_failed_event_attributes
        if failed.HasField("failure"):
            return await _message(temporal, failed.failure)
    return None


async def has_begun(temporal: Client, run: str) -> bool:
    """The newest execution of a run waits neither for its first workflow task nor for its tools to be
    described. Raises RPCError."""
    was_taken, describes = False, False
    async for event in temporal.get_workflow_handle(run).fetch_history_events():
        call = event.activity_task_scheduled_event_attributes.activity_type.name
        if call and call != DESCRIBE:
            return True
        describes = (describes or call == DESCRIBE) and (
            event.event_type != EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
        )
        was_taken = was_taken or event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return was_taken and not describes


async def newest_state(temporal: Client, run: str) -> str:
    """The state whose call was begun last, as the ids of activities have it; empty: it is not known."""
    for event in await _newest_events(temporal, run):
        state, mark, _ = event.activity_task_scheduled_event_attributes.activity_id.partition("#")
        if mark:
            return state
    return ""


async def _newest_events(temporal: Client, run: str) -> Sequence[HistoryEvent]:
    page = await temporal.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=temporal.namespace, execution=WorkflowExecution(workflow_id=run), maximum_page_size=20
        )
    )
    return page.history.events


async def _message(temporal: Client, failure: Failure) -> str:
    """What a failure says; with encryption its message is a payload."""
    try:
        found = await temporal.data_converter.decode_failure(failure)
    except (KeyMissing, NotDecrypted) as error:
        return f"the reason is encrypted: {error}"
    except Exception as error:  # noqa: BLE001  # whatever is wrong with its details
        return f"{failure.message} ({error})"
    return found.message if isinstance(found, FailureError) else str(found)
