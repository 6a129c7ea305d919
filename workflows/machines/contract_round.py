"""One decision round: what a decision comes to, in the order of spec 5.7. Pure.

The steps before the mapping (4 to 9) and behind it (11, 12) are lists of functions, so that their
order can be read, and is the order in which they run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from activities.contracts import JsonObject
from workflows.machines.contract_budget import Spent, added, must_finish, overdraft_rounds, strategy_of
from workflows.machines.contract_reply import Decision

__all__ = [
    "SHOWN_ITEMS",
    "BEFORE_MAPPING",
    "BEHIND_MAPPING",
    "Gate",
    "Round",
    "end_reason",
    "gate_of",
    "judged",
    "settled",
    "wish_of",
]

SHOWN_ITEMS = 20
"""Artifacts, and skills, that one journal shows."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What the budget lets a round do (spec 5.7, 2; 5.8)."""

    state: Literal["open", "overdraft", "exhausted"] = "open"
    used: int = 0
    """Overdraft rounds, this one included."""
    total: int = 0

    @property
    def overdraft(self) -> tuple[int, int] | None:
        """For the budget line."""
        return (self.used, self.total) if self.state == "overdraft" else None


def gate_of(c: Any) -> Gate:
    """Asked before the model; never in the wrap-up round. Overdraft comes first (R-004-6)."""
    if c.is_wrapup_round or not must_finish(c.budget):
        return Gate()
    rounds = overdraft_rounds(c.budget, c.stage)
    if rounds > 0:
        used = c.exploit_overdraft_used
        return Gate("overdraft", used + 1, used + rounds)  # R-004-5
    return Gate("exhausted")


@dataclass(frozen=True, slots=True)
class Round:
    """A round as far as its steps have come."""

    decision: Decision
    gate: Gate
    wrapup: bool
    action: str
    strategy: str
    pending: str | None = None
    forced: bool = False
    stage: str | None = None
    show: bool = False
    """Something is shown in the next round."""
    spent: Spent = field(default_factory=dict)
    events: tuple[JsonObject, ...] = ()

    def exits(self, reason: str) -> Round:
        """The round exits; the first pending reason wins (R-004-3)."""
        return replace(self, action="exit", pending=self.pending or reason)

    def charged(self, amounts: Spent) -> Round:
        """With these amounts charged to the run and to the stage that is current now."""
        return replace(self, spent=added(self.spent, amounts, self.stage))

    def noted(self, event: str, **more: Any) -> Round:
        """With an event for the session log."""
        return replace(self, events=(*self.events, {"event": event, **more}))


def judged(c: Any, decision: Decision) -> Round:
    """Steps 4 to 9: what is left of the decision when the rules are through with it."""
    begun = Round(
        decision=decision,
        gate=gate_of(c),
        wrapup=c.is_wrapup_round,
        action=decision.action,
        strategy=decision.strategy,
        pending=c.pending_exit_reason,
        stage=c.stage,
    )
    if begun.gate.state == "exhausted":
        return begun.exits("max_iterations")  # only its mapping counts (R-004-2)
    for step in BEFORE_MAPPING:
        begun = step(c, begun)
    return begun


def settled(c: Any, done: Round) -> Round:
    """Steps 11 and 12, behind the mapping."""
    if done.gate.state == "exhausted":
        return done
    for step in BEHIND_MAPPING:
        done = step(c, done)
    return done


def _strategy(c: Any, r: Round) -> Round:
    """4. `exit` exits; no strategy exits with a summary, else it is asked for again."""
    if r.strategy == "exit" or (not r.strategy and r.decision.completion_summary):
        return replace(r, action="exit")
    if r.strategy:
        return r
    problem = r.decision.problem or "the strategy is missing"
    forced = replace(r, action="decision", forced=True, strategy=c.last_strategy or "exploit")
    return forced.noted("protocol_violation", code="decision_invalid_strategy", message=problem)


def _show_items(c: Any, r: Round) -> Round:
    """5. One context read for the round, or nothing is shown."""
    d = r.decision
    if not (d.show_artifacts or d.show_skills):
        return r
    if c.budget.left("context_reads") > 0:
        r = replace(r.charged({"context_reads": 1}), show=True)
        shown = {"show_artifacts": d.show_artifacts, "show_skills": d.show_skills}
        for event, items in shown.items():
            r = r.noted(event, items=list(items[:SHOWN_ITEMS])) if items else r
        return r
    return r.exits("context_reads_exhausted") if r.action == "decision" else r


def _stage(c: Any, r: Round) -> Round:
    """6. A known slot in focus is the stage from here on."""
    known = any(slot.name == r.decision.focus_slot for slot in c.output_contract)
    return replace(r, stage=r.decision.focus_slot) if known else r


def _overdraft(c: Any, r: Round) -> Round:
    """7. In overdraft only exploit rounds may call tools."""
    blocked = r.gate.state == "overdraft" and r.action == "call_tool" and r.strategy != "exploit"
    return r.exits("exploit_overdraft_blocked") if blocked else r


def _wrapup(c: Any, r: Round) -> Round:
    """8. In the wrap-up round no tool is run."""
    return replace(r, action="exit") if r.wrapup and r.action == "call_tool" else r


def _progress(c: Any, r: Round) -> Round:
    """9. A rerun must want to see something."""
    idle = r.action == "decision" and not r.forced and not r.show
    return r.exits("decision_no_progress") if idle else r


def _rerun(c: Any, r: Round) -> Round:
    """11. A rerun is charged, if there are any left."""
    if r.action != "decision":
        return r
    if r.wrapup:
        return r.exits("wrapup_no_decision_rerun")
    if c.budget.left("decision_reruns") == 0:
        return r.exits("decision_reruns_exhausted")
    return r.charged({"decisions": 1, "decision_reruns": 1, **strategy_of(r.strategy)})


def _exit(c: Any, r: Round) -> Round:
    """12. An exit is charged, and pending for what the decision wished unless it is for a reason."""
    wished = wish_of(r.action)
    if wished is None:
        return r
    charged = r if r.wrapup else r.charged({"decisions": 1, **strategy_of(r.strategy)})
    return replace(charged, pending=r.pending or wished)


BEFORE_MAPPING = (_strategy, _show_items, _stage, _overdraft, _wrapup, _progress)
BEHIND_MAPPING = (_rerun, _exit)


def wish_of(action: str) -> str | None:
    """The exit reason that an action stands for (spec 5.9, 2)."""
    if action == "clarify":
        return "clarify"
    return "complete" if action in ("complete", "exit") else None


def end_reason(action: str) -> str:
    """How a round that ends in `decision` is timed (spec 5.15)."""
    return action if action in ("decision", "complete", "clarify") else "exit"
