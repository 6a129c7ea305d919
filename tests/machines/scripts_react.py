"""Scripts of the ReAct machine: together they take every row of its table."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.machines.answers import act, decided, failed, final, said, thought, tool_failed, tool_said
from tests.machines.script import Script

__all__ = ["REPLIES", "SCRIPTS"]

GUESS = thought("I guess it is 42")

SCRIPTS = (
    Script("answers at once", (final(),)),
    Script("asks a tool first", (act("tool", q="x"), tool_said(), final())),
    Script("is rejected once", (GUESS, final())),
    Script("survives failures", (failed("transient"), act("tool"), tool_failed("failed"), act("x"), final())),
    Script("cannot be reached", (failed("fatal"),)),
    Script("breaks a terminal rule", (thought("dear", cost=1),)),
    Script("loses a tool", (act("tool"), tool_failed("unknown_outcome"))),
    Script("loses its rules", (thought("a"),), {"rules": [{"type": "raises"}]}),
    Script("takes all its steps", (thought("a"),), {"max_steps": 1}),
    Script("is marked", (thought("a"),), changed={"terminated": True}),
    Script("spends too much", (act("tool"), tool_said(cost=2))),
    Script("is resumed", (*[GUESS] * 4, decided("resume"), final())),
    Script("is aborted", (*[GUESS] * 4, decided("abort"))),
    Script("finds nobody", (*[GUESS] * 4, decided("unavailable"))),
    Script("had too many retries", (thought("a"),), changed={"metadata": {"retry_count": 9}}),
)

REPLIES = st.sampled_from(
    [
        GUESS,
        final(),
        thought("a", cost=0.1),
        act("tool", q="x"),
        act("nosuch"),
        act("finish", answer="1"),
        said("?"),
        said("Thought: b\nAction: tool\nAction Input: {}", cost=0.01),
    ]
)
"""What a model may say in random runs."""
