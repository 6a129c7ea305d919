"""One step of a block in an interpreter: until it calls something outside, ends or fails.

Every name that the block does not define itself comes here, also a misspelt one: the names that the
machine gave are calls outside, what looks at the context is answered at once, all else is a NameError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pydantic_monty as monty

from activities.code_session import BadSession
from activities.code_values import plain_call
from activities.contracts_code import CodeCall, RunCode
from activities.tool_output import readable

__all__ = ["Crashed", "HostFunctions", "Printed", "Reached", "Resume", "Snapshot", "Stepper"]

MOST_ENDS = 100
"""How often a block that catches its end may go on before it is cut off."""
ERROR_CHARS = 4000
"""What is kept of an error's text."""
NO_VALUE = "\nwhile 0: pass\nNone"
"""Behind each block: the value of its last expression is not wanted, it could be anything. And no
line that a backslash leaves open goes on with a `while`, so that this stays the error it is."""
Snapshot = monty.AsyncSnapshot
Resume = monty.ExternalResult
"""How a call is answered: `return_value`, or `exc_type` and `message`."""


class Crashed(Exception):
    """The block ran out of time or memory, or its interpreter died; the state is lost."""


class HostFunctions(Protocol):
    """Functions that a step answers itself, without suspending the block."""

    @property
    def names(self) -> frozenset[str]:
        """What it answers."""

    @property
    def hints(self) -> Mapping[str, str]:
        """Names that are not there, and what to use instead."""

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

    def note(self, text: str) -> None:
        """One line of ours among the block's output."""
        self.add("stdout", text)

    @property
    def text(self) -> str:
        """All that was kept."""
        return readable("".join(self.kept))


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a step ended: at a call, with an error, or (neither) at the block's end."""

    call: CodeCall | None = None
    error: str | None = None


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
    missing: set[str] = field(default_factory=set)
    """Names with a hint that were looked up."""

    async def begin(self, inputs: dict[str, Any]) -> Reached:
        """Run a new block; `inputs` are variables that a fresh session begins with."""
        return await self._run(self._fed(readable(self.effect.block or ""), inputs))

    async def go_on(self, at: Snapshot, answer: Resume | None) -> Reached:
        """Answer the call at which the block waits; None: the block is to end there."""
        if not isinstance(at, monty.AsyncFunctionSnapshot):
            raise BadSession(f"the session waits for no call but at {type(at).__name__}")
        self.stopping = answer is None
        return await self._run(at.resume(answer or STOP))

    async def _fed(self, source: str, inputs: dict[str, Any]) -> Snapshot:
        say = self.printed.add
        if inputs:
            # On their own, so that they are there even if the block is no Python.
            await self.session.feed_start("None", inputs=inputs)
        try:
            return await self.session.feed_start(source.removesuffix("\n") + NO_VALUE, print_callback=say)
        except monty.MontySyntaxError:
            # Once more as it was written, for an error that speaks of nothing else.
            return await self.session.feed_start(source, print_callback=say)

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
                self.missing |= {name} & self._hints.keys()
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
            self.missing |= {name} & self._hints.keys()
            return _raised("NameError", f"name {name!r} is not defined")
        try:
            args, named = at.args, at.kwargs
            if self.host is not None and name in self.host.names:
                return {"return_value": await self.host.call(name, args, named)}
            call = await asyncio.to_thread(_call, name, args, named)
        except ValueError as error:
            return _raised("ValueError", str(error))
        except (TypeError, OverflowError) as error:
            return _raised("TypeError", str(error))
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
        hints = [hint for name, hint in self._hints.items() if name in self.missing and _lacks(inner, name)]
        return "\n".join([_words(error), *hints])

    @property
    def _hints(self) -> Mapping[str, str]:
        return self.host.hints if self.host else {}

    def _too_many(self) -> str:
        limit = self.effect.limits.calls
        return f"the block was ended: it wanted more than {limit:,} calls; use several blocks"


STOP: Resume = {"exc_type": "SystemExit", "message": "final"}


def _call(name: str, args: tuple[object, ...], named: dict[str, object]) -> CodeCall:
    """The call as others may see it; raises `NotPlain`."""
    plain_args, plain_named = plain_call(name, args, named)
    return CodeCall(name=name, args=plain_args, named=plain_named)


def _raised(kind: monty.ExcType, message: str) -> Resume:
    return {"exc_type": kind, "message": readable(message[:ERROR_CHARS])}


def _lacks(error: BaseException, name: str) -> bool:
    return isinstance(error, NameError) and repr(name) in str(error)


def _stub(name: str) -> Callable[[], None]:
    """What stands for a host function when a block reads its name without calling it."""

    def stub() -> None:
        raise NotImplementedError(name)

    stub.__name__ = name
    return stub


def _words(error: monty.MontyError) -> str:
    """Traceback, type and message, cut in the middle: the end says what happened."""
    told = error.display() if isinstance(error, monty.MontySyntaxError | monty.MontyRuntimeError) else ""
    text = readable(told or str(error))
    if len(text) <= ERROR_CHARS:
        return text
    half = ERROR_CHARS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"
