"""What a workflow hands to its own activity when both run in one process: the question after the call.

A machine is pure, so what it will ask a model once a tool has answered can be computed where the tool has
run. The workflow hands over how, before it schedules the call; the activity asks at once, and one activity
does what took two. Nothing depends on it: an activity in another process, or a second attempt after its
worker died, finds nothing here and returns the result alone, and the workflow asks the model. It takes a
reply that came early only if its own question has the same digest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import structlog

from activities.contracts import EarlyReply, ModelInput, ModelReplied, ToolResult

__all__ = ["Ask", "Handover", "NextPrompt", "handed_over", "with_early_reply"]

Ask = Callable[[ModelInput], Awaitable[ModelReplied | None]]
"""Asks a model once; None: the workflow asks."""
log = structlog.get_logger("ratchet")


@dataclass(frozen=True, slots=True)
class NextPrompt:
    """A prompt that comes next, and its digest, so that the workflow recognises it."""

    digest: str
    request: ModelInput


@dataclass(slots=True)
class Handover:
    """How to compute the question after one call."""

    question: Callable[[ToolResult, float], NextPrompt | None]
    """From the tool's result and the time in seconds since 1970. None: the machine asks no model next, or
    people come first."""
    is_stopped: bool = False
    on_stop: Callable[[], object] = field(default=lambda: None)
    """Ends a question under way; called in the workflow's thread."""

    def stop(self) -> None:
        """A command came: the tool's result is wanted now, alone."""
        self.is_stopped = True
        with suppress(RuntimeError):  # the worker's loop is closed
            self.on_stop()


_handovers: dict[str, Handover] = {}
"""By the call's idempotency key."""


@contextmanager
def handed_over(key: str, handover: Handover) -> Iterator[None]:
    """The activity with this key finds the handover as long as the block runs."""
    _handovers[key] = handover
    try:
        yield
    finally:
        if _handovers.get(key) is handover:
            del _handovers[key]


async def with_early_reply(key: str, answer: ToolResult, ask_model: Ask) -> ToolResult:
    """The result of the call with this key, with the reply to the question after it if one was handed
    over.

    Nothing goes wrong by the question: when it fails, is stopped by a command or cancelled with the activity,
    the answer comes without a reply, and the workflow asks.
    """
    handover = _handovers.pop(key, None)
    if handover is None:
        return answer
    try:
        question = handover.question(answer, time.time())
        if question is None:
            return answer
        asking = asyncio.ensure_future(ask_model(question.request))
        loop = asyncio.get_running_loop()
        handover.on_stop = lambda: loop.call_soon_threadsafe(asking.cancel)
        if handover.is_stopped:  # looked at behind `on_stop`: a stop comes from another thread
            asking.cancel()
        reply = await asking
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # of machine or provider: the workflow asks again
        log.info("question.not_asked", key=key, reason=type(error).__name__)
        return answer
    if reply is None:
        return answer
    return answer.model_copy(update={"early": EarlyReply(question=question.digest, reply=reply)})
