"""What is around a run in Temporal: clock, activities, search attributes, the next run of its chain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import is_cancelled_exception

from activities.contracts import Effect, ToolRun
from activities.contracts_people import Compensated, Notice, Noticed, Reconciled
from workflows.child import above, heard_above
from workflows.kernel.log import Record
from workflows.kernel.stack import Stack
from workflows.people import Command, DoneCall, Moment, Request
from workflows.perform import Performer
from workflows.retries import attempts_of
from workflows.where import Where

if TYPE_CHECKING:
    from workflows.agent import AgentWorkflow
    from workflows.loop import Loop

__all__ = ["Around", "cancelling", "now"]

_WAITING = SearchAttributeKey.for_keyword("AgentWaiting")
_SINCE = SearchAttributeKey.for_datetime("AgentWaitingSince")
_DEADLINE = SearchAttributeKey.for_datetime("AgentDeadline")
ASKS = "asks"
"""Memo: the open requests in short, for lists."""
LISTED = 5
"""Requests in the memo."""
ARGUMENTS = 2000
"""Characters of a request's arguments, as JSON, up to which the memo has them."""
NOTICE_SECONDS = 120
"""So long a notification may be tried; a run that has ended waits for it a few seconds only."""


def now() -> float:
    """The workflow's clock, in seconds since 1970."""
    return workflow.now().timestamp()


def cancelling() -> bool:
    """The run was asked to stop, also when a call ended before it noticed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Around:
    """The `World` of a run on Temporal."""

    def __init__(self, run: AgentWorkflow, performer: Performer) -> None:
        self._run, self._performer = run, performer
        self._shown = _there()
        self._notices: list[workflow.ActivityHandle[Any]] = []

    # -- time --------------------

    def now(self) -> float:
        """Seconds since 1970."""
        return now()

    def cancelling(self) -> bool:
        """Somebody has cancelled the workflow."""
        return cancelling()

    async def until(self, condition: Callable[[], bool], seconds: float | None, why: str) -> None:
        """Wait for it; a timer carries the reason in Temporal's UI."""
        if condition():
            return
        timeout = None if seconds is None else timedelta(seconds=max(seconds, 0.001))
        try:
            await workflow.wait_condition(condition, timeout=timeout, timeout_summary=why[:200] or None)
        except TimeoutError:
            return

    async def ended(self, task: asyncio.Future[Any]) -> None:
        """Wait until the task is done."""
        await workflow.wait([task])

    # -- performing --------------------

    async def perform(self, effect: Effect, where: Where, settled: MutableMapping[str, Any]) -> BaseModel:
        """As activities; a cancellation comes out as asyncio's own."""
        with _plainly():
            return await self._performer.perform(effect, where, settled)

    def stop_soon(self) -> bool:
        """Begin no further call; True while one is under way that must not be cut off."""
        return self._performer.tools.stop_soon()

    def under_way(self) -> tuple[str, ...]:
        """Activity ids of tool calls that have not ended."""
        return self._performer.tools.under_way()

    def in_doubt(self) -> str:
        """The unsafe ones, in words."""
        return self._performer.tools.in_doubt()

    def above(self) -> tuple[tuple[str, str], ...]:
        """The runs that this one is a child run of."""
        return above()

    def heard_above(self) -> tuple[str, ...]:
        """Commands that are not for this run."""
        return heard_above()

    def child_calls(self) -> tuple[DoneCall, ...]:
        """As its result told them."""
        return self._performer.children.take_calls()

    def child(self) -> str:
        """Workflow id of the child run under way."""
        return self._performer.children.at_work

    async def tell_child(self, command: Command) -> str:
        """By the signal `command`."""
        with _plainly():
            return await self._performer.children.tell(command)

    def key(self, where: Where, activity_id: str) -> str:
        """The idempotency key of a call."""
        return self._performer.key(where, activity_id)

    def effect_of(self, tool: str) -> str:
        """What it declares of a second run."""
        spec = self._performer.tools.specs.get(tool)
        return spec.effect if spec else "unsafe"

    def undoable(self, tool: str) -> bool:
        """It declares a compensation."""
        spec = self._performer.tools.specs.get(tool)
        return spec is not None and spec.compensates

    async def reconcile(self, run: ToolRun, where: Where, activity_id: str) -> Reconciled | None:
        """Ask the tool what became of a call."""
        with _plainly():
            return await self._performer.tools.reconcile(run, where, activity_id)

    async def compensate(self, call: DoneCall) -> Compensated:
        """Undo a call."""
        with _plainly():
            return await self._performer.tools.compensate(call)

    # -- the log --------------------

    async def log(self) -> Sequence[Record]:
        """The whole log; what an earlier run of the chain wrote comes from the archive.

        Raises ValueError when the archive lacks a part, or has another.
        """
        with _plainly():
            return await self._run.book.whole()

    def keep(self, stack: Stack) -> None:
        """Records, attributes and the text for Temporal's UI."""
        self._run.keep(stack)

    async def between(self) -> None:
        """Continue as new when the server suggests it."""
        loop = self._run.messages.loop
        if self.full() and loop is not None:
            await self.settle(lambda: bool(loop.inbox))
            if not loop.inbox:
                await self._run.continue_as_new(self._performer)

    def full(self) -> bool:
        """The server suggests to continue as new."""
        return workflow.info().is_continue_as_new_suggested()

    # -- people --------------------

    def waits(self, loop: Loop) -> None:
        """Search attributes and memo say what the run waits for; nothing is written that is there already."""
        desk = loop.desk
        waiting = desk.waiting or ("paused" if loop.paused else "")
        since = (desk.since if desk.waiting else now()) if waiting else None
        if waiting == self._shown[0] == "paused":
            since = self._shown[1]
        deadline = desk.deadline if waiting else None
        asks = json.dumps([_short(request) for request in desk.open[:LISTED]], ensure_ascii=False)
        found = (waiting, since, deadline, asks)
        if found == self._shown:
            return
        updates: list[SearchAttributeUpdate[Any]] = [
            _WAITING.value_set(waiting) if waiting else _WAITING.value_unset(),
            _SINCE.value_set(_moment(since)) if since is not None else _SINCE.value_unset(),
            _DEADLINE.value_set(_moment(deadline)) if deadline is not None else _DEADLINE.value_unset(),
        ]
        if found[:3] != self._shown[:3]:
            workflow.upsert_search_attributes(updates)
        if asks != self._shown[3]:
            workflow.upsert_memo({ASKS: json.loads(asks)})
        self._shown = found

    def notify(self, moment: Moment, request: Request) -> None:
        """The worker's hook, in the background."""
        notice = Notice(
            moment=moment,
            request=request.model_dump(mode="json"),
            run=request.run,
            agent=self._run.task.agent if self._run.task else "",
        )
        handle: workflow.ActivityHandle[Any] = workflow.start_activity(
            "notify",
            notice,
            result_type=Noticed,
            # A group may be asked twice while the first notice is still under way.
            activity_id=f"notify:{request.id}:{moment}:{len(request.escalate_to)}",
            summary=f"tell people: {request.id} {moment}",
            start_to_close_timeout=timedelta(seconds=60),
            schedule_to_close_timeout=timedelta(seconds=NOTICE_SECONDS),
            retry_policy=attempts_of(notice.attempts),
        )
        self._notices.append(handle)

    async def settle(self, stop: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait for the notifications under way, unless it is to stop, or so many seconds are over.

        One that failed is in the worker's log.
        """

        def done() -> bool:
            return stop() or all(handle.done() for handle in self._notices)

        while not done():
            try:
                await self.until(done, seconds, "people are told")
            except asyncio.CancelledError:
                continue
            break
        for handle in self._notices:
            if handle.done() and not handle.cancelled() and (failure := handle.exception()):
                text = str(failure.__cause__ or failure)
                workflow.logger.warning("agent.notify_failed", extra={"ratchet": {"error": text}})
        self._notices = [handle for handle in self._notices if not handle.done()]


@contextmanager
def _plainly() -> Iterator[None]:
    """Temporal's many kinds of cancellation come out as asyncio's own."""
    try:
        yield
    except BaseException as error:
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from error
        raise


def _there() -> tuple[Any, ...]:
    """What attributes and memo say already: Temporal hands them on when a run goes on as new."""
    found = workflow.info().typed_search_attributes
    since, deadline = found.get(_SINCE), found.get(_DEADLINE)
    asks = json.dumps(workflow.memo().get(ASKS, []), ensure_ascii=False, default=str)
    return (
        found.get(_WAITING) or "",
        since.timestamp() if since else None,
        deadline.timestamp() if deadline else None,
        asks,
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _short(request: Request) -> dict[str, Any]:
    """A request as a list shows it."""
    arguments = json.dumps(request.arguments, ensure_ascii=False)
    return {
        "id": request.id,
        "kind": request.kind,
        "text": request.text[:200],
        "tool": request.tool,
        "digest": request.digest,
        "options": list(request.options),
        "deadline": request.deadline,
        **({"arguments": request.arguments} if len(arguments) <= ARGUMENTS else {}),
    }
