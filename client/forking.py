"""What `ratchet fork` does, from the step of a run to the last word of the new one."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass

import typer

from client.agent import AgentClient
from client.catalog import Catalog, check_key
from client.errors import NoWorker
from client.finding import find_any
from client.fork import Changes, effects, forked_task
from client.inboxview import effects_table
from client.place import INTERRUPTED, Place
from client.running import follow, naming_modules, own_worker, until_begun
from client.terminal import confirm
from client.view import notes, plain
from client.workerconfig import Allowed, remember
from workflows.api import TASK_QUEUE, AgentTask

__all__ = ["ForkOrder", "perform"]


@dataclass(frozen=True)
class ForkOrder:
    """One `ratchet fork`."""

    source: str
    step: int
    changes: Changes
    run_id: str | None
    yes: bool
    detach: bool
    worker: bool
    as_json: bool


async def perform(place: Place, order: ForkOrder) -> int:
    """Start the new run, show it until it is over; the exit code."""
    own = order.worker or place.remote() is None
    allowed, agent = Allowed(), None
    if order.changes.agent is not None:
        draft = order.changes.draft(None)
        agent = draft.finish()
        allowed = Allowed.of(agent.modules, agent.models.values())
    settings = place.worker_settings(allowed)
    if own and agent is not None:
        Catalog.load(settings).check(agent, draft)
    started: list[str] = []
    try:
        async with AsyncExitStack() as stack:
            agents = await stack.enter_async_context(place.client(settings))
            source = await find_any(agents, order.source)
            task = await forked_task(agents, source, order.step, order.changes)
            has_worker = (own and not order.detach) or await _has_worker(agents, order)
            await _agreed(agents, source, order)
            if own:
                check_key(task.models.values())
                remember(settings.data_dir, allowed)
            if own and not order.detach:
                await stack.enter_async_context(own_worker(agents, settings))
            if agent is not None:
                stack.enter_context(naming_modules(agent))
            return await _start(agents, task, order, started, has_worker=has_worker)
    except asyncio.CancelledError:
        if started:
            notes().print(f"interrupted; {started[0]} is kept. `ratchet run --resume` goes on with it")
        return INTERRUPTED


async def _agreed(agents: AgentClient, source: str, order: ForkOrder) -> None:
    """Say what may be done again, and ask where there is something. Raises NotConfirmed."""
    found = await effects(agents, source, order.step)
    if found.unknown:
        notes().print(
            plain(f"what was changed outside since step {order.step} is not known: {found.unknown}; ")
            + "the fork does it again if it comes to it"
        )
    if found.calls:
        notes().print(f"done since step {order.step} began; the fork does these again if it comes to them:")
        notes().print(effects_table(found.calls))
    if (found.calls or found.unknown) and not order.yes:
        await confirm(f"Fork {source} from step {order.step}?")


async def _has_worker(agents: AgentClient, order: ForkOrder) -> bool:
    """Whether one elsewhere would take the run. Raises NoWorker when somebody would wait for none."""
    has_worker = await agents.has_worker()
    if not has_worker and not order.detach:
        raise NoWorker(
            f"no worker polls the task queue {TASK_QUEUE!r} at {agents.where}, so nothing was "
            "started; start one with `python worker.py`, or run one here with --worker"
        )
    return has_worker


async def _start(
    agents: AgentClient, task: AgentTask, order: ForkOrder, started: list[str], *, has_worker: bool
) -> int:
    source = task.fork.origin.workflow_id if task.fork else order.source
    run_id = await agents.start(task, order.run_id)
    started.append(run_id)
    if order.detach:
        if has_worker:
            await until_begun(agents, run_id)
        typer.echo(json.dumps({"id": run_id}) if order.as_json else run_id)
        if not has_worker:
            notes().print("no worker runs; `ratchet run --resume` or `ratchet dev` goes on with it")
        return 0
    copied = len(task.fork.records) if task.fork else 0
    if not order.as_json:
        records = "1 record is" if copied == 1 else f"{copied} records are"
        notes().print(
            f"run {run_id}, from step {order.step} of {source}: {records} its source's; "
            f"`ratchet log {run_id}` shows them too. What came before the step is not paid for again; "
            "calls from there on are made anew"
        )
    return await follow(agents, run_id, as_json=order.as_json, since=copied)
