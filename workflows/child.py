"""An inner machine as a workflow of its own: its task, and what its end means to the outer one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import ValidationError
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
from workflows.where import Where, bounded

__all__ = ["child_id", "child_task", "ended", "run_child"]


async def run_child(
    task: AgentTask, effect: RunMachine, where: Where, origin: str
) -> MachineEnded | EffectFailed:
    """Run it to its end; `origin` is the id of the first run of the asking run's chain.

    Raises a cancellation when the run is cancelled.
    """
    try:
        inner = child_task(task, effect, where)
    except ValidationError as error:
        return _refused(effect, faults(error))
    except ValueError as error:
        return _refused(effect, str(error))
    workflow_id = child_id(origin, where.activity_id)
    seconds = inner.limits.seconds
    try:
        result: AgentResult = await workflow.execute_child_workflow(
            WORKFLOW_TYPE,
            inner,
            id=workflow_id,
            result_type=AgentResult,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            # One that people can be asked in may wait longer; it keeps its own limit.
            execution_timeout=None
            if seconds is None or not task.people.unattended
            else timedelta(seconds=seconds + 60),
            static_summary=effect.title[:200],
        )
    except ChildWorkflowError as error:
        if is_cancelled_exception(error):
            raise
        return _failed(error, workflow_id)
    except WorkflowAlreadyStartedError:
        text = f"a run {workflow_id} is there already; end it, or start this run under another id"
        return EffectFailed(error="fatal", type="child_exists", message=text)
    return ended(result, workflow_id)


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


def _failed(error: ChildWorkflowError, workflow_id: str) -> MachineEnded | EffectFailed:
    """A child that fails brings its whole result with the error, if it could still say so.

    What a child spent that was terminated or timed out is known to nobody here.
    """
    cause = error.cause
    details: Any = cause.details[0] if isinstance(cause, ApplicationError) and cause.details else None
    told = AgentResult.model_validate(details) if isinstance(details, dict) else None
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
