"""Commands about a run's past: steps, show --step, fork, replay, compare."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.cli.options import AgentName, CommonOptions, Json, RunName, command, read_text
from client.cli.run import Starting, check_worker, own_worker, start
from client.errors import UsageError

if TYPE_CHECKING:
    from client.agent import AgentClient
    from client.history.checkpoints import Source
    from client.history.fork import ForkChanges, PastEffects

__all__ = ["app", "show_step"]

app = typer.Typer()
CHANGEABLE = ("limits", "models", "tools")
"""Keys of an agent that a fork may change."""


@command(app)
async def steps(common: CommonOptions, run: RunName, as_json: Json = False) -> None:
    """List a run's steps: what each did, and which of them the run can go back to."""
    from client.cli.render import checkpoint_table, notes, out, print_json

    async with _reading(common, run) as (client, run_id):
        lines = await client.checkpoints(run_id)
    if as_json:
        print_json(lines)
        return
    out().print(checkpoint_table(lines))
    notes().print(
        f"`ratchet show {run_id} --step N` shows the state when a step began; `ratchet rollback` (while it "
        "runs) and `ratchet fork` begin it again"
    )


async def show_step(common: CommonOptions, run: str, step: int, as_json: bool) -> None:
    """Print the state of a run when a step began, and what came of it."""
    from client.cli.render import out, print_json, snapshot_block

    async with _reading(common, run) as (client, run_id):
        snapshot = await client.snapshot(run_id, step)
    if as_json:
        print_json(snapshot)
    else:
        out().print(snapshot_block(snapshot))


@command(app)
async def replay(
    common: CommonOptions,
    run: RunName,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="Only what came before this step.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Run it again from its history, calling nothing: would today's code do the same?

    Exit code 0: the same; 1: something differs, or not all of it could be compared.
    """
    from client.cli.render import out, print_json, replay_block

    async with _reading(common, run) as (client, run_id):
        found = await client.replay(run_id, step)
    if as_json:
        print_json(found)
    else:
        out().print(replay_block(found))
    return 0 if found.same else 1


@command(app)
async def compare(
    common: CommonOptions,
    one: Annotated[str, typer.Argument(help="A run.", metavar="RUN")],
    other: Annotated[str, typer.Argument(help="The run to compare it with.", metavar="RUN")],
    as_json: Json = False,
) -> None:
    """Show two runs side by side by step, and where they differ first."""
    from client.cli.render import comparison_block, out, print_json

    async with _reading(common, one) as (client, run_id):
        found = await client.compare(run_id, await client.find(other))
    if as_json:
        print_json(found)
    else:
        out().print(comparison_block(found, out().width))


@asynccontextmanager
async def _reading(common: CommonOptions, run: str) -> AsyncIterator[tuple[AgentClient, str]]:
    """A client that knows the machines that a worker here would know, and the id of the run."""
    from client.workerconfig import Allowed

    async with common.client(common.worker_settings(Allowed())) as client:
        yield client, await client.find(run)


# -- fork --------------------


@command(app)
async def fork(  # noqa: PLR0913, PLR0917  # one parameter for each option of the command line
    common: CommonOptions,
    starting: Starting,
    run: Annotated[str, typer.Argument(help="The run to start from, live or over.", metavar="RUN")],
    step: Annotated[int, typer.Option("--step", min=0, help="The step to begin again; 0: the start.")],
    agent: AgentName = None,
    message: Annotated[
        str | None, typer.Option("--message", help="Message to the model; - reads stdin.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE of limits, models or tools.")
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask, although calls with outside effects are repeated."),
    ] = False,
) -> int:
    """Start a new run from a step of another one: steps before it are not paid for again.

    Calls from the step on are made again, also those that change something outside: they are listed, and
    where there are any, somebody must confirm. Exit code 4: nobody did, so nothing was started.

    Limits, models and tools may change (from --agent or --set), and the model may get a message. Machine,
    goal and material stay.
    """
    from client.agent import pinned
    from client.catalog import check_key
    from client.cli.interactive import confirm
    from client.cli.render import counted, notes, plain
    from client.history.checkpoints import source_of
    from client.history.fork import forked_task
    from client.workerconfig import remember

    starting.check()
    allowed = _allowed(agent)
    settings = common.worker_settings(allowed)
    own = starting.worker or common.remote() is None
    text = "" if message is None else await read_text(message, "message")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(common.client(settings))
        source = await source_of(client, await client.find(run))
        task = pinned(forked_task(source, step, _changes(source, agent, sets or (), text)))
        has_worker = await check_worker(client, starting, own=own)
        effects = await client.effects_to_repeat(source.run, step)
        _print_effects(effects, step)
        if (effects.calls or effects.unknown) and not yes:
            await confirm(f"Fork {source.run} from step {step}?")
        if own:
            check_key(task.models.values())
            remember(settings.data_dir, allowed)
        if own and not starting.detach:
            await stack.enter_async_context(own_worker(client, settings))
        copied = len(task.fork.records) if task.fork else 0
        if not starting.as_json and not starting.detach:
            notes().print(
                plain(
                    f"from step {step} of {source.run}: {counted(copied, 'record')} of the log are its "
                    "source's; calls from the step on are made again"
                )
            )
        return await start(client, task, starting, has_worker=has_worker, stays=not own, since=copied)
    raise AssertionError("unreachable: an exit stack swallows nothing")


def _allowed(agent: str | None) -> Any:
    from client.agentfile import load_agent
    from client.workerconfig import Allowed

    if agent is None:
        return Allowed()
    found = load_agent(agent)
    return Allowed.of(found.modules, found.models.values())


def _changes(source: Source, agent: str | None, sets: Sequence[str], message: str) -> ForkChanges:
    """What the new run has in place of what its source had.

    Raises:
        UsageError: the agent has another machine, or a setting is none of limits, models and tools.
    """
    from client.agentfile import Draft, find_agent
    from client.history.fork import ForkChanges
    from client.yaml import YamlFile
    from workflows.api import AgentSpec

    if agent is None and not sets:
        return ForkChanges(message=message)
    machine = source.program.machine.name
    known: dict[str, Any] = {"machine": machine}
    if source.task is not None:
        known = source.task.model_dump(mode="json", include=set(AgentSpec.model_fields))
    draft = Draft(known if agent is None else YamlFile(find_agent(agent)))
    for setting in sets:
        if setting.partition("=")[0].strip().split(".")[0] not in CHANGEABLE:
            raise UsageError(f"--set {setting}: a fork can change {', '.join(CHANGEABLE)} only")
        draft.assign(setting)
    changed = draft.finish()
    if changed.machine != machine:
        raise UsageError(
            f"run {source.run} is of machine {machine}, agent {changed.name} of {changed.machine}; machine, "
            "goal and material of a fork are those of its source: start a new run for another machine"
        )
    return ForkChanges(
        limits=changed.limits.model_dump(), models=changed.models, tools=changed.tools, message=message
    )


def _print_effects(effects: PastEffects, step: int) -> None:
    from client.cli.render import effects_table, notes, plain

    if effects.unknown:
        text = f"what was changed outside since step {step} is not known: {effects.unknown}"
        notes().print(plain(f"{text}; the fork may repeat it"))
    if effects.calls:
        notes().print(f"done since step {step} began; the fork may do this again:")
        notes().print(effects_table(effects.calls))
