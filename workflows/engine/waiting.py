"""Cancelling a task, and waiting through a cancellation: both are loops, and each exists once.

asyncio cancels a task once, where it waits. That is not enough if what it waits for ends in the same turn,
or if the task waits for its own children to end. The waiter, too, may be cancelled meanwhile, with the whole
run. It still waits for the end, because what is under way has a result that must not be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

__all__ = ["cancel_until_done", "wait_until_done"]

Wait = Callable[[], Awaitable[Any]]
"""Waits a while, as the host does. Called again while what is waited for has not come."""


async def cancel_until_done(task: asyncio.Future[Any], wait: Wait) -> None:
    """Cancel it until it has ended."""
    while not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError):
            await wait()


async def wait_until_done(is_done: Callable[[], bool], wait: Wait) -> bool:
    """Wait until it is done, also when the waiting task is cancelled meanwhile. True: it was."""
    was_cancelled = False
    while not is_done():
        try:
            await wait()
        except asyncio.CancelledError:
            was_cancelled = True
    return was_cancelled
