"""The table of tools mode: its states, what can happen, and where that leads (spec 2.5)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from workflows.machines.authoring import Event


class S(Enum):
    """The states of spec 2.5."""

    INIT = "INIT"
    PROMPTING = "PROMPTING"
    EXECUTING_TOOLS = "EXECUTING_TOOLS"
    DONE = "DONE"


class LLMResponseReceived(Event):
    """The first reply came."""


class NoToolCalls(Event):
    """The reply is plain text: the answer."""


class ToolCallsFound(Event):
    """The reply asks for tools."""


class ToolsExecuted(Event):
    """The calls have run and the next reply came."""


class PolicyStop(Event):
    """A stopping policy ends the run."""


class MaxIterationsReached(Event):
    """All iterations were used; the model was asked once more, for an answer."""


class Failed(Event):
    """An error leaves the run; in the spec errors are raised past the machine."""


TABLE: Mapping[Enum, Mapping[type[Event], Enum]] = {
    S.INIT: {LLMResponseReceived: S.PROMPTING, Failed: S.DONE},
    S.PROMPTING: {NoToolCalls: S.DONE, PolicyStop: S.DONE, ToolCallsFound: S.EXECUTING_TOOLS, Failed: S.DONE},
    S.EXECUTING_TOOLS: {
        ToolsExecuted: S.PROMPTING,
        PolicyStop: S.DONE,
        MaxIterationsReached: S.DONE,
        Failed: S.DONE,
    },
}
