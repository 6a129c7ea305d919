"""The benchmark's tools: they return as much as they are asked to."""

from __future__ import annotations

from pydantic import BaseModel

from ratchet import Tool


class Wanted(BaseModel, frozen=True, extra="forbid"):
    """Return a text."""

    size: int
    """In characters."""


def text(params: Wanted) -> str:
    """So many characters."""
    return "x" * params.size


TOOLS = [
    Tool(name="text", params=Wanted, run=text, effect="read"),
    Tool(name="text_once", params=Wanted, run=text, effect="unsafe"),
]
