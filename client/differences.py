"""Where two JSON values differ, key by key, in words that stay short. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from activities.contracts import Frozen

__all__ = ["FREE", "Difference", "Span", "differences", "in_words", "timeless"]

MOST = 20
"""Differences that are told of one value; a person looks at the first ones anyway."""
AROUND = 24
"""Characters before the place where two texts part, and twice as many behind it."""
Span = tuple[float, float]
"""From when until when, in seconds since 1970."""
DEADLINES = {"deadline", "warn_at"}
"""Fields of requests to people that hold times which may lie beyond the run."""
REQUEST = {"kind", "digest", "place"}
"""Fields by which a request, or what a record says about one, is known."""
FREE = "arguments"
"""What tools are called with: names in there are none of ours."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
LEDGER = ("counters", "spent", "budget")
"""Objects that say what a run has spent."""
NOTHING = "(nothing)"
"""What stands for a key or an item that one side lacks."""


class Difference(Frozen):
    """One place where two values differ; texts are cut to what is around it."""

    at: str
    """The way to it, such as `patch.steps[0].thought`; empty: the value itself."""
    was: str
    now: str


def differences(was: object, now: object) -> tuple[Difference, ...]:
    """The first places where two JSON values differ, at most `MOST`; empty: they are equal."""
    found = _walk(was, now, "")
    return tuple(one for one, _ in zip(found, range(MOST), strict=False))


def timeless(value: Any, span: Span | None = None, within: str = "") -> Any:
    """A JSON value without moments in time and the seconds of a ledger's counters.

    The workflow's clock is no part of what a machine decides, and behind a local activity it differs by
    that activity's duration between a run and its replay.

    Args:
        span: when the run went on; other numbers and dates are values as any, but for a deadline of a
            request to people that lies behind. None: nothing is known to be a time.
        within: name of the field that holds the value.
    """
    if isinstance(value, Mapping):
        if within != FREE and value.keys() >= REQUEST:
            value = {name: _deadline(name, item, span) for name, item in value.items()}
        return {name: _without_clock(name, item, span, within) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [timeless(item, span, within if within == FREE else "") for item in value]
    if isinstance(value, str):
        return MOMENT.sub(lambda found: _moment(found.group(), span), value)
    is_time = span is not None and _is_number(value) and span[0] <= value <= span[1]
    return 0 if is_time else value


def _without_clock(name: str, value: Any, span: Span | None, within: str) -> Any:
    if within == FREE:
        return timeless(value, span, FREE)  # what a model says means what it says
    if within in LEDGER and name.endswith("seconds"):
        return 0
    return timeless(value, span, name)


def _deadline(name: str, value: Any, span: Span | None) -> Any:
    is_late = span is not None and name in DEADLINES and _is_number(value) and value > span[1]
    return 0 if is_late else value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _moment(text: str, span: Span | None) -> str:
    """What stands for a date: when the run went on, nothing; else itself."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text
    seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return "(a time)" if span is not None and span[0] <= seconds <= span[1] else text


def in_words(found: Difference) -> str:
    """A difference in one line."""
    return f"{found.at or 'value'}: was {found.was}, now {found.now}"


def _walk(was: object, now: object, at: str) -> Iterator[Difference]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        yield from _keys(was, now, at)
    elif _is_list(was) and _is_list(now):
        yield from _items(was, now, at)  # type: ignore[arg-type]  # _is_list has looked
    elif isinstance(was, str) and isinstance(now, str):
        if was != now:
            yield _texts(was, now, at)
    elif was != now or isinstance(was, bool) != isinstance(now, bool):
        yield Difference(at=at, was=_shown(was), now=_shown(now))


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _keys(was: Mapping[str, object], now: Mapping[str, object], at: str) -> Iterator[Difference]:
    for key in dict.fromkeys([*was, *now]):
        where = f"{at}.{key}" if at else str(key)
        if key not in now:
            yield Difference(at=where, was=_shown(was[key]), now=NOTHING)
        elif key not in was:
            yield Difference(at=where, was=NOTHING, now=_shown(now[key]))
        else:
            yield from _walk(was[key], now[key], where)


def _items(was: Sequence[object], now: Sequence[object], at: str) -> Iterator[Difference]:
    for index in range(max(len(was), len(now))):
        where = f"{at}[{index}]"
        if index >= len(now):
            yield Difference(at=where, was=_shown(was[index]), now=NOTHING)
        elif index >= len(was):
            yield Difference(at=where, was=NOTHING, now=_shown(now[index]))
        else:
            yield from _walk(was[index], now[index], where)


def _texts(was: str, now: str, at: str) -> Difference:
    """Two texts, each cut to what is around the first character that differs."""
    shorter = min(len(was), len(now))
    first = next((i for i in range(shorter) if was[i] != now[i]), shorter)
    start = max(first - AROUND, 0)
    return Difference(at=at, was=_window(was, start, first), now=_window(now, start, first))


def _window(text: str, start: int, first: int) -> str:
    end = first + 2 * AROUND
    inner = json.dumps(text[start:end], ensure_ascii=False)
    return f"{'…' if start else ''}{inner}{'…' if end < len(text) else ''}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    most = 4 * AROUND
    return text if len(text) <= most else f"{text[:most]}…"
