"""Simple: decide on one action, check it, do it; again until it is done (spec 4.10).

The planner's small sister: no plan, no native tool calls. What happens is in `simple_nodes`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, get_args

from activities.contracts import ErrorClass, JsonObject, Message
from workflows.kernel.design import Brief, Design, Parts
from workflows.kernel.log import Record
from workflows.kernel.machine import Exit, Machine, Row, State
from workflows.machines.decisions import hook_named, policy_of
from workflows.machines.simple_context import Context, Options, S
from workflows.machines.simple_events import Decided, Finished, Forbidden, GoesOn, LimitReached, StepFailed
from workflows.machines.simple_nodes import Nodes
from workflows.machines.simple_prompt import opening

__all__ = ["DESIGN"]

TABLE = (
    Row(S.DECIDE, Decided, S.ACT),
    Row(S.DECIDE, Forbidden, S.FAILED),
    Row(S.DECIDE, LimitReached, S.FAILED),
    Row(S.DECIDE, StepFailed, S.FAILED),
    Row(S.ACT, GoesOn, S.DECIDE, reset=("decision",)),
    Row(S.ACT, Finished, S.DONE),
    Row(S.ACT, StepFailed, S.FAILED),
)
RAISES = {"policy_violation": "PolicyViolation", "max_iterations": "MaxIterationsExceeded"}
"""Exit reason -> the error that is raised; all others that end in `failed` raise ExecutionError."""


def _has_error(c: Context, last: Record | None) -> str:
    return "" if c.error else "no error was given"


def _states(nodes: Nodes) -> dict[Enum, State]:
    """What happens in each state, and what it may see, change and ask for."""
    ends = {"audit", "exit_reason", "error"}
    errors: tuple[ErrorClass, ...] = get_args(ErrorClass)
    return {
        S.DECIDE: State(
            enter=nodes.decide,
            resume=nodes.decided,
            on_error=dict.fromkeys(errors, nodes.not_asked),
            grants={"call_model"},
            spends="iterations",
            reads={"transcript", "iteration", "given", "state"},
            writes={*ends, "transcript", "iteration", "decision"},
        ),
        S.ACT: State(
            enter=nodes.act,
            resume=nodes.acted,
            on_error=dict.fromkeys(errors, nodes.not_run),
            grants={"call_tools"},
            reads={"decision", "given", "state", "marks", "iteration", "tools"},
            writes={*ends, "state", "result", "marks", "transcript", "given", "answer"},
        ),
        S.DONE: State(),
        S.FAILED: State(holds=_has_error),
    }


def _result(c: Context, state: Any) -> Exit:
    """What came out, with the audit record of every step; `failed` raises."""
    done, reason = state is S.DONE, c.exit_reason or "running"
    outcome: JsonObject = {"done": done, "iterations": c.iteration, "result": c.result, "state": c.state}
    outcome |= {} if done else {"error": c.error or reason}
    return Exit(
        reason=reason,
        ok=done,
        answer=c.answer if done else None,
        error=c.error,
        outcome={**outcome, "audit": list(c.audit)},
        raises=RAISES.get(reason, "ExecutionError") if state is S.FAILED else None,
    )


def _build(options: Options, parts: Parts) -> Machine[Context]:
    policy = policy_of(options.min_confidence, options.policy, options.converged, parts.hooks)
    builder = hook_named(options.input_builder, parts.hooks, "input_builder")
    return Machine(
        name="simple",
        context=Context,
        initial=S.DECIDE,
        final={S.DONE, S.FAILED},
        table=TABLE,
        states=_states(Nodes(options, policy, builder)),
        result=_result,
        step_state=S.DECIDE,
        max_transitions=2 * options.max_iterations + 10,
        on_close=lambda c, reason: {"exit_reason": reason},
        fold_steer=lambda c, text: {"transcript": (Message(role="user", content=text),)},
    )


def _begin(brief: Brief, options: Options) -> Context:
    tools = tuple(spec.name for spec in brief.tools)
    return Context(goal=brief.goal, tools=tools, transcript=opening(brief), given=brief.goal)


EXITS = {
    "finished": "the model decided on the action `finish`",
    "done": "a tool returned an object with `done: true`",
    "converged": "the policy says that enough is done",
    "policy_violation": "the policy forbids what the model decided on",
    "max_iterations": "`max_iterations` steps were taken and the run was not done",
    "bad_decision": "what the model replied is no decision",
    "model_failed": "the model could not be asked",
    "tool_failure": "the tool failed, or there is none of that name",
    "unknown_outcome": "nobody knows what an unsafe tool did",
    "hook_failed": "the hook `converged` or `input_builder` failed",
}

DESIGN = Design(
    name="simple",
    stand_in=False,
    description="Decide on one action, check it against the policy, do it, until it is done.",
    options=Options,
    build=_build,
    begin=_begin,
    exits=EXITS,
)
