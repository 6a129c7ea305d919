"""What `ratchet run` and `ratchet dev` do, from the choice of an agent to its last word."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace

import typer

from activities.settings import Settings
from client.agent import AgentClient
from client.agentfile import SCRIPTED, AgentFile
from client.asking import hearing
from client.catalog import Catalog, check_key
from client.choose import Choice, read_goal
from client.connection import working
from client.context import Material, check_takes_context, read_context
from client.errors import NoWorker, RunRefused
from client.listing import RunLine
from client.place import INTERRUPTED, Place
from client.view import LiveView, escaped, notes, out, plain, result_text
from client.waiting import check_waiting, telling_trouble, use_remembered_server
from client.workerconfig import Allowed, remember
from workflows.api import TASK_QUEUE, AgentTask
from workflows.people import Request

__all__ = ["Order", "follow", "naming_modules", "perform", "resume_all", "serve", "until_begun"]

BEGUN_SECONDS = 10
"""How long `run --detach` waits for a worker to take the run."""


@dataclass(frozen=True)
class Order:
    """One `ratchet run`."""

    choice: Choice
    goal: str | None
    context: Material | None
    run_id: str | None
    detach: bool
    worker: bool
    as_json: bool


async def perform(place: Place, order: Order) -> int:
    """Start a run, show it until it is over; the exit code."""
    agent, draft = order.choice.finish()
    task = agent.task(await read_goal(order.goal))
    allowed = Allowed.of(agent.modules, agent.models.values())
    allowed |= Allowed(openai_base_url=order.choice.base_url)
    settings = place.worker_settings(allowed)
    own_worker = order.worker or place.remote() is None
    if own_worker:
        _use_base_url(order.choice)
        Catalog.load(settings).check(agent, draft)
        check_key(agent.models.values())
    if order.context is not None:
        # Before anything is started: whatever is wrong with it is said now.
        check_takes_context(task)
        order = replace(order, context=await read_context(order.context))
    started: list[str] = []
    try:
        async with place.client(settings) as agents:
            if own_worker:
                remember(settings.data_dir, allowed)
            if order.detach or not own_worker:
                with naming_modules(agent):
                    return await _elsewhere(agents, task, order, started)
            return await _here(agents, settings, task, order, started)
    except asyncio.CancelledError:
        return _interrupted(started, elsewhere=not own_worker)


@contextmanager
def naming_modules(agent: AgentFile) -> Iterator[None]:
    """Say how a worker that refused a run gets what the agent file names."""
    try:
        yield
    except RunRefused as error:
        if not agent.modules:
            raise
        raise RunRefused(
            f"{error}\nThe agent file names {', '.join(agent.modules)}: start that worker with "
            "`ratchet dev --agent FILE` or RATCHET_MODULES, or run one here with --worker"
        ) from error


async def resume_all(place: Place, choice: Choice, *, as_json: bool) -> int:
    """Go on with the interrupted runs of the directory until each is over; the exit code."""
    settings = _settings_for(place, choice)
    running: list[str] = []
    try:
        async with place.client(settings) as agents:
            running += in_turn(await agents.list(running=True))
            if not running:
                notes().print("no run of this directory is interrupted")
                return 0
            codes = []
            async with own_worker(agents, settings):
                for run_id in running:
                    notes().print(f"run {plain(run_id)}")
                    codes.append(await follow(agents, run_id, as_json=as_json))
            return max(codes)
    except asyncio.CancelledError:
        return _interrupted(running)


def in_turn(lines: Sequence[RunLine]) -> tuple[str, ...]:
    """Ids of runs, newest first as listed, in the order in which they are followed.

    The oldest first, and behind them those that wait for people, themselves or a run inside them. A run
    inside another one is followed with that one.
    """
    ids = {line.id for line in lines}
    waiting = [line.id for line in lines if line.waiting]
    own = [one for one in reversed(lines) if not any(outer in ids for outer in _outer(one.id))]
    waits = {one.id: any(w == one.id or one.id in _outer(w) for w in waiting) for one in own}
    return tuple(sorted(waits, key=lambda run_id: waits[run_id]))


def _outer(run_id: str) -> Iterator[str]:
    """What the ids of the runs around this one would be: theirs is in front of its own."""
    while "/" in run_id:
        run_id = run_id.rpartition("/")[0]
        yield run_id


async def serve(place: Place, choice: Choice) -> int:
    """A worker, and the embedded server unless one elsewhere is named, until Ctrl-C."""
    settings = _settings_for(place, choice)
    note = notes()
    try:
        async with place.client(settings, "terminal") as agents, own_worker(agents, settings):
            note.print(f"Temporal  {agents.where}   task queue {TASK_QUEUE}")
            if agents.ui:
                note.print(f"Web UI    {agents.ui}")
                note.print(f"for Temporal's own command line: export TEMPORAL_ADDRESS={agents.where}")
            note.print("A worker runs here; Ctrl-C stops it. Runs that are not over go on next time.")
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        note.print("stopped")
    return 0


async def follow(agents: AgentClient, run_id: str, *, as_json: bool, since: int = 0) -> int:
    """Show a run until it is over, and its result; the exit code.

    What it asks meanwhile is asked on the terminal; without one it is told on standard error, once each.
    """
    console = out()
    if as_json:
        async with hearing(agents, None, run_id) as hearer:
            async for news in agents.watch_all(run_id, since):
                if isinstance(news, Request):
                    hearer.heard(news)
                else:
                    typer.echo(escaped(news.model_dump_json()))
    else:
        with LiveView(console) as view:
            async with telling_trouble(agents, run_id, view), hearing(agents, view, run_id) as hearer:
                async for news in agents.watch_all(run_id, since):
                    if isinstance(news, Request):
                        hearer.heard(news)
                    else:
                        view.show(news)
    result = await agents.result(run_id)
    if as_json:
        typer.echo(escaped(result.model_dump_json()))
    else:
        console.print(result_text(result, console))
        _where_to_look(agents, run_id)
    return 0 if result.ok else 1


@asynccontextmanager
async def own_worker(agents: AgentClient, settings: Settings) -> AsyncIterator[None]:
    """A worker here, after naming the interrupted runs that will go on with it."""
    if agents.ui is not None:
        lines = await agents.list(running=True)
        await check_waiting(agents, settings, lines)
        name_interrupted(lines)
    async with working(agents, settings):
        yield


def name_interrupted(lines: Iterable[RunLine]) -> None:
    """Say which runs a worker will go on with."""
    names = [f"  {plain(line.id)}  {plain(line.goal[:60])}{_waits(line)}" for line in lines]
    if names:
        notes().print("\n".join(["These runs of this directory are not over and go on now:", *names]))


def _waits(line: RunLine) -> str:
    """Whom a run waits for, if anybody; it goes on only when they have decided."""
    if not line.waiting:
        return ""
    if line.waiting == "paused":
        return f"   paused: ratchet resume {plain(line.id)}"
    return f"   waits for a person ({line.waiting}): ratchet inbox {plain(line.id)}"


async def _here(
    agents: AgentClient, settings: Settings, task: AgentTask, order: Order, started: list[str]
) -> int:
    _introduce(agents, task, order)
    async with own_worker(agents, settings):
        started.append(await agents.start(task, order.run_id, context=order.context))
        if not order.as_json:
            notes().print(f"run {plain(started[0])}")
        return await follow(agents, started[0], as_json=order.as_json)


async def _elsewhere(agents: AgentClient, task: AgentTask, order: Order, started: list[str]) -> int:
    """Start a run that other workers take; without any it is refused, unless nobody waits."""
    has_worker = await agents.has_worker()
    if not has_worker and not order.detach:
        raise NoWorker(
            f"no worker polls the task queue {TASK_QUEUE!r} at {agents.where}, so nothing was "
            "started; start one with `python worker.py`, or run one here with --worker"
        )
    run_id = await agents.start(task, order.run_id, context=order.context)
    started.append(run_id)
    if not order.detach:
        return await follow(agents, run_id, as_json=order.as_json)
    if has_worker:
        await until_begun(agents, run_id)
    typer.echo(json.dumps({"id": run_id}) if order.as_json else plain(run_id))
    if not has_worker:
        notes().print("no worker runs; `ratchet run --resume` or `ratchet dev` goes on with it")
    return 0


async def until_begun(agents: AgentClient, run_id: str) -> None:
    """Wait until a worker has taken the run, so that a refusal is told; not for ever, workers may be busy.

    Raises:
        RunFailed: it was refused, or has failed already.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(BEGUN_SECONDS):
            while (await agents.describe(run_id)).progress == "running":
                with suppress(NoWorker):  # it went away: nothing to be told
                    if (await agents.status(run_id)).records:
                        return
                await asyncio.sleep(0.1)
            await agents.result(run_id)
            return
    notes().print(
        plain(f"no worker has begun {run_id} within {BEGUN_SECONDS} s; `ratchet watch {run_id}` follows it")
    )


def _settings_for(place: Place, choice: Choice) -> Settings:
    """A worker's settings with what an agent file needs, if one is named."""
    _use_base_url(choice)
    allowed = Allowed(base_urls=(choice.base_url,) if choice.base_url else ())
    if choice.agent is not None:
        agent, _ = choice.finish()
        allowed |= Allowed.of(agent.modules, agent.models.values())
    settings = place.worker_settings(allowed)
    use_remembered_server(settings)
    return settings


def _use_base_url(choice: Choice) -> None:
    """A server that was typed is the configured one: it is sent the key, and every model may use it."""
    if choice.base_url is not None:
        os.environ["OPENAI_BASE_URL"] = choice.base_url


def _introduce(agents: AgentClient, task: AgentTask, order: Order) -> None:
    note = notes()
    model = task.models["default"]
    note.print(plain(f"agent {task.agent} · machine {task.machine} · model {model.name}"))
    if any(spec.provider == SCRIPTED for spec in task.models.values()):
        note.print(
            "The model `scripted` is no language model: it follows a script. What the tools return "
            "is real, and the answer is made of that."
        )
    note.print(f"Temporal {agents.where}{f' · Web UI {agents.ui}' if agents.ui else ''}")


def _where_to_look(agents: AgentClient, run_id: str) -> None:
    place = f"{agents.ui}/namespaces/{agents.temporal.namespace}/workflows/{run_id}"
    notes().print(plain(f"run {run_id}{f'   {place}' if agents.ui else ''}"))


def _interrupted(runs: list[str], *, elsewhere: bool = False) -> int:
    if elsewhere and runs:
        run_id = plain(runs[0])
        notes().print(
            f"interrupted; {run_id} goes on at its worker elsewhere: `ratchet watch {run_id}` follows it, "
            f"`ratchet cancel {run_id}` stops it"
        )
    elif runs:
        notes().print(
            f"interrupted; {plain(', '.join(runs))} {'is' if len(runs) == 1 else 'are'} kept. "
            "`ratchet run --resume` or `ratchet dev` goes on"
        )
    return INTERRUPTED
