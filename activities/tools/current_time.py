"""Tool `current_time`: the worker's clock."""

from __future__ import annotations

from datetime import datetime
from difflib import get_close_matches
from zoneinfo import ZoneInfo, available_timezones

from pydantic import BaseModel, Field

from activities.toolbox import Tool


class Params(BaseModel, frozen=True, extra="forbid"):
    """Tell the current date and time, with the weekday and the offset from UTC."""

    time_zone: str = Field(default="UTC", description="IANA name, such as `Europe/Berlin`.")


def run(params: Params) -> str:
    """ISO 8601 with offset, then the weekday and the zone; raises `ValueError` for no zone."""
    now = datetime.now(_zone(params.time_zone))
    return f"{now.isoformat(timespec='seconds')} ({now:%A}, {params.time_zone})"


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        near = get_close_matches(name, sorted(available_timezones()), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; give one like Europe/Berlin"
        raise ValueError(f"there is no time zone {name[:80]!r}{hint}") from None


TOOL = Tool(name="current_time", params=Params, run=run, effect="read", timeout_seconds=10)
