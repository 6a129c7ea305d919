"""Runs as a list shows them: from search attributes and memo alone, so that no worker is needed."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any, Literal

from temporalio.client import WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from activities.contracts import Frozen
from workflows.api import WORKFLOW_TYPE, AgentTask

__all__ = [
    "GOAL_KEY", "GOAL_SHOWN", "Progress", "RunLine", "line_of", "list_filter", "memo_of", "quoted",
    "start_attributes",
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
GOAL_SHOWN = 200
GOAL_KEY = "goal"

AGENT = SearchAttributeKey.for_keyword("AgentName")
MACHINE = SearchAttributeKey.for_keyword("AgentMachine")
STATE = SearchAttributeKey.for_keyword("AgentState")
WAITING = SearchAttributeKey.for_keyword("AgentWaiting")
EXIT = SearchAttributeKey.for_keyword("AgentExit")
WAITING_SINCE = SearchAttributeKey.for_datetime("AgentWaitingSince")
DEADLINE = SearchAttributeKey.for_datetime("AgentDeadline")


class RunLine(Frozen):
    """One run in a list."""

    id: str
    """The workflow's id, which is the run's trace id."""
    run_id: str = ""
    """Temporal's id of the execution."""
    progress: Progress
    agent: str = ""
    machine: str = ""
    state: str = ""
    """Empty unless the agent asks for `visibility: state`."""
    waiting: str = ""
    waiting_since: datetime | None = None
    deadline: datetime | None = None
    exit_reason: str = ""
    goal: str = ""
    """The first characters of the goal."""
    started: datetime
    closed: datetime | None = None


async def memo_of(run: WorkflowExecution, key: str) -> Any:
    """What a run's memo says there; None where it says nothing, or nothing that can be read here: whoever
    starts a run by other tools may write into its memo what they like."""
    with suppress(Exception):
        return await run.memo_value(key, default=None)
    return None


async def line_of(run: WorkflowExecution) -> RunLine:
    """What a list shows of a run."""
    found = run.typed_search_attributes
    goal = await memo_of(run, GOAL_KEY)
    return RunLine(
        id=run.id,
        run_id=run.run_id,
        progress=PROGRESS.get(run.status, "running"),
        agent=found.get(AGENT, ""),
        machine=found.get(MACHINE, ""),
        state=found.get(STATE, ""),
        waiting=found.get(WAITING, ""),
        waiting_since=found.get(WAITING_SINCE),
        deadline=found.get(DEADLINE),
        exit_reason=found.get(EXIT, ""),
        goal="" if goal is None else str(goal)[:GOAL_SHOWN],
        started=run.start_time,
        closed=run.close_time,
    )


def start_attributes(task: AgentTask) -> TypedSearchAttributes:
    """Search attributes that a run has from its first moment, at the cost of no event."""
    return TypedSearchAttributes(
        [SearchAttributePair(AGENT, task.agent), SearchAttributePair(MACHINE, task.machine)]
    )


def list_filter(*, running: bool = False, machine: str | None = None, agent: str | None = None) -> str:
    """A visibility query for our runs."""
    wanted = [f"WorkflowType = '{WORKFLOW_TYPE}'"]
    if running:
        wanted.append("ExecutionStatus = 'Running'")
    for name, value in (("AgentMachine", machine), ("AgentName", agent)):
        if value is not None:
            wanted.append(f"{name} = '{quoted(value)}'")
    return " AND ".join(wanted)


def quoted(value: str) -> str:
    """As it stands between the quotes of a visibility query."""
    return value.replace("\\", "\\\\").replace("'", "\\'")
