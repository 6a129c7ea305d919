"""The budgets of a contract: caps, charges, overdraft, and the line that the model reads (spec 5.5 to 5.8).

A budget is a ledger of its own inside the context, so it rolls back with the rest. Global counters have
plain names, those of a stage (a slot) are `slot/counter`. Stage caps are advice, except for overdraft.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field, JsonValue

from activities.contracts import JsonObject, Strict
from workflows.kernel.ledger import Ledger

__all__ = [
    "Caps",
    "budget_line",
    "charge",
    "first_budget",
    "must_finish",
    "overdraft_rounds",
    "stage_caps",
    "strategy_charge",
]

PARTS = ("decisions", "tools", "explore", "exploit", "render", "decision_reruns", "context_reads")
"""The global counters, in the order of the budget line."""
STAGE_PARTS = ("explore", "exploit", "render", "context_reads")
HINTS = {"explore": 2, "exploit": 3, "render": 0, "ctx_reads": 0}
"""What a slot gets where its hint is silent (spec 5.5)."""
DEFAULT_ROUNDS = 12
"""Decision rounds where the slots sum up to none."""


class Caps(Strict):
    """Global caps; null: from the slots (spec 5.5, R-004-1)."""

    decision_rounds: int | None = Field(default=None, ge=0, le=10_000, description="rounds; null: [5.5]")
    tool_calls: int | None = Field(default=None, ge=0, le=10_000, description="calls; null: [5.5]")
    explore: int | None = Field(default=None, ge=0, le=10_000, description="rounds; null: [5.5]")
    exploit: int | None = Field(default=None, ge=0, le=10_000, description="rounds; null: [5.5]")
    render: int | None = Field(default=None, ge=0, le=10_000, description="rounds; null: [5.5]")
    context_reads: int | None = Field(
        default=None, ge=0, le=10_000, description="rounds that show something; null: at least 3 [5.5]"
    )
    decision_reruns: int | None = Field(
        default=None, ge=0, le=10_000, description="rounds that only ask again; null: 2 [5.5]"
    )


def stage_caps(hint: Mapping[str, JsonValue]) -> dict[str, int]:
    """The caps of one slot. A hint that is missing or not a number gets the default, a negative one 0."""
    counts = {name: _count(hint.get(name), default) for name, default in HINTS.items()}
    counts["context_reads"] = counts.pop("ctx_reads")
    return counts


def _count(value: JsonValue, default: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return default
    return max(0, int(value))


def first_budget(stages: Iterable[tuple[str, JsonObject]], caps: Caps) -> Ledger:
    """The budget of a run: (slot, its hint) for each slot, and the global caps that are set (spec 5.5)."""
    slots = {name: stage_caps(hint) for name, hint in stages}
    sums = {part: sum(slot[part] for slot in slots.values()) for part in STAGE_PARTS}
    rounds = caps.decision_rounds
    if rounds is None:
        rounds = sums["explore"] + sums["exploit"] + sums["render"] or DEFAULT_ROUNDS
    total = {"decisions": rounds, "tools": rounds, "decision_reruns": 2, **sums}
    total["context_reads"] = max(3, sums["context_reads"])
    given = {"tools": caps.tool_calls, **{part: getattr(caps, part) for part in PARTS[2:]}}
    total |= {part: cap for part, cap in given.items() if cap is not None}
    scoped = {f"{name}/{part}": slot[part] for name, slot in slots.items() for part in STAGE_PARTS}
    return Ledger(caps={**total, **scoped}, advice=tuple(scoped))


def must_finish(budget: Ledger) -> bool:
    """The hard limit: no decision rounds or no tool calls are left."""
    return budget.left("decisions") == 0 or budget.left("tools") == 0


def overdraft_rounds(budget: Ledger, stage: str | None) -> int:
    """Exploit rounds that overdraft may use: the smaller of what run and stage have left (spec 5.8)."""
    left = budget.left("exploit")
    return int(left if stage is None else min(left, budget.left(f"{stage}/exploit")))


def strategy_charge(strategy: str) -> dict[str, float]:
    """What a round of this strategy costs besides the round itself (spec 5.6)."""
    return {strategy: 1} if strategy in ("explore", "exploit") else {}


def charge(budget: Ledger, amounts: Mapping[str, float], stage: str | None) -> Ledger:
    """With these amounts charged: all to the run, and to the stage those that a stage counts."""
    budget = budget.charge(amounts)
    if stage is None:
        return budget
    return budget.charge({part: n for part, n in amounts.items() if part in STAGE_PARTS}, stage)


def budget_line(
    budget: Ledger, stage: str | None, *, wrapup: bool = False, overdraft: tuple[int, int] | None = None
) -> str:
    """What is left, for the model (spec 5.14). `overdraft` is (used, total); a wrap-up round shows 0."""
    if wrapup:
        budget = budget.model_copy(update={"spent": dict(budget.caps)})
    parts = [_left(budget, PARTS)]
    if wrapup:
        parts.append("wrapup active")
    elif overdraft:
        parts.append(f"exploit_overdraft {overdraft[0]}/{overdraft[1]}")
    line = f"BUDGET_STATE: global({', '.join(parts)})"
    return line if stage is None else f"{line}\n        stage[{stage}]({_left(budget, STAGE_PARTS, stage)})"


def _left(budget: Ledger, parts: Sequence[str], stage: str = "") -> str:
    """A part without a cap is left out; decisions and tools are always printed."""
    caps = {part: budget.caps.get(f"{stage}/{part}" if stage else part, 0) for part in parts}
    return budget.line([part for part, cap in caps.items() if cap or part in PARTS[:2]], stage)
