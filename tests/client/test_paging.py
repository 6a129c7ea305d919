"""Lists in pages that change while they are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from client.paging import all_calls, all_open, open_and_closed
from tests.client.test_inboxview import request
from workflows.people import DoneCall, EffectsPage, Request, RequestsPage

Change = Callable[["Asker"], None]


class Asker:
    """What a run asks, in pages of two; something happens before some of them is told."""

    def __init__(self, changes: dict[int, Change] | None = None) -> None:
        self.open = [request(id=f"r{n}") for n in range(1, 7)]
        self.closed: list[Request] = []
        self.told = 0
        self._changes = changes or {}

    def close(self, number: int) -> None:
        """One of the open ones is decided."""
        (one,) = (one for one in self.open if one.id == f"r{number}")
        self.open.remove(one)
        self.closed.insert(0, one.model_copy(update={"outcome": "approved"}))

    def ask_one(self) -> None:
        """Another one is opened."""
        self.open.append(request(id=f"r{len(self.open) + len(self.closed) + 1}"))

    async def page(self, since: int) -> RequestsPage:
        """As `requests_page` makes them."""
        self.told += 1
        if self.told in self._changes:
            self._changes.pop(self.told)(self)
        page = tuple(self.open[since : since + 2])
        done = since + len(page) == len(self.open) and not page
        closed = tuple(self.closed) if done else ()
        return RequestsPage(
            open=page, closed=closed, next=since + len(page), total=len(self.open), paused=True
        )


def both(run: Asker) -> None:
    """As many as before, but others."""
    run.close(1)
    run.ask_one()


CHANGES: list[Change] = [lambda run: run.close(1), lambda run: run.close(2), both, Asker.ask_one]


@pytest.mark.parametrize("when", range(1, 12))
@pytest.mark.parametrize("change", CHANGES)
async def test_no_open_request_is_left_out_when_another_one_closes_between_pages(
    change: Change, when: int
) -> None:
    run = Asker({when: change})
    found = await all_open(run.page)
    ids = [one.id for one in found.open]
    assert len(ids) == len(set(ids))
    left = {one.id for one in run.open} - set(ids)
    assert left <= {"r7"}, "one that is opened at the end may have come after the last page"
    assert found.paused


@pytest.mark.parametrize("when", range(1, 12))
@pytest.mark.parametrize("change", CHANGES)
async def test_a_request_that_closes_meanwhile_is_told_once_open_or_closed(change: Change, when: int) -> None:
    run = Asker({when: change})
    ids = [one.id for one in await open_and_closed(run.page)]
    assert len(ids) == len(set(ids))
    assert {f"r{n}" for n in range(1, 7)} <= set(ids)


async def test_a_list_that_is_short_is_one_page() -> None:
    run = Asker()
    run.open = run.open[:2]
    assert [one.id for one in (await all_open(run.page)).open] == ["r1", "r2"]
    assert run.told == 1


async def test_calls_are_read_anew_when_there_are_fewer_than_before() -> None:
    def call(n: int) -> DoneCall:
        return DoneCall(step=n, branch=0, place="p", tool="pay", arguments={}, effect="unsafe")

    calls, asked = [call(n) for n in range(4)], []

    async def page(since: int) -> EffectsPage:
        asked.append(since)
        if len(asked) == 2:
            del calls[1:]
        found = tuple(calls[since : since + 2])
        return EffectsPage(since_step=0, calls=found, next=since + len(found), total=len(calls))

    assert [one.step for one in await all_calls(page)] == [0]
