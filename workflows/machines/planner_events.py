"""What can happen in the planner machine; `reason` is for people, and for the history."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Answered",
    "Continued",
    "ExecutionFailed",
    "GoesOn",
    "Halted",
    "Observed",
    "PlanFailed",
    "Planned",
    "Stopped",
    "StopDecided",
    "TakenIn",
    "ToolsRequested",
    "Undecided",
]


@dataclass(frozen=True, slots=True)
class TakenIn:
    """The input is a message, and the shared state has the goal."""

    reason: str = "Input normalized"


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan fits its schema, and the policy lets it pass."""

    reason: str = "Plan created"


@dataclass(frozen=True, slots=True)
class PlanFailed:
    """There is no plan that can be used."""

    reason: str


@dataclass(frozen=True, slots=True)
class Continued:
    """The plan is to be carried out."""

    reason: str = "Decision: continue"


@dataclass(frozen=True, slots=True)
class StopDecided:
    """The plan is not to be carried out; the run ends well."""

    reason: str = "Decision: stop"


@dataclass(frozen=True, slots=True)
class Undecided:
    """The plan has no goal, the decision cannot be used, or the policy forbids it."""

    reason: str


@dataclass(frozen=True, slots=True)
class ToolsRequested:
    """The model asked for tools."""

    reason: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The model answered without asking for a tool."""

    reason: str = "No tool calls requested"


@dataclass(frozen=True, slots=True)
class ExecutionFailed:
    """The model could not be asked, or not once more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The tools have run, or one of them asks for the halt."""

    reason: str


@dataclass(frozen=True, slots=True)
class GoesOn:
    """There is something new for the model to look at."""

    reason: str = "Continuing"


@dataclass(frozen=True, slots=True)
class Stopped:
    """The loop ends well."""

    reason: str


@dataclass(frozen=True, slots=True)
class Halted:
    """The loop ends with an error."""

    reason: str
