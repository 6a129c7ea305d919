"""Start a run and follow it to its end; continue those that were interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import typer

from client.cli import render
from client.cli.interactive import LeftForLater, listening
from client.cli.live import LiveView, heartbeats
from client.cli.options import INTERRUPTED, CommonOptions, Starting
from client.cli.output import note, print_json
from client.cli.worker import OTHER_WORKERS, own_worker, remember_for_workers
from client.errors import MachineBug, RatchetError, RunFailed, RunRefused, resume_command
from client.runs.words import plain
from workflows.people import Request

if TYPE_CHECKING:
    from activities.settings import Settings
    from client.agents.agentfile import AgentFile
    from client.runs.listing import RunLine
    from client.sdk.agent import AgentClient
    from client.server.workerconfig import Allowed
    from workflows.api import AgentTask
    from workflows.kernel.log import Record

__all__ = ["follow", "follow_from_the_start", "modules_named", "resume_all", "start"]

BEGUN_SECONDS = 10
"""How long `--detach` waits for a worker to begin the run."""


@contextmanager
def modules_named(agent: AgentFile) -> Iterator[None]:
    """If a worker refuses the run, say how it gets the modules of the agent file."""
    try:
        yield
    except RunRefused as error:
        if not agent.modules:
            raise
        raise RunRefused(
            f"{error}\nEvery worker that may take the run must have loaded {', '.join(agent.modules)}. "
            f"{OTHER_WORKERS}"
        ) from error


async def start(
    client: AgentClient,
    task: AgentTask,
    starting: Starting,
    *,
    has_worker: bool,
    stays: bool,
    since: int = 0,
    **more: Any,
) -> int:
    """Start a run, and follow it unless it is detached; the exit code.

    Args:
        has_worker: some worker takes the run.
        stays: the worker is elsewhere, so an interrupted run goes on.
        since: the first record that is shown.
        more: further arguments of `AgentClient.start`.
    """
    begun: list[str] = []
    try:
        begun.append(await client.start(task, starting.run_id, **more))
        if not starting.detach:
            if not starting.as_json:
                note(f"run {plain(begun[0])}")
            return await follow(
                client, begun[0], as_json=starting.as_json, verbose=starting.verbose, since=since
            )
        if has_worker:
            await _until_begun(client, begun[0])
    except asyncio.CancelledError as end:
        return _interrupted(begun, end, stays=stays)
    if starting.as_json:
        print_json({"id": begun[0]}, indent=None)
    else:
        typer.echo(plain(begun[0]))
    if not has_worker:
        note(f"no worker runs; {resume_command(embedded=client.ui is not None)} continues it")
    return 0


async def _until_begun(client: AgentClient, run_id: str) -> None:
    """Wait until a worker has begun the run, so that a refusal is seen; not for ever, workers may be busy.

    Raises:
        RunFailed: it was refused, or has failed already.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(BEGUN_SECONDS):
            while (await client.describe(run_id)).progress == "running":
                with suppress(RatchetError):  # the query comes too early, or its worker went away
                    if (await client.status(run_id)).records:
                        return
                await asyncio.sleep(0.1)
            await client.result(run_id)
            return
    note(f"no worker has begun {run_id} within {BEGUN_SECONDS} s; `ratchet watch {run_id}` follows it")


def _interrupted(runs: Sequence[str], end: asyncio.CancelledError, *, stays: bool = False) -> int:
    """Say how the runs go on that this command followed; its exit code."""
    names = plain(", ".join(runs))
    why = "left for later" if isinstance(end, LeftForLater) else "interrupted"
    if runs and stays:
        note(
            f"{why}; {names} continues at its worker elsewhere: `ratchet watch {names}` follows it, "
            f"`ratchet cancel {names}` stops it"
        )
    elif runs:
        kept = "is" if len(runs) == 1 else "are"
        note(f"{why}; {names} {kept} kept. {resume_command(embedded=True)} continues")
    return INTERRUPTED


# -- following a run --------------------


async def follow(
    client: AgentClient, run_id: str, *, as_json: bool, verbose: bool = False, since: int = 0
) -> int:
    """Show a run until it is over, and its result; the exit code: 0 when it reached its goal, else 1.

    What it asks meanwhile is asked on the terminal; without one it is printed on standard error.
    """
    view = None if as_json else LiveView(render.out(), verbose=verbose)
    if view is not None and client.ui:
        page = f"{client.ui}/namespaces/{client.temporal.namespace}/workflows/{run_id}"
        note(f"while this command or `ratchet dev` runs: {page}")
    with _resume_named(client), view.shown() if view else nullcontext():
        async with (
            heartbeats(client, run_id, view) if view else nullcontext(),
            listening(client, view, run_id) as listener,
            aclosing(client.watch_all(run_id, since)) as news,
        ):
            async for one in _until_bug(client, run_id, news):
                if isinstance(one, Request):
                    listener.changed(one)
                elif view is not None:
                    await listener.before(one)
                    view.show(one)
                else:
                    print_json(one, indent=None)
    result = await client.result(run_id)
    if view is None:
        print_json(result, indent=None)
    else:
        view.end(result)
    render.note_cut(result)
    return 0 if result.ok else 1


@contextmanager
def _resume_named(client: AgentClient) -> Iterator[None]:
    """If a bug in the machine stops the run, say how it goes on after this command, whose worker ends."""
    try:
        yield
    except MachineBug as error:
        if not client.connection.queues:
            raise
        raise MachineBug(
            f"{error} The worker of this command ends now: then `ratchet run --resume`."
        ) from error


async def _until_bug(
    client: AgentClient, run_id: str, news: AsyncIterator[Record | Request]
) -> AsyncIterator[Record | Request]:
    """The news, until a bug in the machine stops the run: raises MachineBug."""
    bug = asyncio.ensure_future(client.raise_on_bug(run_id))
    try:
        while True:
            newest = asyncio.ensure_future(anext(news, None))
            try:
                await asyncio.wait({newest, bug}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not newest.done():  # its generator can be closed only once nobody waits in it
                    newest.cancel()
                    await asyncio.wait({newest})
            if newest.cancelled():
                bug.result()
            one = newest.result()
            if one is None:
                return
            yield one
    finally:
        bug.cancel()


async def follow_from_the_start(client: AgentClient, run_id: str, *, as_json: bool, verbose: bool) -> int:
    """The same for a run that began earlier; of a fork, it is said first whose steps come first."""
    if not as_json:
        with suppress(RatchetError):  # its beginning cannot be read any more
            task = (await client.beginning(run_id)).task
            if task is not None and task.fork is not None:
                source, step = plain(task.fork.origin.workflow_id), task.fork.origin.step
                whose = f"the steps before it are those of {source}"
                note(f"{plain(run_id)} is forked from step {step} of {source}: {whose}")
    return await follow(client, run_id, as_json=as_json, verbose=verbose)


# -- interrupted runs --------------------


async def resume_all(common: CommonOptions, settings: Settings, allowed: Allowed, starting: Starting) -> int:
    """Continue the interrupted runs of the directory until each is over; the exit code.

    Args:
        settings: of the worker that continues them.
        allowed: what was named for it now.
        starting: how the runs are shown.
    """
    running: list[str] = []
    try:
        async with common.client(settings) as client:
            await remember_for_workers(client, settings, allowed)
            running += _in_turn(await client.list(running=True))
            if not running:
                note("no run of this directory is interrupted")
                return 0
            codes = []
            async with own_worker(client, settings):
                for run_id in running:
                    note(f"run {plain(run_id)}: what is recorded of it comes first, and is not done again")
                    try:
                        as_json, verbose = starting.as_json, starting.verbose
                        codes.append(
                            await follow_from_the_start(client, run_id, as_json=as_json, verbose=verbose)
                        )
                    except RunFailed as error:  # the other runs continue
                        note(str(error))
                        codes.append(error.exit_code)
            return max(codes)
    except asyncio.CancelledError as end:
        return _interrupted(running, end)


def _in_turn(lines: Sequence[RunLine]) -> list[str]:
    """Ids of runs in the order in which they are followed: the oldest first, those that wait for people last.

    An inner run is followed with its outer run.
    """
    ids = {line.id for line in lines}
    waiting = {line.id for line in lines if line.waiting}
    waiting |= {outer for run_id in waiting for outer in _outer_runs(run_id)}
    own = [line.id for line in reversed(lines) if not any(outer in ids for outer in _outer_runs(line.id))]
    return sorted(own, key=lambda run_id: run_id in waiting)


def _outer_runs(run_id: str) -> Iterator[str]:
    """The ids that outer runs of this one would have: each is the beginning of the next."""
    while "/" in run_id:
        run_id = run_id.rpartition("/")[0]
        yield run_id
