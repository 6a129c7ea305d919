"""The shipped machines and the refund desk keep what their authors say of every run."""

from __future__ import annotations

import pytest

from activities.extensions import load_modules
from client.proof.machine import verify
from workflows import registry
from workflows.kernel.machine import Machine
from workflows.kernel.properties import Scenario

(DESK,) = load_modules(["./examples/machines/refund_desk.py"])
MACHINES = {machine.name: machine for machine in (*registry.shipped(), DESK.MACHINE)}
UNTAKEN = {
    ("react", "commit", "Escalated", "human_approval"): "spec 1.3 has the row; VALIDATE escalates before it",
}
"""Rows that no run of the scenarios takes -> why they are there."""
QUICK = {
    "react": "rules",
    "tools": "tools",
    "staged": "must answer",
    "planner": "simple",
    "contract": "1 rounds, exhausted_round",
    "code": "blocks",
    "refund_desk": "1 tickets",
}
"""One scenario for each machine that is explored whenever the tests are run."""
SECONDS = 900.0

cases = [
    pytest.param(
        machine,
        scenario,
        id=f"{machine.name}-{scenario.name}".replace(" ", "-"),
        marks=() if QUICK[machine.name] == scenario.name else pytest.mark.exhaustive,
    )
    for machine in MACHINES.values()
    for scenario in machine.scenarios
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


def test_quick_scenarios_are_there() -> None:
    """A renamed scenario must not leave the ordinary tests."""
    for name, machine in MACHINES.items():
        assert QUICK[name] in {scenario.name for scenario in machine.scenarios}
