"""Commands that start runs, and what runs need: run, dev, down, task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from client.errors import UsageError
from client.place import Json, Place

__all__ = ["COMMANDS"]

Goal = Annotated[str | None, typer.Argument(help="What the agent shall do; - reads stdin.")]
Agent = Annotated[str | None, typer.Option("--agent", "-a", help="Agent file, or name of a shipped agent.")]
Model = Annotated[str | None, typer.Option("--model", "-m", help="Model name, or `scripted`.")]
BaseUrl = Annotated[str | None, typer.Option("--base-url", help="OpenAI-compatible server.")]
MachineName = Annotated[str | None, typer.Option("--machine", help="Machine, such as react.")]
Tools = Annotated[list[str] | None, typer.Option("--tool", "-t", help="One more tool; repeatable.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="KEY=VALUE: a machine option (max_steps=5) or an agent key (limits.tokens=1000)."
    ),
]
Context = Annotated[
    Path | None,
    typer.Option("--context", help="A text file that the run is about, for machines that take one."),
]
RunId = Annotated[str | None, typer.Option("--id", help="Id of the run; made up if left out.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the interrupted runs of this directory.")]
Detach = Annotated[bool, typer.Option("--detach", help="Start the run and do not wait for it.")]
OwnWorker = Annotated[
    bool, typer.Option("--worker", help="Run a worker here although the server is elsewhere.")
]


async def run(  # noqa: PLR0913  # one parameter for each option of the command line
    place: Place,
    *,
    goal: Goal = None,
    agent: Agent = None,
    model: Model = None,
    base_url: BaseUrl = None,
    machine: MachineName = None,
    tool: Tools = None,
    sets: Sets = None,
    context: Context = None,
    run_id: RunId = None,
    resume: Resume = False,
    detach: Detach = False,
    worker: OwnWorker = False,
    as_json: Json = False,
) -> int:
    """Run an agent and show what it does as it happens."""
    from client.choose import Choice
    from client.running import Order, perform, resume_all

    choice = Choice(agent, model, base_url, machine, tool or (), sets or ())
    if detach and worker:
        raise UsageError(
            "--worker runs a worker here until the run is over, --detach does not wait for the run: leave "
            "one of them out, so nothing was started. `ratchet dev` is a worker that stays"
        )
    if resume:
        if goal is not None:
            raise UsageError("--resume goes on with runs that have a goal already; leave it out")
        if context is not None:
            raise UsageError("--resume goes on with runs as they were started; leave --context out")
        return await resume_all(place, choice, as_json=as_json)
    order = Order(choice, goal, context, run_id, detach=detach, worker=worker, as_json=as_json)
    return await perform(place, order)


async def dev(place: Place, agent: Agent = None, base_url: BaseUrl = None) -> int:
    """Run the embedded server and a worker until Ctrl-C."""
    from client.choose import Choice
    from client.running import serve

    return await serve(place, Choice(agent=agent, base_url=base_url))


async def down(place: Place) -> int:
    """Stop the embedded server of this directory; runs that go on are kept."""
    from client.server import stop_server

    stopped = await asyncio.to_thread(stop_server, place.data_dir)
    if stopped is None:
        typer.echo(f"no server runs for {place.data_dir}")
    else:
        typer.echo(f"stopped the server at {stopped.address} (pid {stopped.pid})")
    return 0


async def task(  # noqa: PLR0913  # one parameter for each option of the command line
    place: Place,
    *,
    agent: Annotated[str, typer.Argument(help="Agent file, or name of a shipped agent.")],
    goal: Annotated[str, typer.Argument(help="What the agent shall do; - reads stdin.")],
    model: Model = None,
    base_url: BaseUrl = None,
    tool: Tools = None,
    sets: Sets = None,
    context: Context = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="The worker elsewhere has other tools than we.")
    ] = False,
) -> int:
    """Print the input of a run, for `temporal workflow start --input-file`."""
    from client.agent import pinned
    from client.catalog import Catalog
    from client.choose import Choice, read_goal
    from client.context import with_context
    from client.view import escaped
    from client.workerconfig import Allowed

    chosen, draft = Choice(agent, model, base_url, None, tool or (), sets or ()).finish()
    settings = place.worker_settings(Allowed.of(chosen.modules, chosen.models.values()))
    if not unchecked:
        Catalog.load(settings).check(chosen, draft)
    made = pinned(chosen.task(await read_goal(goal)))
    if context is not None:
        made = await with_context(made, context, settings)
    typer.echo(escaped(made.model_dump_json(indent=2)))
    return 0


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, int | None]]] = {
    "run": run,
    "dev": dev,
    "down": down,
    "task": task,
}
