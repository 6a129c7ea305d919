"""What must hold of every contract run, and in which runs that is tried (docs/verification.md)."""

from __future__ import annotations

import json
from typing import Any

from activities.contracts import ToolSpec
from workflows.kernel.properties import (
    Moment,
    Property,
    Scenario,
    When,
    after,
    any_of,
    asks_model,
    at_most,
    before,
    between,
    calls,
    ends,
    event,
    is_unknown,
    last,
    never,
    returned,
    then,
)
from workflows.machines.contract.table import (
    ExitGranted,
    Finished,
    ForcedRerun,
    GraphFailed,
    Rerun,
    ToolChosen,
    ToolFinished,
    Verified,
    Violated,
    WrapUpStarted,
)

__all__ = ["PROPERTIES", "SCENARIOS"]


def reads_texts(x: Moment) -> bool:
    """Texts of artifacts are asked for."""
    return x.kind == "asked" and x.effect is not None and x.effect.kind == "read_artifacts"


def not_as_decided(x: Moment) -> bool:
    """A tool is called that the newest decision does not name, or with other parameters."""
    wanted = x.context.last_decision.tool_call if calls()(x) else None
    if not calls()(x):
        return False
    return wanted is None or wanted.tool_id != x.calls[0].tool or wanted.params != x.calls[0].arguments


def beyond_budget(x: Moment) -> bool:
    """A tool is called although no calls are left."""
    return calls()(x) and not x.context.budget.left("tools") and not x.context.overdraft.allowed


def next_is(name: str, when: When, what: When) -> Property:
    """The next thing that is asked is this, unless the run ends: a budget may be used up."""
    return between(name, when, what, never=lambda x: x.kind == "asked" and not what(x))


again = any_of(asks_model, reads_texts)

PROPERTIES: tuple[Property, ...] = (
    before("a tool runs only when its call was verified", first=event(Verified), then=calls()),
    then("a verified call is made", event(Verified), calls()),
    between("a call that breaks the protocol is not made", event(Violated), event(Verified), never=calls()),
    never("a tool is called only as it was decided", not_as_decided),
    never("no tool is called beyond the budget", beyond_budget),
    at_most("each decision calls one tool at most", 1, calls(), per=lambda x: x.context.iteration),
    between(
        "what a tool made is registered before the next decision",
        returned(),
        event(ToolFinished, GraphFailed),
        never=asks_model,
    ),
    last("nothing is asked after an unknown outcome", is_unknown, but=reads_texts),
    last("after the exit, only texts are read", event(ExitGranted, GraphFailed), but=reads_texts),
    last("nothing is asked after the end", event(Finished)),
    after(
        "slots get their texts before the end", event(ExitGranted, GraphFailed), eventually=event(Finished)
    ),
    at_most("there is one wrap-up round", 1, event(WrapUpStarted)),
    between("no tool is called in the wrap-up round", event(WrapUpStarted), event(Finished), never=calls()),
    next_is("a wrap-up round asks the model", event(WrapUpStarted), asks_model),
    next_is("a violation goes back to the model", event(Violated), again),
    next_is("a decision without a strategy is asked for again", event(ForcedRerun), asks_model),
    next_is("what a decision wants to see is shown", event(Rerun), again),
    between("a chosen call is checked first", event(ToolChosen), event(Verified, Violated), never=calls()),
    never(
        "complete means that every slot is filled",
        ends(lambda exit, c: exit.reason == "complete" and c.pending_slots),
    ),
    never("a run that is ok has filled its slots", ends(lambda exit, c: exit.ok and c.pending_slots)),
    never("a run that is not ok says why", ends(lambda exit, c: not exit.ok and not exit.error)),
    never("an exit has a reason", ends(lambda exit, c: exit.reason == "running")),
)

QUERY = {"type": "object", "properties": {"q": {"type": "string", "enum": ["x"]}}, "required": ["q"]}
PAY = ToolSpec(name="pay", description="", effect="unsafe", parameters=QUERY)
CALL: Any = {"tool_id": "pay", "params": {"q": "x"}, "out_artifacts_spec": [{"name": "found"}]}


def decision(action: str, strategy: str, **more: Any) -> str:
    """A reply of the model."""
    return json.dumps({"action": action, "strategy": strategy, **more})


MAPPED: Any = {"map_slots": [{"slot_name": "answer", "source_path": "found"}]}
REPLIES = (
    decision("call_tool", "explore", tool_call=CALL),
    decision("call_tool", "render", tool_call=CALL, **MAPPED),
    decision("call_tool", "exploit", tool_call={**CALL, "tool_id": "nosuch"}),
    decision("decision", "explore", show_artifacts=["found"]),
    decision("decision", "explore"),
    decision("clarify", "exit", clarification_questions=["which?"]),
    decision("complete", "render", **MAPPED),
    decision("complete", "nonsense"),
)
WORDS: Any = {
    "action": ["complete"],
    "strategy": ["exit"],
    "notes": [""],
    "map_slots": [[]],
    "show_artifacts": [[]],
    "completion_summary": [""],
    "tool_call": [CALL],
}
ALIKE = frozenset({"timeout", "expired", "transient"})
"""Failures that this machine takes as it takes others."""


def _scenario(rounds: int, **options: Any) -> Scenario:
    budget = {"explore": rounds, "exploit": 0, "render": 0, "ctx_reads": 1}
    slots: Any = [{"name": "answer", "budget": budget}]
    name = ", ".join((f"{rounds} rounds", *options))
    return Scenario(
        name=name,
        options={"slots": slots, **options},
        tools=(PAY,),
        replies=REPLIES,
        words=WORDS,
        without=ALIKE,
    )


SCENARIOS = (_scenario(1), _scenario(2), _scenario(1, exhausted_round="skip"))
