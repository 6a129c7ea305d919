"""The staged machine: stages work on one typed state, each with a declared view and patch (spec 3).

Stages are data: the knob `stages` declares them, and lifecycle, table and states are made of that. The
orchestrator's part (iteration, clearing, notes) hangs on the rows of the table (R-002-7, step 8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from activities.contracts import ErrorClass
from workflows.kernel.design import Brief, Design, Parts
from workflows.kernel.errors import DefinitionError, NoTransitionError
from workflows.kernel.fields import Patch
from workflows.kernel.log import Record
from workflows.kernel.machine import At, Machine, Row, Said, State
from workflows.machines.staged_context import (
    FAILED,
    FINISHED,
    INITIALIZED,
    ORCHESTRATOR,
    AgentState,
    LastError,
    Material,
    OfferedTool,
    lifecycles,
)
from workflows.machines.staged_custom import AskModel, CallHook, RunInner, handler, precondition
from workflows.machines.staged_events import WRONG_EXIT, PassesExhausted, StageFailed, event_to
from workflows.machines.staged_invariants import invariant
from workflows.machines.staged_options import ROLES, Options, Stage
from workflows.machines.staged_result import EXITS, result_of, stage_names, violated
from workflows.machines.staged_stages import Act, Observe, Think
from workflows.machines.staged_ways import Ways

__all__ = ["DESIGN"]

CLASSES: tuple[ErrorClass, ...] = ("transient", "recoverable", "fatal", "unknown_outcome")
Failing = Callable[[Any, Any, At], Said]


@dataclass(frozen=True, slots=True)
class Plan:
    """A machine in the making: the stages, and what belongs to each lifecycle."""

    options: Options
    parts: Parts

    @property
    def running(self) -> tuple[Stage, ...]:
        """The stages between Initialized and the end."""
        return tuple(stage for stage in self.options.declared if stage.enters != FAILED)

    @property
    def entry(self) -> str:
        """Where a pass begins."""
        return self.running[0].enters

    def hook(self, stage: Stage, key: str) -> Callable[..., Any]:
        """A user's function by the name that a key of the stage gives. Raises ValueError."""
        name = getattr(stage, key)
        if name not in self.parts.hooks:
            there = ", ".join(sorted(self.parts.hooks)) or "none; see `modules` of the agent file"
            raise ValueError(f"stage {stage.name}: {key}: unknown hook {name!r}; the worker has {there}")
        return self.parts.hooks[name]


# -- the table --------------------


def _agree(c: AgentState, source: str, target: str) -> None:
    """A patch that sets the lifecycle must lead where the stage does. Raises NoTransitionError."""
    if c.lifecycle not in (source, target):
        problem = f"the patch sets the lifecycle {c.lifecycle}, but the stage goes on to {target}"
        raise NoTransitionError("staged", source, problem)


def _orchestrated(source: str, target: str, loops: bool) -> Callable[[Any, AgentState], Patch]:
    """The orchestrator's own changes on a row (R-002-7, steps 7 and 8)."""

    def orchestrator(event: Any, c: AgentState) -> Patch:
        _agree(c, source, target)
        patch: dict[str, Any] = {"lifecycle": target}
        if loops:
            patch["iteration"] = 1
        return {**patch, "degraded": event.degraded} if event.degraded else patch

    return orchestrator


def _recorded(stage: Stage) -> Callable[[Any, AgentState], Patch]:
    """What the orchestrator keeps of a failure."""

    def orchestrator(event: Any, c: AgentState) -> Patch:
        if event.code == WRONG_EXIT:
            raise NoTransitionError("staged", stage.enters, event.reason)
        _agree(c, stage.enters, FAILED)
        details = {"lifecycle": stage.enters, "iteration": c.iteration, **event.details}
        error = LastError(code=event.code, stage=stage.name, message=event.reason, details=details)
        return {"lifecycle": FAILED, "last_error": error}

    return orchestrator


def _rows(plan: Plan, states: Any, events: Mapping[str, Any]) -> Iterator[Row]:
    """A row for each exit of each stage, and those to Failed."""

    def row(source: str, target: str, loops: bool = False) -> Row:
        return Row(
            states(source),
            events[target],
            states(target),
            action=_orchestrated(source, target, loops),
            reset=("working", "thought", "action") if loops else ("working",),  # R-002-6
            writes={"lifecycle", "iteration", "degraded"},
        )

    yield row(INITIALIZED, plan.entry)
    for stage in plan.running:
        for target in stage.targets:
            yield row(stage.enters, target, target == plan.entry)
        failures = [StageFailed, PassesExhausted] if plan.entry in stage.targets else [StageFailed]
        for failure in failures:
            writes = {"lifecycle", "last_error"}
            source, target = states(stage.enters), states(FAILED)
            yield Row(source, failure, target, action=_recorded(stage), reset=("working",), writes=writes)


# -- the states --------------------


def _flow(plan: Plan, stage: Stage, ways: Ways) -> Any:
    """What a stage does, by its flow type."""
    if stage.flow_type == "hook":
        return CallHook(ways, plan.hook(stage, "hook"))
    if stage.machine is not None:
        return RunInner(ways, stage.machine)
    flows: dict[str, Callable[[Ways], Any]] = {
        "think": Think,
        "act": Act,
        "observe": Observe,
        "model": AskModel,
    }
    return flows[stage.flow_type](ways)


def _state(plan: Plan, stage: Stage, events: Mapping[str, Any]) -> State:
    ways = Ways(stage, plan.options, plan.entry, events)
    flow = _flow(plan, stage, ways)
    material = {"material", "notes"} if flow.grants else set()
    working = {"working"} if stage.flow_type == "act" else set()
    failures: dict[ErrorClass, Failing] = dict.fromkeys(CLASSES, ways.failed)
    return State(
        enter=flow.enter,
        resume=flow.resume,
        reads=stage.may_read | material | working,
        writes=stage.may_write | working,
        grants=flow.grants,
        tools=None if stage.tools is None else frozenset(stage.tools),
        requires=precondition(stage.name, plan.hook(stage, "check")) if stage.check else None,
        holds=invariant(stage.enters, plan.options),
        spends="passes" if stage.enters == plan.entry else None,
        on_error=failures,
        enforce=stage.enforce,
    )


def _known_tools(plan: Plan) -> Callable[[Any, Record | None], str]:
    """A tool that a stage names must be one of the agent's; only the run knows those."""

    def check(c: Any, last: Record | None) -> str:
        known = [tool.name for tool in c.material.tools]
        for stage in plan.running:
            for name in stage.tools or ():
                if name not in known:
                    there = ", ".join(known) or "none"
                    return f"stage {stage.name}: tools: the agent has no tool {name!r}; it has {there}"
        return ""

    return check


def _states(plan: Plan, states: Any, events: Mapping[str, Any]) -> dict[Enum, State]:
    options = plan.options
    begin = events[plan.entry]
    made = {
        states(INITIALIZED): State(
            enter=lambda c, at: begin(reason="user input loaded"),
            reads={"material"},
            requires=_known_tools(plan),
            holds=invariant(INITIALIZED, options),
        )
    }
    made |= {states(stage.enters): _state(plan, stage, events) for stage in plan.running}
    made[states(FINISHED)] = State(holds=invariant(FINISHED, options))
    made[states(FAILED)] = State(holds=invariant(FAILED, options))
    for stage in options.declared:
        if stage.enters == FAILED:
            made[states(FAILED)] = State(
                enter=handler(plan.hook(stage, "hook")),
                reads=stage.may_read | {"last_error"},
                writes=stage.may_write,
                holds=invariant(FAILED, options),
            )
    return made


# -- the whole --------------------


def _build(options: Options, parts: Parts) -> Machine[AgentState]:
    plan = Plan(options, parts)
    names = tuple(stage.enters for stage in plan.running)
    states: Any = lifecycles((INITIALIZED, *names, FINISHED, FAILED))
    events = {name: event_to(name) for name in (*names, FINISHED)}
    stages = stage_names(options.declared)
    try:
        return Machine(
            name="staged",
            context=AgentState,
            initial=states(INITIALIZED),
            final={states(FINISHED), states(FAILED)},
            table=tuple(_rows(plan, states, events)),
            states=_states(plan, states, events),
            result=result_of(options),
            step_state=states(plan.entry),
            fail_state=states(FAILED),
            on_violation=violated(stages),
            # Every loop leads through the first stage, so no run needs more; the last one is always free.
            max_transitions=options.max_iterations * len(names),
            on_close=_closed(stages),
            fold_steer=lambda c, text: {"notes": (text,)},
        )
    except DefinitionError as error:
        named = [f"{s.enters} is entered by {s.name}" for s in plan.running if s.enters in str(error)]
        hint = "each must be reached, lead on to Finished, and loop only through"
        raise DefinitionError(
            "; ".join((f"stages: {error}", *named, f"{hint} {plan.entry}, where passes are counted"))
        ) from error


def _closed(stages: Mapping[str, str]) -> Callable[[AgentState, str], Patch]:
    """A close in the middle leaves a record, too; the lifecycle stays where it was."""

    def patch(c: AgentState, reason: str) -> Patch:
        stage = stages.get(c.lifecycle, ORCHESTRATOR)
        error = LastError(code=reason, stage=stage, message=f"the run was ended during {stage}")
        return {"last_error": error, "working": ()}

    return patch


def _begin(brief: Brief, options: Options) -> AgentState:
    tools = tuple(OfferedTool(name=spec.name, description=spec.description) for spec in brief.tools)
    return AgentState(
        session_id=brief.trace_id,
        user_input=brief.goal,
        material=Material(instructions=brief.instructions, tools=tools),
    )


DESIGN = Design(
    name="staged",
    stand_in=False,
    description="Think, act, observe in passes: declared stages over one typed state; stages are data.",
    options=Options,
    build=_build,
    begin=_begin,
    roles=ROLES,
    exits=EXITS,
)
