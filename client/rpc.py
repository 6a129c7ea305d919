"""Temporal's errors in words of our users, and questions about the server as a whole."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType, WorkerStatus
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, ListWorkersRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError, CancelledError, FailureError, TerminatedError
from temporalio.service import RPCError, RPCStatusCode

from activities.sqlite import StoreError
from client.errors import (
    NotAtHand,
    NoWorker,
    RatchetError,
    Refused,
    RunFailed,
    RunRefused,
    UnknownRun,
    Unreachable,
)
from workflows.api import TASK_QUEUE, AgentResult

__all__ = [
    "ABORTED", "CLOSING", "QUERY_TIMEOUT", "clear_errors", "has_worker", "no_worker", "result_within",
    "run_failed", "unreachable",
]  # fmt: skip

QUERY_TIMEOUT = timedelta(seconds=15)
POLL_SECONDS = 90
"""A live worker polls again at least every 70 seconds."""
LEAVING = {WorkerStatus.WORKER_STATUS_SHUTTING_DOWN, WorkerStatus.WORKER_STATUS_SHUTDOWN}
CLOSING = "closing workflow"
GONE = {RPCStatusCode.UNAVAILABLE}
ABORTED = "update was aborted"
"""The server lost sight of an update, such as when a workflow task was made anew: it may be sent again."""
OVER = ("already completed", CLOSING, ABORTED)
"""What the server says of a message to a run that is over, or ends before it has read it."""
SLOW = {RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED}


@asynccontextmanager
async def clear_errors(where: str, run_id: str = "") -> AsyncIterator[None]:
    """Turn what Temporal's client raises inside into a `RatchetError` that says what to do."""
    try:
        yield
    except RPCError as error:
        raise _in_words(error, where, run_id) from error
    except WorkflowQueryFailedError as error:
        raise RatchetError(f"run {run_id} refused the question: {error}") from error
    except StoreError as error:
        raise NotAtHand(
            f"what run {run_id} answers is too long for a message and lies in its workers' store, which "
            f"cannot be read here: {error}; name its folder with --data-dir"
        ) from error


async def has_worker(temporal: Client) -> bool:
    """Some worker has polled the task queue lately, and has not said goodbye since.

    One that was killed says nothing: it counts for up to `POLL_SECONDS` more.
    """
    described = await temporal.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=temporal.namespace,
            task_queue=TaskQueue(name=TASK_QUEUE),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    oldest = datetime.now(UTC) - timedelta(seconds=POLL_SECONDS)
    seen = [(p.last_access_time.ToDatetime(tzinfo=UTC), p.identity) for p in described.pollers]
    for at, identity in sorted(seen, reverse=True):
        if at > oldest and not await _said_goodbye(temporal, identity):
            return True
    return False


async def _said_goodbye(temporal: Client, identity: str) -> bool:
    """All workers of this identity have told the server that they stop; its pollers stay listed."""
    name = identity.replace("'", "''")
    query = ListWorkersRequest(namespace=temporal.namespace, query=f"WorkerIdentity = '{name}'")
    try:
        workers = (await temporal.workflow_service.list_workers(query)).workers_info
    except RPCError:
        return False  # a server that keeps no list of workers
    states = {worker.worker_heartbeat.status for worker in workers}
    return bool(states) and states <= LEAVING


def unreachable(where: str, why: str) -> Unreachable:
    """The error for a server that does not answer."""
    if os.environ.get("TEMPORAL_ADDRESS") == where:
        todo = (
            "TEMPORAL_ADDRESS names it; if that is left over from a `ratchet dev` that has ended, "
            "`unset TEMPORAL_ADDRESS`, and the embedded server of the directory is used"
        )
    else:
        todo = "check the address (--address, profile), or leave it out to use the embedded server"
    return Unreachable(f"the Temporal server at {where} does not answer ({why}); {todo}")


def no_worker(where: str) -> NoWorker:
    """The error for a question that only a worker can answer."""
    return NoWorker(
        f"no worker polls the task queue {TASK_QUEUE!r} at {where}, so the run does not go on and "
        "cannot be asked; start one with `ratchet dev` or `python worker.py`, or let "
        "`ratchet run --resume` go on with what was interrupted"
    )


def result_within(error: WorkflowFailureError) -> AgentResult | None:
    """The result that a machine which ends by raising gives with its error."""
    cause = error.cause
    details = cause.details if isinstance(cause, ApplicationError) else ()
    if not details or not isinstance(details[0], dict) or not details[0].get("raises"):
        return None
    return AgentResult.model_validate(details[0])


def run_failed(run_id: str, error: WorkflowFailureError) -> RunFailed:
    """Why a workflow has no result."""
    cause: BaseException = error.cause
    while isinstance(cause, FailureError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, ApplicationError) and cause.type == "InvalidTask":
        return RunRefused(
            f"run {run_id} was refused, so nothing was done: {cause.message}\n"
            "Its id is used up all the same: when that is mended, start it again with another --id, or none"
        )
    if isinstance(cause, TerminatedError):
        said = f"was terminated: {cause}"
    elif isinstance(cause, CancelledError):
        said = "was cancelled before it could say how far it came"
    else:
        said = f"failed: {cause}"
    return RunFailed(f"run {run_id} {said}; `ratchet log {run_id}` shows what it did")


def _in_words(error: RPCError, where: str, run_id: str) -> RatchetError:
    gone = error.status is RPCStatusCode.NOT_FOUND or ABORTED in error.message
    if gone and run_id and any(word in error.message for word in OVER):
        return Refused(f"run {run_id} is over, so nothing was changed; `ratchet show {run_id}` shows it")
    if error.status is RPCStatusCode.NOT_FOUND and run_id:
        return UnknownRun(f"there is no run {run_id} at {where}; `ratchet list` shows what there is")
    if error.status in SLOW and run_id:
        return no_worker(where)
    if error.status in GONE | SLOW or error.message == "transport error":
        return unreachable(where, error.message)
    if "search attribute" in error.message.lower():
        return RatchetError(f"{error.message}; `ratchet doctor --fix` registers the search attributes")
    return RatchetError(f"the Temporal server at {where} refused: {error.message}")
