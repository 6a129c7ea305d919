"""A tool in one file: its arguments, its function, and the constant `TOOL`.

RATCHET_MODULES='["examples/tools/word_count.py"]' ratchet tools
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from ratchet import Tool


class Params(BaseModel, frozen=True, extra="forbid"):
    """Count the words of a text."""

    text: str = Field(max_length=100_000, description="The text to count.")


def run(params: Params) -> str:
    """The number of words."""
    return str(len(params.text.split()))


# `pure`: it changes nothing, so it may run again. `cache`: an equal call of the run is not made twice.
TOOL = Tool(name="word_count", params=Params, run=run, effect="pure", cache="run")
