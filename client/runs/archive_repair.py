"""Runs that ended while the archive was away: found in Temporal's list, and archived from their histories.

No run waits long for its archive. If it cannot be written, the run's history still has each part of the log
and the result, as input of an activity that failed, and Temporal lists the run as waiting for the archive.
Each worker looks for such runs of its task queue when it starts, and every half minute from then on. Several
workers may write the same run: the archive takes each part once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import structlog
from temporalio.api.history.v1 import History
from temporalio.client import Client, WorkflowExecution, WorkflowHistory

from activities.archiving import ArchiveActivities
from activities.contracts import ArchiveRequest, Frozen
from activities.store.encryption import KeyMissing, NotDecrypted
from client.errors import clear_errors
from client.history.recorded import archive_requests
from client.runs.attributes import line_of
from client.runs.listing import RunLine, list_filter, quoted
from client.runs.reader import RunReader
from workflows.api import FOR_ARCHIVE

__all__ = ["ArchiveProblem", "missing_ends", "repairing_archive"]

PAUSE_SECONDS = 30
"""Seconds between two looks at what waits for the archive."""

log = structlog.get_logger("ratchet")


class ArchiveProblem(Frozen):
    """What is wrong with the archive's log of one run."""

    run: str
    """The workflow id."""
    run_id: str
    """Of its first execution; with `~1`, `~2`, ... a chain that a reset replaced."""
    problem: str


@asynccontextmanager
async def repairing_archive(
    client: Client, queue: str, archiving: ArchiveActivities, pause: float = PAUSE_SECONDS
) -> AsyncIterator[None]:
    """During the body, write runs of a task queue to the archive if it lacks their end; `pause`: seconds
    between two looks."""
    watching = asyncio.create_task(_watch(client, queue, archiving, pause))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _watch(client: Client, queue: str, archiving: ArchiveActivities, pause: float) -> None:
    settled = set[str]()
    while True:
        try:
            await _repair_all(client, queue, archiving, settled)
        except Exception as error:  # noqa: BLE001  # the server may be away: the next look comes soon
            log.warning("archive.not_repaired", error=str(error))
        await asyncio.sleep(pause)


async def _repair_all(client: Client, queue: str, archiving: ArchiveActivities, settled: set[str]) -> None:
    """Archive what waits for it, what ended first first. Run ids that need no other look are noted: Temporal
    lists a run that is over as waiting for good."""
    wanted = f"TaskQueue = '{quoted(queue)}' AND AgentWaiting = '{FOR_ARCHIVE}' AND CloseTime IS NOT NULL"
    found = [run async for run in client.list_workflows(f"{list_filter()} AND {wanted}")]
    settled &= {run.run_id for run in found}
    for run in sorted(found, key=lambda run: run.close_time or datetime.now(UTC)):
        if run.run_id in settled:
            continue
        try:
            await _repair(client, run, archiving)
            settled.add(run.run_id)
        except Exception as error:  # noqa: BLE001  # whatever it is, the others go on, and this one next time
            log.warning("archive.not_repaired", workflow_id=run.id, run_id=run.run_id, error=str(error))
            if isinstance(error, KeyMissing | NotDecrypted):  # this process never can
                settled.add(run.run_id)


async def _repair(client: Client, run: WorkflowExecution, archiving: ArchiveActivities) -> None:
    """Archive a run that is over, where its end is missing."""
    if await asyncio.to_thread(archiving.archive.has_end, run.id, (await line_of(run)).log_head):
        return
    history, requests = await _recorded(client, run.id, run.run_id)
    if not await _is_newest(client, run, history):
        return  # it would take the place of the log that the reset run writes
    events = History(events=history.events).SerializeToString()
    for request in requests:
        await asyncio.to_thread(archiving.write, request, run.run_id, events)
    log.info("archive.repaired", workflow_id=run.id)


async def _recorded(
    client: Client, run: str, run_id: str
) -> tuple[WorkflowHistory, tuple[ArchiveRequest, ...]]:
    history = await client.get_workflow_handle(run, run_id=run_id).fetch_history()
    return history, await archive_requests(client, history)


async def _is_newest(client: Client, run: WorkflowExecution, history: WorkflowHistory) -> bool:
    """The run was not reset since it ended."""
    newest = await client.get_workflow_handle(run.id).describe()
    began = history.events[0].workflow_execution_started_event_attributes
    first = began.first_execution_run_id or began.original_execution_run_id
    return run.run_id == newest.run_id or first != newest.raw_info.first_run_id


async def missing_ends(runs: RunReader) -> AsyncIterator[ArchiveProblem]:
    """Runs that are over as Temporal knows, and whose end the archive lacks. Raises RatchetError."""
    ended = await runs.archive.ended()
    for line in await runs.lines():
        is_over = line.progress in {"completed", "failed", "cancelled"}
        if not is_over or (not line.log_head and line.id in ended):
            continue
        if line.log_head and await runs.archive.has_end(line.id, line.log_head):
            continue
        server = await runs.server()
        async with clear_errors(server.where, line.id):
            _, requests = await _recorded(server.temporal, line.id, line.run_id)
        for request in requests[-1:]:
            if request.result is not None:  # else it was refused before it began, and has no log
                yield ArchiveProblem(run=line.id, run_id=request.run_id, problem=_missing(line))


def _missing(line: RunLine) -> str:
    if line.log_head:
        return (
            f"the log of run {line.id} is not in the archive, which could not be written when the run ended. "
            f"A worker of task queue {line.task_queue} writes it there within a minute when the archive is "
            "back; else the worker's log says why (archive.not_repaired)"
        )
    return (
        f"the log of run {line.id} is not in the archive here, although Temporal knows that it was archived. "
        "Restore the archive from a backup, or name the workers' directory with --data-dir"
    )
