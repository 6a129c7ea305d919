"""What can happen in the code machine (spec 2.2); `reason` is for people."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "DepthExceeded",
    "LLMResponseReceived",
    "FinalAnswerFound",
    "CodeBlocksFound",
    "CodeExecuted",
    "MaxIterationsReached",
    "PolicyStop",
    "Failed",
]


@dataclass(frozen=True, slots=True)
class DepthExceeded:
    """The run is nested so deep that it may only ask the model once."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class LLMResponseReceived:
    """The model has answered for the first time."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class FinalAnswerFound:
    """The reply, or a block of it, gives the answer."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class CodeBlocksFound:
    """The reply has blocks to run; there may be none at all."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class CodeExecuted:
    """The blocks have run, and the model has seen what they printed."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class MaxIterationsReached:
    """The iterations are used up; the reply to the last request is the answer as it stands."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class PolicyStop:
    """A stopping policy ended the run."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """An error leaves the run: a model, the sandbox, a policy, or an unsafe tool with unknown outcome."""

    reason: str = ""
