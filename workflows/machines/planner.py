"""Planner: plan once, decide, then let the model propose while code runs the tools (spec 4).

The model proposes, code decides: the loop, the tools, validation and stopping are never left to it.
What happens in each state is in `planner_nodes` and `planner_observe`.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Any, get_args

from activities.contracts import ErrorClass, Message
from activities.transcript import Transcript
from workflows.kernel.design import Brief, Design, Parts
from workflows.kernel.fields import Patch
from workflows.kernel.log import Record
from workflows.kernel.machine import Machine, Row, State
from workflows.machines.decisions import hook_named, policy_of
from workflows.machines.planner_context import Context, Options
from workflows.machines.planner_events import (
    Answered,
    Continued,
    ExecutionFailed,
    GoesOn,
    Halted,
    Observed,
    PlanFailed,
    Planned,
    StopDecided,
    Stopped,
    TakenIn,
    ToolsRequested,
    Undecided,
)
from workflows.machines.planner_fsm import Fsm, S
from workflows.machines.planner_nodes import Nodes
from workflows.machines.planner_observe import Observer
from workflows.machines.planner_prompt import tool_lines
from workflows.machines.planner_result import result_of
from workflows.machines.planner_schema import plan_schema

__all__ = ["DESIGN"]


def _moved(source: S, target: S, event: Any, c: Context) -> Patch:
    """The move's entry in the history; the FSM of spec 4.2 refuses what is none of its moves."""
    moved = Fsm(source.value, c.iteration).transition_to(target.value, event.reason)
    return {"history": moved.history}


def _row(source: S, event: type, target: S, *reset: str) -> Row:
    action = partial(_moved, source, target)
    return Row(source, event, target, action=action, reset=reset, writes={"history"})


TABLE = (
    _row(S.INTAKE, TakenIn, S.PLAN),
    _row(S.PLAN, Planned, S.DECIDE),
    _row(S.PLAN, PlanFailed, S.HALT),
    _row(S.DECIDE, Continued, S.EXECUTE),
    _row(S.DECIDE, StopDecided, S.FINALIZE),
    _row(S.DECIDE, Undecided, S.HALT),
    _row(S.EXECUTE, ToolsRequested, S.OBSERVE),
    _row(S.EXECUTE, Answered, S.FINALIZE),
    _row(S.EXECUTE, ExecutionFailed, S.HALT),
    _row(S.OBSERVE, Observed, S.LOOP_CHECK, "pending", "reply_cut", "handled", "steered"),
    _row(S.LOOP_CHECK, Halted, S.HALT),
    _row(S.LOOP_CHECK, Stopped, S.FINALIZE),
    _row(S.LOOP_CHECK, GoesOn, S.EXECUTE),
)


def _has_reason(c: Context, last: Record | None) -> str:
    return "" if c.error else "no reason was given"


def _on_any(answer: Any) -> dict[ErrorClass, Any]:
    """Whatever the class of an error, it means the same here: nothing is tried again."""
    return dict.fromkeys(get_args(ErrorClass), answer)


_SHARED = {"state", "observations", "pending"}
"""What policies and hooks see."""
_ENDS = {"exit_reason", "error"}


def _once(nodes: Nodes) -> dict[Enum, State]:
    """The states that are passed once: what they may see, change and ask for."""
    asks: dict[str, Any] = {"grants": {"call_model"}}
    return {
        S.INTAKE: State(enter=nodes.intake, reads={"goal"}, writes={"state", "transcript"}),
        S.PLAN: State(
            enter=nodes.plan,
            resume=nodes.planned,
            on_error=_on_any(nodes.plan_failed),
            reads={*_SHARED, "goal", "transcript", "instructions", "abilities"},
            writes={*_ENDS, "state", "transcript"},
            **asks,
        ),
        S.DECIDE: State(
            enter=nodes.decide,
            resume=nodes.decided,
            on_error=_on_any(nodes.decide_failed),
            reads={*_SHARED, "goal", "transcript", "instructions"},
            writes={*_ENDS, "state", "transcript"},
            **asks,
        ),
        S.FINALIZE: State(
            enter=nodes.finalize,
            resume=nodes.summed_up,
            on_error=_on_any(nodes.no_summary),
            reads={"transcript"},
            writes={"transcript", "summary_error"},
            **asks,
        ),
        S.HALT: State(holds=_has_reason),
    }


def _loop(nodes: Nodes, observer: Observer) -> dict[Enum, State]:
    """The states of the loop; only EXECUTE counts."""
    return {
        S.EXECUTE: State(
            enter=nodes.execute,
            resume=nodes.executed,
            on_error=_on_any(nodes.execution_failed),
            grants={"call_model"},
            spends="iterations",
            reads={"transcript", "tools", "iteration"},
            writes={*_ENDS, "transcript", "iteration", "pending", "reply_cut"},
        ),
        S.OBSERVE: State(
            enter=observer.observe,
            resume=observer.observed,
            on_error=_on_any(observer.failed),
            grants={"call_tools"},
            reads={*_SHARED, "tools", "handled", "steered", "reply_cut"},
            writes={*_ENDS, "transcript", "observations", "handled", "marks"},
        ),
        S.LOOP_CHECK: State(
            enter=nodes.loop_check,
            on_error=_on_any(nodes.check_failed),
            reads={*_SHARED, "error", "iteration", "marks"},
            writes=_ENDS,
        ),
    }


def _steered(c: Context, text: str) -> Patch:
    """Behind the last message; while tools run, behind their results: nothing may come between."""
    said = (Message(role="user", content=text),)
    return {"steered": said} if c.pending else {"transcript": said}


def _build(options: Options, parts: Parts) -> Machine[Context]:
    policy = policy_of(options.min_confidence, options.policy, options.converged, parts.hooks)
    by_hook = None if options.decide == "model" else options.decide
    nodes = Nodes(
        options,
        policy,
        plan_schema(options.plan_schema),
        hook_named(options.prompt_builder, parts.hooks, "prompt_builder"),
        hook_named(by_hook, parts.hooks, "decide"),
    )
    states = {**_once(nodes), **_loop(nodes, Observer(options, policy))}
    return Machine(
        name="planner",
        context=Context,
        initial=S.INTAKE,
        final={S.FINALIZE, S.HALT},
        table=TABLE,
        states={state: states[state] for state in S},
        result=result_of,
        step_state=S.EXECUTE,
        # Three moves an iteration and some around: the limit is `max_iterations` alone (R-003-8).
        max_transitions=3 * options.max_iterations + 10,
        on_close=lambda c, reason: {"exit_reason": reason},
        fold_steer=_steered,
    )


def _begin(brief: Brief, options: Options) -> Context:
    instructions = brief.instructions.strip()
    opening = (Message(role="system", content=instructions),) if instructions else ()
    return Context(
        goal=brief.goal or None,
        tools=tuple(spec.name for spec in brief.tools),
        abilities=tool_lines(brief.tools),
        instructions=instructions,
        transcript=Transcript(opening),
    )


EXITS = {
    "answered": "the model answered without asking for a tool",
    "converged": "the policy says that enough is done",
    "stopped": "the decision on the plan was to stop; nothing was carried out",
    "no_observations": "the loop had nothing to look at",
    "plan_failed": "there is no plan: the model could not be asked, or its plan does not fit `plan_schema`",
    "invalid_plan": "the plan has no goal, and neither has the run",
    "invalid_decision": "what the hook or the model decided on the plan cannot be used",
    "policy_violation": "the policy forbids the plan, carrying it out, or a tool call",
    "policy_failed": "the hook `converged` failed",
    "execution_failed": "the model could not be asked for the next proposal",
    "tool_failure": "a tool failed, and `on_tool_error` is `halt`",
    "unknown_outcome": "nobody knows what an unsafe tool did",
    "invalid_arguments": "the arguments of a tool call are not JSON",
    "max_iterations": "`max_iterations` iterations were made without an answer",
    "time_limit": "the run took longer than `time_limit`",
    "budget": "one of `budgets` is used up; the error names it",
}

DESIGN = Design(
    name="planner",
    stand_in=False,
    description="Plan once, decide, then propose and observe in a bounded loop of eight numbered states.",
    options=Options,
    build=_build,
    begin=_begin,
    roles=("default", "planner", "decide", "summary"),
    exits=EXITS,
)
