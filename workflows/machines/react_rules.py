"""The four shipped rules of the ReAct machine (spec 1.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workflows.kernel.rules import Rule, RuleSpec, RuleType

__all__ = ["RULE_TYPES"]

PHRASES = ("I guess", "probably", "I'm not sure", "might be", "could be")


def _config(spec: RuleSpec, *known: str) -> None:
    """Raises ValueError for a key that the rule does not have: a misspelt one would weaken it silently."""
    for key in spec.config:
        if key not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(f"rule {spec.type}: unknown key {key!r} in `config`; {has}")


def _no_value(spec: RuleSpec) -> None:
    if spec.value is not None:
        raise ValueError(f"rule {spec.type}: it takes no `value`, {spec.value:g} was given")


def _positive(spec: RuleSpec, default: float) -> float:
    _config(spec)
    value = default if spec.value is None else spec.value
    if value <= 0:
        raise ValueError(f"rule {spec.type}: `value` must be greater than 0, not {value:g}")
    return value


def _max_depth(spec: RuleSpec) -> Rule:
    most = _positive(spec, 20)
    if most != int(most):
        raise ValueError(f"rule {spec.type}: `value` must be a whole number of steps, not {most:g}")

    def check(step: Any, context: Any) -> str | None:
        count = len(context.steps)
        return f"{count} steps were taken, at most {most:g} are allowed" if count > most else None

    return Rule("max_depth", "terminal", check)


def _cost_limit(spec: RuleSpec) -> Rule:
    limit = _positive(spec, 0.50)

    def check(step: Any, context: Any) -> str | None:
        cost = context.total_cost
        return f"{cost:.4f} USD were spent, at most {limit:g} are allowed" if cost > limit else None

    return Rule("cost_limit", "terminal", check)


def _plain(text: str) -> str:
    """Without case, with straight apostrophes and single spaces: so are thought and phrases compared."""
    straight = text.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return " ".join(straight.split())


def _forbid_guessing(spec: RuleSpec) -> Rule:
    _no_value(spec)
    _config(spec, "phrases")
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
    _no_value(spec)
    _config(spec)

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
