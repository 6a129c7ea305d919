"""From a run's input to a machine ready to start; whatever is wrong fails the run readably. Pure but
for the type of its error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from temporalio.exceptions import ApplicationError

from activities.contracts import AskPerson, CallModel, CallModels, CallTools, Effect, RunMachine, ToolSpec
from activities.contracts_artifacts import ReadArtifacts
from activities.contracts_code import RunCode
from workflows import registry
from workflows.api import AgentTask, Carry
from workflows.gate.problems import problems, worded
from workflows.gate.standing import standing_still
from workflows.kernel.design import Brief, Design
from workflows.kernel.errors import DefinitionError, MachineError
from workflows.kernel.fields import Fields
from workflows.kernel.hold import Hold
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import Machine
from workflows.kernel.moves import forked
from workflows.kernel.snapshot import Step, dump, load
from workflows.kernel.stack import Frame, Nesting, Stack
from workflows.kernel.step import Cause
from workflows.people import EFFECTS_ASKED, Approvals, People

__all__ = [
    "begin", "build", "carried", "faults", "forked_from", "nesting", "packed", "refused", "task_of",
    "unattended",
]  # fmt: skip

Wanted = CallModel | CallModels | CallTools | AskPerson | RunMachine | RunCode | ReadArtifacts | Hold
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
        raise refused(faults(error, "")) from error


def build(task: AgentTask) -> tuple[Design, Machine[Any], Any]:
    """The machine that the task names, made with its knobs: design, machine, options."""
    try:
        design = registry.design(task.machine, task.machine_version, newest=False)
        options = design.options.model_validate(task.options)
        machine = design.build(options, registry.parts())
    except ValidationError as error:
        raise refused(faults(error, "options.")) from error
    except (ValueError, DefinitionError) as error:
        raise refused(str(error)) from error
    _check_names(task, design)
    limit = task.limits.max_transitions
    machine = machine.with_limit(limit) if limit else machine
    try:
        return design, standing_still(machine, task.people), options
    except ValueError as error:
        raise refused(str(error)) from error


def unattended(task: AgentTask) -> AgentTask:
    """The task as runs took it that began before people could command them: nobody is asked for anything."""
    nobody = Approvals(effects=dict.fromkeys(EFFECTS_ASKED, "never"))
    return task.model_copy(update={"people": People(unattended=True), "approvals": nobody})


def begin(
    design: Design, options: Any, task: AgentTask, specs: Sequence[ToolSpec], trace_id: str
) -> BaseModel:
    """The machine's first context; a goal or tools that it cannot begin with are refused readably."""
    brief = Brief(
        goal=task.goal,
        trace_id=trace_id,
        instructions=task.instructions,
        tools=tuple(specs),
        depth=task.depth,
        context=task.context,
        values=task.values,
    )
    try:
        return design.begin(brief, options)
    except (ValueError, DefinitionError) as error:
        raise refused(str(error)) from error


def nesting(task: AgentTask, specs: Sequence[ToolSpec], trace_id: str) -> Nesting:
    """How machines inside this run are made: of its tools, its models and the worker's machines."""

    def make(call: RunMachine, depth: int) -> tuple[Machine[Any], BaseModel]:
        design = registry.design(call.machine, call.machine_version, newest=False)
        try:
            options = design.options.model_validate(call.options)
        except ValidationError as error:
            raise ValueError(faults(error, "options.")) from error
        machine = design.build(options, registry.parts())
        if call.context is not None and not design.takes_context:
            raise ValueError(f"context: {design.name} takes none")
        brief = Brief(
            goal=call.goal,
            trace_id=trace_id,
            instructions=call.instructions,
            tools=tuple(spec for spec in specs if spec.name in call.tools_given),
            depth=depth,
            context=call.context,
            values=call.values,
        )
        limit = call.limits.max_transitions
        return (machine.with_limit(limit) if limit else machine), design.begin(brief, options)

    return Nesting(make, task.depth, task.limits.depth)


def packed(stack: Stack) -> dict[str, Any]:
    """A stack as JSON values, for `Carry`."""
    first, effect = stack.first.step, stack.top.step.effect
    inner = [
        {
            "snapshot": dump(frame.step.snapshot),
            "ledger": frame.step.ledger.model_dump(mode="json"),
            "call": frame.call.model_dump(mode="json") if frame.call else {},
        }
        for frame in stack.frames[1:]
    ]
    return {
        "snapshot": dump(first.snapshot),
        "ledger": first.ledger.model_dump(mode="json"),
        "effect": effect.model_dump(mode="json") if effect else {},
        "inner": tuple(inner),
    }


def carried(
    machine: Machine[Any], carry: Carry, nesting: Nesting, tools: Iterable[str]
) -> tuple[Stack, list[Record]]:
    """The stack that the run before has carried on, with records that are not archived yet.

    A carry that somebody typed is refused readably.
    """
    try:
        effect = _EFFECTS.validate_python(carry.effect)
        calls = [RunMachine.model_validate(one["call"]) for one in carry.inner]
        wanted: list[Effect] = [*calls, effect]
        first = Step(load(machine, carry.snapshot), Ledger.model_validate(carry.ledger), effect=wanted[0])
        frames = [Frame(machine, first, frozenset(tools))]
        for depth, one in enumerate(carry.inner, start=1):
            inner, _ = nesting.make(calls[depth - 1], nesting.depth + depth)
            snapshot: Any = one["snapshot"]
            step = Step(load(inner, snapshot), Ledger.model_validate(one["ledger"]), effect=wanted[depth])
            call = calls[depth - 1]
            frames.append(Frame(inner, step, frozenset(call.tools_given), call))
        return Stack(tuple(frames)), [Record.model_validate(record) for record in carry.records]
    except (ValueError, KeyError, TypeError, DefinitionError) as error:
        raise refused("`carry` is no state of this machine; leave it out to start a new run") from error


def forked_from(
    machine: Machine[Any], task: AgentTask, nesting: Nesting, context: BaseModel, ledger: Ledger, now: float
) -> tuple[Stack, list[Record]]:
    """The stack of a run that goes on from another one's step, and the records that came before.

    What the task says otherwise than the source run did is told anew, where the machine keeps it.
    """
    fork = task.fork
    if fork is None:
        raise refused("there is no `fork`")
    try:
        records = [Record.model_validate(record) for record in fork.records]
        if not records:
            raise ValueError("its `records` are empty")
        before = Fields.of(machine.context).load(records[0].patch)
        origin = fork.origin
        reason = f"from run {origin.workflow_id}, step {origin.step}"
        stack = forked(
            machine,
            records,
            origin.step,
            nesting,
            cause=Cause("Forked", by="person", reason=reason, about=origin.model_dump(mode="json")),
            now=now,
            ledger=ledger,
            tools=task.tools,
            retell=(before, context) if fork.retold else None,
        )
    except (ValueError, KeyError, TypeError, MachineError) as error:
        raise refused(f"fork: {machine.name} cannot go on from there: {error}") from error
    return stack, records


def _check_names(task: AgentTask, design: Design) -> None:
    if task.context is not None and not design.takes_context:
        raise refused(f"context: {design.name} takes none; put it into the goal, or let a tool read it")
    unknown = [role for role in task.models if role not in design.roles]
    if unknown and not task.depth:  # a nested run has its outer run's models, for runs inside it
        has = ", ".join(design.roles)
        raise refused(f"models: {design.name} has no role {', '.join(unknown)}; its roles are {has}")
    # A nested run has fewer tools than the approvals of its outer run speak of.
    if found := problems(task.approvals, task.people, None if task.depth else task.tools):
        raise refused(worded(found))
    twice = sorted({name for name in task.tools if task.tools.count(name) > 1})
    if twice:
        raise refused(f"tools: named twice: {', '.join(twice)}")


def faults(error: ValidationError, prefix: str = "") -> str:
    """Field by field what is wrong; never the values, which may hold secrets."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"{prefix}{'.'.join(map(str, e['loc'])) or 'the whole input'}: {e['msg']}" for e in found[:10]]
    return "; ".join(lines)
