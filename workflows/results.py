"""A run's result: how it ended, where it was, what it spent, who decided."""

from __future__ import annotations

from temporalio import workflow

from workflows.api import AgentResult, AgentStatus
from workflows.kernel.machine import Exit
from workflows.people import Decided

__all__ = ["result_of"]


def result_of(
    ended: Exit, status: AgentStatus, *, log_head: str, decisions: tuple[Decided, ...]
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
        origin=status.origin,
        raises=ended.raises,
    )
