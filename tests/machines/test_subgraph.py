"""A machine as a state of a user's machine: what goes in, and what comes back (spec 1.9, R-000-15)."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from pydantic import BaseModel, Field

from client.sdk.local import Local, ScriptedModel
from ratchet import (
    Context,
    Event,
    Exit,
    InnerLimits,
    Machine,
    Run,
    RunMachine,
    Tool,
    Visit,
    VisitEnd,
    do,
    state,
)
from workflows.hosts.memory import LocalOutcome


class S(Enum):
    """A state before the inner machine, and one after it."""

    BEFORE, INSIDE, AFTER, END = "before", "inside", "after", "end"


class Went(Event):
    """On to the next state."""


class Options(BaseModel, frozen=True):
    """The limits of the inner run."""

    limits: InnerLimits = InnerLimits()


class Graph(Context):
    """What the outer machine remembers."""

    metadata: dict[str, Any] = Field(default_factory=dict)
    inner: tuple[str, str | None] = ("", None)


@state(S.BEFORE, writes={"metadata"})
def before(c: Graph, run: Run) -> VisitEnd:
    return {"metadata": {"mine": 1, "retry_count": 7, "exit_reason": "outer"}}, Went()


@state(S.INSIDE, asks={RunMachine}, reads={"metadata"}, writes={"metadata", "inner"})
def inside(c: Graph, run: Run) -> Visit:
    effect = RunMachine(
        machine="react", goal="inside", give=("look",), values=c.metadata, limits=run.options.limits
    )
    ended = yield from do(effect)
    return {"metadata": ended.merged_into(c.metadata), "inner": (ended.exit_reason, ended.answer)}, Went()


@state(S.AFTER, reads={"metadata"}, writes={"metadata"})
def after(c: Graph, run: Run) -> VisitEnd:
    return {"metadata": {**c.metadata, "seen": list(c.metadata["tool_history"])}}, Went()


GRAPH = Machine(
    name="graph",
    options=Options,
    context=Graph,
    begin=lambda given, options: Graph(),
    initial=S.BEFORE,
    table={S.BEFORE: {Went: S.INSIDE}, S.INSIDE: {Went: S.AFTER}, S.AFTER: {Went: S.END}},
    states=(before, inside, after),
    result=lambda c, run: Exit(reason="ran", ok=True, answer=c.inner[1], outcome=c.metadata),
)


class Params(BaseModel, frozen=True):
    """Look at something."""


LOOK = Tool(name="look", params=Params, run=lambda params: "it is 42", effect="read")
SCRIPT = [
    json.dumps({"thought": "I look", "action": "look", "action_input": {}}),
    json.dumps({"thought": "FINAL ANSWER: 42", "action": None}),
]


def graph(**fields: Any) -> LocalOutcome:
    """A run of the outer machine."""
    return Local(GRAPH, model=ScriptedModel(SCRIPT), tools=[LOOK]).run_sync("outside", **fields)


def test_r_000_15_states_run_around_and_inside_inner_machine() -> None:
    outcome = graph()
    assert (outcome.states, outcome.answer) == (("before", "inside", "after", "end"), "42")
    assert outcome.context.metadata["seen"] == ["look"]


def test_r_000_15_metadata_is_merged_and_inner_run_wins() -> None:
    metadata = graph().context.metadata
    assert (metadata["mine"], metadata["retry_count"], metadata["goal"]) == (1, 0, "inside")
    assert metadata["exit_reason"] == "outer", "how the inner run ended is no end of the outer one"


def test_r_000_15_inner_run_has_limits_of_its_own() -> None:
    outcome = graph(options={"limits": {"model_calls": 1}})
    assert (outcome.result.exit_reason, outcome.context.inner) == ("ran", ("limit", None))
    assert outcome.result.counters["model_calls"] == 1
    assert graph(limits={"depth": 0}).result.exit_reason == "failed"
