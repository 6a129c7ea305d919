"""A run's result: how it ended, where it was, what it spent, who decided; and what is at work inside."""

from __future__ import annotations

from temporalio import workflow

from activities.contracts import RunMachine
from workflows.api import AgentResult, AgentStatus
from workflows.child import child_id
from workflows.kernel.errors import name_of
from workflows.kernel.machine import Exit
from workflows.kernel.stack import Stack
from workflows.people import Decided, DoneCall
from workflows.where import bounded

__all__ = ["inside", "result_of"]


def result_of(
    ended: Exit,
    status: AgentStatus,
    *,
    log_head: str,
    decisions: tuple[Decided, ...],
    calls: tuple[DoneCall, ...],
) -> AgentResult:
    """What comes out of a run that ended so; `log_head` is the hash of its log's last record."""
    info = workflow.info()
    return AgentResult(
        ok=ended.ok,
        exit_reason=ended.reason,
        answer=ended.answer,
        error=f"{ended.error} (see `limits` of the agent)" if ended.reason == "limit" else ended.error,
        agent=status.agent,
        machine=status.machine,
        machine_version=status.machine_version,
        state=status.state,
        steps=status.step,
        counters=status.counters,
        outcome=ended.outcome,
        workflow_id=info.workflow_id,
        run_id=info.run_id,
        records=status.records,
        log_head=log_head,
        branch=status.branch,
        decisions=decisions,
        calls=calls,
        origin=status.origin,
        raises=ended.raises,
    )


def inside(stack: Stack, origin: str) -> tuple[str, ...]:
    """The machines at work inside; of a child run, where it is to be found. `origin` is the first run id."""
    inner = [f"{frame.machine.name}: {name_of(frame.step.snapshot.state)}" for frame in stack.frames[1:]]
    if isinstance(stack.effect, RunMachine):
        inner.append(f"{stack.effect.machine}: run {child_id(origin, bounded(stack.top.place))}")
    return tuple(inner)
