"""The machine `planner`: plan once, then propose, judge and observe in a bounded loop (spec 4)."""

from workflows.machines.planner.context import Options, Planner
from workflows.machines.planner.decisions import Decision, Progress
from workflows.machines.planner.loop import S
from workflows.machines.planner.machine import MACHINE, build_machine

__all__ = ["MACHINE", "Decision", "Options", "Planner", "Progress", "S", "build_machine"]
