"""Reading a reply of code mode (spec 2.3): blocks of code, and the final answer. Never raises on any text.

Everything here takes time linear in the text, whatever it holds: there is no pattern that backtracks.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

__all__ = ["MOST_BLOCKS", "Reply", "is_variable", "read_reply"]

MOST_BLOCKS = 50
"""Of one reply that are run; those behind are counted only."""
OPENING = "```repl"
FENCE = "```"
_FINAL = re.compile(r"^[ \t]*FINAL\(", re.MULTILINE)
_FINAL_VAR = re.compile(r"^[ \t]*FINAL_VAR\(", re.MULTILINE)
_MARKS = re.compile(r"\\.|[()'\"]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a reply asks for; an answer counts only behind its blocks."""

    blocks: tuple[str, ...] = ()
    """The first `MOST_BLOCKS`."""
    not_run: int = 0
    """How many blocks there are behind those."""
    final: str | None = None
    """The text of `FINAL(...)`; the empty string for `FINAL()`."""
    final_var: str | None = None
    """What `FINAL_VAR(...)` names, which may be no variable's name; `FINAL` does not count beside it."""
    open_fence: bool = False
    """A block was begun and never closed; it is text like any other."""


def read_reply(text: str) -> Reply:
    """The blocks and the final answer of a reply."""
    blocks, rest, open_fence = _fenced(text)
    name = _final_var(rest)
    final = _final(rest) if name is None else None
    more = max(len(blocks) - MOST_BLOCKS, 0)
    return Reply(tuple(blocks[:MOST_BLOCKS]), more, final, name, open_fence)


def is_variable(name: str) -> bool:
    """Can this be printed as a variable, and be nothing else?"""
    return name.isidentifier() and not keyword.iskeyword(name)


def _fenced(text: str) -> tuple[list[str], str, bool]:
    """The `repl` blocks, the text around them (R-001-5), and whether the last one was left open.

    What stands behind a fence that is never closed is text: the fence is ignored (spec 2.3).
    """
    blocks: list[str] = []
    around: list[str] = []
    inside: list[str] | None = None
    for raw in text.split("\n"):
        line = raw.removesuffix("\r")
        if inside is None:
            before = line.removesuffix(OPENING)
            opens = before != line and not before.endswith("`")
            inside = [] if opens else None
            around.append(before if opens else line)
        elif line.strip() == FENCE:
            blocks.append("\n".join(inside).strip())
            inside = None
        else:
            inside.append(line)
    return blocks, "\n".join([*around, *(inside or ())]), inside is not None


def _final_var(text: str) -> str | None:
    """What the first `FINAL_VAR(...)` that begins a line names; quotes around the name are dropped."""
    begins = _FINAL_VAR.search(text)
    end = text.find(")", begins.end()) if begins else -1
    return text[begins.end() : end].strip().strip("'\"").strip() if begins and end >= 0 else None


def _final(text: str) -> str | None:
    """The text of the last `FINAL(...)` that begins a line; None when there is none, or it is not closed."""
    begins = [found.end() for found in _FINAL.finditer(text)]
    if not begins:
        return None
    start = begins[-1]
    end = _closing(text, start, quotes=True)
    if end is None:
        end = _closing(text, start, quotes=False)  # an apostrophe is no quote (R-001-4)
    return None if end is None else text[start:end].strip()


def _closing(text: str, start: int, *, quotes: bool) -> int | None:
    """Where the bracket that was opened before `start` is closed; brackets between quotes do not count."""
    depth, quote = 1, ""
    for mark in _MARKS.finditer(text, start):
        sign = mark.group()
        if quote:
            quote = "" if sign == quote else quote
        elif sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
            if depth == 0:
                return mark.start()
        elif quotes and sign in "'\"":
            quote = sign
    return None
