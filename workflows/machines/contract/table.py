"""The contract's table: its states, what can happen, and where that leads (spec 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from workflows.machines.authoring import Event


class S(Enum):
    """The nodes of spec 5.1, and the end."""

    DECISION = "decision"
    PROTOCOL_VERIFY = "protocol_verify"
    TOOL_EXECUTION = "tool_execution"
    EXIT = "exit"
    END = "end"


class ToolChosen(Event):
    """The decision is to call a tool."""


class Rerun(Event):
    """The decision asked to see artifacts or skills."""


class ForcedRerun(Event):
    """The decision had no valid strategy; the model is asked again."""


class WrapUpStarted(Event):
    """The exit is held back for one round that maps what exists."""


class ExitGranted(Event):
    """The run ends; `reason` is the exit reason."""


class Verified(Event):
    """The tool call keeps to the protocol."""


class Violated(Event):
    """The tool call breaks the protocol; nothing was run."""


class ToolFinished(Event):
    """The tool has run, or failed; its artifacts are registered."""


class GraphFailed(Event):
    """Something failed that no other round can repair."""


class Finished(Event):
    """The slots have their texts."""


TABLE: Mapping[Enum, Mapping[type[Event], Enum]] = {
    S.DECISION: {
        ToolChosen: S.PROTOCOL_VERIFY,
        Rerun: S.DECISION,
        ForcedRerun: S.DECISION,
        WrapUpStarted: S.DECISION,
        ExitGranted: S.EXIT,
        GraphFailed: S.EXIT,
    },
    S.PROTOCOL_VERIFY: {Verified: S.TOOL_EXECUTION, Violated: S.DECISION},
    S.TOOL_EXECUTION: {ToolFinished: S.DECISION, GraphFailed: S.EXIT},
    S.EXIT: {Finished: S.END},
}
