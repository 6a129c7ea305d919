"""What options and contexts of several machines have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, Field

from activities.contracts import Strict

__all__ = ["ModelAttempts", "NamesMachine", "ToolAttempts", "reset_fields"]

ModelAttempts = Annotated[
    int, Field(ge=1, le=20, description="per model call, in all, for transient failures [6.1]")
]
ToolAttempts = Annotated[
    int, Field(ge=1, le=20, description="per tool call, in all; 1: none is repeated [1.5, 6.1]")
]


class NamesMachine(Strict):
    """Options that name another machine, which is run inside. They have a field `machine`, and perhaps
    `machine_version`, `options` and `roles`: what they say is checked before a run begins (`task.py`)."""


def reset_fields(kind: type[BaseModel], names: Iterable[str]) -> dict[str, Any]:
    """The patch that sets these fields of a context to their defaults: it forgets how a run ended that goes
    on after its end."""
    return {name: kind.model_fields[name].get_default(call_default_factory=True) for name in sorted(names)}
