"""What workers know of calls: one that was made is not made again, and a store that cannot know says so."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from activities.contracts import AfterReset, CompensateInput, ReconcileInput, ToolInput
from activities.settings import Settings
from activities.store.call_store import CallsMade
from activities.store.database import SqliteFile
from activities.tools import NotHappened, Tool
from activities.tools.run import CallNotBegun, ToolRunner
from tests.storekit import opened_calls


class Pay(BaseModel):
    """Pay."""

    cents: int = 1


Made = Callable[..., tuple[ToolRunner, list[int]]]
Making = Callable[[CallsMade], Made]


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where calls are written down; there are none yet."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres"))
    return str(tmp_path / "sub" / "calls.db")


@pytest.fixture
def known(place: str) -> Iterator[CallsMade]:
    known = opened_calls(place)
    yield known
    known.database.close()


@pytest.fixture
def making(tmp_path: Path) -> Making:
    """Runners over a store, with a tool of some effect, and what the tool has paid."""

    def over(known: CallsMade) -> Made:
        def make(effect: Any = "unsafe", **more: Any) -> tuple[ToolRunner, list[int]]:
            paid: list[int] = []

            def run(params: Pay) -> str:
                paid.append(params.cents)
                if params.cents < 0:
                    raise ValueError("less than nothing")
                return f"paid {params.cents}"

            def undo(params: Pay, output: str) -> str:
                paid.append(-params.cents)
                return "paid back"

            tool = Tool(name="pay", params=Pay, run=run, effect=effect, compensate=undo)
            settings = Settings(data_dir=tmp_path)
            return ToolRunner({"pay": replace(tool, **more)}, settings, calls=known), paid

        return make

    return over


@pytest.fixture
def runner(making: Making, known: CallsMade) -> Made:
    return making(known)


def request(cents: int = 5, key: str = "w/r/0/a", **more: Any) -> ToolInput:
    return ToolInput(id="c1", tool="pay", arguments={"cents": cents}, key=key, **more)


def reset(*keys: str, since: float = 0) -> AfterReset:
    return AfterReset(since=since, run="w/r/", keys=keys)


@pytest.mark.parametrize("effect", ["keyed", "unsafe"])
async def test_call_that_was_made_returns_its_result(runner: Made, effect: str) -> None:
    tools, paid = runner(effect)
    first = await tools.run_tool(request())
    again = await tools.run_tool(request().model_copy(update={"id": "c2"}))
    assert paid == [5]
    assert again == first.model_copy(update={"id": "c2"})


async def test_failed_keyed_call_is_repeated_but_not_failed_unsafe_call(runner: Made) -> None:
    for effect, times in (("unsafe", 1), ("keyed", 2)):
        tools, tried = runner(effect)
        results = [await tools.run_tool(request(-1, key=effect)) for _ in range(2)]
        assert [one.error for one in results] == ["failed"] * 2
        assert len(tried) == times


async def test_compensation_that_was_made_is_not_made_again(runner: Made) -> None:
    tools, paid = runner()
    undo = CompensateInput(tool="pay", arguments={"cents": 5}, key="w/r/0/a")
    assert [(await tools.compensate_tool(undo)).text for _ in range(2)] == ["paid back"] * 2
    assert paid == [-5]


async def test_compensation_that_failed_can_be_tried_again(runner: Made) -> None:
    """Once its cause is gone."""
    problems: list[Exception] = [ValueError("account closed"), ValueError("try later")]
    undone: list[int] = []

    def undo(params: Pay, output: str) -> str:
        if problems:
            raise problems.pop()
        undone.append(params.cents)
        return "paid back"

    tools, _ = runner(compensate=undo)
    request = CompensateInput(tool="pay", arguments={"cents": 5}, key="w/r/0/a")
    results = [await tools.compensate_tool(request) for _ in range(4)]
    assert [one.ok for one in results] == [False, False, True, True]
    assert undone == [5]


async def test_store_made_at_worker_start_knows_calls_of_later_runs(runner: Made, known: CallsMade) -> None:
    known.make()
    tools, paid = runner()
    result = await tools.run_tool(request(after_reset=reset(since=time.time())))
    assert (result.error, paid) == (None, [5])


async def test_unsafe_call_that_was_only_begun_is_unknown(runner: Made, known: CallsMade) -> None:
    tools, paid = runner()
    await tools.run_tool(request(key="other"))
    made = known.begin("other", "", "")
    assert made is not None
    known.begin("w/r/0/a", made.call, "pay(5)")
    result = await tools.run_tool(request())
    assert (result.error, paid) == ("unknown_outcome", [5])
    assert "begun" in result.output
    assert result.acts_for == tools.tools["pay"].timeout_seconds, "as long as the tool may take"


async def test_different_call_in_place_of_made_one_is_asked_about(runner: Made) -> None:
    """The model decided otherwise after a reset."""
    for effect in ("keyed", "unsafe"):
        tools, paid = runner(effect)
        await tools.run_tool(request(5, key=effect))
        result = await tools.run_tool(request(6, key=effect))
        assert (result.error, paid) == ("unknown_outcome", [5])
        assert 'pay({"cents": 5})' in result.output


async def test_same_call_elsewhere_is_asked_about_after_a_reset(runner: Made) -> None:
    tools, paid = runner()
    await tools.run_tool(request(key="w/r/1/a"))
    elsewhere = await tools.run_tool(request(key="w/r/0/b", after_reset=reset(since=9e12)))
    meant = await tools.run_tool(request(key="w/r/0/b", after_reset=reset("w/r/1/a", since=9e12)))
    assert (elsewhere.error, meant.error, paid) == ("unknown_outcome", None, [5, 5])


async def test_lost_store_knows_no_calls_of_a_reset_run(runner: Made) -> None:
    tools, paid = runner()
    result = await tools.run_tool(request(after_reset=reset(since=1.0)))
    assert (result.error, paid) == ("unknown_outcome", [])
    assert "younger than the run" in result.output


@pytest.fixture(params=["file", "postgres"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> CallsMade:
    """Something else is where the store should be, or nothing."""
    if request.param == "postgres":
        return opened_calls("postgresql://ratchet@127.0.0.1:1/ratchet")
    (tmp_path / "calls.db").write_text("these are my notes, not a database " * 40)
    return CallsMade(tmp_path / "calls.db")


@pytest.mark.parametrize(
    ("effect", "attempt", "after"),
    [("keyed", 1, None), ("unsafe", 1, None), ("keyed", 3, None), ("unsafe", 1, reset())],
    ids=["keyed", "unsafe", "last attempt", "reset"],
)
async def test_call_is_not_begun_where_it_cannot_be_written_down(
    making: Making, damaged: CallsMade, effect: str, attempt: int, after: AfterReset | None
) -> None:
    tools, paid = making(damaged)(effect)
    with pytest.raises(CallNotBegun, match=re.escape(damaged.database.where)):
        await tools.run_tool(request(attempts=3, after_reset=after), attempt)
    with pytest.raises(CallNotBegun):
        await tools.compensate_tool(CompensateInput(tool="pay", arguments={"cents": 5}, key="k"))
    assert paid == []


async def test_lost_call_is_not_looked_up_while_store_is_away(making: Making, damaged: CallsMade) -> None:
    looks: list[str] = []
    tools, _ = making(damaged)(reconcile=lambda key, params: looks.append(key))
    with pytest.raises(CallNotBegun):
        await tools.reconcile_tool(ReconcileInput.model_validate(request().model_dump()))
    assert looks == []


@pytest.mark.parametrize("effect", ["keyed", "unsafe"])
async def test_note_of_a_call_never_begun_counts_for_nothing(
    runner: Made, known: CallsMade, effect: str
) -> None:
    """The store had taken it, and its answer was lost."""
    tools, paid = runner(effect)
    await tools.run_tool(request(key="other"))
    made = known.begin("other", "", "")
    assert made is not None
    at = time.time() - 5
    known.begin("w/r/0/a", made.call, "pay(5)", at=at)
    result = await tools.run_tool(request(void=(1.0, at)))
    assert (result.error, paid) == (None, [5, 5])
    again = await tools.run_tool(request(void=(1.0, at)))
    assert (again, len(paid)) == (result, 2), "the note of the call itself counts"


@pytest.mark.parametrize("effect", ["keyed", "unsafe"])
async def test_result_is_written_once_the_store_is_back(runner: Made, known: CallsMade, effect: str) -> None:
    tools, _ = runner(effect, run=lambda params: leave(known))
    result = await tools.run_tool(request())
    assert result.error is None, "its answer is not lost, and does not wait"
    come_back(known)
    async with asyncio.timeout(60):
        while known.of_run("w")[0].result is None:  # noqa: ASYNC110  # another process could write it
            await asyncio.sleep(0.1)
    assert (known.of_run("w")[0].result or {})["output"] == "paid"


def leave(known: CallsMade) -> str:
    """The store goes away while a tool runs."""
    if isinstance(known.database, SqliteFile):
        known.database.path.rename(known.database.path.with_suffix(".away"))
        known.database.path.mkdir()
    else:
        with known.database.writing("away") as execute:
            execute("ALTER TABLE calls RENAME TO calls_away")
    return "paid"


def come_back(known: CallsMade) -> None:
    """It is there again."""
    if isinstance(known.database, SqliteFile):
        known.database.path.rmdir()
        known.database.path.with_suffix(".away").rename(known.database.path)
    else:
        with known.database.writing("away") as execute:
            execute("ALTER TABLE calls_away RENAME TO calls")


async def test_lost_call_that_was_blocked_does_not_begin(runner: Made) -> None:
    tools, paid = runner()
    assert not (await tools.block_call(request())).begun
    late = await tools.run_tool(request())
    assert (late.error, paid) == ("unknown_outcome", [])


async def test_blocking_a_call_tells_whether_it_was_begun(runner: Made) -> None:
    tools, _ = runner()
    await tools.run_tool(request())
    assert (await tools.block_call(request())).begun


async def test_tool_without_effects_outside_needs_no_store(making: Making, damaged: CallsMade) -> None:
    tools, paid = making(damaged)("idempotent")
    for _ in range(2):
        await tools.run_tool(request())
    assert paid == [5, 5]


async def test_not_happened_is_believed_once_the_time_is_over(runner: Made) -> None:
    looks: list[float] = []
    said: list[str] = []

    def look(key: str, params: Pay) -> NotHappened:
        looks.append(1)
        return NotHappened()

    tools, paid = runner(reconcile=look, timeout_seconds=0.5)
    question = ReconcileInput.model_validate(request().model_dump())
    found = await tools.reconcile_tool(question, heartbeat=said.append)
    late = await tools.run_tool(request())
    assert (found.outcome, len(looks)) == ("not_happened", 2)
    assert "may go on for 0.5 s" in said[0]
    assert (late.error, paid) == ("unknown_outcome", []), "an attempt that begins later is too late"


@pytest.mark.parametrize("ahead", [172_800, -172_800])
async def test_another_workers_wrong_clock_does_not_change_its_calls_duration(
    runner: Made, known: CallsMade, ahead: float
) -> None:
    looks: list[float] = []

    def look(key: str, params: Pay) -> NotHappened:
        looks.append(time.monotonic())
        return NotHappened()

    tools, _ = runner(reconcile=look, timeout_seconds=0.5)
    await tools.block_call(request())
    with known.database.writing("a clock") as execute:
        execute("UPDATE calls SET begun = begun + ?", (ahead,))
    question = ReconcileInput.model_validate(request().model_dump())
    found = await asyncio.wait_for(tools.reconcile_tool(question), 20)
    assert (found.outcome, len(looks)) == ("not_happened", 2)
    assert looks[1] - looks[0] >= 0.5


async def test_locked_store_holds_up_nothing_but_its_own_calls(making: Making, tmp_path: Path) -> None:
    known = CallsMade(tmp_path / "calls.db")
    known.make()
    tools, paid = making(known)()
    lock = sqlite3.connect(tmp_path / "calls.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    calls = [asyncio.create_task(tools.run_tool(request(key=f"w/r/0/{n}"))) for n in range(40)]
    await asyncio.wait_for(asyncio.to_thread(str), 5)  # as blobs and caches are read
    lock.rollback()
    lock.close()
    await asyncio.gather(*calls)
    assert len(paid) == 40
