"""Planner: the model proposes, code decides (spec 4). The loop, the tools, validation and stopping are never
left to the model.

Two machines have this name, each with a table and a page of its own. `planned.py`: plan once, decide, then
propose and observe in a loop. `simple.py`, by `mode: simple`: no plan, one action at a time (spec 4.10).
"""

from __future__ import annotations

from collections.abc import Mapping

from workflows.machines.authoring import Machine, Message, Patch, RunInput
from workflows.machines.common.options import reset_fields
from workflows.machines.planner import planned, simple
from workflows.machines.planner.context import Options, Planner, prepare
from workflows.machines.planner.loop import ENDS, S
from workflows.machines.planner.proof import PROPERTIES, SCENARIOS

__all__ = ["MACHINE", "build_machine"]

MAX_EFFECTS = 10_000
"""Calls of one reply are effects of one visit."""

EXITS: Mapping[str, str] = {
    "answered": "the model answered without asking for a tool",
    "finished": "simple mode: the model decided on the action `finish`",
    "done": "simple mode: a tool returned an object with `done: true`",
    "converged": "the policy says that enough is done",
    "stopped": "the decision on the plan was to stop; nothing was carried out",
    "no_observations": "the loop had nothing to look at",
    "plan_failed": "there is no plan: the model could not be asked, or its plan does not fit `plan_schema`",
    "invalid_plan": "the plan has no goal, and neither has the run",
    "invalid_decision": "what the hook or the model decided cannot be used",
    "policy_violation": "the policy forbids the plan, carrying it out, or a call",
    "hook_failed": "the hook `converged` or `input_builder` failed",
    "execution_failed": "the model could not be asked for the next proposal, or its answer was cut off",
    "tool_failure": "a tool failed, and `on_tool_error` is `halt`",
    "unknown_outcome": "the outcome of an unsafe tool is unknown",
    "invalid_arguments": "the arguments of a tool call are not JSON",
    "max_iterations": "`max_iterations` iterations were made without an answer",
    "time_limit": "the run took longer than `time_limit`",
    "budget": "one of `budgets` is used up; the error names it",
}


def on_reopen(c: Planner) -> tuple[S, Patch]:
    """The model proposes once more."""
    return S.EXECUTE, reset_fields(Planner, {*ENDS, "answer", "summary_error"})


def build_machine(options: Options) -> Machine:
    """The machine of the mode."""
    mode, page = options.mode, planned if options.mode == "plan" else simple

    def begin(input: RunInput, options: Options) -> tuple[Planner, list[Message]]:
        if options.mode != mode:
            raise ValueError(
                f"this machine is made for `mode: {mode}`; make one with `build_machine(options)`"
            )
        return page.begin(input)  # type: ignore[no-any-return]  # mypy takes the two pages for any modules

    return Machine(
        name="planner",
        description="Plan once, decide, then propose and observe in a loop; `mode: simple` has no plan.",
        options=Options,
        context=Planner,
        begin=begin,
        initial=S.INTAKE,
        table=page.TABLE,
        states=page.STATES,
        step=S.EXECUTE,
        on_close=lambda c, reason: {"exit_reason": reason},
        on_reopen=on_reopen,
        # where the decision was to stop, or nothing was looked at, there is no answer to ask for again
        on_refused=lambda c: None if c.exit_reason in ("stopped", "no_observations") else on_reopen(c),
        result=page.result,
        prepare=prepare,
        # Three moves an iteration and some around: the limit is `max_iterations` alone (R-003-8).
        max_transitions=lambda options: 3 * options.max_iterations + 10,
        caps=lambda options: {"iterations": options.max_iterations + 1},
        max_effects=MAX_EFFECTS,
        most_calls=lambda options, replies: (
            min(options.max_iterations, replies) * (1 if mode == "simple" else MAX_EFFECTS)
        ),
        roles=("default", "planner", "decide", "summary"),
        plain_replies=False,
        exits=EXITS,
        properties=PROPERTIES,
        scenarios=SCENARIOS,
    )


MACHINE = build_machine(Options())
