"""Tool `current_time`: the worker's clock."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from activities.tools import Tool


class Params(BaseModel, frozen=True, extra="forbid"):
    """Tell the current date and time, with the weekday and the offset from UTC."""

    time_zone: str = Field(default="UTC", description="IANA name, such as `Europe/Berlin`.")


async def run(params: Params) -> str:
    """ISO 8601 with offset, then the weekday and the zone; raises `ValueError` for an unknown zone."""
    from zoneinfo import ZoneInfo

    try:
        zone = ZoneInfo(params.time_zone)
    except (KeyError, ValueError, OSError):
        raise ValueError(_unknown(params.time_zone)) from None
    now = datetime.now(zone)
    return f"{now.isoformat(timespec='seconds')} ({now:%A}, {params.time_zone})"


def _unknown(name: str) -> str:
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    close = get_close_matches(name[:80], sorted(available_timezones()), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "give one like Europe/Berlin"
    return f"unknown time zone {name[:80]!r}; {hint}"


TOOL = Tool(name="current_time", params=Params, run=run, effect="read", timeout_seconds=10)
