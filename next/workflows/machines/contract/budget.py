"""The budgets of a contract: caps, charges, overdraft, and the line that the model reads (spec 5.5 to 5.8).

A budget is a ledger of its own inside the context, so it rolls back with the rest. Global counters have
plain names, those of a stage (a slot) are `slot/counter`. Stage caps are advice, except for overdraft.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from workflows.kernel.ledger import Ledger
from workflows.machines.contract.context import Contract, Options, Overdraft

__all__ = ["budget_line", "charged", "first_budget", "must_finish", "overdraft_of", "stage_caps"]

PARTS = ("decisions", "tools", "explore", "exploit", "render", "decision_reruns", "context_reads")
"""The global counters, in the order of the budget line."""
STAGE_PARTS = ("explore", "exploit", "render", "context_reads")
DEFAULT_ROUNDS = 12
"""Decision rounds where the slots sum up to none."""


def stage_caps(hint: Mapping[str, JsonValue]) -> dict[str, int]:
    """The caps of one slot. A hint that is missing or not a number gets the default, a negative one 0."""
    return {
        "explore": _count(hint.get("explore"), 2),
        "exploit": _count(hint.get("exploit"), 3),
        "render": _count(hint.get("render"), 0),
        "context_reads": _count(hint.get("ctx_reads"), 0),
    }


def _count(value: JsonValue, default: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return default
    return max(0, int(value))


def first_budget(options: Options) -> Ledger:
    """The budget of a run: the sums over the slots, or the global caps that are set (spec 5.5)."""
    slots = {slot.name: stage_caps(slot.budget) for slot in options.slots}
    sums = {part: sum(slot[part] for slot in slots.values()) for part in STAGE_PARTS}
    rounds = options.caps.decision_rounds
    if rounds is None:
        rounds = sums["explore"] + sums["exploit"] + sums["render"] or DEFAULT_ROUNDS
    derived = {**sums, "tool_calls": rounds, "decision_reruns": 2}
    derived["context_reads"] = max(3, sums["context_reads"])
    caps = {**derived, **options.caps.model_dump(exclude_none=True), "decisions": rounds}
    caps["tools"] = caps.pop("tool_calls")
    scoped = {f"{name}/{part}": slot[part] for name, slot in slots.items() for part in STAGE_PARTS}
    return Ledger(caps={**{part: caps[part] for part in PARTS}, **scoped}, advice=tuple(scoped))


def must_finish(c: Contract) -> bool:
    """The hard limit: no decision rounds or no tool calls are left. The wrap-up round has no limit."""
    return not c.is_wrapup_round and 0 in (c.budget.left("decisions"), c.budget.left("tools"))


def overdraft_of(c: Contract) -> Overdraft:
    """The overdraft of the round that begins: allowed if exploit rounds are left for run and stage, the
    smaller of the two. It comes before wrap-up (spec 5.8, R-004-6)."""
    left = c.budget.left("exploit")
    if c.round.stage is not None:
        left = min(left, c.budget.left(f"{c.round.stage}/exploit"))
    if not (must_finish(c) and left):
        return c.overdraft.model_copy(update={"allowed": False})
    used = c.overdraft.used
    return Overdraft(allowed=True, used=used + 1, total=used + int(left))  # R-004-5


def charged(
    budget: Ledger, stage: str | None, strategy: str = "", more: Mapping[str, float] | None = None
) -> Ledger:
    """The budget after these amounts, and after a round of the strategy (spec 5.6)."""
