"""Reading a reply in code mode: blocks of code, and the final answer (spec 2.3). Never raises on any text.

Everything here takes time linear in the length of the text: no pattern backtracks.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

__all__ = ["MAX_BLOCKS", "ReadReply", "is_variable", "read_reply"]

MAX_BLOCKS = 50
"""Blocks of one reply that are run; later ones are only counted."""
OPENING = "```repl"
FENCE = "```"
_FINAL = re.compile(r"^[ \t]*FINAL\(", re.MULTILINE)
_FINAL_VAR = re.compile(r"^[ \t]*FINAL_VAR\(", re.MULTILINE)
_MARKS = re.compile(r"\\.|[()'\"]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReadReply:
    """What a reply asks for. Blocks are run before an answer in the same reply counts."""

    blocks: tuple[str, ...] = ()
    """The first `MAX_BLOCKS`."""
    not_run: int = 0
    """How many blocks come after those."""
    final: str | None = None
    """The text of `FINAL(...)`; empty for `FINAL()`."""
    final_var: str | None = None
    """What `FINAL_VAR(...)` names, which may not be a variable's name. `FINAL` does not count beside it."""
    open_fence: bool = False
    """The last block has no end; it is text like any other."""


def read_reply(text: str) -> ReadReply:
    """The blocks and the final answer of a reply."""
    blocks, rest, open_fence = _fenced(text)
    name = _final_var(rest)
    final = _final(rest) if name is None else None
    return ReadReply(
        blocks=tuple(blocks[:MAX_BLOCKS]),
        not_run=max(len(blocks) - MAX_BLOCKS, 0),
        final=final,
        final_var=name,
        open_fence=open_fence,
    )


def is_variable(name: str) -> bool:
    """The text is the name of a variable and nothing more, so that printing it does nothing else."""
    return name.isidentifier() and not keyword.iskeyword(name)


def _fenced(text: str) -> tuple[list[str], str, bool]:
    """The `repl` blocks, the text around them (R-001-5), and whether the last fence has no end.

    A fence without an end is ignored, so what follows it is text (spec 2.3).
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
    """What the first `FINAL_VAR(...)` at the start of a line names, without quotes."""
    begins = _FINAL_VAR.search(text)
    end = text.find(")", begins.end()) if begins else -1
    return text[begins.end() : end].strip().strip("'\"").strip() if begins and end >= 0 else None


def _final(text: str) -> str | None:
    """The text of the last `FINAL(...)` at the start of a line; None: there is none, or it has no end."""
    begins = [found.end() for found in _FINAL.finditer(text)]
    if not begins:
        return None
    start = begins[-1]
    end = _closing(text, start, quotes=True)
    if end is None:
        end = _closing(text, start, quotes=False)  # an apostrophe is not a quote (R-001-4)
    return None if end is None else text[start:end].strip()


def _closing(text: str, start: int, *, quotes: bool) -> int | None:
    """Where the bracket before `start` is closed; with `quotes`, brackets between quotes do not count."""
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
