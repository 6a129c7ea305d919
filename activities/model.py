"""The activity `call_model`: rebuild the conversation, ask the provider, keep the reply.

The cache that it reads may be empty at any time. Then the activity fails with the type
`TranscriptMissing`, and the workflow sends everything once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import timedelta

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.contracts import (
    FATAL,
    RECOVERABLE,
    TRANSCRIPT_MISSING,
    TRANSIENT,
    ErrorClass,
    ModelReplied,
    ModelRequest,
    ModelSpec,
    Setup,
)
from activities.heartbeat import beating
from activities.provider import Provider, ProviderCall, ProviderError
from activities.store import StoreError, TranscriptCache
from activities.transcript import EMPTY_DIGEST, Transcript

__all__ = ["TAIL_BYTES", "ModelActivities"]

TAIL_BYTES = 2048
"""How much of the text so far a heartbeat carries."""

ERROR_TYPES: dict[ErrorClass, str] = {
    "transient": TRANSIENT,
    "recoverable": RECOVERABLE,
    "fatal": FATAL,
    "unknown_outcome": FATAL,  # a model call changes nothing outside, so no provider says this
}

log = structlog.get_logger(__name__)


class ModelActivities:
    """The activity around the worker's providers, by name, and its cache of conversations.

    `heartbeat_seconds` is the pause between two heartbeats, which carry the text so far.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        cache: TranscriptCache,
        heartbeat_seconds: float = 1.0,
    ) -> None:
        self.providers = providers
        self.cache = cache
        self.heartbeat_seconds = heartbeat_seconds

    @activity.defn(name="call_model")
    async def call_model(self, request: ModelRequest) -> ModelReplied:
        """Ask the model for the next message.

        Raises `ApplicationError`: of type `TranscriptMissing`, or of the type of the failure's
        class with `{"type": cause, "message": words}` as its first detail.
        """
        started = time.monotonic()
        preview = _Preview()
        async with beating(preview.tail, self.heartbeat_seconds):
            setup = await self._setup(request)
            base = await self._base(request)
            transcript = base.add(*request.messages)
            call = ProviderCall(request.tool_choice, request.key, preview.show)
            try:
                reply = await self._ask(setup, transcript, call)
            except ProviderError as error:
                failure = error
            else:
                seconds = time.monotonic() - started
                return await self._kept(base, transcript, reply, seconds)
        # Outside of `except`: what a provider's library raised must not travel along as a cause.
        raise _failed(failure, setup.model, last=activity.info().attempt >= request.attempts)

    async def _setup(self, request: ModelRequest) -> Setup:
        if request.full_setup is None:
            try:
                return await self.cache.setup(request.setup)
            except StoreError as error:
                raise _missing("setup", request.setup, error) from None
        try:
            await self.cache.save_setup(request.full_setup)
        except StoreError as error:
            log.warning("model.setup_not_kept", error=str(error))
        return request.full_setup

    async def _base(self, request: ModelRequest) -> Transcript:
        if request.base is None:
            return Transcript()
        try:
            return await self.cache.load(request.base)
        except StoreError as error:
            raise _missing("transcript", request.base, error) from None

    async def _ask(self, setup: Setup, transcript: Transcript, call: ProviderCall) -> ModelReplied:
        spec = setup.model
        provider = self.providers.get(spec.provider)
        if provider is None:
            there = ", ".join(sorted(self.providers)) or "none"
            raise ProviderError(
                "fatal",
                "unknown_provider",
                f"this worker has no model provider {spec.provider!r}; it has: {there}",
            )
        try:
            async with asyncio.timeout(spec.timeout_seconds) as limit:
                return await provider.complete(setup, transcript, call)
        except TimeoutError:
            if not limit.expired():
                raise
        raise ProviderError(
            "transient",
            "timeout",
            f"model {spec.name} of {spec.provider}: no whole reply within "
            f"{spec.timeout_seconds:g} s; raise timeout_seconds if it needs longer",
        )

    async def _kept(
        self, base: Transcript, transcript: Transcript, reply: ModelReplied, seconds: float
    ) -> ModelReplied:
        """Store the conversation with the reply; a paid reply is not lost to a full disk."""
        whole = transcript.add(reply.message)
        try:
            await self.cache.save(base.digest if base else EMPTY_DIGEST, whole)
        except StoreError as error:
            log.warning("model.reply_not_kept", error=str(error))
        log.info(
            "model.replied",
            model=reply.model,
            input_tokens=reply.usage.input_tokens,
            output_tokens=reply.usage.output_tokens,
            seconds=round(seconds, 3),
            cost_usd=reply.cost_usd,
        )
        attempt = activity.info().attempt
        return reply.model_copy(update={"transcript": whole.digest, "attempt": attempt, "seconds": seconds})


class _Preview:
    """The text so far, for people who watch."""

    def __init__(self) -> None:
        self._text = ""

    def show(self, text: str) -> None:
        self._text = text

    def tail(self) -> str:
        """The end of the text, at most `TAIL_BYTES` of UTF-8."""
        end = self._text[-TAIL_BYTES:].encode(errors="replace")[-TAIL_BYTES:]
        return end.decode(errors="ignore")


def _missing(what: str, digest: str, error: StoreError) -> ApplicationError:
    log.info("model.not_cached", what=what, digest=digest, reason=str(error))
    return ApplicationError(
        f"the worker's cache has no {what} {digest}: {error}",
        type=TRANSCRIPT_MISSING,
        non_retryable=True,
    )


def _failed(error: ProviderError, spec: ModelSpec, last: bool) -> ApplicationError:
    kind = ERROR_TYPES[error.error]
    log.warning("model.failed", model=spec.name, error=error.error, cause=error.type)
    wait = error.retry_after_seconds
    return ApplicationError(
        error.message,
        {"type": error.type, "message": error.message},
        type=kind,
        non_retryable=last or kind != TRANSIENT,
        # No delay, or one that is over: the retry policy's own.
        next_retry_delay=timedelta(seconds=wait) if wait else None,
    )
