"""From a run's input to a machine ready to start; whatever is wrong fails the run readably. Pure but
for the type of its error."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from temporalio.exceptions import ApplicationError

from workflows import registry
from workflows.api import AgentTask
from workflows.kernel.design import Design
from workflows.kernel.errors import DefinitionError
from workflows.kernel.machine import Machine

__all__ = ["build", "refused", "task_of"]


def refused(problem: str) -> ApplicationError:
    """The error of a task that cannot be run; never retried."""
    return ApplicationError(f"the task cannot be run: {problem}", type="InvalidTask", non_retryable=True)


def task_of(inputs: tuple[Any, ...]) -> AgentTask:
    """The one AgentTask that came as input."""
    if len(inputs) != 1:
        raise refused(f"one AgentTask is expected as input, {len(inputs)} values came")
    try:
        return AgentTask.model_validate(inputs[0])
    except ValidationError as error:
        raise refused(_faults(error, "")) from error


def build(task: AgentTask) -> tuple[Design, Machine[Any], Any]:
    """The machine that the task names, made with its knobs: design, machine, options."""
    try:
        design = registry.design(task.machine, task.machine_version)
        options = design.options.model_validate(task.options)
        machine = design.build(options, registry.parts())
    except ValidationError as error:
        raise refused(_faults(error, "options.")) from error
    except (ValueError, DefinitionError) as error:
        raise refused(str(error)) from error
    limit = task.limits.max_transitions
    return design, machine.with_limit(limit) if limit else machine, options


def _faults(error: ValidationError, prefix: str) -> str:
    """Field by field what is wrong; never the values, which may hold secrets."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"{prefix}{'.'.join(map(str, e['loc'])) or 'the whole input'}: {e['msg']}" for e in found[:10]]
    return "; ".join(lines)
