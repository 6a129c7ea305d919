"""An inner machine as a workflow of its own: its task, what it is told, and what its end means to the outer
one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError
from temporalio import workflow
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from activities.contracts import EffectFailed, MachineEnded, RunMachine
from workflows import registry
from workflows.api import WORKFLOW_TYPE, AgentResult, AgentTask, Limits
from workflows.intake import faults
from workflows.kernel.ledger import SHARED
from workflows.kernel.stack import caps_left
from workflows.people import Command, DoneCall
from workflows.where import Where, bounded

__all__ = ["Children", "above", "child_id", "child_task", "ended"]

_ABOVE = "above"
"""Memo of a child run: the runs that it is one of, the outermost first."""
_GONE = "ExternalWorkflowExecutionNotFound"
_HEARD = "heard"
"""Memo of a child run: ids of signed commands that those had when it began."""
_RUNS: TypeAdapter[tuple[tuple[str, str], ...]] = TypeAdapter(tuple[tuple[str, str], ...])
_IDS: TypeAdapter[tuple[str, ...]] = TypeAdapter(tuple[str, ...])


class Children:
    """The child runs of a run, one at a time."""

    def __init__(self, task: AgentTask, origin: str) -> None:
        """`origin` is the id of the first run of the asking run's chain."""
        self._task, self._origin = task, origin
        self._handle: workflow.ChildWorkflowHandle[Any, AgentResult] | None = None
        self._calls: tuple[DoneCall, ...] = ()

    @property
    def at_work(self) -> str:
        """Workflow id of the one under way; empty: none."""
        return self._handle.id if self._handle else ""

    def take_calls(self) -> tuple[DoneCall, ...]:
        """What the one that has just ended did outside, once; whose result came to nobody may have done
        anything."""
        calls, self._calls = self._calls, ()
        return calls

    async def tell(self, command: Command) -> str:
        """Hand the command on as it came; the child's workflow id, empty when none is there to hear it."""
        handle = self._handle
        if handle is None:
            return ""
        try:
            await handle.signal("command", command)
        except ApplicationError as error:
            if error.type == _GONE:
                return ""  # it has just ended
            raise ValueError(f"child run {handle.id} cannot be told: {error}") from error
        return handle.id

    async def run(self, effect: RunMachine, where: Where) -> MachineEnded | EffectFailed:
        """Run one to its end. Raises a cancellation when the run is cancelled."""
        try:
            inner = child_task(self._task, effect, where)
        except ValidationError as error:
            return _refused(effect, faults(error))
        except ValueError as error:
            return _refused(effect, str(error))
        workflow_id = child_id(self._origin, where.activity_id)
        try:
            self._handle = await self._started(inner, workflow_id, effect.title[:200], where.heard)
            result = await self._handle
            self._calls = _calls(result, workflow_id)
            return ended(result, workflow_id)
        except ChildWorkflowError as error:
            if is_cancelled_exception(error):
                raise
            told = _told(error)
            self._calls = _calls(told, workflow_id)
            return _failed(error, told, workflow_id)
        except WorkflowAlreadyStartedError:
            text = f"a run {workflow_id} is there already; end it, or start this run under another id"
            return EffectFailed(error="fatal", type="child_exists", message=text)
        finally:
            self._handle = None

    async def _started(
        self, inner: AgentTask, workflow_id: str, summary: str, heard: tuple[str, ...]
    ) -> workflow.ChildWorkflowHandle[Any, AgentResult]:
        seconds = inner.limits.seconds
        # One that people can be asked in may wait longer; it keeps its own limit.
        most = None if seconds is None or not inner.people.unattended else timedelta(seconds=seconds + 60)
        return await workflow.start_child_workflow(
            WORKFLOW_TYPE,
            inner,
            id=workflow_id,
            result_type=AgentResult,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            execution_timeout=most,
            static_summary=summary,
            memo={_ABOVE: [*above(), (workflow.info().workflow_id, self._origin)], _HEARD: heard},
        )


def above() -> tuple[tuple[str, str], ...]:
    """The runs that this one is a child run of: workflow id and first run id of each; empty where there is
    none, or somebody else has put something under that name."""
    try:
        return _RUNS.validate_python(workflow.memo().get(_ABOVE, ()))
    except ValidationError:
        return ()


def heard_above() -> tuple[str, ...]:
    """Ids of the signed commands that the runs above had when this one began."""
    try:
        return _IDS.validate_python(workflow.memo().get(_HEARD, ()))
    except ValidationError:
        return ()


def child_id(origin: str, place: str) -> str:
    """The child's workflow id: this run's, the start of its first run id, and the effect's place.

    A run that is started again under its old id has other children.
    """
    return bounded(f"{workflow.info().workflow_id}/{origin[:8]}/{place}")


def _refused(effect: RunMachine, problem: str) -> EffectFailed:
    text = f"{effect.machine} cannot be run: {problem}"
    return EffectFailed(error="fatal", type="inner_machine", message=text)


def child_task(task: AgentTask, effect: RunMachine, where: Where) -> AgentTask:
    """The child's task: this run's models, the tools and limits that it is given, and what was spent.

    Raises ValueError for a machine or limits that there are not.
    """
    design = registry.design(effect.machine, effect.machine_version, newest=False)
    renamed = {role: task.models[name] for role, name in effect.roles.items() if name in task.models}
    caps = caps_left(effect, where.ledger)
    known = {name: cap for name, cap in caps.items() if name in Limits.model_fields}
    own = {"max_transitions": effect.limits.max_transitions, "depth": task.limits.depth}
    return AgentTask(
        goal=effect.goal,
        agent=f"{task.agent[:31]}.{design.name[:31]}",
        machine=design.name,
        machine_version=design.version,
        options=effect.options,
        models={**task.models, **renamed},
        instructions=effect.instructions,
        tools=effect.tools_given,
        limits=Limits.model_validate({"model_calls": None, **known, **own}),
        visibility=task.visibility,
        heartbeat_seconds=task.heartbeat_seconds,
        context=effect.context,
        values=effect.values,
        depth=where.depth,
        spent_before_usd=task.spent_before_usd + where.spent_usd,
        approvals=task.approvals,
        people=task.people.model_copy(update={"interrupt_every": None, "interrupt_states": ()}),
    )


def ended(result: AgentResult, workflow_id: str) -> MachineEnded:
    """What a child's result is to the outer machine."""
    return MachineEnded(
        machine=result.machine,
        ok=result.ok,
        exit_reason=result.exit_reason,
        answer=result.answer,
        error=result.error,
        outcome=result.outcome,
        spent=_shared(result.counters),
        workflow_id=workflow_id,
    )


def _calls(result: AgentResult | None, workflow_id: str) -> tuple[DoneCall, ...]:
    """What a child did outside, for the report before a rollback of the run above."""
    if result is not None:
        return tuple(
            call.model_copy(update={"place": bounded(f"{workflow_id}: {call.place}")})
            for call in result.calls
        )
    unknown = "nobody here knows what it did; its log may"
    return (
        DoneCall(
            step=0, branch=0, place=workflow_id, tool="(child run)", arguments={}, effect="unsafe",
            error=unknown, key=workflow_id,
        ),
    )  # fmt: skip


def _told(error: ChildWorkflowError) -> AgentResult | None:
    """A child that fails brings its whole result with the error, if it could still say so.

    What a child spent and did that was terminated or timed out is known to nobody here.
    """
    cause = error.cause
    details: Any = cause.details[0] if isinstance(cause, ApplicationError) and cause.details else None
    return AgentResult.model_validate(details) if isinstance(details, dict) else None


def _failed(
    error: ChildWorkflowError, told: AgentResult | None, workflow_id: str
) -> MachineEnded | EffectFailed:
    """What a child that failed is to the outer machine."""
    cause = error.cause
    if told is not None and told.raises is not None:
        return ended(told, workflow_id)
    kind = cause.type if isinstance(cause, ApplicationError) and cause.type else type(cause).__name__
    return EffectFailed(
        error="fatal",
        type=kind,
        message=f"{workflow_id}: {cause or error}",
        spent=_shared(told.counters) if told else {},
    )


def _shared(counters: dict[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in counters.items() if name in SHARED}
