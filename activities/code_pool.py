"""The interpreters of a worker: each in a process of its own, used once, with limits set.

The interpreter offers what runs in it no file, no socket, no clock and no chance. As a second fence
its process is started by a few lines of shell where there is one: it works in the root folder,
writes no files and no dumps of memory, and ends by itself should its worker be lost. Those lines
are a file of the data directory, because they name the interpreter by its path and hand nothing on.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pydantic_monty as monty
import structlog

from activities.contracts_code import CodeLimits

__all__ = ["NoInterpreter", "Pool"]

PROCESSES = max(2, os.cpu_count() or 2)
"""Blocks that run at the same time in one worker; more wait."""
CHECKOUT_SECONDS = 8
"""Whoever holds a place finds an interpreter at once, but for the moment in which one ends."""
SUSPENSIONS = 50_000
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


class NoInterpreter(OSError):
    """None could be started just now."""


class Pool:
    """Opened at first use, in the event loop that uses it; `folder` is where it puts its fence."""

    def __init__(self, folder: Path) -> None:
        self.places = asyncio.Semaphore(PROCESSES)
        """Hold one around all that a step does with its interpreters: whoever has none waits here."""
        self._folder = folder
        self._pool: monty.AsyncMonty | None = None
        self._opening = asyncio.Lock()
        self._used = 0

    @asynccontextmanager
    async def session(self, limits: CodeLimits) -> AsyncIterator[monty.AsyncMontySession]:
        """A fresh interpreter. Raises OSError when none can be had, also as TimeoutError."""
        async with AsyncExitStack() as stack:
            self._used += 1
            stack.callback(self._give_back)
            try:
                session = await stack.enter_async_context(await self._checkout(limits))
            except (RuntimeError, monty.MontyCrashedError) as error:
                log.warning("code.no_interpreter", error=str(error))
                if self._used > 1:
                    raise NoInterpreter(f"no interpreter could be started: {error}") from error
                session = await self._anew(stack, limits)
            yield session

    async def close(self) -> None:
        """End all interpreters; a later call opens the pool again."""
        async with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            await pool.__aexit__(None, None, None)

    async def _anew(self, stack: AsyncExitStack, limits: CodeLimits) -> monty.AsyncMontySession:
        """Once more with a pool that was opened anew: what it starts may have been moved or removed."""
        await self.close()
        try:
            return await stack.enter_async_context(await self._checkout(limits))
        except (RuntimeError, monty.MontyCrashedError) as error:
            await self.close()
            raise NoInterpreter(f"no interpreter could be started: {error}") from error

    async def _checkout(self, limits: CodeLimits) -> monty.AsyncMontySession:
        return (await self._opened()).checkout(limits=_limits(limits), os_policy=POLICY)

    def _give_back(self) -> None:
        self._used -= 1

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
        source = FENCE.format(binary=shlex.quote(binary))
        name = hashlib.sha256(source.encode()).hexdigest()[:16]
        fence = Path(os.path.abspath(self._folder)) / f"interpreter-{name}.sh"
        try:
            _write_program(fence, source)
            subprocess.run([fence, "--version"], check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("code.no_fence", error=str(error))
            return None
        return str(fence)


def _write_program(path: Path, source: str) -> None:
    """Whole or not at all; the name stands for the content, so that workers may share the folder."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(source)
    draft.chmod(0o700)
    draft.replace(path)


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
