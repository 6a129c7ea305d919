"""Commands that start runs, and what runs need: run, dev, down, task."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Never

import typer

from activities.contracts import MaterialRef
from activities.endpoints import with_provider
from client.agents.agentfile import SCRIPTED, Choice, agents_here
from client.agents.catalog import Catalog, check_key, check_servers
from client.cli import reload, render
from client.cli.interactive import LeftForLater, listening
from client.cli.live import LiveView, heartbeats
from client.cli.loaded import loaded_lines
from client.cli.options import (
    INTERRUPTED,
    AgentNames,
    AgentOptions,
    BaseUrl,
    CommonOptions,
    Json,
    Verbose,
    command,
    read_text,
)
from client.errors import (
    MachineBug,
    NoWorker,
    RatchetError,
    RunFailed,
    RunRefused,
    Unreadable,
    UsageError,
    clear_errors,
    resume_command,
)
from client.history.recorded import beginning_of
from client.keys import signer
from client.runs.words import counted, plain
from client.sdk.agent import pinned
from client.sdk.material import checked_image, goal_with_images, material_for
from client.server.connection import has_worker
from client.server.workerconfig import Allowed, recalled, remember, settings_from_environment
from workflows import registry
from workflows.api import TASK_QUEUE
from workflows.people import Request

if TYPE_CHECKING:
    from activities.settings import Settings
    from client.agents.agentfile import AgentFile, Choice, Draft
    from client.runs.listing import RunLine
    from client.sdk.agent import AgentClient
    from workflows.api import AgentTask
    from workflows.kernel.log import Record

__all__ = ["Starting", "app", "check_worker", "follow", "own_worker", "remember_for_workers", "start"]

app = typer.Typer(rich_markup_mode=None)
MAX_NAMED_RUNS = 10
"""Runs that a message names."""
LOOK_SECONDS = 3.0
"""How often `ratchet dev` looks for runs whose command has stopped."""
BEGUN_SECONDS = 10
"""How long `--detach` waits for a worker to begin the run, and `dev` until the server knows its worker."""
OTHER_WORKERS = (
    "Stop the other worker, or start it with `ratchet dev --agent FILE` (elsewhere with RATCHET_MODULES); or "
    "use another directory with --data-dir."
)


@dataclass(frozen=True)
class Starting:
    """How a run is started and followed; shared by `run` and `fork`."""

    run_id: Annotated[str | None, typer.Option("--id", help="Id of the new run; made up if left out.")] = None
    detach: Annotated[bool, typer.Option("--detach", help="Start it and do not wait for it.")] = False
    worker: Annotated[
        bool, typer.Option("--worker", help="Run a worker here although the server is elsewhere.")
    ] = False
    verbose: Verbose = False
    as_json: Json = False

    def check(self) -> None:
        """Raise a UsageError for options that exclude each other."""
        if self.detach and self.worker:
            raise UsageError(
                "--worker runs a worker here until the run is over, --detach does not wait for the run: "
                "leave one out. Nothing was started; `ratchet dev` is a worker that stays"
            )

    def task_queue(self, client: AgentClient, *, own: bool) -> str:
        """The task queue of the new run. At the embedded server a worker that runs for this run alone (`own`)
        has one of its own: on the shared one it would continue other runs of the directory, too."""
        alone = own and not self.detach and client.ui is not None
        return f"{TASK_QUEUE}-{secrets.token_hex(4)}" if alone else TASK_QUEUE


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
        return await _resume_all(common, which.chosen(), starting)
    return await _run_one(common, which, starting, goal)


@command(app)
async def dev(common: CommonOptions, agent: AgentNames = None, base_url: BaseUrl = None) -> int:
    """Run the embedded server, a worker and the console until Ctrl-C. It reloads changed code."""
    from client.console.app import serving_console

    agents = agent or []
    settings, allowed = _settings(
        common, *(Choice(agent=one, base_url=base_url) for one in agents or (None,))
    )
    note, lock = render.notes(), None
    try:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(common.client(settings, "terminal", codec=True))
            reload.let_go()
            await remember_for_workers(client, settings, allowed)
            before = reload.stamps(reload.watched(agents, settings))
            await stack.enter_async_context(own_worker(client, settings))
            await _until_seen(client)
            link = await stack.enter_async_context(serving_console(client, signer()))
            note.print(f"Console   {link}", soft_wrap=True)
            note.print(f"Temporal  {client.where}   task queue {TASK_QUEUE}")
            if client.ui:
                note.print(f"Web UI    {client.ui}{await _decode_for_ui(settings, stack)}")
                note.print(f"for Temporal's own command line: export TEMPORAL_ADDRESS={client.where}")
            for line in loaded_lines(agents, settings):
                note.print(plain(line), soft_wrap=True)
            note.print("A worker runs here until Ctrl-C. Runs that are not over continue next time.")
            await _until_changed(client, settings, reload.changed(agents, settings, before))
            lock = reload.held(settings.data_dir) if client.ui else None
    except asyncio.CancelledError:
        note.print("stopped")
        return 0
    return reload.start_again(lock)


async def _until_changed(client: AgentClient, settings: Settings, changed: Coroutine[Any, Any, None]) -> None:
    """Continue runs whose own command stops, until the code has changed."""
    tasks = {asyncio.create_task(changed), asyncio.create_task(_continue_stopped(client, settings))}
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
    from activities.images import Images
    from activities.store.stores import Stores

    chosen, draft = which.chosen().finish()
    settings = common.worker_settings(Allowed.of(chosen.modules, chosen.models.values()))
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
    render.print_json(made)
    if which.image or isinstance(made.material, MaterialRef):
        render.note(
            f"Its material or images are in {stores.blobs.objects.where}. Where workers have another store, "
            "the run waits for them: give this command theirs (--data-dir, RATCHET_STORE or RATCHET_BLOBS)"
        )
    if chosen.modules:
        variable = shlex.quote(json.dumps(chosen.modules))
        render.note(
            "A worker takes this run only if it has loaded the modules of the agent: start it with "
            f"`ratchet dev --agent FILE` or RATCHET_MODULES={variable}"
        )


# -- starting a run --------------------


async def _run_one(common: CommonOptions, which: AgentOptions, starting: Starting, goal: str | None) -> int:
    choice = which.chosen()
    agent, draft = choice.finish()
    task = pinned(agent.task(await read_text(goal, "goal")))
    allowed = Allowed.of(agent.modules, agent.models.values())
    allowed |= Allowed(openai_base_url=choice.base_url)
    settings = common.worker_settings(allowed)
    own = starting.worker or common.remote() is None
    if own:
        _use_base_url(choice)
        await _check_here(agent, draft, settings, is_named=choice.agent is not None)
        # who continues the run may have another OPENAI_BASE_URL
        models = {role: with_provider(spec) for role, spec in task.models.items()}
        task = task.model_copy(update={"models": models})
    if which.material is not None:
        _check_takes_material(task)
        if not which.material.is_file():
            raise UsageError(f"{which.material} cannot be read as material: no such file")
    for path in which.image or ():
        checked_image(path)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(common.client(settings))
        queue = starting.task_queue(client, own=own)
        if own:
            await remember_for_workers(client, settings, allowed, queue)
        has_worker = await check_worker(client, starting, own=own)
        if own and not starting.detach:
            _introduce(client, task)
            await stack.enter_async_context(own_worker(client, settings, queue))
        with _modules_named(agent):
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


def _unbounded(catalog: Catalog, agent: AgentFile) -> Iterator[str]:
    """What this agent can do without a bound and with nobody asked, if that is known. The solver is loaded
    only where a rule may let calls of an unsafe tool pass so."""
    if not any(one.effect == "unsafe" and one.name in agent.tools for one in catalog.tools):
        return
    from client.proof.agent import judged, unbounded_text

    if found := unbounded_text(judged(catalog, agent)):
        yield f"{found}; `at_most` in a rule is a bound, `ratchet verify agent` shows each rule"


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
                render.note(f"run {plain(begun[0])}")
            return await follow(
                client, begun[0], as_json=starting.as_json, verbose=starting.verbose, since=since
            )
        if has_worker:
            await _until_begun(client, begun[0])
    except asyncio.CancelledError as end:
        return _interrupted(begun, end, stays=stays)
    if starting.as_json:
        render.print_json({"id": begun[0]}, indent=None)
    else:
        typer.echo(plain(begun[0]))
    if not has_worker:
        render.note(f"no worker runs; {resume_command(embedded=client.ui is not None)} continues it")
    return 0


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
    render.note(f"no worker has begun {run_id} within {BEGUN_SECONDS} s; `ratchet watch {run_id}` follows it")


@contextmanager
def _modules_named(agent: AgentFile) -> Iterator[None]:
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


async def _check_here(agent: AgentFile, draft: Draft, settings: Settings, *, is_named: bool) -> None:
    """Refuse what a worker of this process could not run. Raises UsageError. Where no agent `is_named`, the
    folder's agent files are shown, not taken: they load code, and the folder may be a stranger's."""
    catalog = Catalog.load(settings)
    catalog.check(agent, draft)
    for warning in (*catalog.warnings(agent), *_unbounded(catalog, agent)):
        render.note(f"warning: {plain(warning)}")
    try:
        check_key(agent.models.values())
    except UsageError as error:
        here = [] if is_named else agents_here()
        if not here:
            raise
        names = ", ".join(map(str, here))
        raise UsageError(
            f"{error}.\nNo agent was named. This folder has {names}: `ratchet run --agent {here[0]} ...`"
        ) from error
    await check_servers(agent.models)


def _check_takes_material(task: AgentTask) -> None:
    with suppress(ValueError):  # a machine that is not known here is checked by the worker
        if not registry.machine(task.machine, task.machine_version).takes_material:
            raise UsageError(f"--material: machine {task.machine} takes no material; put it into the goal")


def _use_base_url(choice: Choice) -> None:
    """A server that was typed is the configured one: it gets the key, and every model may use it."""
    if choice.base_url is not None:
        os.environ["OPENAI_BASE_URL"] = choice.base_url


def _introduce(client: AgentClient, task: AgentTask) -> None:
    model = task.models["default"]
    render.note(f"agent {task.name} · machine {task.machine} · model {model.name}")
    scripts = [role for role, spec in task.models.items() if spec.provider == SCRIPTED]
    if len(scripts) == len(task.models):
        render.note(
            "The model `scripted` is not a language model: it follows a script. Its tool calls are real."
        )
    elif scripts:
        render.note(
            f"{', '.join(scripts)}: no language model, but a script; `--model NAME` replaces every role"
        )
    render.note(f"Temporal {client.where}")


def _interrupted(runs: Sequence[str], end: asyncio.CancelledError, *, stays: bool = False) -> int:
    """Say how the runs go on that this command followed; its exit code."""
    names = plain(", ".join(runs))
    why = "left for later" if isinstance(end, LeftForLater) else "interrupted"
    if runs and stays:
        render.note(
            f"{why}; {names} continues at its worker elsewhere: `ratchet watch {names}` follows it, "
            f"`ratchet cancel {names}` stops it"
        )
    elif runs:
        kept = "is" if len(runs) == 1 else "are"
        render.note(f"{why}; {names} {kept} kept. {resume_command(embedded=True)} continues")
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
        render.note(f"while this command or `ratchet dev` runs: {page}")
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
                    render.print_json(one, indent=None)
    result = await client.result(run_id)
    if view is None:
        render.print_json(result, indent=None)
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


# -- interrupted runs --------------------


async def _resume_all(common: CommonOptions, choice: Choice, how: Starting) -> int:
    """Continue the interrupted runs of the directory until each is over; the exit code."""
    settings, allowed = _settings(common, choice)
    running: list[str] = []
    try:
        async with common.client(settings) as client:
            await remember_for_workers(client, settings, allowed)
            running += _in_turn(await client.list(running=True))
            if not running:
                render.note("no run of this directory is interrupted")
                return 0
            codes = []
            async with own_worker(client, settings):
                for run_id in running:
                    render.note(f"run {plain(run_id)}")
                    try:
                        codes.append(await follow(client, run_id, as_json=how.as_json, verbose=how.verbose))
                    except RunFailed as error:  # the other runs continue
                        render.note(str(error))
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


def _settings(common: CommonOptions, *choices: Choice) -> tuple[Settings, Allowed]:
    """A worker's settings, and what the agent files need that are named."""
    allowed = Allowed()
    for choice in choices:
        _use_base_url(choice)
        allowed |= Allowed(base_urls=(choice.base_url,) if choice.base_url else ())
        if choice.agent is not None:
            agent, _ = choice.finish()
            allowed |= Allowed.of(agent.modules, agent.models.values())
    settings = common.worker_settings(allowed)
    # the server that was typed for an earlier run of the directory gets the key again
    typed = recalled(settings.data_dir).openai_base_url
    if typed and not os.environ.get("OPENAI_BASE_URL", "").strip():
        os.environ["OPENAI_BASE_URL"] = typed
    return settings, allowed


@asynccontextmanager
async def own_worker(client: AgentClient, settings: Settings, queue: str = TASK_QUEUE) -> AsyncIterator[None]:
    """A worker in this process. On the queue that workers share it serves the directory's other runs, too:
    those that are not over are named first; elsewhere they are counted.

    Raises:
        UsageError: a run that this worker would continue needs a key or a module that it lacks.
    """
    lines = () if client.ui is None else await client.list(running=True)
    queues = {queue}
    if queue != TASK_QUEUE:
        if lines:
            others = f"{counted(len(lines), 'other run')} of this directory"
            render.note(f"left alone: {others} not over; `ratchet list --running` shows what each waits for")
    else:
        await _check_waiting(client, settings, lines)
        _name_unfinished(lines, "continued by this worker")
        queues |= {line.task_queue for line in lines}
    async with client.connection.working(*queues):
        yield


async def _until_seen(client: AgentClient) -> None:
    """Other commands ask the server which workers there are; it hears of this one with its first poll."""
    with suppress(TimeoutError):
        async with asyncio.timeout(BEGUN_SECONDS):
            while not await has_worker(client.temporal):  # noqa: ASYNC110  # the server tells nobody
                await asyncio.sleep(0.05)


async def _continue_stopped(client: AgentClient, settings: Settings) -> Never:
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
                        await _check_waiting(client, settings, stopped)
                    except UsageError as error:
                        refused.add(queue)
                        render.note(str(error))
                        continue
                    _name_unfinished(stopped, "continued by this worker")
                    workers[queue] = await stack.enter_async_context(AsyncExitStack())
                    await workers[queue].enter_async_context(client.connection.working(queue))


async def _check_waiting(client: AgentClient, settings: Settings, lines: Iterable[RunLine]) -> None:
    """Raise a UsageError when this worker would break a waiting run."""
    catalog = Catalog.load(settings)
    problems = []
    for line in lines:
        extended = (await client.description(line.id)).raw_description.workflow_extended_info
        if extended.cancel_requested:
            continue
        try:
            async with clear_errors(client.where, line.id):
                waiting = (await beginning_of(client.temporal, line.id)).task
        except Unreadable as error:
            problems.append(f"  {line.id}: {error}")
            continue
        if waiting is not None:
            problems += [f"  {line.id}: {problem}" for problem in _lacking(waiting, catalog, settings)]
    if problems:
        raise UsageError(
            "a worker here would break runs that wait in this directory:\n"
            + "\n".join(problems)
            + "\nGive them what they need, end them with `ratchet cancel RUN`, or name another directory "
            "with --data-dir"
        )


def _lacking(task: AgentTask, catalog: Any, settings: Settings) -> Iterator[str]:
    """What a run needs and this worker lacks."""
    if not any(machine.name == task.machine for machine in catalog.machines):
        yield f"there is no machine {task.machine}; name its module with RATCHET_MODULES"
    if missing := [name for name in task.tools if catalog.tool_problem(name)]:
        advice = "name its module with RATCHET_MODULES, or its MCP server with RATCHET_MCP"
        yield f"there is no tool {', '.join(missing)}; {advice}"
    typed = recalled(settings.data_dir).openai_base_url
    server = os.environ.get("OPENAI_BASE_URL", "").strip()
    if any(typed and spec.base_url == typed != server for spec in task.models.values()):
        yield f"it was given the server {typed}; continue with `ratchet run --resume`"
    try:
        check_key(task.models.values())
    except UsageError as error:
        yield str(error)


def _name_unfinished(lines: Sequence[RunLine], what_follows: str) -> None:
    """Say which runs of the directory are not over."""
    rows = [
        f"  {plain(line.id)}  agent {plain(line.agent)}: {render.one_line(line.goal, 60)}"
        f"{plain(_waits(line))}"
        for line in lines[:MAX_NAMED_RUNS]
    ]
    if len(lines) > MAX_NAMED_RUNS:
        rows.append(f"  and {len(lines) - MAX_NAMED_RUNS} more: ratchet list --running")
    if rows:
        render.note("\n".join([f"Not over in this directory, and {what_follows}:", *rows]))


def _waits(line: RunLine) -> str:
    """The state of a run; the command for one that only continues when a person acts."""
    if not line.waiting:
        return f"   in state {line.state}" if line.state else ""
    if line.waiting == "paused":
        return f"   paused: ratchet resume {line.id}"
    return f"   waits for a person ({line.waiting}): ratchet inbox {line.id}"
