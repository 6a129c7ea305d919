"""What can happen in the ReAct machine; `reason` is for people."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Drafted",
    "Accepted",
    "Rejected",
    "RuleBroken",
    "RetriesExhausted",
    "Acted",
    "Observed",
    "StepTaken",
    "GoalAchieved",
    "StepLimitReached",
    "Flagged",
    "CostLimitExceeded",
    "NodeFailed",
    "Resumed",
    "Aborted",
    "NobodyToAsk",
]


@dataclass(frozen=True, slots=True)
class Drafted:
    """A step was appended."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """No rule is violated."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Only retryable rules are violated, and another try is allowed."""

    reason: str


@dataclass(frozen=True, slots=True)
class RuleBroken:
    """A terminal rule is violated."""

    reason: str


@dataclass(frozen=True, slots=True)
class RetriesExhausted:
    """Too many thoughts were rejected; a person has to look."""

    reason: str


@dataclass(frozen=True, slots=True)
class Acted:
    """The tool has run, or there was nothing to run."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """The outcome was recorded."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class StepTaken:
    """The step is closed and the run goes on."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class GoalAchieved:
    """The model gave its final answer."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class StepLimitReached:
    """As many steps were taken as are allowed."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Flagged:
    """A node had set `terminated`."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class CostLimitExceeded:
    """More money was spent than is allowed."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A failure that no retry mends."""

    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """A person lets the run go on."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Aborted:
    """A person ends the run."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class NobodyToAsk:
    """A person was to be asked, and none can be."""

    reason: str = ""
