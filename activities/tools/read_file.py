"""Tool `read_file`: a text file, page by page."""

from __future__ import annotations

from typing import BinaryIO

from pydantic import BaseModel, Field

from activities.contracts import RelativePath
from activities.files import FilesRoot, PathError
from activities.tools import Tool, ToolCallContext

HEADER_CHARACTERS = 400
"""Room for the line above the page."""


class Params(BaseModel, frozen=True, extra="forbid"):
    """Read lines of a text file, with their numbers; long files page by page."""

    path: RelativePath = Field(description="Relative to the working folder.")
    offset: int = Field(default=1, ge=1, description="Number of the first line to show.")
    limit: int = Field(default=200, ge=1, le=5000, description="How many lines to show at most.")


def run(params: Params, call: ToolCallContext) -> str:
    """A header that says which lines of how many, then the lines; raises `PathError`."""
    room = max(call.settings.output_cap - HEADER_CHARACTERS, HEADER_CHARACTERS)
    with FilesRoot.of(call.settings).open(params.path) as file:
        page, total = _page(file, params, room)
    if not page:
        return f"{params.path}: no line {params.offset}; the file has {total:,} lines."
    last = params.offset + len(page) - 1
    rest = f"; go on with offset {last + 1}" if last < total else ""
    lines = (f"{number}\t{line}" for number, line in enumerate(page, params.offset))
    return "\n".join((f"{params.path}: lines {params.offset}-{last} of {total}{rest}", *lines))


def _page(file: BinaryIO, params: Params, room: int) -> tuple[list[str], int]:
    """The lines that fit into `room` characters, and the number of lines in the file."""
    page: list[str] = []
    number = 0
    full = False
    for number, raw in enumerate(file, 1):
        if b"\0" in raw:
            raise PathError(f"{params.path!r} is not a text file (line {number} holds zero bytes)")
        if number < params.offset or full or len(page) >= params.limit:
            continue
        line = _line(raw, room)
        room -= len(line) + len(str(number)) + 2
        # The first line is always shown, so that paging always goes on.
        full = room < 0 and bool(page)
        if not full:
            page.append(line)
    return page, number


def _line(raw: bytes, room: int) -> str:
    line = raw.rstrip(b"\r\n").decode(errors="replace")
    cut = max(room, HEADER_CHARACTERS)
    return line if len(line) <= cut else f"{line[:cut]} [{len(line) - cut:,} characters left out]"


TOOL = Tool(
    name="read_file",
    params=Params,
    run=run,
    effect="read",
    brings=("untrusted", "private"),
    sends="nowhere",
)
