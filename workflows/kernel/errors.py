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
    + RunError                 how a run ends whose machine raises instead of returning (`Exit.raises`)
      > ExecutionError         it was halted
        - MaxIterationsExceeded
      > ModelError             the model could not be asked
      > ToolNotFound, UnknownAction, PolicyViolation
      > StageError, InvalidTransition

A bad reply, a failed tool or an empty budget is not here: each is an event.
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from typing import Any

__all__ = [
    "AgentError",
    "BadPatch",
    "DefinitionError",
    "EmptyPatch",
    "ExecutionError",
    "FatalError",
    "InvalidTransition",
    "InvariantViolation",
    "KernelError",
    "MachineError",
    "MaxIterationsExceeded",
    "ModelError",
    "NoTransitionError",
    "PermissionViolation",
    "PolicyViolation",
    "PreconditionFailed",
    "RecoverableError",
    "RunError",
    "StageError",
    "ToolNotFound",
    "TransientError",
    "TransitionLimitExceeded",
    "UnknownAction",
    "error_named",
    "failure_words",
    "kind_words",
    "name_of",
    "text_of",
]

MOST_WORDS = 1000
"""Characters of what users' code says of itself."""


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


class RunError(AgentError):
    """How a run ends whose machine raises instead of returning; also what users' parts may raise."""


class ExecutionError(RunError):
    """The agent was halted (spec 4.7)."""


class MaxIterationsExceeded(ExecutionError):
    """More iterations were wanted than are allowed (R-003-9)."""


class ModelError(RunError):
    """The model could not be asked, or what it said cannot be used at all."""


class ToolNotFound(RunError):
    """The model asked for a tool that the agent does not have (R-001-7)."""


class UnknownAction(RunError):
    """A decision names an action that nobody knows."""


class PolicyViolation(RunError):
    """What was proposed is not allowed."""


class StageError(RunError):
    """A stage could not do its work (spec 3.7)."""


class InvalidTransition(RunError):
    """A stage wanted to go where it may not."""


def error_named(name: str, machine: str, state: str, message: str) -> KernelError:
    """The error of an `Exit.raises`; a RunError that says the name where it is none of ours."""
    found = globals().get(name)
    if isinstance(found, type) and issubclass(found, MachineError):
        return found(machine, state, message)
    if isinstance(found, type) and issubclass(found, KernelError):
        return found(message)
    return RunError(f"{name}: {message}")


def kind_words(value: object) -> str:
    """What a user's code gave, by its type alone: what it says of itself may be long, or raise."""
    return f"a value of type {type(value).__name__[:100]}"


def text_of(error: BaseException) -> str:
    """What a user's error says, cut and writable; empty when it cannot be shown."""
    text = ""
    with suppress(Exception):
        text = str(error).encode("utf-8", "replace").decode()
    return text if len(text) <= MOST_WORDS else f"{text[: MOST_WORDS - 1]}…"


def failure_words(error: BaseException) -> str:
    """A user's error with its type in front; the type alone when it cannot be shown."""
    name, text = type(error).__name__[:100], text_of(error)
    return f"{name}: {text}" if text else name
