"""The shipped machines and the refund desk keep what their authors say of every run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from activities.extensions import load_modules
from client.proof.machine import verify
from workflows import registry
from workflows.kernel.machine import Machine
from workflows.kernel.properties import Scenario
from workflows.machines.react import proof as react
from workflows.machines.staged import proof as staged

(DESK,) = load_modules(["./examples/machines/refund_desk.py"])
MACHINES = {machine.name: machine for machine in (*registry.shipped(), DESK.MACHINE)}
UNTAKEN = {
    ("react", "commit", "Escalated", "human_approval"): "spec 1.3 has the row; VALIDATE escalates before it",
}
"""Rows that no run of the scenarios takes -> why they are there."""
RULES = [{"type": "forbid_guessing"}, {"type": "max_depth", "value": 2}]
QUICK: dict[str, tuple[str, dict[str, Any]]] = {
    "react": ("rules", {"tools": react.TOOLS[1:], "options": {**react.SMALL, "rules": RULES}}),
    "tools": ("tools", {}),
    "staged": (
        "must answer", {"tools": staged.TOOLS[1:], "without": staged.ALIKE, "options": staged.SMALL}
    ),
    "planner": ("simple", {}),
    "contract": ("1 rounds, exhausted_round", {}),
    "code": ("blocks", {}),
    "refund_desk": ("1 tickets", {}),
}  # fmt: skip
"""Machine -> one of its scenarios, made smaller where it is large: explored whenever the tests are run."""
SECONDS = 900.0


def quick(machine: Machine) -> Scenario:
    name, smaller = QUICK[machine.name]
    (found,) = (one for one in machine.scenarios if one.name == name)
    return replace(found, **smaller)


cases = [
    *(pytest.param(one, quick(one), id=f"{one.name}-quick") for one in MACHINES.values()),
    *(
        pytest.param(one, each, id=f"{one.name}-{each.name}".replace(" ", "-"), marks=pytest.mark.exhaustive)
        for one in MACHINES.values()
        for each in one.scenarios
        if each != quick(one)
    ),
]


@pytest.mark.parametrize(("machine", "scenario"), cases)
def test_machine_keeps_its_properties_in_every_run_of_the_scenario(
    machine: Machine, scenario: Scenario
) -> None:
    report = verify(machine, scenarios=(scenario,), seconds=SECONDS)
    assert report.ok, report.text
    assert report.complete, report.text


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MACHINES)
def test_scenarios_take_every_arrow(name: str) -> None:
    report = verify(MACHINES[name], seconds=SECONDS)
    taken = {row for one in report.scenarios for row in one.explored.arrows}
    never = {row for one in report.scenarios for row in one.never_taken} - taken
    assert {(name, *row) for row in never} == {row for row in UNTAKEN if row[0] == name}
