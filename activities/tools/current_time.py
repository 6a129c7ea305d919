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
        raise ValueError(
            f"unknown time zone {params.time_zone[:80]!r}; give one like Europe/Berlin"
        ) from None
    now = datetime.now(zone)
    return f"{now.isoformat(timespec='seconds')} ({now:%A}, {params.time_zone})"


TOOL = Tool(
    name="current_time",
    params=Params,
    run=run,
    effect="read",
    timeout_seconds=10,
    news="never",
    brings=(),
    sends="nowhere",
)
