"""Runs as a list shows them: from search attributes and memo alone, so that no worker is needed."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import TypeAdapter
from temporalio.api.enums.v1 import WorkflowExecutionStatus as NewestStatus
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from activities.contracts import Frozen, JsonObject, without_digests
from client.errors import UsageError
from workflows.api import WORKFLOW_TYPE, AgentTask
from workflows.people import Kind, Verb

__all__ = [
    "REQUESTS_KEY", "RequestSummary", "RunLine", "accept_new_statuses", "line_of", "list_filter",
    "newest_runs", "quoted", "requests_in_memo", "run_with_short_id", "start_attributes", "start_memo",
]  # fmt: skip

Progress = Literal["running", "completed", "failed", "cancelled", "terminated", "timed out", "continued"]
PROGRESS: dict[WorkflowExecutionStatus | None, Progress] = {
    WorkflowExecutionStatus.RUNNING: "running",
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed out",
    WorkflowExecutionStatus.CONTINUED_AS_NEW: "continued",
}
GOAL_CHARACTERS = 200
PAGE = 100
"""Runs that are fetched at once."""
CANDIDATES = 10
"""Runs that a message names."""
REQUESTS_KEY = "requests"
"""Memo: the open requests in short."""

AGENT = SearchAttributeKey.for_keyword("AgentName")
MACHINE = SearchAttributeKey.for_keyword("AgentMachine")
STATE = SearchAttributeKey.for_keyword("AgentState")
WAITING = SearchAttributeKey.for_keyword("AgentWaiting")
WAITING_SINCE = SearchAttributeKey.for_datetime("AgentWaitingSince")
DEADLINE = SearchAttributeKey.for_datetime("AgentDeadline")
EXIT = SearchAttributeKey.for_keyword("AgentExit")


def accept_new_statuses() -> None:
    """Let Temporal's client read an execution whose status it does not know, as `PAUSED` of newer servers: it
    raises a ValueError in every list and description otherwise."""
    missing = classmethod(_new_status)
    WorkflowExecutionStatus._missing_ = missing  # type: ignore[assignment]  # the hook that enum has for it


def _new_status(kind: type[WorkflowExecutionStatus], value: object) -> WorkflowExecutionStatus | None:
    if not isinstance(value, int):
        return None
    status = int.__new__(kind, value)
    known = value in NewestStatus.values()
    name = NewestStatus.Name(NewestStatus.ValueType(value)) if known else f"STATUS_{value}"
    status._name_ = name.removeprefix("WORKFLOW_EXECUTION_STATUS_")
    status._value_ = value
    return status


class RequestSummary(Frozen):
    """An open request in short, as the memo of its run has it."""

    id: str
    kind: Kind
    text: str = ""
    """The beginning of the question."""
    tool: str | None = None
    digest: str
    options: tuple[Verb, ...] = ()
    deadline: float | None = None
    """Seconds since 1970."""
    group: str | None = None
    approvers: tuple[str, ...] = ()
    """Who may decide, the first five; empty: anybody."""
    quorum: int = 1
    signed: bool = False
    arguments: JsonObject | None = None
    """None: there are none, or they are too long for a list."""


class RunLine(Frozen):
    """One run in a list."""

    id: str
    """The workflow id."""
    run_id: str = ""
    """Temporal's id of the newest execution."""
    progress: Progress
    agent: str = ""
    machine: str = ""
    task_queue: str
    """Of its workers: `ratchet`, or one of its own for a run of `ratchet run`."""
    state: str = ""
    """Empty unless the agent asks for `visibility: state`, or Temporal has a status that is no progress."""
    waiting: str = ""
    """Kind of the oldest open request, or `paused`; empty: the run waits for nobody."""
    waiting_since: datetime | None = None
    deadline: datetime | None = None
    exit_reason: str = ""
    ok: bool | None = None
    """It reached its goal; None: it is not over, or the archive here does not know."""
    goal: str = ""
    """The first 200 characters of the goal."""
    started: datetime
    closed: datetime | None = None
    requests: tuple[RequestSummary, ...] = ()
    """The oldest five open requests."""


_SUMMARIES: TypeAdapter[tuple[RequestSummary, ...]] = TypeAdapter(tuple[RequestSummary, ...])


async def line_of(run: WorkflowExecution) -> RunLine:
    """What a list shows of a run."""
    found = run.typed_search_attributes
    goal = await _memo(run, "goal")
    return RunLine(
        id=run.id,
        run_id=run.run_id,
        progress=PROGRESS.get(run.status, "running"),
        agent=found.get(AGENT, ""),
        machine=found.get(MACHINE, ""),
        task_queue=run.task_queue,
        state=found.get(STATE, "") if run.status in PROGRESS else f"{_status(run)} in Temporal",
        waiting=found.get(WAITING, ""),
        waiting_since=found.get(WAITING_SINCE),
        deadline=found.get(DEADLINE),
        exit_reason=found.get(EXIT, ""),
        goal="" if goal is None else str(goal)[:GOAL_CHARACTERS],
        started=run.start_time,
        closed=run.close_time,
        requests=await requests_in_memo(run),
    )


def _status(run: WorkflowExecution) -> str:
    return "unknown" if run.status is None else run.status.name.lower().replace("_", " ")


async def requests_in_memo(run: WorkflowExecution) -> tuple[RequestSummary, ...]:
    """The open requests that a run's memo names, the oldest five at most; none when it cannot be read."""
    found = await _memo(run, REQUESTS_KEY)
    with suppress(ValueError, RecursionError):  # a newer worker, or another program, wrote it
        return _SUMMARIES.validate_python(json.loads(found) if isinstance(found, str) else found or ())
    return ()


async def _memo(run: WorkflowExecution, key: str) -> Any:
    """A value of a memo; None when there is none, or one that cannot be read: anybody may write there."""
    with suppress(Exception):
        return await run.memo_value(key, default=None)
    return None


def start_attributes(task: AgentTask) -> TypedSearchAttributes:
    """Search attributes that a run has from its first moment, at the cost of no event."""
    return TypedSearchAttributes(
        [SearchAttributePair(AGENT, task.name), SearchAttributePair(MACHINE, task.machine)]
    )


def start_memo(task: AgentTask) -> dict[str, str]:
    """The memo of a run that starts."""
    memo = {"goal": " ".join(without_digests(task.goal).split())[:GOAL_CHARACTERS]}
    return {**memo, "machine": f"{task.machine} {task.machine_version}"} if task.machine_version else memo


def list_filter(
    *,
    running: bool = False,
    waiting: bool = False,
    machine: str | None = None,
    agent: str | None = None,
    prefix: str = "",
    since: datetime | None = None,
) -> str:
    """A visibility query for runs; `prefix` is the beginning of their ids, `since` when they began at the
    earliest. Executions that were continued as new are not there: the newest one is."""
    parts = [f"WorkflowType = '{WORKFLOW_TYPE}'", "ExecutionStatus != 'ContinuedAsNew'"]
    if running:
        parts.append("CloseTime IS NULL")
    if waiting:
        parts.append("AgentWaiting IS NOT NULL")
    for name, value in (("AgentMachine", machine), ("AgentName", agent)):
        if value is not None:
            parts.append(f"{name} = '{quoted(value)}'")
    if since is not None:
        parts.append(f"StartTime >= '{since.astimezone(UTC).isoformat()}'")
    if prefix:
        parts.append(f"WorkflowId STARTS_WITH '{quoted(prefix)}'")
    return " AND ".join(parts)


async def newest_runs(temporal: Client, query: str, limit: int | None = None) -> list[WorkflowExecution]:
    """The newest executions of the runs that a visibility query finds, the newest first.

    A server lists what is open by its start and what is closed by its end. A run that has ended before the
    last one of `limit` began cannot be among them, and none behind it in the list.
    """
    found: dict[str, WorkflowExecution] = {}
    for half in ("CloseTime IS NULL", "CloseTime IS NOT NULL"):
        seen: list[datetime] = []
        listed = temporal.list_workflows(f"{query} AND {half}", page_size=PAGE)
        async for run in listed:
            if limit is not None and len(seen) >= limit and (run.close_time or run.start_time) < seen[-limit]:
                break
            known = found.get(run.id)
            if known is None:  # else it was reset
                bisect.insort(seen, run.start_time)
            if known is None or known.start_time < run.start_time:
                found[run.id] = run
    newest = sorted(found.values(), key=lambda run: run.start_time, reverse=True)
    return newest if limit is None else newest[:limit]


def quoted(value: str) -> str:
    """The value for a text in a visibility query."""
    return value.replace("\\", "\\\\").replace("'", "\\'")


def run_with_short_id(short: str, ids: Iterable[str]) -> str | None:
    """The one id that begins or ends with `short`; None when there is none.

    An inner run's id begins with that of the outer run; a shortened one means the outer run.

    Raises:
        UsageError: there are several; they are named.
    """
    found = sorted(run for run in set(ids) if run.startswith(short) or run.endswith(short))
    outer = [run for run in found if not any(run.startswith(f"{other}/") for other in found)]
    if len(outer) > 1:
        more = [f"  and {len(outer) - CANDIDATES} more"] if len(outer) > CANDIDATES else []
        lines = "\n".join([*(f"  {run}" for run in outer[:CANDIDATES]), *more])
        raise UsageError(
            f"{short}: several runs have an id that begins or ends so; name one of them:\n{lines}"
        )
    return outer[0] if outer else None
