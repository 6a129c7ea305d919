"""Reads runs from a server and its workers: lists, status, logs, results, and a run as it happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Any, TypeVar, Unpack

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
from client.errors import (
    NONDETERMINISM,
    CodeChanged,
    MachineBug,
    NoWorker,
    RatchetError,
    RunNotBegun,
    StoreNotShared,
    TaskFails,
    UnknownRun,
    UsageError,
    WorkersBusy,
    clear_errors,
    machine_bug,
    no_worker,
    run_failed,
)
from client.history.recorded import (
    Beginning,
    Execution,
    beginning_of,
    by_number,
    executions_of,
    recorded_calls,
    recorded_log,
)
from client.runs.archived import ArchivedRuns
from client.runs.attributes import line_of, newest_runs
from client.runs.follow import Follower
from client.runs.listing import Filter, RunLine, list_filter
from client.runs.pending import Heartbeat, bug_in, has_begun, heartbeat_in, newest_state, with_heartbeat
from client.runs.reader import RunLog, RunReader
from client.server.connection import Connection, has_worker
from client.server.workerconfig import register_modules
from workflows.api import (
    RESULT_KEY,
    TASK_QUEUE,
    LogPage,
    PageQuery,
    ResultPage,
    RunResult,
    RunStatus,
    TranscriptPage,
)
from workflows.kernel.log import Record

__all__ = ["ConnectedReader"]

Q = TypeVar("Q")
BUG_ATTEMPTS = 2
"""Failed workflow tasks after which a run counts as stopped by a bug."""
BUG_SECONDS = 10
"""How long `watch` waits for a worker with mended code where a bug stops a run."""
QUERY_SECONDS = 15
BEGIN_SECONDS = 0.1
"""Between two queries to a run that has not begun."""
ABSENCE_SECONDS = 60
"""How long `watch` waits for a worker that went away in the middle of a run."""


class ConnectedReader(RunReader):
    """A reader that is connected to a server: the part of `AgentClient` that changes nothing.

    `live_result`, `live_status` and `live_records` ask the run itself, whatever the archive has.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(
            ArchivedRuns(lambda: connection.stores.archive),
            connection.where,
            connect=self.server,
            modules=lambda: connection.settings.modules,
        )
        self.connection, self.settings = connection, connection.settings

    async def server(self) -> ConnectedReader:
        """See `RunReader`."""
        return self

    @property
    def temporal(self) -> Client:
        """Temporal's own client."""
        return self.connection.temporal

    @property
    def ui(self) -> str | None:
        """Address of Temporal's Web UI; known of the embedded server only."""
        return self.connection.ui

    async def has_worker(self, run: str | None = None) -> bool:
        """A worker polls the task queue of this run; default: the one that all share."""
        return await self.is_polled(TASK_QUEUE if run is None else (await self.description(run)).task_queue)

    async def is_polled(self, queue: str) -> bool:
        """A worker polls this task queue."""
        if queue in self.connection.queues:
            return True
        async with clear_errors(self.where):
            return await has_worker(self.temporal, queue)

    # -- lists: no worker is needed --------------------

    async def lines(self, limit: int | None = None, **wanted: Unpack[Filter]) -> Sequence[RunLine]:
        """See `RunReader`; few are fetched where few are wanted."""
        async with clear_errors(self.where):
            return [await line_of(run) for run in await newest_runs(self.temporal, limit, **wanted)]

    async def count(self, **wanted: Unpack[Filter]) -> int:
        """See `RunReader`."""
        async with clear_errors(self.where):
            return (await self.temporal.count_workflows(list_filter(**wanted))).count

    async def list_page(
        self, query: str, size: int, token: bytes = b""
    ) -> tuple[tuple[RunLine, ...], bytes | None]:
        """One page of the runs that a visibility query finds, those under way first, then the newest; and
        the token of the next page, None at the end."""
        async with clear_errors(self.where):
            found = self.temporal.list_workflows(query, page_size=size, next_page_token=token or None)
            await found.fetch_next_page(page_size=size)
            return tuple([await line_of(run) for run in found.current_page or ()]), found.next_page_token

    async def describe(self, run: str) -> RunLine:
        """What a list shows of one run."""
        return await line_of(await self.description(run))

    async def description(self, run: str) -> WorkflowExecutionDescription:
        """Temporal's description of a run's newest execution."""
        async with clear_errors(self.where, run):
            return await self.temporal.get_workflow_handle(run).describe()

    async def beginning(self, run: str) -> Beginning:
        """How the newest execution of a run began."""
        async with clear_errors(self.where, run):
            return await beginning_of(self.temporal, run)

    async def heartbeat(self, run: str) -> Heartbeat:
        """What the model says at this moment, or what fails; needs no query."""
        return await heartbeat_in(self.temporal, (await self.description(run)).raw_description)

    async def first_run_id(self, run: str) -> str | None:
        """See `RunReader`."""
        try:
            return (await self.description(run)).raw_info.first_run_id
        except UnknownRun:
            return None

    # -- what came out --------------------

    async def result(self, run: str) -> RunResult:
        """Wait until a run is over; what came out of it. See `RunReader`.

        The archive has the end of a run a moment before Temporal: a worker must not be stopped in between.
        """
        try:
            return await self.live_result(run)
        except UnknownRun:
            return await self._archived_result(run)

    async def live_result(self, run: str) -> RunResult:
        """The same, by Temporal and the run itself."""
        found = await self._given_result(run)
        if not found.cut:
            return found
        try:
            return await self._whole(run, found)
        except RatchetError as error:  # no worker, or a bug
            return found.model_copy(update={"cut": f"{found.cut}. They could not do so here: {error}"})

    async def _given_result(self, run: str) -> RunResult:
        """The result as Temporal's history has it."""
        handle: WorkflowHandle[Any, RunResult] = self.temporal.get_workflow_handle(run, result_type=RunResult)
        try:
            async with clear_errors(self.where, run):
                found: RunResult | None = await handle.result()
        except WorkflowFailureError as error:
            found = _result_in(error)
            if isinstance(error.cause, CancelledError):
                async with clear_errors(self.where, run):
                    found = await (await handle.describe()).memo_value(
                        RESULT_KEY, default=None, type_hint=RunResult
                    )
            if found is None:
                raise run_failed(run, error) from error
        assert found is not None
        return found

    async def _whole(self, run: str, cut: RunResult) -> RunResult:
        """The result that is cut in Temporal's history: from the archive, else by the run's own word. Raises
        as `query`."""
        with suppress(RatchetError):  # an archive that is damaged or away
            archived = await self.archive.result(run)
            if archived is not None and archived.log_head == cut.log_head:
                return archived
        text = ""
        while True:
            page = await self.query(run, "result", ResultPage, PageQuery(since=len(text)))
            text += page.text
            if not page.text or page.next >= page.total:
                return RunResult.model_validate_json(text)

    # -- what a run says of itself --------------------

    async def live_status(self, run: str) -> RunStatus:
        """Where a run is, by its own word; and what fails and is tried again. Raises as `query`."""
        status = await self.query(run, "status", RunStatus)
        return status if status.finished else with_heartbeat(status, await self.heartbeat(run))

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
        """Ask a run; refused at once when there is no worker to answer. One that has just been started is
        waited for.

        Raises:
            NoWorker: no worker polls, or none answered within `seconds`; then it is `WorkersBusy`.
            RunNotBegun: the run did not begin within `seconds`.
            RunRefused: it cannot begin.
            MachineBug: a bug stops the run; the text has exception, file and line.
            StoreNotShared: the answer is long and lies in the workers' store, which cannot be read here.
        """
        await self._check_worker(run)
        handle = self.temporal.get_workflow_handle(run)
        inputs = [] if query is None else [query]
        until = time.monotonic() + seconds
        had_begun = False
        while True:
            timeout = timedelta(seconds=max(until - time.monotonic(), 1))
            try:
                async with clear_errors(self.where, run, query=True):
                    answer: Q = await handle.query(name, args=inputs, result_type=kind, rpc_timeout=timeout)
                    return answer
            except WorkflowQueryFailedError as error:
                if had_begun:  # before it was asked, so the code fails where the run is replayed
                    hidden = f"its code fails; the reason is encrypted: `ratchet log {run}` tells it"
                    await self._check_bug(run, hidden if str(error) == ENCODED else str(error))
                had_begun = await self._check_begins(run, error, is_late=time.monotonic() > until)
            except NoWorker as error:
                await self._check_bug(run)
                if isinstance(error, WorkersBusy):
                    raise
                if not isinstance(error, TaskFails) or not await self.has_worker(run):
                    raise await self._no_worker(run) from error
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(BEGIN_SECONDS)

    async def _check_begins(self, run: str, error: WorkflowQueryFailedError, *, is_late: bool) -> bool:
        """Return when a run that refused a query may answer soon, and whether it has begun by now. What the
        SDK asks, a run refuses only before it has begun; Temporal's SDK hands on no type of the refusal, and
        of an encrypted one no text.
        """
        reason = str(error)
        if NONDETERMINISM in reason:
            await self._check_bug(run, reason)
        elif (await self.describe(run)).progress != "running":
            await self._given_result(run)  # where the run failed, it says why
        elif await self._has_begun(run):
            return True
        elif not is_late:
            return False
        else:
            why = "it waits for its workers to describe its tools" if reason == ENCODED else reason
            raise RunNotBegun(
                f"run {run} has not begun yet, so it answers no query: {why}; try again, or see what it "
                f"waits for with `ratchet watch {run}`"
            ) from error
        raise RatchetError(f"run {run} refused the query: {reason}") from error

    async def _has_begun(self, run: str) -> bool:
        async with clear_errors(self.where, run):
            return await has_begun(self.temporal, run)

    async def _check_bug(self, run: str, text: str = "") -> None:
        """Raise MachineBug when a bug stops the run; `text` is what Temporal says, where it is known."""
        async with clear_errors(self.where, run):
            if bug := text or await bug_in(self.temporal, run):
                line = await self.describe(run)
                raise machine_bug(
                    run, bug, line.machine, line.state or await newest_state(self.temporal, run)
                )

    async def bug(self, run: str) -> MachineBug | None:
        """The bug that stops a run; None: it answers, so none does. A run that only waits has no task that
        could fail, so its worker is asked to replay it.

        Raises:
            NoWorker: it has no worker that could say so; or whatever else `query` raises.
        """
        try:
            if (await self.description(run)).raw_description.pending_workflow_task.attempt > 1:
                await self._check_bug(run)
            await self.query(run, "status", RunStatus)
        except MachineBug as error:
            return error
        return None

    async def raise_on_bug(self, run: str) -> None:
        """Wait until a bug has stopped the run several times from now on, then raise MachineBug; it never
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
        if not await self.has_worker(run):
            raise await self._no_worker(run)

    async def _no_worker(self, run: str) -> NoWorker:
        """The error for a run that no worker serves."""
        queue = (await self.description(run)).task_queue
        return no_worker(self.where, queue, embedded=self.ui is not None)

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
        if await self.is_archived(run) or await self.first_run_id(run) is None:
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
        began = time.monotonic()
        while True:
            try:
                return await self.live_records(run, since)
            except (MachineBug, RunNotBegun, NoWorker) as error:
                patience = BUG_SECONDS if isinstance(error, MachineBug) else ABSENCE_SECONDS
                if isinstance(error, CodeChanged) or time.monotonic() > began + patience:
                    raise
                await asyncio.sleep(1)

    async def live_records(self, run: str, since: int, full: bool = False) -> tuple[tuple[Record, ...], bool]:
        """The records from `since` on, and whether the run is over. Raises as `query`."""
        records: tuple[Record, ...] = ()
        while True:
            page = await self.query(run, "log", LogPage, PageQuery(since=since, full=full))
            if page.first > since:
                records += await self._earlier_records(run, since, page.first)
            records += page.records
            since = page.next
            if not page.records or page.next >= page.total:
                return records, page.finished

    async def history_log(
        self, run: str, modules: Sequence[str], unanswered: RatchetError, *, partial: bool
    ) -> RunLog:
        """The log from Temporal's history: as the run has sent it to the archive when it was over, else as
        today's code writes it in a replay. Where that cannot write all of it, `problem` says why.

        Args:
            unanswered: why the run itself does not say it.
            partial: calls that no record knows are added as the history has them.
        """
        async with clear_errors(self.where, run):
            executions = await executions_of(self.temporal, run)
            sent = await recorded_log(self.temporal, executions)
        if executions[-1].ended and sent and [*sent] == [*range(len(sent))]:
            return RunLog(tuple(sent.values()), unanswered)
        known, problem, is_whole = await self._replayed_log(executions, modules)
        problem = "" if is_whole and not partial else problem
        found = by_number(sent.values(), known)
        records, beginning = tuple(found[seq] for seq in sorted(found)), ""
        if executions[0].beginning.continues:
            beginning = "Temporal has the run's later executions only"
        async with clear_errors(self.where, run):
            calls = await recorded_calls(self.temporal, executions, records) if partial and problem else ()
        if problem:
            replays = f"this run to record {records[-1].seq}" if records else "nothing of this run"
            which = "the calls after it" if records else "its calls"
            stand = f"; {which} stand here as its history has them" if calls else ""
            problem = f"its code replays {replays}{stand}: {problem}"
        return RunLog(records + calls, unanswered, "; ".join(filter(None, (beginning, problem))))

    async def _replayed_log(
        self, executions: Sequence[Execution], modules: Sequence[str]
    ) -> tuple[tuple[Record, ...], str, bool]:
        """The log that today's code writes, why it does not go on from there, and whether that is all there
        is: where the newest workflow task alone fails, nothing has come of that."""
        # it brings the engine and all machines, and few runs need it
        from client.history.replayer import explained, plugin_with, replayed

        problem = ""
        try:
            register_modules(modules)
        except UsageError as error:  # a machine that is elsewhere can be replayed without
            problem, modules = str(error), ()
        plugin = plugin_with(self.temporal, modules)
        logs = [await replayed(plugin, execution.history) for execution in executions]
        failed = next((log for log in logs if log.failure or log.bug), None)
        problem = (problem or explained(failed)) if failed else ""
        is_whole = not any(log.failure for log in logs)
        return tuple(record for log in logs for record in log.sure_records), problem, is_whole

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
