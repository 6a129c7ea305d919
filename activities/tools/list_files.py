"""Tool `list_files`: names and sizes of files below the root."""

from __future__ import annotations

from itertools import islice

from pydantic import BaseModel, Field

from activities.contracts import RelativePath
from activities.files import FilesRoot
from activities.tools import Tool, ToolCallContext

MAX_SEEN_ENTRIES = 100_000
"""Entries looked at in one call."""
MARKS = {"folder": "/", "link": "\tlink", "other": "\tnot a regular file"}


class Params(BaseModel, frozen=True, extra="forbid"):
    """List files and folders with their sizes in bytes; folders end in `/`."""

    path: RelativePath = Field(default=".", description="A folder, relative to the working folder.")
    glob: str = Field(default="*", description="Only names or paths that match, such as `*.log`.")
    recursive: bool = Field(default=False, description="Also the folders below, without hidden names.")
    limit: int = Field(default=200, ge=1, le=2000, description="How many entries to show at most.")


def run(params: Params, call: ToolCallContext) -> str:
    """One line for each entry; raises `PathError`."""
    root = FilesRoot.of(call.settings)
    entries = root.walk(params.path) if params.recursive else iter(root.entries(params.path))
    matching = [entry for entry in islice(entries, MAX_SEEN_ENTRIES) if entry.matches(params.glob)]
    lines = [
        entry.path + MARKS.get(entry.kind, f"\t{entry.size} bytes") for entry in matching[: params.limit]
    ]
    if len(matching) > params.limit:
        lines.append(f"[{len(matching) - params.limit:,} more; use glob or a deeper path]")
    return "\n".join(lines) or f"Nothing in {params.path!r} matches {params.glob!r}."


TOOL = Tool(
    name="list_files",
    params=Params,
    run=run,
    effect="read",
    brings=("untrusted", "private"),
    sends="nowhere",
)
