"""Tool `search_files`: lines that match a regular expression, shown or counted.

The expressions are RE2's: their time grows with the length of the text only, so no pattern can hang
a worker. What RE2 leaves out for that (back-references, look-around) is refused with a message.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any, BinaryIO

import re2  # type: ignore[import-untyped]  # google-re2 ships no types
from pydantic import BaseModel, Field

from activities.files import FilesRoot, PathError
from activities.toolbox import Tool, ToolCallContext

SECONDS = 40.0
"""A search that takes longer says what it found by then."""
MAX_VALUES = 100_000
"""Different values that are counted; memory is bounded."""
LINE_CHARACTERS = 400
"""What is shown of a longer line, around the match."""
PATTERN_MEMORY = 16 * 1024 * 1024


class Params(BaseModel, frozen=True, extra="forbid"):
    r"""Search text files for lines that match a regular expression (RE2 syntax, no look-around).

    Shows `path:line: text`. Hidden files and folders are passed over unless `path` names one.
    With `count_by` it shows instead how often each value of the pattern's first group occurs, most
    frequent first, each with its first and last line: for example the pattern `ERROR (\w+)` with
    `count_by` tells which component failed most, and since when.
    """

    pattern: str = Field(min_length=1, max_length=1000)
    path: str = Field(default=".", description="A file or folder, relative to the working folder.")
    glob: str = Field(default="*", description="Only files with names or paths like this: `*.log`.")
    ignore_case: bool = False
    limit: int = Field(default=50, ge=1, le=1000, description="Lines, or values, shown at most.")
    context: int = Field(default=0, ge=0, le=20, description="Lines shown before and after.")
    count_by: bool = Field(default=False, description="Count by the first group of the pattern.")


@dataclass(slots=True)
class _Line:
    """One line of a file, with the match in it if there is one."""

    path: str
    number: int
    raw: bytes
    """Without its end; always UTF-8."""
    match: Any

    def shown(self, mark: str = ":") -> str:
        """`path:line: text`, cut around the match."""
        line = self.raw.decode()
        start = 0
        if self.match and len(line) > LINE_CHARACTERS:
            start = max(len(self.raw[: self.match.start()].decode(errors="ignore")) - 100, 0)
        text = line[start : start + LINE_CHARACTERS]
        before = "..." if start else ""
        after = "..." if start + LINE_CHARACTERS < len(line) else ""
        return f"{self.path}{mark}{self.number}{mark} {before}{text}{after}"


@dataclass(slots=True)
class _Search:
    """One search as it goes on: what it looks for, and how far it came."""

    root: FilesRoot
    params: Params
    call: ToolCallContext
    pattern: Any
    deadline: float
    searched: int = 0
    skipped: int = 0
    matches: int = 0
    files_with_matches: set[str] = field(default_factory=set)
    stopped: bool = False

    def lines(self) -> Iterator[_Line]:
        """Every line of every file that is searched, in order."""
        for path, chosen in self._paths():
            try:
                with self.root.open(path) as file:
                    yield from self._lines_of(path, file)
                self.searched += 1
            except PathError:
                if chosen:
                    raise
                self.skipped += 1
            if self.stopped:
                return

    def _paths(self) -> Iterator[tuple[str, bool]]:
        """Files to search; True for one that was named, whose faults must be told."""
        parts = self.root.parts(self.params.path)
        if self.root.root.joinpath(*parts).is_file():
            yield "/".join(parts), True
            return
        for entry in self.root.walk(self.params.path):
            if self._must_stop():
                return
            name = entry.path.rpartition("/")[2]
            if entry.kind == "file" and (
                fnmatch(name, self.params.glob) or fnmatch(entry.path, self.params.glob)
            ):
                yield entry.path, False

    def _lines_of(self, path: str, file: BinaryIO) -> Iterator[_Line]:
        if b"\0" in file.read(8192):
            raise PathError(f"{path!r} is no text file")
        file.seek(0)
        for number, raw in enumerate(file, 1):
            if number % 1000 == 1 and self._must_stop():
                return
            # Bytes are searched twice as fast as text; so most lines are never decoded.
            line = raw.rstrip(b"\r\n")
            if not line.isascii():
                line = line.decode(errors="replace").encode()
            match = self.pattern.search(line)
            if match:
                self.matches += 1
                self.files_with_matches.add(path)
            yield _Line(path, number, line, match)

    def _must_stop(self) -> bool:
        self.stopped = self.call.cancelled() or time.monotonic() > self.deadline
        return self.stopped

    def found(self) -> str:
        """`12 lines match in 2 files`."""
        files = len(self.files_with_matches)
        return (
            f"{self.matches} {'line matches' if self.matches == 1 else 'lines match'} "
            f"in {files} {'file' if files == 1 else 'files'}"
        )

    def notes(self) -> list[str]:
        """What the reader must know about what was left out."""
        notes = []
        if self.skipped:
            notes.append(f"[{self.skipped} files skipped: no text, too large or not readable]")
        if self.stopped:
            notes.append(f"[stopped after {SECONDS:g} s; narrow path or glob to search the rest]")
        return notes


def run(params: Params, call: ToolCallContext) -> str:
    """The matching lines, or the counts; raises `PathError` and `ValueError` for the pattern."""
    deadline = time.monotonic() + SECONDS
    search = _Search(FilesRoot.of(call.settings), params, call, _compiled(params), deadline)
    report = _counted(search) if params.count_by else _listed(search)
    if not search.matches:
        report = [f"No line matches {params.pattern!r} in {search.searched} files."]
    return "\n".join([*report, *search.notes()])


def _compiled(params: Params) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_MEMORY
    options.case_sensitive = not params.ignore_case
    try:
        pattern = re2.compile(params.pattern, options)
    except re2.error as error:
        cause = error.args[0] if error.args else error
        words = cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
        raise ValueError(
            f"the pattern {params.pattern[:200]!r} cannot be used: {words} "
            "(RE2 syntax: no look-around, no back-references, repetitions up to 1000)"
        ) from None
    if params.count_by and pattern.groups == 0:
        raise ValueError(
            f"count_by counts by the first group, and {params.pattern[:200]!r} has none; "
            "put parentheses around the part to count by"
        )
    return pattern


def _listed(search: _Search) -> list[str]:
    params = search.params
    before: deque[_Line] = deque(maxlen=params.context or None)
    shown: list[str] = []
    hits = after = 0
    for line in search.lines():
        if line.number == 1:
            before.clear()
            after = 0
        if line.match and hits < params.limit:
            shown += [earlier.shown("-") for earlier in before] if params.context else []
            shown.append(line.shown())
            before.clear()
            hits, after = hits + 1, params.context
        elif after:
            shown.append(line.shown("-"))
            after -= 1
        elif params.context:
            before.append(line)
    return [*shown, f"[{search.found()}; {hits} shown]"]


@dataclass(slots=True)
class _Count:
    first: str
    last: str
    times: int = 1


def _counted(search: _Search) -> list[str]:
    counts: dict[str, _Count] = {}
    for line in search.lines():
        if not line.match:
            continue
        value = (line.match.group(1) or b"").decode(errors="replace")[:200]
        count = counts.get(value)
        if count is not None:
            count.times, count.last = count.times + 1, line.shown()
        elif len(counts) < MAX_VALUES:
            counts[value] = _Count(line.shown(), line.shown())
    ranked = sorted(counts.items(), key=lambda item: -item[1].times)
    report = [f"{search.found()}; {len(counts)} different values, most frequent first:"]
    for value, count in ranked[: search.params.limit]:
        report += [f"{count.times}\t{value}", f"\tfirst {count.first}", f"\tlast  {count.last}"]
    if len(ranked) > search.params.limit:
        report.append(f"[{len(ranked) - search.params.limit} more values not shown]")
    return report


TOOL = Tool(name="search_files", params=Params, run=run, effect="read")
