"""The activity `run_code`: one step of a block, from its state before to its next call outside.

What a block does wrong is an answer in words for the model. What cannot be mended by trying again,
such as a session of another version, fails with the type `Fatal`; a store or a sandbox that cannot
be used just now with the type `Transient`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import pydantic_monty as monty
import structlog
from pydantic import JsonValue
from pydantic_core import from_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.code_pool import Pool
from activities.code_sandbox import Crashed, Printed, Reached, Resume, Snapshot, Stepper
from activities.code_session import OTHER_VERSION, BadSession, SavedSession, load_session, save_session
from activities.context import BadContext, ContextFunctions, LongText, ShortText
from activities.contracts import FATAL, TRANSIENT
from activities.contracts_code import CodeAnswer, CodeStepped, RunCode
from activities.heartbeat import beating
from activities.store import BlobCorrupt, BlobMissing, BlobStore, StoreError
from activities.tool_output import readable

__all__ = ["CodeActivities"]

GRACE = 3.0
"""Seconds beyond the limit until a step is ended from outside: the interpreter should do it itself."""
OVERHEAD = 12.0
"""Seconds beyond the limit for the whole step, its session and the store with it."""
TRY_SECONDS = 5.0
"""For trying a state out; if that takes longer, the state counts as one that fits."""
TIGHT = 32
"""A state may take so many times more memory when it is loaded; beyond that it is tried out first."""
RESTORED = "The variables are again as they were before this block."

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Ended:
    """What became of a step, before it is put together."""

    session: str
    reached: Reached
    fatal: bool = False


class CodeActivities:
    """The activity around one pool of interpreters; `store` keeps sessions and long texts.

    `overhead`: seconds that a step may take beyond its limit before it is given up as a whole.
    """

    def __init__(self, store: BlobStore, overhead: float = OVERHEAD) -> None:
        self.store, self.overhead = store, overhead
        self.pool = Pool(store.path.parent)

    async def close(self) -> None:
        """End the interpreters."""
        await self.pool.close()

    @activity.defn(name="run_code")
    async def run_code(self, effect: RunCode) -> CodeStepped:
        """Run a block to its next call, its end or its error.

        When all interpreters are busy it waits under heartbeats; its time begins behind that.

        Raises `ApplicationError` of type `Fatal` for a session or a blob that cannot be used, and
        of type `Transient` when the store cannot be used or no interpreter can be had.
        """
        printed = Printed(effect.limits.output_chars)
        async with beating(), self.pool.places:
            started = time.monotonic()
            try:
                ended = await self._in_time(effect, printed)
            except (BadSession, BadContext, BlobMissing, BlobCorrupt) as error:
                raise ApplicationError(str(error), type=FATAL, non_retryable=True) from error
            except (StoreError, OSError) as error:
                raise ApplicationError(str(error), type=TRANSIENT) from error
        seconds = time.monotonic() - started
        log.info("code.stepped", seconds=round(seconds, 3), fatal=ended.fatal)
        return CodeStepped(
            session=ended.session,
            call=ended.reached.call,
            error=ended.reached.error,
            fatal=ended.fatal,
            printed=printed.text,
            left_out=printed.left_out,
            seconds=seconds,
        )

    async def _in_time(self, effect: RunCode, printed: Printed) -> _Ended:
        most = effect.limits.seconds + self.overhead
        try:
            async with asyncio.timeout(most) as limit:
                return await self._step(effect, printed)
        except TimeoutError:
            if not limit.expired():
                raise
            told = f"TimeoutError: the step took longer than {most:g} s\n{RESTORED}"
            return _Ended(effect.before, Reached(error=told), fatal=True)

    async def _step(self, effect: RunCode, printed: Printed) -> _Ended:
        saved = await load_session(effect.session, self.store) if effect.session else None
        _check(effect, saved)
        answer = await self._answer(effect.answer)
        functions = await self._functions(effect, printed)
        try:
            async with self.pool.session(effect.limits) as session:
                stepper = Stepper(effect, session, printed, functions)
                reached, dump = await _within(effect.limits.seconds + GRACE, stepper, saved, answer)
            if reached.call is None and len(dump) * TIGHT > effect.limits.memory_bytes:
                await self._try_out(effect, dump)
        except (Crashed, monty.MontyCrashedError) as error:
            return _Ended(effect.before, Reached(error=f"{error}\n{RESTORED}"), fatal=True)
        state = SavedSession(dump, waiting=reached.call is not None, calls=stepper.calls)
        return _Ended(await save_session(state, self.store), reached)

    async def _try_out(self, effect: RunCode, dump: bytes) -> None:
        """Raise `Crashed` if the next block could not begin: it would fail for ever with such a state."""
        try:
            async with asyncio.timeout(TRY_SECONDS), self.pool.session(effect.limits) as session:
                await session.load_session(dump)
                await session.feed_start("None")
        except monty.MontyRuntimeError as error:
            raise Crashed(f"{error}: the variables leave no memory for another block") from error
        except OSError as error:
            # The block is done and its state is good as far as anybody knows: it is not thrown away.
            log.warning("code.not_tried", error=str(error))

    async def _answer(self, answer: CodeAnswer | None) -> Resume | None:
        """What the interpreter is told; None: the block is to end."""
        if answer is None or answer.stop:
            return None
        if answer.error is not None:
            return {"exc_type": "RuntimeError", "message": readable(answer.error)}
        value = answer.value
        if answer.whole is not None:
            value = (await self.store.get(answer.whole)).decode(errors="replace")
        if answer.parse and isinstance(value, str):
            value = _parsed(value)
        return {"return_value": value}

    async def _functions(self, effect: RunCode, printed: Printed) -> ContextFunctions | None:
        if effect.context is None:
            return None
        if isinstance(effect.context, str):
            return ContextFunctions(ShortText(effect.context), printed.note)
        return ContextFunctions(await LongText.open(effect.context, self.store), printed.note)


def _check(effect: RunCode, saved: SavedSession | None) -> None:
    waiting = saved is not None and saved.waiting
    if effect.block is not None and waiting:
        raise BadSession("a block waits in this session; answer its call before a new one begins")
    if effect.block is None and not waiting:
        raise BadSession("no block waits in this session; give the block to begin")
    if effect.block is None and effect.answer is None:
        raise BadSession("the block in this session waits for an answer, and none came")


async def _within(
    seconds: float, stepper: Stepper, saved: SavedSession | None, answer: Resume | None
) -> tuple[Reached, bytes]:
    """Do the step; raises `Crashed` when it takes longer (which ends the interpreter)."""
    try:
        async with asyncio.timeout(seconds):
            reached = await _reached(stepper, saved, answer)
            return reached, await _dumped(stepper)
    except TimeoutError:
        raise Crashed(f"TimeoutError: the block took longer than {seconds:g} s") from None


async def _dumped(stepper: Stepper) -> bytes:
    """The state to go on with; raises `Crashed` when there is no memory to write it, or it is too large."""
    try:
        dump = await stepper.session.dump()
    except monty.MontyRuntimeError as error:
        raise Crashed(str(error)) from error
    most = stepper.effect.limits.state_bytes
    if len(dump) > most:
        raise Crashed(
            f"MemoryError: the variables take {len(dump):,} bytes, at most {most:,} are kept from step to "
            "step, and at each outside call; keep less in them: results instead of whole texts, and "
            "set variables that are no longer needed to None"
        )
    return dump


async def _reached(stepper: Stepper, saved: SavedSession | None, answer: Resume | None) -> Reached:
    if saved is None:
        return await stepper.begin(stepper.effect.inputs)
    at = await _loaded(stepper, saved)
    if at is None:
        return await stepper.begin({})
    stepper.calls = saved.calls
    return await stepper.go_on(at, answer)


async def _loaded(stepper: Stepper, saved: SavedSession) -> Snapshot | None:
    """The state is in the interpreter; where its block waits, if one does."""
    try:
        if saved.waiting:
            return await stepper.session.load_snapshot(saved.dump, print_callback=stepper.printed.add)
        await stepper.session.load_session(saved.dump)
    except (monty.MontyRuntimeError, RuntimeError) as error:
        if isinstance(error, monty.MontyRuntimeError) and isinstance(error.exception(), MemoryError):
            raise Crashed(f"{error}: the variables leave no memory to go on") from error
        raise BadSession(f"the interpreter cannot read the session ({error}); {OTHER_VERSION}") from error
    return None


def _parsed(text: str) -> JsonValue:
    """The JSON value that the text is, or else the text."""
    try:
        value: JsonValue = from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
    return value
