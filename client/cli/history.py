"""Commands that work with a run's past: fork, replay, check, compare."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from client.agents.agentfile import Draft, find_agent, load_agent
from client.agents.catalog import check_key, check_servers, pinned
from client.agents.yaml import YamlFile
from client.cli import render, render_requests
from client.cli.following import start
from client.cli.interactive import confirm
from client.cli.options import AgentName, By, CommonOptions, Json, RunName, Starting, command
from client.cli.output import note, print_json, print_lines
from client.cli.standard_input import read_text
from client.cli.worker import check_worker, own_worker, remember_for_workers, task_queue
from client.errors import UsageError
from client.history.checkpoints import source_of
from client.history.fork import ForkChanges, forked_task
from client.keys import name_of
from client.runs.steps import reply_before_text
from client.runs.words import counted, plain
from client.server.workerconfig import Allowed
from workflows.api import AgentSpec

if TYPE_CHECKING:
    from client.history.check import Checked
    from client.history.checkpoints import Source
    from client.history.fork import ForkChanges, PastEffects
    from client.sdk.agent import AgentClient

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)
CHANGEABLE = ("limits", "models", "tools", "options", "approvals", "people")
"""Keys of an agent that a fork may change."""


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
    async with _reading(common, run) as (client, run_id):
        found = await client.replay(run_id, step)
    if as_json:
        print_json(found)
    else:
        render.out().print(render.replay_block(found))
    return 0 if found.same and not found.notes else 1


@command(app)
async def check(
    common: CommonOptions,
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Histories in files, in place of the runs of the server.", metavar="FILE"),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Keep the histories of the server's runs in this folder.")
    ] = None,
    agent: AgentName = None,
    archive: Annotated[
        bool,
        typer.Option("--archive", help="Check the archive instead: is each log there, as it was written?"),
    ] = False,
    as_json: Json = False,
) -> int:
    """Would a deploy of today's code break a run that is not over? Nothing is called, and nothing changes.

    Runs that any worker may take are replayed. Those that are pinned to a build stay there until a step ends,
    so state and data of each must fit today's machine. Today's code is Ratchet's, with the modules of
    --agent, of RATCHET_MODULES, and those that earlier commands in this directory named, in this order.

    Exit code 0: all go on; 1: one breaks, or is unknown. With --archive: 0: all is as it was written; 1: not.
    """
    if archive:
        if files or save or agent:
            raise UsageError("--archive checks the archive alone; leave out files, --save and --agent")
        return await _check_archive(common, as_json)
    found: list[Checked] = []
    async for checked in _checks(common, files or (), save, agent):
        found.append(checked)
        if as_json:
            print_json(checked, indent=None)
        else:
            render.out().print(render.checked_line(checked))
    good = sum(one.verdict == "goes on" for one in found)
    if not as_json:
        runs = f"{good} of {counted(len(found), 'run')} would go on with today's code"
        note(runs if found else "no run is under way, so a deploy breaks none")
    return 0 if good == len(found) else 1


async def _check_archive(common: CommonOptions, as_json: bool) -> int:
    """Print what is wrong with the archive."""
    from client.runs.archive_repair import ArchiveProblem, missing_ends

    async with common.runs() as runs:
        problems = [
            ArchiveProblem(run=one.run[0], run_id=one.run[1], problem=str(one))
            for one in await runs.archive.broken()
        ]
        problems += [one async for one in missing_ends(runs)]
        checked = await runs.archive.runs()
    if as_json:
        print_lines(problems)
    else:
        for one in problems:
            render.out().print(plain(one.problem), soft_wrap=True)
        note(f"checked {counted(checked, 'log')} of the archive, and whether it has each run's end")
    return 1 if problems else 0


async def _checks(
    common: CommonOptions, files: Sequence[Path], save: Path | None, agent: str | None
) -> AsyncIterator[Checked]:
    """Raises UsageError."""
    from client.cli.logs import log_to_file
    from client.history.check import check_history, check_runs, history_json, read_history
    from client.plugin import RatchetPlugin
    from client.server.embedded import data_directory

    settings = common.worker_settings(_allowed(agent))
    if settings.modules:
        note(f"with {', '.join(settings.modules)}")
    if files and save:
        raise UsageError("--save keeps histories of the server's runs; leave out the files")
    if files:
        data_directory(settings.data_dir)
        with log_to_file(settings):
            for path in files:
                yield await check_history(RatchetPlugin(settings), read_history(path))
        return
    async with common.client(settings) as client:
        async for checked, history in check_runs(client):
            if save:
                text = await history_json(client.temporal.data_converter, history)
                _write(save / f"{quote(checked.run, safe='')}.json", text)
            yield checked


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)  # what is encrypted in the server is not here
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


@command(app)
async def compare(
    common: CommonOptions,
    one: Annotated[str, typer.Argument(help="A run.", metavar="RUN")],
    other: Annotated[str, typer.Argument(help="The run to compare it with.", metavar="RUN")],
    as_json: Json = False,
) -> None:
    """Show two runs side by side by step, and where they differ first."""
    async with _reading(common, one) as (client, run_id):
        found = await client.compare(run_id, await client.find(other))
    if as_json:
        print_json(found)
    else:
        render.out().print(render.comparison_block(found))


@asynccontextmanager
async def _reading(common: CommonOptions, run: str) -> AsyncIterator[tuple[AgentClient, str]]:
    """A client that knows the machines that a worker here would know, and the id of the run."""
    async with common.client(common.worker_settings(Allowed())) as client:
        yield client, await client.find(run)


# -- fork --------------------


@command(app)
async def fork(  # noqa: PLR0913, PLR0917  # one parameter for each option of the command line
    common: CommonOptions,
    starting: Starting,
    run: Annotated[str, typer.Argument(help="The run to start from, live or over.", metavar="RUN")],
    step: Annotated[
        int,
        typer.Option(
            "--step", min=0, help="The step to begin again; 0: the start. `ratchet steps RUN` lists them."
        ),
    ],
    agent: AgentName = None,
    message: Annotated[
        str | None,
        typer.Option(
            "--message",
            help="Message to the model; - reads stdin. Its first question brings it: where the step begins "
            "after a reply of the model, what that reply asked for is done before.",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the agent file.")
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask, although calls with outside effects are repeated."),
    ] = False,
    by: By = None,
) -> int:
    """Start a new run from a step of another one: steps before it are not paid for again.

    Calls from the step on are made again, also those that change something outside: they are listed, and
    where there are any, somebody must confirm. Exit code 4: nobody did, so nothing was started.

    Limits, models, tools, options, approvals and people may change (from --agent or --set), and the model may
    get a message. Machine, goal, instructions and material stay.
    """
    starting.check()
    allowed = _allowed(agent)
    settings = common.worker_settings(allowed)
    own = starting.worker or common.remote() is None
    text = "" if message is None else await read_text(message, "message")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(common.client(settings))
        source = await source_of(client, await client.find(run))
        task = pinned(forked_task(source, step, _changes(source, agent, sets or (), text), by=name_of(by)))
        has_worker = await check_worker(client, starting, own=own)
        effects = await client.effects_to_repeat(source.run, step)
        _print_effects(effects, source, step)
        if source.checkpoint(step).is_end and not text:
            note(
                f"step {step} is the end of {source.run}: the model is asked again, and told nothing new; "
                "--message tells it what to do next"
            )
        if (effects.calls or effects.unknown) and not yes:
            await confirm(f"Fork {source.run} from step {step}?")
        queue = task_queue(client, starting, own=own)
        if own:
            check_key(task.models)
            await check_servers(task.models)
            await remember_for_workers(client, settings, allowed, queue)
        if own and not starting.detach:
            await stack.enter_async_context(own_worker(client, settings, queue))
        copied = len(task.fork.records) if task.fork else 0
        if not starting.as_json and not starting.detach:
            again = "" if source.checkpoint(step).is_end else "; calls from the step on are made again"
            log = counted(copied, "record")
            note(f"from step {step} of {source.run}, with {log} of its log{again}")
        return await start(
            client,
            task,
            starting,
            has_worker=has_worker,
            stays=not own,
            since=copied,
            task_queue=queue,
        )
    raise AssertionError("unreachable: an exit stack swallows nothing")


def _allowed(agent: str | None) -> Allowed:
    return Allowed() if agent is None else Allowed.of_agents(load_agent(agent))


def _changes(source: Source, agent: str | None, sets: Sequence[str], message: str) -> ForkChanges:
    """What the new run has in place of what its source had.

    Raises:
        UsageError: the agent has another machine, or a setting that a fork cannot change.
    """
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
    if source.task is not None and changed.instructions != source.task.instructions:
        note("a fork keeps the instructions that its source began with; tell the model with --message")
    return ForkChanges(
        limits=changed.limits.model_dump(),
        models=changed.models,
        tools=changed.tools,
        options=changed.options,
        approvals=changed.approvals,
        people=changed.people,
        message=message,
    )


def _print_effects(effects: PastEffects, source: Source, step: int) -> None:
    if effects.unknown:
        text = f"what was changed outside since step {step} is not known: {effects.unknown}"
        note(f"{text}; the fork may repeat it")
    if effects.calls:
        render_requests.note_effects(effects.calls, f"step {step}", "; the fork may do this again")
    if behind := reply_before_text(source.records, step):
        note(behind)
