"""The interpreters of a worker: each in a process of its own, used once, with limits set.

The interpreter offers its code no file, no socket, no clock and no randomness. Its process has an empty
environment, and ends by its own time limit if its worker is lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from activities.contracts import CodeLimits
from activities.installed import missing_extra

if TYPE_CHECKING:  # the library takes a tenth of a second: the pool imports it in a thread, at first use
    import pydantic_monty as monty

__all__ = ["BUSY_MACHINE_SECONDS", "POLICY", "PROCESSES", "NoInterpreter", "NotInstalled", "Pool"]

PROCESSES = max(2, os.cpu_count() or 2)
"""Blocks that run at the same time in one worker; more wait."""
CHECKOUT_SECONDS = 8
"""Whoever has a place finds an interpreter at once, except while another one ends."""
BUSY_MACHINE_SECONDS = 120.0
"""Seconds by the clock that a busy machine may add to those that a block computes."""
MAX_SUSPENSIONS = 50_000
"""Questions to the host in one step: names, reads of the material, refused calls."""
POLICY: monty.OSPolicy = {
    "datetime": datetime(2025, 1, 1, tzinfo=UTC),
    "random_start": {"seed": 0},
    "sleep": "zero",
}
"""The same block does the same thing each time: the clock does not move and randomness has a seed."""


class NoInterpreter(OSError):
    """No interpreter could be started now."""


class NotInstalled(Exception):
    """This worker has no interpreter."""


class Pool:
    """The interpreters of one event loop, opened at first use."""

    def __init__(self, patience: float = BUSY_MACHINE_SECONDS) -> None:
        self.patience = patience
        self.places = asyncio.Semaphore(PROCESSES)
        """Held around all that a step does with interpreters; a step without a place waits here."""
        self._pool: monty.AsyncMonty | None = None
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def session(self, limits: CodeLimits) -> AsyncIterator[monty.AsyncMontySession]:
        """A fresh interpreter. Raises `OSError` when there is none (`NoInterpreter`, `TimeoutError`)."""
        pool = await self.open()
        from pydantic_monty import MontyCrashedError

        async with AsyncExitStack() as stack:
            try:
                session = await stack.enter_async_context(
                    pool.checkout(limits=_resource_limits(limits, self.patience), os_policy=POLICY)
                )
            except (RuntimeError, MontyCrashedError) as error:
                raise NoInterpreter(f"no interpreter could be started: {error}") from error
            yield session

    async def open(self) -> monty.AsyncMonty:
        """Import the library and find the interpreter, in a thread: both take long at first use. Raises
        `NotInstalled`."""
        async with self._opening:
            if self._pool is None:
                pool = await asyncio.to_thread(_new_pool)
                self._pool = await pool.__aenter__()
            return self._pool

    async def close(self) -> None:
        """End all interpreters; a later call opens the pool again."""
        async with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            await pool.__aexit__(None, None, None)


def _new_pool() -> monty.AsyncMonty:
    try:
        import pydantic_monty
    except ModuleNotFoundError as error:
        raise NotInstalled(missing_extra("pydantic_monty")) from error

    return pydantic_monty.AsyncMonty(
        min_processes=0,
        max_processes=PROCESSES,
        checkout_timeout=CHECKOUT_SECONDS,
        max_checkouts_per_worker=1,
    )


def _resource_limits(limits: CodeLimits, patience: float) -> monty.ResourceLimits:
    return {
        # by the clock; the block's own seconds are those of the processor (`sandbox.py`)
        "max_turn_duration_secs": limits.seconds + patience,
        "max_feed_duration_secs": limits.seconds + patience,
        "max_memory": limits.memory_bytes,
        "max_recursion_depth": limits.recursion,
        "max_suspensions": MAX_SUSPENSIONS,
    }
