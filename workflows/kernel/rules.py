"""The rule engine: what a model proposes is checked before it is done (spec 1.6).

A rule has a name, a severity and a check. Rules run in their order; the first terminal violation
stops at once, even when retryable ones were seen before; otherwise all retryable ones are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from activities.contracts import JsonObject, Strict

__all__ = ["Rule", "RuleSpec", "RuleViolation", "Verdict", "build_rules", "judge"]

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
    value: float | None = Field(default=None, description="the rule's number, where it has one")
    enabled: bool = True
    config: JsonObject = Field(default_factory=dict)


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
    """Run the rules in order. What a rule raises leaves this function."""
    gathered: list[RuleViolation] = []
    for rule in rules:
        message = rule.check(step, context)
        if not message:
            continue
        violation = RuleViolation(rule.name, message)
        if rule.severity == "terminal":
            return Verdict(terminal=violation)
        gathered.append(violation)
    return Verdict(retryable=tuple(gathered))


def build_rules(specs: Sequence[RuleSpec], types: Mapping[str, RuleType]) -> tuple[Rule, ...]:
    """The enabled rules in their order; raises ValueError for a type that is not known."""
    rules = []
    for spec in specs:
        if spec.type not in types:
            raise ValueError(f"unknown rule type {spec.type!r}; there are {', '.join(sorted(types))}")
        if spec.enabled:
            rules.append(types[spec.type](spec))
    return tuple(rules)
