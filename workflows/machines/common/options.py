"""What options of several machines have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from activities.contracts import Strict

__all__ = ["ModelAttempts", "NamesMachine", "ToolAttempts"]

ModelAttempts = Annotated[
    int, Field(ge=1, le=20, description="per model call, in all, for transient failures [6.1]")
]
ToolAttempts = Annotated[
    int, Field(ge=1, le=20, description="per tool call, in all; 1: none is repeated [1.5, 6.1]")
]


class NamesMachine(Strict):
    """Options that name another machine, which is run inside. They have a field `machine`, and perhaps
    `machine_version`, `options` and `roles`: what they say is checked before a run begins (`task.py`)."""
