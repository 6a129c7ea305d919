"""Scripts of the tools machine: together they take every row of its table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from activities.contracts import JsonObject, ModelReplied, ToolCall
from tests.machines.answers import failed, said, tool_failed, tool_said
from tests.machines.driver import Play, run_script
from tests.machines.script import TOOL, Script
from workflows.kernel.design import Design, Parts
from workflows.kernel.errors import FatalError
from workflows.kernel.policies import PolicySpec

__all__ = ["REPLIES", "SCRIPTS", "Raising", "call", "calls", "cut"]


def call(name: str = "tool", number: int = 1, **arguments: Any) -> ToolCall:
    """One call of a reply."""
    return ToolCall(id=f"c{number}", name=name, arguments=json.dumps(arguments))


def calls(*made: ToolCall | str, text: str = "", cost: float = 0) -> ModelReplied:
    """A reply with these calls; a bare name is a call without arguments."""
    whole = tuple(
        call(one, number) if isinstance(one, str) else one for number, one in enumerate(made, start=1)
    )
    return ModelReplied(text=text, tool_calls=whole, finish_reason="tool_calls", cost_usd=cost)


def cut(reply: ModelReplied) -> ModelReplied:
    """The reply, ended by the limit of the model's output."""
    return reply.model_copy(update={"finish_reason": "length"})


@dataclass(frozen=True)
class Raising:
    """A policy that raises as soon as so many iterations are complete."""

    at: float
    error: Exception

    def should_stop(self, context: Mapping[str, Any]) -> bool:
        if context["iteration"] >= self.at:
            raise self.error
        return False

    def on_iteration_complete(self, context: Mapping[str, Any], result: str) -> JsonObject | None:
        return None


def _raises(spec: PolicySpec) -> Raising:
    return Raising(spec.value or 0, FatalError("the policy is lost"))


@dataclass(frozen=True)
class WithPolicies(Script):
    """A script with a user's policy."""

    def run(self, design: Design) -> Play:
        parts = Parts(policies={"raises": _raises})
        return run_script(design, self.answers, options=self.options, tools=(TOOL,), parts=parts)


def _policy(name: str, value: float) -> dict[str, Any]:
    return {"policies": [{"type": name, "value": value}]}


ASKS = calls("tool")

SCRIPTS = (
    Script("answers at once", (said("42"),)),
    Script("is cut off", (ASKS, tool_said(), cut(said("4")))),
    Script("asks for tools first", (calls("tool", "tool"), tool_said(), ASKS, tool_said(), said("42"))),
    Script("uses all its iterations", (ASKS, tool_said(), calls("tool", text="7")), {"max_iterations": 1}),
    Script("is stopped before its calls", (calls("tool", cost=2),), _policy("max_cost", 1)),
    Script("is stopped after its calls", (ASKS, tool_said(cost=2)), _policy("max_cost", 1)),
    Script("cannot reach the model", (failed("transient"),)),
    Script("loses the model", (ASKS, tool_said(), failed("fatal"))),
    Script("names an unknown tool", (calls("tool", "nosuch"), tool_said())),
    Script("is told of an unknown tool", (calls("nosuch"), said("42")), {"unknown_tool": "report"}),
    Script("loses a tool", (ASKS, tool_failed("unknown_outcome"))),
    WithPolicies("loses its policy", (said("42"),), _policy("raises", 0)),
    WithPolicies("loses its policy later", (ASKS, tool_said()), _policy("raises", 1)),
)

REPLIES = st.sampled_from(
    [
        said("42"),
        said(""),
        ASKS,
        calls("tool", "tool", "tool", text="three"),
        calls(call("tool", 1, q="x"), call("tool", 1, q="x"), cost=0.1),
        calls("tool", "nosuch", "tool"),
        cut(said("4")),
        cut(calls("tool", ToolCall(id="b", name="tool", arguments='{"q": "x'))),
        calls(ToolCall(id="", name="tool", arguments="{bad")),
        calls(ToolCall(id="a", name="tool", arguments="[1]"), ToolCall(id="b", name="tool", arguments="")),
    ]
)
"""What a model may say in random runs."""
