"""The shipped machines and the refund desk keep what their authors say of every run."""

from __future__ import annotations

import pytest

from activities.extensions import load_modules
from client.proof.machine import scenarios_of, verify
from workflows import registry

DESK, TEMPLATE = load_modules(["./examples/machines/refund_desk.py", "./examples/new/my_machine.py"])
MACHINES = {machine.name: machine for machine in (*registry.shipped(), DESK.MACHINE, TEMPLATE.MACHINE)}
UNTAKEN = {
    ("react", "commit", "PersonNeeded", "human_approval"): "spec 1.3 has the row; VALIDATE goes there before",
}
"""Rows that no run of the scenarios takes -> why they are there."""
NOT_STRICT = {"react", "staged", "planner"}
"""Of these something is unknown (`test_declared.py` says what), so that `--strict` fails."""
QUICK = {
    "contract": "1 rounds, exhausted_round",
    "planner": "simple",
    "refund_desk": "1 tickets",
    "my_machine": "default",
}
"""Machine -> one of its scenarios, which is small: explored whenever the tests are run."""
SECONDS = 900.0


@pytest.mark.parametrize("name", QUICK)
def test_machine_keeps_its_properties_in_every_run_of_a_scenario(name: str) -> None:
    (scenario,) = (one for one in scenarios_of(MACHINES[name]) if one.name == QUICK[name])
    report = verify(MACHINES[name], scenarios=[scenario], seconds=SECONDS)
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
