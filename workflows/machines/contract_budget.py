"""The budgets of the contract machine: caps, charges, overdraft and the line that the model reads.

Spec 5.5, 5.6, 5.8 and 5.14. A budget is a kernel ledger: global counters by name, those of a stage
(a slot) as `slot/counter`. Stage caps are advice, except for overdraft.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, JsonValue

from activities.contracts import Strict
from workflows.kernel.fields import Reducer
from workflows.kernel.ledger import Ledger

__all__ = [
    "CHARGE",
    "Caps",
    "Spent",
    "added",
    "budget_line",
    "derived",
    "must_finish",
    "overdraft_rounds",
    "stage_caps",
    "strategy_of",
    "used_up",
]

PARTS = ("decisions", "tools", "explore", "exploit", "render", "decision_reruns", "context_reads")
"""The global counters in the order of the budget line."""
STAGE_PARTS = ("explore", "exploit", "render", "context_reads")
HINTS = {"explore": 2, "exploit": 3, "render": 0, "ctx_reads": 0}
"""What a slot's hint says when it does not say it (spec 5.5)."""
NO_ROUNDS = 12
"""Decision rounds when the slots come to none."""

Spent = dict[str, float]
"""Counter -> amount to charge."""


def _added(first: Mapping[str, float], later: Mapping[str, float]) -> Spent:
    return {name: first.get(name, 0) + later.get(name, 0) for name in dict.fromkeys((*first, *later))}


CHARGE = Reducer(
    "charge",
    lambda old, delta: old.charge(delta),
    _added,
    delta_type=lambda annotation: dict[str, float],
    takes=lambda kind: issubclass(kind, Ledger),
)
"""For a ledger: the delta is what is charged, so that the log holds charges and not ledgers."""


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


def stage_caps(hint: Mapping[str, JsonValue] | None) -> dict[str, int]:
    """The caps of one slot from its hint: missing or no number is the default, negative is 0."""
    given = hint or {}
    counts = {name: _count(given.get(name), default) for name, default in HINTS.items()}
    return {**{name: counts[name] for name in STAGE_PARTS[:3]}, "context_reads": counts["ctx_reads"]}


def _count(value: Any, default: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return default
    return max(0, int(value))


def derived(stages: Mapping[str, Mapping[str, JsonValue] | None], caps: Caps) -> Ledger:
    """The ledger of a contract: slot -> its hint, and the global caps that are set (spec 5.5)."""
    slots = {name: stage_caps(hint) for name, hint in stages.items()}
    sums = {part: sum(slot[part] for slot in slots.values()) for part in STAGE_PARTS}
    rounds = sums["explore"] + sums["exploit"] + sums["render"] or NO_ROUNDS
    rounds = rounds if caps.decision_rounds is None else caps.decision_rounds
    found = {"decisions": rounds, "tools": rounds, **sums, "decision_reruns": 2}
    found["context_reads"] = max(3, sums["context_reads"])
    set_by_hand = {"tools": caps.tool_calls, **{p: getattr(caps, p) for p in PARTS[2:]}}
    found |= {name: cap for name, cap in set_by_hand.items() if cap is not None}
    scoped = {f"{name}/{part}": slot[part] for name, slot in slots.items() for part in STAGE_PARTS}
    return Ledger(caps={**found, **scoped}, advice=tuple(scoped))


def must_finish(budget: Ledger) -> bool:
    """The hard gate: no decision rounds or no tool calls are left."""
    return budget.left("decisions") == 0 or budget.left("tools") == 0


def overdraft_rounds(budget: Ledger, stage: str | None) -> int:
    """Exploit rounds that overdraft may use: the smaller of what run and stage have left (spec 5.8)."""
    left = budget.left("exploit")
    return int(left if stage is None else min(left, budget.left(f"{stage}/exploit")))


def strategy_of(strategy: str) -> Spent:
    """What a round of this strategy is charged with besides the round itself (spec 5.6)."""
    return {strategy: 1} if strategy in ("explore", "exploit") else {}


def added(spent: Spent, amounts: Mapping[str, float], stage: str | None) -> Spent:
    """A charge on top of others: on the run, and on the stage for what a stage counts."""
    scoped = {f"{stage}/{part}": n for part, n in amounts.items() if stage and part in STAGE_PARTS}
    return _added(spent, {**amounts, **scoped})


def used_up(budget: Ledger) -> Ledger:
    """As the wrap-up round shows it: nothing is left of anything."""
    return budget.model_copy(update={"spent": dict(budget.caps)})


def budget_line(
    budget: Ledger, stage: str | None, *, wrapup: bool = False, overdraft: tuple[int, int] | None = None
) -> str:
    """What is left, for the model (spec 5.14). `overdraft` is (used, total) of such a round."""
    shown = used_up(budget) if wrapup else budget
    parts = [_parts(shown, PARTS, "")]
    if wrapup:
        parts.append("wrapup active")
    elif overdraft:
        parts.append(f"exploit_overdraft {overdraft[0]}/{overdraft[1]}")
    line = f"BUDGET_STATE: global({', '.join(parts)})"
    return line if stage is None else f"{line}\n        stage[{stage}]({_parts(shown, STAGE_PARTS, stage)})"


def _parts(budget: Ledger, parts: Sequence[str], stage: str) -> str:
    """Parts without a cap are left out; decisions and tools are always there."""
    caps = {part: budget.caps.get(f"{stage}/{part}" if stage else part, 0) for part in parts}
    return budget.line([part for part, cap in caps.items() if cap or part in PARTS[:2]], stage)
