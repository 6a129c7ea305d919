"""What must hold of every ReAct run, and in which runs that is tried (docs/verification.md)."""

from __future__ import annotations

from typing import Any

from activities.contracts import ToolSpec
from workflows.kernel.machine import Extensions
from workflows.kernel.properties import (
    Moment,
    Property,
    Scenario,
    after,
    asks_model,
    asks_person,
    at_most,
    before,
    between,
    calls,
    decides,
    ends,
    event,
    is_unknown,
    last,
    never,
    returned,
    then,
)
from workflows.machines.react.rules import Rule, RuleSpec
from workflows.machines.react.table import (
    Accepted,
    Acted,
    Continued,
    Ended,
    Observed,
    PersonNeeded,
    Rejected,
    S,
    StepTaken,
)

__all__ = ["PROPERTIES", "SCENARIOS"]


def unchecked(x: Moment) -> bool:
    """A tool is called, but not by the newest step as the rules have accepted it."""
    step = x.context.newest if calls()(x) else None
    return calls()(x) and (step is None or step.status != "validated" or x.calls[0].tool != step.action)


def beyond(x: Moment) -> bool:
    """A step was committed, no step is left, and the run goes on."""
    return bool(event(StepTaken)(x) and x.context.count >= x.options.max_steps)


def escalates_early(x: Moment) -> bool:
    """A person is asked although fewer thoughts were rejected than allowed."""
    return bool(event(PersonNeeded)(x) and x.context.retry_count <= x.options.max_retries_before_human)


def ends_early(x: Moment) -> bool:
    """The run ends for want of steps although some are left."""
    left = x.kind == "ended" and x.context.count < x.options.max_steps
    return left and x.exit.reason == "max_steps"


PROPERTIES: tuple[Property, ...] = (
    never("a tool runs only for a step that the rules have accepted", unchecked),
    at_most("each step calls one tool at most", 1, calls(), per=lambda x: x.context.count),
    before("a tool runs only after an accepted thought", first=event(Accepted), then=calls()),
    between(
        "the model sees an outcome before it thinks again", returned(), event(Observed), never=asks_model
    ),
    before("an outcome is observed when the step has acted", first=event(Acted), then=event(Observed)),
    last("nothing is asked after an unknown outcome", is_unknown),
    last("nothing is asked after the end", event(Ended)),
    never("no step begins once `max_steps` are counted at a commit", beyond),
    at_most("a step is committed once", 1, event(StepTaken), per=lambda x: x.context.count),
    then("a rejected thought is thought again", event(Rejected), asks_model),
    then("a committed step leads to the next thought", event(StepTaken), asks_model),
    then("an escalation asks a person", event(PersonNeeded), asks_person),
    never("a person is asked only when too many thoughts were rejected", escalates_early),
    before("a person is asked only after an escalation", first=event(PersonNeeded), then=asks_person),
    then("a person's word lets the run go on", event(Continued), asks_model),
    before("nobody but a person resumes", first=decides("resume", "answer"), then=event(Continued)),
    after("abort ends the run", decides("abort"), eventually=ends(lambda exit, c: exit.reason == "aborted")),
    last("nothing is asked after an abort", decides("abort")),
    after(
        "an unknown outcome is why the run ends",
        is_unknown,
        eventually=ends(lambda exit, c: exit.reason == "fatal_error"),
    ),
    after(
        "a rule that ends the run is why it ends",
        lambda x: event(Ended)(x) and x.state == S.VALIDATE.value,
        eventually=ends(lambda exit, c: exit.reason in ("rule_violation", "fatal_error")),
    ),
    never("a goal that is achieved has an answer", ends(lambda exit, c: exit.ok and exit.answer is None)),
    never("a run that failed says why", ends(lambda exit, c: not exit.ok and not exit.error)),
    never("`max_steps` ends a run only when they are used", ends_early),
)

QUERY = {"type": "object", "properties": {"q": {"type": "string", "enum": ["x"]}}, "required": ["q"]}
TOOLS = (
    ToolSpec(name="look", description="", effect="read", parameters=QUERY),
    ToolSpec(name="pay", description="", effect="unsafe", parameters=QUERY),
)
WORDS: Any = {"thought": ["so", "I guess", "FINAL ANSWER: 42"], "action_input": [{"q": "x"}, {}]}
SMALL: Any = {"max_steps": 2, "max_format_attempts": 2, "max_retries_before_human": 1}


def _fails(spec: RuleSpec) -> Rule:
    def check(step: Any, context: Any) -> str | None:
        raise RuntimeError("the rule is broken")

    return Rule("fails", "terminal", check)


SCENARIOS = (
    Scenario(
        name="rules",
        # Without `max_depth`, a person who resumes again and again is stopped by `max_transitions` alone.
        options={**SMALL, "rules": [{"type": "forbid_guessing"}, {"type": "max_depth", "value": 3}]},
        tools=TOOLS,
        words=WORDS,
    ),
    Scenario(
        name="rule that fails",
        options={**SMALL, "rules": [{"type": "fails"}]},
        tools=TOOLS[1:],
        words=WORDS,
        extensions=Extensions(rules={"fails": _fails}),
    ),
)
