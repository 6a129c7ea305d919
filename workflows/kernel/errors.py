"""What can go wrong in the kernel.

* KernelError
  x DefinitionError            declared wrongly; raised when a machine is defined, so no worker starts
  x MachineError               a machine broke a rule that it declared; recorded, then fails the run
    + NoTransitionError        no row fits the event
    + PermissionViolation      an undeclared read, write or effect
    + InvariantViolation       a state's invariant does not hold
    + PreconditionFailed       a state's precondition does not hold
    + EmptyPatch               a state said nothing at all
    + BadPatch                 a value that does not fit its field
    + TransitionLimitExceeded  too many transitions, or effects in one visit
  x AgentError                 what users' rules, policies, parsers and stages may raise
    + TransientError           goes away by itself
    + RecoverableError         the run can go on without it
    + FatalError               the run must stop

A bad reply, a failed tool or an empty budget is not here: each is an event.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

__all__ = [
    "AgentError",
    "BadPatch",
    "DefinitionError",
    "EmptyPatch",
    "FatalError",
    "InvariantViolation",
    "KernelError",
    "MachineError",
    "NoTransitionError",
    "PermissionViolation",
    "PreconditionFailed",
    "RecoverableError",
    "TransientError",
    "TransitionLimitExceeded",
    "name_of",
]


def name_of(state: object) -> str:
    """A state as people read it: an Enum's value when that is text, else its name."""
    if isinstance(state, Enum):
        return state.value if isinstance(state.value, str) else state.name
    return str(state)


class KernelError(Exception):
    """Base of what the kernel raises."""


class DefinitionError(KernelError):
    """A machine was declared wrongly; the message names machine and culprit."""


class MachineError(KernelError):
    """The machine broke a rule that it declared."""

    def __init__(self, machine: str, state: object, problem: str) -> None:
        self.machine, self.state, self.problem = machine, name_of(state), problem
        self.step: Any = None
        """The `Step` as it was before, with the record of the refusal; set by the step function."""
        super().__init__(f"{machine}: in state {self.state}, {problem}")


class NoTransitionError(MachineError):
    """No row of the table fits the event."""


class PermissionViolation(MachineError):
    """A state read, wrote or asked for something that it did not declare."""


class InvariantViolation(MachineError):
    """A state's invariant does not hold."""


class PreconditionFailed(MachineError):
    """A state's precondition does not hold."""


class EmptyPatch(MachineError):
    """A state said nothing where something had to be said."""


class BadPatch(MachineError):
    """A patch holds a value that does not fit its field."""


class TransitionLimitExceeded(MachineError):
    """The machine moved, or asked within one visit, more often than it may."""


class AgentError(KernelError):
    """Raised by what users supply; the machine's `on_error` decides what follows (spec 6, 7.10)."""


class TransientError(AgentError):
    """Goes away by itself: try again."""


class RecoverableError(AgentError):
    """The run can go on without it."""


class FatalError(AgentError):
    """The run must stop."""
