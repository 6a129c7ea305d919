"""The sandbox: a pool of interpreters in processes of their own, and one step of a block in one of them.

A step goes on until the block calls something outside, ends or fails. The interpreter offers the
block no file, no socket, no clock and no chance: it has nothing but the names that it is given.
Every checkout is a new process, so that nothing of one run is left for the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import pydantic_monty as monty

from activities.code_session import BadSession
from activities.code_values import plain, readable
from activities.contracts_code import CodeCall, CodeLimits, RunCode

__all__ = ["Crashed", "HostFunctions", "Pool", "Printed", "Reached", "Stepper"]

PROCESSES = 16
"""Blocks that run at the same time in one worker; more wait."""
CHECKOUT_SECONDS = 30
SUSPENSIONS = 200_000
"""Questions to the host per step: names, reads of a long context, calls that are refused."""
MOST_ENDS = 100
"""How often a block that catches its end may go on before it is cut off."""
ERROR_CHARS = 4000
"""What is kept of an error's text."""
POLICY: monty.OSPolicy = {
    "datetime": datetime(2025, 1, 1, tzinfo=UTC),
    "random_start": {"seed": 0},
    "sleep": "zero",
}
"""The same block does the same thing each time: the clock stands still and chance has a seed."""

Snapshot = monty.AsyncSnapshot
Resume = dict[str, Any]
"""How a call is answered: `return_value`, or `exc_type` and `message`."""


class Crashed(Exception):
    """The block ran out of time or memory, or its interpreter died; the state is lost."""


class HostFunctions(Protocol):
    """Functions that a step answers itself, without suspending the block."""

    names: frozenset[str]

    async def call(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The value. Raises TypeError or ValueError with words for the block."""


@dataclass(slots=True)
class Printed:
    """What a block prints: the first `cap` characters, and how many more there were."""

    cap: int
    kept: list[str] = field(default_factory=list)
    length: int = 0
    left_out: int = 0

    def add(self, stream: str, text: str) -> None:
        """One piece of output, of either stream."""
        room = self.cap - self.length
        if room > 0:
            self.kept.append(text[:room])
            self.length += len(self.kept[-1])
        self.left_out += max(len(text) - max(room, 0), 0)

    @property
    def text(self) -> str:
        """All that was kept."""
        return readable("".join(self.kept))


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a step ended: at a call, with an error, or (neither) at the block's end."""

    call: CodeCall | None = None
    error: str | None = None


class Pool:
    """The worker's interpreters; opened at first use, in the event loop that uses it."""

    def __init__(self) -> None:
        self._pool: monty.AsyncMonty | None = None
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def session(self, limits: CodeLimits) -> AsyncIterator[monty.AsyncMontySession]:
        """A fresh interpreter with limits set. Raises TimeoutError when all are busy for long."""
        pool = await self._opened()
        async with pool.checkout(limits=_limits(limits), os_policy=POLICY) as session:
            yield session

    async def close(self) -> None:
        """End all interpreters; a later call opens the pool again."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.__aexit__(None, None, None)

    async def _opened(self) -> monty.AsyncMonty:
        async with self._opening:
            if self._pool is None:
                pool = monty.AsyncMonty(
                    min_processes=0,
                    max_processes=PROCESSES,
                    checkout_timeout=CHECKOUT_SECONDS,
                    max_checkouts_per_worker=1,
                )
                await pool.__aenter__()
                self._pool = pool
            return self._pool


def _limits(limits: CodeLimits) -> monty.ResourceLimits:
    return {
        "max_turn_duration_secs": limits.seconds,
        "max_feed_duration_secs": limits.seconds,
        "max_memory": limits.memory_bytes,
        "max_recursion_depth": limits.recursion,
        "max_suspensions": SUSPENSIONS,
    }


@dataclass(slots=True)
class Stepper:
    """One step of a block in one interpreter."""

    effect: RunCode
    session: monty.AsyncMontySession
    printed: Printed
    host: HostFunctions | None = None
    calls: int = 0
    """Outside calls of the block so far."""
    stopping: bool = False
    """The block is to end: every further call ends it again, should it catch that."""
    ends: int = 0
    """How often it went on nevertheless."""
    refused: bool = False
    """It is to end because it has made too many calls."""

    async def begin(self, inputs: dict[str, Any]) -> Reached:
        """Run a new block; `inputs` are variables that a fresh session begins with."""
        if inputs:
            # On their own, so that they are there even if the block is no Python.
            await self.session.feed_start("None", inputs=inputs)
        # The value of the last expression is not wanted: it could be anything.
        source = readable(self.effect.block or "") + "\n\nNone"
        return await self._run(self.session.feed_start(source, print_callback=self.printed.add))

    async def go_on(self, at: Snapshot, answer: Resume | None) -> Reached:
        """Answer the call at which the block waits; None: the block is to end there."""
        if not isinstance(at, monty.AsyncFunctionSnapshot):
            raise BadSession(f"the session waits for no call but at {type(at).__name__}")
        self.stopping = answer is None
        return await self._run(at.resume(answer or STOP))

    async def _run(self, start: Awaitable[Snapshot]) -> Reached:
        try:
            at: Snapshot | CodeCall = await start
            while not isinstance(at, monty.MontyComplete):
                if isinstance(at, CodeCall):
                    self.calls += 1
                    return Reached(call=at)
                at = await self._next(at)
        except monty.MontyCrashedError as error:
            raise Crashed(_words(error)) from error
        except monty.MontyError as error:
            return Reached(error=self._failure(error))
        return Reached(error=self._too_many() if self.refused else None)

    async def _next(self, at: Snapshot) -> Snapshot | CodeCall:
        match at:
            case monty.AsyncNameLookupSnapshot():
                name = at.variable_name
                return await (at.resume(value=_stub(name)) if self._knows(name) else at.resume())
            case monty.AsyncFunctionSnapshot() if at.is_os_function:
                return await at.resume_not_handled()
            case monty.AsyncFunctionSnapshot():
                answer = await self._answer(at)
                return answer if isinstance(answer, CodeCall) else await at.resume(answer)
        raise Crashed(f"the interpreter stopped at {type(at).__name__}, which no block can ask for")

    def _knows(self, name: str) -> bool:
        return name in self.effect.names or (self.host is not None and name in self.host.names)

    async def _answer(self, at: monty.AsyncFunctionSnapshot) -> CodeCall | Resume:
        """What a call gets at once; a `CodeCall` if others have to answer it."""
        name = str(at.function_name)
        if self.stopping:
            self.ends += 1
            if self.ends > MOST_ENDS:
                raise Crashed("the block does not end, although it was ended")
            return STOP
        if not self._knows(name):
            return _raised("NameError", f"name {name!r} is not defined")
        try:
            args, named = at.args, at.kwargs
            if self.host is not None and name in self.host.names:
                return {"return_value": await self.host.call(name, args, named)}
            call = CodeCall(
                name=name,
                args=tuple(plain(value, f"argument {n} of {name}") for n, value in enumerate(args, 1)),
                named={readable(key): plain(value, f"{key} of {name}") for key, value in named.items()},
            )
        except TypeError as error:
            return _raised("TypeError", str(error))
        except ValueError as error:
            return _raised("ValueError", str(error))
        if self.calls >= self.effect.limits.calls:
            self.refused = self.stopping = True
            return STOP
        return call

    def _failure(self, error: monty.MontyError) -> str | None:
        """The error in words for the model; raises `Crashed` where the state cannot be trusted."""
        inner = error.exception()
        if isinstance(inner, TimeoutError | MemoryError):
            raise Crashed(_words(error)) from error
        if self.stopping and isinstance(inner, SystemExit):
            return self._too_many() if self.refused else None
        return _words(error)

    def _too_many(self) -> str:
        limit = self.effect.limits.calls
        return f"the block was ended: it wanted more than {limit:,} calls; use several blocks"


STOP: Resume = {"exc_type": "SystemExit", "message": "final"}


def _raised(kind: str, message: str) -> Resume:
    return {"exc_type": kind, "message": readable(message[:ERROR_CHARS])}


def _stub(name: str) -> Callable[[], None]:
    """What stands for a host function when a block reads its name without calling it."""

    def stub() -> None:
        raise NotImplementedError(name)

    stub.__name__ = name
    return stub


def _words(error: monty.MontyError) -> str:
    """Traceback, type and message, cut in the middle: the end says what happened."""
    known = isinstance(error, monty.MontySyntaxError | monty.MontyRuntimeError)
    text = readable(error.display() if known else str(error))
    if len(text) <= ERROR_CHARS:
        return text
    half = ERROR_CHARS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"
