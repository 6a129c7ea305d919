"""Runs without Temporal: what a user's test of an own agent looks like, and the rules of spec 1.8."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field

from activities.tools import Tool
from client.local import Local, ScriptedModel, every, tool_call
from tests.people import clerk
from workflows.api import AgentSpec, Limits


class Words(BaseModel, frozen=True, extra="forbid"):
    """Look at something."""

    x: str = Field(max_length=20)


LOOK = Tool(name="look", params=Words, run=lambda p: f"saw {p.x}", effect="read")


def test_user_tests_agent_in_ten_lines() -> None:
    model = ScriptedModel(["tools look a", "answer done"])
    outcome = Local(clerk.MACHINE, model=model, tools=[LOOK]).run_sync("begin")
    outcome.raise_if_failed()
    assert (outcome.ok, outcome.answer, outcome.state) == (True, "done", "done")
    assert outcome.tool_calls == (("look", {"x": "a"}),)
    assert model.asked[1].text == "ok saw a"
    assert model.unused == 0
