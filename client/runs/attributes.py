"""Runs as Temporal's client knows them: search attributes, memo, status."""

from __future__ import annotations

import bisect
from contextlib import suppress
from datetime import datetime
from typing import Any, Unpack

from temporalio.api.enums.v1 import WorkflowExecutionStatus as NewestStatus
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from activities.contracts import without_digests
from client.runs.listing import (
    GOAL_CHARACTERS,
    PROGRESS,
    Filter,
    RequestSummary,
    RunLine,
    list_filter,
    requests_in,
)
from workflows.api import LOG_HEAD_KEY, AgentTask
from workflows.temporal_names import REQUESTS_KEY

__all__ = [
    "accept_new_statuses", "line_of", "newest_runs", "requests_in_memo", "start_attributes", "start_memo",
]  # fmt: skip

PAGE_RUNS = 100
"""Runs that are fetched at once where few are wanted."""
HALVES = ("CloseTime IS NULL", "CloseTime IS NOT NULL")

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
        waiting="" if run.close_time else found.get(WAITING, ""),
        waiting_since=found.get(WAITING_SINCE),
        deadline=found.get(DEADLINE),
        exit_reason=found.get(EXIT, ""),
        goal="" if goal is None else str(goal)[:GOAL_CHARACTERS],
        started=run.start_time,
        closed=run.close_time,
        requests=await requests_in_memo(run),
        log_head=str(await _memo(run, LOG_HEAD_KEY) or ""),
    )


def _status(run: WorkflowExecution) -> str:
    return "unknown" if run.status is None else run.status.name.lower().replace("_", " ")


async def requests_in_memo(run: WorkflowExecution) -> tuple[RequestSummary, ...]:
    """The open requests that a run's memo names, the oldest five at most; none when it cannot be read."""
    return requests_in(await _memo(run, REQUESTS_KEY))


async def newest_runs(
    temporal: Client, limit: int | None = None, **wanted: Unpack[Filter]
) -> list[WorkflowExecution]:
    """The newest executions of the runs of a filter, the newest first.

    A server lists what is open by its start and what is closed by its end. A run that has ended before the
    last one of `limit` began cannot be among them, nor can any after it in the list.
    """
    found: dict[str, WorkflowExecution] = {}
    size = 1000 if limit is None else PAGE_RUNS
    for half in ("CloseTime IS NULL",) if wanted.get("running") else HALVES:
        seen: list[datetime] = []
        query = f"{list_filter(**wanted)} AND {half}"
        async for run in temporal.list_workflows(query, page_size=size):
            if limit is not None and len(seen) >= limit and (run.close_time or run.start_time) < seen[-limit]:
                break
            known = found.get(run.id)
            if known is None:  # else it was reset
                bisect.insort(seen, run.start_time)
            if known is None or known.start_time < run.start_time:
                found[run.id] = run
    newest = sorted(found.values(), key=lambda run: run.start_time, reverse=True)
    return newest if limit is None else newest[:limit]


async def _memo(run: WorkflowExecution, key: str) -> Any:
    """A value from the memo, or None if it is missing or unreadable: anybody may write there."""
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
