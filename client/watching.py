"""Following a run with what it asks: its records, and requests of its own and of runs inside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from client.errors import RatchetError
from workflows.kernel.log import Record
from workflows.people import Request

if TYPE_CHECKING:
    from client.people import RunCommander

__all__ = ["watch_all"]

LOOK_SECONDS = 1.0
"""How often it is looked whether runs inside a run ask something; their parent's history does not say."""
News = asyncio.Queue[Record | Request | None]
"""None: the run is over."""


async def watch_all(agents: RunCommander, run_id: str, since: int) -> AsyncGenerator[Record | Request, None]:
    """Records as `watch` gives them; a request when it opens, at each vote, and when it closes."""
    if await agents.in_archive(run_id):
        async for record in agents.watch(run_id, since):
            yield record
        return
    news: News = asyncio.Queue()
    requests = _Requests(agents)
    await requests.skip_closed(run_id)
    inside = asyncio.create_task(_look_inside(agents, run_id, requests, news))
    own = asyncio.create_task(_follow(agents, run_id, since, requests, news))
    try:
        while (one := await news.get()) is not None:
            yield one
        await own  # raises what ended it
    finally:
        for task in (inside, own):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


class _Requests:
    """What has been told of each request, so that it is told once."""

    def __init__(self, agents: RunCommander) -> None:
        self._agents = agents
        self._told: dict[tuple[str, str], Request] = {}

    async def skip_closed(self, run_id: str) -> None:
        """What was over before we looked is no news."""
        with suppress(RatchetError):  # of a run that is over there may be the archive alone
            for request in await self._agents.known_requests(run_id):
                if request.outcome != "open":
                    self._told[run_id, request.id] = request

    async def changed(self, run_id: str, records: Iterable[Record] = ()) -> tuple[Request, ...]:
        """Requests of a run that have opened, or changed, since the last time; the records say of some."""
        found: tuple[Request, ...] = ()
        with suppress(RatchetError):  # the worker went away for a moment: the next record asks again
            found = await self._agents.known_requests(run_id)
        found += tuple(self._gone(run_id, records, found))
        new = [one for one in found if _seen(one) != _seen(self._told.get((run_id, one.id)))]
        self._told.update({(run_id, one.id): one for one in new})
        return tuple(new)

    def _gone(self, run_id: str, records: Iterable[Record], found: tuple[Request, ...]) -> Iterator[Request]:
        """Requests that the records closed, and of which the run tells no more: only the newest are told."""
        told = {one.id for one in found}
        for record in records:
            name, outcome = str(record.about.get("request")), record.about.get("outcome")
            known = self._told.get((run_id, name))
            if known is not None and outcome not in (None, "open") and name not in told:
                yield known.model_copy(update={"outcome": outcome, "closed": record.finished})


def _seen(request: Request | None) -> tuple[object, ...]:
    """What makes a request news."""
    return () if request is None else (request.outcome, len(request.votes), request.group, request.deadline)


async def _follow(agents: RunCommander, run_id: str, since: int, requests: _Requests, news: News) -> None:
    """Records of the run; those about people are followed by the requests that they changed."""
    try:
        async for records in agents.batches(run_id, since):
            for record in records:
                news.put_nowait(record)
            about = [record for record in records if record.about]
            for request in await requests.changed(run_id, about) if about else ():
                news.put_nowait(request)
    finally:
        news.put_nowait(None)


async def _look_inside(agents: RunCommander, run_id: str, requests: _Requests, news: News) -> None:
    """Requests of the runs inside this one, however deep."""
    known: dict[str, bytes] = {}
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        with suppress(RatchetError):
            now = await _inside(agents, run_id)
            ended = {inner: b"" for inner in known if inner not in now}
            moved = [inner for inner, asked in {**now, **ended}.items() if known.get(inner, b"") != asked]
            known = now
            for inner in moved:
                for request in await requests.changed(inner):
                    news.put_nowait(request)


async def _inside(agents: RunCommander, run_id: str) -> dict[str, bytes]:
    """The runs at work inside a run, with what each of them asks as its memo has it."""
    found: dict[str, bytes] = {}
    for child in (await agents.now(run_id)).children:
        found[child] = (await agents.now(child)).asks
        found |= await _inside(agents, child)
    return found
