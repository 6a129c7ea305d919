"""The interpreters of a worker: each in a process of its own, used once, with limits set.

The interpreter offers its code no file, no socket, no clock and no randomness. As a second fence its
process is started by a few lines of shell: it works in the root folder, writes no files and no memory
dumps, and ends by itself if its worker is lost. These lines are a file in the data directory.
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
from typing import TYPE_CHECKING

import structlog

from activities.contracts import CodeLimits

if TYPE_CHECKING:  # the library takes a tenth of a second: the pool imports it in a thread, at first use
    import pydantic_monty as monty

__all__ = ["POLICY", "PROCESSES", "NoInterpreter", "Pool"]

PROCESSES = max(2, os.cpu_count() or 2)
"""Blocks that run at the same time in one worker; more wait."""
CHECKOUT_SECONDS = 8
"""Whoever has a place finds an interpreter at once, except while another one ends."""
SUSPENSIONS = 50_000
"""Questions to the host in one step: names, reads of the material, refused calls."""
POLICY: monty.OSPolicy = {
    "datetime": datetime(2025, 1, 1, tzinfo=UTC),
    "random_start": {"seed": 0},
    "sleep": "zero",
}
"""The same block does the same thing each time: the clock does not move and randomness has a seed."""
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
    """No interpreter could be started now."""


class Pool:
    """The interpreters of one event loop, opened at first use. `folder` is where the fence is written."""

    def __init__(self, folder: Path) -> None:
        self.places = asyncio.Semaphore(PROCESSES)
        """Held around all that a step does with interpreters; a step without a place waits here."""
        self._folder = Path(folder).absolute()
        self._fence: Path | None = None
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
                    pool.checkout(limits=_resource_limits(limits), os_policy=POLICY)
                )
            except (RuntimeError, MontyCrashedError) as error:
                raise NoInterpreter(f"no interpreter could be started: {error}") from error
            yield session

    async def open(self) -> monty.AsyncMonty:
        """Import the library and find the interpreter, in a thread: both take long at first use."""
        async with self._opening:
            if self._pool is None:
                self._fence, pool = await asyncio.to_thread(self._made)
                self._pool = await pool.__aenter__()
            elif self._fence is not None and not self._fence.exists():
                await asyncio.to_thread(_fence, self._folder)
            return self._pool

    async def close(self) -> None:
        """End all interpreters; a later call opens the pool again."""
        async with self._opening:
            pool, self._pool = self._pool, None
        if pool is not None:
            await pool.__aexit__(None, None, None)

    def _made(self) -> tuple[Path | None, monty.AsyncMonty]:
        import pydantic_monty

        fence = _fence(self._folder)
        return fence, pydantic_monty.AsyncMonty(
            binary_path=fence and str(fence),
            min_processes=0,
            max_processes=PROCESSES,
            checkout_timeout=CHECKOUT_SECONDS,
            max_checkouts_per_worker=1,
        )


def _fence(folder: Path) -> Path | None:
    """The shell program that starts an interpreter; None: one that works cannot be made."""
    binary = _interpreter()
    if binary is None:
        return None
    source = FENCE.format(binary=shlex.quote(binary))
    path = folder / f"interpreter-{hashlib.sha256(source.encode()).hexdigest()[:16]}.sh"
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_text(source)
        draft.chmod(0o700)
        draft.replace(path)  # whole or not at all: workers share the folder
        subprocess.run([path, "--version"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("code.no_fence", error=str(error))
        return None
    return path


def _interpreter() -> str | None:
    """Where pydantic-monty put its program; None: the library looks for it itself."""
    named = os.environ.get("MONTY_BIN")
    installed = Path(sysconfig.get_path("scripts")) / "monty"
    found = named or (str(installed) if installed.is_file() else shutil.which("monty"))
    return os.path.abspath(found) if found else None


def _resource_limits(limits: CodeLimits) -> monty.ResourceLimits:
    return {
        "max_turn_duration_secs": limits.seconds,
        "max_feed_duration_secs": limits.seconds,
        "max_memory": limits.memory_bytes,
        "max_recursion_depth": limits.recursion,
        "max_suspensions": SUSPENSIONS,
    }
