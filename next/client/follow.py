"""Following a run live: when its log may have grown, and what it does at this moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
)
from temporalio.client import Client

__all__ = ["Follower", "Heartbeat", "heartbeat_in"]

GROWS = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
"""Only a workflow task can add to a run's log."""
PAGE_EVENTS = 250
"""The server warns about pages of more than 256."""
CONTINUED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
CLOSED = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
}


class Follower:
    """Reads a run's history in the background by long polls, through continue-as-new.

    It sends no query and no update, so any number of followers costs the run nothing.
    """

    def __init__(self, temporal: Client, workflow_id: str) -> None:
        self._temporal = temporal
        self._workflow_id = workflow_id
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.over = False
        """The run has closed."""

    async def news(self, seconds: float | None = None) -> bool:
        """Wait until the log may have grown or the run has closed; False when the time was up first.

        Raises:
            RPCError: the history cannot be read any more.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        if self._task is not None and self._task.done():
            self._task.result()
        return True

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        self._task.add_done_callback(lambda _: self._news.set())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._task

    async def _follow(self) -> None:
        execution, token = "", b""
        while not self.over:
            page = await self._page(execution, token)
            events, token = page.history.events, page.next_page_token
            if any(event.event_type == GROWS for event in events):
                self._news.set()
            if next_execution := _continued_as(events):
                execution, token = next_execution, b""
            elif not token or any(event.event_type in CLOSED for event in events):
                self.over = True
                self._news.set()

    async def _page(self, execution: str, token: bytes) -> GetWorkflowExecutionHistoryResponse:
        return await self._temporal.workflow_service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(
                namespace=self._temporal.namespace,
                execution=WorkflowExecution(workflow_id=self._workflow_id, run_id=execution),
                wait_new_event=True,
                next_page_token=token,
                maximum_page_size=PAGE_EVENTS,
            ),
            retry=True,
        )


def _continued_as(events: Iterable[HistoryEvent]) -> str:
    """Run id of the execution that follows; empty when these events do not continue as new."""
    for event in events:
        if event.event_type == CONTINUED:
            return event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the server knows of a run at this moment from its workers' heartbeats."""

    text: str = ""
    """The end of what the model has said in the present call, or a tool's progress; a second old at most."""
    failure: str | None = None
    """What fails and is tried again, in one line; None: nothing fails."""


async def heartbeat_in(temporal: Client, description: DescribeWorkflowExecutionResponse) -> Heartbeat:
    """The heartbeat in the description of a workflow."""
    text = ""
    for pending in description.pending_activities:
        if pending.HasField("last_failure"):
            words = " ".join(pending.last_failure.message.split())[:300]
            return Heartbeat(failure=f"{pending.activity_id} failed and is tried again: {words}")
        with suppress(Exception):  # another version's heartbeat: nothing to show
            details = await temporal.data_converter.decode(pending.heartbeat_details.payloads, [str])
            text = str(details[0]) if details else text
    if description.HasField("pending_workflow_task") and description.pending_workflow_task.attempt > 2:
        return Heartbeat(text, "the workflow itself fails again and again; the worker's log says why")
    return Heartbeat(text)
