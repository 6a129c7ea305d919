"""Scripts of the planner machine: together they take every row of its table."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from activities.contracts import ModelReplied, ToolCall
from tests.machines.answers import failed, said, tool_failed, tool_said
from tests.machines.script import Script

__all__ = ["ANSWER", "PLAN", "REPLIES", "SCRIPTS", "calls", "decision", "plan"]


def plan(goal: str | None = "know it", **more: Any) -> ModelReplied:
    """A plan."""
    return said(json.dumps({"goal": goal, **more}))


def decision(go_on: Any, reason: str = "because") -> ModelReplied:
    """What a model decides on the plan."""
    return said(json.dumps({"continue": go_on, "reason": reason}))


def calls(*wanted: tuple[str, str], text: str = "", ids: bool = True) -> ModelReplied:
    """A reply with native calls: names and arguments as text."""
    made = tuple(
        ToolCall(id=f"c{n}" if ids else "", name=name, arguments=arguments)
        for n, (name, arguments) in enumerate(wanted)
    )
    return ModelReplied(text=text, tool_calls=made, finish_reason="tool_calls")


PLAN = plan()
ANSWER = said("forty-two")
CALL = calls(("tool", '{"q": "x"}'))

SCRIPTS = (
    Script("answers at once", (PLAN, ANSWER)),
    Script("looks with a tool first", (PLAN, CALL, tool_said(), ANSWER)),
    Script("sums up", (PLAN, ANSWER, said("in short: 42")), {"finalize_summary": True}),
    Script("loses its plan", (said("no plan"),)),
    Script("decides to stop", (PLAN, decision(False)), {"decide": "model"}),
    Script("cannot decide", (PLAN, said("hm")), {"decide": "model"}),
    Script("decides to go on", (PLAN, decision(True), ANSWER), {"decide": "model"}),
    Script("cannot be reached", (PLAN, failed("transient"))),
    Script("loses a tool", (PLAN, CALL, tool_failed("unknown_outcome"))),
    Script("records failures", (PLAN, CALL, tool_failed("failed"), ANSWER), {"on_tool_error": "record"}),
    Script("converges", (PLAN, CALL, tool_said()), {"converged": ["tool_called"]}),
    Script("is stopped at the limit", (PLAN, CALL, tool_said()), {"max_iterations": 1}),
)

REPLIES = st.sampled_from(
    [
        PLAN,
        PLAN,
        plan(None),
        ANSWER,
        CALL,
        CALL,
        calls(("tool", ""), ("tool", "null"), ids=False),
        calls(("nosuch", "{}")),
        calls(("tool", "{oops")),
        said("{}"),
    ]
)
"""What a model may say in random runs."""
