"""Temporal as the host of a run: clock, timers, activities, child workflows, what lists and the UI show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError
from temporalio import workflow
from temporalio.common import RawValue, SearchAttributeKey, SearchAttributeUpdate, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from activities.contracts import EffectFailed, Notice, NoticeMoment
from workflows.api import WORKFLOW_TYPE, AgentTask, RunResult
from workflows.engine.loop import Drive
from workflows.engine.waiting import wait_until_done
from workflows.hosts import CallAnswer, CallSite, ChildRun, HostCall, Identity
from workflows.hosts.activities import Performer, retries, until_done
from workflows.hosts.archive import RunLogWriter
from workflows.kernel.log import Record
from workflows.kernel.machine import state_name
from workflows.people import Command, Request
from workflows.queries import details
from workflows.temporal_names import REQUESTS_KEY

__all__ = ["TemporalHost", "identity", "now"]

_STATE = SearchAttributeKey.for_keyword("AgentState")
_WAITING = SearchAttributeKey.for_keyword("AgentWaiting")
_SINCE = SearchAttributeKey.for_datetime("AgentWaitingSince")
_DEADLINE = SearchAttributeKey.for_datetime("AgentDeadline")
_EXIT = SearchAttributeKey.for_keyword("AgentExit")
MAX_LISTED_REQUESTS = 5
"""Requests in the memo."""
MEMO_ARGUMENTS_CHARS = 2000
"""Characters of a request's arguments, as JSON, up to which the memo has them."""
NOTICE_SECONDS = 120
"""How long a notification is tried; a run that has ended waits for it a few seconds only."""
_PARENTS = "parents"
"""Memo of a child run: the runs above it, outermost first."""
_OLD_IDS = "old_command_ids"
"""Memo of a child run: signed commands that the runs above had accepted when it began."""
_RESET = "reset_since"
"""Memo of a child run: for its `Identity`."""
_RUNS: TypeAdapter[tuple[tuple[str, str], ...]] = TypeAdapter(tuple[tuple[str, str], ...])
_IDS: TypeAdapter[tuple[str, ...]] = TypeAdapter(tuple[str, ...])
_TIME: TypeAdapter[float | None] = TypeAdapter(float | None)
_NO_RUN = "ExternalWorkflowExecutionNotFound"


CLOCK_STEP = 1e-6
"""Seconds: more than a sum of two times can be off by rounding."""


def now() -> float:
    """The workflow's clock, in seconds since 1970."""
    return workflow.now().timestamp()


def identity(origin: str, reset_since: float | None) -> Identity:
    """Which run this is; the memo of a child run names those above it. A foreign memo counts as none."""
    memo = workflow.memo()
    try:
        parents, ids, above = (
            _RUNS.validate_python(memo.get(_PARENTS, ())),
            _IDS.validate_python(memo.get(_OLD_IDS, ())),
            _TIME.validate_python(memo.get(_RESET)),
        )
    except ValidationError:
        parents, ids, above = (), (), None
    since = reset_since if above is None else above
    return Identity(workflow.info().workflow_id, origin, parents, ids, since)


class TemporalHost:
    """The `Host` of a run on Temporal; `continue_as_new` continues it as a new execution."""

    def __init__(
        self,
        task: AgentTask,
        performer: Performer,
        log: RunLogWriter,
        continue_as_new: Callable[[], Awaitable[None]],
    ) -> None:
        self.drive: Drive | None = None
        """The run that it serves; set once it is made."""
        self.log_writer = log
        self._task, self._performer, self._continue_as_new = task, performer, continue_as_new
        self._children: dict[str, workflow.ChildWorkflowHandle[Any, RunResult] | None] = {}
        """Inner runs under way; None while one is being started."""
        self._notices: list[workflow.ActivityHandle[Any]] = []
        self._shown = _published()
        self._state, self._ended, self._waited = "", False, False
        self._details_due = False
        self._reached = 0.0
        """The latest time that a timer has said has come."""

    # -- time ---------------------------------------------------------------------------------------

    def now(self) -> float:
        """See `Host`. A timer that has fired says that its time has come, whatever the workflow's clock
        shows: a worker that sees a run for the first time, after a task that timed out, may be told of the
        timer with the clock of the task before. A replay is told the right one, and would go another way."""
        return max(now(), self._reached)

    def cancelled(self) -> bool:
        """Somebody has cancelled the workflow."""
        return workflow.cancellation_reason() is not None

    @property
    def is_full(self) -> bool:
        """The server suggests to continue as new."""
        return workflow.info().is_continue_as_new_suggested()

    async def wait(self, condition: Callable[[], bool], seconds: float | None, why: str) -> None:
        """A timer carries the reason in Temporal's UI."""
        timeout = None if seconds is None else timedelta(seconds=max(seconds, 0.001))
        was_full, until = self.is_full, self.now() + max(seconds or 0, 0.001)
        try:
            await workflow.wait_condition(
                lambda: condition() or (self.is_full and not was_full),
                timeout=timeout,
                timeout_summary=why[:200] or None,
            )
        except TimeoutError:
            self._reached = max(self._reached, until + CLOCK_STEP)

    @property
    def may_change_build(self) -> bool:
        """Workers of another build take runs now, and this one stands where another version of its machine
        can go on: before a step, with nothing asked of people."""
        if self.drive is None or not workflow.info().is_target_worker_deployment_version_changed():
            return False
        snapshot, machine = self.drive.run.suspension.snapshot, self.drive.run.suspension.program.machine
        is_begun = bool(snapshot.moments or snapshot.calls or snapshot.interrupted)
        at_step = machine.step is None or snapshot.state == state_name(machine.step)
        return at_step and not is_begun and not self.drive.run.requests.open_requests

    async def between(self) -> None:
        """Continue as new when the server suggests it, or workers of another build take the run over."""
        if (self.is_full or self.may_change_build) and self.drive is not None:
            await self.end_notices(lambda: bool(self.drive and self.drive.run.queue))
            if not self.drive.run.queue:
                await self._continue_as_new()

    # -- performing ---------------------------------------------------------------------------------

    async def perform(self, call: HostCall, site: CallSite) -> CallAnswer:
        """As an activity."""
        with _plain_cancellation():
            return await self._performer.perform(call, site)

    async def describe_tools(self) -> None:
        """Learn the specs of the run's tools. Raises InvalidTask."""
        await self._performer.describe_tools()

    def stop_early_questions(self) -> None:
        """Where the activity runs in this process; elsewhere it ends by itself."""
        self._performer.stop_early_questions()

    async def run_child(self, child: ChildRun) -> RunResult | EffectFailed:
        """As a child workflow."""
        seconds = child.task.limits.seconds
        # One that people can be asked in may wait longer; it keeps its own limit.
        limited = seconds is not None and child.task.people.unattended
        same_id = WorkflowIDReusePolicy.ALLOW_DUPLICATE
        if child.reset_since is not None:  # the one from before the reset may still run
            same_id = WorkflowIDReusePolicy.TERMINATE_IF_RUNNING
        memo = {_PARENTS: child.parents, _OLD_IDS: child.old_command_ids, _RESET: child.reset_since}
        self._children[child.workflow_id] = None
        try:
            with _plain_cancellation():
                handle = await _started(
                    workflow.start_child_workflow(
                        WORKFLOW_TYPE,
                        child.task,
                        id=child.workflow_id,
                        id_reuse_policy=same_id,
                        result_type=RunResult,
                        cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                        parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                        execution_timeout=timedelta(seconds=(seconds or 0) + 60) if limited else None,
                        static_summary=child.title[:200],
                        memo=memo,
                    )
                )
            self._children[child.workflow_id] = handle
            return await handle
        except WorkflowAlreadyStartedError:
            text = f"a run {child.workflow_id} exists already; end it, or start this run under another id"
            return EffectFailed(error="fatal", type="child_exists", message=text)
        except ChildWorkflowError as error:
            return _failed_child(child, error)
        finally:
            del self._children[child.workflow_id]

    async def tell_child(self, workflow_id: str, command: Command) -> bool:
        """By the signal `command`."""
        await workflow.wait_condition(lambda: self._children.get(workflow_id, False) is not None)
        handle = self._children.get(workflow_id)
        if handle is None:
            return False
        try:
            with _plain_cancellation():
                await handle.signal("command", command)
        except ApplicationError as error:
            if error.type == _NO_RUN:
                return False
            raise ValueError(f"inner run {workflow_id} cannot be told: {error}") from error
        return True

    async def log(self) -> Sequence[Record]:
        """What an earlier execution wrote comes from the archive."""
        with _plain_cancellation():
            return await self.log_writer.whole()

    # -- what people see ----------------------------------------------------------------------------

    def publish(self, records: Sequence[Record]) -> None:
        """Records into the log; attributes, memo and the text for Temporal's UI."""
        self.log_writer.records.extend(records)
        drive = self.drive
        ended = drive is not None and drive.run.suspension.exit is not None
        author_line = drive.run.suspension.author_line if drive is not None else ""
        broke = (
            next((record for record in records if record.error), records[-1])
            if author_line and records
            else None
        )
        for record in records:
            is_end = record.seq == 0 or (ended and record is records[-1])
            if is_end or record.error is not None or record.by != "machine" or record is broke:
                # For operators, who see each call there already; the run's own log has everything.
                fields = {name: getattr(record, name) for name in ("step", "state", "event", "to", "error")}
                if record is broke:
                    fields["place"] = author_line
                workflow.logger.info("agent.transition", extra={"ratchet": fields})
        if drive is None:
            return
        self._publish_state(drive)
        self._publish_waiting(drive)
        waits = bool(drive.run.paused or drive.run.requests.open_requests)
        # in a replay only what may be asked for after it
        is_read = waits or self._waited or drive.run.suspension.exit is not None
        if records and (is_read or not workflow.unsafe.is_replaying()):
            self._waited = waits
            if not self._details_due:  # once for all that happens at once: a thousand messages, say
                self._details_due = True
                asyncio.get_running_loop().call_soon(self._publish_details, drive)

    def _publish_details(self, drive: Drive) -> None:
        self._details_due = False
        text = details(
            drive.status(), self._task.goal, self.log_writer.records, drive.run.requests.open_requests
        )
        workflow.set_current_details(text)

    def _publish_state(self, drive: Drive) -> None:
        updates: list[SearchAttributeUpdate[Any]] = []
        state, exit_ = drive.run.suspension.snapshot.state, drive.run.suspension.exit
        if self._task.visibility == "state" and state != self._state:
            updates.append(_STATE.value_set(state))
            self._state = state
        if exit_ and not self._ended:
            self._ended = True
            updates.append(_EXIT.value_set(exit_.reason))
        if updates:
            workflow.upsert_search_attributes(updates)

    def _publish_waiting(self, drive: Drive) -> None:
        """What the run waits for; nothing is written that is there already."""
        requests = drive.run.requests.open_requests
        waiting = requests[0].kind if requests else "paused" if drive.run.paused else ""
        since = requests[0].created if requests else now() if waiting else None
        deadline = min((one.deadline for one in requests if one.deadline is not None), default=None)
        if waiting == self._shown[0] == "paused":
            since = self._shown[1]
        short = [_short(request) for request in requests[:MAX_LISTED_REQUESTS]]
        shown = (waiting, since, deadline, json.dumps(short, ensure_ascii=False))
        if shown == self._shown:
            return
        if shown[:3] != self._shown[:3]:
            workflow.upsert_search_attributes([
                _WAITING.value_set(waiting) if waiting else _WAITING.value_unset(),
                _SINCE.value_set(_moment(since)) if since is not None else _SINCE.value_unset(),
                _DEADLINE.value_set(_moment(deadline)) if deadline is not None else _DEADLINE.value_unset(),
            ])  # fmt: skip
        if shown[3] != self._shown[3]:
            workflow.upsert_memo({REQUESTS_KEY: short})
        self._shown = shown

    def notify(self, moment: NoticeMoment, request: Request) -> None:
        """The worker's hook, in the background."""
        notice = Notice(
            moment=moment, request=request.model_dump(mode="json"), run=request.run, agent=self._task.name
        )
        handle: workflow.ActivityHandle[Any] = workflow.start_activity(
            "notify",
            notice,
            result_type=RawValue,  # whoever completes it, with whatever
            # A group may be asked twice while the first notice is still under way.
            activity_id=f"notify:{request.id}:{moment}:{len(request.escalate_to)}",
            summary=f"tell people: {request.id} {moment}",
            start_to_close_timeout=timedelta(seconds=60),
            schedule_to_close_timeout=timedelta(seconds=NOTICE_SECONDS),
            retry_policy=retries(notice.attempts),
        )
        self._notices.append(handle)

    async def end_notices(
        self, stop: Callable[[], bool] = lambda: False, seconds: float | None = None
    ) -> None:
        """Wait for the notifications under way, until `stop` holds or the time is over. One that failed is in
        the worker's log."""

        def is_done() -> bool:
            return stop() or all(handle.done() for handle in self._notices)

        async def wait() -> None:
            timeout = None if seconds is None else timedelta(seconds=seconds)
            await workflow.wait_condition(is_done, timeout=timeout, timeout_summary="people are notified")

        with suppress(TimeoutError):
            await wait_until_done(is_done, wait)
        for handle in self._notices:
            if handle.done() and not handle.cancelled() and (failure := handle.exception()):
                text = str(failure.__cause__ or failure)
                workflow.logger.warning("agent.notify_failed", extra={"ratchet": {"error": text}})
        self._notices = [handle for handle in self._notices if not handle.done()]


@contextmanager
def _plain_cancellation() -> Iterator[None]:
    """Temporal's kinds of cancellation come out as asyncio's own."""
    try:
        yield
    except BaseException as error:
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from error
        raise


async def _started(
    starting: Coroutine[Any, Any, workflow.ChildWorkflowHandle[Any, RunResult]],
) -> workflow.ChildWorkflowHandle[Any, RunResult]:
    """The inner run once it is started. When cancelled it is started all the same, and cancelled then: of one
    whose start is cancelled with the workflow, Temporal does not wait for the end."""
    start = asyncio.ensure_future(starting)
    if await until_done(start) and not start.cancelled():
        start.result().cancel()
    return start.result()


def _failed_child(child: ChildRun, error: ChildWorkflowError) -> RunResult | EffectFailed:
    """A child that fails brings its whole result with the error, if it could. Of one that was terminated or
    timed out nothing is known."""
    cause = error.cause
    details: Any = cause.details[0] if isinstance(cause, ApplicationError) and cause.details else None
    if isinstance(details, dict):
        return RunResult.model_validate(details)
    kind = cause.type if isinstance(cause, ApplicationError) and cause.type else type(cause).__name__
    text = f"{child.workflow_id}: {cause or error}"
    refused = isinstance(cause, ApplicationError)
    return EffectFailed(error="fatal" if refused else "unknown_outcome", type=kind, message=text)


def _published() -> tuple[Any, ...]:
    """What attributes and memo say already: Temporal hands them on when a run continues as new."""
    found = workflow.info().typed_search_attributes
    since, deadline = found.get(_SINCE), found.get(_DEADLINE)
    requests = json.dumps(workflow.memo().get(REQUESTS_KEY, []), ensure_ascii=False, default=str)
    return (
        found.get(_WAITING) or "",
        since.timestamp() if since else None,
        deadline.timestamp() if deadline else None,
        requests,
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _short(request: Request) -> dict[str, Any]:
    """A request as a list shows it."""
    arguments = json.dumps(request.arguments, ensure_ascii=False)
    short: dict[str, Any] = {
        "id": request.id,
        "kind": request.kind,
        "text": request.text[:200],
        "tool": request.tool,
        "digest": request.digest,
        "options": list(request.options),
        "deadline": request.deadline,
    }
    if request.group is not None:
        short |= {
            "group": request.group,
            "approvers": list(request.approvers[:MAX_LISTED_REQUESTS]),
            "quorum": request.quorum,
            "signed": request.signed,
        }
    if request.bound is not None:
        short["because"] = request.bound.passed_text
    if request.labels:
        short["holds"] = list(request.holds)
    return {**short, "arguments": request.arguments} if len(arguments) <= MEMO_ARGUMENTS_CHARS else short
