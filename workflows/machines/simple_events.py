"""What can happen in the simple machine; `reason` is for people."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Decided", "Finished", "Forbidden", "GoesOn", "LimitReached", "StepFailed"]


@dataclass(frozen=True, slots=True)
class Decided:
    """The model decided on an action, and the policy lets it pass."""

    reason: str


@dataclass(frozen=True, slots=True)
class Forbidden:
    """The policy forbids the decision."""

    reason: str


@dataclass(frozen=True, slots=True)
class LimitReached:
    """As many steps were taken as are allowed."""

    reason: str


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The model or the tool failed, or the decision cannot be read."""

    reason: str


@dataclass(frozen=True, slots=True)
class GoesOn:
    """The step is done; there is another."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is done."""

    reason: str
