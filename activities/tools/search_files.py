"""Tool `search_files`: lines that match a regular expression, shown or counted.

The expressions are RE2's: their time grows with the length of the text only. What RE2 leaves out for
that (back-references, look-around) is refused with a message. Still, a slow pattern needs seconds for a
megabyte, so the time is limited too, and long lines are searched in pieces.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel, Field

from activities.contracts import RelativePath, compiled
from activities.files import FilesRoot, PathError
from activities.tools import Tool, ToolCallContext

SEARCH_SECONDS = 20.0
"""A search that takes longer ends with what it found by then."""
MAX_VALUES = 100_000
"""The most values that are counted; memory is bounded."""
LINE_CHARS = 400
"""What is shown of a longer line, around the match."""
PIECE_BYTES = 2**17
"""A longer line is searched, shown and counted in pieces of this size."""


class Params(BaseModel, frozen=True, extra="forbid"):
    r"""Search text files for lines that match a regular expression (RE2 syntax, no look-around).

    Shows `path:line: text`. Hidden files and folders are left out unless `path` names one. A line of
    more than 128 KiB is searched in pieces: a match across their border is not found.
    With `count_by` it shows instead how often each value of the pattern's first group occurs, most
    frequent first, each with its first and last line: for example the pattern `ERROR (\w+)` with
    `count_by` tells which component failed most, and since when.
    """

    pattern: str = Field(min_length=1, max_length=1000)
    path: RelativePath = Field(default=".", description="A file or folder, relative to the working folder.")
    glob: str = Field(default="*", description="Only files whose names or paths match, such as `*.log`.")
    ignore_case: bool = False
    limit: int = Field(default=50, ge=1, le=1000, description="Lines, or values, shown at most.")
    context: int = Field(default=0, ge=0, le=20, description="Lines shown before and after.")
    count_by: bool = Field(default=False, description="Count by the first group of the pattern.")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file, or a piece of a long one, with the match in it if there is one."""

    path: str
    number: int
    raw: bytes
    """Without its end; always UTF-8."""
    match: Any

    def shown(self, mark: str = ":") -> str:
        """`path:line: text`, cut around the match."""
        line, start = self.raw.decode(), 0
        if self.match and len(line) > LINE_CHARS:
            start = max(len(self.raw[: self.match.start()].decode(errors="ignore")) - 100, 0)
        text = line[start : start + LINE_CHARS]
        before, after = "..." if start else "", "..." if start + LINE_CHARS < len(line) else ""
        return f"{self.path}{mark}{self.number}{mark} {before}{text}{after}"


class Search:
    """One search, and how far it came. `must_stop` is asked now and then."""

    def __init__(self, root: FilesRoot, params: Params, pattern: Any, must_stop: Callable[[], bool]) -> None:
        self.root, self.params, self.pattern, self.must_stop = root, params, pattern, must_stop
        self.searched = self.skipped = self.matches = 0
        self.files_with_matches: set[str] = set()
        self.stopped = False

    def lines(self) -> Iterator[Line]:
        """Every line of every file that is searched, in order."""
        named = "/".join(self.root.parts(self.params.path))
        if (self.root.root / named).is_file():
            yield from self._lines_of(named)
            return
        for entry in self.root.walk(self.params.path):
            self.stopped = self.stopped or self.must_stop()
            if self.stopped:
                return
            if entry.kind == "file" and entry.matches(self.params.glob):
                try:
                    yield from self._lines_of(entry.path)
                except PathError:
                    self.skipped += 1

    def _lines_of(self, path: str) -> Iterator[Line]:
        with self.root.open(path) as file:
            if b"\0" in file.read(8192):
                raise PathError(f"{path!r} is not a text file")
            file.seek(0)
            number, unchecked = 1, 0
            for raw in iter(partial(file.readline, PIECE_BYTES), b""):
                # Bytes are searched twice as fast as text; so most lines are never decoded.
                line = raw.rstrip(b"\r\n")
                if not line.isascii():
                    line = line.decode(errors="replace").encode()
                unchecked += len(line) + 100
                if unchecked > PIECE_BYTES:
                    unchecked, self.stopped = 0, self.must_stop()
                if self.stopped:
                    return
                match = self.pattern.search(line)
                if match:
                    self.matches += 1
                    self.files_with_matches.add(path)
                yield Line(path, number, line, match)
                number += raw.endswith(b"\n")
        self.searched += 1

    def summary(self) -> str:
        """`12 lines match in 2 files`."""
        files = len(self.files_with_matches)
        lines = "line matches" if self.matches == 1 else "lines match"
        return f"{self.matches} {lines} in {files} {'file' if files == 1 else 'files'}"


def run(params: Params, call: ToolCallContext) -> str:
    """The matching lines, or the counts; raises `PathError`, and `ValueError` for the pattern."""
    pattern = compiled(params.pattern, ignore_case=params.ignore_case)
    if params.count_by and pattern.groups == 0:
        raise ValueError(
            f"count_by counts by the first group, and {params.pattern[:200]!r} has none; "
            "put parentheses around the part to count by"
        )
    deadline = time.monotonic() + SEARCH_SECONDS
    search = Search(
        FilesRoot.of(call.settings), params, pattern, lambda: call.cancelled() or time.monotonic() > deadline
    )
    report = counts(search) if params.count_by else matching_lines(search)
    if not search.matches:
        report = [f"No line matches {params.pattern!r} in {search.searched} files."]
    if search.skipped:
        report.append(f"[{search.skipped} files skipped: not text, too large or not readable]")
    if search.stopped:
        report.append(f"[stopped after {SEARCH_SECONDS:g} s; narrow path or glob to search the rest]")
    return "\n".join(report)


def matching_lines(search: Search) -> list[str]:
    """The lines that match, with those around them, each once."""
    before: deque[Line] = deque(maxlen=search.params.context)
    shown: list[str] = []
    hits = after = 0
    for line in search.lines():
        if line.number == 1:
            before.clear()
            after = 0
        if line.match and hits < search.params.limit:
            shown += [*(earlier.shown("-") for earlier in before), line.shown()]
            before.clear()
            hits, after = hits + 1, search.params.context
        elif after:
            shown.append(line.shown("-"))
            after -= 1
        else:
            before.append(line)
    return [*shown, f"[{search.summary()}; {hits} shown]"]


def counts(search: Search) -> list[str]:
    """The values of the first group, most frequent first, each with its first and its last line."""
    found: dict[str, tuple[int, str, str]] = {}
    for line in search.lines():
        if not line.match:
            continue
        value = (line.match.group(1) or b"").decode(errors="replace")[:200]
        times, first, _ = found.get(value, (0, line.shown(), ""))
        if times or len(found) < MAX_VALUES:
            found[value] = (times + 1, first, line.shown())
    ranked = sorted(found.items(), key=lambda item: -item[1][0])
    report = [f"{search.summary()}; {len(found)} different values, most frequent first:"]
    for value, (times, first, last) in ranked[: search.params.limit]:
        report += [f"{times}\t{value}", f"\tfirst {first}", f"\tlast  {last}"]
    if len(ranked) > search.params.limit:
        report.append(f"[{len(ranked) - search.params.limit} more values not shown]")
    return report


TOOL = Tool(
    name="search_files",
    params=Params,
    run=run,
    effect="read",
    brings=("untrusted", "private"),
    sends="nowhere",
)
