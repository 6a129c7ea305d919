"""Long contexts in parts: kept once in the durable store, read part by part, searched with RE2.

A context is a table of parts, each a blob of its own, so that a step that looks at one place loads
one part. Inside a block it is reached through `context_len()`, `context_slice(start, end)` and
`context_search(pattern, start=0)`, which this module answers.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import re2  # type: ignore[import-untyped]  # google-re2 ships no types

from activities.contracts import ContextRef
from activities.store import BlobStore
from activities.utf8 import Utf8

__all__ = [
    "MATCHES",
    "OVERLAP",
    "PART_CHARS",
    "SLICE_CHARS",
    "BadContext",
    "ContextFunctions",
    "LongText",
    "ShortText",
    "keep_context",
]

PART_CHARS = 65_536
OVERLAP = 16_384
"""Characters behind a part that are searched with it. A match of at most so many is found wherever
it begins; a longer one is found if it ends in its own part or within so many behind it."""
MATCHES = 1000
"""Given by one search."""
MATCH_CHARS = 2000
"""Of a match's text; `end - start` is its true length."""
SLICE_CHARS = 16 * 2**20
"""Given by one slice."""
PATTERN_CHARS = 1000
PATTERN_MEMORY = 2**20
"""Bytes; a pattern that needs more may take seconds for a single part."""
SEARCHERS = ThreadPoolExecutor(2, thread_name_prefix="context-search")
"""Searches have threads of their own, so that slow patterns hold up no one who waits for the store."""
FORMAT = 1


class BadContext(ValueError):
    """The reference names no context that this worker could read; trying again does not help."""


async def keep_context(text: str | Utf8, store: BlobStore) -> ContextRef:
    """Put a text into the store in parts; the reference to it.

    Raises ValueError when it is no text (lone surrogates), and `StoreError`.
    """
    try:
        given = text if isinstance(text, Utf8) else await asyncio.to_thread(Utf8.of, text)
    except UnicodeEncodeError as error:
        raise ValueError(f"the context holds a lone surrogate at character {error.start}") from None
    parts, left = [], given.parts(PART_CHARS)
    while (part := await asyncio.to_thread(next, left, None)) is not None:
        parts.append(await store.put(part))
    table = {"format": FORMAT, "chars": given.chars, "part_chars": PART_CHARS, "parts": parts}
    digest = await store.put(json.dumps(table, separators=(",", ":")).encode())
    return ContextRef(digest=digest, chars=given.chars, bytes=len(given.data))


class Text(Protocol):
    """A text in parts of `part_chars` characters, the last one shorter."""

    @property
    def chars(self) -> int:
        """Its length."""

    @property
    def part_chars(self) -> int:
        """The length of all parts but the last."""

    async def part(self, number: int) -> str:
        """One part, counted from 0; the empty text behind the last."""


@dataclass(frozen=True, slots=True)
class ShortText:
    """A text that is at hand."""

    text: str
    part_chars: int = PART_CHARS

    @property
    def chars(self) -> int:
        """Its length."""
        return len(self.text)

    async def part(self, number: int) -> str:
        """One part of it."""
        return self.text[number * self.part_chars : (number + 1) * self.part_chars]


class LongText:
    """A text in the store. It keeps the two parts that were read last, and nothing else."""

    def __init__(self, store: BlobStore, chars: int, part_chars: int, parts: list[str]) -> None:
        self.chars, self.part_chars = chars, part_chars
        self.loaded = 0
        """Parts read from the store so far."""
        self._store, self._parts = store, parts
        self._recent: dict[int, str] = {}

    @classmethod
    async def open(cls, ref: ContextRef, store: BlobStore) -> LongText:
        """The text that a reference names. Raises `BadContext` and `StoreError`."""
        try:
            table = json.loads(await store.get(ref.digest))
            found, chars, part_chars, parts = (
                table[key] for key in ("format", "chars", "part_chars", "parts")
            )
            if found != FORMAT:
                raise ValueError(f"its format is {found!r}, this worker reads {FORMAT}")
            if chars != ref.chars or part_chars < 1 or len(parts) != -(-chars // part_chars):
                raise ValueError("its table does not fit its length")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadContext(f"the context {ref.digest[:16]}... cannot be read: {error}") from error
        return cls(store, chars, part_chars, parts)

    async def part(self, number: int) -> str:
        """One part, from the store unless it was one of the last two."""
        if not 0 <= number < len(self._parts):
            return ""
        if number not in self._recent:
            text = (await self._store.get(self._parts[number])).decode()
            self.loaded += 1
            self._recent[number] = text
            while len(self._recent) > 2:
                del self._recent[next(iter(self._recent))]
        return self._recent[number]


USAGE = {
    "context_len": "context_len()",
    "context_slice": "context_slice(start, end)",
    "context_search": "context_search(pattern, start=0)",
}
TOO_LONG = f"The context is too long for a variable; read it with {', '.join(USAGE.values())}."


class ContextFunctions:
    """What a block may call to look at its context; `say` prints a note into the block's output."""

    names = frozenset(USAGE)

    def __init__(self, text: Text, say: Callable[[str], None]) -> None:
        self.text, self._say = text, say
        self.hints = {"context": TOO_LONG} if isinstance(text, LongText) else {}

    async def call(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The value. Raises TypeError or ValueError with words for the block."""
        functions: dict[str, Callable[..., Awaitable[Any]]] = {
            "context_len": self._len,
            "context_slice": self._slice,
            "context_search": self._search,
        }
        try:
            given = inspect.signature(functions[name]).bind(*args, **named)
        except TypeError as error:
            raise TypeError(f"{name}: {error}; call it as {USAGE[name]}") from None
        return await functions[name](*given.args, **given.kwargs)

    async def _len(self) -> int:
        return self.text.chars

    async def _slice(self, start: int | None = 0, end: int | None = None) -> str:
        """As `text[start:end]`, with negative numbers from the end."""
        for place in (start, end):
            if place is not None and not _whole(place):
                raise TypeError(f"context_slice takes whole numbers, not {type(place).__name__}")
        first, last, _ = slice(start, end).indices(self.text.chars)
        if last - first > SLICE_CHARS:
            raise ValueError(
                f"context_slice gives at most {SLICE_CHARS:,} characters at once, not {last - first:,}"
            )
        if last <= first:
            return ""
        size = self.text.part_chars
        parts = [await self.text.part(number) for number in range(first // size, -(-last // size))]
        offset = first // size * size
        return "".join(parts)[first - offset : last - offset]

    async def _search(self, pattern: str, start: int = 0) -> list[dict[str, Any]]:
        """Matches from `start` on, each with `start`, `end` and `text`; at most `MATCHES`."""
        if not isinstance(pattern, str) or not _whole(start):
            raise TypeError("context_search takes a pattern (text), and where to start (a whole number)")
        compiled = _compiled(pattern)
        at, size = max(start, 0), self.text.part_chars
        found: list[dict[str, Any]] = []
        if at >= self.text.chars:
            return found
        for number in range(at // size, -(-self.text.chars // size)):
            window = await _Window.of(self.text, number)
            # One more than is given, to know whether there are more.
            matches = await asyncio.get_running_loop().run_in_executor(
                SEARCHERS, window.matches, compiled, at, MATCHES + 1 - len(found)
            )
            found += matches
            if len(found) > MATCHES:
                self._say(
                    f"[context_search: the first {MATCHES:,} matches are given, and there are more; "
                    f"go on with start={found[MATCHES]['start']}]\n"
                )
                return found[:MATCHES]
            at = max([at, (number + 1) * size, *(match["end"] for match in matches[-1:])])
        return found


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _compiled(pattern: str) -> Any:
    if len(pattern) > PATTERN_CHARS:
        raise ValueError(
            f"the pattern has {len(pattern):,} characters, at most {PATTERN_CHARS:,} are allowed"
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        cause = error.args[0] if error.args else error
        words = cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
        raise ValueError(
            f"the pattern {pattern[:200]!r} cannot be used: {words} "
            "(RE2 syntax: no look-around, no back-references, repetitions up to 1000)"
        ) from None


@dataclass(frozen=True, slots=True)
class _Window:
    """A part with what stands around it, as bytes: those are searched twice as fast as text."""

    first: int
    """Where in the whole text the window begins: one character before the part, for `\\b` and `^`."""
    begin: int
    end: int
    """Matches that begin from `begin` up to here belong to this part; the last part has one more."""
    text: str

    @classmethod
    async def of(cls, text: Text, number: int) -> _Window:
        size = text.part_chars
        before = (await text.part(number - 1))[-1:] if number else ""
        own = await text.part(number)
        begin = number * size
        after = (await text.part(number + 1))[:OVERLAP]
        last = begin + len(own) >= text.chars
        return cls(begin - len(before), begin, begin + len(own) + last, before + own + after)

    def matches(self, pattern: Any, at: int, most: int) -> list[dict[str, Any]]:
        """The first matches of the part that begin at `at` or behind it."""
        data, places = self.text.encode(), _Places(self.text)
        found: list[dict[str, Any]] = []
        skip = len(self.text[: max(at, self.begin) - self.first].encode())
        last = (-1, -1)
        for match in pattern.finditer(data, skip):
            low, high = match.span()
            if (low, high) == last or (low < len(data) and 0x80 <= data[low] < 0xC0):
                continue  # an empty match, found twice or in the middle of a character
            last = (low, high)
            start = self.first + places.of(low)
            if start >= self.end or len(found) >= most:
                break
            text = data[low : min(high, low + MATCH_CHARS * 4)].decode(errors="ignore")[:MATCH_CHARS]
            found.append({"start": start, "end": self.first + places.of(high), "text": text})
        return found


class _Places:
    """From bytes of a text to its characters; asked for places that never go back."""

    def __init__(self, text: str) -> None:
        self._plain = text.isascii()
        self._data = b"" if self._plain else text.encode()
        self._byte = self._char = 0

    def of(self, byte: int) -> int:
        """The character that begins at a byte."""
        if self._plain:
            return byte
        self._char += len(self._data[self._byte : byte].decode(errors="ignore"))
        self._byte = byte
        return self._char
