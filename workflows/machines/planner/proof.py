"""What must hold of every planner run, and in which runs that is tried (docs/verification.md)."""

from __future__ import annotations

from typing import Any

from activities.contracts import AskModel, ToolSpec
from workflows.kernel.machine import Extensions
from workflows.kernel.properties import (
    Moment,
    Property,
    Scenario,
    When,
    after,
    asks_model,
    at_most,
    before,
    between,
    calls,
    ends,
    event,
    is_unknown,
    last,
    never,
    returned,
    then,
)
from workflows.machines.planner.loop import (
    Continued,
    Finished,
    Halted,
    Observed,
    Planned,
    Proposed,
    S,
    Stopped,
    TakenIn,
)

__all__ = ["PROPERTIES", "SCENARIOS"]


def asks_for(label: str) -> When:
    """The model is asked for this."""
    return lambda x: (
        asks_model(x) and isinstance(x.effect, AskModel) and x.effect.label.split(" ")[0] == label
    )


def asks_but(what: When) -> When:
    """Something else is asked."""
    return lambda x: x.kind == "asked" and not what(x)


def sums_up(x: Moment) -> bool:
    """The run has stopped, and a summary is wanted."""
    return bool(event(Stopped)(x) and x.options.finalize_summary)


proposes = asks_for("execute")

PROPERTIES: tuple[Property, ...] = (
    at_most("the input is taken in once", 1, lambda x: x.kind == "moved" and x.state == S.INTAKE.name),
    at_most("one plan is made", 1, asks_for("plan")),
    at_most("one decision is made on it", 1, asks_for("decide")),
    before("a plan is asked for when the input is taken in", first=event(TakenIn), then=asks_for("plan")),
    before("the plan is decided on when it is there", first=event(Planned), then=asks_for("decide")),
    before("nothing is proposed before the decision to continue", first=event(Continued), then=proposes),
    between(
        "after a decision to continue comes a proposal",
        event(Continued),
        proposes,
        never=asks_but(proposes),
    ),
    before("a tool runs only after a proposal", first=event(Proposed), then=calls()),
    never("a tool runs only in OBSERVE", lambda x: calls()(x) and x.state != S.OBSERVE.name),
    between(
        "what is proposed is observed before the next question",
        event(Proposed),
        event(Observed),
        never=asks_model,
    ),
    between(
        "a tool's result is observed before the next question", returned(), event(Observed), never=asks_model
    ),
    never(
        "no proposal beyond `max_iterations`",
        lambda x: proposes(x) and x.context.iteration >= x.options.max_iterations,
    ),
    last("nothing is asked after an unknown outcome", is_unknown),
    last("nothing is asked after a halt", event(Halted)),
    last("nothing is asked after the end", event(Finished)),
    last("after a stop, only a summary is asked for", event(Stopped), but=asks_for("summary")),
    then("a stop is summed up where that is wanted", sums_up, asks_for("summary")),
    at_most("one summary is made", 1, asks_for("summary")),
    after("a run that stopped ends well", event(Stopped), eventually=ends(lambda exit, c: exit.ok)),
    after("a run that halted does not", event(Halted), eventually=ends(lambda exit, c: not exit.ok)),
    never("a run that is ok has no error", ends(lambda exit, c: exit.ok and exit.error)),
    never("a run that halted says why", ends(lambda exit, c: not exit.ok and not exit.error)),
    after("a run that halted raises", event(Halted), eventually=ends(lambda exit, c: exit.raises)),
)

QUERY = {"type": "object", "properties": {"q": {"type": "string", "enum": ["x"]}}, "required": ["q"]}
LOOK = ToolSpec(name="look", description="", effect="read", parameters=QUERY)
PAY = ToolSpec(name="pay", description="", effect="unsafe", parameters=QUERY)


def _broken(*shown: Any) -> Any:
    raise RuntimeError("the hook is broken")


def _forbids_pay(decision: Any, state: Any) -> str | None:
    return "no payments" if decision.action == "pay" else None


PLAN: Any = {
    "goal": ["know it"],
    "required_capabilities": [[]],
    "initial_steps": [[]],
    "reason": ["why"],
}
ACTION: Any = {"params": [{"q": "x"}, {"answer": "42"}]}
ENOUGH: Any = {"converged": ["step_completed"]}
HOOKS = Extensions(hooks={"broken": _broken, "forbids_pay": _forbids_pay})

SCENARIOS = (
    Scenario(
        name="plan",
        options={"max_iterations": 2, "decide": "model", "finalize_summary": True},
        tools=(LOOK, PAY),
        words=PLAN,
        replies={"plan*": ("[3]",)},
    ),
    Scenario(
        name="plan, failures are recorded",
        options={"max_iterations": 2, "on_tool_error": "record"},
        tools=(LOOK, PAY),
        words=PLAN,
        without=frozenset({"timeout", "transient"}),
    ),
    Scenario(
        name="plan, a policy's refusals are recorded",
        options={"max_iterations": 2, "on_policy_violation": "record", "policy": "forbids_pay"},
        tools=(LOOK, PAY),
        words=PLAN,
        without=frozenset({"timeout", "transient"}),
        extensions=HOOKS,
    ),
    Scenario(
        name="plan, enough is done",
        options={"max_iterations": 2, "finalize_summary": True, **ENOUGH},
        tools=(PAY,),
        words=PLAN,
    ),
    Scenario(
        name="plan, a broken hook",
        options={"max_iterations": 2, "converged": "broken"},
        tools=(PAY,),
        words=PLAN,
        extensions=HOOKS,
    ),
    Scenario(name="simple", options={"mode": "simple", "max_iterations": 2}, tools=(LOOK, PAY), words=ACTION),
    Scenario(
        name="simple, enough is done",
        options={"mode": "simple", "max_iterations": 2, "finalize_summary": True, **ENOUGH},
        tools=(PAY,),
        words=ACTION,
    ),
    Scenario(
        name="simple, failures are recorded",
        options={
            "mode": "simple",
            "max_iterations": 2,
            "on_tool_error": "record",
            "on_policy_violation": "record",
        },
        tools=(PAY,),
        words=ACTION,
    ),
)
