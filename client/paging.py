"""Lists that a run tells in pages, and that may change while they are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from workflows.people import DoneCall, EffectsPage, Request, RequestsPage

__all__ = ["all_calls", "all_open", "open_and_closed"]

AskRequests = Callable[[int], Awaitable[RequestsPage]]
"""A page of requests from the open one with that index on."""
AskCalls = Callable[[int], Awaitable[EffectsPage]]


async def all_open(ask: AskRequests) -> RequestsPage:
    """All open requests, oldest first, and whether the run stands paused: as they were at one moment."""
    while True:
        page = await ask(0)
        found = page.open
        while page.open and len(found) < page.total:
            page = await ask(len(found))
            # Indices only fall, when an older one closes; then the page has left one out: begin again.
            last = (await ask(len(found) - 1)).open
            if not last or last[0].id != found[-1].id:
                break
            found += page.open
        else:
            return page.model_copy(update={"open": found})


async def open_and_closed(ask: AskRequests) -> tuple[Request, ...]:
    """The same, and the newest closed ones behind them; each request once."""
    while True:
        found = (await all_open(ask)).open
        page = await ask(len(found))
        closed = {one.id for one in page.closed}
        if page.total == len(found) and not any(one.id in closed for one in found):
            return (*found, *page.closed)


async def all_calls(ask: AskCalls) -> tuple[DoneCall, ...]:
    """All calls since a step, oldest first; new ones come behind, and a rollback meanwhile begins anew."""
    calls: tuple[DoneCall, ...] = ()
    while True:
        page = await ask(len(calls))
        if page.total < len(calls):
            calls = ()
            continue
        calls += page.calls
        if not page.calls or len(calls) >= page.total:
            return calls
