"""An inner machine as a workflow of its own: its task, and what its end means to the outer one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError, ChildWorkflowError, is_cancelled_exception
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from activities.contracts import EffectFailed, MachineEnded, RunMachine
from workflows import registry
from workflows.api import WORKFLOW_TYPE, AgentResult, AgentTask, Limits
from workflows.kernel.ledger import SHARED, Ledger
from workflows.kernel.stack import caps_left

__all__ = ["ended", "run_child"]


async def run_child(
    task: AgentTask, effect: RunMachine, place: str, depth: int, ledger: Ledger
) -> MachineEnded | EffectFailed:
    """Run it to its end; `place` names the effect in the run, `depth` how deep the child is nested.

    Raises a cancellation when the run is cancelled.
    """
    try:
        inner = _task(task, effect, depth, caps_left(effect, ledger))
    except (ValueError, ValidationError) as error:
        return EffectFailed(error="fatal", type="inner_machine", message=str(error))
    workflow_id = f"{workflow.info().workflow_id}/{place}"
    seconds = inner.limits.seconds
    try:
        result: AgentResult = await workflow.execute_child_workflow(
            WORKFLOW_TYPE,
            inner,
            id=workflow_id,
            result_type=AgentResult,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            execution_timeout=None if seconds is None else timedelta(seconds=seconds + 60),
            static_summary=effect.title[:200],
        )
    except ChildWorkflowError as error:
        if is_cancelled_exception(error):
            raise
        return _failed(error, workflow_id)
    return ended(result, workflow_id)


def _task(task: AgentTask, effect: RunMachine, depth: int, caps: dict[str, float]) -> AgentTask:
    """The child's task: this run's models, the tools and limits that it is given."""
    design = registry.design(effect.machine, effect.machine_version, newest=False)
    wanted = {role: effect.roles.get(role, role) for role in design.roles}
    models = {role: task.models[name] for role, name in wanted.items() if name in task.models}
    empty = [name for name, cap in caps.items() if cap <= 0]
    if empty:
        raise ValueError(f"nothing is left of {', '.join(empty)} for {effect.machine}")
    known = {name: cap for name, cap in caps.items() if name in Limits.model_fields}
    moves = effect.limits.get("max_transitions")
    return AgentTask(
        goal=effect.goal,
        agent=task.agent,
        machine=design.name,
        machine_version=design.version,
        options=effect.options,
        models={"default": task.models["default"], **models},
        instructions=effect.instructions,
        tools=effect.tools_given,
        limits=Limits.model_validate({**known, "max_transitions": moves, "depth": task.limits.depth}),
        visibility=task.visibility,
        heartbeat_seconds=task.heartbeat_seconds,
        context=effect.context,
        values=effect.values,
        depth=depth,
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
        spent={name: amount for name, amount in result.counters.items() if name in SHARED},
        workflow_id=workflow_id,
    )


def _failed(error: ChildWorkflowError, workflow_id: str) -> MachineEnded | EffectFailed:
    """A child whose machine raises brings its whole result with the error."""
    cause = error.cause
    details: Any = cause.details[0] if isinstance(cause, ApplicationError) and cause.details else None
    if isinstance(details, dict) and "exit_reason" in details:
        return ended(AgentResult.model_validate(details), workflow_id)
    kind = cause.type if isinstance(cause, ApplicationError) and cause.type else type(cause).__name__
    return EffectFailed(error="fatal", type=kind, message=f"{workflow_id}: {cause or error}")
