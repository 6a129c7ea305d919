"""What Temporal's resets did to a run. Its log does not say: a reset takes the log back, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

from activities.contracts import Frozen
from activities.store.blobs import StoreError
from activities.store.call_store import KnownCall
from client.errors import UnknownRun, clear_errors
from client.history.recorded import Execution, archived_executions, executions_of
from client.runs.connected import ConnectedReader

__all__ = ["Reset", "StandingCall", "resets_of"]

SERVER = "history-service"
"""Who it was where the server writes only its own name: whether it does depends on the event."""
RESET = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW


class StandingCall(Frozen):
    """A call of a `keyed` or `unsafe` tool in the part that a reset has dropped. What it did stands."""

    key: str
    """Idempotency key; it begins with the id of the run, or inner run, that made it."""
    title: str
    """The tool, and how it was called."""
    begun: float
    """Seconds since 1970."""
    outcome: str
    """`made`, `unknown`, or the error that it ended with."""


class Reset(Frozen):
    """A run began again from an earlier event of its history."""

    at: float
    """Seconds since 1970."""
    by: str
    """Who asked Temporal for it, as that program named itself; empty: it did not."""
    reason: str
    """As it was given."""
    back_to: float
    """When the last event happened that still holds."""
    step: int | None = None
    """The step that the run was in then, 0 before its first; None: a later reset has dropped this one."""
    calls: tuple[StandingCall, ...] = ()
    """What the dropped part did that stands."""
    unknown: str = ""
    """Why nothing can be said of such calls; empty: these are all."""


async def resets_of(agents: ConnectedReader, run: str) -> tuple[Reset, ...]:
    """The resets of a run, oldest first; also those that a later one has dropped, where Temporal or the
    archive still has the histories of before.

    Raises:
        UnknownRun: neither knows the run.
    """
    found = dict[float, tuple[HistoryEvent, float, bool]]()
    seen, unread = set[str](), list[str]()
    executions = await _executions(agents, run)
    for execution in executions:
        _collect(execution.history.events, found, unread, holds=True)
    while unread:
        if (run_id := unread.pop()) not in seen:
            seen.add(run_id)
            _collect(await _events(agents, run, run_id), found, unread, holds=False)
    if not found:
        return ()
    records = await agents.records(run)
    calls, unknown = await _known_calls(agents, run, executions[0].history.events[0].event_time.ToSeconds())
    resets = []
    for at, (event, back_to, holds) in sorted(found.items()):
        failed = event.workflow_task_failed_event_attributes
        steps = [0, *(record.step for record in records if record.at <= back_to)]
        resets.append(Reset(
            at=at,
            by="" if failed.identity == SERVER else failed.identity,
            reason=failed.failure.message,
            back_to=back_to,
            step=steps[-1] if holds else None,
            calls=tuple(_standing(call) for call in calls if back_to < call.begun <= at),
            unknown=unknown,
        ))  # fmt: skip
    return tuple(resets)


async def _known_calls(agents: ConnectedReader, run: str, began: float) -> tuple[list[KnownCall], str]:
    """The calls of a run that its workers wrote down, and why there may be others; empty: these are all."""
    stores, temporal = agents.connection.stores, agents.temporal
    try:
        calls = await asyncio.to_thread(stores.calls.of_run, run)
        is_older = await asyncio.to_thread(stores.calls.is_older, began)
        served = await asyncio.to_thread(stores.namespaces)
    except StoreError as error:
        return [], str(error)
    async with clear_errors(agents.where, run):
        asked = DescribeNamespaceRequest(namespace=temporal.namespace)
        described = await temporal.workflow_service.describe_namespace(asked)
    if is_older and described.namespace_info.id in served:
        return calls, ""
    return calls, (
        f"{stores.calls.database.where} is younger than the run, or is not that of its workers; name their "
        "directory with --data-dir, or their store with RATCHET_STORE"
    )


async def _executions(agents: ConnectedReader, run: str) -> tuple[Execution, ...]:
    """Those that the run consists of now."""
    try:
        async with clear_errors(agents.where, run):
            return await executions_of(agents.temporal, run)
    except UnknownRun:
        if not (kept := await archived_executions(agents.temporal, agents.archive, run)):
            raise
        return kept


async def _events(agents: ConnectedReader, run: str, run_id: str) -> Iterable[HistoryEvent]:
    """Of an execution that was reset; none where nobody has it any more."""
    try:
        async with clear_errors(agents.where, run):
            return (await agents.temporal.get_workflow_handle(run, run_id=run_id).fetch_history()).events
    except UnknownRun:
        return History.FromString((await agents.archive.histories(run)).get(run_id, b"")).events


def _collect(
    events: Iterable[HistoryEvent],
    found: dict[float, tuple[HistoryEvent, float, bool]],
    unread: list[str],
    *,
    holds: bool,
) -> None:
    """Note the resets in a history by their time, and the executions that they were made of."""
    before = 0.0
    for event in events:
        at = event.event_time.ToNanoseconds() / 1e9
        failed = event.workflow_task_failed_event_attributes
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED and failed.cause == RESET:
            found.setdefault(at, (event, before, holds))
            unread.append(failed.base_run_id)
        before = at


def _standing(call: KnownCall) -> StandingCall:
    outcome = "unknown" if call.result is None else str(call.result.get("error") or "made")
    return StandingCall(key=call.key, title=call.title, begun=call.begun, outcome=outcome)
