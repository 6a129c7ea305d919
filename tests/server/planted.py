"""Machines with one mistake each, which a worker knows by the names that they have here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from tests.verify.desk import MACHINE as MONEY_DESK
from tests.verify.mutants import Subject, mutants, original, subjects
from workflows import registry
from workflows.kernel.machine import Machine
from workflows.kernel.properties import Scenario

__all__ = ["MACHINES", "PLANTED", "Planted"]

PLAIN_FAILURES = frozenset({"failed", "transient", "timeout"})
DESKS = (
    Scenario(name="all"),
    Scenario(name="rejected", without=PLAIN_FAILURES),
    Scenario(name="expired", without=PLAIN_FAILURES | {"rejected"}),
)
"""Of the money desk: it has none of its own."""
BEHIND_A_FAILURE = "nothing is asked after a failure"
MISTAKES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("money_desk", "all"): (
        ("ask --No--> pay, not done", "a large sum needs a yes"),
        ("check --Again--> ask, not pay", "one payment"),
        ("pay --Failed--> read, not done", "every run ends by itself"),
    ),
    ("money_desk", "rejected"): (("pay --Failed--> read, not done", BEHIND_A_FAILURE),),
    ("money_desk", "expired"): (("pay --Failed--> read, not done", BEHIND_A_FAILURE),),
    ("refund_desk", "1 tickets"): (
        ("list --Found--> approve, not take", "no exception"),
        ("sort --Settled--> refund, not take", "InvariantViolated"),
        ("decide.reads without case", "UndeclaredAccess"),
        ("approve --Approved--> halted, not refund", "what is approved is paid"),
        ("sort --Halted--> list, not halted", "the tickets are listed once"),
    ),
    ("tools", "unknown tools are reported"): (
        ("INIT --Failed--> left out", "NoTransition"),
        ("PROMPTING --NoToolCalls--> EXECUTING_TOOLS, not DONE", "nothing is asked after the answer"),
        ("EXECUTING_TOOLS --MaxIterationsReached--> EXECUTING_TOOLS, not DONE", "LimitExceeded"),
    ),
    ("react", "rules"): (
        ("validate --PersonNeeded--> observation, not human_approval", "InvariantViolated"),
        ("human_approval --Continued--> left out", "NoTransition"),
        ("action --Ended--> commit, not __end__", "an unknown outcome is why the run ends"),
    ),
    ("contract", "1 rounds"): (
        ("tool_execution.reads without artifacts", "UndeclaredAccess"),
        ("decision --WrapUpStarted--> end, not decision", "an exit has a reason"),
    ),
    ("planner, simple", "simple"): (
        ("LOOP_CHECK --Continued--> HALT, not EXECUTE", "InvariantViolated"),
        ("EXECUTE --Halted--> EXECUTE, not HALT", "nothing is asked after a halt"),
    ),
    ("planner", "plan, enough is done"): (
        ("LOOP_CHECK --Continued--> PLAN, not EXECUTE", "one plan is made"),
    ),
    ("code", "blocks"): (
        ("EXECUTING --FinalAnswerFound--> PROMPTING, not DONE", "LimitExceeded"),
        ("EXECUTING --Failed--> INIT, not DONE", "nothing is asked after a failure"),
    ),
}
"""(machine, scenario) -> mistakes, and what each of them breaks."""


@dataclass(frozen=True)
class Planted:
    """A machine with a mistake."""

    text: str
    machine: Machine
    scenario: Scenario
    breaks: str
    """The property, or what is built in."""


def _planted() -> Iterator[Planted]:
    every = {**subjects(), "money_desk": Subject("money_desk", MONEY_DESK, DESKS)}
    number = count()
    for (name, scenario), mistakes in MISTAKES.items():
        subject = every[name]
        right = MONEY_DESK if name == "money_desk" else original(subject)
        (where,) = [one for one in subject.scenarios if one.name == scenario]
        known = {one.text: one for one in mutants(subject.machine)}
        for mistake, breaks in mistakes:
            made = known[mistake].make(registry.made_of(right, where.options))
            text = f"{name}, {scenario}: {mistake}: {breaks}"
            yield Planted(text, replace(made, name=f"planted_{next(number)}"), where, breaks)


PLANTED = tuple(_planted())
MACHINES = tuple(one.machine for one in PLANTED)
