"""Scripts of the simple machine: together they take every row of its table."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from activities.contracts import ModelReplied
from tests.machines.answers import failed, said, tool_failed, tool_said
from tests.machines.script import Script

__all__ = ["REPLIES", "SCRIPTS", "act", "finish"]


def act(action: Any, confidence: float | None = None, **params: Any) -> ModelReplied:
    """A decision."""
    sure = {} if confidence is None else {"confidence": confidence}
    return said(json.dumps({"action": action, "params": params, **sure}))


def finish(answer: Any = "42") -> ModelReplied:
    """The decision to end."""
    return act("finish", answer=answer)


SCRIPTS = (
    Script("finishes at once", (finish(),)),
    Script("acts first", (act("tool", q="x"), tool_said(), finish())),
    Script("is told that it is done", (act("tool"), tool_said('{"done": true, "sum": 3}'))),
    Script("converges", (act("tool"), tool_said()), {"converged": ["tool_called"]}),
    Script("is not sure", (act("tool", confidence=0.4),)),
    Script("takes all its steps", (act("tool"), tool_said()), {"max_iterations": 1}),
    Script("talks", (said("hello"),)),
    Script("cannot be reached", (failed("fatal"),)),
    Script("loses a tool", (act("tool"), tool_failed("unknown_outcome"))),
    Script("asks for what is not there", (act("nosuch"),)),
)

REPLIES = st.sampled_from(
    [
        act("tool", q="x"),
        act("tool"),
        act("tool", 0.5, **{":q ": 1}),
        finish(),
        finish({"a": [1]}),
        act(None),
        act("tool", 0.1),
        act("nosuch"),
        said("?"),
    ]
)
"""What a model may say in random runs."""
