"""What a person is told while a run takes its time to obey."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

__all__ = ["AFTER_SECONDS", "patiently"]

AFTER_SECONDS = 1.0
"""What takes longer than so is explained."""
R = TypeVar("R")


async def patiently(
    sending: Coroutine[Any, Any, R],
    under_way: Callable[[], Awaitable[str]],
    say: Callable[[str], None],
    after: float = AFTER_SECONDS,
) -> R:
    """What `sending` gives. When it takes longer than `after` seconds, say what the run does meanwhile; when
    it is left then (Ctrl-C), that the message is not taken back by that."""
    sent = asyncio.create_task(sending)
    telling = asyncio.create_task(_tell(under_way, say, after))
    try:
        return await asyncio.shield(sent)
    except asyncio.CancelledError:
        if not sent.done() and telling.done():
            say("it was sent already, and takes effect when that has ended")
        raise
    finally:
        for task in (telling, sent):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _tell(under_way: Callable[[], Awaitable[str]], say: Callable[[str], None], after: float) -> None:
    await asyncio.sleep(after)
    say(f"sent; waits for {await under_way()}")
