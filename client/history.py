"""Following a run by its history: a long poll that wakes up when something may have happened."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
)
from temporalio.client import Client

__all__ = ["Follower"]

MOVED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
"""Only a workflow task can add to a run's log."""
PAGE_EVENTS = 250
"""The server complains of pages of more than 256."""
CONTINUED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
CLOSED = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
}


class Follower:
    """Reads a run's history in the background; while a reader is busy, news is gathered into one.

    No query and no update is used, so that any number of followers costs a run nothing.
    """

    def __init__(self, temporal: Client, workflow_id: str) -> None:
        self._temporal = temporal
        self._workflow_id = workflow_id
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.over = False
        """The run has closed."""

    async def news(self) -> None:
        """Wait until the log may have grown, or the run has closed.

        Raises:
            RPCError: the history cannot be read any more.
        """
        await self._news.wait()
        self._news.clear()
        if self._task is not None and self._task.done():
            self._task.result()

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
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._task

    async def _follow(self) -> None:
        run_id, token = "", b""
        while not self.over:
            page = await self._page(run_id, token)
            run_id, token = self._take(page, run_id)

    def _take(self, page: GetWorkflowExecutionHistoryResponse, run_id: str) -> tuple[str, bytes]:
        """Note what a page says; where to read on (run id and page token)."""
        events = page.history.events
        if any(event.event_type == MOVED for event in events):
            self._news.set()
        follower = _continued_in(events)
        if follower:
            return follower, b""
        if not page.next_page_token or any(event.event_type in CLOSED for event in events):
            self.over = True
            self._news.set()
        return run_id, page.next_page_token

    async def _page(self, run_id: str, token: bytes) -> GetWorkflowExecutionHistoryResponse:
        return await self._temporal.workflow_service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(
                namespace=self._temporal.namespace,
                execution=WorkflowExecution(workflow_id=self._workflow_id, run_id=run_id),
                wait_new_event=True,
                next_page_token=token,
                maximum_page_size=PAGE_EVENTS,
            ),
            retry=True,
        )


def _continued_in(events: Iterable[HistoryEvent]) -> str:
    for event in events:
        if event.event_type == CONTINUED:
            attributes = event.workflow_execution_continued_as_new_event_attributes
            return attributes.new_execution_run_id
    return ""
