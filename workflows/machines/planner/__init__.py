"""The machine `planner`: plan once, then propose, judge and observe in a bounded loop (spec 4)."""

from workflows.machines.planner.context import Options, Planner
from workflows.machines.planner.loop import S
from workflows.machines.planner.machine import MACHINE, build_machine
from workflows.machines.planner.policy import Progress, Proposal

__all__ = ["MACHINE", "Proposal", "Options", "Planner", "Progress", "S", "build_machine"]
