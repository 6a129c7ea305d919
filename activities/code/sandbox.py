"""One step of a block in an interpreter: until it calls something outside, ends or fails.

Every name that the block does not define arrives here, also a misspelt one (facts/sandbox, 2.2). The
names that the machine gave are calls outside, those that read the material are answered at once, and
any other is a NameError inside the block.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
import pydantic_monty as monty
import structlog

from activities.code.pool import Pool
from activities.code.session import OTHER_VERSION, BadSession, SavedSession
from activities.code.values import plain_call
from activities.contracts import CodeAnswer, CodeCall, RunCode
from activities.material import MaterialFunctions
from activities.text import readable

__all__ = ["LOADED_SIZE_FACTOR", "BlockEnd", "Printed", "run_step"]

GRACE_SECONDS = 3.0
"""Seconds beyond all time by the clock until a block is ended from outside; the interpreter should do it
itself."""
LOOK_SECONDS = 0.05
"""How often the processor's time is looked at."""
TRY_SECONDS = 5.0
"""For trying a state out; one that takes longer counts as usable."""
LOADED_SIZE_FACTOR = 32
"""A state may need this many times its size when it is loaded. One that could then exceed the memory
limit is tried out first."""
MAX_CAUGHT_ENDS = 100
"""How often a block that catches its end may go on before it is stopped."""
ERROR_CHARS = 4000
"""The longest text of an error."""
NO_VALUE = "\nwhile 0: pass\nNone"
"""Put after each block, because the value of its last expression is not wanted: it could be anything.
The `while` keeps a line that ends in a backslash the error that it is."""
END: monty.ExternalResult = {"exc_type": "SystemExit", "message": "final"}
"""Ends a block and keeps its variables; `except Exception` does not catch it."""

log = structlog.get_logger("ratchet")


@dataclass(slots=True)
class Printed:
    """What a block prints: as many characters as there is `room` for, and how many more there were."""

    room: int
    left_out: int = 0
    kept: list[str] = field(default_factory=list)

    def add(self, stream: str, text: str) -> None:
        """One piece of output, of either stream."""
        kept = text[: self.room]
        self.kept.append(kept)
        self.room -= len(kept)
        self.left_out += len(text) - len(kept)

    def note(self, text: str) -> None:
        """A line of ours in the block's output."""
        self.add("stdout", text)

    @property
    def text(self) -> str:
        """What was kept."""
        return readable("".join(self.kept))


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """Where a step ended: at a call, with an error, or (neither) at the block's end."""

    saved: SavedSession | None
    """The state to go on with; None: it is lost, and the variables are those before the block."""
    call: CodeCall | None = None
    error: str | None = None


class _StateLost(Exception):
    """The block ran out of time or memory, or its interpreter died."""


async def run_step(
    effect: RunCode,
    saved: SavedSession | None,
    pool: Pool,
    printed: Printed,
    functions: MaterialFunctions | None = None,
) -> BlockEnd:
    """Begin the effect's block, or go on in `saved` with its answer, whose value is loaded already.

    Raises `BadSession`, and `OSError` when no interpreter can be had.
    """
    limits = effect.limits
    try:
        async with pool.session(limits) as session:
            block = _Block(effect, session, printed, functions, _ComputingTime(session.worker_pid))
            try:
                async with asyncio.timeout(limits.seconds + pool.patience + GRACE_SECONDS) as clock:
                    watching = asyncio.create_task(block.time.limit(limits.seconds, clock))
                    try:
                        outcome = await block.step(saved)
                    finally:
                        watching.cancel()
            except TimeoutError:
                if not clock.expired():
                    raise
                raise _StateLost(_too_long(block.time.seconds, limits.seconds, pool.patience)) from None
        if outcome.call is None and outcome.saved:
            await _try_out(outcome.saved.dump, effect, pool)
    except (_StateLost, monty.MontyCrashedError) as error:
        return BlockEnd(None, error=str(error))
    return outcome


async def _try_out(dump: bytes, effect: RunCode, pool: Pool) -> None:
    """Raise `_StateLost` if the next block could not begin with this state: then none ever could."""
    if len(dump) * LOADED_SIZE_FACTOR <= effect.limits.memory_bytes:
        return
    try:
        async with asyncio.timeout(TRY_SECONDS), pool.session(effect.limits) as session:
            await session.load_session(dump)
            await session.feed_start("None")
    except monty.MontyRuntimeError as error:
        raise _StateLost(f"{error}: the variables leave no memory for another block") from error
    except OSError as error:
        # The block has ended well and nothing is known against its state, so it is kept.
        log.warning("code.not_tried", error=str(error))


class _ComputingTime:
    """Seconds that a block computes, of the processor: on a busy machine one of them takes many by the
    clock. Systems count in hundredths, so a step of less may count as none; the number of steps has its own
    limit. By the clock alone where the system does not tell."""

    def __init__(self, pid: int | None) -> None:
        """`pid`: of its interpreter."""
        self._process: psutil.Process | None = None
        with suppress(psutil.Error):  # it has ended
            self._process = None if pid is None else psutil.Process(pid)
        self._before = self._newest = 0.0
        self._began: float | None = None
        """What the processor's time was when it began to compute; None: it does not compute."""

    @property
    def seconds(self) -> float:
        """So far."""
        return self._before if self._began is None else self._before + self._now() - self._began

    def begin(self, before: float) -> None:
        """It computes from now on, and has done so before."""
        self._before, self._began = before, self._now()

    def stop(self) -> None:
        """It does not compute any more."""
        self._before, self._began = self.seconds, None

    async def limit(self, most: float, clock: asyncio.Timeout) -> None:
        """End what the clock is for once it has computed for longer."""
        while self.seconds <= most:  # noqa: ASYNC110  # the system has no event for it
            await asyncio.sleep(LOOK_SECONDS)
        clock.reschedule(asyncio.get_running_loop().time())

    def _now(self) -> float:
        if self._process is None:
            return time.monotonic()
        with suppress(psutil.Error):  # it has ended
            used = self._process.cpu_times()
            self._newest = used.user + used.system
        return self._newest


@dataclass(slots=True)
class _Block:
    """A block in one interpreter, for the length of one step."""

    effect: RunCode
    session: monty.AsyncMontySession
    printed: Printed
    functions: MaterialFunctions | None
    time: _ComputingTime
    calls: int = 0
    """Outside calls of the block so far, over all its steps."""
    ending: bool = False
    """The block has to end: every further call ends it again, should it catch that."""
    ends: int = 0
    """How often it went on all the same."""
    too_many: bool = False
    """It has to end because it made too many calls."""

    async def step(self, saved: SavedSession | None) -> BlockEnd:
        """Run to a call, an error or the end. Raises `_StateLost` and `BadSession`."""
        if saved is None:
            call, error = await self._run(self._begin(self.effect.inputs))
        elif saved.waiting:
            self.calls = saved.calls
            call, error = await self._run(self._go_on(await self._load(saved)), saved.seconds)
        else:
            await self._load(saved)
            call, error = await self._run(self._begin({}))
        dump = await self._dumped()
        kept = SavedSession(
            dump=dump, waiting=call is not None, calls=self.calls, seconds=self.time.seconds if call else 0
        )
        return BlockEnd(kept, call, error)

    async def _load(self, saved: SavedSession) -> monty.AsyncSnapshot | None:
        """The state is in the interpreter; where its block waits, if one does."""
        try:
            if saved.waiting:
                return await self.session.load_snapshot(saved.dump, print_callback=self.printed.add)
            await self.session.load_session(saved.dump)
        except (monty.MontyRuntimeError, RuntimeError) as error:
            if isinstance(error, monty.MontyRuntimeError) and isinstance(error.exception(), MemoryError):
                raise _StateLost(f"{error}: the variables leave no memory to go on") from error
            raise BadSession(f"the interpreter cannot read the session ({error}); {OTHER_VERSION}") from error
        return None

    async def _dumped(self) -> bytes:
        try:
            dump = await self.session.dump()
        except monty.MontyRuntimeError as error:
            raise _StateLost(str(error)) from error
        most = self.effect.limits.state_bytes
        if len(dump) > most:
            raise _StateLost(
                f"MemoryError: the variables take {len(dump):,} bytes; at most {most:,} are kept from step "
                "to step and at each outside call. Keep results instead of whole texts, and set variables "
                "that are no longer needed to None."
            )
        return dump

    async def _begin(self, inputs: dict[str, Any]) -> monty.AsyncSnapshot:
        source = readable(self.effect.block or "")
        if inputs:
            # Apart from the block, so that they are set even if it is not Python.
            await self.session.feed_start("None", inputs=inputs)
        try:
            return await self.session.feed_start(
                source.removesuffix("\n") + NO_VALUE, print_callback=self.printed.add
            )
        except monty.MontySyntaxError:
            # Again as it was written, for an error about nothing else.
            return await self.session.feed_start(source, print_callback=self.printed.add)

    async def _go_on(self, at: monty.AsyncSnapshot | None) -> monty.AsyncSnapshot:
        if not isinstance(at, monty.AsyncFunctionSnapshot):
            raise BadSession(f"the session waits at {type(at).__name__}, not for the answer to a call")
        answer = self.effect.answer
        if answer is None or answer.stop:
            self.ending = True
            return await at.resume(END)
        return await at.resume(_resumption(answer))

    async def _run(
        self, start: Awaitable[monty.AsyncSnapshot], before: float = 0
    ) -> tuple[CodeCall | None, str | None]:
        """The call that the block waits for, or its error; neither at its end. `before`: what it has computed
        in earlier steps, in seconds."""
        self.time.begin(before)
        try:
            return await self._ran(start)
        finally:
            self.time.stop()

    async def _ran(self, start: Awaitable[monty.AsyncSnapshot]) -> tuple[CodeCall | None, str | None]:
        try:
            at: monty.AsyncSnapshot | CodeCall = await start
            while not isinstance(at, monty.MontyComplete):
                if isinstance(at, CodeCall):
                    self.calls += 1
                    return at, None
                at = await self._next(at)
        except monty.MontyCrashedError as error:
            raise _StateLost(_words(error)) from error
        except monty.MontyError as error:
            return None, self._failure(error)
        return None, self._too_many()

    async def _next(self, at: monty.AsyncSnapshot) -> monty.AsyncSnapshot | CodeCall:
        match at:
            case monty.AsyncNameLookupSnapshot():
                name = at.variable_name
                return await (at.resume(value=_stub(name)) if self._knows(name) else at.resume())
            case monty.AsyncFunctionSnapshot() if at.is_os_function:
                return await at.resume_not_handled()
            case monty.AsyncFunctionSnapshot():
                answer = await self._answer(at)
                return answer if isinstance(answer, CodeCall) else await at.resume(answer)
        raise _StateLost(f"the interpreter stopped at {type(at).__name__}, which no block can cause")

    def _knows(self, name: str) -> bool:
        return name in self.effect.names or self._is_ours(name)

    def _is_ours(self, name: str) -> bool:
        return self.functions is not None and name in self.functions.names

    async def _answer(self, at: monty.AsyncFunctionSnapshot) -> CodeCall | monty.ExternalResult:
        """What a call gets at once; a `CodeCall` if the machine has to answer it."""
        name = str(at.function_name)
        if self.ending:
            self.ends += 1
            if self.ends > MAX_CAUGHT_ENDS:
                raise _StateLost("the block does not end, although it was ended")
            return END
        if not self._knows(name):
            return _raised("NameError", f"name {name!r} is not defined")
        try:
            args, named = at.args, at.kwargs
            if self.functions is not None and self._is_ours(name):
                return {"return_value": await self.functions.call(name, args, named)}
            call = await asyncio.to_thread(plain_call, name, args, named)
        except ValueError as error:
            return _raised("ValueError", str(error))
        except (TypeError, OverflowError) as error:
            return _raised("TypeError", str(error))
        if self.calls >= self.effect.limits.calls:
            self.too_many = self.ending = True
            return END
        return call

    def _failure(self, error: monty.MontyError) -> str | None:
        """The error in words for the model. Raises `_StateLost` where the state cannot be trusted."""
        cause = error.exception()
        if isinstance(cause, TimeoutError | MemoryError):
            raise _StateLost(_words(error)) from error
        if self.ending and isinstance(cause, SystemExit):
            return self._too_many()
        words = _words(error)
        # A short material is the variable `context` too, a long one is not.
        no_context = isinstance(cause, NameError) and "'context'" in str(cause)
        return f"{words}\n{MaterialFunctions.too_long}" if self.functions and no_context else words

    def _too_many(self) -> str | None:
        if not self.too_many:
            return None
        return f"the block was ended after {self.effect.limits.calls:,} calls, the most; use several blocks"


def _too_long(computed: float, most: float, patience: float) -> str:
    """Why a block was ended from outside."""
    if computed > most:
        return f"TimeoutError: the block computed for longer than {most:g} s"
    return (
        f"TimeoutError: the block did not end within {most + patience + GRACE_SECONDS:g} s by the clock; it "
        f"computed for {computed:.1f} s of them and may for {most:g} s: the machine is too busy"
    )


def _resumption(answer: CodeAnswer) -> monty.ExternalResult:
    if answer.error is not None:
        return {"exc_type": "RuntimeError", "message": readable(answer.error)}
    return {"return_value": answer.value}


def _raised(kind: monty.ExcType, message: str) -> monty.ExternalResult:
    return {"exc_type": kind, "message": readable(message[:ERROR_CHARS])}


def _stub(name: str) -> Callable[[], None]:
    """Represents a host function when a block reads its name without calling it."""

    def stub() -> None:
        raise NotImplementedError(name)

    stub.__name__ = name
    return stub


def _words(error: monty.MontyError) -> str:
    """Traceback, type and message, cut in the middle: the end says what happened."""
    shown = error.display() if isinstance(error, monty.MontySyntaxError | monty.MontyRuntimeError) else ""
    text = readable(shown or str(error))
    if len(text) <= ERROR_CHARS:
        return text
    half = ERROR_CHARS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"
