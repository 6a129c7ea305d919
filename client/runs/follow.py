"""Following a run live: when its log may have grown."""

from __future__ import annotations

import asyncio
from typing import Self

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

__all__ = ["Follower"]

GROWS = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
"""Only a workflow task can add to a run's log."""
CONTINUED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
PAGE_EVENTS = 250
"""The server warns about pages of more than 256."""


class Follower:
    """Reads a run's history in the background by long polls, through continue-as-new.

    It sends no query and no update, so any number of followers costs the run nothing.
    """

    def __init__(self, temporal: Client, run: str) -> None:
        self._temporal, self._run = temporal, run
        self._news = asyncio.Event()
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
        if self._task.done():
            self._task.result()
        return True

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        self._task.add_done_callback(lambda _: self._news.set())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        run_id: str | None = None
        while not self.over:
            handle = self._temporal.get_workflow_handle(self._run, run_id=run_id)
            run_id = None
            async for event in handle.fetch_history_events(page_size=PAGE_EVENTS, wait_new_event=True):
                if event.event_type == GROWS:
                    self._news.set()
                if event.event_type == CONTINUED:
                    run_id = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
            self.over = run_id is None
