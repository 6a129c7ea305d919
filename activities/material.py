"""Long texts by reference: kept once in the durable store, mapped into memory, searched with RE2.

A block of code reaches its material through `context_len()`, `context_slice(start, end)` and
`context_search(pattern, start=0)`, which this module answers. All places are counted in characters; a
count of the characters before every 8th KiB leads to the bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import mmap
import tempfile
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from typing import Any

from activities.contracts import MaterialRef, compiled
from activities.store.blobs import BlobStore
from activities.store.encryption import is_sealed

__all__ = [
    "Material",
    "MaterialFunctions",
    "Materials",
]

MAX_MATCHES = 1000
"""The most matches of one search."""
MATCH_CHARS = 2000
"""Of a match's text; `end - start` is its true length."""
SLICE_CHARS = 16 * 2**20
"""The most characters of one slice."""
WINDOW_BYTES = 2**17
"""Searched without a pause: the slowest patterns take about three seconds for it."""
REACH_BYTES = 2**16
"""The longest match. What matches more is found in pieces."""
STRIDE_BYTES = 2**13
"""Bytes from one count of characters to the next."""
INSIDE = bytes(range(0x80, 0xC0))
"""The bytes of UTF-8 with which no character begins."""
SEARCHERS = ThreadPoolExecutor(2, thread_name_prefix="material-search")
"""Slow patterns must not take the threads that the store needs."""


def _characters(data: bytes) -> int:
    """How many characters begin in these bytes."""
    return len(data) if data.isascii() else len(data.translate(None, INSIDE))


class Material:
    """A text as UTF-8, in memory or mapped from a file."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self.data = data
        pieces = (_characters(data[at : at + STRIDE_BYTES]) for at in range(0, len(data), STRIDE_BYTES))
        self.counts = [0, *accumulate(pieces)]
        """Characters before the bytes 0, 8192, 16384, ..., and in the whole."""

    @property
    def chars(self) -> int:
        """The length of the text."""
        return self.counts[-1]

    def slice(self, start: int | None = 0, end: int | None = None) -> str:
        """As `text[start:end]`, with negative numbers from the end. Raises `ValueError` above 16 Mi."""
        first, last, _ = slice(start, end).indices(self.chars)
        if last - first > SLICE_CHARS:
            raise ValueError(f"a slice has at most {SLICE_CHARS:,} characters, not {last - first:,}")
        if last <= first:
            return ""
        return self.data[self._byte(first) : self._byte(last)].decode(errors="replace")

    async def search(
        self, pattern: str, start: int = 0, window: int = WINDOW_BYTES
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Matches from `start` on, each with `start`, `end` and `text`, and where to go on if there are
        more than `MAX_MATCHES`. Raises `ValueError` for the pattern.

        A cancellation takes effect after each window of so many bytes.
        """
        expression = compiled(pattern)
        loop = asyncio.get_running_loop()
        at = self._byte(min(max(start, 0), self.chars))
        found: list[dict[str, Any]] = []
        last = (-1, -1)
        for edge in range(at + window, len(self.data) + window, window):
            room = MAX_MATCHES + 1 - len(found)
            spans = await loop.run_in_executor(SEARCHERS, self._spans, expression, (at, edge), last, room)
            found += [self._match(low, high) for low, high in spans]
            if len(found) > MAX_MATCHES:
                return found[:MAX_MATCHES], found[MAX_MATCHES]["start"]
            last = spans[-1] if spans else last
            at = max(edge, last[1])
        return found, None

    def _spans(
        self, expression: Any, window: tuple[int, int], last: tuple[int, int], most: int
    ) -> list[tuple[int, int]]:
        """The first matches that begin in the window. RE2 sees the text around it, so that `^`, `$` and
        `\\b` mean what they mean in the whole."""
        at, edge = window
        end = len(self.data)
        found: list[tuple[int, int]] = []
        for match in expression.finditer(self.data, at, min(edge + REACH_BYTES, end)):
            low, high = match.span()
            if (low >= edge and edge < end) or len(found) >= most:
                break
            inside_character = low < end and 0x80 <= self.data[low] < 0xC0
            if (low, high) != last and not inside_character:  # RE2 gives some empty matches twice
                last = (low, high)
                found.append(last)
        return found

    def _match(self, low: int, high: int) -> dict[str, Any]:
        text = self.data[low : min(high, low + 4 * MATCH_CHARS)].decode(errors="ignore")[:MATCH_CHARS]
        return {"start": self._char(low), "end": self._char(high), "text": text}

    def _byte(self, char: int) -> int:
        """Where a character begins."""
        if char >= self.chars:
            return len(self.data)
        part = bisect_right(self.counts, char) - 1
        piece = self.data[part * STRIDE_BYTES : (part + 1) * STRIDE_BYTES]
        begin = len(piece) - len(piece.lstrip(INSIDE))
        before = piece[begin:].decode(errors="ignore")[: char - self.counts[part]]
        return part * STRIDE_BYTES + begin + len(before.encode())

    def _char(self, byte: int) -> int:
        """The number of the character that begins at a byte."""
        part = byte // STRIDE_BYTES
        return self.counts[part] + _characters(self.data[part * STRIDE_BYTES : byte])


class Materials:
    """The materials of one store; those that were read last stay mapped and need no second check."""

    def __init__(self, blobs: BlobStore, keep: int = 4) -> None:
        self.blobs = blobs
        self._keep = keep
        self._recent: OrderedDict[str, Material] = OrderedDict()

    async def open(self, ref: MaterialRef) -> Material:
        """The material of a reference. Raises `StoreError`."""
        found = self._recent.get(ref.digest)
        if found is None:
            found = await asyncio.to_thread(lambda: Material(self._data(ref.digest)))
        self._recent[ref.digest] = found
        self._recent.move_to_end(ref.digest)
        while len(self._recent) > self._keep:
            self._recent.popitem(last=False)
        return found

    def _data(self, digest: str) -> bytes | mmap.mmap:
        """The bytes, compared with the digest once: a file's, or a copy in one that nobody else sees."""
        path = self.blobs.path(digest)
        if path is None:
            content = self.blobs.get(digest)
            with tempfile.TemporaryFile() as copy:
                copy.write(content)
                copy.flush()
                return content and mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ)
        with suppress(OSError, ValueError), path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if not is_sealed(data) and hashlib.sha256(data).hexdigest() == digest:
                return data
        return self.blobs.get(digest)  # encrypted, empty, or missing or damaged: the store says which


USAGE = {
    "context_len": "context_len()",
    "context_slice": "context_slice(start, end)",
    "context_search": "context_search(pattern, start=0)",
}


class MaterialFunctions:
    """What a block may call to look at its material; `note` prints into the block's output."""

    names = frozenset(USAGE)
    too_long = f"The context is too long for a variable; read it with {', '.join(USAGE.values())}."

    def __init__(self, material: Material, note: Callable[[str], None]) -> None:
        self.material = material
        self._note = note

    async def call(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The value. Raises `TypeError` or `ValueError`, with a message for the block."""
        function: Callable[..., Any] = getattr(self, name)
        try:
            bound = inspect.signature(function).bind(*args, **named)
        except TypeError as error:
            raise TypeError(f"{name}: {error}; call it as {USAGE[name]}") from None
        return await function(*bound.args, **bound.kwargs)

    async def context_len(self) -> int:
        """Its length in characters."""
        return self.material.chars

    async def context_slice(self, start: int | None = 0, end: int | None = None) -> str:
        """A part of it."""
        for place in (start, end):
            if place is not None and type(place) is not int:
                raise TypeError(f"context_slice takes whole numbers, not {type(place).__name__}")
        return self.material.slice(start, end)

    async def context_search(self, pattern: str, start: int = 0) -> list[dict[str, Any]]:
        """The first matches, with a note if there are more."""
        if not isinstance(pattern, str) or type(start) is not int:
            raise TypeError("context_search takes a pattern (text) and where to start (a whole number)")
        found, rest = await self.material.search(pattern, start)
        if rest is not None:
            more = f"these are the first {MAX_MATCHES:,} matches and there are more; go on with start={rest}"
            self._note(f"[context_search: {more}]\n")
        return found
