"""The rule engine: what a model proposes is checked before it is done (spec 1.6).

A rule has a name, a severity and a check. Rules run in their order; the first terminal violation
stops at once, even when retryable ones were seen before; otherwise all retryable ones are gathered.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, model_validator

from activities.contracts import JsonObject, Strict
from workflows.kernel.errors import AgentError, FatalError, failure_words, kind_words

__all__ = ["Rule", "RuleSpec", "RuleType", "RuleViolation", "Verdict", "build_rules", "judge"]

Severity = Literal["retryable", "terminal"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `check` gets the newest step and the machine's context, read-only.

    It returns None or the empty string when the rule holds, else what is wrong, for the model.
    """

    name: str
    severity: Severity
    check: Callable[[Any, Any], str | None]


class RuleSpec(Strict):
    """A rule as an agent file declares it."""

    type: str = Field(description="a shipped rule or one that the worker has loaded")
    value: float | None = Field(
        default=None, allow_inf_nan=False, description="the rule's number, where it has one"
    )
    enabled: bool = True
    config: JsonObject = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, given: Any) -> Any:
        """A bare name is the rule with its default."""
        return {"type": given} if isinstance(given, str) else given


RuleType = Callable[[RuleSpec], Rule]
"""Makes a rule from its declaration; raises ValueError for a bad one."""


@dataclass(frozen=True, slots=True)
class RuleViolation:
    """One rule that does not hold."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the engine found: nothing, one terminal violation, or retryable ones."""

    terminal: RuleViolation | None = None
    retryable: tuple[RuleViolation, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Every rule holds."""
        return self.terminal is None and not self.retryable

    @property
    def text(self) -> str:
        """The violations in words."""
        found = (self.terminal,) if self.terminal else self.retryable
        return "; ".join(str(violation) for violation in found)


def judge(rules: Sequence[Rule], step: Any, context: Any) -> Verdict:
    """Run the rules in order. A rule may raise an `AgentError`; anything else it raises is a FatalError."""
    gathered: list[RuleViolation] = []
    for rule in rules:
        message = _asked(rule, step, context)
        if not message:
            continue
        violation = RuleViolation(rule.name, message)
        if rule.severity == "terminal":
            return Verdict(terminal=violation)
        gathered.append(violation)
    return Verdict(retryable=tuple(gathered))


def _asked(rule: Rule, step: Any, context: Any) -> str | None:
    try:
        message: object = rule.check(step, context)
    except AgentError:
        raise
    except Exception as error:
        raise FatalError(f"the rule {rule.name} failed: {failure_words(error)}") from error
    if message is None or isinstance(message, str):
        return message
    # A yes or no would be read the wrong way round, and a rule that always holds guards nothing.
    raise FatalError(
        f"the rule {rule.name} answered {kind_words(message)}; expected None or what is wrong in words"
    )


def build_rules(specs: Sequence[RuleSpec], types: Mapping[str, RuleType]) -> tuple[Rule, ...]:
    """The enabled rules in their order; raises ValueError for one that is not known or cannot be made."""
    rules = []
    for spec in specs:
        if spec.type not in types:
            close = difflib.get_close_matches(spec.type, types, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ValueError(f"unknown rule type {spec.type!r}; {hint}there are {', '.join(sorted(types))}")
        if spec.enabled:
            rules.append(_made(spec, types[spec.type]))
    return tuple(rules)


def _made(spec: RuleSpec, maker: RuleType) -> Rule:
    try:
        rule: object = maker(spec)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"rule {spec.type} cannot be made: {failure_words(error)}") from error
    if not isinstance(rule, Rule):
        raise ValueError(f"rule {spec.type}: its maker returned {kind_words(rule)}; expected a Rule")
    return rule
