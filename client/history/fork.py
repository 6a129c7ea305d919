"""`fork`: a new run from a step of another one, which may be live or over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pydantic import Field, ValidationError

from activities.contracts import JsonObject, ModelSpec, Strict
from client.agents.yaml import problem_text
from client.errors import NoWorker, RatchetError, UnknownRun, UsageError, clear_errors
from client.history.checkpoints import Source
from client.history.recorded import beginning_of, executions_of
from client.history.replayer import plugin_of, replayed
from client.sdk.people import RunCommander
from workflows.api import AgentTask, Fork, Origin
from workflows.kernel.errors import bug_text
from workflows.kernel.machine import ToolsUnknown
from workflows.people import Approvals, DoneCall, People
from workflows.task import InvalidTask, first_step, program_for

__all__ = ["ForkChanges", "PastCall", "PastEffects", "forked_task", "past_effects"]


class ForkChanges(Strict):
    """What a fork changes. What the run knows from its source stays as it is."""

    limits: Mapping[str, float | int | None] = Field(
        default_factory=dict, description="names of `Limits`, such as model_calls; others stay"
    )
    models: Mapping[str, ModelSpec] = Field(default_factory=dict, description="by role; others stay")
    tools: tuple[str, ...] | None = Field(default=None, description="null: those of the source")
    options: JsonObject | None = Field(default=None, description="of the machine; null: those of the source")
    approvals: Approvals | None = Field(default=None, description="null: those of the source")
    people: People | None = Field(default=None, description="null: those of the source")
    message: str = Field(default="", description="for the model; the first question brings it")


def forked_task(source: Source, step: int, changes: ForkChanges | None = None, *, by: str = "") -> AgentTask:
    """The input of a new run that begins a step of another one again; `by` says who wants it.

    Raises:
        UsageError: the source has no such step, `by` is not a name, or the changes do not fit its agent.
        RatchetError: its machine cannot be made here, or its task is not known any more.
    """
    changes = changes or ForkChanges()
    point = source.checkpoint(step)
    task = source.task
    if task is None:
        raise RatchetError(f"the task of run {source.run} is not known any more, so it cannot be forked")
    records = tuple(one.model_dump(mode="json") for one in source.records if one.seq <= point.seq)
    origin = Origin(workflow_id=source.run, run_id=source.first_run_id, step=step)
    values = task.model_dump(mode="json")
    values["machine_version"] = source.program.machine.version
    values["limits"] |= dict(changes.limits)
    values["models"] |= {role: spec.model_dump(mode="json") for role, spec in changes.models.items()}
    values |= changes.model_dump(
        mode="json", include={"tools", "options", "approvals", "people"}, exclude_none=True
    )
    try:
        fork = Fork(origin=origin, records=records, message=changes.message, by=by)
    except ValidationError as error:
        raise UsageError(f"run {source.run} cannot be forked: {problem_text(error, Fork)}") from error
    values["fork"] = fork.model_dump(mode="json")
    try:
        forked = AgentTask.model_validate(values)
    except ValidationError as error:
        wrong = problem_text(error, AgentTask)
        raise UsageError(f"the changes do not fit run {source.run}: {wrong}") from error
    try:
        # the new run would refuse what does not fit; better before it starts
        with suppress(ToolsUnknown):  # a worker knows more than the tools' names
            first_step(forked, program_for(forked, None, source.run), now=point.at)
    except Exception as error:
        why = str(error) if isinstance(error, InvalidTask) else f"its machine fails: {bug_text(error)}"
        raise UsageError(f"run {source.run} cannot be forked from step {step}: {why}") from error
    return forked


# -- what a fork or a rollback may do a second time --------------------


class PastCall(DoneCall):
    """A call that changed something outside, or may have, with the run that made it."""

    run: str = ""
    """The run from which this one was forked, which has made it; empty: this run."""


@dataclass(frozen=True)
class PastEffects:
    """What a run has changed outside since a step; it may do it again from there, and so may a fork."""

    calls: tuple[PastCall, ...] = ()
    """Oldest first."""
    unknown: str = ""
    """Why some or all of it is not known; empty: that is all."""


async def past_effects(agents: RunCommander, run: str, step: int) -> PastEffects:
    """Calls that changed something outside since a step, also when no worker runs.

    Of a fork, what its source did between the two steps counts as well, and so does what its inner runs have
    done that are still under way.
    """
    return await _effects(agents, run, step, "")


async def _effects(agents: RunCommander, run: str, step: int, first_run_id: str) -> PastEffects:
    """Of the run with this first run id; empty: of the run that has the workflow id now."""
    try:
        async with clear_errors(agents.where, run):
            beginning = await beginning_of(agents.temporal, run)
        if first_run_id not in {"", beginning.first_run_id}:
            raise UnknownRun(f"run {run} is another one now: its id was used again")
        own = await _live_effects(agents, run, step)
        origin = beginning.task.fork.origin if beginning.task and beginning.task.fork else None
    except UnknownRun:
        result = await agents.archive.result(run)
        if result is None or first_run_id not in {"", result.run_id}:
            return PastEffects(unknown=f"Temporal has forgotten run {run}, and its end is not archived")
        own = PastEffects(_past(call for call in result.calls if call.step >= step))
        origin = result.origin
    except RatchetError as error:
        return PastEffects(unknown=str(error))
    if origin is None or step >= origin.step:
        return own
    earlier = await _effects(agents, origin.workflow_id, step, origin.run_id)
    kept = (
        call.model_copy(update={"run": call.run or origin.workflow_id})
        for call in earlier.calls
        if call.step < origin.step
    )
    return PastEffects((*kept, *own.calls), "; ".join(filter(None, (earlier.unknown, own.unknown))))


def _past(calls: Iterable[DoneCall]) -> tuple[PastCall, ...]:
    return tuple(PastCall(**dict(call)) for call in calls)


async def _live_effects(agents: RunCommander, run: str, step: int) -> PastEffects:
    """What a run has done since a step, and its inner runs under way, which tell it only when they end."""
    # Before the run is asked: what an inner run did that ends in between is then in the run's answer.
    about = await agents.description(run)
    done, present = await _own_calls(agents, run, step)
    calls = _past(done)
    unknown: list[str] = []
    for child in about.raw_description.pending_children:
        inner = await _effects(agents, child.workflow_id, 0, "")
        keys = {call.key for call in calls}
        names = {"step": present}
        calls += tuple(
            call.model_copy(update={**names, "activity_id": f"{child.workflow_id}: {call.activity_id}"})
            for call in inner.calls
            if call.key not in keys
        )
        unknown += [f"inner run {child.workflow_id}: {inner.unknown}"] if inner.unknown else []
    return PastEffects(calls, "; ".join(unknown))


async def _own_calls(agents: RunCommander, run: str, step: int) -> tuple[tuple[DoneCall, ...], int]:
    """The calls, and the present step: from the run, or from a replay when no worker answers."""
    try:
        return await agents.effects(run, step), (await agents.status(run)).step
    except NoWorker:
        async with clear_errors(agents.where, run):
            newest = (await executions_of(agents.temporal, run))[-1]
        found = await replayed(plugin_of(agents.temporal), newest.history)
        if found.failure is not None or found.instance is None or found.instance.drive is None:
            raise
        drive = found.instance.drive
        return tuple(drive.calls.done.since(step)), drive.run.suspension.snapshot.step
