"""The SDK: start runs of agents, follow and command them, read what they did and what came out."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from client.agents.catalog import Catalog, pinned, without_broken_modules
from client.agents.yaml import dotted
from client.errors import DuplicateRun, ServerBusy, UsageError, clear_errors
from client.runs.attributes import start_attributes, start_memo
from client.sdk.people import RunCommander
from client.server.connection import connected
from client.server.remote import remote_config
from client.server.workerconfig import Allowed, load_settings, settings_from_environment
from workflows.api import TASK_QUEUE, WORKFLOW_TYPE, AgentTask, RunResult

if TYPE_CHECKING:
    from activities.settings import Settings
    from client.agents.agentfile import AgentFile
    from client.history.checkpoints import StepSnapshot
    from client.history.compare import Comparison
    from client.history.fork import ForkChanges, PastEffects
    from client.history.replay import ReplayResult
    from client.history.resets import Reset
    from client.keys import Signer
    from client.runs.steps import CheckpointLine
    from client.server.embedded import Ports

__all__ = ["AgentClient"]
ID_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
"""Of the random part of an id; without those that look alike."""
START_MARK = "start"
"""Name in a run's memo of what tells one call of `start` from all others."""
START_SECONDS = 60
"""How long `start` tries again where the server is busy."""
LONGEST_PAUSE_SECONDS = 5.0
"""Seconds between two of these tries."""


class AgentClient(RunCommander):
    """Everything that a program does with runs; made by `AgentClient.connect`.

    `client/runs/reader.py` and `connected.py` have what it reads, `client/sdk/people.py` decisions and
    commands. A run is named by its workflow id.
    """

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        *,
        address: str | None = None,
        namespace: str | None = None,
        settings: Settings | None = None,
        ports: Ports | None = None,
        worker: bool = False,
        agents: Iterable[AgentFile] = (),
    ) -> AsyncIterator[AgentClient]:
        """Connect: `async with AgentClient.connect() as agents`.

        To the server at `address` or of Temporal's own configuration (TEMPORAL_ADDRESS, profiles). When none
        is named, to the embedded server of the data directory, which is started if it does not run.

        Args:
            address: HOST:PORT of a Temporal server.
            namespace: of that server.
            settings: data directory, tools and model servers; default: from `RATCHET_...`, with what earlier
                runs of the directory named.
            ports: of the embedded server.
            worker: run a worker in this process for as long as the client is open.
            agents: agent files whose modules that worker loads, and whose model servers it may reach.

        Raises:
            UsageError: the address or a variable of the environment is wrong, or an agent would get a tool,
                machine or provider of a file that it does not name and an earlier command did.
            Unreachable: the server does not answer.
            ServerError: the embedded server does not start.
        """
        import structlog

        agents = tuple(agents)
        allowed = Allowed.of_agents(*agents)
        settings = allowed.added_to(settings) if settings else _remembered(allowed, agents if worker else ())
        if worker and not structlog.is_configured():  # by itself it prints, and not to the program's log
            structlog.stdlib.recreate_defaults(log_level=None)
        remote = remote_config(address, namespace)
        async with connected(settings=settings, remote=remote, ports=ports, worker=worker) as connection:
            yield cls(connection)

    # -- starting and stopping --------------------

    async def start(
        self,
        task: AgentTask,
        run: str | None = None,
        *,
        material: str | bytes | Path | None = None,
        images: Sequence[bytes | Path] = (),
        task_queue: str = TASK_QUEUE,
    ) -> str:
        """Start a run; its id. A task comes from an agent file: `load_agent("my.yaml").task("the goal")`.
        Where the server is busy, it is tried again for a minute.

        Args:
            run: the id; default: a new one that begins with the agent's name.
            material: what the run is about, for machines that take it: a text, its UTF-8, or a file. A long
                one is put into the store of the data directory, which the workers share.
            images: PNG, JPEG, GIF or WebP that the model sees with the goal; kept in that store, too.
            task_queue: of the workers that are to serve it and its child runs.

        Raises:
            DuplicateRun: a run with that id exists, live or over.
            UsageError: a worker would refuse the task, the machine takes no material, the material is not
                text, or an image cannot be used. The id is not used up.
            ServerBusy: the server has too much to do. The run may have been started all the same.
        """
        run = run or new_run_id(task.name)
        task = pinned(task)
        if material is not None:
            task = await self._with_material(task, material)
        if images:
            task = await self._with_images(task, images)
        check_task(task, run)
        until, pause = time.monotonic() + START_SECONDS, 0.2
        mark = secrets.token_hex(8)
        while True:
            try:
                await self._start(task, run, task_queue, mark)
                return run
            except ServerBusy:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _start(self, task: AgentTask, run: str, task_queue: str, mark: str) -> None:
        """One try. One before it may have started the run, and only its answer was lost: `mark` tells."""
        memo = start_memo(task)
        async with clear_errors(self.where, run):
            try:
                await self.temporal.start_workflow(
                    WORKFLOW_TYPE,
                    task,
                    id=run,
                    task_queue=task_queue,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    memo={**memo, START_MARK: mark},
                    search_attributes=start_attributes(task),
                    static_summary=memo["goal"],
                )
            except WorkflowAlreadyStartedError as error:
                started = await self.temporal.get_workflow_handle(run).describe()
                if await started.memo_value(START_MARK, default="") == mark:
                    return
                about = f"a run with the id {run} exists already, so nothing was started"
                if started.close_time is None:
                    what = f"`ratchet watch {run}` follows it; or choose another id"
                else:
                    what = (
                        "it is over, and an id counts once, even for a run that was refused: choose another "
                        f"id, or none. `ratchet show {run}` shows what became of it"
                    )
                raise DuplicateRun(f"{about}; {what}") from error

    async def _with_material(self, task: AgentTask, material: str | bytes | Path) -> AgentTask:
        from client.sdk.material import material_for
        from workflows import registry

        with suppress(ValueError):  # a machine that is not known here is checked by the worker
            if not registry.machine(task.machine, task.machine_version).takes_material:
                raise UsageError(
                    f"machine {task.machine} takes no material; put it into the goal, or let a tool read it"
                )
        found = await material_for(material, self.connection.stores.sealed)
        return task.model_copy(update={"material": found})

    async def _with_images(self, task: AgentTask, images: Sequence[bytes | Path]) -> AgentTask:
        from activities.images import Images
        from client.sdk.material import goal_with_images

        stores = self.connection.stores
        goal = await goal_with_images(task.goal, images, Images(stores.sealed, stores.secret))
        return task.model_copy(update={"goal": goal})

    async def run(self, task: AgentTask, run: str | None = None, **more: Any) -> RunResult:
        """Start a run and wait for its result; see `start`, which takes the same, and `result`."""
        return await self.result(await self.start(task, run, **more))

    async def cancel(self, run: str, *, force: bool = False) -> None:
        """Ask a run to stop; it still gives a result, with the exit reason `cancelled`.

        Args:
            force: end it at once, without a result and without the end of its log: for a run that cannot go
                on. What its calls did is then unknown.
        """
        async with clear_errors(self.where, run):
            handle = self.temporal.get_workflow_handle(run)
            await (handle.terminate("ended by force") if force else handle.cancel())

    # -- the past of a run --------------------

    async def checkpoints(self, run: str) -> tuple[CheckpointLine, ...]:
        """The steps of a run: those that `rollback` and `fork` can begin again, and those left behind."""
        from client.runs.steps import checkpoint_lines

        return checkpoint_lines(run, (await self.log(run, full=True)).records)

    async def snapshot(self, run: str, step: int) -> StepSnapshot:
        """The state of a run when a step began; live, over, or from the archive."""
        from client.history.checkpoints import snapshot_at, source_of

        return snapshot_at(await source_of(self, run), step)

    async def effects_to_repeat(self, run: str, step: int) -> PastEffects:
        """What a fork from this step, or a rollback to it, may do a second time; neither asks anybody.

        Of a fork, what the runs from which it came did since the step counts as well.
        """
        from client.history.fork import past_effects

        return await past_effects(self, run, step)

    async def fork(
        self,
        run: str,
        step: int,
        changes: ForkChanges | None = None,
        *,
        new_id: str | None = None,
        by: str | Signer = "",
    ) -> str:
        """Start a new run from a step of another one, live or over; its id.

        Its log begins with the source's records, its ledger at 0. No earlier call is made again; calls from
        the step on are made again, with idempotency keys of their own.

        Args:
            by: who forks it, for the new run's log. The name is only claimed: a key does not sign a fork.

        Raises:
            UsageError: the source has no such step, `by` is not a name, or the changes do not fit.
            DuplicateRun: a run with the new id exists.
        """
        from client.history.checkpoints import source_of
        from client.history.fork import forked_task

        source = await source_of(self, run)
        name = by if isinstance(by, str) else by.name
        return await self.start(forked_task(source, step, changes, by=name), new_id)

    async def replay(self, run: str, step: int | None = None) -> ReplayResult:
        """Run it again from its history with today's code; nothing is called, and nothing changes.

        Args:
            step: compare only what came before this step began for the last time.
        """
        from client.history.checkpoints import source_of
        from client.history.replay import replay

        before = None if step is None else (await source_of(self, run)).checkpoint(step).seq + 1
        return await replay(self, run, before)

    async def resets(self, run: str) -> tuple[Reset, ...]:
        """When Temporal reset a run, by whom and to which step, and which calls of the dropped part stand."""
        from client.history.resets import resets_of

        return await resets_of(self, run)

    async def compare(self, one: str, other: str) -> Comparison:
        """Two runs step by step, and the first difference."""
        from client.history.compare import compare

        return await compare(self, one, other)


def _remembered(allowed: Allowed, agents: Sequence[AgentFile]) -> Settings:
    """The settings of the environment, with what commands of the directory have named: without a module that
    cannot be loaded any more, or that has what a newer one has. Raises UsageError where a worker would run
    something else than what one of these agents names."""
    named = (*settings_from_environment().modules, *allowed.modules)
    settings, messages = without_broken_modules(load_settings(allowed=allowed), named)
    for message in messages:
        logging.getLogger("ratchet").warning(message)
    if agents and settings.modules:
        catalog = Catalog.load(settings, allowed.modules)
        lines = [
            f"agent {agent.name}: {dotted(place)}: {what}"
            for agent in agents
            for place, what in catalog.not_named(agent)
        ]
        if lines:
            raise UsageError("\n".join(lines))
    return settings


def check_task(task: AgentTask, run: str) -> None:
    """Refuse what a worker would refuse, before the id is used. What depends on modules that are not loaded
    here, and on what tools look like, is left to the worker. Raises UsageError."""
    from workflows.kernel.errors import InputRefused, NotLoaded, bug_text
    from workflows.kernel.machine import ToolsUnknown
    from workflows.task import InvalidTask, program_for

    try:
        program = program_for(task, None, run)
        if task.fork is None and task.carry is None:
            program.begin()
    except ToolsUnknown:
        return
    except InvalidTask as error:
        if not isinstance(error.__cause__, NotLoaded):
            raise UsageError(str(error)) from error
    except InputRefused as error:
        raise UsageError(str(error)) from error
    except Exception as error:  # a worker would fail with it for as long as it lives
        raise UsageError(
            f"the machine {task.machine} cannot begin, so nothing was started: {bug_text(error)}"
        ) from error


def new_run_id(agent: str) -> str:
    """An id for a new run, short enough to be typed: `clerk-k3v9x2mp`."""
    return f"{agent}-{''.join(secrets.choice(ID_LETTERS) for _ in range(8))}"
