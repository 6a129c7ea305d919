"""How often an activity is tried, and what its failure means to a machine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, is_cancelled_exception

from activities.contracts import FATAL, RECOVERABLE, TRANSIENT, EffectFailed, ErrorClass

__all__ = ["CRASHES", "WAIT", "all_of", "attempts_of", "failure_of"]

T = TypeVar("T")

CRASHES = 10
"""Attempts beyond the declared ones, for those that died with their worker."""
WAIT = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
"""An answer that came before the cancellation is taken; a call in flight is told, and ends first."""
_CLASSES: dict[str, ErrorClass] = {TRANSIENT: "transient", RECOVERABLE: "recoverable", FATAL: "fatal"}


async def all_of(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Side by side, until each has ended: when they are stopped, none is left behind under way.

    Raises what the first of them raised.
    """
    found = await asyncio.gather(*calls, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if not isinstance(one, BaseException)]


def attempts_of(attempts: int) -> RetryPolicy:
    """Waits of 1 s, 2 s, 4 s, ... up to a minute (spec 1.5); Retry-After overrides a wait."""
    return RetryPolicy(
        initial_interval=timedelta(seconds=1),
        backoff_coefficient=2,
        maximum_interval=timedelta(minutes=1),
        maximum_attempts=attempts,
    )


def failure_of(error: ActivityError) -> EffectFailed:
    """What the machine is told of an activity that failed for good."""
    if is_cancelled_exception(error):
        raise error
    cause = error.cause
    if isinstance(cause, ApplicationError):
        details = cause.details[0] if cause.details and isinstance(cause.details[0], dict) else {}
        return EffectFailed(
            error=_CLASSES.get(cause.type or "", "fatal"),
            type=str(details.get("type") or cause.type or "error"),
            message=cause.message,
        )
    if isinstance(cause, TimeoutError):
        text = "the call timed out, or its worker died, again and again"
        return EffectFailed(error="transient", type="timeout", message=text)
    return EffectFailed(error="fatal", type=type(cause).__name__, message=str(cause or error))
