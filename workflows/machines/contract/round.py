"""What a decision comes to: the steps of spec 5.7 that follow the model's reply, in their order."""

from __future__ import annotations

from typing import Any

from activities.contracts import JsonObject
from workflows.machines.contract.budget import charge, must_finish
from workflows.machines.contract.context import Contract, Overdraft, log_entry
from workflows.machines.contract.reply import Action, Decision

__all__ = ["SHOWN_ITEMS", "Judgement"]

SHOWN_ITEMS = 20
"""Artifacts, and skills, that one journal shows."""


class Judgement:
    """The action that is taken, why the run exits, what is charged and logged.

    `overdraft` is that of the round. The mapping (step 10) does not depend on the judgement.
    """

    def __init__(self, c: Contract, decision: Decision, overdraft: Overdraft) -> None:
        self.c, self.decision, self.overdraft = c, decision, overdraft
        self.exhausted = must_finish(c) and not overdraft.allowed
        """The budget is used up: only the mapping of the decision counts (R-004-2)."""
        self.action: Action = decision.action
        self.strategy: str = decision.strategy
        self.exit_reason: str | None = None
        """Why the run is to exit. The first reason of a round wins (R-004-3)."""
        self.forced = False
        """The decision had no valid strategy; the model is asked again."""
        self.stage = c.round.stage
        self.show = False
        """The next journal shows what the decision asks to see."""
        self.budget = c.budget
        self.events: list[JsonObject] = []
        """What happened besides the decision itself."""
        if self.exhausted:
            self.leave("max_iterations")
            return
        self.check_strategy()
        self.show_items()
        self.switch_stage()
        self.check_tool_call()
        self.check_rerun()
        self.charge_exit()

    @property
    def event(self) -> JsonObject:
        """The decision for the session log; `becomes` is what the rules made of its action."""
        decision, call = self.decision, self.decision.tool_call
        return log_entry(
            "decision",
            action=decision.action,
            becomes=self.action if self.action != decision.action else None,
            strategy=decision.strategy,
            tool_id=call.tool_id if call and decision.action == "call_tool" else None,
            focus_slot=decision.focus_slot,
            notes=decision.notes[:500],
        )

    def leave(self, reason: str) -> None:
        """The round exits, for this reason unless it has one."""
        self.action = "exit"
        self.exit_reason = self.exit_reason or reason

    def charge(self, strategy: str = "", **amounts: int) -> None:
        """Charge the run, and the stage as it is now."""
        self.budget = charge(self.budget, self.stage, strategy, **amounts)

    def note(self, event: str, **more: Any) -> None:
        """Add an event to the session log."""
        self.events.append(log_entry(event, **more))

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
        artifacts, skills = self.decision.show_artifacts, self.decision.show_skills
        if not (artifacts or skills):
            return
        if self.c.budget.left("context_reads") > 0:
            self.show = True
            self.charge(context_reads=1)
            for event, items in (("show_artifacts", artifacts), ("show_skills", skills)):
                if items:
                    self.note(event, items=list(items[:SHOWN_ITEMS]))
        elif self.action == "decision":
            self.leave("context_reads_exhausted")

    def switch_stage(self) -> None:
        """6. The slot in focus is the stage from here on, if the contract has it."""
        if self.decision.focus_slot in self.c.slot_types:
            self.stage = self.decision.focus_slot

    def check_tool_call(self) -> None:
        """7 and 8. In overdraft only exploit rounds may call tools, in the wrap-up round none."""
        if self.action != "call_tool":
            return
        if self.overdraft.allowed and self.strategy != "exploit":
            self.leave("exploit_overdraft_blocked")
            self.overdraft = self.overdraft.model_copy(update={"allowed": False})
        elif self.c.is_wrapup_round:
            self.action = "exit"

    def check_rerun(self) -> None:
        """9 and 11. A rerun must ask to see something, and is charged if any is left."""
        if self.action != "decision":
            return
        if not self.forced and not self.show:
            self.leave("decision_no_progress")
        elif self.c.is_wrapup_round:
            self.leave("wrapup_no_decision_rerun")
        elif self.c.budget.left("decision_reruns") == 0:
            self.leave("decision_reruns_exhausted")
        else:
            self.charge(self.strategy, decisions=1, decision_reruns=1)

    def charge_exit(self) -> None:
        """12. An exit is charged, except in the wrap-up round. Its reason is the action, if it has none."""
        if self.action in ("call_tool", "decision"):
            return
        if not self.c.is_wrapup_round:
            self.charge(self.strategy, decisions=1)
        self.exit_reason = self.exit_reason or ("clarify" if self.action == "clarify" else "complete")
