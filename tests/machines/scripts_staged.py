"""Scripts of the staged machine: together they take every row of its table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from activities.contracts import ModelReplied, ToolCall
from tests.machines.answers import failed, said, tool_failed, tool_said
from tests.machines.driver import Play, Reaction, run_script
from tests.machines.script import TOOL, Script
from workflows.kernel.design import Parts

__all__ = [
    "ANSWER",
    "MORE",
    "NOTHING",
    "REPLIES",
    "SCRIPTS",
    "TOOLS",
    "Hooks",
    "asks",
    "observed",
    "run",
    "stages",
    "thinks",
]

Hooks = Mapping[str, Callable[[Any], Any]]


def thinks(*tools: str, intent: str = "diagnosis", reasoning: str = "find x") -> ModelReplied:
    """A thought that suggests these tools."""
    thought = {"intent": intent, "suggested_tools": list(tools), "reasoning": reasoning}
    return said(json.dumps(thought))


def asks(*calls: str, **arguments: Any) -> ModelReplied:
    """The model calls these tools, each with the same arguments."""
    text = json.dumps(arguments)
    made = tuple(ToolCall(id=str(n), name=name, arguments=text) for n, name in enumerate(calls))
    return ModelReplied(text="", tool_calls=made, finish_reason="tool_calls")


def observed(final_answer: str = "", *, summary: str = "so far", need_loop: bool = False) -> ModelReplied:
    """An observation."""
    return said(json.dumps({"summary": summary, "final_answer": final_answer, "need_loop": need_loop}))


def stages(**changed: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The shipped stages as an agent file declares them, some of their keys changed.

    A stage that is None is left out; one with another name is added.
    """
    declared: dict[str, dict[str, Any]] = {
        "think": {"flow_type": "think", "enters": "Thinking", "exits": ["Acting", "Observing"]},
        "act": {"flow_type": "act", "enters": "Acting", "exits": ["Observing"]},
        "observe": {"flow_type": "observe", "enters": "Observing", "exits": ["Finished", "Thinking"]},
    }
    for name, keys in changed.items():
        declared[name] = {**declared.get(name, {}), **(keys or {})}
    kept = {name: keys for name, keys in declared.items() if changed.get(name, keys) is not None}
    return [{"name": name, **keys} for name, keys in kept.items()]


def run(
    *answers: Reaction,
    declared: list[dict[str, Any]] | None = None,
    hooks: Hooks | None = None,
    changed: Mapping[str, Any] | None = None,
    goal: str = "find out",
    **options: Any,
) -> Play:
    """Run the machine over these answers, with these stages, hooks and knobs."""
    given = {**options, **({"stages": declared} if declared else {})}
    parts = Parts(hooks=dict(hooks or {}))
    return run_script(
        "staged", answers, options=given, tools=(TOOL,), parts=parts, changed=changed, goal=goal
    )


NOTHING = thinks(intent="general_inquiry")
TOOLS = thinks("tool")
MORE = observed(need_loop=True)
ANSWER = observed("42")

SCRIPTS = (
    Script("answers without a tool", (NOTHING, ANSWER)),
    Script("uses a tool", (TOOLS, asks("tool", q="x"), tool_said(), ANSWER)),
    Script("needs two passes", (TOOLS, asks("tool", q="x"), tool_said(), MORE, NOTHING, ANSWER)),
    Script("cannot think", (failed("fatal"),)),
    Script("loses a tool", (TOOLS, asks("tool", q="x"), tool_failed("unknown_outcome"))),
    Script("cannot observe", (NOTHING, failed("transient"))),
    Script("may not go on", (NOTHING, MORE), {"max_iterations": 1, "on_max_iterations": "fail"}),
    Script("is forced to answer", (TOOLS, MORE), {"max_iterations": 1}),
)

REPLIES = st.sampled_from(
    [
        NOTHING,
        TOOLS,
        thinks("tool", "nosuch"),
        thinks("nosuch"),
        thinks("nosuch", "tool", "other"),
        asks(*["tool"] * 60, q="x"),
        thinks("tool", intent="general_inquiry"),
        asks("tool", q="x"),
        asks("tool", "nosuch", "tool"),
        MORE,
        MORE,
        ANSWER,
        observed(),
        said("?"),
        said("{}"),
        said(""),
    ]
)
"""What a model may say in random runs."""
