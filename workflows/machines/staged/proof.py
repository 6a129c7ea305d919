"""What must hold of every staged run, and in which runs that is tried (docs/verification.md)."""

from __future__ import annotations

from typing import Any

from activities.contracts import AskModel, ToolSpec
from workflows.kernel.properties import (
    Moment,
    Property,
    Scenario,
    after,
    asks_model,
    at_most,
    before,
    between,
    calls,
    ends,
    enters,
    is_unknown,
    last,
    never,
    returned,
)
from workflows.machines.staged.context import ACTING, FAILED, FINISHED, INITIALIZED, OBSERVING, THINKING
from workflows.machines.staged.options import FAILING

__all__ = ["PROPERTIES", "SCENARIOS", "STANDARD_PROPERTIES"]


def is_answered(exit: Any, c: Any) -> bool:
    """The run has answered."""
    return bool(exit.reason == "answered")


def begins_too_often(x: Moment) -> bool:
    """A pass begins although as many as are allowed have been made."""
    return bool(enters(x.options.entry)(x) and x.context.iteration >= x.options.max_iterations)


PROPERTIES: tuple[Property, ...] = (
    never("no pass begins beyond `max_iterations`", begins_too_often),
    last("nothing is asked after an unknown outcome", is_unknown),
    last("nothing is asked after the answer", enters(FINISHED)),
    last("nothing is asked after a failure", enters(FAILED, FAILING)),
    never(
        "an answer is not blank",
        ends(lambda exit, c: is_answered(exit, c) and not (exit.answer or "").strip()),
    ),
    never("only a run that has answered is ok", ends(lambda exit, c: exit.ok and not is_answered(exit, c))),
    never("a run that is not ok says why", ends(lambda exit, c: not exit.ok and not exit.error)),
    after(
        "a run that failed is not ok", enters(FAILED, FAILING), eventually=ends(lambda exit, c: not exit.ok)
    ),
    never("a run that answered has not failed", ends(lambda exit, c: is_answered(exit, c) and c.last_error)),
    never("the lifecycle is the state", lambda x: x.kind == "asked" and x.context.lifecycle != x.state),
)
"""Of all stages."""


def unsuggested(x: Moment) -> bool:
    """A tool is called that the thought does not suggest."""
    thought = x.context.thought if calls()(x) else None
    return calls()(x) and (thought is None or any(one.tool not in thought.suggested_tools for one in x.calls))


def acts_at_the_end(x: Moment) -> bool:
    """A tool is offered or called in a pass that must answer."""
    offers = asks_model(x) and isinstance(x.effect, AskModel) and bool(x.effect.offer)
    return bool((offers or calls()(x)) and x.options.must_answer(x.context.iteration + 1))


def goes_round(x: Moment) -> bool:
    """Another pass begins although the one before has given its answer."""
    seen = x.context.observation if enters(THINKING)(x) and x.state != INITIALIZED else None
    return seen is not None and not seen.need_loop and bool(seen.final_answer)


STANDARD_PROPERTIES: tuple[Property, ...] = (
    never("a tool is called only as the thought suggests", unsuggested),
    never("no tool is called in the last pass, which must answer", acts_at_the_end),
    never("tools run only while acting", lambda x: calls()(x) and x.state != ACTING),
    before("a run thinks before it acts", first=enters(THINKING), then=enters(ACTING)),
    between("each pass calls tools once", calls(), enters(THINKING), never=calls()),
    between(
        "what tools return is observed",
        returned(),
        enters(OBSERVING, FAILED),
        never=enters(THINKING, FINISHED),
    ),
    before("an answer is observed", first=enters(OBSERVING), then=enters(FINISHED)),
    at_most(
        "each pass is observed once",
        1,
        lambda x: asks_model(x) and x.state == OBSERVING,
        per=lambda x: x.context.iteration,
    ),
    never("another pass begins only where one was wanted, or no answer given", goes_round),
)
"""Of the stages as shipped."""

QUERY = {"type": "object", "properties": {"q": {"type": "string", "enum": ["x"]}}, "required": ["q"]}
TOOLS = (
    ToolSpec(name="look", description="", effect="read", parameters=QUERY),
    ToolSpec(name="pay", description="", effect="unsafe", parameters=QUERY),
)
WORDS: Any = {
    "intent": ["general_inquiry", "diagnosis", "nonsense"],
    "suggested_tools": [[], ["pay"], ["look", "nosuch"]],
    "reasoning": ["why"],
    "summary": ["s"],
    "final_answer": ["", "42"],
}
SMALL: Any = {"max_iterations": 2, "intents": ["general_inquiry", "diagnosis"]}

ALIKE = frozenset({"timeout", "expired", "rejected"})
"""Ends of calls that this machine takes as it takes `failed`."""

SCENARIOS = (
    Scenario(name="must answer", options={**SMALL, "max_format_attempts": 2}, tools=TOOLS, words=WORDS),
    *(
        Scenario(
            name=way, options={**SMALL, "on_max_iterations": way}, tools=TOOLS[1:], words=WORDS, without=ALIKE
        )
        for way in ("fail", "last_observation")
    ),
)
