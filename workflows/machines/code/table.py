"""The table of code mode: its states, what can happen, and where that leads (spec 2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from workflows.machines.authoring import Event


class S(Enum):
    """The states of spec 2.2."""

    INIT = "INIT"
    SHALLOW_CALL = "SHALLOW_CALL"
    PROMPTING = "PROMPTING"
    EXECUTING = "EXECUTING"
    CONCLUDING = "CONCLUDING"
    DONE = "DONE"


class DepthExceeded(Event):
    """The run is nested so deep that it may only ask the model once."""


class LLMResponseReceived(Event):
    """The first reply came."""


class CodeBlocksFound(Event):
    """The reply has blocks to run."""


class NothingToRun(Event):
    """The reply has no block, and no answer by FINAL."""


class BlockRan(Event):
    """One block has run, and another one follows."""


class AllRan(Event):
    """The last block has run."""


class CodeExecuted(Event):
    """The model saw what its blocks printed, and its next reply came."""


class FinalAnswerFound(Event):
    """The reply, or one of its blocks, gives the answer."""


class MaxIterationsReached(Event):
    """All iterations were used; the reply to the last request is the answer, whatever it is."""


class PolicyStop(Event):
    """A stopping policy ends the run (R-001-8)."""


class Failed(Event):
    """An error leaves the run; in the spec errors are raised past the machine."""


TABLE: Mapping[Enum, Mapping[type[Event], Enum]] = {
    S.INIT: {DepthExceeded: S.SHALLOW_CALL, LLMResponseReceived: S.PROMPTING, Failed: S.DONE},
    S.SHALLOW_CALL: {LLMResponseReceived: S.DONE, Failed: S.DONE},
    S.PROMPTING: {
        FinalAnswerFound: S.DONE,
        CodeBlocksFound: S.EXECUTING,
        NothingToRun: S.CONCLUDING,
        PolicyStop: S.DONE,
        Failed: S.DONE,
    },
    S.EXECUTING: {
        BlockRan: S.EXECUTING,
        AllRan: S.CONCLUDING,
        FinalAnswerFound: S.DONE,
        Failed: S.DONE,
    },
    S.CONCLUDING: {
        CodeExecuted: S.PROMPTING,
        FinalAnswerFound: S.DONE,
        MaxIterationsReached: S.DONE,
        PolicyStop: S.DONE,
        Failed: S.DONE,
    },
}
