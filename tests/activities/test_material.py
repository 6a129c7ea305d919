"""Long texts: kept once, mapped, read by character, searched in windows as if they were one piece."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import re2  # type: ignore[import-untyped]  # google-re2 ships no types
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import MaterialRef
from activities.material import (
    REACH_BYTES,
    SLICE_CHARS,
    STRIDE_BYTES,
    WINDOW_BYTES,
    Material,
    MaterialFunctions,
    Materials,
)
from activities.store.blobs import BlobDamaged, BlobMissing, BlobStore
from tests.activities.codekit import kept


@pytest.mark.parametrize(
    "chars", [0, 1, STRIDE_BYTES - 1, STRIDE_BYTES, STRIDE_BYTES + 1, 3 * STRIDE_BYTES + 5]
)
async def test_kept_text_comes_back(blobs: BlobStore, chars: int) -> None:
    text = ("aé😀\n" * chars)[:chars]
    material = await Materials(blobs).open(kept(text, blobs))
    assert material.slice() == text


async def test_open_materials_stay_mapped_up_to_a_number(blobs: BlobStore) -> None:
    materials = Materials(blobs, keep=2)
    refs = [kept(f"text {number}", blobs) for number in range(3)]
    first, second, _ = [await materials.open(ref) for ref in refs]
    assert await materials.open(refs[1]) is second
    assert await materials.open(refs[0]) is not first


async def test_lost_or_changed_text_is_reported_by_the_store(blobs: BlobStore) -> None:
    with pytest.raises(BlobMissing):
        await Materials(blobs).open(MaterialRef(digest="0" * 64, chars=3, bytes=3))
    damaged = kept("abc", blobs)
    blobs.objects.write(f"{damaged.digest[:2]}/{damaged.digest[2:]}", b"abd")
    with pytest.raises(BlobDamaged):
        await Materials(blobs).open(damaged)


places = st.none() | st.integers(-60, 60)


@settings(deadline=None)
@given(text=st.text(max_size=40), around=st.integers(0, 2), start=places, end=places)
def test_slice_is_pythons(text: str, around: int, start: int | None, end: int | None) -> None:
    text = "é" * STRIDE_BYTES * around + text
    assert Material(text.encode()).slice(start, end) == text[start:end]


def spans_of(text: str, pattern: str, start: int) -> list[tuple[int, int]]:
    """Character spans that RE2 finds in the whole text at once, each once, none inside a character."""
    if start >= len(text):
        return []
    data = text.encode()
    found: list[tuple[int, int]] = []
    for match in re2.compile(pattern).finditer(data, len(text[:start].encode())):
        low, high = match.span()
        if low == len(data) or not 0x80 <= data[low] < 0xC0:
            span = (len(data[:low].decode(errors="ignore")), len(data[:high].decode(errors="ignore")))
            if span not in found[-1:]:
                found.append(span)
    return found


PATTERNS = [
    "a", "ab", "a+", "a*", r"\bab", r"b\b", "(?m)^b", "(?m)$", "^a", "b$", "é", "[^a]{2}", "", r"\n",
    "(?i)AB",
]  # fmt: skip


@settings(deadline=None)
@given(
    text=st.text(st.sampled_from("ab \né😀"), max_size=30),
    pattern=st.sampled_from(PATTERNS),
    start=st.integers(-3, 32),
    window=st.integers(1, 12),
)
async def test_search_finds_what_a_search_of_the_whole_finds(
    text: str, pattern: str, start: int, window: int
) -> None:
    found, _ = await Material(text.encode()).search(pattern, start, window)
    assert [(match["start"], match["end"]) for match in found] == spans_of(text, pattern, max(start, 0))


async def test_match_across_windows_is_found_up_to_its_longest_length() -> None:
    for length in (10, 1000, REACH_BYTES):
        for begin in (WINDOW_BYTES - length, WINDOW_BYTES - 1, 2 * WINDOW_BYTES - length // 2):
            text = "." * begin + "<" + "x" * (length - 2) + ">" + "." * WINDOW_BYTES
            found, _ = await Material(text.encode()).search("<x*>")
            assert [(match["start"], match["end"]) for match in found] == [(begin, begin + length)]


async def test_many_matches_are_capped_with_note_where_to_continue() -> None:
    notes: list[str] = []
    functions = MaterialFunctions(Material("wörd ".encode() * 2500), notes.append)
    starts: list[int] = []
    for _ in range(3):
        at = starts[-1] + 1 if starts else 0
        starts += [match["start"] for match in await functions.call("context_search", ("wörd", at), {})]
    assert starts == list(range(0, 12_500, 5))
    assert [f"start={start}]" in note for start, note in zip((5000, 10_000), notes, strict=True)] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("name", "args", "named", "words"),
    [
        ("context_len", (1,), {}, r"call it as context_len\(\)"),
        ("context_slice", (0, 1, 2), {}, r"call it as context_slice\(start, end\)"),
        ("context_slice", (0, 1.5), {}, "not float"),
        ("context_slice", (True,), {}, "not bool"),
        ("context_search", (), {}, "'pattern'"),
        ("context_search", ("a",), {"begin": 1}, "'begin'"),
        ("context_search", (1,), {}, "a pattern"),
        ("context_search", ("a", None), {}, "where to start"),
        ("context_search", ("(",), {}, r"'\('"),
        ("context_search", ("\ud800",), {}, "cannot be used"),
        ("context_search", (r"(?=a)",), {}, "no look-around"),
        ("context_search", ("a" * 1001,), {}, "1,000"),
        ("context_search", (r"(?:\pL?){100}y",), {}, "cannot be used"),
    ],
)
async def test_wrong_call_says_what_is_expected(
    name: str, args: tuple[Any, ...], named: dict[str, Any], words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        await MaterialFunctions(Material(b"abc"), print).call(name, args, named)


async def test_too_large_slice_is_refused() -> None:
    with pytest.raises(ValueError, match="16,777,216"):
        Material(b"x" * (SLICE_CHARS + 1)).slice()


async def test_cancelled_search_stops_after_its_window() -> None:
    search = asyncio.create_task(Material("é".encode() * 4_000_000).search(r"(?:\pL?){50}y"))
    await asyncio.sleep(0.1)
    search.cancel()
    started = time.process_time()  # a busy machine may take longer
    with pytest.raises(asyncio.CancelledError):
        await search
    assert time.process_time() - started < 1
    found, _ = await Material(b"xay").search("a")
    assert [match["start"] for match in found] == [1]
