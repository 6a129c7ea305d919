"""What is proposed, whether it may be done, and when enough is done (spec 4.8, 4.9). Pure.

The planner and the simple machine share it. Hooks are users' code: whatever they raise or answer is
told in words that cannot fail themselves, and all that they are shown is read-only.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from activities.contracts import JsonObject
from workflows.kernel.errors import FatalError, PolicyViolation, failure_words, kind_words, text_of
from workflows.kernel.fields import freeze
from workflows.machines.json_text import clean, cut

__all__ = [
    "REASON_LIMIT",
    "STEP_COMPLETED",
    "TOOL_CALLED",
    "Decision",
    "Hook",
    "Policy",
    "Progress",
    "confidence_of",
    "hook_named",
    "policy_of",
]

TOOL_CALLED = "tool_called"
STEP_COMPLETED = "step_completed"
REASON_LIMIT = 1_000
"""Characters of a reason that a hook or a model gives: it may quote anything."""
Hook = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is proposed: a tool by its name, or `plan`, `execute`, `finish`."""

    action: str | None
    params: Mapping[str, Any] = field(default_factory=dict)
    confidence: float | None = None
    """From 0 to 1; None: nobody said."""

    def to_json(self) -> JsonObject:
        """For the audit record."""
        return {"action": self.action, "params": dict(self.params), "confidence": self.confidence}


def confidence_of(given: Mapping[str, Any]) -> float | None:
    """The number under `confidence`, if it is one; whether it is from 0 to 1 is the policy's affair."""
    value = given.get("confidence")
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Progress:
    """A set of marks that keeps their order; what they mean is the user's affair (spec 4.9)."""

    marks: tuple[str, ...] = ()

    def mark(self, *names: str) -> Progress:
        """With these marks too."""
        return Progress(tuple(dict.fromkeys((*self.marks, *names))))

    def includes(self, *names: str) -> bool:
        """Are all of these there?"""
        return all(name in self.marks for name in names)

    def clear(self) -> Progress:
        """Without any mark."""
        return Progress()


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be done, and whether enough is done; users' hooks are asked behind the shipped checks.

    `validate(decision, state)` returns None, or what is wrong in words, or raises PolicyViolation.
    `converged(state, progress)` returns True when the run may end.
    """

    min_confidence: float = 0.5
    validate: Hook | None = None
    converged: Hook | None = None
    marks: tuple[str, ...] = ()
    """The run has converged when all of these are set; empty: marks decide nothing."""

    def violation(self, decision: Decision, state: Mapping[str, Any]) -> str:
        """Why the decision is not allowed, or the empty string. A hook that fails allows nothing."""
        if not decision.action:
            return "the decision has no action"
        sure = decision.confidence
        if sure is not None and not 0 <= sure <= 1:
            return "the confidence is outside its range; expected a number from 0 to 1"
        if sure is not None and sure < self.min_confidence:
            return f"Low confidence: {sure:g} is below {self.min_confidence:g}"
        return self._users(decision, state) if self.validate else ""

    def _users(self, decision: Decision, state: Mapping[str, Any]) -> str:
        """What the user's hook says; it is shown a copy, so that it cannot change what is done."""
        try:
            shown = replace(decision, params=freeze(dict(decision.params)))
            said = self.validate(shown, freeze(dict(state))) if self.validate else None
        except PolicyViolation as error:
            return text_of(error) or "the policy forbids it"
        except Exception as error:  # noqa: BLE001  # a user's hook may raise anything
            return f"the policy failed: {failure_words(error)}"
        if said is None or isinstance(said, str):
            return "" if said is None else cut(clean(said), REASON_LIMIT)
        # A yes or no could be read either way, and a policy that lets everything pass guards nothing.
        return f"the policy answered {kind_words(said)}; expected None or what is wrong in words"

    def has_converged(self, state: Mapping[str, Any], progress: Progress) -> bool:
        """Is enough done? Raises FatalError when the hook fails or answers neither True nor False."""
        if self.marks:
            return progress.includes(*self.marks)
        if self.converged is None:
            return False
        try:
            said = self.converged(freeze(dict(state)), progress)
        except Exception as error:
            raise FatalError(f"the hook `converged` failed: {failure_words(error)}") from error
        if not isinstance(said, bool):
            raise FatalError(f"the hook `converged` answered {kind_words(said)}; expected True or False")
        return said


def hook_named(name: str | None, hooks: Mapping[str, Hook], knob: str) -> Hook | None:
    """The hook that a knob names; raises ValueError for one that the worker has not loaded."""
    if name is None:
        return None
    if name not in hooks:
        close = difflib.get_close_matches(name, hooks, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        there = ", ".join(sorted(hooks)) or "none; a worker's module brings them in `HOOKS`"
        raise ValueError(f"{knob}: unknown hook {name!r}; {hint}this worker has {there}")
    return hooks[name]


def policy_of(
    min_confidence: float,
    policy: str | None,
    converged: str | tuple[str, ...] | None,
    hooks: Mapping[str, Hook],
) -> Policy:
    """The policy under these knobs; raises ValueError for an unknown hook."""
    return Policy(
        min_confidence=min_confidence,
        validate=hook_named(policy, hooks, "policy"),
        converged=None if isinstance(converged, tuple) else hook_named(converged, hooks, "converged"),
        marks=converged if isinstance(converged, tuple) else (),
    )
