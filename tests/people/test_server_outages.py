"""People and outages on the real server: no worker, a dying worker, a long run that goes on as new."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from activities.settings import Settings
from client.agent import AgentClient
from client.archived import ArchivedRuns
from tests.conftest import TOOLS, real_server
from tests.people.temporalkit import (
    Handle,
    Person,
    asking_task,
    begun,
    decision,
    listed,
    marks,
    noted,
    reached,
    refusal,
    replayed,
    waits_for,
)
from tests.workflows.trials import act, begin, final, log_of, scripted, task
from worker import build_worker
from workflows.api import AgentResult
from workflows.kernel.log import Record
from workflows.kernel.rebuild import rebuild
from workflows.people import Approvals, Asking, People
from workflows.registry import design, parts

HERE = People()


@pytest.fixture
def own(tmp_path: Path) -> Settings:
    """A worker's settings of this test alone."""
    return Settings(
        data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=(str(TOOLS),), shutdown_seconds=1
    )


@pytest_asyncio.fixture
async def quiet(own: Settings) -> AsyncIterator[Client]:
    """A server that has no worker yet."""
    async with real_server(own) as client:
        yield client


# -- no worker --------------------


async def test_what_is_said_while_no_worker_runs_is_in_force_when_one_comes(
    quiet: Client, own: Settings
) -> None:
    """Also the decision that came in time on a request whose deadline has gone by in between."""
    person = Person.of(quiet)
    people = People(asking=Asking(deadline_seconds=5))
    async with build_worker(quiet, own):
        handle, request = await begun(quiet, asking_task("away", act("mark", line="also"), people=people))
    await person.signal(handle, "decide", {"request": "r1", "digest": "0" * 32, "decision": "approve"})
    await person.signal(handle, "decide", decision(request, "edit", arguments={"line": "back"}))
    await person.signal(handle, "decide", decision(request, "reject", by="bob"))
    await person.signal(handle, "command", {"command": "limits", "limits": {"model_calls": 2}, "by": "ann"})
    assert [ask["id"] for ask in (await (await handle.describe()).memo())["asks"]] == ["r1"]
    await asyncio.sleep(max((request.deadline or 0) - time.time(), 0) + 0.1)
    async with build_worker(quiet, own):
        result = await asyncio.wait_for(handle.result(), 30)
        records = await log_of(handle)
    assert marks(own) == ["back", "also"]
    assert (result.exit_reason, [d.outcome for d in result.decisions]) == ("limit", ["edited"])
    refused = [record for record in records if record.event == "RefusedDecision"]
    assert [record.by for record in refused] == ["somebody (claimed)", "bob (claimed)"]
    assert ["what is asked" in str(refused[0].error), "is closed" in str(refused[1].error)] == [True, True]
    assert [record.event for record in records if record.event in {"Expired", "LimitsSet"}] == ["LimitsSet"]


async def test_a_deadline_that_went_by_while_no_worker_ran_comes_when_one_runs(
    quiet: Client, own: Settings
) -> None:
    people = People(asking=Asking(deadline_seconds=1))
    async with build_worker(quiet, own):
        handle, _ = await begun(quiet, asking_task("never", people=people))
    await asyncio.sleep(1.5)
    async with build_worker(quiet, own):
        result = await asyncio.wait_for(handle.result(), 30)
    assert ([d.outcome for d in result.decisions], (own.files_root / "marks.txt").exists()) == (
        ["expired"],
        False,
    )


# -- a call whose outcome nobody knows --------------------


@asynccontextmanager
async def in_doubt(client: Client, own: Settings, **more: Any) -> AsyncIterator[Handle]:
    """A run whose unsafe call was cut off: its worker was stopped in the middle, another one runs."""
    given = task(
        act("mark_once", line="paid", seconds=60), final("paid it"), tools=("mark_once",), people=HERE, **more
    )
    async with build_worker(client, own):
        handle = await begin(client, given)
        async with asyncio.timeout(30):
            while not (own.files_root / "marks.txt").exists():  # noqa: ASYNC110  # the tool writes it
                await asyncio.sleep(0.02)
    async with build_worker(client, own):
        yield handle


async def test_people_say_that_a_call_happened_and_what_it_gave(quiet: Client, own: Settings) -> None:
    async with in_doubt(quiet, own) as handle:
        request = await waits_for(handle, "outcome")
        assert request.options == ("answer", "retry", "abort")
        assert "Nobody knows whether mark_once" in request.text
        await listed(quiet, "AgentWaiting='outcome'", handle)
        said = decision(request, "answer", text="paid at noon, receipt 7")
        assert (await Person.of(quiet).update(handle, "decide", said))["outcome"] == "answered"
        result = await handle.result()
        assert (result.answer, marks(own)) == ("paid it", ["paid"])
        assert "paid at noon, receipt 7" in str([r.patch for r in await log_of(handle)])
        await replayed(handle, own)


async def test_people_say_that_a_call_did_not_happen_and_it_is_made_again(
    quiet: Client, own: Settings
) -> None:
    """It is in doubt again when its worker goes again: the new request is another one."""
    async with in_doubt(quiet, own) as handle:
        request = await waits_for(handle, "outcome")
        await Person.of(quiet).signal(handle, "decide", decision(request, "retry"))
        await reached(lambda: twice(own))
    async with build_worker(quiet, own):
        again = await waits_for(handle, "outcome", besides=request.id)
        assert again.digest != request.digest
        assert "is closed" in await refusal(handle, "decide", decision(request, "retry", by="bob"))
        await Person.of(quiet).signal(handle, "decide", decision(again, "abort", text="enough"))
        result = await handle.result()
    assert (result.exit_reason, marks(own)) == ("aborted", ["paid", "paid"])
    keys = {line.split()[1] for line in (own.files_root / "marks.txt").read_text().splitlines()}
    assert len(keys) == 1, "it is the same call"


async def twice(own: Settings) -> bool:
    """The call was begun twice."""
    return len(marks(own)) == 2


@pytest.mark.parametrize(("found", "told", "made"), [("happened", "booked it", 1), ("not_happened", "", 4)])
async def test_a_tool_that_finds_out_what_became_of_its_call_is_believed_but_not_for_ever(
    quiet: Client, own: Settings, found: str, told: str, made: int
) -> None:
    """One that never ends in time, and always says that nothing happened, is made again three times."""
    call = act("book", line="it", found=found, seconds=9)
    async with build_worker(quiet, own):
        handle = await begin(quiet, task(call, final("so be it"), tools=("book",), people=HERE))
        if not told:
            request = await waits_for(handle, "outcome")
            await handle.execute_update("decide", decision(request, "answer", text="not booked at all"))
        result = await handle.result()
        assert (result.answer, marks(own)) == ("so be it", ["it"] * made)
        reasons = [record.reason for record in await noted(handle, "Reconciled")]
        assert len(reasons) == made
        assert all(found in reason for reason in reasons)
        observed = str([record.patch for record in await log_of(handle)])
        assert (told or "not booked at all") in observed


# -- a long run --------------------


@pytest_asyncio.fixture
async def short(own: Settings) -> AsyncIterator[Client]:
    """A server that wants short histories, and a worker."""
    async with (
        real_server(own, "limit.historyCount.suggestContinueAsNew=60") as client,
        build_worker(client, own),
    ):
        yield client


async def run_id(handle: Handle) -> str:
    """Of the run of the chain that is at work."""
    return (await handle.describe()).run_id


async def test_what_people_said_survives_when_a_run_goes_on_as_new(short: Client, own: Settings) -> None:
    """Open requests, approvals for later calls, done calls, and a rollback to before: the archive has it."""
    steps = [act("mark_once", line=f"paid{n}") for n in range(12)]
    handle, request = await begun(short, asking_task("first", *steps, final("all"), people=HERE))
    first = await run_id(handle)
    whole = short.get_workflow_handle(handle.id, result_type=AgentResult)
    remember = {"arguments": {"line": {"matches": "^paid"}}}
    await whole.execute_update("decide", decision(request, "approve"))
    second = await waits_for(whole, besides=request.id)
    await whole.execute_update("decide", decision(second, "approve", remember=remember))
    person = Person.of(short)

    async def continued() -> bool:
        return await run_id(whole) != first

    await reached(continued)
    await person.signal(whole, "command", {"command": "rollback", "step": 1, "by": "ann"})
    again = await waits_for(whole, besides=second.id)
    assert (again.arguments, again.step) == ({"line": "first"}, 1)
    done = (await person.query(whole, "effects", {"step": 1}))["calls"]
    assert [call["arguments"]["line"] for call in done][:2] == ["first", "paid0"]
    await person.update(whole, "decide", decision(again, "reject", text="done before"))
    result = await whole.result()
    assert (result.answer, result.branch) == ("all", 1)
    assert [d.outcome for d in result.decisions] == ["approved", "approved", "rejected"]
    assert marks(own).count("first") == 1
    await whole_log(short, own, whole, result)


async def test_a_rollback_that_needs_a_log_which_is_lost_is_refused_and_changes_nothing(
    short: Client, own: Settings
) -> None:
    steps = [act("mark", line=f"s{n}") for n in range(6)]
    given = task(
        *steps, act("mark_once", line="last"), final("all"), tools=("mark", "mark_once"), people=HERE
    )
    handle = await begin(short, given.model_copy(update={"approvals": Approvals()}))
    first = await run_id(handle)
    whole = short.get_workflow_handle(handle.id, result_type=AgentResult)
    request = await waits_for(whole)
    assert await run_id(whole) != first, "it has gone on as new"
    with sqlite3.connect(own.data_dir / "archive.db") as archive:
        for (table,) in archive.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall():
            archive.execute(f"DELETE FROM {table}")
    answer = await Person.of(short).update(whole, "command", {"command": "rollback", "step": 1})
    assert "archive" in answer
    assert (await waits_for(whole)) == request
    await whole.execute_update("decide", decision(request, "approve"))
    assert (await whole.result()).answer == "all"


async def whole_log(client: Client, own: Settings, handle: Handle, result: AgentResult) -> list[Record]:
    """One log over all runs of the chain, from which the state can be rebuilt."""
    agents = AgentClient(client, ArchivedRuns(own.data_dir / "archive.db"), ui=None, where="here")
    records = list(await agents.records(handle.id, full=True))
    assert [record.seq for record in records] == list(range(result.records))
    known = design("react")
    state, _ = rebuild(known.build(known.options(), parts()), records)
    assert state.value == result.state
    return records


async def test_an_open_request_and_a_pause_go_on_in_the_new_run(short: Client, own: Settings) -> None:
    handle, request = await begun(short, asking_task("kept"))
    first, person = await run_id(handle), Person.of(short)
    whole = short.get_workflow_handle(handle.id, result_type=AgentResult)
    for number in range(40):
        await whole.signal("decide", {"request": "r1", "digest": f"{number}", "decision": "approve"})
    await person.update(whole, "command", {"command": "pause", "id": "lunch"})

    async def continued() -> bool:
        return await run_id(whole) != first

    await reached(continued)
    assert await waits_for(whole) == request
    status = await person.query(whole, "status")
    assert (status["paused"], status["waiting"]) == (True, "approval")
    await whole.execute_update("command", {"command": "pause", "id": "lunch"})  # known, so it does nothing
    assert (await whole.execute_update("decide", decision(request, "approve")))["outcome"] == "approved"
    await listed(short, "AgentWaiting='paused'", whole)
    assert not (own.files_root / "marks.txt").exists()
    await person.signal(whole, "command", {"command": "resume"})
    result = await whole.result()
    assert (result.ok, marks(own)) == (True, ["kept"])
    records = await whole_log(short, own, whole, result)
    assert len([record for record in records if record.event == "RefusedDecision"]) == 40


async def test_what_a_run_before_has_left_in_the_list_is_taken_out(short: Client) -> None:
    """Temporal hands search attributes on to the next run of a chain, and whoever starts one may set them."""
    left = TypedSearchAttributes(
        [SearchAttributePair(SearchAttributeKey.for_keyword("AgentWaiting"), "approval")]
    )
    handle = await begin(short, task(final("over"), people=HERE), search_attributes=left)
    assert (await handle.result()).answer == "over"
    assert "AgentWaiting" not in (await handle.describe()).search_attributes


async def test_a_worker_that_stops_leaves_every_waiting_run_as_it_was(
    quiet: Client, own: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Runs are put aside wherever they stand; that is no cancellation, and the next worker goes on."""
    late = {"default": scripted(final("thought"), delay_seconds=3)}
    slow = task(tools=("mark",), people=HERE).model_copy(update={"models": late})
    person = Person.of(quiet)
    async with build_worker(quiet, own):
        asking, request = await begun(quiet, asking_task("asking"))
        stands = task(
            act("mark", line="x"), final("stood"), tools=("mark",), people=People(interrupt_every=1)
        )
        standing, stand = await begun(quiet, stands, "interrupt")
        paused, held = await begun(quiet, asking_task("paused"))
        await paused.execute_update("command", {"command": "pause"})
        thinking, stopped = await begin(quiet, slow), await begin(quiet, slow)
        await stopped.execute_update("command", {"command": "pause", "at_once": True})
        called = await begin(
            quiet, task(act("mark", line="c", seconds=2), final("made"), tools=("mark",), people=HERE)
        )
        await reached(lambda: marked(own, "c"))
    gc.collect()
    assert not [r for r in caplog.records if r.levelname == "ERROR" or "evict" in r.message.lower()]
    before = {
        h.id: (await h.describe()).status for h in (asking, standing, paused, thinking, stopped, called)
    }
    assert set(before.values()) == {WorkflowExecutionStatus.RUNNING}
    async with build_worker(quiet, own):
        await person.signal(asking, "decide", decision(request, "approve"))
        await person.signal(standing, "decide", decision(stand, "resume"))
        await person.signal(paused, "decide", decision(held, "approve"))
        for handle in (paused, stopped):
            await person.signal(handle, "command", {"command": "resume"})
        answers = [(await h.result()).answer for h in (asking, standing, paused, thinking, stopped, called)]
        assert not [r for r in await log_of(asking) if r.event in {"cancelled", "Withdrawn"}]
    assert answers == ["done", "stood", "done", "thought", "thought", "made"]


async def marked(own: Settings, line: str) -> bool:
    """The tool has written the line."""
    return line in marks(own)
