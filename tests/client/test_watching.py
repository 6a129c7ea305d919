"""Following a run with what it asks, where the run does not always answer: in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import cast

from client.errors import NotAtHand, NoWorker
from client.live import Now
from client.people import RunCommander
from client.watching import _inside, watch_all
from workflows.kernel.log import Record
from workflows.people import Request


def asked(run: str, outcome: str = "open") -> Request:
    """A request of a run."""
    return Request.model_validate(
        {
            "id": "r1", "kind": "approval", "run": run, "step": 1, "place": "a#1:1", "machine": "m",
            "state": "s", "text": "?", "tool": "t", "arguments": {}, "digest": "d" * 64,
            "options": ("approve",), "created": 1.0, "outcome": outcome,
        }
    )  # fmt: skip


class Runs:
    """A run, and what is inside: `children`; those of `asks` ask one thing from the first record on."""

    def __init__(
        self, *, asks: str, silent: int = 0, children: dict[str, tuple[str, ...]] | None = None
    ) -> None:
        self.children = children or {}
        self.asks = asks
        self.silent = silent
        """So many times the run that asks does not answer."""
        self.begun = False
        self.over = asyncio.Event()
        self.records: tuple[Record, ...] = ()
        self.looks: list[str] = []
        self.error: type[Exception] = NoWorker
        self.queries = 0

    async def in_archive(self, run_id: str) -> bool:
        return False

    async def known_requests(self, run_id: str) -> tuple[Request, ...]:
        if run_id != self.asks or not self.begun:
            return ()
        self.queries += 1
        if self.silent:
            self.silent -= 1
            raise self.error("no answer within 15 s")
        return (asked(run_id),)

    async def now(self, run_id: str) -> Now:
        self.looks.append(run_id)
        return Now(children=self.children.get(run_id, ()), asks=b"1" if run_id == self.asks else b"")

    async def batches(self, run_id: str, since: int) -> AsyncIterator[tuple[Record, ...]]:
        self.begun = True
        if self.records:
            yield self.records
        await self.over.wait()


REQUESTED = Record(
    seq=0, machine="m", state="s", event="Requested", about={"request": "r1", "outcome": "open"}
)
CLOSED = Record(
    seq=1, machine="m", state="s", event="Decided", about={"request": "r1", "outcome": "approved"}
)


async def heard(runs: Runs, seconds: float = 5) -> list[Request]:
    """The requests that are told until the first one is."""
    async with asyncio.timeout(seconds), aclosing(watch_all(cast(RunCommander, runs), "run", 0)) as news:
        async for one in news:
            if isinstance(one, Request):
                return [one]
    return []


async def test_a_request_is_told_though_the_run_did_not_answer_at_first() -> None:
    runs = Runs(asks="run", silent=1)
    runs.records = (REQUESTED,)
    assert [one.run for one in await heard(runs)] == ["run"]


async def test_a_request_of_a_run_inside_is_told_though_it_did_not_answer_at_first() -> None:
    runs = Runs(asks="run/a", silent=1, children={"run": ("run/a",)})
    assert [one.run for one in await heard(runs)] == ["run/a"]


async def test_a_request_that_is_open_already_is_told_without_a_record_of_it() -> None:
    assert [one.id for one in await heard(Runs(asks="run"))] == ["r1"]


async def test_what_the_records_close_is_told_at_the_end_though_the_run_answers_no_more() -> None:
    class Ending(Runs):
        async def batches(self, run_id: str, since: int) -> AsyncIterator[tuple[Record, ...]]:
            self.begun = True
            yield (REQUESTED,)
            self.silent = 99
            yield (CLOSED,)

    runs = cast(RunCommander, Ending(asks="run"))
    told = [one.outcome async for one in watch_all(runs, "run", 0) if isinstance(one, Request)]
    assert told == ["open", "approved"]


async def test_what_cannot_be_read_here_is_not_asked_for_again_and_again() -> None:
    runs = Runs(asks="run", silent=99)
    runs.records, runs.error = (REQUESTED,), NotAtHand
    asyncio.get_running_loop().call_later(2.3, runs.over.set)
    assert await heard(runs) == []
    assert runs.queries == 1


async def test_each_run_inside_is_looked_at_once_a_round_however_deep() -> None:
    inner = tuple(f"run/{n}" for n in range(10))
    runs = Runs(asks="run/3/x", children={"run": inner, "run/3": ("run/3/x",)})
    found = await _inside(cast(RunCommander, runs), "run")
    assert found["run/3/x"] == b"1"
    assert sorted(runs.looks) == sorted(["run", *inner, "run/3/x"])
