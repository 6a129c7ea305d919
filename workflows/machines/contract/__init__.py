"""The contract machine: fills named slots from what tools make, within budgets (spec 5)."""

from workflows.machines.contract.context import Contract, Options, SlotSpec
from workflows.machines.contract.machine import MACHINE, S

__all__ = ["MACHINE", "Contract", "Options", "S", "SlotSpec"]
