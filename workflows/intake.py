"""From a run's input to a machine ready to start; whatever is wrong fails the run readably. Pure but
for the type of its error."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError
from temporalio.exceptions import ApplicationError

from activities.contracts import AskPerson, CallModel, CallTools, RunMachine
from activities.contracts_code import RunCode
from workflows import registry
from workflows.api import AgentTask, Carry
from workflows.kernel.design import Design
from workflows.kernel.errors import DefinitionError
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import Machine
from workflows.kernel.snapshot import Step, load

__all__ = ["build", "carried", "refused", "task_of"]

Wanted = CallModel | CallTools | AskPerson | RunMachine | RunCode
_EFFECTS: TypeAdapter[Wanted] = TypeAdapter(Wanted)


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
        design = registry.design(task.machine, task.machine_version, newest=False)
        options = design.options.model_validate(task.options)
        machine = design.build(options, registry.parts())
    except ValidationError as error:
        raise refused(_faults(error, "options.")) from error
    except (ValueError, DefinitionError) as error:
        raise refused(str(error)) from error
    _check_names(task, design)
    limit = task.limits.max_transitions
    return design, machine.with_limit(limit) if limit else machine, options


def carried(machine: Machine[Any], carry: Carry) -> tuple[Step[Any], list[Record]]:
    """The step that the run before has carried on, with records that are not archived yet.

    A carry that somebody typed is refused readably.
    """
    try:
        effect = _EFFECTS.validate_python(carry.effect)
        ledger = Ledger.model_validate(carry.ledger)
        records = [Record.model_validate(record) for record in carry.records]
        return Step(load(machine, carry.snapshot), ledger, effect=effect), records
    except (ValueError, KeyError, TypeError) as error:
        raise refused("`carry` is no state of this machine; leave it out to start a new run") from error


def _check_names(task: AgentTask, design: Design) -> None:
    if task.context is not None and not design.takes_context:
        raise refused(f"context: {design.name} takes none; put it into the goal, or let a tool read it")
    unknown = [role for role in task.models if role not in design.roles]
    if unknown:
        has = ", ".join(design.roles)
        raise refused(f"models: {design.name} has no role {', '.join(unknown)}; its roles are {has}")
    twice = sorted({name for name in task.tools if task.tools.count(name) > 1})
    if twice:
        raise refused(f"tools: named twice: {', '.join(twice)}")


def _faults(error: ValidationError, prefix: str) -> str:
    """Field by field what is wrong; never the values, which may hold secrets."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"{prefix}{'.'.join(map(str, e['loc'])) or 'the whole input'}: {e['msg']}" for e in found[:10]]
    return "; ".join(lines)
