"""What must hold of every run of a machine, and verifying that it does.

from ratchet.verify import at_most, calls, decides, before, verify

ASKED = before("no payment without a yes", first=decides("approve"), then=calls("pay"))
MACHINE = Machine(..., properties=[ASKED])

def test_it_holds() -> None:
    report = verify(MACHINE)
    assert report.ok, report.text
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workflows.kernel.properties import (
    Moment,
    Property,
    Scenario,
    after,
    any_of,
    asks_model,
    asks_person,
    at_most,
    before,
    between,
    calls,
    count,
    decides,
    ends,
    enters,
    event,
    is_unknown,
    last,
    never,
    returned,
    then,
    until,
)

if TYPE_CHECKING:
    from client.proof.machine import MachineReport, verify

__all__ = [
    "MachineReport",
    "Moment",
    "Property",
    "Scenario",
    "after",
    "any_of",
    "asks_model",
    "asks_person",
    "at_most",
    "before",
    "between",
    "calls",
    "count",
    "decides",
    "ends",
    "enters",
    "event",
    "is_unknown",
    "last",
    "never",
    "returned",
    "then",
    "until",
    "verify",
]


def __getattr__(name: str) -> Any:
    """A machine's module is loaded in a workflow, which needs no client: `verify` is imported when used."""
    if name in ("verify", "MachineReport"):
        from client.proof import machine

        return getattr(machine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
