"""The SDK: start agent runs, follow and command them, read what they did and what came out."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from client.context import Material, check_takes_context, context_for, store_of
from client.errors import DuplicateRun
from client.listing import GOAL_KEY, GOAL_SHOWN, start_attributes
from client.people import RunCommander
from client.rpc import clear_errors
from workflows.api import TASK_QUEUE, WORKFLOW_TYPE, AgentResult, AgentTask

if TYPE_CHECKING:
    from activities.settings import Settings
    from client.agentfile import AgentFile
    from client.checkpoints import CheckpointLine, StepSnapshot
    from client.compare import Comparison
    from client.fork import Changes
    from client.replay import Replayed
    from client.server import Ports

__all__ = ["AgentClient", "pinned"]


class AgentClient(RunCommander):
    """Everything a program does with runs; made by `AgentClient.connect`.

    What it reads is in `client/reading.py`, what people decide and order in `client/people.py`; going back
    in time in `client/checkpoints.py`, `fork.py`, `replay.py` and `compare.py`.
    """

    @classmethod
    def connect(
        cls,
        *,
        address: str | None = None,
        namespace: str | None = None,
        settings: Settings | None = None,
        ports: Ports | None = None,
        worker: bool = False,
        agents: Iterable[AgentFile] = (),
    ) -> AbstractAsyncContextManager[AgentClient]:
        """Connect: `async with AgentClient.connect() as agents`.

        To the server at `address`, or of Temporal's own configuration (`TEMPORAL_ADDRESS`, profiles);
        when none is named, to the embedded server of the data directory, which is started if need be.

        Args:
            address: HOST:PORT of a Temporal server.
            namespace: of that server.
            settings: data directory, tools and servers; default: from `RATCHET_...`, with what was named
                for earlier runs of the directory.
            ports: of the embedded server.
            worker: run a worker in this process for as long as the client is open.
            agents: agent files whose modules that worker loads, and whose model servers it may reach.

        Raises:
            UsageError: the address is none, or a variable of the environment has no good value.
            Unreachable: the server does not answer.
            ServerError: the embedded server does not start.
        """
        from client.connection import connected, remote_config
        from client.logs import log_as_the_program
        from client.workerconfig import Allowed, load_settings, with_allowed

        chosen = settings or load_settings()
        for agent in agents:
            chosen = with_allowed(chosen, Allowed.of(agent.modules, agent.models.values()))
        if worker:
            log_as_the_program()
        remote = remote_config(address, namespace)
        return connected(settings=chosen, remote=remote, ports=ports, worker=worker)

    # -- starting and stopping ------------------------------------------------------------------

    async def start(
        self, task: AgentTask, run_id: str | None = None, *, context: Material | None = None
    ) -> str:
        """Start a run; its id. The task of an agent file: `load_agent("my.yaml").task("the goal")`.

        `context` is the material that the run is about, for machines that take it: a text, its UTF-8,
        or a file. A long one is put into the store of the data directory, which the workers share.

        Raises:
            DuplicateRun: there is a run with that id, running or finished.
            UsageError: the machine takes no context, or what is given is no text.
        """
        run_id = run_id or new_run_id(task.agent)
        task = pinned(task)
        if context is not None:
            check_takes_context(task)
            found = await context_for(context, store_of(self.temporal))
            task = task.model_copy(update={"context": found})
        goal = " ".join(task.goal.split())[:GOAL_SHOWN]
        try:
            async with clear_errors(self.where, run_id):
                await self.temporal.start_workflow(
                    WORKFLOW_TYPE,
                    task,
                    id=run_id,
                    task_queue=TASK_QUEUE,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    memo={GOAL_KEY: goal},
                    search_attributes=start_attributes(task),
                    static_summary=goal,
                )
        except WorkflowAlreadyStartedError as error:
            raise DuplicateRun(
                f"a run with the id {run_id} exists already, so nothing was started; look at it "
                f"with `ratchet watch {run_id}`, or choose another id"
            ) from error
        return run_id

    async def run(
        self, task: AgentTask, run_id: str | None = None, *, context: Material | None = None
    ) -> AgentResult:
        """Start a run and wait for its result; see `start`."""
        return await self.result(await self.start(task, run_id, context=context))

    async def cancel(self, run_id: str) -> None:
        """Ask a run to stop; it still gives a result, with the exit reason `cancelled`."""
        async with clear_errors(self.where, run_id):
            await self.temporal.get_workflow_handle(run_id).cancel()

    # -- going back in time --------------------

    async def checkpoints(self, run_id: str) -> tuple[CheckpointLine, ...]:
        """The steps of a run that can be gone back to: for `rollback` and `fork`."""
        from client.checkpoints import checkpoints_of

        return await checkpoints_of(self, run_id)

    async def snapshot(self, run_id: str, step: int) -> StepSnapshot:
        """The state in which a step began; live, finished, or from the archive."""
        from client.checkpoints import snapshot_at

        return await snapshot_at(self, run_id, step)

    async def fork(
        self, run_id: str, step: int, *, changes: Changes | None = None, new_id: str | None = None
    ) -> str:
        """Start a new run from a step of another one, which may be running or over; its id."""
        from client.fork import fork

        return await fork(self, run_id, step, changes=changes, new_id=new_id)

    async def replay(self, run_id: str, step: int | None = None) -> Replayed:
        """Run it again from what models and tools said, without calling anything: what would differ now."""
        from client.replay import replay

        return await replay(self, run_id, step)

    async def compare(self, one: str, other: str) -> Comparison:
        """Two runs side by side by step."""
        from client.compare import compare

        return await compare(self, one, other)


def pinned(task: AgentTask) -> AgentTask:
    """The task with the newest version of its machine named, if it names none and we know the machine."""
    from workflows import registry

    with suppress(ValueError):
        newest = registry.design(task.machine, task.machine_version).version
        return task.model_copy(update={"machine_version": newest})
    return task


def new_run_id(agent: str) -> str:
    """An id for a new run: sorts by time, and is told apart at a glance."""
    return f"{agent}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
