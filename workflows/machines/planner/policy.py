"""What is proposed, whether it may be done, and when enough is done (spec 4.8, 4.9). Pure.

Hooks are users' functions. All that they are shown is read-only; one that fails or returns something else
than it should forbids what it was asked about, or ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from activities.contracts import call_title
from workflows.kernel.errors import error_text, error_words
from workflows.machines.authoring import AgentError, EffectError, FatalError, JsonObject, PolicyViolation
from workflows.machines.common.json_text import clean, cut
from workflows.machines.common.named_parts import call_user_function

__all__ = [
    "REASON_CHARS",
    "STEP_COMPLETED",
    "TOOL_CALLED",
    "Proposal",
    "Hook",
    "Policy",
    "Progress",
    "cause",
    "confidence_of",
    "text_from",
]

TOOL_CALLED = "tool_called"
STEP_COMPLETED = "step_completed"
REASON_CHARS = 1_000
"""Characters of a reason that a hook or a model gives: it may quote anything."""
Hook = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is proposed: a tool by its name, or `plan`, `execute`, `finish`."""

    action: str | None
    params: Mapping[str, Any] = field(default_factory=dict)
    confidence: float | None = None
    """From 0 to 1; None: not given."""

    @property
    def title(self) -> str:
        """The proposal as a person would write it, cut."""
        return call_title(self.action or "", self.params)

    def to_json(self) -> JsonObject:
        """For the context and the audit record."""
        return {"action": self.action, "params": dict(self.params), "confidence": self.confidence}


@dataclass(frozen=True, slots=True)
class Progress:
    """A set of marks in their order; what they mean is up to the user (spec 4.9)."""

    marks: tuple[str, ...] = ()

    def mark(self, *names: str) -> Progress:
        """With these marks too."""
        return Progress(tuple(dict.fromkeys((*self.marks, *names))))

    def includes(self, *names: str) -> bool:
        """Whether all of these are set."""
        return all(name in self.marks for name in names)

    def clear(self) -> Progress:
        """Without any mark."""
        return Progress()


SharedState = Callable[[], Mapping[str, Any]]
"""Gives the shared state to a hook; without a hook nobody looks at it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be done, and whether enough is done. Users' hooks are asked after the shipped checks."""

    min_confidence: float = 0.5
    validate: Hook | None = None
    """(decision, state) -> None, or what is wrong in words; it may raise PolicyViolation."""
    converged: Hook | None = None
    """(state, progress) -> whether the run may end."""
    marks: tuple[str, ...] = ()
    """The run has converged when all of these are set; empty: marks decide nothing."""

    def violation(self, proposal: Proposal, state: SharedState) -> str:
        """Why the proposal is not allowed; empty when it is. A hook that fails allows nothing."""
        if not proposal.action:
            return "the decision has no action"
        sure = proposal.confidence
        if sure is not None and not 0 <= sure <= 1:
            return "the confidence is outside its range; expected a number from 0 to 1"
        if sure is not None and sure < self.min_confidence:
            return f"Low confidence: {sure:g} is below {self.min_confidence:g}"
        return self._forbidden(self.validate, proposal, state) if self.validate else ""

    def _forbidden(self, validate: Hook, proposal: Proposal, state: SharedState) -> str:
        try:
            problem = call_user_function("policy", validate, proposal, state())
        except PolicyViolation as error:
            return error_words(error) or "the policy forbids it"
        except AgentError as error:
            return cause(error)
        if problem is None or isinstance(problem, str):
            return cut(clean(problem or ""), REASON_CHARS)
        # A yes or no could be read either way, and a policy that allows everything guards nothing.
        kind = type(problem).__name__
        return f"the policy returned a value of type {kind}; expected None, or what is wrong in words"

    def has_converged(self, state: SharedState, progress: Progress) -> bool:
        """Whether enough is done. Raises AgentError when the hook fails, or returns no boolean."""
        if self.marks:
            return progress.includes(*self.marks)
        if self.converged is None:
            return False
        answer = call_user_function("hook `converged`", self.converged, state(), progress)
        if not isinstance(answer, bool):
            kind = type(answer).__name__
            raise FatalError(f"the hook `converged` returned a value of type {kind}; expected True or False")
        return answer


def cause(error: AgentError) -> str:
    """Why an effect or a hook failed, in words."""
    if isinstance(error, EffectError):
        return error.message or error.type
    words = error_words(error) if type(error) is FatalError else ""
    return words or error_text(error)


def confidence_of(given: Mapping[str, Any]) -> float | None:
    """The number under `confidence`, if it is one; the policy looks at its range."""
    value = given.get("confidence")
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def text_from(what: str, hook: Hook, *shown: Any) -> str:
    """The text that a hook returns. Raises AgentError when it fails or returns something else."""
    text = call_user_function(what, hook, *shown)
    if not isinstance(text, str):
        raise FatalError(f"the {what} returned a value of type {type(text).__name__}; expected a text")
    return clean(text)
