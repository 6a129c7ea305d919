"""What must hold of every run in tools mode, and in which runs that is tried (docs/verification.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from activities.contracts import AskModel, ModelReplied, ToolSpec
from workflows.kernel.machine import Extensions
from workflows.kernel.properties import (
    Moment,
    Property,
    Scenario,
    after,
    asks_model,
    before,
    between,
    calls,
    ends,
    event,
    is_unknown,
    last,
    never,
)
from workflows.machines.tools.table import (
    Failed,
    MaxIterationsReached,
    NoToolCalls,
    PolicyStop,
    ToolCallsFound,
)

__all__ = ["PROPERTIES", "SCENARIOS"]

Wanted = tuple[str, ...]


def only_wanted(wanted: Wanted, x: Moment) -> tuple[Wanted, bool]:
    """Remembers what the newest reply asks for; each call must be among it, and is made once."""
    if isinstance(x.answer, ModelReplied):
        return tuple(f"{one.name} {_same(one.arguments)}" for one in x.answer.tool_calls), False
    left = list(wanted)
    for call in x.calls if x.kind == "asked" else ():
        text = f"{call.tool} {_same(json.dumps(dict(call.arguments)))}"
        if text not in left:
            return wanted, True
        left.remove(text)
    return tuple(left), False


def _same(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments


def asks_for_tools(x: Moment) -> bool:
    """A reply asks for tools that it may use."""
    offered = isinstance(x.effect, AskModel) and x.effect.tool_choice != "none"
    return offered and isinstance(x.answer, ModelReplied) and bool(x.answer.tool_calls)


def asks_well(x: Moment) -> bool:
    """The same, for tools that there are and with arguments that can be read."""
    known = x.effect.offer if isinstance(x.effect, AskModel) else ()
    return asks_for_tools(x) and all(
        one.name in known and one.arguments.startswith('{"') for one in x.answer.tool_calls
    )


def answers(x: Moment) -> bool:
    """A reply is plain text, or one that may not ask for tools."""
    return isinstance(x.answer, ModelReplied) and not asks_for_tools(x)


def answers_plainly(x: Moment) -> bool:
    """A reply is plain text, and not empty."""
    return answers(x) and bool(x.answer.text.strip())


def beyond(x: Moment) -> bool:
    """A tool is called, or offered, although every turn is used."""
    may = calls()(x) or (asks_model(x) and x.effect is not None and x.effect.tool_choice != "none")  # type: ignore[attr-defined]  # a question
    return may and x.context.iteration >= x.options.max_iterations


PROPERTIES: tuple[Property, ...] = (
    Property("only what the newest reply asks for is called, and once", only_wanted, ()),
    never("no tool is called or offered beyond `max_iterations`", beyond),
    before("a tool runs only when the reply was looked at", first=event(ToolCallsFound), then=calls()),
    between(
        "what a reply asks for is run before the model is asked again",
        asks_well,
        lambda x: calls()(x) or x.kind == "ended",
        never=asks_model,
    ),
    between("tool calls are no answer", asks_for_tools, answers, never=ends(lambda exit, c: exit.ok)),
    last("nothing is asked after an unknown outcome", is_unknown),
    last("nothing is asked after the answer", event(NoToolCalls)),
    last("nothing is asked once a policy has stopped the run", event(PolicyStop)),
    last("nothing is asked after the last answer", event(MaxIterationsReached)),
    last("nothing is asked after a failure", event(Failed)),
    before(
        "an answer is looked for in a reply",
        first=lambda x: isinstance(x.answer, ModelReplied),
        then=event(NoToolCalls),
    ),
    never(
        "`max_iterations` ends a run only when they are used",
        lambda x: event(MaxIterationsReached)(x) and x.context.iteration < x.options.max_iterations,
    ),
    last("nothing is asked after an answer in plain words", answers_plainly),
    after(
        "a run that used all its turns is not ok",
        event(MaxIterationsReached),
        eventually=ends(lambda exit, c: not exit.ok),
    ),
    never("a run that is ok has an answer", ends(lambda exit, c: exit.ok and exit.answer is None)),
    never("a run that failed says why", ends(lambda exit, c: not exit.ok and not exit.error)),
    never(
        "a policy that stopped a run is named",
        ends(lambda exit, c: exit.reason == "policy_stop" and not c.policy),
    ),
)

QUERY = {"type": "object", "properties": {"q": {"type": "string", "enum": ["x"]}}, "required": ["q"]}
LOOK = ToolSpec(name="look", description="", effect="read", parameters=QUERY)
PAY = ToolSpec(name="pay", description="", effect="unsafe", parameters=QUERY)


class _Fails:
    """A policy that fails when it is asked so late."""

    def __init__(self, spec: Any) -> None:
        self.turns = int(spec.value or 0)

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        if context["iteration"] >= self.turns:
            raise RuntimeError("the policy is broken")
        return False

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> None:
        return None


SCENARIOS = (
    Scenario(name="tools", options={"max_iterations": 2}, tools=(LOOK, PAY)),
    Scenario(
        name="unknown tools are reported",
        options={"max_iterations": 1, "unknown_tool": "report", "parallel_tools": True},
        tools=(LOOK, PAY),
    ),
    *(
        Scenario(
            name=policy,
            options={"max_iterations": 2, "policies": [{"type": policy, "value": most}]},
            tools=(PAY,),
        )
        for policy, most in (("no_progress", 1), ("repeated_call", 2))
    ),
    *(
        Scenario(
            name=f"a policy that fails after {turns} turns",
            options={"max_iterations": 2, "policies": [{"type": "fails", "value": turns}]},
            tools=(PAY,),
            extensions=Extensions(policies={"fails": _Fails}),
        )
        for turns in (0, 1)
    ),
)
