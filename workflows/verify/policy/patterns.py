"""Patterns for the solver: RE2's syntax, as far as a regular expression of z3 can say the same.

What it cannot say exactly (word boundaries, flags, Unicode classes) raises `Untranslatable`, and is unknown
to whoever asks. `tests/verify/test_patterns.py` holds each translation against RE2 itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import z3  # type: ignore[import-untyped]  # z3-solver ships no types

__all__ = ["LAST_CHARACTER", "Untranslatable", "characters", "matching", "solver_text"]

LAST_CHARACTER = 0x2FFFF
"""The last one that z3 knows. Those above it are like this one to a pattern that names none of them."""
REPEATS = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
CLASSES = {
    "d": ((48, 57),),
    "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "s": ((9, 10), (12, 13), (32, 32)),
}
"""RE2's classes of ASCII; `\\s` has no vertical tab."""
ESCAPES = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "a": 7}
BEGIN, END = "begin", "end"

Ranges = tuple[tuple[int, int], ...]


class Untranslatable(ValueError):
    """The solver cannot be told this exactly; the text says what."""


@dataclass(frozen=True)
class _Repeat:
    what: Any
    least: int
    most: int | None


@dataclass(frozen=True)
class _Either:
    branches: tuple[tuple[Any, ...], ...]


def matching(pattern: str) -> Any:
    """The texts in which RE2 finds the pattern, as a z3 expression. Raises Untranslatable."""
    parser = _Parser(pattern)
    found = parser.either()
    if parser.rest:
        raise Untranslatable(f"{parser.rest[:20]!r}")
    return _searched([found])


def solver_text(text: str) -> Any:
    """A text as z3 has it. Raises Untranslatable for a character that z3 does not tell from others."""
    for one in text:
        _check_known(ord(one))
    return z3.StringVal(
        "".join(one if one.isascii() and one.isalnum() else f"\\u{{{ord(one):x}}}" for one in text)
    )


def _check_known(code: int) -> None:
    """Raises Untranslatable for a character that z3 does not tell from those above it."""
    if code >= LAST_CHARACTER:
        raise Untranslatable("a character above U+2FFFE")


# -- the syntax --------------------


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self.rest = pattern

    def _take(self, count: int = 1) -> str:
        taken, self.rest = self.rest[:count], self.rest[count:]
        if not taken:
            raise Untranslatable("its end")
        return taken

    def either(self) -> _Either:
        branches = [tuple(self._parts())]
        while self.rest.startswith("|"):
            self._take()
            branches.append(tuple(self._parts()))
        return _Either(tuple(branches))

    def _parts(self) -> Iterator[Any]:
        while self.rest and self.rest[0] not in "|)":
            one = self._one()
            if counts := self._counts():
                if one in (BEGIN, END):
                    raise Untranslatable("a repeated `^` or `$`")
                one = _Repeat(one, *counts)
            yield one

    def _counts(self) -> tuple[int, int | None] | None:
        known: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        counts: tuple[int, int | None] | None = None
        if self.rest[:1] in known:
            counts = known[self._take()]
        elif found := REPEATS.match(self.rest):
            self._take(len(found[0]))
            least = int(found[1])
            counts = least, (int(found[3]) if found[3] else None) if found[2] else least
        if counts and self.rest.startswith("?"):  # whether it is lazy makes no difference to what fits
            self._take()
        return counts

    def _one(self) -> Any:
        first = self._take()
        if first == "(":
            return self._group()
        if first == "[":
            return self._class()
        if first == "\\":
            return self._escape()
        if first == ".":
            return _without(((10, 10),))
        return {"^": BEGIN, "$": END}.get(first, _only(first))

    def _group(self) -> _Either:
        if named := re.match(r"\?(:|P?<\w+>)", self.rest):
            self._take(len(named[0]))
        elif self.rest.startswith("?"):
            raise Untranslatable(f"{self.rest[:3]!r}")
        inside = self.either()
        if self._take() != ")":
            raise Untranslatable("an open group")
        return inside

    def _escape(self) -> Any:
        mark = self._take()
        if mark in "Az":
            return BEGIN if mark == "A" else END
        return self._named_class(mark) or _only(chr(self._code(mark)))

    def _named_class(self, mark: str) -> Ranges | None:
        if mark in CLASSES:
            return CLASSES[mark]
        return _without(CLASSES[mark.lower()]) if mark.lower() in CLASSES else None

    def _code(self, mark: str) -> int:
        if mark in ESCAPES:
            return ESCAPES[mark]
        if mark == "x" and (digits := re.match(r"([0-9a-fA-F]{2})|\{([0-9a-fA-F]{1,6})\}", self.rest)):
            self._take(len(digits[0]))
            return int(digits[1] or digits[2], 16)
        if mark.isalnum() or not mark.isascii():
            raise Untranslatable(f"\\{mark}")
        return ord(mark)

    def _class(self) -> Ranges:
        is_negated = self.rest.startswith("^")
        if is_negated:
            self._take()
        found: list[tuple[int, int]] = []
        while not self.rest.startswith("]") or not found:
            if self.rest.startswith("[:"):
                raise Untranslatable(f"{self.rest[:8]!r}")
            found += self._class_part()
        self._take()
        return _without(tuple(found)) if is_negated else tuple(found)

    def _class_part(self) -> Ranges:
        first = self._take()
        if first == "\\":
            mark = self._take()
            if named := self._named_class(mark):
                return named
            first = chr(self._code(mark))
        if not re.match(r"-[^\]]", self.rest):
            return _only(first)
        self._take()
        last = self._take()
        last = chr(self._code(self._take())) if last == "\\" else last
        _check_known(ord(last))
        return ((ord(first), ord(last)),)


def _only(character: str) -> Ranges:
    _check_known(ord(character))
    return ((ord(character), ord(character)),)


def _without(ranges: Ranges) -> Ranges:
    """All other characters."""
    found, at = [], 0
    for low, high in sorted(ranges):
        if at < low:
            found.append((at, low - 1))
        at = max(at, high + 1)
    return (*found, (at, LAST_CHARACTER)) if at <= LAST_CHARACTER else tuple(found)


# -- for the solver --------------------


def characters(ranges: Ranges) -> Any:
    """One character of these ranges, as a z3 expression."""
    each = [z3.Range(_character(low), _character(high)) for low, high in ranges]
    return _union(each or [z3.Empty(z3.ReSort(z3.StringSort()))])


def _character(code: int) -> Any:
    return z3.StringVal(f"\\u{{{code:x}}}")


def _searched(parts: list[Any]) -> Any:
    """All texts that have these parts somewhere: at the beginning behind `^`, at the end before `$`."""
    if parts and isinstance(parts[0], _Either) and _anchored(parts[0]):
        return _union([_searched([*branch, *parts[1:]]) for branch in parts[0].branches])
    if parts and isinstance(parts[-1], _Either) and _anchored(parts[-1]):
        return _union([_searched([*parts[:-1], *branch]) for branch in parts[-1].branches])
    anything = z3.Full(z3.ReSort(z3.StringSort()))
    lead, trail = parts[:1] != [BEGIN], parts[-1:] != [END]
    while parts[:1] == [BEGIN]:
        parts = parts[1:]
    while parts[-1:] == [END]:
        parts = parts[:-1]
    return _joined([*([anything] if lead else []), *map(_exact, parts), *([anything] if trail else [])])


def _anchored(part: Any) -> bool:
    if isinstance(part, _Either):
        return any(_anchored(one) for branch in part.branches for one in branch)
    return (
        part in (BEGIN, END) if isinstance(part, str) else isinstance(part, _Repeat) and _anchored(part.what)
    )


def _exact(part: Any) -> Any:
    if part in (BEGIN, END):
        raise Untranslatable("`^` or `$` in the middle")
    if isinstance(part, _Either):
        return _union([_joined([_exact(one) for one in branch]) for branch in part.branches])
    if isinstance(part, _Repeat):
        what = _exact(part.what)
        if part.most is None:
            return (
                z3.Star(what)
                if part.least == 0
                else z3.Concat(_loop(what, part.least, part.least), z3.Star(what))
            )
        return _loop(what, part.least, part.most)
    return characters(part)


def _loop(what: Any, least: int, most: int) -> Any:
    if most < least:
        raise Untranslatable("a repetition that is never")
    return z3.Loop(what, least, most) if most else z3.Re("")


def _union(each: list[Any]) -> Any:
    return reduce(z3.Union, each)


def _joined(each: list[Any]) -> Any:
    return reduce(z3.Concat, each) if each else z3.Re("")
