"""Texts of models, tools and people as a page shows them, and times."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from activities.contracts import visible
from client.runs.words import time_span

__all__ = ["clock", "moment", "pretty", "short_id", "shown", "typed"]

SHORT_ID = 28


def shown(value: Any) -> Any:
    """What a template puts on the page for a value: characters that show nothing, or turn the text around
    them, by their number. Markup of the console's own stays as it is."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(value, lambda hidden: f"⟨U+{ord(hidden):04X}⟩", kept="\n\t")


def typed(value: str) -> Markup:
    """The content of a field that a person edits: nothing in it is replaced."""
    return escape(value)


def pretty(value: Any) -> str:
    """A value for people: text as it is, anything else as indented JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def short_id(run: str) -> str:
    """An id cut to fit a line: its beginning and its end. `ratchet` finds a run by either."""
    return run if len(run) <= SHORT_ID else f"{run[: SHORT_ID - 11]}…{run[-10:]}"


def moment(at: float | datetime | None) -> Markup:
    """A time: how long ago, or until then; in full as its title. The page's script keeps it up to date."""
    if at is None:
        return Markup("")
    when = at if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC)
    left = when.timestamp() - time.time()
    text = f"in {time_span(left)}" if left > 0 else f"{time_span(-left)} ago"
    return Markup('<time datetime="{}" title="{:%Y-%m-%d %H:%M:%S} UTC">{}</time>').format(
        when.isoformat(), when.astimezone(UTC), text
    )


def clock(at: float) -> Markup:
    """A time of day, in full as its title."""
    when = datetime.fromtimestamp(at, UTC)
    return Markup(
        '<time class="clock" datetime="{}" title="{:%Y-%m-%d %H:%M:%S} UTC">{:%H:%M:%S}</time>'
    ).format(when.isoformat(), when, when)
