"""What is being made at this moment, and whether more may begin: at most ten calls at once, none while they
are held back. A call whose worker cannot begin it waits, and is given out again."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from activities.contracts import NotBegun, ToolCall
from workflows.engine.calls.call_site import call_site
from workflows.engine.run_state import RunState
from workflows.kernel.ledger import Breach
from workflows.kernel.snapshot import Suspension

__all__ = ["CallToBegin", "OutOfTime", "UnderWay", "is_out_of_time", "time_breach"]

T = TypeVar("T")

AT_ONCE = 10
"""Calls of an effect that are performed side by side."""
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 600.0
"""Seconds before a call that was not begun is given out again; each pause is twice the one before."""
MAX_VOID = 100
"""Notes of one call that count for nothing; the oldest ones are dropped."""


class OutOfTime(Exception):
    """A call waits to be begun, and the run's time is over."""


def is_out_of_time(suspension: Suspension, now: float) -> bool:
    """The run has a limit of seconds, and has reached it."""
    return time_breach(suspension, now) is not None


def time_breach(suspension: Suspension, now: float) -> Breach | None:
    """The limit of seconds, where the run has reached it."""
    if "seconds" not in suspension.ledger.caps:
        return None
    ledger = suspension.ledger.with_seconds(now - suspension.snapshot.began)
    return ledger.breach({"seconds": 0})


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that waits to be begun."""

    text: str
    """Which, and why; one line."""
    attempt: int
    """That comes next, or is under way."""
    at: float | None
    """When it comes, in seconds since 1970; None: it is under way."""


@dataclass(frozen=True, slots=True)
class CallToBegin:
    """A call that a worker may be unable to begin."""

    name: str
    title: str
    void: list[float] = field(default_factory=list)
    """When workers tried to note its beginning; what comes is added."""
    limited: bool = True
    """The run's limit of seconds ends the waiting."""
    stoppable: bool = True
    """It ends as soon as calls are held back: the call is taken up again after the pause."""


class UnderWay:
    """The calls of a run that are being made."""

    def __init__(self, run: RunState) -> None:
        self.run = run
        self.waiting: dict[str, WaitingCall] = {}
        """Calls that wait to be begun."""
        self.children: dict[str, dict[str, float]] = {}
        """Inner runs, by workflow id: what each may spend, by counter."""
        self._shown: list[tuple[str, float]] = []
        self.start_over()

    def start_over(self) -> None:
        """The calls of an effect begin."""
        self.since = self.run.suspension
        """The run as it was then."""
        self.tool_calls: dict[str, ToolCall] = {}
        """Being made, by activity id."""
        self.siblings = 0
        """Inner runs side by side that have not begun."""
        self.spare_requests = 0.0
        """Further requests of each question side by side."""
        self.is_stopping = self._is_paused = self._is_left = False
        self._running = 0
        self._news = asyncio.Event()  # set, and replaced, when a call ends or the hold changes
        self._free = asyncio.Semaphore(AT_ONCE)

    # -- stopping --------------------

    def hold(self, held: bool) -> None:
        """Begin no further call, or go on to begin them."""
        self._is_paused = held
        self._tell_news()

    def begin_no_more(self) -> None:
        """Begin no further call, whatever holds others back or not: the effect is taken up again."""
        self._is_left = True
        self._tell_news()

    def stop_now(self) -> None:
        """What is under way is being cancelled: an inner run that ends now was stopped."""
        self._is_left = self.is_stopping = True

    @property
    def is_held(self) -> bool:
        """No further call may begin."""
        return self._is_paused or self._is_left

    @property
    def is_stopped(self) -> bool:
        """What is under way was cancelled, by a command or from outside."""
        return self.is_stopping or self.run.host.cancelled()

    @property
    def titles(self) -> str:
        """Tool calls that are being made, in words."""
        return "; ".join(call.title for call in self.tool_calls.values())

    @property
    def unsafe(self) -> list[str]:
        """Unsafe calls that are being made, in words."""
        specs = self.run.specs
        return [call.title for call in self.tool_calls.values() if not specs[call.tool].repeatable]

    # -- for people --------------------

    @contextmanager
    def shown(self, words: str) -> Iterator[None]:
        """Meanwhile the run's status says this."""
        one = (words, self.run.host.now())
        self._shown.append(one)
        try:
            yield
        finally:
            self._shown.remove(one)

    @property
    def doing(self) -> tuple[str, float] | None:
        """What is being done, in words, and since when; None: nothing."""
        if not self._shown:
            return None
        times = Counter(words for words, _ in self._shown)
        words = "; ".join(f"{one}{f' ({many} at once)' if many > 1 else ''}" for one, many in times.items())
        return words, min(since for _, since in self._shown)

    # -- beginning --------------------

    async def when_free(self, call: Coroutine[Any, Any, T]) -> T:
        """Make the call once it may begin. While calls are held back it waits for those under way: the hold
        may end before they do."""
        try:
            async with self._free:
                while self.is_held and self._running:
                    await self._news.wait()
                if self.is_held:
                    raise asyncio.CancelledError
                self._running += 1
                try:
                    return await call
                finally:
                    self._running -= 1
                    self._tell_news()
        finally:
            call.close()

    def _tell_news(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # -- waiting for a worker --------------------

    @property
    def waits(self) -> bool:
        """Calls wait to be begun, and none of those has been given out."""
        return bool(self.waiting) and all(call.at is not None for call in self.waiting.values())

    async def once_begun(
        self, call: CallToBegin, give_out: Callable[[], Coroutine[Any, Any, T | NotBegun]]
    ) -> T:
        """What a call gives, once a worker could begin it: until then it is given out again and again. Raises
        as `wait_for`."""
        pause, attempt = FIRST_PAUSE, 1
        while isinstance(found := await give_out(), NotBegun):
            times, attempt = call.void, attempt + 1
            times[:] = [*times, *([] if found.at is None else [found.at])][-MAX_VOID:]
            text = f"{call.title} was not begun, and waits: {found.reason}"
            if attempt == 2:
                self.run.log_event("CallWaits", reason=text)
            await self.wait_for(call, WaitingCall(text, attempt, self.run.host.now() + pause))
            pause = min(2 * pause, LONGEST_PAUSE)
        self.waiting.pop(call.name, None)
        return found

    async def wait_for_lost(self, call: CallToBegin, text: str, attempt: int, until: float) -> None:
        """Wait until a lost call is surely over. Raises as `wait_for`."""
        self.run.log_event("CallWaits", reason=text)
        await self.wait_for(call, WaitingCall(text, attempt, until))

    async def wait_for(self, call: CallToBegin, waiting: WaitingCall) -> None:
        """Wait until its time has come. Raises OutOfTime if the call is `limited`, and
        asyncio.CancelledError if it is `stoppable` and calls are held back."""
        assert waiting.at is not None
        run, self.waiting[call.name] = self.run, waiting
        while not (call.stoppable and self.is_held):
            now, caps = run.host.now(), run.suspension.ledger.caps
            if now >= waiting.at:
                self.waiting[call.name] = replace(waiting, at=None)
                return
            if call.limited and is_out_of_time(run.suspension, now):
                raise OutOfTime(waiting.text)
            site = call_site(run.identity, run.suspension, call.name, "", now)
            left = site.seconds if call.limited else math.inf

            def is_over(caps: object = caps) -> bool:
                return (call.stoppable and self.is_held) or run.suspension.ledger.caps != caps

            await run.host.wait(is_over, min(waiting.at - now, left or math.inf), waiting.text)
        raise asyncio.CancelledError
