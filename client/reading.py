"""Reading runs: lists, status, logs, results, and following them as they happen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from activities.contracts import Message
from client.archived import ArchivedRuns
from client.errors import NotAtHand, NoWorker, RatchetError, UnknownRun
from client.history import Follower
from client.listing import RunLine, line_of, list_filter
from client.live import Now, moment
from client.recorded import parts_of
from client.rpc import QUERY_TIMEOUT, clear_errors, has_worker, no_worker, result_within, run_failed
from workflows.api import AgentResult, AgentStatus, AgentTask, LogPage, PageQuery, StepLine, TranscriptPage
from workflows.kernel.log import Record
from workflows.pages import steps_of

__all__ = ["RunReader"]

Q = TypeVar("Q")
PATIENCE = 60
"""How many seconds `watch` waits for a worker that went away in the middle of a run."""


class RunReader:
    """What can be read of runs, live or over; the part of `AgentClient` that changes nothing."""

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

    @property
    def archive(self) -> ArchivedRuns:
        """What finished runs left behind, for when Temporal has forgotten them."""
        return self._archive

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
        except UnknownRun as unknown:
            archived = await self._archive.result(run_id)
            if archived is None:
                raise await self._endless(run_id, unknown) from unknown
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
            gap = await self._before(run_id, since, page.first)
            page = page.model_copy(update={"records": (*gap, *page.records)})
        return page

    async def _before(self, run_id: str, since: int, first: int) -> tuple[Record, ...]:
        """Records of a run from before it was continued as new: of the archive, else of Temporal's history.

        Raises:
            NotAtHand: neither has all of them here.
        """
        found: dict[int, Record] = {}
        with suppress(RatchetError):  # a damaged archive spoils no run that the server knows
            found = {record.seq: record for record in await self._archive.records(run_id)}
        if not found.keys() >= set(range(since, first)):
            async with clear_errors(self.where, run_id):
                for part in await parts_of(self.temporal, run_id):
                    found |= {record.seq: record for record in await part.records(self.temporal)}
        missing = [seq for seq in range(since, first) if seq not in found]
        if missing:
            raise NotAtHand(
                f"run {run_id} was continued with an empty history, and {len(missing)} of its records (from "
                f"{missing[0]} on) are neither in the archive here nor in Temporal's history any more; name "
                f"its workers' folder with --data-dir, or read from record {missing[-1] + 1} on (--since)"
            )
        return tuple(found[seq] for seq in range(since, first))

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
        """Every record of a run as it happens, until the run is over."""
        async for records in self.batches(run_id, since):
            for record in records:
                yield record

    async def batches(self, run_id: str, since: int = 0) -> AsyncIterator[tuple[Record, ...]]:
        """The same, records that were there at once together.

        Waits on the run's history and asks for the log once each time that it has moved.
        """
        if await self.in_archive(run_id) or await self.cut_off(run_id):
            yield await self.records(run_id, since)
            return
        await self._check_worker(run_id)
        async with Follower(self.temporal, run_id) as follower:
            over = False
            while not over:
                async with clear_errors(self.where, run_id):
                    await follower.news()
                over = follower.over  # before reading: what comes after it is read then
                new, finished = await self._patiently(run_id, since)
                if new:
                    yield new
                    since = new[-1].seq + 1
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
        if await self.in_archive(run_id):
            recalled = await recall(run_id)
            if recalled is not None:
                return recalled
        try:
            return await ask()
        except UnknownRun as unknown:
            recalled = await recall(run_id)
            if recalled is None:
                raise await self._endless(run_id, unknown) from unknown
            return recalled

    async def cut_off(self, run_id: str) -> bool:
        """The archive alone knows the run, and not to its end: what came of it is not known any more."""
        try:
            if await self._archive.records(run_id) and await self._archive.result(run_id) is None:
                await self.describe(run_id)
        except UnknownRun:
            return True
        except RatchetError:
            return False  # of a damaged archive, or a server away, others speak
        return False

    async def _endless(self, run_id: str, unknown: UnknownRun) -> UnknownRun:
        """What is said of a run whose end neither Temporal nor the archive has."""
        records = len(await self._archive.records(run_id))
        if not records:
            return unknown
        return UnknownRun(
            f"Temporal at {self.where} does not know run {run_id} (any more), and of its end the archive has "
            f"nothing: what came of it is not known. `ratchet log {run_id}` shows the {records} records that "
            "there are"
        )

    async def in_archive(self, run_id: str) -> bool:
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

    async def _query(
        self,
        run_id: str,
        name: str,
        kind: type[Q],
        query: BaseModel | None = None,
        *,
        patience: timedelta = QUERY_TIMEOUT,
    ) -> Q:
        """Ask a run; refused at once when no worker is there to answer."""
        await self._check_worker(run_id)
        async with clear_errors(self.where, run_id):
            handle = self.temporal.get_workflow_handle(run_id)
            arguments = [] if query is None else [query]
            answer: Q = await handle.query(name, args=arguments, result_type=kind, rpc_timeout=patience)
            return answer

    async def _check_worker(self, run_id: str) -> None:
        """Raise NoWorker, but for an id that does not exist the better news."""
        async with clear_errors(self.where, run_id):
            if not self.worker_here and not await has_worker(self.temporal):
                await self.temporal.get_workflow_handle(run_id).describe()
                raise no_worker(self.where)
