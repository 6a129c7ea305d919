"""Commands that go back in a run's time: steps, show --step, fork, replay, compare."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.place import Json, Place

if TYPE_CHECKING:
    from client.agent import AgentClient

__all__ = ["COMMANDS", "show_step"]

Run = Annotated[str, typer.Argument(help="Id of the run.", metavar="RUN")]
WIDEST = 160
"""Columns of a comparison; wider ones are hard to read."""


async def steps(place: Place, run_id: Run, as_json: Json = False) -> None:
    """List a run's steps: what each did, and which of them the run can go back to."""
    from client.checkpoints import checkpoints_of
    from client.view import notes, out
    from client.view_time import steps_listing

    async with _reading(place, run_id) as (agents, run):
        lines = await checkpoints_of(agents, run)
    if as_json:
        _print_json([line.model_dump(mode="json") for line in lines])
        return
    out().print(steps_listing(lines))
    notes().print(
        f"`ratchet show {run} --step N` shows the state in which a step began; "
        f"`ratchet rollback` (while it runs) and `ratchet fork` begin it again"
    )


async def show_step(place: Place, run_id: str, step: int, as_json: bool) -> None:
    """Print what a run was when a step began, and what came of it."""
    from client.checkpoints import snapshot_at
    from client.view import out
    from client.view_time import snapshot_text

    async with _reading(place, run_id) as (agents, run):
        snapshot = await snapshot_at(agents, run, step)
    if as_json:
        typer.echo(snapshot.model_dump_json(indent=2))
    else:
        out().print(snapshot_text(snapshot))


async def fork(  # noqa: PLR0913  # one parameter for each option of the command line
    place: Place,
    *,
    run_id: Annotated[str, typer.Argument(help="The run to start from, live or over.", metavar="RUN")],
    step: Annotated[int, typer.Option("--step", min=0, help="The step to begin again; 0: the start.")],
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="A changed agent, for the same machine.")
    ] = None,
    goal: Annotated[str | None, typer.Option("--goal", help="Another goal; - reads stdin.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE: a machine option, or an agent key (limits.tokens=1000)."),
    ] = None,
    new_id: Annotated[
        str | None, typer.Option("--id", help="Id of the new run; made up if left out.")
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask, although calls with outside effects are made anew."),
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start it and do not wait for it.")] = False,
    worker: Annotated[
        bool, typer.Option("--worker", help="Run a worker here although the server is elsewhere.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Start a new run from a step of another one: steps before it are not paid for again.

    Calls from the step on are made anew, also those that change something outside: they are listed, and
    where there are any, somebody must agree. Exit code 4: nobody did, so nothing was started.

    Machine, machine version and material (--context) stay; agent, goal, tools, models, limits and the
    machine's options may change.
    """
    from client.choose import read_goal
    from client.fork import Changes
    from client.forking import ForkOrder, perform

    changes = Changes(agent, None if goal is None else await read_goal(goal), sets or ())
    order = ForkOrder(run_id, step, changes, new_id, yes=yes, detach=detach, worker=worker, as_json=as_json)
    return await perform(place, order)


async def replay(
    place: Place,
    run_id: Run,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="Only what came before this step.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Run it again from what was recorded, calling nothing: would code and machine of today do the same?

    Exit code 0: the same; 1: something differs, and the first of it is told; or, as no worker runs, the
    newest records could not be read.
    """
    from client.replay import replay as replay_run
    from client.view import out
    from client.view_time import replay_text

    async with _reading(place, run_id) as (agents, run):
        told = await replay_run(agents, run, step)
    if as_json:
        typer.echo(told.model_dump_json(indent=2))
    else:
        out().print(replay_text(told))
    return 0 if told.same else 1


async def compare(
    place: Place,
    one: Annotated[str, typer.Argument(help="A run.", metavar="RUN")],
    other: Annotated[str, typer.Argument(help="The run to hold against it.", metavar="RUN")],
    as_json: Json = False,
) -> None:
    """Show two runs side by side by step, and where they part."""
    from client.compare import compare as compare_runs
    from client.finding import find_any
    from client.view import out
    from client.view_time import comparison

    async with _reading(place, one) as (agents, run):
        told = await compare_runs(agents, run, await find_any(agents, other))
    if as_json:
        typer.echo(told.model_dump_json(indent=2))
        return
    console = out()
    console.print(comparison(told, min(console.width, WIDEST)))


@asynccontextmanager
async def _reading(place: Place, run_id: str) -> AsyncIterator[tuple[AgentClient, str]]:
    """A client that knows the machines that a worker here would know, and the run that is meant."""
    from client.finding import find_any
    from client.workerconfig import Allowed

    async with place.client(place.worker_settings(Allowed())) as agents:
        yield agents, await find_any(agents, run_id)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, int | None]]] = {
    "steps": steps,
    "fork": fork,
    "replay": replay,
    "compare": compare,
}
