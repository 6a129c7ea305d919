"""The code machine: blocks of code about a long context, with sub-queries (spec 2.2-2.4)."""

from workflows.machines.code.context import Code, Options
from workflows.machines.code.machine import MACHINE, S

__all__ = ["MACHINE", "Code", "Options", "S"]
