"""Amounts, times and texts, as terminal and console say them. It imports little: lists need it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from activities.contracts.characters import visible

if TYPE_CHECKING:
    from client.runs.listing import RequestSummary
    from workflows.people import Request

__all__ = [
    "clock", "counted", "indented", "json_line", "one_line", "plain", "pretty_json", "request_line", "spent",
    "time_left", "time_span",
]  # fmt: skip

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def plain(text: str) -> str:
    """The text without characters that steer a terminal or show nothing."""
    return visible(text, lambda _: "\N{REPLACEMENT CHARACTER}", kept="\n\t")


def counted(number: float, noun: str) -> str:
    """`1 step`, `3 steps`."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def time_span(seconds: float) -> str:
    """A length of time, roughly: `40 s`, `3 min`, `2 h`."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def spent(counters: Mapping[str, float], *, nothing: str = "$0") -> str:
    """What a run has spent, in a few words; `nothing` stands for a cost of 0."""
    number = counters.get
    calls = {"model call": number("model_calls", 0), "tool call": number("tool_calls", 0)}
    words = [counted(made, noun) for noun, made in calls.items() if made]
    words += [f"{number('tokens', 0):,.0f} tokens"] if number("tokens") else []
    known = f"${number('cost_usd', 0):.4f}" if number("cost_usd") else ""
    if number("unpriced_calls"):
        words.append(f"cost unknown ({known} known)" if known else "cost unknown")
    elif known or number("tokens"):
        words.append(known or nothing)
    return " · ".join(filter(None, words))


def json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def indented(text: str, lines: int | None = None, by: int = 2) -> str:
    """The text with every line indented; at most `lines` of them."""
    whole = plain(text).strip().splitlines()
    kept = whole[:lines]
    more = [f"… {len(whole) - len(kept)} more lines"] if len(kept) < len(whole) else []
    return "\n".join(f"{' ' * by}{line}" for line in [*kept, *more])


def pretty_json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, indent=2)


def one_line(text: str, limit: int) -> str:
    """The text on one line of at most `limit` characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def clock(at: datetime) -> str:
    """A time of the day, as the local clock has it."""
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


def time_left(at: float, now: float) -> str:
    """A deadline: local time, and how long until then."""
    return f"{clock(datetime.fromtimestamp(at, UTC))}, {f'in {time_span(at - now)}' if at > now else 'now'}"


def request_line(request: Request | RequestSummary, limit: int = 80) -> str:
    """A request on one line: `approval r1: refund(order=1)`."""
    given = ", ".join(f"{name}={json_line(value)}" for name, value in (request.arguments or {}).items())
    what = f"{request.tool}({given})" if request.tool else request.text
    return one_line(f"{request.kind} {request.id}: {what}", limit)
