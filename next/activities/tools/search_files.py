"""Tool `search_files`: lines that match a regular expression, shown or counted.

The expressions are RE2's: their time grows with the length of the text only. What RE2 leaves out for
that (back-references, look-around) is refused with a message. Still, a slow pattern needs seconds for a
megabyte, so the time is limited too, also within a line.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any, BinaryIO

from pydantic import BaseModel, Field

from activities.files import FilesRoot, PathError
from activities.tools import Tool, ToolCallContext

SECONDS = 20.0
"""A search that takes longer ends with what it found by then."""
MAX_VALUES = 100_000
"""The most values that are counted; memory is bounded."""
LINE_CHARS = 400
"""What is shown of a longer line, around the match."""
WINDOW_BYTES = 2**17
"""A line is searched in pieces of this size; the clock is read after each."""
REACH_BYTES = 2**16
"""The longest match in a line that is longer than a window."""


class Params(BaseModel, frozen=True, extra="forbid"):
    r"""Search text files for lines that match a regular expression (RE2 syntax, no look-around).

    Shows `path:line: text`. Hidden files and folders are left out unless `path` names one.
    With `count_by` it shows instead how often each value of the pattern's first group occurs, most
    frequent first, each with its first and last line: for example the pattern `ERROR (\w+)` with
    `count_by` tells which component failed most, and since when.
    """

    pattern: str = Field(min_length=1, max_length=1000)
    path: str = Field(default=".", description="A file or folder, relative to the working folder.")
    glob: str = Field(default="*", description="Only files whose names or paths match, such as `*.log`.")
    ignore_case: bool = False
    limit: int = Field(default=50, ge=1, le=1000, description="Lines, or values, shown at most.")
    context: int = Field(default=0, ge=0, le=20, description="Lines shown before and after.")
    count_by: bool = Field(default=False, description="Count by the first group of the pattern.")


@dataclass(slots=True)
class Line:
    """One line of a file, with the match in it if there is one."""

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
        before = "..." if start else ""
        after = "..." if start + LINE_CHARS < len(line) else ""
        return f"{self.path}{mark}{self.number}{mark} {before}{text}{after}"


@dataclass(slots=True)
class Search:
    """One search: what it looks for, and what it has found so far."""

    root: FilesRoot
    params: Params
    pattern: Any
    cancelled: Callable[[], bool]
    deadline: float
    unchecked_bytes: int = 0
    """Read since the clock was read."""
    searched: int = 0
    skipped: int = 0
    matches: int = 0
    files_with_matches: set[str] = field(default_factory=set)
    stopped: bool = False

    def lines(self) -> Iterator[Line]:
        """Every line of every file that is searched, in order."""
        for path, is_named in self._paths():
            try:
                with self.root.open(path) as file:
                    yield from self._lines_of(path, file)
                self.searched += 1
            except PathError:
                if is_named:
                    raise
                self.skipped += 1
            if self.stopped:
                return

    def _paths(self) -> Iterator[tuple[str, bool]]:
        """Files to search; True for the one that `path` names: its errors are reported."""
        parts = self.root.parts(self.params.path)
        if self.root.root.joinpath(*parts).is_file():
            yield "/".join(parts), True
            return
        for entry in self.root.walk(self.params.path):
            if self._must_stop():
                return
            name = entry.path.rpartition("/")[2]
            glob = self.params.glob
            if entry.kind == "file" and (fnmatch(name, glob) or fnmatch(entry.path, glob)):
                yield entry.path, False

    def _lines_of(self, path: str, file: BinaryIO) -> Iterator[Line]:
        if b"\0" in file.read(8192):
            raise PathError(f"{path!r} is not a text file")
        file.seek(0)
        for number, raw in enumerate(file, 1):
            # Bytes are searched twice as fast as text; so most lines are never decoded.
            line = raw.rstrip(b"\r\n")
            if not line.isascii():
                line = line.decode(errors="replace").encode()
            self.unchecked_bytes += len(line) + 100
            if self.unchecked_bytes > WINDOW_BYTES and self._must_stop():
                return
            match = self.pattern.search(line) if len(line) <= WINDOW_BYTES else self._first_match(line)
            if match:
                self.matches += 1
                self.files_with_matches.add(path)
            yield Line(path, number, line, match)

    def _first_match(self, line: bytes) -> Any:
        """The first match in a long line; None, too, when the time is over."""
        for at in range(0, len(line), WINDOW_BYTES):
            edge = at + WINDOW_BYTES
            match = self.pattern.search(line, at, edge + REACH_BYTES)
            if match and (match.start() < edge or edge >= len(line)):
                return match
            if self._must_stop():
                break
        return None

    def _must_stop(self) -> bool:
        self.unchecked_bytes = 0
        self.stopped = self.cancelled() or time.monotonic() > self.deadline
        return self.stopped

    def summary(self) -> str:
        """`12 lines match in 2 files`."""
        files = len(self.files_with_matches)
        lines = "line matches" if self.matches == 1 else "lines match"
        return f"{self.matches} {lines} in {files} {'file' if files == 1 else 'files'}"

    def notes(self) -> list[str]:
        """What the reader must know about what was left out."""
        notes = []
        if self.skipped:
            notes.append(f"[{self.skipped} files skipped: not text, too large or not readable]")
        if self.stopped:
            notes.append(f"[stopped after {SECONDS:g} s; narrow path or glob to search the rest]")
        return notes


def run(params: Params, call: ToolCallContext) -> str:
    """The matching lines, or the counts; raises `PathError`, and `ValueError` for the pattern."""
    from activities.material import compiled

    pattern = compiled(params.pattern, ignore_case=params.ignore_case)
    if params.count_by and pattern.groups == 0:
        raise ValueError(
            f"count_by counts by the first group, and {params.pattern[:200]!r} has none; "
            "put parentheses around the part to count by"
        )
    root = FilesRoot.of(call.settings)
    search = Search(root, params, pattern, call.cancelled, time.monotonic() + SECONDS)
    report = counts(search) if params.count_by else matching_lines(search)
    if not search.matches:
        report = [f"No line matches {params.pattern!r} in {search.searched} files."]
    return "\n".join([*report, *search.notes()])


def matching_lines(search: Search) -> list[str]:
    """The lines that match, with those around them, each once."""
    params = search.params
    before: deque[Line] = deque(maxlen=params.context)
    shown: list[str] = []
    hits = after = 0
    for line in search.lines():
        if line.number == 1:
            before.clear()
            after = 0
        if line.match and hits < params.limit:
            shown += [*(earlier.shown("-") for earlier in before), line.shown()]
            before.clear()
            hits, after = hits + 1, params.context
        elif after:
            shown.append(line.shown("-"))
            after -= 1
        else:
            before.append(line)
    return [*shown, f"[{search.summary()}; {hits} shown]"]


@dataclass(slots=True)
class Count:
    """How often a value occurs, with its first and its last line."""

    first: str
    last: str
    times: int = 1


def counts(search: Search) -> list[str]:
    """The values of the first group, most frequent first."""
    found: dict[str, Count] = {}
    for line in search.lines():
        if not line.match:
            continue
        value = (line.match.group(1) or b"").decode(errors="replace")[:200]
        count = found.get(value)
        if count is not None:
            count.times, count.last = count.times + 1, line.shown()
        elif len(found) < MAX_VALUES:
            found[value] = Count(line.shown(), line.shown())
    ranked = sorted(found.items(), key=lambda item: -item[1].times)
    report = [f"{search.summary()}; {len(found)} different values, most frequent first:"]
    for value, count in ranked[: search.params.limit]:
        report += [f"{count.times}\t{value}", f"\tfirst {count.first}", f"\tlast  {count.last}"]
    if len(ranked) > search.params.limit:
        report.append(f"[{len(ranked) - search.params.limit} more values not shown]")
    return report


TOOL = Tool(name="search_files", params=Params, run=run, effect="read")
