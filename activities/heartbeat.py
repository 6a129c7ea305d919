"""A background heartbeat: says that the worker lives, and lets a cancellation arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog
from temporalio import activity

__all__ = ["beating"]

log = structlog.get_logger(__name__)


@asynccontextmanager
async def beating(
    details: Callable[[], object] | None = None, every_seconds: float = 1.0
) -> AsyncIterator[None]:
    """Heartbeat at once and then every `every_seconds`, as long as the block runs.

    It beats more often where the activity's heartbeat timeout is short: a worker that lives must
    not look dead because one beat came late.

    `details` is asked before each beat for what people may see of the work so far; it must answer
    something that the data converter can write. Only for asynchronous activities.
    """
    allowed = activity.info().heartbeat_timeout
    often = min(every_seconds, allowed.total_seconds() / 4) if allowed else every_seconds
    beats = asyncio.create_task(_beat(details, often))
    try:
        yield
    finally:
        beats.cancel()
        await asyncio.wait({beats})


async def _beat(details: Callable[[], object] | None, every_seconds: float) -> None:
    while True:
        activity.heartbeat(*_seen(details))
        await asyncio.sleep(every_seconds)


def _seen(details: Callable[[], object] | None) -> tuple[object, ...]:
    if details is None:
        return ()
    try:
        return (details(),)
    except Exception:  # a broken preview must not make a live worker look dead
        log.warning("heartbeat.details_failed", exc_info=True)
        return ()
