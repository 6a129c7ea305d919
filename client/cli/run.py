"""Commands that start runs, and what runs need: run, dev, down, task.

What starts and follows a run is imported once the agent has been read and checked: a refusal comes soon.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from activities.endpoints import with_provider
from client.agents.agentfile import Choice
from client.agents.catalog import Catalog, check_key, check_servers, pinned
from client.agents.files import SCRIPTED, agents_here
from client.cli.options import AgentNames, AgentOptions, BaseUrl, CommonOptions, Starting, command
from client.cli.output import note, print_json
from client.cli.plain_params import agent_file_text, is_agent_file
from client.cli.standard_input import read_text
from client.errors import UsageError
from client.runs.words import plain
from client.server.workerconfig import Allowed, recalled
from workflows.temporal_names import TASK_QUEUE

if TYPE_CHECKING:
    from activities.settings import Settings
    from client.agents.agentfile import AgentFile, Draft
    from client.cli import reload
    from client.sdk.agent import AgentClient
    from workflows.api import AgentTask

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None)


@command(app)
async def run(
    common: CommonOptions,
    which: AgentOptions,
    starting: Starting,
    goal: Annotated[str | None, typer.Argument(help="What the agent shall do; - reads stdin.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the interrupted runs of this directory.")
    ] = False,
) -> int:
    """Run an agent and show what it does as it happens."""
    starting.check()
    if resume:
        if goal is not None or which.material is not None or which.image:
            raise UsageError(
                "--resume continues runs as they were started: leave goal, --material and --image out"
            )
        settings, allowed = _settings(common, which.chosen())
        from client.cli.following import resume_all

        return await resume_all(common, settings, allowed, starting)
    return await _run_one(common, which, starting, goal)


@command(app)
async def dev(common: CommonOptions, agent: AgentNames = None, base_url: BaseUrl = None) -> int:
    """Run the embedded server, a worker and the console until Ctrl-C. It reloads changed code."""
    from client.cli import reload, render

    agents, home = agent or [], common.data_dir
    process = reload.Process()
    try:
        beside = reload.beside(agents, home)
        try:
            await _work(common, agents, base_url, process, beside)
        except UsageError as error:
            if process.is_new:
                raise
            text = f"{error}\nno worker runs here until that is mended; Ctrl-C ends this command"
            if not process.has_said(text):
                note(text)
            await reload.changed_beside(agents, home, beside)
            process.replace(text)
    except asyncio.CancelledError:
        await process.leave(home)
        render.notes().print("stopped")
        return 0
    except BaseException:
        await process.leave(home)
        raise
    return process.replace()


async def _work(
    common: CommonOptions,
    agents: Sequence[str],
    base_url: str | None,
    process: reload.Process,
    beside: reload.Stamps,
) -> None:
    """Serve worker and console until changed code can take their place. `beside` are files as they were
    before anything was loaded: what changed since then is noticed."""
    from client.cli import reload, render
    from client.cli.worker import continue_stopped, own_worker, remember_for_workers, until_seen

    settings, allowed = _settings(
        common, *(Choice(agent=one, base_url=base_url) for one in agents or (None,))
    )
    notes = render.notes()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(common.client(settings, "terminal", codec=True))
        early = {path.resolve(): stamp for path, stamp in beside.items()}
        now = reload.stamps(reload.watched(agents, settings))
        before = {path: early.get(path, stamp) for path, stamp in now.items()}
        await remember_for_workers(client, settings, allowed)
        await stack.enter_async_context(own_worker(client, settings))
        await until_seen(client)
        await _serve_pages(client, settings, stack, everything=process.is_new)
        for line in reload.loaded_lines(agents, settings):
            notes.print(plain(line), soft_wrap=True)
        if process.is_new:
            notes.print("A worker runs here until Ctrl-C. Runs that are not over continue next time.")
        await _first_of(reload.changed(client, agents, settings, before), continue_stopped(client, settings))
        if client.ui:
            process.keep_server(settings.data_dir)


async def _serve_pages(
    client: AgentClient, settings: Settings, stack: AsyncExitStack, *, everything: bool
) -> None:
    """Serve the console, and what the Web UI needs; print where the console is, or where everything is."""
    from client.cli import render
    from client.console.app import serving_console
    from client.keys import signer

    notes = render.notes()
    link = await stack.enter_async_context(serving_console(client, signer()))
    remark = await _decode_for_ui(settings, stack) if client.ui else ""
    notes.print(f"Console   {link}", soft_wrap=True)
    if not everything:
        return
    notes.print(f"Temporal  {client.where}   task queue {TASK_QUEUE}")
    if client.ui:
        notes.print(f"Web UI    {client.ui}{remark}")
        notes.print(f"for Temporal's own command line: export TEMPORAL_ADDRESS={client.where}")


async def _first_of(*waiting: Coroutine[Any, Any, None]) -> None:
    """Wait for one of them, and cancel the others."""
    tasks = [asyncio.create_task(one) for one in waiting]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()


async def _decode_for_ui(settings: Settings, stack: AsyncExitStack) -> str:
    """Run a codec server for the Web UI of the embedded server; a remark if there can be none."""
    from client.server.codec import serving_codec
    from client.server.embedded import running_server

    record = running_server(settings.data_dir)
    if record is None or not record.codec_port:
        return "   (large and encrypted values are shown after `ratchet down`)"
    address = ("127.0.0.1", record.codec_port)
    open_to_ui = settings.model_copy(update={"codec_token": None})  # a person cannot give the UI a token
    with suppress(UsageError):  # another process of this directory serves there
        await stack.enter_async_context(serving_codec(open_to_ui, address, origins=record.origins))
    return ""


@command(app)
async def down(common: CommonOptions) -> None:
    """Stop the embedded server of this directory; its runs are kept."""
    from client.server.embedded import stop_server

    stopped = await stop_server(common.data_dir)
    if stopped is None:
        typer.echo(f"no server runs for {common.data_dir}")
    else:
        typer.echo(f"stopped the server at {stopped.address} (pid {stopped.pid})")


@command(app)
async def task(
    common: CommonOptions,
    which: AgentOptions,
    goal: Annotated[str | None, typer.Argument(help="What the agent shall do; - reads stdin.")] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="The worker elsewhere has other tools than this machine.")
    ] = False,
) -> None:
    """Print the input of a run, for `temporal workflow start --input-file`."""
    from activities.contracts import MaterialRef
    from activities.images import Images
    from activities.store.stores import Stores
    from client.sdk.material import goal_with_images, material_for

    chosen, draft = which.chosen().finish()
    settings = common.worker_settings(Allowed.of_agents(chosen))
    if not unchecked:
        Catalog.load(settings).check(chosen, draft)
    made = pinned(chosen.task(await read_text(goal, "goal")))
    stores = Stores(settings)
    if which.material is not None:
        _check_takes_material(made)
        found = await material_for(which.material, stores.sealed)
        made = made.model_copy(update={"material": found})
    if which.image:
        with_images = await goal_with_images(made.goal, which.image, Images(stores.sealed, stores.secret))
        made = made.model_copy(update={"goal": with_images})
    print_json(made)
    if which.image or isinstance(made.material, MaterialRef):
        note(
            f"Its material or images are in {stores.blobs.objects.where}. Where workers have another store, "
            "the run waits for them: give this command theirs (--data-dir, RATCHET_STORE or RATCHET_BLOBS)"
        )
    if chosen.modules:
        variable = shlex.quote(json.dumps(chosen.modules))
        note(
            "A worker takes this run only if it has loaded the modules of the agent: start it with "
            f"`ratchet dev --agent FILE` or RATCHET_MODULES={variable}"
        )


# -- starting a run --------------------


async def _run_one(common: CommonOptions, which: AgentOptions, starting: Starting, goal: str | None) -> int:
    choice = which.chosen()
    if goal is not None and choice.agent is None and is_agent_file(goal):
        raise UsageError(agent_file_text("run", goal))
    agent, draft = choice.finish()
    task = agent.task(await read_text(goal, "goal"))
    allowed = Allowed.of_agents(agent) | Allowed(openai_base_url=choice.base_url)
    is_embedded = common.remote() is None
    own = starting.worker or is_embedded
    settings = common.worker_settings(allowed, alone=is_embedded and not starting.detach)
    if own:
        _use_base_url(choice)
        await _check_here(agent, draft, settings, is_named=choice.agent is not None)
        # who continues the run may have another OPENAI_BASE_URL
        models = {role: with_provider(spec) for role, spec in task.models.items()}
        task = task.model_copy(update={"models": models})
    _check_material(which, task)
    from client.cli.following import modules_named, start
    from client.cli.worker import check_worker, own_worker, remember_for_workers, task_queue

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(common.client(settings))
        queue = task_queue(client, starting, own=own)
        if own:
            await remember_for_workers(client, settings, allowed, queue)
        has_worker = await check_worker(client, starting, own=own)
        if own and not starting.detach:
            _introduce(client, task)
            await stack.enter_async_context(own_worker(client, settings, queue))
        with modules_named(agent):
            return await start(
                client,
                task,
                starting,
                has_worker=has_worker,
                stays=not own,
                material=which.material,
                images=which.image or (),
                task_queue=queue,
            )
    raise AssertionError("unreachable: an exit stack swallows nothing")


async def _check_here(agent: AgentFile, draft: Draft, settings: Settings, *, is_named: bool) -> None:
    """Refuse what a worker of this process could not run. Raises UsageError. Where no agent `is_named`, the
    folder's agent files are shown, not taken: they load code, and the folder may be a stranger's."""
    catalog = Catalog.load(settings)
    catalog.check(agent, draft)
    for warning in (*catalog.warnings(agent), *_unbounded(catalog, agent)):
        note(f"warning: {plain(warning)}")
    try:
        check_key(agent.models, draft.place if is_named else None)
    except UsageError as error:
        here = [] if is_named else agents_here()
        if not here:
            raise
        names = ", ".join(map(str, here))
        raise UsageError(
            f"{error}.\nNo agent was named. This folder has {names}: `ratchet run --agent {here[0]} ...`"
        ) from error
    await check_servers(agent.models)


def _unbounded(catalog: Catalog, agent: AgentFile) -> Iterator[str]:
    """What this agent can do without a bound and with nobody asked, if that is known. The solver is loaded
    only where a rule may let calls of an unsafe tool pass so."""
    if not any(one.effect == "unsafe" and one.name in agent.tools for one in catalog.tools):
        return
    from client.proof.agent import judged, unbounded_text

    if found := unbounded_text(judged(catalog, agent)):
        yield f"{found}; `at_most` in a rule is a bound, `ratchet verify agent` shows each rule"


def _check_material(which: AgentOptions, task: AgentTask) -> None:
    """Raise a UsageError for material that the run could not take, and for an image that is none."""
    if which.material is not None:
        _check_takes_material(task)
        if not which.material.is_file():
            raise UsageError(f"{which.material} cannot be read as material: no such file")
    if which.image:
        from client.sdk.material import checked_image

        for path in which.image:
            checked_image(path)


def _check_takes_material(task: AgentTask) -> None:
    from workflows import registry

    with suppress(ValueError):  # a machine that is not known here is checked by the worker
        if not registry.machine(task.machine, task.machine_version).takes_material:
            raise UsageError(f"--material: machine {task.machine} takes no material; put it into the goal")


def _use_base_url(choice: Choice) -> None:
    """A server that was typed is the configured one: it gets the key, and every model may use it."""
    if choice.base_url is not None:
        os.environ["OPENAI_BASE_URL"] = choice.base_url


def _introduce(client: AgentClient, task: AgentTask) -> None:
    model = task.models["default"]
    note(f"agent {task.name} · machine {task.machine} · model {model.name}")
    scripts = [role for role, spec in task.models.items() if spec.provider == SCRIPTED]
    if len(scripts) == len(task.models):
        note("The model `scripted` is not a language model: it follows a script. Its tool calls are real.")
    elif scripts:
        note(f"{', '.join(scripts)}: no language model, but a script; `--model NAME` replaces every role")
    note(f"Temporal {client.where}")


def _settings(common: CommonOptions, *choices: Choice) -> tuple[Settings, Allowed]:
    """A worker's settings, and what the agent files need that are named."""
    allowed = Allowed()
    for choice in choices:
        _use_base_url(choice)
        allowed |= Allowed(base_urls=(choice.base_url,) if choice.base_url else ())
        if choice.agent is not None:
            agent, _ = choice.finish()
            allowed |= Allowed.of_agents(agent)
    settings = common.worker_settings(allowed)
    # the server that was typed for an earlier run of the directory gets the key again
    typed = recalled(settings.data_dir).openai_base_url
    if typed and not os.environ.get("OPENAI_BASE_URL", "").strip():
        os.environ["OPENAI_BASE_URL"] = typed
    return settings, allowed
