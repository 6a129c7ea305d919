"""Two options of all machines: how often a call is made that fails in a way that goes away by itself."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

__all__ = ["ModelAttempts", "ToolAttempts"]

ModelAttempts = Annotated[
    int, Field(ge=1, le=20, description="per model call, in all, for transient failures [6.1]")
]
ToolAttempts = Annotated[
    int, Field(ge=1, le=20, description="per tool call, in all; 1: none is repeated [1.5, 6.1]")
]
