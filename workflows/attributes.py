"""What Temporal knows of a run from its first task on: search attributes and memo, for lists."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from workflows.api import AgentTask
from workflows.kernel.design import Design
from workflows.kernel.machine import Machine
from workflows.kernel.verify import definition_hash

__all__ = ["publish"]


def publish(task: AgentTask, design: Design, machine: Machine[Any]) -> None:
    """Name and machine as search attributes, the definition's hash in the memo."""
    there = workflow.info().typed_search_attributes
    wanted = {"AgentName": task.agent, "AgentMachine": design.name}
    keys = {SearchAttributeKey.for_keyword(name): value for name, value in wanted.items()}
    missing = [key.value_set(value) for key, value in keys.items() if there.get(key) != value]
    if missing:
        workflow.upsert_search_attributes(missing)
    facts = {"machine": f"{design.name} {design.version}", "definition": definition_hash(machine)}
    if "goal" not in workflow.memo():
        facts["goal"] = " ".join(task.goal.split())[:200]
    workflow.upsert_memo(facts)
