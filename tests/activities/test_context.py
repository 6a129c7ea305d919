"""Long contexts: kept in parts, read by parts, searched across them; and a program over 10 MB."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import re2  # type: ignore[import-untyped]  # google-re2 ships no types
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.exceptions import ApplicationError

from activities.context import (
    MATCHES,
    OVERLAP,
    PART_CHARS,
    SLICE_CHARS,
    BadContext,
    ContextFunctions,
    LongText,
    ShortText,
    keep_context,
)
from activities.contracts import ContextRef
from activities.contracts_code import CodeLimits
from activities.store import BlobMissing
from tests.activities.codekit import Sandbox, sandbox_in


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    async with sandbox_in(tmp_path, CodeLimits(seconds=10)) as sandbox:
        yield sandbox


def functions(text: str, part_chars: int = PART_CHARS) -> ContextFunctions:
    """What a block may call, over a text in parts of this length."""
    return ContextFunctions(ShortText(text, part_chars), notes.append)


notes: list[str] = []


# -- the store -------------------------------------------------------------------------------------


@pytest.mark.parametrize("chars", [0, 1, PART_CHARS - 1, PART_CHARS, PART_CHARS + 1, 3 * PART_CHARS + 5])
async def test_a_context_comes_back_part_by_part(sandbox: Sandbox, chars: int) -> None:
    text = ("aé😀\n" * chars)[:chars]
    ref = await keep_context(text, sandbox.store)
    assert (ref.chars, ref.bytes) == (chars, len(text.encode()))
    kept = await LongText.open(ref, sandbox.store)
    count = -(-chars // PART_CHARS)
    assert "".join([await kept.part(n) for n in range(count)]) == text
    assert (await kept.part(-1), await kept.part(count), kept.loaded) == ("", "", count)


async def test_the_same_text_is_kept_once(sandbox: Sandbox) -> None:
    text = "x" * PART_CHARS * 3
    assert await keep_context(text, sandbox.store) == await keep_context(text, sandbox.store)
    assert sandbox.store.database.rows("SELECT count(*) FROM blobs") == [(2,)]


async def test_a_text_with_lone_surrogates_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="lone surrogate at character 2"):
        await keep_context("ab\ud800", sandbox.store)


TABLE = {"format": 1, "chars": 3, "part_chars": 65536, "parts": ["0" * 64]}
BROKEN = [
    b"no json",
    b"[" * 100_000,
    b"[]",
    b"{}",
    json.dumps({**TABLE, "format": 2}).encode(),
    json.dumps({**TABLE, "chars": 4}).encode(),
    json.dumps({**TABLE, "parts": []}).encode(),
    json.dumps({**TABLE, "parts": 7}).encode(),
    json.dumps({**TABLE, "part_chars": 0}).encode(),
    json.dumps({**TABLE, "part_chars": "x"}).encode(),
]


@pytest.mark.parametrize("table", BROKEN)
async def test_a_reference_to_what_is_no_context_is_refused_for_good(sandbox: Sandbox, table: bytes) -> None:
    ref = ContextRef(digest=await sandbox.store.put(table), chars=3, bytes=3)
    with pytest.raises(BadContext):
        await LongText.open(ref, sandbox.store)
    with pytest.raises(ApplicationError, match="cannot be read") as raised:
        await sandbox.step(block="1", context=ref)
    assert raised.value.type == "Fatal"


async def test_a_part_that_is_missing_ends_the_step_for_good(sandbox: Sandbox) -> None:
    digest = await sandbox.store.put(json.dumps(TABLE).encode())
    ref = ContextRef(digest=digest, chars=3, bytes=3)
    with pytest.raises(BlobMissing):
        await (await LongText.open(ref, sandbox.store)).part(0)
    with pytest.raises(ApplicationError, match="has no blob") as raised:
        await sandbox.run("try:\n    context_slice(0, 1)\nexcept BaseException:\n    pass", context=ref)
    assert raised.value.type == "Fatal"


# -- slices ----------------------------------------------------------------------------------------

places = st.none() | st.integers(-60, 60)


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=40), part=st.integers(1, 12), start=places, end=places)
async def test_a_slice_is_pythons(text: str, part: int, start: int | None, end: int | None) -> None:
    found = await functions(text, part).call("context_slice", (start, end), {})
    assert found == text[start:end]


# -- searches --------------------------------------------------------------------------------------

PATTERNS = [
    "a",
    "ab",
    "a+",
    "a*",
    r"\bab",
    r"(?m)^b",
    "(?m)$",
    "^a",
    "b$",
    "é",
    "[^a]{2}",
    "",
    r"\n",
    "(?i)AB",
]


@settings(max_examples=500, deadline=None)
@given(
    text=st.text(st.sampled_from("ab \né😀"), max_size=30),
    part=st.integers(3, 12),
    pattern=st.sampled_from(PATTERNS),
    start=st.integers(-3, 32),
)
async def test_a_search_by_parts_finds_what_a_search_of_the_whole_finds(
    text: str, part: int, pattern: str, start: int
) -> None:
    """With parts so short that every match of up to two characters may lie across two of them."""
    if pattern in ("a+", "a*"):
        part = 31  # their matches may be longer than a short part
    found = await functions(text, part).call("context_search", (pattern,), {"start": start})
    begin = len(text[: max(start, 0)].encode())
    whole = [] if max(start, 0) >= len(text) else list(re2.compile(pattern).finditer(text.encode(), begin))
    data = text.encode()
    expected = []
    for match in whole:
        low, high = match.span()
        here = {"start": chars(data, low), "end": chars(data, high), "text": match[0].decode(errors="ignore")}
        if (low == len(data) or not 0x80 <= data[low] < 0xC0) and here not in expected:
            expected.append(here)
    assert found == expected


def chars(data: bytes, byte: int) -> int:
    return len(data[:byte].decode(errors="ignore"))


async def test_a_match_across_two_parts_is_found_up_to_its_longest_length() -> None:
    for length in (10, 1000, OVERLAP):
        for begin in (PART_CHARS - length, PART_CHARS - 1, 2 * PART_CHARS - length // 2):
            text = "." * begin + "<" + "x" * (length - 2) + ">" + "." * 2 * PART_CHARS
            found = await functions(text).call("context_search", ("<x*>",), {})
            assert [(match["start"], match["end"]) for match in found] == [(begin, begin + length)]


async def test_many_matches_are_capped_and_a_note_says_where_to_go_on() -> None:
    text = "word " * 2500
    finds, starts, at = functions(text), [], 0
    notes.clear()
    for _ in range(3):
        found = await finds.call("context_search", ("word", at), {})
        starts += [match["start"] for match in found]
        at = starts[-1] + 1
    assert starts == list(range(0, 12_500, 5))
    assert len(notes) == 2
    for note, start in zip(notes, (5000, 10_000), strict=True):
        assert f"first {MATCHES:,} matches are given, and there are more; go on with start={start}]" in note


async def test_the_text_of_a_long_match_is_cut_and_its_end_is_true() -> None:
    (found,) = await functions("é" * 9000).call("context_search", ("é+",), {})
    assert (found["start"], found["end"], found["text"]) == (0, 9000, "é" * 2000)


@pytest.mark.parametrize(
    ("name", "args", "named", "says"),
    [
        ("context_len", (1,), {}, r"context_len: too many positional.*call it as context_len\(\)"),
        ("context_slice", (0, 1, 2), {}, r"call it as context_slice\(start, end\)"),
        ("context_slice", (0, 1.5), {}, "whole numbers, not float"),
        ("context_slice", ("0",), {}, "whole numbers, not str"),
        ("context_slice", (True,), {}, "whole numbers, not bool"),
        ("context_search", (), {}, "missing a required argument: 'pattern'"),
        ("context_search", ("a",), {"begin": 1}, "unexpected keyword argument 'begin'"),
        ("context_search", (1,), {}, "takes a pattern"),
        ("context_search", ("a", None), {}, "where to start"),
        ("context_search", ("(",), {}, r"pattern '\(' cannot be used: missing \)"),
        ("context_search", (r"(?=a)",), {}, "no look-around"),
        ("context_search", ("a" * 1001,), {}, "at most 1,000 are allowed"),
        ("context_search", (r"(?:a{1000}){1000}",), {}, "cannot be used"),
        ("context_search", (r"(?:\pL?){100}y",), {}, "pattern too large"),
    ],
)
async def test_a_wrong_call_says_what_is_expected(
    name: str, args: tuple[Any, ...], named: dict[str, Any], says: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        await functions("abc").call(name, args, named)


async def test_slow_patterns_do_not_hold_up_the_store(sandbox: Sandbox) -> None:
    """More searches than the host has common threads, each busy for a while."""
    text, pattern = "é" * 2 * PART_CHARS, r"(?:\pL?){50}y"
    searches = [
        asyncio.create_task(functions(text).call("context_search", (pattern,), {})) for _ in range(40)
    ]
    await asyncio.sleep(0.1)
    started = time.monotonic()
    for n in range(5):
        await sandbox.store.put(b"%d" % n)
    assert time.monotonic() - started < 1.5
    for search in searches:
        search.cancel()
    await asyncio.gather(*searches, return_exceptions=True)


async def test_a_search_that_takes_too_long_is_ended_with_its_block(sandbox: Sandbox) -> None:
    """The interpreter's own clock stands while it waits for an answer: the step is ended from outside."""
    ref = await keep_context("é" * 60 * PART_CHARS, sandbox.store)
    block = "x = 1\ncontext_search(r'(?:\\pL?){50}y')"
    started = time.monotonic()
    stepped = await sandbox.run(block, context=ref, limits=CodeLimits(seconds=0.5))
    assert time.monotonic() - started < 6
    assert stepped.fatal
    assert stepped.error is not None
    assert "TimeoutError" in stepped.error


async def test_a_slice_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 16,777,216 characters at once"):
        await functions("x" * (SLICE_CHARS + 1)).call("context_slice", (0, None), {})


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pattern=st.text(max_size=20) | st.text(st.sampled_from("ab()[]{}*+?.^$|\\d\\b1,-"), max_size=15))
async def test_no_pattern_raises_anything_but_words_for_the_block(pattern: str) -> None:
    try:
        found = await functions("abab 11\nba é" * 20, 50).call("context_search", (pattern,), {})
    except ValueError:
        return
    assert all(match["start"] <= match["end"] for match in found)


# -- in a block ------------------------------------------------------------------------------------


async def test_a_short_context_is_a_variable_and_can_be_searched_too(sandbox: Sandbox) -> None:
    block = "print(context, context_len(), context_slice(0, 2), context_search('l+')[0]['text'])"
    assert (await sandbox.run(block, context="héllo")).printed == "héllo 5 hé ll\n"


@pytest.mark.parametrize(
    "block", ["len(context)", "context[0:10]", "context.split()", "context()", "x = context"]
)
async def test_a_long_context_as_variable_is_an_error_that_names_the_functions(
    sandbox: Sandbox, block: str
) -> None:
    ref = await keep_context("x" * 100, sandbox.store)
    stepped = await sandbox.run(block, context=ref)
    assert stepped.error is not None
    assert "NameError: name 'context' is not defined" in stepped.error
    assert "context_len(), context_slice(start, end), context_search(pattern, start=0)" in stepped.error
    other = await sandbox.run(
        "try:\n    context\nexcept NameError:\n    pass\ncontext = 1\nprint(context)\nprint(contxt)",
        context=ref,
    )
    assert other.printed == "1\n"
    assert other.error is not None
    assert "context_len" not in other.error


async def test_looking_at_the_context_does_not_suspend_and_counts_as_no_call(sandbox: Sandbox) -> None:
    ref = await keep_context("0123456789" * 1000, sandbox.store)
    limits = CodeLimits(seconds=5, calls=1)
    block = "f = context_slice\nprint(sum(int(f(n, n + 1)) for n in range(2000)))\nask()"
    stepped = await sandbox.step(block=block, context=ref, limits=limits)
    assert (stepped.printed, stepped.call is not None) == ("9000\n", True)


async def test_only_the_parts_that_are_looked_at_are_loaded(sandbox: Sandbox) -> None:
    text = "".join(f"{n:09}\n" for n in range(200_000))
    ref = await keep_context(text, sandbox.store)
    kept = await LongText.open(ref, sandbox.store)
    finds = ContextFunctions(kept, notes.append)
    assert await finds.call("context_slice", (1_000_000, 1_000_010), {}) == "000100000\n"
    assert kept.loaded == 1
    assert await finds.call("context_slice", (-10, None), {}) == "000199999\n"
    assert kept.loaded == 2
    (found,) = await finds.call("context_search", ("000199998",), {"start": len(text) - 100})
    assert (found["start"], kept.loaded) == (len(text) - 20, 3)  # and the part before, for what stands there
    (found,) = await finds.call("context_search", ("000000001",), {})
    assert kept.loaded == 3 + 31


async def test_a_program_over_ten_megabytes_finishes(sandbox: Sandbox) -> None:
    """Searches, slices and counts; checked against Python over the whole text."""
    lines = [
        f"2024-05-{1 + n % 28:02} {'ERROR' if n % 997 == 0 else 'info'} service-{n % 7} took {n % 100} ms — k"
        for n in range(240_000)
    ]
    text = "\n".join(lines)
    assert len(text.encode()) > 10_000_000
    ref = await keep_context(text, sandbox.store)
    block = """
import collections
total, at, slowest = collections.Counter(), 0, []
errors = context_search(r'(?m)^\\S+ ERROR .*$')
for match in errors:
    total[match['text'].split()[2]] += 1
step, ends, n = 100_000, 0, context_len()
for begin in range(0, n, step):
    part = context_slice(begin, begin + step)
    ends += part.count('\\n')
first = context_slice(errors[1]['start'], errors[1]['end'])
answer = ask(first, sorted(total.items()), ends)
print(answer, len(errors), n)
"""
    started = time.monotonic()
    stepped = await sandbox.run(block, context=ref)
    assert time.monotonic() - started < 10
    failed = [line for line in lines if " ERROR " in line]
    counts = sorted(
        {f"service-{n}": sum(f"service-{n} " in line for line in failed) for n in range(7)}.items()
    )
    (call,) = sandbox.calls
    assert call.args == (failed[1], [list(pair) for pair in counts], len(lines) - 1)
    assert stepped.printed == f"<{failed[1]}> {len(failed)} {len(text)}\n"
    assert len(stepped.session) < 4200 or stepped.session.startswith("digest:")
