"""A background heartbeat: says that the worker lives, and lets a cancellation arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio import activity

__all__ = ["LONGEST_PAUSE_SECONDS", "failures_before", "heartbeats", "pause_after"]

LONGEST_PAUSE_SECONDS = 60
"""Seconds, after many failures."""


def pause_after(failures: int) -> timedelta:
    """Seconds to wait after this many failures of a call: 1, 2, 4, ... (spec 1.5).

    Temporal's own policy counts each attempt, also one whose worker was lost or missed a heartbeat."""
    return timedelta(seconds=min(2 ** (failures - 1), LONGEST_PAUSE_SECONDS))


def failures_before() -> int:
    """Attempts of this activity that have failed. Temporal counts those that were lost, too, and keeps only
    the newest heartbeat for the next one, so each heartbeat has the number behind its text."""
    details = activity.info().heartbeat_details
    return int(details[1]) if len(details) > 1 else 0


@asynccontextmanager
async def heartbeats(
    details: Callable[[], tuple[object, ...]] = tuple,
    every_seconds: float = 1.0,
    first_seconds: float | None = None,
) -> AsyncIterator[None]:
    """Heartbeat in the background as long as the block runs; only for asynchronous activities.

    The first heartbeat comes after `every_seconds`, or `first_seconds`: each one costs the server a write,
    and most calls end earlier. Where the activity's heartbeat timeout is short, the pause is a quarter of it.
    `details` gives what people see of the work so far; the data converter must be able to write it.
    """
    timeout = activity.info().heartbeat_timeout
    pause = min(every_seconds, timeout.total_seconds() / 4) if timeout else every_seconds
    later = asyncio.get_running_loop().call_later
    timer: asyncio.TimerHandle

    def beat() -> None:
        nonlocal timer
        timer = later(pause, beat)
        activity.heartbeat(*details())

    timer = later(pause if first_seconds is None else min(first_seconds, pause), beat)
    try:
        yield
    finally:
        timer.cancel()
