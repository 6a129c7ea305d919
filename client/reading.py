"""Reading runs: lists, status, logs, results, and following them as they happen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.exceptions import ApplicationError, CancelledError

from activities.contracts import Message
from activities.store.encryption import ENCODED
from client.archived import ArchivedRuns
from client.connection import Connection, has_worker
from client.errors import (
    NONDETERMINISM,
    CodeChanged,
    MachineBug,
    NoWorker,
    RatchetError,
    Refused,
    StoreNotShared,
    UnknownRun,
    UsageError,
    clear_errors,
    machine_bug,
    no_worker,
    run_failed,
    unknown_run,
)
from client.follow import Follower, Heartbeat, bug_in, heartbeat_in, newest_state
from client.history.recorded import by_number, executions_of, recorded_log
from client.listing import RunLine, line_of, list_filter, newest_runs, run_with_short_id
from workflows.api import (
    RESULT_KEY,
    TASK_QUEUE,
    LogPage,
    PageQuery,
    RunResult,
    RunStatus,
    StepLine,
    TranscriptPage,
)
from workflows.kernel.log import Record

__all__ = ["RunReader"]

Q = TypeVar("Q")
BUG_ATTEMPTS = 2
"""Failed workflow tasks after which a run counts as stopped by a bug."""
QUERY_SECONDS = 15
ABSENCE_SECONDS = 60
"""How long `watch` waits for a worker that went away in the middle of a run."""


class RunReader:
    """What can be read of runs, live or over: the part of `AgentClient` that changes nothing.

    A run is named by its workflow id. What is asked of a live run needs a worker; a run that is over is read
    from the archive of the data directory where it has it. Every method may raise `Unreachable` and
    `UnknownRun`, and those that need a worker `NoWorker`.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.archive = ArchivedRuns(connection.stores)
        """Finished runs, also those that Temporal has forgotten."""

    @property
    def temporal(self) -> Client:
        """Temporal's own client."""
        return self.connection.temporal

    @property
    def where(self) -> str:
        """The server's address, for messages."""
        return self.connection.where

    @property
    def ui(self) -> str | None:
        """Address of Temporal's Web UI; known of the embedded server only."""
        return self.connection.ui

    async def has_worker(self, run: str | None = None) -> bool:
        """A worker polls the task queue of this run; default: the one that all share."""
        return await self._is_polled(TASK_QUEUE if run is None else (await self.description(run)).task_queue)

    async def _is_polled(self, queue: str) -> bool:
        if queue in self.connection.queues:
            return True
        async with clear_errors(self.where):
            return await has_worker(self.temporal, queue)

    # -- lists: no worker is needed --------------------

    async def list(
        self,
        *,
        running: bool = False,
        machine: str | None = None,
        agent: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> tuple[RunLine, ...]:
        """Runs that Temporal knows, the newest first; one that was reset or continued is there once.

        Args:
            since: only runs that began then or later.
            limit: so many of them; few are fetched then.
        """
        query = list_filter(running=running, machine=machine, agent=agent, since=since)
        async with clear_errors(self.where):
            lines = [await line_of(run) for run in await newest_runs(self.temporal, query, limit)]
        return tuple([line.model_copy(update={"ok": await self._succeeded(line)}) for line in lines])

    async def _succeeded(self, line: RunLine) -> bool | None:
        """Whether a run that is over reached its goal, where that is known without asking it."""
        if line.progress in ("running", "completed"):
            with suppress(RatchetError):  # a list is no place to complain of the archive
                result = await self.archive.result(line.id) if line.progress == "completed" else None
                return None if result is None else result.ok
            return None
        return False

    async def count(self, **filters: Any) -> int:
        """How many runs `list` knows without a limit; a run that was reset counts each time."""
        async with clear_errors(self.where):
            return (await self.temporal.count_workflows(list_filter(**filters))).count

    async def list_page(
        self, query: str, size: int, token: bytes = b""
    ) -> tuple[tuple[RunLine, ...], bytes | None]:
        """One page of the runs that a visibility query finds, those under way first, then the newest; and
        the token of the next page, None at the end."""
        async with clear_errors(self.where):
            found = self.temporal.list_workflows(query, page_size=size, next_page_token=token or None)
            await found.fetch_next_page(page_size=size)
            return tuple([await line_of(run) for run in found.current_page or ()]), found.next_page_token

    async def inbox(self) -> tuple[RunLine, ...]:
        """Runs that wait for people, those that have waited longest first; one call, however many runs."""
        async with clear_errors(self.where):
            query = list_filter(running=True, waiting=True)
            lines = [await line_of(run) async for run in self.temporal.list_workflows(query)]
        return tuple(
            sorted(lines, key=lambda line: (line.waiting_since or line.started, line.started, line.id))
        )

    async def describe(self, run: str) -> RunLine:
        """What a list shows of one run."""
        return await line_of(await self.description(run))

    async def description(self, run: str) -> WorkflowExecutionDescription:
        """Temporal's description of a run's newest execution."""
        async with clear_errors(self.where, run):
            return await self.temporal.get_workflow_handle(run).describe()

    async def heartbeat(self, run: str) -> Heartbeat:
        """What the model says at this moment, or what fails; needs no query."""
        return await heartbeat_in(self.temporal, (await self.description(run)).raw_description)

    async def find(self, short: str, *, running: bool = False) -> str:
        """The id of a run: the whole id, or the beginning or end of exactly one.

        A run that only the archive knows is found by its whole id.

        Args:
            running: for a command that changes something; a run that is over is refused.

        Raises:
            UnknownRun: there is no such run.
            UsageError: there are several; they are named.
            Refused: the run is over.
        """
        if not short.strip():
            raise UsageError("the id of the run is empty; `ratchet list` shows the runs")
        try:
            line = await self.describe(short)
        except UnknownRun:
            if not running and await self.archive.records(short):
                return short
            line = await self.describe(await self._by_short_id(short, running))
        if running and line.progress != "running":
            raise Refused(
                f"run {line.id} is over ({line.exit_reason or line.progress}), so nothing was changed; "
                f"`ratchet show {line.id}` shows its result, and `ratchet fork` begins one of its steps again"
            )
        return line.id

    async def _by_short_id(self, short: str, every: bool) -> str:
        """A command that reads prefers a beginning to an end; one that changes something must be clear."""
        for prefix in ("",) if every else (short, ""):
            async with clear_errors(self.where):
                query = list_filter(prefix=prefix)
                ids = [run.id async for run in self.temporal.list_workflows(query)]
            if found := run_with_short_id(short, ids):
                return found
        raise UnknownRun(
            f"there is no run {short} at {self.where}, and no id begins or ends so; `ratchet list` shows "
            "the runs"
        )

    # -- what came out --------------------

    async def result(self, run: str) -> RunResult:
        """Wait until a run is over; what came out of it.

        Raises:
            RunFailed: the workflow failed, was terminated or timed out, so there is no result. A run whose
                workflow fails or is cancelled by choice has one; see `RunResult.raises` and `OnEnd`.
        """
        handle: WorkflowHandle[Any, RunResult] = self.temporal.get_workflow_handle(run, result_type=RunResult)
        try:
            async with clear_errors(self.where, run):
                return await handle.result()
        except WorkflowFailureError as error:
            found = _result_in(error)
            if isinstance(error.cause, CancelledError):
                async with clear_errors(self.where, run):
                    found = await (await handle.describe()).memo_value(
                        RESULT_KEY, default=None, type_hint=RunResult
                    )
            if found is None:
                raise run_failed(run, error) from error
            return found
        except UnknownRun:
            return await self._archived_result(run)

    # -- what a run says of itself --------------------

    async def status(self, run: str) -> RunStatus:
        """Where a run is."""
        if not await self.is_archived(run):
            with suppress(UnknownRun):
                status = await self.query(run, "status", RunStatus)
                beat = await self.heartbeat(run) if status.finished is None else Heartbeat()
                more = {"failing": beat.failure, "attempt": beat.attempt, "next_try": beat.next_try}
                return status.model_copy(update=more)
        result, records = await self._archived_result(run), await self.archive.records(run)
        common = {name: getattr(result, name) for name in RunStatus.model_fields if hasattr(result, name)}
        return (
            RunStatus(**common, visit=records[-1].visit, finished=records[-1].at)
            if records
            else RunStatus(**common)
        )

    async def records(self, run: str, since: int = 0, *, full: bool = False) -> tuple[Record, ...]:
        """All records of a run so far, from sequence number `since` on.

        Long values may be cut unless `full`, which needs the workers' store.
        """
        if not await self.is_archived(run):
            with suppress(UnknownRun):
                return (await self._live_records(run, since, full))[0]
        records = await self.archive.records(run)
        if not records:
            raise unknown_run(self.where, run)
        return tuple(record for record in records if record.seq >= since)

    async def steps(self, run: str) -> tuple[StepLine, ...]:
        """What a run did, one line for each step that holds."""
        from workflows.pages import steps_of

        return steps_of(await self.records(run))

    async def transcript(self, run: str, *, full: bool = False) -> tuple[Message, ...]:
        """The conversation with the model so far."""
        messages: tuple[Message, ...] = ()
        while True:
            query = PageQuery(since=len(messages), full=full)
            page = await self.query(run, "transcript", TranscriptPage, query)
            messages += page.messages
            if not page.messages or len(messages) >= page.total:
                return messages

    async def diagram(self, run: str) -> str:
        """The run's machine as a Mermaid diagram with the current state marked."""
        return await self.query(run, "diagram", str)

    async def query(
        self,
        run: str,
        name: str,
        kind: type[Q],
        query: BaseModel | None = None,
        *,
        seconds: float = QUERY_SECONDS,
    ) -> Q:
        """Ask a run; refused at once when there is no worker to answer.

        Raises:
            NoWorker: no worker polls, or none answered within `seconds`.
            MachineBug: a bug stops the run; the text has exception, file and line.
            StoreNotShared: the answer is long and lies in the workers' store, which cannot be read here.
        """
        await self._check_worker(run)
        handle = self.temporal.get_workflow_handle(run)
        inputs = [] if query is None else [query]
        timeout = timedelta(seconds=seconds)
        try:
            async with clear_errors(self.where, run):
                answer: Q = await handle.query(name, args=inputs, result_type=kind, rpc_timeout=timeout)
                return answer
        except WorkflowQueryFailedError as error:
            reason = str(error)
            if NONDETERMINISM in reason:
                await self._check_bug(run, reason)
            if reason == ENCODED:  # Temporal's SDK hands on no more of it
                if (await self.describe(run)).progress != "running":
                    await self.result(run)  # where the run failed, it says why
                reason = "the reason is encrypted; most likely the run has not begun yet, so try again"
            raise RatchetError(f"run {run} refused the query: {reason}") from error
        except NoWorker:
            await self._check_bug(run)
            raise

    async def _check_bug(self, run: str, text: str = "") -> None:
        """Raise MachineBug when a bug stops the run; `text` is what Temporal says, where it is known."""
        async with clear_errors(self.where, run):
            if bug := text or await bug_in(self.temporal, run):
                line = await self.describe(run)
                raise machine_bug(
                    run, bug, line.machine, line.state or await newest_state(self.temporal, run)
                )

    async def raise_on_bug(self, run: str) -> None:
        """Wait until a bug has stopped the run several times from now on; then raise MachineBug. Else never
        returns."""
        before: int | None = None
        while True:
            attempt = (await self.description(run)).raw_description.pending_workflow_task.attempt
            before = attempt if before is None or attempt < before else before
            if attempt > max(before, 1) + BUG_ATTEMPTS - 1:
                await self._check_bug(run)
            await asyncio.sleep(1)

    async def _check_worker(self, run: str) -> None:
        """Raise NoWorker; UnknownRun where that is the reason."""
        queue = (await self.description(run)).task_queue
        if not await self._is_polled(queue):
            raise no_worker(self.where, queue, embedded=self.ui is not None)

    # -- following --------------------

    async def watch(self, run: str, since: int = 0) -> AsyncGenerator[Record, None]:
        """Every record of a run as it happens, until the run is over; branches and all."""
        async with aclosing(self.batches(run, since)) as batches:
            async for records in batches:
                for record in records:
                    yield record

    async def batches(
        self, run: str, since: int = 0, *, seconds: float | None = None
    ) -> AsyncGenerator[tuple[Record, ...], None]:
        """The same; records that were there at once come together.

        It waits for the run's history, and asks for the log once each time the history has grown.

        Args:
            seconds: an empty batch comes whenever nothing has happened for so long.
        """
        if await self.is_archived(run) or await self._first_run_id(run) is None:
            yield await self.records(run, since)
            return
        await self._check_worker(run)
        async with Follower(self.temporal, run) as follower:
            over = False
            while not over:
                async with clear_errors(self.where, run):
                    if not await follower.news(seconds):
                        yield ()
                        continue
                over = follower.over  # noted before the log is read: what comes later is read then
                new, finished = await self._with_patience(run, since)
                if new:
                    yield new
                    since = new[-1].seq + 1
                over = over or finished

    async def _with_patience(self, run: str, since: int) -> tuple[tuple[Record, ...], bool]:
        """The new records; a worker that is away, or a bug that may be fixed by now, is waited for."""
        until = time.monotonic() + ABSENCE_SECONDS
        while True:
            try:
                return await self._live_records(run, since)
            except (MachineBug, NoWorker) as error:
                if isinstance(error, CodeChanged) or time.monotonic() > until:
                    raise
                await asyncio.sleep(1)

    async def _live_records(
        self, run: str, since: int, full: bool = False
    ) -> tuple[tuple[Record, ...], bool]:
        """The records from `since` on, and whether the run is over."""
        records: tuple[Record, ...] = ()
        while True:
            page = await self.query(run, "log", LogPage, PageQuery(since=since, full=full))
            if page.first > since:
                records += await self._earlier_records(run, since, page.first)
            records += page.records
            since = page.next
            if not page.records or page.next >= page.total:
                return records, page.finished

    # -- the archive, and what is not there --------------------

    async def is_archived(self, run: str) -> bool:
        """The archive has the end of this very run; of any run of that id, when Temporal knows none."""
        from activities.store.encryption import KeyMissing

        known = await self._first_run_id(run)
        try:
            result = await self.archive.result(run)
        except RatchetError as error:
            if known is None or isinstance(error.__cause__, KeyMissing):
                raise  # without its key the run cannot be read elsewhere, either
            return False  # a run that Temporal knows needs no archive
        return result is not None and known in {None, result.run_id}

    async def _first_run_id(self, run: str) -> str | None:
        """Temporal's id of a run's first execution; None: it does not know the run."""
        try:
            return (await self.description(run)).raw_info.first_run_id
        except UnknownRun:
            return None

    async def _archived_result(self, run: str) -> RunResult:
        """The result of a run that Temporal does not know, or that is over. Raises UnknownRun."""
        if result := await self.archive.result(run):
            return result
        if records := len(await self.archive.records(run)):
            raise UnknownRun(
                f"Temporal at {self.where} does not know run {run} any more, and the archive has its "
                f"beginning but not its end. `ratchet log {run}` shows the {records} records that there are"
            )
        raise unknown_run(self.where, run)

    async def _earlier_records(self, run: str, since: int, until: int) -> tuple[Record, ...]:
        """Records of executions before the present one: from the archive, else from Temporal's history.

        Raises:
            StoreNotShared: neither has all of them.
        """
        found: dict[int, Record] = {}
        with suppress(RatchetError):  # a damaged archive harms no run that the server knows
            found = by_number(await self.archive.records(run))
        if not found.keys() >= set(range(since, until)):
            async with clear_errors(self.where, run):
                found |= await recorded_log(self.temporal, await executions_of(self.temporal, run))
        missing = [seq for seq in range(since, until) if seq not in found]
        if missing:
            raise StoreNotShared(
                f"run {run} was continued with an empty history, and {len(missing)} of its earlier records "
                f"(from {missing[0]} on) are neither in the archive here nor in Temporal's history; name "
                f"the workers' directory with --data-dir, or read from record {missing[-1] + 1} on (--since)"
            )
        return tuple(found[seq] for seq in range(since, until))


def _result_in(error: WorkflowFailureError) -> RunResult | None:
    """The result that a run gives with its error."""
    cause = error.cause
    details = cause.details if isinstance(cause, ApplicationError) else ()
    if not details or not isinstance(details[0], dict) or "exit_reason" not in details[0]:
        return None
    return RunResult.model_validate(details[0])
