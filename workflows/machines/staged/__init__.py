"""The staged machine: declared stages over one typed state (spec 3)."""

from workflows.machines.staged.context import AgentState
from workflows.machines.staged.machine import MACHINE, build_machine
from workflows.machines.staged.options import Options, Stage

__all__ = ["MACHINE", "AgentState", "Options", "Stage", "build_machine"]
