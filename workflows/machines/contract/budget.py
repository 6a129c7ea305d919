"""The budgets of a contract: caps, charges, overdraft, and the line that the model reads (spec 5.5 to 5.8).

A budget is a ledger of its own inside the context, so it rolls back with the rest. Global counters have
plain names, those of a stage (a slot) are `slot/counter`. Stage caps are advice, except for overdraft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from workflows.kernel.ledger import Ledger
from workflows.machines.contract.context import Contract, Options, Overdraft

__all__ = ["budget_line", "charge", "first_budget", "must_finish", "overdraft_of", "stage_caps"]

PARTS = ("decisions", "tools", "explore", "exploit", "render", "decision_reruns", "context_reads")
"""The global counters, in the order of the budget line."""
STAGE_PARTS = ("explore", "exploit", "render", "context_reads")
CAPS = {"decision_rounds": "decisions", "tool_calls": "tools"}
"""Option -> counter, where the names differ."""
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
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    return max(0, int(value))


def first_budget(options: Options) -> Ledger:
    """The budget of a run: the sums over the slots, or the global caps that are set (spec 5.5)."""
    slots = {slot.name: stage_caps(slot.budget) for slot in options.slots}
    sums = {part: sum(slot[part] for slot in slots.values()) for part in STAGE_PARTS}
    given = {CAPS.get(name, name): cap for name, cap in options.caps.model_dump(exclude_none=True).items()}
    rounds = given.get("decisions", sums["explore"] + sums["exploit"] + sums["render"] or DEFAULT_ROUNDS)
    total = {"decisions": rounds, "tools": rounds, "decision_reruns": 2, **sums}
    total["context_reads"] = max(3, sums["context_reads"])
    scoped = {f"{name}/{part}": slot[part] for name, slot in slots.items() for part in STAGE_PARTS}
    return Ledger(caps={**total, **given, **scoped}, advice=tuple(scoped))


def must_finish(c: Contract) -> bool:
    """No decision rounds or no tool calls are left. The wrap-up round has no such limit."""
    return not c.is_wrapup_round and 0 in (c.budget.left("decisions"), c.budget.left("tools"))


def overdraft_of(c: Contract) -> Overdraft:
    """The overdraft of the round that begins. It is allowed while run and stage have exploit rounds left,
    and comes before wrap-up (spec 5.8, R-004-6)."""
    left = c.budget.left("exploit")
    if c.round.stage is not None:
        left = min(left, c.budget.left(f"{c.round.stage}/exploit"))
    if not (must_finish(c) and left):
        return c.overdraft.model_copy(update={"allowed": False})
    used = c.overdraft.used
    return Overdraft(allowed=True, used=used + 1, total=used + int(left))  # R-004-5


def charge(budget: Ledger, stage: str | None, strategy: str = "", **amounts: int) -> Ledger:
    """With these amounts charged to the run, and to the stage those that a stage counts. A round of explore
    or exploit costs one of these too (spec 5.6)."""
    if strategy in ("explore", "exploit"):
        amounts[strategy] = 1
    amounts = {part: amount for part, amount in amounts.items() if amount}
    budget = budget.charge(amounts)
    if stage is None:
        return budget
    return budget.charge({part: amount for part, amount in amounts.items() if part in STAGE_PARTS}, stage)


def budget_line(c: Contract, overdraft: Overdraft) -> str:
    """What is left in this round, for the model (spec 5.14). A wrap-up round shows nothing left."""
    budget, stage, more = c.budget, c.round.stage, ""
    if c.is_wrapup_round:
        budget, more = budget.model_copy(update={"spent": dict(budget.caps)}), ", wrapup active"
    elif overdraft.allowed:
        more = f", exploit_overdraft {overdraft.used}/{overdraft.total}"
    line = f"BUDGET_STATE: global({_left(budget, PARTS)}{more})"
    return line if stage is None else f"{line}\n        stage[{stage}]({_left(budget, STAGE_PARTS, stage)})"


def _left(budget: Ledger, parts: Sequence[str], stage: str = "") -> str:
    """A part without a cap is left out; decisions and tools are always printed."""
    caps = {part: budget.caps.get(f"{stage}/{part}" if stage else part, 0) for part in parts}
    return budget.line([part for part, cap in caps.items() if cap or part in PARTS[:2]], stage)
