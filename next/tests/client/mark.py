"""A tool for tests of the command line: it writes a line into `marks.txt`, and a person must approve it."""

from __future__ import annotations

from pydantic import BaseModel, Field

from activities.tools import Tool, ToolCallContext

__all__ = ["TOOL"]


class Params(BaseModel, frozen=True, extra="forbid"):
    """Write a line."""

    line: str = Field(description="What to write.")
    times: int = Field(default=1, ge=1, le=9, description="How often.")


def run(params: Params, call: ToolCallContext) -> str:
    """Append it."""
    with (call.files_root / "marks.txt").open("a") as file:
        file.write(f"{params.line}\n" * params.times)
    return f"wrote {params.line}"


TOOL = Tool(name="mark", params=Params, run=run, effect="unsafe")
