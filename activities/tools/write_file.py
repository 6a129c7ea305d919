"""Tool `write_file`: make a file hold a text."""

from __future__ import annotations

from pydantic import BaseModel, Field

from activities.contracts import RelativePath
from activities.files import FilesRoot
from activities.tools import Tool, ToolCallContext


class Params(BaseModel, frozen=True, extra="forbid"):
    """Write a text file; its old content is replaced, missing folders are made."""

    path: RelativePath = Field(description="Relative to the working folder.")
    content: str = Field(max_length=1_000_000, description="The whole new text of the file.")


def run(params: Params, call: ToolCallContext) -> str:
    """What was written; raises `PathError`."""
    content = params.content.encode()
    FilesRoot.of(call.settings).write(params.path, content)
    return f"Wrote {len(content):,} bytes to {params.path}."


# The second time changes nothing: the file holds the same text.
TOOL = Tool(name="write_file", params=Params, run=run, effect="idempotent", brings=(), sends="internal")
