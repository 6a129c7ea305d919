"""One step of a block of code: from the session before it to the block's next call outside.

What a block does wrong is an answer in words for the model. What a retry cannot mend, such as a
session of another version, fails with the type `Fatal`; a store or a sandbox that cannot be used now,
with the type `Transient`. A blob that the store lacks fails with its own type: the run waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
from pydantic import JsonValue
from pydantic_core import from_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.code.pool import NotInstalled, Pool
from activities.code.session import BadSession, SavedSession, load_session, save_session
from activities.contracts import FATAL, TRANSIENT, CodeAnswer, CodeStepped, MaterialRef, RunCode
from activities.heartbeat import heartbeats
from activities.material import Material, MaterialFunctions, Materials
from activities.store.blobs import BlobDamaged, BlobMissing, BlobStore, StoreError

__all__ = ["STEP_OVERHEAD_SECONDS", "UNUSABLE", "CodeActivities", "step_code"]

LACKING = (BlobMissing, BlobDamaged)
UNUSABLE = (BadSession, NotInstalled, *LACKING)
"""What `step_code` raises when a retry does not help."""
STEP_OVERHEAD_SECONDS = 12.0
"""Seconds beyond the block's limit for a whole step: the interpreter's start, the session, the store."""
RESTORED = "The variables are again as they were before this block."

log = structlog.get_logger("ratchet")


class CodeActivities:
    """The activity `run_code` around the interpreters of one worker."""

    def __init__(self, materials: Materials, pool: Pool) -> None:
        self.materials, self.pool = materials, pool

    @activity.defn(name="run_code")
    async def run_code(self, effect: RunCode) -> CodeStepped:
        """Run a block to its next call, its end or its error.

        When all interpreters are busy it waits under heartbeats; the block's time begins after that.

        Raises `ApplicationError` of type `Fatal` for a session that cannot be used or a library that is not
        installed, `BlobMissing` or `BlobDamaged` for material or an output that must be restored first, and
        `Transient` when the store cannot be used or no interpreter starts.
        """
        try:
            async with heartbeats():
                stepped = await step_code(effect, self.materials, self.pool)
        except LACKING as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error
        except (BadSession, NotInstalled) as error:
            raise ApplicationError(str(error), type=FATAL, non_retryable=True) from error
        except (StoreError, OSError) as error:
            raise ApplicationError(str(error), type=TRANSIENT) from error
        log.info("code.stepped", seconds=round(stepped.seconds, 3), fatal=stepped.fatal)
        return stepped


async def step_code(
    effect: RunCode, materials: Materials, pool: Pool, overhead: float = STEP_OVERHEAD_SECONDS
) -> CodeStepped:
    """Run a block to its next call, its end or its error; the activity without Temporal.

    The block's limit is of the processor's time. A step that spends more than `overhead` seconds by the clock
    before or after its block is given up; the variables are then those before the block.

    Raises one of `UNUSABLE` when a retry does not help, and `StoreError` or `OSError` when it may.
    """
    async with pool.places:
        started = time.monotonic()
        try:
            async with asyncio.timeout(None) as clock:
                stepped = await _step(effect, materials, pool, lambda more: _allow(clock, overhead + more))
        except TimeoutError:
            if not clock.expired():
                raise
            error = f"TimeoutError: the step took longer than its block by {overhead:g} s\n{RESTORED}"
            stepped = CodeStepped(session=effect.before, error=error, fatal=True)
        return stepped.model_copy(update={"seconds": time.monotonic() - started})


def _allow(clock: asyncio.Timeout, seconds: float) -> None:
    clock.reschedule(asyncio.get_running_loop().time() + seconds)


async def _step(
    effect: RunCode, materials: Materials, pool: Pool, allow: Callable[[float], None]
) -> CodeStepped:
    """`allow` gives the step more seconds from now on, beside those of its own work."""
    allow(0)
    await pool.open()  # imports the library in a thread, so that the next line finds it
    from activities.code.sandbox import Printed, run_step

    blobs = materials.blobs
    saved = await asyncio.to_thread(load_session, effect.session, blobs) if effect.session else None
    _check(effect, saved)
    printed = Printed(effect.limits.output_chars)
    material = await _material(effect, materials)
    allow(effect.limits.seconds + pool.patience)
    outcome = await run_step(
        effect.model_copy(update={"answer": await _with_value(effect.answer, blobs)}),
        saved,
        pool,
        printed,
        None if material is None else MaterialFunctions(material, printed.note),
    )
    allow(0)
    stepped = CodeStepped(
        session=effect.before,
        call=outcome.call,
        error=outcome.error,
        printed=printed.text,
        left_out=printed.left_out,
    )
    if outcome.saved is None:
        return stepped.model_copy(update={"fatal": True, "error": f"{outcome.error}\n{RESTORED}"})
    session = await asyncio.to_thread(save_session, outcome.saved, blobs)
    return stepped.model_copy(update={"session": session})


def _check(effect: RunCode, saved: SavedSession | None) -> None:
    waiting = saved is not None and saved.waiting
    if effect.block is not None and waiting:
        raise BadSession("a block waits in this session; answer its call before a new block begins")
    if effect.block is None and not waiting:
        raise BadSession("no block waits in this session; give the block to begin")
    if effect.block is None and effect.answer is None:
        raise BadSession("the block in this session waits for an answer, and there is none")


async def _material(effect: RunCode, materials: Materials) -> Material | None:
    if isinstance(effect.material, MaterialRef):
        return await materials.open(effect.material)
    return None if effect.material is None else Material(effect.material.encode(errors="replace"))


async def _with_value(answer: CodeAnswer | None, blobs: BlobStore) -> CodeAnswer | None:
    """The answer with the value that the block receives: a whole output loaded, JSON read."""
    if answer is None or answer.stop or answer.error is not None:
        return answer
    value = answer.value
    if answer.whole is not None:
        value = (await asyncio.to_thread(blobs.get, answer.whole)).decode(errors="replace")
    if answer.parse and isinstance(value, str):
        value = _json_or_text(value)
    return answer.model_copy(update={"value": value})


def _json_or_text(text: str) -> JsonValue:
    """The JSON value that the text is; otherwise the text."""
    try:
        value: JsonValue = from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
    return value
