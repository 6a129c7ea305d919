"""The machine `tools`: native tool calls until the model answers in plain text (spec 2.5)."""

from workflows.machines.tools.machine import MACHINE, Options, S, Tools

__all__ = ["MACHINE", "Options", "S", "Tools"]
