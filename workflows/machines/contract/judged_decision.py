"""What a decision comes to: the steps of spec 5.7 that follow the model's reply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workflows.kernel.ledger import Ledger
from workflows.machines.authoring import JsonObject
from workflows.machines.contract.budget import charge, must_finish
from workflows.machines.contract.context import Contract, Overdraft, log_entry
from workflows.machines.contract.reply import Action, ModelDecision

__all__ = ["SHOWN_ITEMS", "JudgedDecision", "judged"]

SHOWN_ITEMS = 20
"""Artifacts, and skills, that one journal shows."""


@dataclass(frozen=True, slots=True)
class JudgedDecision:
    """A decision, and what the rules make of it."""

    decision: ModelDecision
    action: Action
    budget: Ledger
    overdraft: Overdraft
    stage: str | None
    """The slot in focus, else that of the round before."""
    exit_reason: str = ""
    """Why the run is to exit; empty: it goes on."""
    exhausted: bool = False
    """The budget is used up: only the mapping of the decision counts (R-004-2)."""
    forced: bool = False
    """The decision had no valid strategy; the model is asked again."""
    show: bool = False
    """The next journal shows what the decision asks to see."""

    @property
    def events(self) -> Iterator[JsonObject]:
        """For the session log; `becomes` is what the rules made of the action."""
        decision, call = self.decision, self.decision.tool_call
        yield log_entry(
            "decision",
            action=decision.action,
            becomes=self.action if self.action != decision.action else None,
            strategy=decision.strategy,
            tool_id=call.tool_id if call and decision.action == "call_tool" else None,
            focus_slot=decision.focus_slot,
            notes=decision.notes[:500],
        )
        if self.forced:
            problem = decision.problem or "the strategy is missing"
            yield log_entry("protocol_violation", code="decision_invalid_strategy", message=problem)
        for event in ("show_artifacts", "show_skills") if self.show else ():
            if items := getattr(decision, event):
                yield log_entry(event, items=list(items[:SHOWN_ITEMS]))


def judged(c: Contract, decision: ModelDecision, overdraft: Overdraft) -> JudgedDecision:
    """What the rules make of a round's decision: steps 4 to 12 of spec 5.7 without the mapping (step 10),
    which does not depend on them. The first reason to exit wins (R-004-3)."""
    if must_finish(c) and not overdraft.allowed:
        return JudgedDecision(
            decision, "exit", c.budget, overdraft, c.round.stage, "max_iterations", exhausted=True
        )
    # 4: a decision needs a strategy
    action, strategy, forced = _with_strategy(c, decision)
    # 5: one context read for all items of the round
    wants = bool(decision.show_artifacts or decision.show_skills)
    show = wants and c.budget.left("context_reads") > 0
    budget = charge(c.budget, c.round.stage, context_reads=int(show))
    # 6: the slot in focus is the stage from here on, if the contract has it
    stage = decision.focus_slot if decision.focus_slot in c.slot_types else c.round.stage
    # 7: in overdraft only exploit rounds may call tools; 8: in the wrap-up round none
    reason, blocked = "", action == "call_tool" and overdraft.allowed and strategy != "exploit"
    if blocked:
        reason = "exploit_overdraft_blocked"
    elif action == "decision":
        reason = _refusal(c, wants=wants, show=show, forced=forced)
    if reason or (action == "call_tool" and c.is_wrapup_round):
        action = "exit"
    if action == "decision":
        budget = charge(budget, stage, strategy, decisions=1, decision_reruns=1)
    elif action != "call_tool":
        # 12: an exit is charged, except in the wrap-up round
        reason = reason or ("clarify" if action == "clarify" else "complete")
        if not c.is_wrapup_round:
            budget = charge(budget, stage, strategy, decisions=1)
    left = overdraft.model_copy(update={"allowed": overdraft.allowed and not blocked})
    return JudgedDecision(decision, action, budget, left, stage, reason, forced=forced, show=show)


def _with_strategy(c: Contract, decision: ModelDecision) -> tuple[Action, str, bool]:
    """Action and strategy, and whether the model is asked again. `exit` exits; a missing strategy exits where
    there is a summary, else it is asked for."""
    strategy: str = decision.strategy
    if strategy == "exit" or (not strategy and decision.completion_summary):
        return "exit", strategy, False
    if not strategy:
        return "decision", c.round.strategy or "exploit", True
    return decision.action, strategy, False


def _refusal(c: Contract, *, wants: bool, show: bool, forced: bool) -> str:
    """9 and 11: why there is no rerun. It must ask to see something, and one must be left; without a context
    read nothing is shown (R-004-4)."""
    if wants and not show:
        return "context_reads_exhausted"
    if not (forced or show):
        return "decision_no_progress"
    if c.is_wrapup_round:
        return "wrapup_no_decision_rerun"
    return "" if c.budget.left("decision_reruns") else "decision_reruns_exhausted"
