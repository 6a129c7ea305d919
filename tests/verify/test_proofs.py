"""The shipped machines and the refund desk keep what their authors say of every run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from activities.extensions import load_modules
from client.proof.machine import scenarios_of, verify
from workflows import registry
from workflows.kernel.machine import Machine
from workflows.kernel.properties import Scenario
from workflows.machines.react import proof as react
from workflows.machines.staged import proof as staged

DESK, TEMPLATE = load_modules(["./examples/machines/refund_desk.py", "./examples/new/my_machine.py"])
MACHINES = {machine.name: machine for machine in (*registry.shipped(), DESK.MACHINE, TEMPLATE.MACHINE)}
UNTAKEN = {
    ("react", "commit", "PersonNeeded", "human_approval"): "spec 1.3 has the row; VALIDATE goes there before",
}
"""Rows that no run of the scenarios takes -> why they are there."""
NOT_STRICT = {"react", "staged", "planner"}
"""Of these something is unknown (`test_declared.py` says what), so that `--strict` fails."""
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
    "my_machine": ("default", {}),
}  # fmt: skip
"""Machine -> one of its scenarios, made smaller where it is large: explored whenever the tests are run."""
SECONDS = 900.0


def quick(machine: Machine) -> Scenario:
    name, smaller = QUICK[machine.name]
    (found,) = (one for one in scenarios_of(machine) if one.name == name)
    return replace(found, **smaller)


@pytest.mark.parametrize("name", MACHINES)
def test_machine_keeps_its_properties_in_every_run_of_a_scenario(name: str) -> None:
    report = verify(MACHINES[name], scenarios=[quick(MACHINES[name])], seconds=SECONDS)
    assert report.ok, report.text
    assert report.complete, report.text


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MACHINES)
def test_machine_keeps_its_properties_in_every_run_of_its_scenarios(name: str) -> None:
    """As `ratchet verify machine NAME --strict` has it; and every row of the table is taken."""
    report = verify(MACHINES[name], seconds=SECONDS)
    assert report.ok, report.text
    assert report.complete, report.text
    assert report.silent == (), report.text
    assert report.unknown == (name in NOT_STRICT), report.text
    assert {(name, *row) for row in report.never_taken} == {row for row in UNTAKEN if row[0] == name}
