"""From a run's input to a machine ready to start. Whatever is wrong is an `InvalidTask` that people can
read."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from activities.contracts import Digests, LabelSource, Message, RunMachine, ToolSpec
from activities.text import problems_text
from workflows import registry
from workflows.api import AgentSpec, AgentTask, Carry
from workflows.certificate import DIFFERS, INCOMPLETE, certificate_line
from workflows.gate.approvals import label_problems, person_label, problem_text, problems
from workflows.kernel.errors import DefinitionError, InputRefused, MachineError, NotRestored, restoring
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import Extensions, Machine, RunInput, RunTools, state_name
from workflows.kernel.rollback import forked, migrated
from workflows.kernel.snapshot import Program, Snapshot, Suspension
from workflows.kernel.transition import closed_before_start, ended_by_violation, load, start, steer
from workflows.machines.common.options import NamesMachine
from workflows.people import People

__all__ = [
    "InvalidTask",
    "cancelled_step",
    "carried_step",
    "first_step",
    "inner_task",
    "missing_tools",
    "parse_task",
    "program_for",
]


class InvalidTask(ValueError):
    """The task cannot be run; the text says why, to whoever wrote it."""


def parse_task(inputs: Sequence[Any]) -> AgentTask:
    """The one AgentTask among a workflow's inputs. Raises InvalidTask."""
    if len(inputs) != 1:
        raise InvalidTask(f"expected one AgentTask as input, got {len(inputs)} values")
    try:
        return AgentTask.model_validate(inputs[0])
    except ValidationError as error:
        raise InvalidTask(problems_text(error)) from error


# -- task to program --------------------


def machine_of(task: AgentTask, machine: Machine | None = None) -> tuple[Machine, Any]:
    """The machine that a task names, and its options; all that can be checked without the worker's tools is
    checked. `machine` is taken in place of the one that is named. Raises InvalidTask."""
    try:
        if machine is None:
            machine, options = registry.machine_for(task.machine, task.machine_version, task.options)
        else:
            options = machine.read_options(task.options)
    except ValidationError as error:
        raise InvalidTask(problems_text(error, under="options")) from error
    except ValueError as error:
        raise InvalidTask(str(error)) from error
    if task.material is not None and not machine.takes_material:
        raise InvalidTask(f"material: {machine.name} takes none; put it into the goal, or let a tool read it")
    unknown = [role for role in task.models if role not in {*machine.roles, *task.fallbacks}]
    if unknown and not task.depth:  # an inner run has the outer run's models, for runs inside it
        raise InvalidTask(
            f"models: {machine.name} has no role {', '.join(unknown)}; its roles: {', '.join(machine.roles)}"
        )
    # An inner run has fewer tools than the approvals of the outer run name.
    if found := problems(task.approvals, task.people, tools=None if task.depth else task.tools):
        raise InvalidTask(problem_text(found))
    if problem := _interrupt_problem(machine, task.people):
        raise InvalidTask(problem)
    return machine, options


def _check_inner(
    value: object, models: Collection[str], extensions: Extensions, where: str = "options"
) -> None:
    """Check the machines that options name, and those inside them: a run would find a wrong one only when it
    comes to it. `models` are the roles that there are. Raises InvalidTask."""
    if isinstance(value, tuple):
        for number, item in enumerate(value):
            _check_inner(item, models, extensions, f"{where}.{number}")
    elif isinstance(value, NamesMachine) and isinstance(getattr(value, "machine", None), str):
        _check_inner_machine(value, models, extensions, where)
    elif isinstance(value, BaseModel):
        for field in sorted(value.model_fields_set):
            _check_inner(getattr(value, field), models, extensions, f"{where}.{field}")


def _check_inner_machine(value: Any, models: Collection[str], extensions: Extensions, where: str) -> None:
    """The same for an option with the fields `machine` and perhaps `machine_version`, `options`, `roles`."""
    version, given = getattr(value, "machine_version", None), getattr(value, "options", {})
    try:
        # as the run looks it up: the oldest where no version is named
        machine, options = registry.machine_for(value.machine, version, given)
        if machine.prepare:
            machine.prepare(options, extensions)
    except ValidationError as error:
        raise InvalidTask(problems_text(error, under=f"{where}.options")) from error
    except (ValueError, DefinitionError) as error:
        raise InvalidTask(f"{where}: {error}") from error
    for inner, outer in getattr(value, "roles", {}).items():
        for role, known, whose in (
            (inner, machine.roles, f"machine {machine.name}"),
            (outer, models, "the agent"),
        ):
            if role not in known:
                there = ", ".join(known)
                raise InvalidTask(f"{where}.roles.{inner}: {whose} has no role {role}; its roles: {there}")
    _check_inner(options, tuple(dict.fromkeys((*models, *machine.roles))), extensions, f"{where}.options")


def missing_tools(machine: Machine, tools: Sequence[str]) -> list[str]:
    """What is wrong with a run that has these tools: the machine needs some, or a state declares others."""
    if machine.needs_tools and not tools:
        advice = "name some under `tools`, or take another machine"
        return [f"machine {machine.name} needs at least one; {advice}"]
    found = []
    for state in machine.states:
        for name in sorted((state.tools or frozenset()) - set(tools)):
            close = difflib.get_close_matches(name, tools, 1)
            hint = f"did you mean `{close[0]}`?" if close else f"it has: {', '.join(tools) or 'none'}"
            found.append(
                f"state {state_name(state.name)} of machine {machine.name} uses a tool `{name}`, which the "
                f"agent does not have; {hint}"
            )
    return found


def _interrupt_problem(machine: Machine, people: People) -> str:
    states = sorted(machine.rows)
    if unknown := [name for name in people.interrupt_states if name not in states]:
        return (
            f"people.interrupt_states: {machine.name} has no state {', '.join(unknown)} to pause before; "
            f"its states: {', '.join(states)}"
        )
    if people.interrupt_every and machine.step is None:
        return f"people.interrupt_every: {machine.name} has no steps"
    return ""


def program_for(
    task: AgentTask,
    specs: Mapping[str, ToolSpec] | None,
    trace_id: str,
    machine: Machine | None = None,
    extensions: Extensions | None = None,
) -> Program:
    """The task's machine with its options, extensions and input; `trace_id` is the workflow id. Without
    `extensions` it has those that were loaded.

    `specs` are those of its tools, by name; empty until they are known, None where they cannot be had: what
    needs them is not checked then. Raises ToolsUnknown where they must be known; InvalidTask, also for states
    that declare tools which the task lacks, and for approvals that name arguments which no tool has.
    """
    machine, options = machine_of(task, machine)
    extensions = extensions or registry.extensions()
    _check_inner(options, tuple(dict.fromkeys((*machine.roles, *task.models))), extensions)
    tools = RunTools(task.tools, {} if specs is None else specs)
    known = () if specs is None else tools
    may_lack = task.depth and not machine.needs_tools  # an outer run gives what it likes
    if not may_lack and (missing := missing_tools(machine, task.tools)):
        raise InvalidTask(f"tools: {missing[0]}")
    if not task.depth:
        found = problems(task.approvals, task.people, specs=known)
        found += label_problems(task.approvals, task.labels, tools=task.tools, specs=known)
        if found:
            raise InvalidTask(problem_text(found))
    form, words = None, ""
    if task.output is not None:
        from workflows.gate.output import AnswerForm  # its library takes a while, and few agents need it

        form = AnswerForm(task.output)
        words = form.words
    given = RunInput(
        goal=task.goal,
        trace_id=trace_id,
        instructions="\n\n".join(filter(None, (task.instructions, words))),
        tools=tools,
        depth=task.depth,
        material=task.material,
        values=task.values,
        output=task.output,
    )
    try:
        return Program(
            machine,
            given,
            options,
            extensions,
            task.limits.max_transitions,
            _interrupts(machine, task.people),
            labels=task.labels,
            labels_above=task.labels_above,
            form=form,
        )
    except (ValueError, DefinitionError) as error:
        raise InvalidTask(str(error)) from error


def _interrupts(machine: Machine, people: People) -> Any:
    """Whether the run is paused before a state (R-000-13)."""
    if not people.interrupt_every and not people.interrupt_states:
        return None
    step_state = state_name(machine.step) if machine.step else None

    def is_paused_before(snapshot: Snapshot, program: Program) -> bool:
        begins = snapshot.state == step_state
        done = snapshot.step - begins
        return people.interrupts_before(snapshot.state, begins_step=begins, steps_done=done)

    return is_paused_before


# -- program to step --------------------


def first_step(
    task: AgentTask,
    program: Program,
    *,
    now: float,
    spent: Mapping[str, float] | None = None,
    digests: Digests | None = None,
) -> Suspension:
    """The run at its beginning, or at the step of another run that it is forked from. `spent` is how
    much of its limits it has used before, by counter; `digests` are what a worker has, to be compared with
    the task's certificate.

    A machine that breaks a rule at once gives a step that has ended. Raises InvalidTask.
    """
    ledger, machine = Ledger(caps=task.limits.caps, spent=spent or {}), program.machine
    if task.fork is None and task.machine_version not in (None, machine.version):
        raise InvalidTask(
            f"machine {machine.name} of version {task.machine_version} is not loaded; version "
            f"{machine.version} goes on with runs of it, but begins none"
        )
    has_output = task.output is not None
    certified = task.certificate.about(digests, has_output=has_output) if task.certificate else {}
    is_less = not {DIFFERS, INCOMPLETE}.isdisjoint(certified)
    said = f"certificate {certificate_line(certified)}" if is_less else ""
    try:
        if task.fork is None:
            return start(program, now=now, ledger=ledger, reason=said, about=certified)
        origin = task.fork.origin
        with restoring():
            records = [Record.model_validate(record) for record in task.fork.records]
        reason = "; ".join(filter(None, (f"from run {origin.workflow_id}, step {origin.step}", said)))
        about = {**task.fork.about, **certified}
        by = person_label(task.fork.by, verified=False) if task.fork.by else "person"
        step = forked(
            program, records, origin.step, now=now, by=by, reason=reason, about=about, ledger=ledger
        )
        if not task.fork.message:
            return step
        message = Message(role="user", content=task.fork.message)
        steered = steer(step, message, now=now, by=by)
        return replace(steered, records=(*step.records, *steered.records))
    except MachineError as error:
        if error.suspension is None and task.fork:
            raise InvalidTask(f"fork: {program.machine.name} cannot go on from there: {error}") from error
        return ended_by_violation(error)
    except InputRefused as error:
        raise InvalidTask(str(error)) from error
    except NotRestored as error:
        raise InvalidTask(f"fork: {program.machine.name} cannot go on from there: {error}") from error


def cancelled_step(task: AgentTask, trace_id: str, *, now: float) -> Suspension:
    """The run as it ends because it was cancelled before its machine could begin. Raises InvalidTask."""
    program, source = program_for(task, None, trace_id), task.fork.records if task.fork else ()
    return closed_before_start(
        program, "cancelled", now=now, error="the run was cancelled before it began", by="person",
        ledger=Ledger(caps=task.limits.caps), seq=len(source),
    )  # fmt: skip


def carried_step(program: Program, carry: Carry, version: str | None = None, *, now: float) -> Suspension:
    """The run as the execution before left it. `version` is that of its machine there; None: the program's.

    Raises InvalidTask for what is not a dump of it, and for one that cannot be brought to this version."""
    try:
        with restoring():
            step: Any = carry.drive["step"]
        if version not in (None, program.machine.version):
            return migrated(program, step, str(version), now=now)
        return load(program, step)
    except (NotRestored, MachineError) as error:
        raise InvalidTask(
            f"`carry` does not hold a run of this machine; leave it out to start a new run ({error})"
        ) from error


# -- inner runs --------------------


def inner_task(
    task: AgentTask,
    effect: RunMachine,
    share: Mapping[str, float],
    spent_usd: float,
    labels: tuple[LabelSource, ...] = (),
) -> AgentTask:
    """The task of an inner run: the outer run's models and people, the tools and limits that it is given.

    `share` is what it may spend of what the outer run has left, by counter; `spent_usd` what that has spent,
    `labels` those that it has: what it asks may be derived from what brought them.
    Raises ValueError for what cannot be run.
    """
    if missing := sorted(set(effect.give) - set(task.tools)):
        raise ValueError(f"this run has no tool {', '.join(missing)} to give")
    machine = registry.machine(effect.machine, effect.machine_version, newest=False)
    own = effect.limits.model_dump(exclude_none=True)
    caps = {name: min(own.get(name, math.inf), share.get(name, math.inf)) for name in {**own, **share}}
    # A limit of whole calls must be a whole number; time that is up is still a limit.
    whole = {
        name: math.ceil(cap) if name not in ("cost_usd", "seconds") else cap for name, cap in caps.items()
    }
    limits = {"model_calls": None, **whole, "depth": task.limits.depth}
    if "seconds" in limits:
        limits["seconds"] = max(limits["seconds"] or 0, 0.001)
    renamed = {role: task.models[name] for role, name in effect.roles.items() if name in task.models}
    for role, model in renamed.items():  # none stands in for itself
        others = tuple(name for name in model.fallback if name != role)
        renamed[role] = model.model_copy(update={"fallback": others})
    outer = {name: getattr(task, name) for name in AgentSpec.model_fields}
    return AgentTask.model_validate({
        **outer,
        "name": f"{task.name[:31]}.{machine.name[:31]}",
        "machine": machine.name,
        "machine_version": machine.version,
        "options": effect.options,
        "models": {**task.models, **renamed},
        "instructions": effect.instructions,
        "tools": effect.give,
        "output": None,
        "limits": limits,
        "people": task.people.model_copy(update={"interrupt_every": None, "interrupt_states": ()}),
        "goal": effect.goal,
        "material": effect.material,
        "values": effect.values,
        "depth": task.depth + 1,
        "certificate": None,  # it is of the outer run's machine
        "spent_above_usd": task.spent_above_usd + spent_usd,
        "labels_above": labels,
    })  # fmt: skip
