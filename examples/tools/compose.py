"""A tool that makes an artifact of a text, so that a model can write what fills a slot.

RATCHET_MODULES='["examples/tools/compose.py"]' ratchet tools
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from ratchet import Tool


class Params(BaseModel, frozen=True, extra="forbid"):
    """Keep a text that you have written, such as a summary, as an artifact."""

    text: str = Field(min_length=1, max_length=100_000, description="The finished text.")


def run(params: Params) -> str:
    """The text."""
    return params.text


TOOL = Tool(name="compose", params=Params, run=run, effect="pure")
