"""What a run works with: the specs of its tools, asked of the worker once."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from activities.contracts import ToolsDescribed, ToolSpec, ToolsWanted
from workflows.api import AgentTask
from workflows.gate.problems import unknown_arguments, worded
from workflows.intake import refused

__all__ = ["described"]


async def described(task: AgentTask, *, older: bool) -> tuple[ToolSpec, ...] | None:
    """The specs, which enter the history and go on with the run: a tool that changes later cannot break it.

    `older` runs began when a local activity was asked. None when the run is cancelled meanwhile. Raises
    ApplicationError for tools that the worker lacks, and for approvals that speak of arguments which no tool
    has.
    """
    if not task.tools:
        return ()
    if task.carry and task.carry.specs:
        return task.carry.specs
    try:
        found = await _asked(ToolsWanted(names=task.tools), older=older)
    except BaseException as error:
        if is_cancelled_exception(error):
            return None
        if isinstance(error, ActivityError):
            raise refused(f"the worker cannot describe its tools: {error.cause}") from error
        raise
    if found.missing:
        has = ", ".join(found.available) or "none"
        raise refused(f"unknown tools: {', '.join(found.missing)}. This worker has: {has}")
    # A child run has fewer tools than the approvals of the run above speak of.
    if not (older or task.carry or task.depth) and (faults := unknown_arguments(task.approvals, found.tools)):
        raise refused(worded(faults))
    return found.tools


async def _asked(wanted: ToolsWanted, *, older: bool) -> ToolsDescribed:
    """An activity like all others: where a query or a message comes while a *local* activity is under way,
    Temporal replays its end at another place and time than it had, and the run would not replay."""
    retry = RetryPolicy(maximum_attempts=3)
    found: ToolsDescribed
    if older:
        found = await workflow.execute_local_activity(
            "describe_tools",
            wanted,
            result_type=ToolsDescribed,
            start_to_close_timeout=timedelta(seconds=30),
            schedule_to_close_timeout=timedelta(seconds=120),
            retry_policy=retry,
            summary="describe the agent's tools",
        )
    else:
        found = await workflow.execute_activity(
            "describe_tools",
            wanted,
            result_type=ToolsDescribed,
            activity_id="describe-tools",
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=retry,
            summary="describe the agent's tools",
        )
    return found
