"""Errors that people of the client meet: one paragraph each, with what to do next.

`clear_errors` turns what Temporal's client raises into one of these.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from temporalio.client import WorkflowFailureError
    from temporalio.service import RPCError

__all__ = [
    "CodeChanged", "DuplicateRun", "MachineBug", "NoWorker", "RunNotBegun", "NotConfirmed", "RatchetError",
    "Refused", "RunFailed", "RunRefused", "ServerBusy", "ServerError", "StoreNotShared", "TaskFails",
    "UnknownRun", "Unreachable", "Unreadable", "UsageError", "WorkersBusy", "clear_errors", "machine_bug",
    "no_worker", "resume_command", "run_failed", "unknown_run", "unreachable",
]  # fmt: skip


class RatchetError(Exception):
    """Something went wrong that a person can do something about; the message says what."""

    exit_code = 1
    """Of the command that fails with it."""


class UsageError(RatchetError):
    """Bad input: an option, an agent file, a goal. Nothing was started."""

    exit_code = 2


class ServerError(RatchetError):
    """The embedded server does not start, or what runs is not ours."""


class Unreachable(RatchetError):
    """The Temporal server does not answer."""


class ServerBusy(Unreachable):
    """The Temporal server has more to do than it can, and did not answer in time."""


class NoWorker(RatchetError):
    """No worker polls the task queue, so a query would wait in vain."""


class TaskFails(NoWorker):
    """A worker polls, but the run's workflow task fails, or has timed out and is not tried again yet."""


class WorkersBusy(NoWorker):
    """A worker polls the task queue, but none answered a query in time."""


class RunNotBegun(RatchetError):
    """A worker has the run, but it has not begun yet, so it has nothing to tell."""


class MachineBug(RatchetError):
    """A bug stops a run's workflow task; the run continues by itself once the code is fixed."""

    exit_code = 5


class CodeChanged(MachineBug):
    """Today's code asks for something else than the run did, so no worker with it can continue the run."""


class StoreNotShared(RatchetError):
    """A run's answer is too long for a message and lies in a store that this client cannot read."""


class Unreadable(RatchetError):
    """What Temporal has of a run is encrypted, and this process lacks the key."""


class UnknownRun(RatchetError):
    """Neither Temporal nor the archive knows the run."""


class DuplicateRun(RatchetError):
    """A run with that id exists already; nothing was started."""


class RunFailed(RatchetError):
    """The workflow failed, was terminated or timed out, so there is no result."""


class RunRefused(RunFailed):
    """The worker that took the run cannot run such a task; nothing was done."""


class Refused(RatchetError):
    """The run does not take a decision or a command now; nothing was changed."""

    exit_code = 3


class NotConfirmed(RatchetError):
    """A person did not confirm, or nobody could be asked; nothing was done."""

    exit_code = 4


UPDATE_ABORTED = "update was aborted"
"""In the server's message when it lost sight of an update: the update may be sent again."""
RUN_IS_OVER = ("already completed", "closing workflow", UPDATE_ABORTED)
"""In the server's message about an update to a run that has ended, or ends before it reads the update."""

NONDETERMINISM = "[TMPRL1100]"
"""In Temporal's message when code that is replayed does something else than the history says."""

TASK_FAILS = "Workflow Task in failed state"
"""How the server refuses a query or an update while a bug fails the run's workflow task."""
NO_POLLER = "no poller seen"
"""How it refuses one soon after the last worker has gone."""


@asynccontextmanager
async def clear_errors(where: str, run_id: str = "", *, query: bool = False) -> AsyncIterator[None]:
    """Turn what Temporal's client raises inside into a `RatchetError` that says what to do.

    Args:
        where: address of the server, for the message.
        run_id: workflow id, where the call is about one run.
        query: a worker must answer the call, too.
    """
    from temporalio.client import WorkflowQueryRejectedError
    from temporalio.service import RPCError

    from activities.store.blobs import StoreError
    from activities.store.encryption import KeyMissing, NotDecrypted, OfAnotherStore

    try:
        yield
    except RPCError as error:
        found = _of_failing_task(error, where, run_id) or (query and _of_query(error, where, run_id))
        raise found or _translated(error, where, run_id) from error
    except (KeyMissing, NotDecrypted, OfAnotherStore) as error:
        what = f"of run {run_id}" if run_id else f"at {where}"
        raise Unreadable(f"what Temporal has {what} cannot be read here: {error}") from error
    except StoreError as error:
        raise StoreNotShared(
            f"the answer of run {run_id} is too long for a message and lies in the store of its workers, "
            f"which cannot be read here: {error}; name its directory with --data-dir"
        ) from error
    except WorkflowQueryRejectedError as error:
        status = error.status.name.lower() if error.status is not None else "closed"
        raise RatchetError(
            f"run {run_id} answers no query: it is {status} in Temporal; `temporal workflow unpause "
            f"-w {run_id}` lets a paused one go on"
        ) from error


def _of_failing_task(error: RPCError, where: str, run_id: str) -> NoWorker | None:
    if TASK_FAILS not in error.message:
        return None
    return TaskFails(
        f"run {run_id} answers and takes nothing while its workflow task fails or times out at {where}; "
        f"`ratchet show {run_id}` says why, and so does the worker's log"
    )


def _of_query(error: RPCError, where: str, run_id: str) -> NoWorker | None:
    from temporalio.service import RPCStatusCode as Code

    if NO_POLLER in error.message:
        return no_worker(where)
    if error.status not in (Code.CANCELLED, Code.DEADLINE_EXCEEDED):
        return None
    return WorkersBusy(
        f"run {run_id} gave no answer in time ({error.message}): its workers, or the server at {where}, are "
        "busy or have just gone; try again, and with fewer requests at once"
    )


def _translated(error: RPCError, where: str, run_id: str) -> RatchetError:
    from temporalio.service import RPCStatusCode as Code

    slow = error.status in (Code.CANCELLED, Code.DEADLINE_EXCEEDED)
    missing = error.status is Code.NOT_FOUND
    lacks_namespace = missing and "namespace" in error.message.lower()
    if run_id and not lacks_namespace and (missing or UPDATE_ABORTED in error.message):
        if any(words in error.message for words in RUN_IS_OVER):
            return Refused(f"run {run_id} is over, so nothing was changed; `ratchet show {run_id}` shows it")
        return unknown_run(where, run_id)
    if slow or error.status is Code.RESOURCE_EXHAUSTED:
        return ServerBusy(
            f"the Temporal server at {where} is busy: it gave no answer in time ({error.message}); try "
            "again, and with fewer requests at once (`ratchet docs embedding`)"
        )
    if error.status is Code.UNAVAILABLE or error.message == "transport error":
        return unreachable(where, error.message)
    if error.status in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
        return RatchetError(
            f"the Temporal server at {where} denies access ({error.message}); check TEMPORAL_API_KEY or the "
            "TLS certificates (TEMPORAL_TLS_..., profile), and that they belong to this namespace"
        )
    if "search attribute" in error.message.lower():
        return RatchetError(f"{error.message}; `ratchet doctor --fix` registers the search attributes")
    if missing:
        return RatchetError(
            f"the Temporal server at {where} does not know it: {error.message.rstrip('.')}; correct "
            "--namespace or TEMPORAL_NAMESPACE, or create the namespace: `temporal operator namespace create "
            "-n NAME`, then `ratchet doctor --fix`"
        )
    return RatchetError(f"the Temporal server at {where} refused: {error.message}")


def unreachable(where: str, why: str) -> Unreachable:
    """The error for a server that does not answer."""
    if os.environ.get("TEMPORAL_ADDRESS") == where:
        todo = (
            "TEMPORAL_ADDRESS names it; if that is left over from a `ratchet dev` that has ended, "
            "`unset TEMPORAL_ADDRESS` to use the embedded server of the directory"
        )
    else:
        todo = "check the address (--address, profile), or leave it out to use the embedded server"
    return Unreachable(f"the Temporal server at {where} does not answer ({why}); {todo}")


def unknown_run(where: str, run_id: str) -> UnknownRun:
    """The error for a run that nobody knows."""
    return UnknownRun(f"there is no run {run_id} at {where}; `ratchet list` shows the runs")


def no_worker(where: str, queue: str = "", *, embedded: bool = False) -> NoWorker:
    """The error for a query that only a worker can answer.

    Args:
        queue: task queue of the run, where it is known.
        embedded: the server is the directory's own.
    """
    from workflows.temporal_names import TASK_QUEUE

    todo = f"{resume_command(embedded=embedded)} continues it"
    if queue.startswith(f"{TASK_QUEUE}-") and not embedded:
        todo = (
            f"{resume_command(embedded=True)} continues it, without --address and TEMPORAL_ADDRESS (its task "
            f"queue {queue!r} is its own; `python -m ratchet.worker` polls {TASK_QUEUE!r})"
        )
    return NoWorker(f"no worker serves this run at {where}, so it cannot go on or answer; {todo}")


def resume_command(*, embedded: bool) -> str:
    """The command that continues runs without a worker; `embedded`: their server is the directory's own."""
    return f"`{'ratchet run --resume' if embedded else 'python -m ratchet.worker'}`"


def machine_bug(run_id: str, text: str, machine: str, state: str) -> MachineBug:
    """The error for a run whose workflow task fails.

    Args:
        text: what Temporal says.
        machine: of the run, where it is known; and its state.
    """
    if NONDETERMINISM not in text:
        return MachineBug(f"run {run_id} cannot go on: {text}")
    what = f"the machine {machine}" if machine else "its machine"
    where = f" (the run was in state {state})" if state else ""
    return CodeChanged(
        f"run {run_id} cannot go on: the code was changed since it began, and {what} asks for something else "
        f"now than it did then{where}. Bring back the code that the run began with, and give the change to a "
        "new version of the machine beside it (`ratchet docs versions`). `ratchet check` names all runs that "
        "today's code breaks, and which of them a fork can continue. Temporal says: "
        f"{text.partition(NONDETERMINISM)[2].strip().rstrip('.')}."
    )


def run_failed(run_id: str, error: WorkflowFailureError) -> RunFailed:
    """Why a workflow has no result."""
    from temporalio.exceptions import ApplicationError, CancelledError, FailureError, TerminatedError

    cause: BaseException = error.cause
    while isinstance(cause, FailureError) and cause.cause and getattr(cause, "type", "") != "InvalidTask":
        cause = cause.cause
    if isinstance(cause, ApplicationError) and cause.type == "InvalidTask":
        return RunRefused(
            f"run {run_id} was refused, so nothing was done: {cause.message}\n"
            "Fix the task, and start it again with another --id, or none: this id is used up"
        )
    if isinstance(cause, TerminatedError):
        what = f"was terminated: {cause}"
    elif isinstance(cause, CancelledError):
        what = "was cancelled before it could write a result"
    else:
        what = f"failed: {cause}"
    return RunFailed(f"run {run_id} {what}; `ratchet log {run_id}` shows what it did")
