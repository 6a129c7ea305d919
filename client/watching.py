"""Following a run with what it asks: its records, and requests of its own and of runs inside it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from client.errors import NotAtHand, RatchetError, UnknownRun
from workflows.kernel.log import Record
from workflows.people import Request

if TYPE_CHECKING:
    from client.people import RunCommander

__all__ = ["watch_all"]

LOOK_SECONDS = 1.0
"""How often it is looked whether runs inside a run ask something; their parent's history does not say.
So long it is waited, too, before a run that did not answer is asked again."""
News = asyncio.Queue[Record | Request | None]
"""None: the run is over."""


async def watch_all(agents: RunCommander, run_id: str, since: int) -> AsyncGenerator[Record | Request, None]:
    """Records as `watch` gives them; a request when it opens, at each vote, and when it closes.

    One that is open already is told, too: within a second, when no record says of it.
    """
    if await agents.in_archive(run_id):
        async for record in agents.watch(run_id, since):
            yield record
        return
    news: News = asyncio.Queue()
    requests = _Requests(agents, run_id, news)
    await requests.skip_closed()
    inside = asyncio.create_task(_look_inside(agents, run_id, requests))
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
    """What has been told of each request, so that it is told once; and which runs are still to be asked."""

    def __init__(self, agents: RunCommander, run_id: str, news: News) -> None:
        self._agents, self._run_id, self._news = agents, run_id, news
        self._told: dict[tuple[str, str], Request] = {}
        self._looked = False
        """What was closed before the run that is followed was asked for the first time is no news."""
        self._owed: dict[str, list[Record]] = {run_id: []}
        """Runs to be asked, with the records that said so."""
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def skip_closed(self) -> None:
        """What was over before we looked is no news."""
        with suppress(RatchetError):  # of a run that is over there may be the archive alone
            self._skip(await self._agents.known_requests(self._run_id))

    def _skip(self, found: Iterable[Request]) -> None:
        if not self._looked:
            self._looked = True
            self._told |= {(self._run_id, one.id): one for one in found if one.outcome != "open"}

    async def tell(self, run_id: str, records: Iterable[Record] = (), *, last: bool = False) -> bool:
        """Tell what has opened, or changed, since the last time; False when the run did not answer.

        Then it is asked again, by `again`; the `last` time the records alone say what was closed.
        """
        async with self._asking[run_id]:
            self._owed.setdefault(run_id, []).extend(records)
            found: tuple[Request, ...] = ()
            try:
                found = await self._agents.known_requests(run_id)
            except (NotAtHand, UnknownRun):
                pass  # asking once more would not help
            except RatchetError:  # the worker is away, or slow
                if not last:
                    return False
            if run_id == self._run_id:
                self._skip(found)
            found += tuple(self._gone(run_id, self._owed.pop(run_id, ()), found))
            for one in found:
                if _seen(one) != _seen(self._told.get((run_id, one.id))):
                    self._told[run_id, one.id] = one
                    self._news.put_nowait(one)
        return True

    async def again(self) -> None:
        """Ask the run that is followed, if it is still to be asked."""
        if self._run_id in self._owed:
            await self.tell(self._run_id)

    async def finish(self) -> None:
        """The run is over: what its records say was closed is told even if it answers no more."""
        if self._owed.get(self._run_id):
            await self.tell(self._run_id, last=True)

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
            if about := [record for record in records if record.about]:
                await requests.tell(run_id, about)
        await requests.finish()
    finally:
        news.put_nowait(None)


async def _look_inside(agents: RunCommander, run_id: str, requests: _Requests) -> None:
    """Requests of the runs inside this one, however deep; and its own, where it did not answer."""
    known: dict[str, bytes] = {}
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        await asyncio.gather(requests.again(), _round(agents, run_id, requests, known))


async def _round(agents: RunCommander, run_id: str, requests: _Requests, known: dict[str, bytes]) -> None:
    """Ask those runs inside whose memo is not as `known`; known is what they have answered to."""
    with suppress(RatchetError):
        now = await _inside(agents, run_id)
        now |= {inner: b"" for inner in known if inner not in now}
        moved = [inner for inner, asked in now.items() if known.get(inner, b"") != asked]
        answered = await asyncio.gather(*(requests.tell(inner) for inner in moved))
        known.update({inner: now[inner] for inner, told in zip(moved, answered, strict=True) if told})


async def _inside(agents: RunCommander, run_id: str) -> dict[str, bytes]:
    """The runs at work inside a run, with what each of them asks as its memo has it: one look at each."""
    found: dict[str, bytes] = {}
    inner = (await agents.now(run_id)).children
    while inner:
        looks = await asyncio.gather(*(agents.now(child) for child in inner))
        found |= {child: look.asks for child, look in zip(inner, looks, strict=True)}
        inner = tuple(child for look in looks for child in look.children)
    return found
