"""What can happen in the tools machine (spec 2.5); `reason` is for people."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "LLMResponseReceived",
    "NoToolCalls",
    "ToolCallsFound",
    "ToolsExecuted",
    "PolicyStop",
    "MaxIterationsReached",
    "Failed",
]


@dataclass(frozen=True, slots=True)
class LLMResponseReceived:
    """The first reply came."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class NoToolCalls:
    """The reply is plain text: the answer."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallsFound:
    """The reply asks for tools."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ToolsExecuted:
    """The calls have run and the next reply came."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class PolicyStop:
    """A stopping policy ends the run."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class MaxIterationsReached:
    """All iterations were used; the model was asked once more, for an answer."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """An error leaves the run; not in the table of the spec, where errors are raised past the machine."""

    reason: str
