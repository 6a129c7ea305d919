"""Plain output of commands: notes, JSON and tables.

Blocks and live views are drawn by rich (`render.py`), which takes a while to import; lists do without it. In
a pipe, tables have no trailing blanks, and no line is cut.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from activities.contracts.characters import visible
from client.runs.words import plain

__all__ = [
    "columns", "note", "print_json", "print_lines", "print_pairs", "print_table", "print_text", "styled",
    "wide", "wrapped",
]  # fmt: skip

PIPE_COLUMNS = 10_000
"""Columns of a pipe or a file."""
STYLES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "blue": "34"}
Cell = tuple[str, str]
"""A text and its style; empty: none."""


def columns(stream: TextIO) -> int:
    """How wide the terminal of a stream is."""
    if not stream.isatty():
        return PIPE_COLUMNS
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdecimal() else os.get_terminal_size(stream.fileno()).columns or 80


def styled(text: str, style: str, stream: TextIO) -> str:
    """The text in a style, where the stream is a terminal that has some."""
    if not (text and style) or not stream.isatty() or os.environ.get("TERM", "") in ("dumb", "unknown"):
        return text
    has_colour = "NO_COLOR" not in os.environ or style in ("dim", "bold")
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if has_colour else text


def note(text: str) -> None:
    """Print a line on standard error, without what could steer the terminal; no word is broken."""
    sys.stderr.write(wrapped(text, columns(sys.stderr)) + "\n")
    sys.stderr.flush()


def print_text(text: str = "") -> None:
    """Print lines on standard output as `note` does on standard error."""
    sys.stdout.write(wrapped(text, columns(sys.stdout)) + "\n")
    sys.stdout.flush()


def escaped(text: str) -> str:
    """JSON text of the same meaning, without characters that steer a terminal or show nothing."""
    return visible(text, lambda hidden: json.dumps(hidden)[1:-1], kept="\n")


def print_json(value: Any, *, indent: int | None = 2, stream: TextIO | None = None) -> None:
    """Print JSON, by default on standard output; models and what is made of them may be in it."""
    from pydantic_core import to_json

    stream = stream or sys.stdout
    stream.write(escaped(to_json(value, indent=indent, inf_nan_mode="null").decode()) + "\n")
    stream.flush()


def print_lines(values: Iterable[Any]) -> None:
    """Print a list as JSON, one value on each line."""
    for value in values:
        print_json(value, indent=None)


# -- columns --------------------


def print_table(names: Sequence[str], rows: Iterable[Sequence[Cell]], *, right: bool = False) -> None:
    """Print rows below the names of their columns. The last column is cut at the terminal's edge; with
    `right` all columns but the first are numbers."""
    every = [[(name, "dim") for name in names], *rows]
    widths = [max(wide(row[number][0]) for row in every) for number in range(len(names))]
    room = max(columns(sys.stdout) - sum(widths[:-1]) - 2 * len(widths), 20)
    widths[-1] = min(widths[-1], room)
    for row in every:
        cells = [(_cut(text, width), style, width) for (text, style), width in zip(row, widths, strict=True)]
        line = "  ".join(
            _filled(text, style, width, right and number > 0)
            for number, (text, style, width) in enumerate(cells)
        )
        sys.stdout.write(line.rstrip() + "\n")
    sys.stdout.flush()


def print_pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Print names with texts beside them, which may have several lines."""
    shown = [(plain(name), text) for name, text in rows]
    width = max((wide(name) for name, _ in shown), default=0)
    for name, text in shown:
        beside = wrapped(text, columns(sys.stdout), width + 2)[width + 2 :]
        row = f"{_filled(name, 'bold', width, right=False)}  {beside}"
        sys.stdout.write(re.sub(r" +$", "", row, flags=re.MULTILINE) + "\n")
    sys.stdout.flush()


def _filled(text: str, style: str, width: int, right: bool) -> str:
    blanks = " " * (width - wide(text))
    shown = styled(text, style, sys.stdout)
    return blanks + shown if right else shown + blanks


def _cut(text: str, width: int) -> str:
    if wide(text) <= width:
        return text
    kept = text[: width - 1]
    while wide(kept) > width - 1:
        kept = kept[:-1]
    return f"{kept}…"


def wide(text: str) -> int:
    """Columns that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


# -- wrapping --------------------


def wrapped(text: str, width: int, indent: int = 0, mark: str = "", lines: int | None = None) -> str:
    """The text after a mark, wrapped so that its lines align.

    Lines are broken between words only: ids and links stay whole. Of more than `lines` the first are kept.
    """
    margin = " " * (indent + wide(mark))
    room = max(width - len(margin), 20)
    rows: list[str] = []
    whole = plain(text).strip("\n").rstrip().splitlines()
    for number, line in enumerate(whole):
        if lines is not None and len(rows) > lines:
            rows += whole[number:]  # they are only counted
            break
        rows += _rows(line.expandtabs(4), room)
    if lines is not None and len(rows) > lines + 1:
        rows = [*rows[:lines], f"… {len(rows) - lines} more lines"]
    return " " * indent + mark + f"\n{margin}".join(rows)


def _rows(line: str, room: int) -> Iterator[str]:
    """A line in pieces of at most `room` columns; a longer word is a piece of its own."""
    row, width = "", 0
    lead = line[: min(len(line) - len(line.lstrip()), room // 2)]
    has_no_blanks = wide(line) > len(line)  # a script that writes none between words
    for piece in re.findall(r"\s*\S" if has_no_blanks else r"\s*\S+", line):
        taken = wide(piece)
        if row and width + taken > room:
            yield row
            row = lead + piece.lstrip()
            width = wide(row)
        else:
            row, width = row + piece, width + taken
    yield row
