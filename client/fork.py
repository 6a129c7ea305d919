"""`fork`: a new run from a step of another one, which may be live or over.

What came before the step is not paid for again; calls from the step on are made anew, and so are those
that change something outside: the new run has idempotency keys of its own. `effects` lists them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from client.agentfile import AgentFile, Draft, find_agent
from client.checkpoints import Source, source_of
from client.errors import NoWorker, RatchetError, UnknownRun, UsageError
from client.recorded import begun, parts_of
from client.rpc import clear_errors
from client.witness import replayed
from client.yamltext import YamlText, problems
from workflows import registry
from workflows.api import AgentTask, EffectsQuery, Fork, Origin
from workflows.kernel.machine import Machine
from workflows.people import DoneCall

if TYPE_CHECKING:
    from client.agent import AgentClient

__all__ = ["Changes", "Effects", "changed", "effects", "fork", "forked_task"]

RENAMED = {"name": "agent", "version": "machine_version"}
"""Keys of an agent file that have another name in a task."""
CANNOT = "Machine, machine version and material (`context`) stay those of the source run"


@dataclass(frozen=True)
class Changes:
    """What the new run has otherwise than its source."""

    agent: str | None = None
    """An agent file, or the name of a shipped agent; None: the source's agent."""
    goal: str | None = None
    settings: Sequence[str] = ()
    """`key=value` each, as `--set` takes them."""

    def draft(self, task: AgentTask | None) -> Draft:
        """The agent file, or the source's agent, with the settings laid over it.

        Raises:
            UsageError: the file cannot be read, or a setting makes no sense.
            RatchetError: neither an agent nor the source's task is known.
        """
        if self.agent is not None:
            draft = Draft(YamlText(find_agent(self.agent)))
        elif task is not None:
            draft = Draft(values=_as_file(task))
        else:
            raise RatchetError("the source's agent is not known: name it with --agent")
        for assignment in self.settings:
            draft.assign(assignment)
        return draft


@dataclass(frozen=True)
class Effects:
    """What a run has changed outside since a step; a fork from there does it again if it comes to it."""

    calls: tuple[DoneCall, ...] = ()
    """Oldest first."""
    unknown: str = ""
    """Why some or all of it is not known; empty: that is all."""


async def effects(agents: AgentClient, run_id: str, step: int) -> Effects:
    """What a fork from a step may do a second time: to be asked before `fork`, which does not ask.

    Needs no worker. Of a run that is a fork itself, what its source did since the step belongs to it, and so
    does what child runs have done that are still at work.
    """
    return await _effects(agents, run_id, step)


async def _effects(agents: AgentClient, run_id: str, step: int, first_run_id: str = "") -> Effects:
    """Of the run whose first execution has this id; empty: of the one that has the workflow id now."""
    try:
        async with clear_errors(agents.where, run_id):
            start = await begun(agents.temporal, run_id)
        if first_run_id not in {"", start.first_run_id}:
            raise UnknownRun(f"run {run_id} is another one now: its id was used again")
        own = await _live(agents, run_id, step)
        origin = start.task.fork.origin if start.task and start.task.fork else None
    except UnknownRun:
        own, origin = await _archived(agents, run_id, step, first_run_id)
    except RatchetError as error:
        return Effects(unknown=str(error))
    if origin is None or step >= origin.step:
        return own
    source = await _effects(agents, origin.workflow_id, step, origin.run_id)
    taken = tuple(call for call in source.calls if call.step < origin.step)
    return Effects((*taken, *own.calls), "; ".join(filter(None, (source.unknown, own.unknown))))


async def _archived(
    agents: AgentClient, run_id: str, step: int, first_run_id: str
) -> tuple[Effects, Origin | None]:
    """Of a run that Temporal has forgotten, and from which run it was forked."""
    result = await agents.archive.result(run_id)
    task, began_as = await agents.archive.begun(run_id)
    if result is None or (first_run_id and began_as != first_run_id):
        return Effects(unknown=f"Temporal has forgotten run {run_id}, and its end is not archived"), None
    if "calls" in result.model_fields_set:
        return Effects(tuple(call for call in result.calls if call.step >= step)), result.origin
    if task is not None and not task.tools:
        return Effects(), result.origin  # it had nothing to change anything with
    unknown = f"Temporal has forgotten run {run_id}; the archive has its log alone"
    return Effects(unknown=unknown), result.origin


async def _live(agents: AgentClient, run_id: str, step: int) -> Effects:
    """What a run knows itself to have done since a step, and its child runs at work, of which it knows
    only when they end. They belong to its newest step. Raises RatchetError."""
    async with clear_errors(agents.where, run_id):
        # Before the run is asked: what a child did that ends in between is told by the run.
        about = await agents.temporal.get_workflow_handle(run_id).describe()
    children = [child.workflow_id for child in about.raw_description.pending_children]
    calls, now = await _done_since(agents, run_id, step)
    unknown = ""
    for child in children:
        inside = await _effects(agents, child, 0)
        keys = {call.key for call in calls}
        calls += tuple(
            call.model_copy(update={"step": now, "place": f"{child}: {call.place}"})
            for call in inside.calls
            if call.key not in keys
        )
        unknown = unknown or (f"child run {child} is at work: {inside.unknown}" if inside.unknown else "")
    return Effects(calls, unknown)


async def _done_since(agents: AgentClient, run_id: str, step: int) -> tuple[tuple[DoneCall, ...], int]:
    """From the run itself; where no worker answers, from what the code of today makes of its history.
    And the step at which it is.

    Raises RatchetError.
    """
    try:
        return await agents.effects(run_id, step), (await agents.status(run_id)).step
    except NoWorker:
        async with clear_errors(agents.where, run_id):
            newest = (await parts_of(agents.temporal, run_id))[-1]
        seen = await replayed(agents.temporal, newest.history)
        if seen.failure is not None or seen.run is None or seen.run.stack is None:
            raise
    calls: list[DoneCall] = []
    while page := seen.run.effects(EffectsQuery(step=step, since=len(calls))).calls:
        calls += page
    return tuple(calls), seen.run.stack.first.step.snapshot.step


async def fork(
    agents: AgentClient, run_id: str, step: int, *, changes: Changes | None = None, new_id: str | None = None
) -> str:
    """Start a run that goes on where a step of another one begins; its id.

    Its log begins with the source's up to there, its ledger at 0. No earlier call is made again; calls from
    the step on are made anew, with keys of their own. Ask `effects` first which of them change something
    outside: nobody is asked here.

    Raises:
        UnknownRun: neither Temporal nor the archive knows the source.
        DuplicateRun: there is a run with the new id.
        UsageError: the source has no such step, or the changes do not fit it.
    """
    return await agents.start(await forked_task(agents, run_id, step, changes or Changes()), new_id)


async def forked_task(agents: AgentClient, run_id: str, step: int, changes: Changes) -> AgentTask:
    """The input of the new run. Raises as `fork`."""
    source = await source_of(agents, run_id)
    task = changed(source, changes)
    ready = Source.of(run_id, source.first_run_id, task, source.records)
    if ready.machine is None:
        raise UsageError(f"no run can be started with these changes: {ready.why}")
    point = ready.checkpoint(step)
    ready.snapshot(step)  # the machine as it is now can go on from there
    origin = Origin(workflow_id=run_id, run_id=source.first_run_id, step=step)
    records = tuple(r.model_dump(mode="json") for r in source.records if r.seq <= point.seq)
    return task.model_copy(update={"fork": Fork(origin=origin, records=records)})


def changed(source: Source, changes: Changes) -> AgentTask:
    """The task of the new run, without its fork.

    Raises:
        UsageError: the agent has another machine, or something in it is wrong.
        RatchetError: of a run that only the archive knows, agent or goal are not known and not given.
    """
    draft = changes.draft(source.task)
    agent = draft.finish()
    was = _machine_of(source)
    if agent.machine != was[0] or (agent.version and agent.version != was[1]):
        raise UsageError(
            f"run {source.run_id} ran on the machine {was[0]} (version {was[1]}), and the agent "
            f"{agent.name} has {agent.machine}{f' (version {agent.version})' if agent.version else ''}: its "
            f"states are others. {CANNOT}; start a new run for another machine"
        )
    _check_options(draft, agent, source.known())
    known = source.task.goal if source.task else None
    goal = known if changes.goal is None else changes.goal
    if goal is None:
        raise RatchetError(
            f"only the archive knows run {source.run_id}, and not what its goal was: give it with --goal"
        )
    made = agent.task(goal)
    old = source.task
    kept: dict[str, Any] = {"machine_version": was[1]}
    if old is not None:
        kept |= {"context": old.context, "values": old.values, "depth": old.depth}
    return made.model_copy(update=kept)


def _check_options(draft: Draft, agent: AgentFile, machine: Machine[Any]) -> None:
    """Raise a UsageError that names the options which the machine does not take."""
    kind = registry.design(machine.name, machine.version).options
    try:
        kind.model_validate(agent.options)
    except ValidationError as error:
        raise UsageError(
            draft.wrong((("options", *place), what) for place, what in problems(error, kind))
        ) from error


def _machine_of(source: Source) -> tuple[str, str]:
    machine = source.known()
    return machine.name, machine.version


def _as_file(task: AgentTask) -> dict[str, Any]:
    """A task's agent as an agent file would say it."""
    said = task.model_dump(mode="json")
    keys = {key: RENAMED.get(key, key) for key in AgentFile.model_fields}
    return {key: said[there] for key, there in keys.items() if there in said}
