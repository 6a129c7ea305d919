"""What an agent may still do in a run that is under way: its policy, less what the run has used. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from activities.contracts import Frozen, Label
from workflows.api import AgentSpec
from workflows.people import ApprovalRule, Bound

__all__ = ["RunSoFar", "agent_from_here"]


class RunSoFar(Frozen):
    """How far a run is, as far as its policy looks at it."""

    bounds: tuple[Bound, ...] = ()
    """Of its approval rules, and how far they are used."""
    labels: tuple[Label, ...] = ()
    """Those that it has."""
    spent_usd: float = 0.0
    """With what the runs above it have spent."""
    caps: dict[str, float] = {}
    """Its limits now: people may have raised them."""
    tool_calls: float = 0.0
    """Those that it has made."""
    approved: tuple[str, ...] = ()
    """Requests by which people have approved later calls of the tool, too."""


def agent_from_here(agent: AgentSpec, run: RunSoFar) -> AgentSpec:
    """The agent as if a run began where this one is: only what is left of its bounds and limits, its labels
    from the beginning, and no rule that waits for money which is spent already."""
    rules = [_rule_now(rule, f"rules.{n}", run) for n, rule in enumerate(agent.approvals.rules)]
    labels = (*dict.fromkeys((*agent.labels.input, *run.labels)),)
    calls = run.caps.get("tool_calls")
    limits = {
        "tool_calls": None if calls is None else max(int(calls - run.tool_calls), 0),
        "model_calls": None if (replies := run.caps.get("model_calls")) is None else int(replies),
    }
    return agent.model_copy(
        update={
            "approvals": agent.approvals.model_copy(update={"rules": tuple(rules)}),
            "labels": agent.labels.model_copy(update={"input": labels}),
            "limits": agent.limits.model_copy(update=limits),
        }
    )


def _rule_now(rule: ApprovalRule, name: str, run: RunSoFar) -> ApprovalRule:
    is_due = rule.cost_above is not None and run.spent_usd > rule.cost_above
    now = rule.model_copy(update={"cost_above": None}) if is_due else rule
    if rule.at_most is None:
        return now
    left = _left(run.bounds, name)
    if left.get("calls", Decimal(1)) < 1:
        return now.model_copy(update={"ask": rule.then, "at_most": None, "then": "always"})
    sums = {of: float(left.get(f"sum.{of}", Decimal(repr(most)))) for of, most in rule.at_most.sum.items()}
    calls = int(left["calls"]) if "calls" in left else rule.at_most.calls
    return now.model_copy(update={"at_most": rule.at_most.model_copy(update={"calls": calls, "sum": sums})})


def _left(bounds: Iterable[Bound], rule: str) -> dict[str, Decimal]:
    """`calls`, or `sum.` and an argument -> how much of the bound is left."""
    return {one.of: max(one.most - one.used, Decimal(0)) for one in bounds if one.rule == rule}
