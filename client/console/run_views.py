"""What pages read of a run, each thing from where it can be had: the run, Temporal, the archive."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field, replace

from client.errors import RatchetError, RunFailed, StoreNotShared, UnknownRun
from client.history.checkpoints import Source
from client.runs.attributes import line_of
from client.runs.listing import RunLine, list_filter
from client.runs.pending import Heartbeat, heartbeat_in, with_heartbeat
from client.sdk.agent import AgentClient
from workflows.api import AgentTask, RunResult, RunStatus
from workflows.kernel.log import Checkpoint, Record, checkpoints

__all__ = ["RunView", "RunViews"]

MAX_CHILD_RUNS = 200
MAX_KEPT_RUNS = 30
"""Runs whose logs are kept in memory."""


@dataclass
class RunView:
    """One run as a page shows it."""

    id: str
    line: RunLine | None
    """None: only the archive knows it."""
    records: tuple[Record, ...] = ()
    status: RunStatus | None = None
    """None: no worker answers."""
    result: RunResult | None = None
    """Of a run that is over."""
    task: AgentTask | None = None
    children: tuple[RunLine, ...] = ()
    """Inner runs, however deep; their ids begin with its own."""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    problem: str = ""
    """Why something is missing."""

    @property
    def live(self) -> bool:
        """It is not over."""
        return self.line is not None and self.line.progress == "running"

    @property
    def listed(self) -> RunLine | None:
        """Its line, with whether it reached its goal."""
        return replace(self.line, ok=self.result.ok) if self.line and self.result else self.line

    @property
    def end(self) -> Checkpoint | None:
        """The end, where a fork may go on behind it."""
        return next((point for point in checkpoints(self.records) if point.is_end), None)

    @property
    def source(self) -> Source:
        """Its log and machine."""
        first = self.result.run_id if self.result else ""
        return Source(self.id, first, self.task, self.records)


@dataclass
class _Known:
    """What is kept of a run: none of it changes, and the log only grows."""

    execution: str
    length: int = -1
    """Of the history when the log was read last, without a failure."""
    task: AgentTask | None = None
    records: tuple[Record, ...] = ()
    replayed: tuple[Record, ...] = ()
    """Records after these, from a replay with today's code. A worker's answer replaces them."""
    result: RunResult | None = None
    status: RunStatus | None = None
    children: tuple[RunLine, ...] = ()
    problem: str = ""
    """Why status or result could not be read."""
    log_problem: str = ""


class RunViews:
    """Reads runs, and keeps what was read of the newest ones."""

    def __init__(self, agents: AgentClient) -> None:
        self._agents = agents
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def task(self, run: str) -> AgentTask | None:
        """What a run was started with; None when nobody knows it."""
        known = self._known.get(run)
        if known is not None and known.task is not None:
            return known.task
        with suppress(RatchetError):
            return await self._task(run)
        return None

    async def _task(self, run: str) -> AgentTask | None:
        try:
            return (await self._agents.beginning(run)).task
        except UnknownRun:
            return await self._agents.archive.task(run)

    async def view(self, run: str) -> RunView:
        """A run. Raises UnknownRun, and RatchetError where it cannot be read at all."""
        try:
            description = await self._agents.description(run)
        except UnknownRun:
            return await self._archived(run)
        view = RunView(run, await line_of(description))
        raw = description.raw_description
        known = self._remembered(run, description.run_id)
        if known.task is None:
            known.task = await self._task(run)
        is_new = known.length != description.history_length
        if view.live:
            view.heartbeat = await heartbeat_in(self._agents.temporal, raw)
            if is_new or known.status is None:
                await self._ask_status(run, known)
        elif known.result is None:
            await self._find_result(run, known)
        if is_new or raw.pending_children:
            found, _ = await self._agents.list_page(list_filter(prefix=f"{run}/"), MAX_CHILD_RUNS)
            known.children = tuple(line for line in found if line.progress != "continued")
        if is_new or (known.replayed and known.status is not None):  # a worker answers again
            await self._read_log(run, known, description.history_length)
        view.task, view.records, view.result = known.task, known.records + known.replayed, known.result
        view.status = with_heartbeat(known.status, view.heartbeat) if view.live and known.status else None
        view.children = known.children
        view.problem = "; ".join(filter(None, (known.problem, known.log_problem)))
        return view

    async def _ask_status(self, run: str, known: _Known) -> None:
        known.status = None
        try:
            known.status, known.problem = await self._agents.status(run), ""
        except RatchetError as error:
            known.problem = str(error)

    async def _find_result(self, run: str, known: _Known) -> None:
        try:
            known.result, known.problem = await self._agents.result(run), ""
        except RunFailed as error:
            known.problem = str(error)

    async def _read_log(self, run: str, known: _Known, length: int) -> None:
        """If it fails, the next look reads it again, also of a run that is over."""
        since, known.log_problem = len(known.records), ""
        try:
            found = await self._agents.log(run, since, full=True, partial=True)
            known.log_problem = found.problem
            # what code that fails cannot replay was read before
            known.replayed = found.records if found.unanswered and not (since and found.problem) else ()
            if not found.unanswered:
                known.records += found.records
        except StoreNotShared:
            with suppress(RatchetError):
                known.records, known.replayed = known.records + await self._agents.records(run, since), ()
        except RatchetError as error:
            known.log_problem = str(error)
            return
        known.length = length

    async def _archived(self, run: str) -> RunView:
        known = self._remembered(run, "")
        if known.result is None:
            known.result = await self._agents.result(run)
            known.records = await self._agents.archive.records(run)
            known.task = await self._agents.archive.task(run)
        return RunView(run, None, known.records, result=known.result, task=known.task)

    def _remembered(self, run: str, execution: str) -> _Known:
        known = self._known.pop(run, None)
        if known is None or known.execution != execution:  # reset, or continued as new
            known = _Known(execution)
        self._known[run] = known
        while len(self._known) > MAX_KEPT_RUNS:
            self._known.popitem(last=False)
        return known
