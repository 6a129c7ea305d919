"""The worker of a command: who takes a new run, which runs it would continue, and what they need."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Never

from client.agents.catalog import Catalog, check_key
from client.cli.options import Starting
from client.cli.output import note
from client.errors import NoWorker, RatchetError, Unreadable, UsageError, clear_errors
from client.history.recorded import beginning_of
from client.runs.words import counted, one_line, plain
from client.server.connection import has_worker
from client.server.workerconfig import Allowed, recalled, remember, settings_from_environment
from workflows.temporal_names import TASK_QUEUE

if TYPE_CHECKING:
    from activities.settings import Settings
    from client.runs.listing import RunLine
    from client.sdk.agent import AgentClient
    from workflows.api import AgentTask

__all__ = [
    "OTHER_WORKERS", "WouldBreak", "check_worker", "continue_stopped", "continued", "own_worker",
    "remember_for_workers", "task_queue", "until_seen",
]  # fmt: skip

MAX_NAMED_RUNS = 10
"""Runs that a message names."""
LOOK_SECONDS = 3.0
"""How often `ratchet dev` looks for runs whose command has stopped."""
SEEN_SECONDS = 10
"""How long `dev` waits until the server knows its worker."""
OTHER_WORKERS = (
    "Stop the other worker, or start it with `ratchet dev --agent FILE` (elsewhere with RATCHET_MODULES); or "
    "use another directory with --data-dir."
)


def task_queue(client: AgentClient, starting: Starting, *, own: bool) -> str:
    """The task queue of a new run. At the embedded server a worker that runs for this run alone (`own`) has
    one of its own: on the shared one it would continue other runs of the directory, too."""
    alone = own and not starting.detach and client.ui is not None
    return f"{TASK_QUEUE}-{secrets.token_hex(4)}" if alone else TASK_QUEUE


async def check_worker(client: AgentClient, starting: Starting, *, own: bool) -> bool:
    """Whether some worker takes the run; `own`: one of this process may. Raises NoWorker when somebody would
    wait for it in vain."""
    found = (own and not starting.detach) or await client.has_worker()
    if not found and not starting.detach:
        raise NoWorker(
            f"no worker polls the task queue {TASK_QUEUE!r} at {client.where}, so nothing was started; start "
            "one with `python -m ratchet.worker`, or run one here with --worker"
        )
    return found


async def remember_for_workers(
    client: AgentClient, settings: Settings, allowed: Allowed, queue: str = TASK_QUEUE
) -> None:
    """Keep what later workers of this directory may load and reach.

    Raises:
        UsageError: a module cannot be loaded beside the others, or another worker of the queue lacks it and
            could take the run.
    """
    Catalog.load(settings)  # modules that clash are not remembered: every later command would fail
    known = (*recalled(settings.data_dir).modules, *settings_from_environment().modules)
    new = [module for module in allowed.modules if module not in known]
    if new and queue == TASK_QUEUE and client.ui is not None and await client.has_worker():
        raise UsageError(
            f"another worker of this directory would take the run, and it has not loaded {', '.join(new)}; "
            f"nothing was started. {OTHER_WORKERS} A worker that was killed counts for 90 seconds more."
        )
    remember(settings.data_dir, allowed)


@asynccontextmanager
async def own_worker(client: AgentClient, settings: Settings, queue: str = TASK_QUEUE) -> AsyncIterator[None]:
    """A worker in this process. On the queue that workers share it serves the directory's other runs, too:
    those that are not over are named first; elsewhere they are counted.

    Raises:
        UsageError: a run that this worker would continue needs a key or a module that it lacks.
    """
    lines: Sequence[RunLine] = () if client.ui is None else await client.list(running=True)
    queues = {queue}
    if queue != TASK_QUEUE:
        if lines:
            others = f"{counted(len(lines), 'other run')} of this directory"
            note(f"left alone: {others} not over; `ratchet list --running` shows what each waits for")
    else:
        lines = await continued(client, settings, lines)
        _name_unfinished(lines)
        queues |= {line.task_queue for line in lines}
    async with client.connection.working(*queues):
        yield


async def until_seen(client: AgentClient) -> None:
    """Other commands ask the server which workers there are; it hears of this one with its first poll."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SEEN_SECONDS):
            while not await has_worker(client.temporal):  # noqa: ASYNC110  # the server tells nobody
                await asyncio.sleep(0.05)


async def continue_stopped(client: AgentClient, settings: Settings) -> Never:
    """Continue runs whose own command stops, with a worker for the task queue of each; until cancelled.

    A command that was killed counts as running for 90 seconds more.
    """
    workers: dict[str, AsyncExitStack] = {}
    idle: set[str] = set()
    refused: set[str] = set()
    async with AsyncExitStack() as stack:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(RatchetError):  # without a server this command ends, too
                lines = await client.list(running=True) if client.ui else ()
                queues = {line.task_queue for line in lines}
                for queue in workers.keys() - queues:
                    await workers.pop(queue).aclose()
                before = idle
                async with clear_errors(client.where):
                    others = queues - refused - {*client.connection.queues}
                    idle = {queue for queue in others if not await has_worker(client.temporal, queue)}
                for queue in idle & before:  # at one look, the worker of a new run may not poll yet
                    stopped = [line for line in lines if line.task_queue == queue]
                    try:
                        await continued(client, settings, stopped)
                    except UsageError as error:
                        refused.add(queue)
                        note(str(error))
                        continue
                    _name_unfinished(stopped)
                    workers[queue] = await stack.enter_async_context(AsyncExitStack())
                    await workers[queue].enter_async_context(client.connection.working(queue))


class WouldBreak(UsageError):
    """A worker here would break runs that wait in this directory."""

    def __init__(self, problems: Mapping[str, Sequence[str]]) -> None:
        lines = [f"  {run}: {problem}" for run, found in problems.items() for problem in found]
        super().__init__(
            "a worker here would break runs that wait in this directory:\n"
            + "\n".join(lines)
            + "\nGive them what they need, end them with `ratchet cancel RUN`, or name another directory "
            "with --data-dir"
        )
        self.runs = tuple(problems)


async def continued(
    client: AgentClient, settings: Settings, lines: Iterable[RunLine], queues: Collection[str] = ()
) -> list[RunLine]:
    """The runs among these that a worker with these settings is to continue: all but those that it would
    break and that have a worker of their own. `queues` are served by the process that it replaces.

    Raises:
        WouldBreak: a run lacks something, and nobody else serves it.
    """
    catalog, own = Catalog.load(settings), {TASK_QUEUE, *queues}
    found: list[RunLine] = []
    broken: dict[str, list[str]] = {}
    for line in lines:
        problems = [one async for one in _problems(client, settings, catalog, line.id)]
        if not problems:
            found.append(line)
        elif line.task_queue in own or not await client.has_worker(line.id):
            broken[line.id] = problems
    if broken:
        raise WouldBreak(broken)
    return found


async def _problems(
    client: AgentClient, settings: Settings, catalog: Catalog, run: str
) -> AsyncIterator[str]:
    """Why this worker would break a run that waits."""
    extended = (await client.description(run)).raw_description.workflow_extended_info
    if extended.cancel_requested:
        return
    try:
        async with clear_errors(client.where, run):
            waiting = (await beginning_of(client.temporal, run)).task
    except Unreadable as error:
        yield str(error)
        return
    if waiting is not None:
        for problem in _lacking(waiting, catalog, settings):
            yield problem


def _lacking(task: AgentTask, catalog: Catalog, settings: Settings) -> Iterator[str]:
    """What a run needs and this worker lacks."""
    advice = "bring its file back, or name its module with --agent FILE or RATCHET_MODULES"
    if not any(machine.name == task.machine for machine in catalog.machines):
        yield f"there is no machine {task.machine}; {advice}"
    if missing := [name for name in task.tools if catalog.tool_problem(name)]:
        yield f"there is no tool {', '.join(missing)}; {advice}, or its MCP server with RATCHET_MCP"
    typed = recalled(settings.data_dir).openai_base_url
    server = os.environ.get("OPENAI_BASE_URL", "").strip()
    if any(typed and spec.base_url == typed != server for spec in task.models.values()):
        yield f"it was given the server {typed}; continue with `ratchet run --resume`"
    try:
        check_key(task.models)
    except UsageError as error:
        yield str(error)


def _name_unfinished(lines: Sequence[RunLine]) -> None:
    """Say which runs of the directory are not over, and that this worker continues them."""
    rows = [
        f"  {plain(line.id)}  agent {plain(line.agent)}: {one_line(line.goal, 60)}{plain(_waits(line))}"
        for line in lines[:MAX_NAMED_RUNS]
    ]
    if len(lines) > MAX_NAMED_RUNS:
        rows.append(f"  and {len(lines) - MAX_NAMED_RUNS} more: ratchet list --running")
    if rows:
        note("\n".join(["Not over in this directory, and continued by this worker:", *rows]))


def _waits(line: RunLine) -> str:
    """The state of a run; the command for one that only continues when a person acts."""
    if not line.waiting:
        return f"   in state {line.state}" if line.state else ""
    if line.waiting == "paused":
        return f"   paused: ratchet resume {line.id}"
    return f"   waits for a person ({line.waiting}): ratchet inbox {line.id}"
