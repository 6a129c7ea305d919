"""The interpreters of a worker: each in a process of its own, used once, with limits set.

The interpreter offers what runs in it no file, no socket, no clock and no chance. As a second fence
its process is started by a few lines of shell where there is one: it works in the root folder,
writes no files and no dumps of memory, and ends by itself should its worker be lost.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pydantic_monty as monty
import structlog

from activities.contracts_code import CodeLimits

__all__ = ["Pool"]

PROCESSES = 16
"""Blocks that run at the same time in one worker; more wait."""
CHECKOUT_SECONDS = 8
SUSPENSIONS = 200_000
"""Questions to the host per step: names, reads of a long context, calls that are refused."""
POLICY: monty.OSPolicy = {
    "datetime": datetime(2025, 1, 1, tzinfo=UTC),
    "random_start": {"seed": 0},
    "sleep": "zero",
}
"""The same block does the same thing each time: the clock stands still and chance has a seed."""
FENCE = """#!/bin/sh
cd / || exit 1
unset OLDPWD
ulimit -c 0
ulimit -f 0
ulimit -t 4000
exec {binary} "$@" 2>/dev/null
"""

log = structlog.get_logger(__name__)


class Pool:
    """Opened at first use, in the event loop that uses it."""

    def __init__(self) -> None:
        self._pool: monty.AsyncMonty | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def session(self, limits: CodeLimits) -> AsyncIterator[monty.AsyncMontySession]:
        """A fresh interpreter. Raises TimeoutError when all are busy for long, and OSError."""
        pool = await self._opened()
        async with pool.checkout(limits=_limits(limits), os_policy=POLICY) as session:
            yield session

    async def close(self) -> None:
        """End all interpreters; a later call opens the pool again."""
        async with self._opening:
            pool, self._pool = self._pool, None
            folder, self._folder = self._folder, None
        if pool is not None:
            await pool.__aexit__(None, None, None)
        if folder is not None:
            await asyncio.to_thread(folder.cleanup)

    async def _opened(self) -> monty.AsyncMonty:
        async with self._opening:
            if self._pool is None:
                pool = monty.AsyncMonty(
                    binary_path=await asyncio.to_thread(self._fenced),
                    min_processes=0,
                    max_processes=PROCESSES,
                    checkout_timeout=CHECKOUT_SECONDS,
                    max_checkouts_per_worker=1,
                )
                await pool.__aenter__()
                self._pool = pool
            return self._pool

    def _fenced(self) -> str | None:
        """The program to start: the fence around the interpreter; None: that itself, without a fence."""
        binary = _interpreter()
        if binary is None:
            return None
        self._folder = tempfile.TemporaryDirectory(prefix="ratchet-sandbox-", ignore_cleanup_errors=True)
        fence = Path(self._folder.name) / "interpreter"
        try:
            fence.write_text(FENCE.format(binary=shlex.quote(binary)))
            fence.chmod(0o700)
            subprocess.run([fence, "--version"], check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("code.no_fence", error=str(error))
            return None
        return str(fence)


def _interpreter() -> str | None:
    """Where pydantic-monty put its program; None: it shall look itself."""
    named = os.environ.get("MONTY_BIN")
    installed = Path(sysconfig.get_path("scripts")) / "monty"
    found = named or (str(installed) if installed.is_file() else shutil.which("monty"))
    return os.path.abspath(found) if found else None


def _limits(limits: CodeLimits) -> monty.ResourceLimits:
    return {
        "max_turn_duration_secs": limits.seconds,
        "max_feed_duration_secs": limits.seconds,
        "max_memory": limits.memory_bytes,
        "max_recursion_depth": limits.recursion,
        "max_suspensions": SUSPENSIONS,
    }
