"""A run inside another is asked about as much as if the outer one made its calls."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from activities.contracts import Effect, RunMachine
from tests.gate.house import call, desk
from tests.machines.answers import act, final, tool_said
from tests.people.bench import Bench
from workflows.api import AgentTask
from workflows.child import child_task
from workflows.people import Approvals
from workflows.where import Where

DEAR = Approvals.model_validate({"rules": [{"tools": ["send"], "cost_above": 5}]})


def inner(outer: AgentTask, spent: float) -> AgentTask:
    """The task of a child run of a run that has spent so much itself."""
    return child_task(outer, RunMachine(machine="react", goal="go"), Where("act#1:1", spent_usd=spent))


def test_a_child_run_knows_what_all_runs_above_it_had_spent() -> None:
    child = inner(AgentTask(goal="go", approvals=DEAR), 4)
    assert child.spent_before_usd == 4
    grandchild = inner(child, 0.5)
    assert (grandchild.spent_before_usd, grandchild.approvals) == (4.5, DEAR)


def test_what_was_spent_above_counts_for_the_calls_of_a_child_run() -> None:
    at = desk(approvals=DEAR)
    assert at.asks(call("send"), spent_usd=2) is None
    at.spent_before_usd = 4
    asked = at.asks(call("send"), spent_usd=2)
    assert asked is not None
    assert (asked.because, asked.spent_usd) == ("rules.0", 6)
    assert at.asks(call("send"), spent_usd=1) is None


class Watching(Bench):
    """Notes what the run had spent when each effect was begun."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.spent: list[float] = []
        super().__init__(*given, **more)

    async def perform(self, effect: Effect, where: Where, settled: Any) -> BaseModel:
        self.spent.append(where.spent_usd)
        return await super().perform(effect, where, settled)


async def test_an_effect_is_performed_with_the_knowledge_of_what_the_run_has_spent() -> None:
    answers = (act("tool", q="x"), tool_said("paid", cost=0.5), final())
    run = Watching("react", answers)
    async with run:
        assert run.spent == [0, 0, 0.5]
