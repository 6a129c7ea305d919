"""Which tool calls need a person: data, evaluated here. Pure.

No text of a model or a tool is asked for an opinion: what comes in is the policy as the agent's author
wrote it, the tool's declared effect, the call's name and arguments, and what the run has spent.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from activities.contracts import JsonObject, ToolRun, ToolSpec
from workflows.gate.conditions import fits
from workflows.people import (
    EFFECTS_ASKED,
    ApprovalRule,
    Approvals,
    Asking,
    Mode,
    People,
)

__all__ = ["Asked", "asking_for", "first_key"]


class Asked(Asking):
    """How a call is put to people, and what made it be asked."""

    because: str = ""
    """The entry of the approvals: `rules.0`, `tools.pay`, `effects.unsafe`."""
    spent_usd: float = 0
    """What the run had spent by then."""


def asking_for(
    approvals: Approvals,
    people: People,
    spec: ToolSpec | None,
    run: ToolRun,
    *,
    spent_usd: float,
    approved: Collection[str] = (),
) -> Asked | None:
    """How the call is to be asked about; None: nobody is asked.

    The first rule that fits decides; else the entry of the tool; else that of its effect. `approved` are
    the `first_key`s of what people have approved in this run. A tool without a spec is not in the run's
    reach and never called, so nobody is asked about it.
    """
    if spec is None:
        return None
    mode, because, asking = _mode(approvals, spec, run, spent_usd)
    if mode in ("never", "rules") or (mode == "first_time" and first_key(run.tool, because) in approved):
        return None
    how = asking or people.asking_of("approval")
    return Asked.model_validate({**how.model_dump(), "because": because, "spent_usd": spent_usd})


def first_key(tool: str, because: str) -> str:
    """What `first_time` goes by: the tool, and the entry that asks. Who approved a small payment that one
    rule asks about has not approved the first large one that another rule asks about."""
    return f"{tool} {because}"


def _mode(
    approvals: Approvals, spec: ToolSpec, run: ToolRun, spent_usd: float
) -> tuple[Mode, str, Asking | None]:
    for number, rule in enumerate(approvals.rules):
        fit = _fits(rule, spec, run, spent_usd)
        # What cannot be told counts against the call: it is asked about, and not let pass.
        if fit or (fit is None and rule.ask != "never"):
            return rule.ask, f"rules.{number}", rule.asking
    if run.tool in approvals.tools:
        return approvals.tools[run.tool], f"tools.{run.tool}", None
    effects = {**EFFECTS_ASKED, **approvals.effects}
    return effects.get(spec.effect, "never"), f"effects.{spec.effect}", None


def _fits(rule: ApprovalRule, spec: ToolSpec, run: ToolRun, spent_usd: float) -> bool | None:
    if rule.tools and not any(fnmatchcase(run.tool, name) for name in rule.tools):
        return False
    if rule.effects and spec.effect not in rule.effects:
        return False
    if rule.cost_above is not None and not spent_usd > rule.cost_above:
        return False
    return fits(rule.arguments, {**_defaults(spec), **run.arguments})


def _defaults(spec: ToolSpec) -> JsonObject:
    """What the tool takes for arguments that are left out: a call must not pass by leaving one out."""
    properties = spec.parameters.get("properties")
    named = properties.items() if isinstance(properties, dict) else ()
    return {name: one["default"] for name, one in named if isinstance(one, dict) and "default" in one}
