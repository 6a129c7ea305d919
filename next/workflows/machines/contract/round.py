"""One decision round: what the budget allows, and what the model's decision comes to (spec 5.7, 5.8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from activities.contracts import JsonObject
from workflows.kernel.ledger import Ledger
from workflows.machines.contract.budget import charge, must_finish, overdraft_rounds, strategy_charge
from workflows.machines.contract.context import Contract, Overdraft, Show
from workflows.machines.contract.reply import Action, Decision

__all__ = ["SHOWN_ITEMS", "Allowance", "Judgement", "allowance_of", "judgement_on"]

SHOWN_ITEMS = 20
"""Artifacts, and skills, that one journal shows."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the budget lets a round do (spec 5.7, step 2)."""

    kind: Literal["open", "overdraft", "exhausted"] = "open"
    used: int = 0
    """Overdraft rounds, with this one."""
    total: int = 0

    @property
    def overdraft(self) -> tuple[int, int] | None:
        """(used, total) of an overdraft round, for the budget line."""
        return (self.used, self.total) if self.kind == "overdraft" else None


def allowance_of(c: Contract) -> Allowance:
    """Checked before the model is asked, but not in the wrap-up round. Overdraft comes first (R-004-6)."""
    if c.is_wrapup_round or not must_finish(c.budget):
        return Allowance()
    if rounds := overdraft_rounds(c.budget, c.round.stage):
        used = c.overdraft.used
        return Allowance("overdraft", used + 1, used + rounds)  # R-004-5
    return Allowance("exhausted")


def judgement_on(c: Contract, decision: Decision, allowance: Allowance) -> Judgement:
    """The steps of spec 5.7 that follow the model's reply, in their order. The mapping (step 10) does not
    depend on them."""
    judgement = Judgement(c, decision, allowance)
    if allowance.kind == "exhausted":
        judgement.leave("max_iterations")  # only its mapping counts (R-004-2)
        return judgement
    judgement.check_strategy()
    judgement.show_items()
    judgement.switch_stage()
    judgement.check_tool_call()
    judgement.check_progress()
    judgement.charge_rerun()
    judgement.charge_exit()
    return judgement


class Judgement:
    """What a decision comes to: the action that is taken, why the run exits, what is charged and logged."""

    def __init__(self, c: Contract, decision: Decision, allowance: Allowance) -> None:
        self.c, self.decision, self.allowance = c, decision, allowance
        self.action: Action = decision.action
        self.strategy = decision.strategy
        self.exit_reason: str | None = None
        """Why the run is to exit. The first reason of a round wins (R-004-3)."""
        self.forced = False
        """The decision had no valid strategy; the model is asked again."""
        self.stage = c.round.stage
        self.show = Show()
        self.budget: Ledger = c.budget
        self.events: list[JsonObject] = []
        """What happened besides the decision itself."""

    @property
    def event(self) -> JsonObject:
        """The decision for the session log; `becomes` is what the rules made of its action."""
        decision, call = self.decision, self.decision.tool_call
        return {
            "event": "decision",
            "action": decision.action,
            "becomes": self.action if self.action != decision.action else None,
            "strategy": decision.strategy,
            "tool_id": call.tool_id if call and decision.action == "call_tool" else None,
            "focus_slot": decision.focus_slot,
            "notes": decision.notes[:500],
            "left_out": dict(decision.left_out) or None,
        }

    @property
    def overdraft(self) -> Overdraft:
        """The flag is dropped in a round without overdraft and at a block; what was used stays (spec 5.8)."""
        if self.allowance.kind != "overdraft":
            return self.c.overdraft.model_copy(update={"allowed": False})
        allowed = self.exit_reason != "exploit_overdraft_blocked"
        return Overdraft(allowed=allowed, used=self.allowance.used, total=self.allowance.total)

    def leave(self, reason: str) -> None:
        """The round exits, for this reason unless it has one."""
        self.action = "exit"
        self.exit_reason = self.exit_reason or reason

    def charge(self, amounts: dict[str, float]) -> None:
        """Charge the run, and the stage as it is now."""
        self.budget = charge(self.budget, amounts, self.stage)

    def note(self, event: str, **more: Any) -> None:
        """Add an event to the session log."""
        self.events.append({"event": event, **more})

    def check_strategy(self) -> None:
        """4. `exit` exits. A missing strategy exits if there is a summary; else the model is asked again."""
        if self.strategy == "exit" or (not self.strategy and self.decision.completion_summary):
            self.action = "exit"
        elif not self.strategy:
            self.action, self.forced = "decision", True
            self.strategy = self.c.round.strategy or "exploit"
            problem = self.decision.problem or "the strategy is missing"
            self.note("protocol_violation", code="decision_invalid_strategy", message=problem)

    def show_items(self) -> None:
        """5. One context read for all items of the round. Without one nothing is shown (R-004-4)."""
        wanted = Show(artifacts=self.decision.show_artifacts, skills=self.decision.show_skills)
        if wanted == Show():
            return
        if self.c.budget.left("context_reads") > 0:
            self.show = wanted
            self.charge({"context_reads": 1})
            for event, items in (("show_artifacts", wanted.artifacts), ("show_skills", wanted.skills)):
                if items:
                    self.note(event, items=list(items[:SHOWN_ITEMS]))
        elif self.action == "decision":
            self.leave("context_reads_exhausted")

    def switch_stage(self) -> None:
        """6. The slot in focus is the stage from here on, if the contract has it."""
        if any(slot.name == self.decision.focus_slot for slot in self.c.output_contract):
            self.stage = self.decision.focus_slot

    def check_tool_call(self) -> None:
        """7 and 8. In overdraft only exploit rounds may call tools, in the wrap-up round none."""
        if self.action != "call_tool":
            return
        if self.allowance.kind == "overdraft" and self.strategy != "exploit":
            self.leave("exploit_overdraft_blocked")
        elif self.c.is_wrapup_round:
            self.action = "exit"

    def check_progress(self) -> None:
        """9. A rerun must ask to see something."""
        if self.action == "decision" and not self.forced and self.show == Show():
            self.leave("decision_no_progress")

    def charge_rerun(self) -> None:
        """11. A rerun is charged, if any is left."""
        if self.action != "decision":
            return
        if self.c.is_wrapup_round:
            self.leave("wrapup_no_decision_rerun")
        elif self.c.budget.left("decision_reruns") == 0:
            self.leave("decision_reruns_exhausted")
        else:
            self.charge({"decisions": 1, "decision_reruns": 1, **strategy_charge(self.strategy)})

    def charge_exit(self) -> None:
        """12. An exit is charged, except in the wrap-up round. Its reason is the action, if it has none."""
        if self.action in ("call_tool", "decision"):
            return
        if not self.c.is_wrapup_round:
            self.charge({"decisions": 1, **strategy_charge(self.strategy)})
        self.exit_reason = self.exit_reason or ("clarify" if self.action == "clarify" else "complete")
