"""What can happen in a staged machine: an event for each lifecycle that a stage may lead to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from typing import Any

from activities.contracts import JsonObject
from workflows.machines.staged_context import ACTING, FINISHED, OBSERVING, THINKING, Degradation

__all__ = [
    "WRONG_EXIT",
    "PassesExhausted",
    "StageFailed",
    "ToActing",
    "ToFinished",
    "ToObserving",
    "ToThinking",
    "event_to",
]


@dataclass(frozen=True, slots=True)
class ToThinking:
    """A pass begins."""

    reason: str = ""
    degraded: tuple[Degradation, ...] = ()
    """What the orchestrator is to note."""


@dataclass(frozen=True, slots=True)
class ToActing:
    """Tools are to be used."""

    reason: str = ""
    degraded: tuple[Degradation, ...] = ()


@dataclass(frozen=True, slots=True)
class ToObserving:
    """What there is is to be looked at."""

    reason: str = ""
    degraded: tuple[Degradation, ...] = ()


@dataclass(frozen=True, slots=True)
class ToFinished:
    """There is a final answer."""

    reason: str = ""
    degraded: tuple[Degradation, ...] = ()


WRONG_EXIT = "InvalidTransition"
"""Code of a `StageFailed` that is no failure of the stage's work: it asked for what is no exit of it."""


@dataclass(frozen=True, slots=True)
class StageFailed:
    """A stage could not do its work."""

    reason: str
    details: JsonObject = field(default_factory=dict)
    code: str = "StageError"


@dataclass(frozen=True, slots=True)
class PassesExhausted:
    """Another pass is wanted, and none is left."""

    reason: str
    details: JsonObject = field(default_factory=dict)
    code: str = "MaxIterationsExceeded"


_STANDARD: dict[str, Callable[..., Any]] = {
    THINKING: ToThinking,
    ACTING: ToActing,
    OBSERVING: ToObserving,
    FINISHED: ToFinished,
}


def event_to(lifecycle: str) -> Callable[..., Any]:
    """The class of the events that lead to a lifecycle: `ToReviewing` for `Reviewing`.

    For a name that is not one of the standard lifecycles each call makes a new class.
    """
    if lifecycle in _STANDARD:
        return _STANDARD[lifecycle]
    fields: list[Any] = [("reason", str, ""), ("degraded", tuple, ())]
    return make_dataclass(f"To{lifecycle}", fields, frozen=True, slots=True)
