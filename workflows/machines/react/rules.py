"""The rule engine: a thought is checked before it is acted upon (spec 1.6).

A rule has a name, a severity and a check. Rules run in their order; the first terminal violation stops
at once, even when retryable ones were seen before; otherwise all retryable ones are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from workflows.machines.authoring import FatalError
from workflows.machines.common.named_parts import (
    NamedSpec,
    call_user_function,
    check_config,
    find_named,
    make_part,
    number,
    whole_number,
)

__all__ = ["RULE_TYPES", "Rule", "RuleSpec", "RuleType", "Violations", "build_rules", "judge"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `check` gets the newest step and a read-only view of the machine's context: `trace_id`,
    `steps`, `metadata`, `terminated`, and the fields that `metadata` is made of.

    It returns None or the empty string when the rule holds, else what is wrong, for the model.
    """

    name: str
    severity: Literal["retryable", "terminal"]
    check: Callable[[Any, Any], str | None]


class RuleSpec(NamedSpec):
    """A rule as an agent file declares it."""

    enabled: bool = Field(default=True, description="false: the rule is not checked")


RuleType = Callable[[RuleSpec], Rule]
"""Makes a rule from its declaration. Raises ValueError for a bad one."""


@dataclass(frozen=True, slots=True)
class Violations:
    """What is wrong: one terminal violation, or all retryable ones."""

    text: str = ""
    """Each with the name of its rule; empty: every rule holds."""
    rules: tuple[str, ...] = ()
    """Names of those that are violated."""
    terminal: bool = False


def judge(rules: Sequence[Rule], step: Any, context: Any) -> Violations:
    """Run the rules in order. A rule may raise an `AgentError`; any other error is a FatalError."""
    gathered: list[tuple[str, str]] = []
    for rule in rules:
        message = call_user_function(f"rule {rule.name}", rule.check, step, context)
        if message is not None and not isinstance(message, str):
            # A yes or no would be read the wrong way round, and a rule that always holds guards nothing.
            raise FatalError(
                f"the rule {rule.name} answered with a {type(message).__name__}; "
                "expected None, or what is wrong in words"
            )
        if message and rule.severity == "terminal":
            return Violations(f"{rule.name}: {message}", (rule.name,), terminal=True)
        if message:
            gathered.append((rule.name, f"{rule.name}: {message}"))
    return Violations("; ".join(text for _, text in gathered), tuple(name for name, _ in gathered))


def build_rules(specs: Sequence[RuleSpec], loaded: Mapping[str, RuleType]) -> tuple[Rule, ...]:
    """The enabled rules in their order. Raises ValueError for one that is unknown or cannot be made."""
    makers = {**loaded, **RULE_TYPES}
    for spec in specs:
        find_named("unknown rule", spec.type, makers)  # a misspelt name is found, also when the rule is off
    return tuple(make_part("rule", spec, makers, Rule) for spec in specs if spec.enabled)


# -- the shipped rules ----------------------------------------------------------------------------

PHRASES = ("I guess", "probably", "I'm not sure", "might be", "could be")


def _takes_no_value(spec: RuleSpec, *config: str) -> None:
    check_config("rule", spec, *config)
    if spec.value is not None:
        raise ValueError(f"rule {spec.type}: it takes no `value`, {spec.value:g} was given")


def _max_depth(spec: RuleSpec) -> Rule:
    most = whole_number("rule", spec, "steps", 20)

    def check(step: Any, context: Any) -> str | None:
        count = step.id + 1
        return f"{count} steps were taken, at most {most:g} are allowed" if count > most else None

    return Rule("max_depth", "terminal", check)


def _cost_limit(spec: RuleSpec) -> Rule:
    limit = number("rule", spec, "USD", 0.50)

    def check(step: Any, context: Any) -> str | None:
        cost = context.total_cost
        return f"{cost:.4f} USD were spent, at most {limit:g} are allowed" if cost > limit else None

    return Rule("cost_limit", "terminal", check)


def _plain(text: str) -> str:
    """Without case, with straight apostrophes and single spaces: so are thought and phrases compared."""
    straight = text.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return " ".join(straight.split())


def _forbid_guessing(spec: RuleSpec) -> Rule:
    _takes_no_value(spec, "phrases")
    more = spec.config.get("phrases", [])
    if not isinstance(more, list) or not all(isinstance(p, str) and p.strip() for p in more):
        raise ValueError("rule forbid_guessing: `config.phrases` must be a list of texts")
    phrases = (*PHRASES, *(str(phrase) for phrase in more))

    def check(step: Any, context: Any) -> str | None:
        # Both sides are made plain: the phrases have capitals too (R-000-10).
        thought = _plain(step.thought)
        found = [phrase for phrase in phrases if _plain(phrase) in thought]
        return f"the thought guesses ({', '.join(found)}); find out instead" if found else None

    return Rule("forbid_guessing", "retryable", check)


def _require_tool_use(spec: RuleSpec) -> Rule:
    _takes_no_value(spec)

    def check(step: Any, context: Any) -> str | None:
        # "No action at all also passes" (spec 1.6); what fails is a blank tool name.
        named = step.action is None or step.action.strip()
        return None if named else "the step has an action without a tool's name"

    return Rule("require_tool_use", "retryable", check)


RULE_TYPES: Mapping[str, RuleType] = {
    "max_depth": _max_depth,
    "cost_limit": _cost_limit,
    "forbid_guessing": _forbid_guessing,
    "require_tool_use": _require_tool_use,
}
