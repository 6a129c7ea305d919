"""The activity `ask_model`: rebuild the conversation, ask the provider, keep the reply.

The cache that it reads may be empty at any time. Then the activity fails with the type
`CONVERSATION_MISSING`, and the workflow sends everything once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from random import uniform
from typing import NamedTuple

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.contracts import (
    CONVERSATION_MISSING,
    EMPTY_DIGEST,
    FATAL,
    OUT_OF_REQUESTS,
    RECOVERABLE,
    TRANSIENT,
    UNKNOWN_TOOLS,
    Conversation,
    Message,
    ModelInput,
    ModelReplied,
    NativeCall,
    Setup,
    ToolSpec,
)
from activities.endpoints import provider_of, with_provider
from activities.heartbeat import failures_before, heartbeats, pause_after
from activities.images import Images
from activities.pricing import cost_of, estimated_usage
from activities.provider import (
    MAX_CALL_BYTES,
    MAX_CALLS,
    MAX_TEXT_BYTES,
    MUST_WAIT,
    ModelCall,
    Provider,
    ProviderError,
    RequestCount,
    out_of_requests,
    reply_too_large,
)
from activities.rate_limits import NoRoom, RateLimits, Use, estimated_tokens
from activities.store.blobs import StoreError, StoreUnavailable
from activities.store.cache import ConversationCache
from activities.telemetry.report import Telemetry
from activities.text import unicode_of
from activities.tools import TransientError

__all__ = ["ModelActivities", "named_specs"]

TAIL_BYTES = 2048
"""How much of the text so far a heartbeat carries, in UTF-8."""
NAME_CHARS = 300
"""Of a model and of a reason to end, as a server names them."""
ERROR_TYPES = {"transient": TRANSIENT, "recoverable": RECOVERABLE, "fatal": FATAL}
PAUSE_SECONDS = 60
"""After a provider has failed at a question after a tool call, none is asked there for this long."""
AFTER_CALL_SECONDS = 0.3
"""Until a tool's call says that the model is asked in it."""
AWAY_SECONDS = (15, 900)
"""After a question gave its slot back, at first and at most: ten times take about an hour."""

log = structlog.get_logger("ratchet")

Describe = Callable[[Sequence[str]], Awaitable[tuple[ToolSpec, ...]]]
"""Gives the specs of tools. Raises `ApplicationError` of type `UNKNOWN_TOOLS`, and TransientError while an
MCP server is away."""


class _EarlierAttempts(NamedTuple):
    """What the attempts before were. Temporal keeps only the newest heartbeat for the next attempt, so each
    one carries this."""

    given_back: int = 0
    """How many only gave their slot back, to wait elsewhere for a rate limit."""
    requests: int = 0
    """How many requests were sent by those that failed."""
    failures: int = 0
    """How many failed. One that was lost with its worker, or missed a heartbeat, does not count."""

    @property
    def heartbeat_tail(self) -> tuple[int, ...]:
        """What a heartbeat carries after its text."""
        return tuple(self) if any(self) else ()


class ModelActivities:
    """The activity around the worker's providers, its cache of conversations, and the specs of its tools."""

    heartbeat_seconds = 1.0
    """Between two heartbeats, which carry the end of the text so far, or what the question waits for."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        cache: ConversationCache,
        describe: Describe | None = None,
        limits: RateLimits | None = None,
        telemetry: Telemetry | None = None,
        images: Images | None = None,
    ) -> None:
        """Providers by name; `describe` gives the specs of tools."""
        self._telemetry = telemetry or Telemetry()
        self.providers = providers
        self.cache = cache
        self._describe = describe or _no_tools
        self.limits = limits
        self.images = images
        self._paused_until: dict[str, float] = {}
        """By digest of a setup, by the monotonic clock."""
        for name in limits.unknown(providers) if limits else ():
            log.warning("rate_limit.unused", rate_limit=name, providers=", ".join(providers))

    @activity.defn(name="ask_model")
    async def ask_model(self, request: ModelInput) -> ModelReplied:
        """Ask the model for the next message of the conversation.

        Raises `ApplicationError`: of type `CONVERSATION_MISSING` or `UNKNOWN_TOOLS`, or of the type of the
        failure's class with `{"type": cause, "message": words}` as its first detail. The cause `deadline`
        means that the time the run had left was over; the model's own timeout is the cause `timeout`.

        A question that may not wait here for a rate limit fails with the cause `rate_limit`, to be tried
        again later by any worker; this does not count as one of its `attempts`.

        Reply and failure say how many `requests` were sent, over all attempts that ended. What an attempt
        sent that died with its worker is not counted: the next one sends the same bytes, under the same key.
        """
        began, info = time.monotonic(), activity.info()
        before = _EarlierAttempts(*map(int, info.heartbeat_details[1:4]))
        requests = RequestCount(_most_requests(request), before.requests)
        try:
            reply = await self._ask(request, began, requests, before.heartbeat_tail)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if requests.sent < 2 or details is None or not details.cancel_requested:
                raise
            stopped = ProviderError("fatal", "cancelled", "the question was stopped")
            raise _failed(stopped, requests, last=True) from None
        if not isinstance(reply, ProviderError):
            return reply.model_copy(update={"attempt": info.attempt - before.given_back})
        if reply.type != MUST_WAIT:
            if too_long := _wait_beyond(reply, _seconds_left(began)):
                reply = ProviderError(reply.error, reply.type, f"{reply.message}; {too_long}")
            failures = before.failures + 1
            is_last = bool(too_long) or failures >= request.attempts
            if reply.error == "transient" and requests.is_used_up and not is_last:
                reply = out_of_requests(reply.message)
            activity.heartbeat("", before.given_back, requests.sent, failures)  # for the next attempt
            raise _failed(reply, requests, last=is_last, failures=failures)
        first, most = AWAY_SECONDS
        pause = reply.retry_after_seconds or min(first * 2**before.given_back, most) * uniform(0.5, 1)
        pause = min(pause, _seconds_left(began) / 2)
        activity.heartbeat(f"({reply.message})", before.given_back + 1, requests.sent, before.failures)
        raise _failed(ProviderError("transient", "rate_limit", reply.message, pause), requests, last=False)

    async def ask_after_call(
        self, request: ModelInput, began: float, requests: RequestCount
    ) -> ModelReplied | None:
        """Ask once, in the activity of a tool call that began then, by the monotonic clock. `requests` counts
        what is sent, also where no reply comes of it.

        None: the workflow asks, in an activity that may be repeated after a wait. While a provider fails,
        nothing is asked here: it would be asked more often than `attempts` says, and without a wait; nor
        where a rate limit lets it wait: first the tool's result is recorded. Raises `ApplicationError` where
        the cache lacks something.
        """
        now = time.monotonic()
        self._paused_until = {setup: until for setup, until in self._paused_until.items() if until > now}
        if request.setup in self._paused_until:
            return None
        requests.most = _most_requests(request)
        # failures of the tool's attempts; since when the model is asked
        heartbeat_tail = (failures_before(), time.time())
        reply = await self._ask(request, began, requests, heartbeat_tail, waits=False)
        if not isinstance(reply, ProviderError):
            return reply
        if reply.error != "recoverable" and reply.type != OUT_OF_REQUESTS:
            pause = max(PAUSE_SECONDS, reply.retry_after_seconds or 0)
            self._paused_until[request.setup] = time.monotonic() + pause
        return None

    async def _ask(
        self,
        request: ModelInput,
        began: float,
        requests: RequestCount,
        heartbeat_tail: tuple[float, ...],
        *,
        waits: bool = True,
    ) -> ModelReplied | ProviderError:
        """The reply, in an activity that began then; its heartbeats carry `heartbeat_tail` after their text.
        `waits`: for rate limits, as no tool's call does. A failure is returned: what a provider's library
        raised may hold the key, so it must be nobody's cause."""
        started = time.monotonic()
        try:
            described = await self._described(request.describe, heartbeat_tail)
        except TransientError as error:
            return ProviderError("transient", "mcp_server_away", str(error))
        setup, base = self._setup(request, described), self._base(request)
        # reply, rate limits and telemetry name who was asked
        setup = setup.model_copy(update={"model": with_provider(setup.model)})
        tail = ""

        def extend(piece: str) -> None:
            nonlocal tail
            tail = (tail + piece)[-TAIL_BYTES:]

        def show(text: str) -> None:
            nonlocal tail
            tail = text

        call = ModelCall(
            setup=setup,
            conversation=base.add(*self._messages(request)),
            skip=request.skip,
            tool_choice=request.tool_choice,
            key=request.key,
            on_text=extend,
            requests=requests,
        )
        try:
            first = None if waits else AFTER_CALL_SECONDS
            async with heartbeats(lambda: (_tail(tail), *heartbeat_tail), self.heartbeat_seconds, first):
                complete = self._complete(call, began, show if waits else None)
                reply = _with_estimate(_storable(await complete, call), call)
        except ProviderError as error:
            if error.type != MUST_WAIT:
                log.warning("model.failed", model=call.model.name, error=error.error, cause=error.type)
            return error
        conversation = call.conversation.add(reply.message)
        self.cache.save(conversation, base.digest)
        seconds = time.monotonic() - started
        _log(reply, seconds)
        facts = {
            "seconds": seconds,
            "requests": requests.sent,
            "conversation": conversation.digest,
            "tools": described,
        }
        return reply.model_copy(update={**facts, "requested": f"{call.model.provider}/{call.model.name}"})

    async def _described(
        self, names: Sequence[str], heartbeat_tail: tuple[float, ...]
    ) -> tuple[ToolSpec, ...]:
        """The specs of these tools. Raises `ApplicationError` of type `UNKNOWN_TOOLS`, and TransientError
        while an MCP server is away."""
        if not names:
            return ()
        async with heartbeats(lambda: ("(waiting for MCP servers)", *heartbeat_tail), self.heartbeat_seconds):
            return await self._describe(names)

    def _setup(self, request: ModelInput, described: tuple[ToolSpec, ...]) -> Setup:
        if (setup := request.full_setup) is not None:
            if described:
                offered = tuple(spec for name in request.offer for spec in described if spec.name == name)
                setup = setup.model_copy(update={"tools": offered})
            self.cache.save_setup(setup)
            return setup
        setup = self.cache.setup(request.setup)
        if setup is None:
            raise _missing("setup", request.setup)
        return setup

    def _messages(self, request: ModelInput) -> tuple[Message, ...]:
        """The new messages, whole."""
        messages = list(request.messages)
        for quote in request.quotes:
            if (output := self.cache.output(quote.output)) is None:
                raise _missing("output", quote.output)
            output = quote.escape(output) if quote.escaped else output
            content = messages[quote.message].content
            whole = f"{content[: quote.at]}{output}{content[quote.at :]}"
            messages[quote.message] = messages[quote.message].model_copy(update={"content": whole})
        return tuple(messages)

    def _base(self, request: ModelInput) -> Conversation:
        if request.base is None or request.base == EMPTY_DIGEST:
            return Conversation()
        base = self.cache.load(request.base)
        if base is None:
            raise _missing("conversation", request.base)
        return base

    async def _complete(
        self, call: ModelCall, began: float, show: Callable[[str], None] | None
    ) -> ModelReplied:
        model = call.model
        if self.images is not None and any("[image " in message.content for message in call.messages):
            try:
                call = replace(call, images=await asyncio.to_thread(self.images.of, call.messages))
            except StoreError as error:
                away, words = isinstance(error, StoreUnavailable), f"an image cannot be read: {error}"
                raise ProviderError("transient" if away else "fatal", "image_missing", words) from None
        provider = self.providers.get(name := provider_of(model))
        if provider is None:
            available = ", ".join(sorted(self.providers)) or "none"
            words = f"this worker has no model provider {name!r}; it has: {available}"
            raise ProviderError("fatal", "unknown_provider", words)
        use = None if self.limits is None else await self._wait_for_room(self.limits, call, began, show)
        with self._telemetry.asking(call) as asked:
            asked.result = reply = await _reply(provider, call, began)
        tokens = reply.usage.input_tokens + reply.usage.output_tokens
        if self.limits and use is not None and tokens:  # a provider that counts nothing leaves the estimate
            await self.limits.settle(use, tokens)
        return reply

    async def _wait_for_room(
        self, limits: RateLimits, call: ModelCall, began: float, show: Callable[[str], None] | None
    ) -> Use | None:
        """Wait until rate limits let the question pass, and show for what; without `show` it may not wait.

        Raises ProviderError, of type `MUST_WAIT` if it may not wait, or not here.
        """
        model = call.model
        name, tokens = f"{model.provider}/{model.name}", estimated_tokens(call)
        found = await limits.admit(name, tokens)
        if not isinstance(found, NoRoom):
            return found
        waits = f"model {model.name} of {model.provider}: waiting for {found}"
        if show is None:
            raise ProviderError("recoverable", MUST_WAIT, waits)
        show(f"(waiting for {found})")
        log.info("model.waiting", model=model.name, waiting_for=str(found))
        left, room = _seconds_left(began), _seconds_of_attempt(began) - model.timeout_seconds
        waiting = limits.wait(name, tokens)
        stopping = asyncio.ensure_future(activity.wait_for_worker_shutdown())
        first = asyncio.FIRST_COMPLETED
        try:
            with self._telemetry.waiting(name):
                ended, _ = await asyncio.wait((waiting, stopping), timeout=min(left, room), return_when=first)
        finally:
            waiting.cancel()
            stopping.cancel()
        if waiting in ended:
            use = waiting.result()
            show("")
            return use
        if stopping in ended:
            raise ProviderError("recoverable", MUST_WAIT, f"{waits}; its worker stops", 1)
        if left <= room:
            raise ProviderError("transient", "deadline", f"{waits}; the time that the run had left is over")
        advice = "start fewer runs at a time, or raise the limit"
        raise ProviderError("transient", "rate_limit", f"{waits}, for {room:.0f} s; {advice}")


def _wait_beyond(error: ProviderError, left: float) -> str:
    """That the server wants a longer pause than the run has time, in words; empty: it does not."""
    wait = error.retry_after_seconds
    if wait is None or wait <= left:
        return ""
    return f"the server asked to wait {wait:g} s, and the run's limit of seconds leaves {left:.0f} s"


def _most_requests(request: ModelInput) -> float:
    return math.inf if request.most_requests is None else request.most_requests


async def _reply(provider: Provider, call: ModelCall, began: float) -> ModelReplied:
    """The provider's reply within the model's own time and the time that the run has left."""
    model, left = call.model, _seconds_left(began)
    try:
        async with asyncio.timeout(min(model.timeout_seconds, left)) as limit:
            call.requests.begin()  # a run has room for the first one: it was reserved
            return await provider.complete(call)
    except TimeoutError:
        if not limit.expired():
            raise
    what = f"model {model.name} of {model.provider}: no whole reply within"
    if left < model.timeout_seconds:
        raise ProviderError("transient", "deadline", f"{what} the time that the run had left")
    seconds = f"{model.timeout_seconds:g} s; raise timeout_seconds if it needs longer"
    raise ProviderError("transient", "timeout", f"{what} {seconds}")


async def _no_tools(names: Sequence[str]) -> tuple[ToolSpec, ...]:
    return named_specs({}, names)


def named_specs(specs: Mapping[str, ToolSpec], names: Sequence[str]) -> tuple[ToolSpec, ...]:
    """The specs of these tools. Raises `ApplicationError` of type `UNKNOWN_TOOLS`."""
    if missing := [name for name in names if name not in specs]:
        words = f"unknown tools: {', '.join(missing)}. This worker has: {', '.join(specs) or 'none'}"
        raise ApplicationError(words, type=UNKNOWN_TOOLS, non_retryable=True)
    return tuple(specs[name] for name in names)


def _tail(text: str) -> str:
    """At most `TAIL_BYTES` of UTF-8."""
    return text.encode(errors="replace")[-TAIL_BYTES:].decode(errors="ignore")


def _seconds_left(began: float) -> float:
    """Until Temporal ends the activity that began then, minus a moment to report it; infinite without such a
    limit.

    Temporal's own timeout would not tell the run whether the model was slow or the worker dead. Both
    moments are the server's, so a worker's wrong clock does not matter.
    """
    left = _seconds_at_start() - (time.monotonic() - began)
    return left if left == math.inf else max(left - min(1.0, left / 10), 0.0)


def _seconds_at_start() -> float:
    """What the activity's attempts had left when this one began; infinite without a limit for all of them."""
    info = activity.info()
    if not info.schedule_to_close_timeout:
        return math.inf
    return (info.schedule_to_close_timeout - (info.started_time - info.scheduled_time)).total_seconds()


def _seconds_of_attempt(began: float) -> float:
    """Seconds until Temporal ends this attempt. Infinite if the limit for all attempts comes first."""
    timeout = activity.info().start_to_close_timeout
    if timeout is None or timeout.total_seconds() >= _seconds_at_start():
        return math.inf
    return timeout.total_seconds() - (time.monotonic() - began) - 1


def _storable(reply: ModelReplied, asked: ModelCall) -> ModelReplied:
    """The reply as it is stored: valid Unicode, and ids of tool calls that the conversation lacks. Ids that
    are made here are made of all that was sent: no other question of the run has them.

    Raises `ProviderError` if it is too large.
    """
    text = unicode_of(reply.text)
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise reply_too_large("bytes of text", MAX_TEXT_BYTES)
    if len(reply.tool_calls) > MAX_CALLS:
        raise reply_too_large("tool calls", MAX_CALLS)
    calls: list[NativeCall] = []
    if reply.tool_calls:  # servers refuse two results of one id
        used = {call.id for message in asked.conversation for call in message.tool_calls}
        for number, call in enumerate(reply.tool_calls):
            id = unicode_of(call.id)
            if not id or id in used:
                id = f"call_{asked.conversation.digest[:10]}_{number}"
            used.add(id)
            calls.append(NativeCall(id=id, name=unicode_of(call.name), arguments=unicode_of(call.arguments)))
    if sum(len(f"{call.id}{call.name}{call.arguments}".encode()) for call in calls) > MAX_CALL_BYTES:
        raise reply_too_large("bytes of tool calls", MAX_CALL_BYTES)
    kept = unicode_of(reply.kept)
    if len(kept.encode()) > MAX_CALL_BYTES:
        raise reply_too_large("bytes of reasoning", MAX_CALL_BYTES)
    model, reason = unicode_of(reply.model)[:NAME_CHARS], unicode_of(reply.finish_reason)[:NAME_CHARS]
    return reply.model_copy(
        update={
            "text": text, "tool_calls": tuple(calls), "kept": kept, "model": model, "finish_reason": reason,
        }
    )  # fmt: skip


def _with_estimate(reply: ModelReplied, asked: ModelCall) -> ModelReplied:
    """The reply of a provider that counts or prices nothing: with an estimate, and the task's own price."""
    usage = reply.usage
    if not usage.input_tokens + usage.output_tokens:
        usage = estimated_usage(asked.messages, reply.text, reply.tool_calls)
    cost = reply.cost_usd
    if asked.model.price is not None and not cost:
        cost, _ = cost_of(asked.model, usage)
    return reply.model_copy(update={"usage": usage, "cost_usd": cost})


def _log(reply: ModelReplied, seconds: float) -> None:
    used = {"input_tokens": reply.usage.input_tokens, "output_tokens": reply.usage.output_tokens}
    log.info("model.replied", model=reply.model, seconds=round(seconds, 3), cost_usd=reply.cost_usd, **used)


def _missing(what: str, digest: str) -> ApplicationError:
    log.info("model.not_cached", what=what, digest=digest)
    return ApplicationError(
        f"this worker's cache has no {what} {digest}; send it whole",
        type=CONVERSATION_MISSING,
        non_retryable=True,
    )


def _failed(error: ProviderError, requests: RequestCount, last: bool, failures: int = 1) -> ApplicationError:
    final = last or error.error != "transient" or error.type in ("deadline", OUT_OF_REQUESTS)
    wait = timedelta(seconds=error.retry_after_seconds) if error.retry_after_seconds else None
    more = {"requests": requests.sent} if requests.sent > 1 else {}
    return ApplicationError(
        error.message,
        {"type": error.type, "message": error.message, **more},
        type=ERROR_TYPES[error.error],
        non_retryable=final,
        next_retry_delay=wait or (None if final else pause_after(failures)),
    )
