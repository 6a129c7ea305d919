"""Where a run stands still by itself: before every N-th step, and before states that are named (R-000-13)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workflows.kernel.machine import Machine
from workflows.kernel.restore import steps_done
from workflows.kernel.snapshot import Snapshot
from workflows.people import People

__all__ = ["standing_still"]


def standing_still(machine: Machine[Any], people: People) -> Machine[Any]:
    """The machine with the places before which it stands still.

    Raises ValueError for a state that it has not, and where it has no steps to count.
    """
    if not people.interrupt_every and not people.interrupt_states:
        return machine
    try:
        states = [machine.state_named(name) for name in people.interrupt_states]
    except ValueError as error:
        raise ValueError(f"people.interrupt_states: {error}") from error
    if people.interrupt_every and machine.step_state is None:
        raise ValueError(f"people.interrupt_every: {machine.name} has no steps")

    def hold(snapshot: Snapshot[Any]) -> bool:
        return snapshot.state in states or _at_step(machine, people, snapshot)

    return replace(machine, hold=hold)


def _at_step(machine: Machine[Any], people: People, snapshot: Snapshot[Any]) -> bool:
    if not people.interrupt_every or snapshot.state != machine.step_state:
        return False
    done = steps_done(machine, snapshot)
    return done > 0 and done % people.interrupt_every == 0
