"""The SDK: start agent runs, follow them, read what they did and what came out."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from activities.contracts import Message
from client.archived import ArchivedRuns
from client.context import Material, check_takes_context, context_for, store_of
from client.errors import DuplicateRun, NoWorker, RatchetError, UnknownRun
from client.history import Follower
from client.listing import GOAL_KEY, GOAL_SHOWN, RunLine, line_of, list_filter, start_attributes
from client.live import Now, moment
from client.rpc import QUERY_TIMEOUT, clear_errors, has_worker, no_worker, result_within, run_failed
from workflows import registry
from workflows.api import (
    TASK_QUEUE,
    WORKFLOW_TYPE,
    AgentResult,
    AgentStatus,
    AgentTask,
    LogPage,
    PageQuery,
    StepLine,
    TranscriptPage,
)
from workflows.kernel.log import Record
from workflows.pages import steps_of

__all__ = ["AgentClient", "pinned"]

Q = TypeVar("Q")
PATIENCE = 60
"""How many seconds `watch` waits for a worker that went away in the middle of a run."""


class AgentClient:
    """Everything a program does with runs; made by `AgentClient.connect`."""

    def __init__(
        self, temporal: Client, archive: ArchivedRuns, *, ui: str | None = None, where: str = ""
    ) -> None:
        self.temporal = temporal
        self.ui = ui
        """Address of Temporal's Web UI, where it is known."""
        self.where = where
        """The server's address, for messages."""
        self.worker_here = False
        """A worker runs in this process, so that there is no need to look for one."""
        self._archive = archive

    @classmethod
    def connect(cls, **how: Any) -> AbstractAsyncContextManager[AgentClient]:
        """Connect: `async with AgentClient.connect() as agents`.

        By Temporal's own configuration (`TEMPORAL_ADDRESS`, profiles) when there is one, else to
        `address`, else to the embedded server of the data directory, which is started if need be.
        The arguments are those of `client.connection.connected`.
        """
        from client.connection import connected

        return connected(**how)

    # -- starting and stopping ------------------------------------------------------------------

    async def start(
        self, task: AgentTask, run_id: str | None = None, *, context: Material | None = None
    ) -> str:
        """Start a run; its id.

        `context` is the material that the run is about, for machines that take it: a text, its UTF-8,
        or a file. A long one is put into the store of the data directory, which the workers share.

        Raises:
            DuplicateRun: there is a run with that id, running or finished.
            UsageError: the machine takes no context, or what is given is no text.
        """
        run_id = run_id or new_run_id(task.agent)
        task = pinned(task)
        if context is not None:
            check_takes_context(task)
            found = await context_for(context, store_of(self.temporal))
            task = task.model_copy(update={"context": found})
        goal = " ".join(task.goal.split())[:GOAL_SHOWN]
        try:
            async with clear_errors(self.where, run_id):
                await self.temporal.start_workflow(
                    WORKFLOW_TYPE,
                    task,
                    id=run_id,
                    task_queue=TASK_QUEUE,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    memo={GOAL_KEY: goal},
                    search_attributes=start_attributes(task),
                    static_summary=goal,
                )
        except WorkflowAlreadyStartedError as error:
            raise DuplicateRun(
                f"a run with the id {run_id} exists already, so nothing was started; look at it "
                f"with `ratchet watch {run_id}`, or choose another id"
            ) from error
        return run_id

    async def run(
        self, task: AgentTask, run_id: str | None = None, *, context: Material | None = None
    ) -> AgentResult:
        """Start a run and wait for its result; see `start`."""
        return await self.result(await self.start(task, run_id, context=context))

    async def cancel(self, run_id: str) -> None:
        """Ask a run to stop; it still gives a result, with the exit reason `cancelled`."""
        async with clear_errors(self.where, run_id):
            await self.temporal.get_workflow_handle(run_id).cancel()

    async def has_worker(self) -> bool:
        """A worker polls the task queue."""
        async with clear_errors(self.where):
            return await has_worker(self.temporal)

    async def waiting_task(self, run_id: str) -> AgentTask | None:
        """The input of a run that is not over; None when it was asked to stop or cannot be read."""
        handle = self.temporal.get_workflow_handle(run_id)
        async with clear_errors(self.where, run_id):
            about = (await handle.describe()).raw_description.workflow_extended_info
            if about.cancel_requested:
                return None
            events = handle.fetch_history_events(page_size=1)
            begun = (await anext(events)).workflow_execution_started_event_attributes
        try:
            (task,) = await self.temporal.data_converter.decode(begun.input.payloads, [AgentTask])
        except Exception:  # noqa: BLE001  # whatever it is, the run itself says so when it is started
            return None
        return task if isinstance(task, AgentTask) else None

    async def now(self, run_id: str) -> Now:
        """What a run is at this moment: needs no worker, no query and no history event."""
        async with clear_errors(self.where, run_id):
            handle = self.temporal.get_workflow_handle(run_id)
            return await moment(self.temporal, (await handle.describe()).raw_description)

    # -- what came out --------------------------------------------------------------------------

    async def result(self, run_id: str) -> AgentResult:
        """Wait until a run is over; what came out of it.

        Raises:
            RunFailed: the workflow failed, was terminated or timed out, so that there is none. A machine
                that ends by raising has one: see `AgentResult.raises`.
        """
        handle: WorkflowHandle[Any, AgentResult] = self.temporal.get_workflow_handle(
            run_id, result_type=AgentResult
        )
        try:
            async with clear_errors(self.where, run_id):
                return await handle.result()
        except WorkflowFailureError as error:
            told = result_within(error)
            if told is None:
                raise run_failed(run_id, error) from error
            return told
        except UnknownRun:
            archived = await self._archive.result(run_id)
            if archived is None:
                raise
            return archived

    # -- reading --------------------------------------------------------------------------------

    async def describe(self, run_id: str) -> RunLine:
        """What a list shows of one run; needs no worker."""
        async with clear_errors(self.where, run_id):
            return await line_of(await self.temporal.get_workflow_handle(run_id).describe())

    async def list(
        self, *, running: bool = False, machine: str | None = None, agent: str | None = None
    ) -> tuple[RunLine, ...]:
        """Runs that the server knows, newest first; needs no worker."""
        query = list_filter(running=running, machine=machine, agent=agent)
        async with clear_errors(self.where):
            found = [await line_of(run) async for run in self.temporal.list_workflows(query)]
        latest = [line for line in found if line.progress != "continued"]
        return tuple(sorted(latest, key=lambda line: line.started, reverse=True))

    async def status(self, run_id: str) -> AgentStatus:
        """Where a run is."""
        ask = partial(self._query, run_id, "status", AgentStatus)
        return await self._read(run_id, ask, self._archive.status)

    async def log(self, run_id: str, since: int = 0, *, full: bool = False) -> LogPage:
        """One page of a run's records, from sequence number `since` on.

        Long values in it may be cut unless `full`, which needs the workers' store at hand.
        """
        query = PageQuery(since=since, full=full)
        ask = partial(self._query, run_id, "log", LogPage, query)
        page = await self._read(run_id, ask, partial(self._archive.log, since=since))
        if page.first > since:
            # the run was continued as new: what came before is in the archive
            before = await self._archive.records(run_id)
            gap = tuple(r for r in before if since <= r.seq < page.first)
            page = page.model_copy(update={"records": (*gap, *page.records)})
        return page

    async def records(self, run_id: str, since: int = 0, *, full: bool = False) -> tuple[Record, ...]:
        """All records of a run so far, from sequence number `since` on."""
        return (await self._all_since(run_id, since, full))[0]

    async def steps(self, run_id: str) -> tuple[StepLine, ...]:
        """What a run did, a line for each step."""
        return steps_of(await self.records(run_id))

    async def transcript(self, run_id: str) -> tuple[Message, ...]:
        """The conversation with the model so far."""
        messages: tuple[Message, ...] = ()
        while True:
            query = PageQuery(since=len(messages))
            page = await self._query(run_id, "transcript", TranscriptPage, query)
            messages += page.messages
            if not page.messages or len(messages) >= page.total:
                return messages

    async def diagram(self, run_id: str) -> str:
        """The run's machine as a Mermaid diagram with the current state marked."""
        return await self._query(run_id, "diagram", str)

    async def watch(self, run_id: str, since: int = 0) -> AsyncIterator[Record]:
        """Every record of a run as it happens, until the run is over.

        Waits on the run's history and asks for the log once each time that it has moved.
        """
        if await self._in_archive(run_id):
            for record in await self.records(run_id, since):
                yield record
            return
        await self._check_worker(run_id)
        async with Follower(self.temporal, run_id) as follower:
            over = False
            while not over:
                async with clear_errors(self.where, run_id):
                    await follower.news()
                over = follower.over  # before reading: what comes after it is read then
                new, finished = await self._patiently(run_id, since)
                for record in new:
                    yield record
                    since = record.seq + 1
                over = over or finished

    async def _patiently(self, run_id: str, since: int) -> tuple[tuple[Record, ...], bool]:
        """`_all_since`, but a worker that is away for a moment is waited for."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return await self._all_since(run_id, since)
            except NoWorker:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(1)

    async def _all_since(
        self, run_id: str, since: int, full: bool = False
    ) -> tuple[tuple[Record, ...], bool]:
        records: tuple[Record, ...] = ()
        while True:
            page = await self.log(run_id, since, full=full)
            records += page.records
            since = page.next
            if not page.records or page.next >= page.total:
                return records, page.finished

    async def _read(
        self, run_id: str, ask: Callable[[], Awaitable[Q]], recall: Callable[[str], Awaitable[Q | None]]
    ) -> Q:
        """Ask the run; one that is over is recalled from the archive, which needs no worker."""
        if await self._in_archive(run_id):
            recalled = await recall(run_id)
            if recalled is not None:
                return recalled
        return await ask()

    async def _in_archive(self, run_id: str) -> bool:
        """The end of this very execution is archived; of any, when Temporal knows none."""
        try:
            result = await self._archive.result(run_id)
        except RatchetError as unreadable:
            try:
                await self.describe(run_id)
            except UnknownRun:
                raise unreadable from None
            return False  # what Temporal knows needs no archive
        if result is None:
            return False
        try:
            return (await self.describe(run_id)).run_id == result.run_id
        except UnknownRun:
            return True

    async def _query(self, run_id: str, name: str, kind: type[Q], query: PageQuery | None = None) -> Q:
        """Ask a run; refused at once when no worker is there to answer."""
        await self._check_worker(run_id)
        async with clear_errors(self.where, run_id):
            handle = self.temporal.get_workflow_handle(run_id)
            arguments = [] if query is None else [query]
            answer: Q = await handle.query(name, args=arguments, result_type=kind, rpc_timeout=QUERY_TIMEOUT)
            return answer

    async def _check_worker(self, run_id: str) -> None:
        """Raise NoWorker, but for an id that does not exist the better news."""
        async with clear_errors(self.where, run_id):
            if not self.worker_here and not await has_worker(self.temporal):
                await self.temporal.get_workflow_handle(run_id).describe()
                raise no_worker(self.where)


def pinned(task: AgentTask) -> AgentTask:
    """The task with the newest version of its machine named, if it names none and we know the machine."""
    with suppress(ValueError):
        newest = registry.design(task.machine, task.machine_version).version
        return task.model_copy(update={"machine_version": newest})
    return task


def new_run_id(agent: str) -> str:
    """An id for a new run: sorts by time, and is told apart at a glance."""
    return f"{agent}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
