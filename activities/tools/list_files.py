"""Tool `list_files`: names and sizes of files below the root."""

from __future__ import annotations

from itertools import islice

from pydantic import BaseModel, Field

from activities.files import Entry, FilesRoot
from activities.tools import Tool, ToolCallContext

MAX_SEEN = 100_000
"""Entries looked at in one call."""


class Params(BaseModel, frozen=True, extra="forbid"):
    """List files and folders with their sizes in bytes; folders end in `/`."""

    path: str = Field(default=".", description="A folder, relative to the working folder.")
    glob: str = Field(default="*", description="Only names or paths that match, such as `*.log`.")
    recursive: bool = Field(default=False, description="Also the folders below, without hidden names.")
    limit: int = Field(default=200, ge=1, le=2000, description="How many entries to show at most.")


def run(params: Params, call: ToolCallContext) -> str:
    """One line for each entry; raises `PathError`."""
    root = FilesRoot.of(call.settings)
    entries = root.walk(params.path) if params.recursive else iter(root.entries(params.path))
    matching = [entry for entry in islice(entries, MAX_SEEN) if entry.matches(params.glob)]
    lines = [_line(entry) for entry in matching[: params.limit]]
    if len(matching) > params.limit:
        lines.append(f"[{len(matching) - params.limit:,} more; use glob or a deeper path]")
    return "\n".join(lines) or f"Nothing in {params.path!r} matches {params.glob!r}."


def _line(entry: Entry) -> str:
    match entry.kind:
        case "file":
            return f"{entry.path}\t{entry.size} bytes"
        case "folder":
            return f"{entry.path}/"
        case "link":
            return f"{entry.path}\tlink"
        case "other":
            return f"{entry.path}\tnot a regular file"


TOOL = Tool(name="list_files", params=Params, run=run, effect="read")
