"""Continue-as-new: a run goes on with an empty history as often as the server wants, and loses nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import Any

import pytest
from temporalio.client import (
    Client,
    WorkflowContinuedAsNewError,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)

from activities.archiving import ArchiveActivities
from activities.settings import Settings
from activities.store.archive import Archive
from client.cassette.export import exported
from client.cassette.playing import play
from client.runs.archive_repair import missing_ends, repairing_archive
from client.runs.listing import RunLine
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.server.conftest import TOOLS, real_server
from tests.server.trials import (
    Run,
    begin,
    boundaries,
    calls,
    command,
    decide,
    eventually,
    open_request,
    replayed,
    reset,
    task,
    told_by_history,
    tool_calls,
    until,
)
from worker import build_worker
from workflows.api import TASK_QUEUE, AgentTask, EffectsQuery, PageQuery, RunResult, RunStatus
from workflows.kernel.log import Record, chain
from workflows.kernel.rollback import restored
from workflows.people import Approvals, EffectsPage, People, Request, RequestsPage
from workflows.task import program_for

EARLY = "limit.historyCount.suggestContinueAsNew=60"
"""Events after which the server suggests to continue as new."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a worker of its own."""
    home = tmp_path_factory.mktemp("chains")
    return Settings(data_dir=home / ".ratchet", files_root=home, modules=(str(TOOLS),), shutdown_seconds=1)


@pytest.fixture
async def quiet(own: Settings) -> AsyncIterator[Client]:
    """A server without a worker."""
    async with real_server(own) as client:
        yield client


@pytest.fixture(scope="module")
async def short(own: Settings) -> AsyncIterator[Client]:
    """A server that wants short histories, and a worker."""
    async with real_server(own, EARLY) as client, build_worker(client, own):
        yield client


def steps(count: int, tool: str = "mark", **more: Any) -> list[Any]:
    """Replies that call the tool once each."""
    return [calls((tool, {"line": f"step{number}", **more})) for number in range(count)]


def long_task(*replies: Any, **more: Any) -> AgentTask:
    """A task without a limit that such a run meets."""
    return task(*replies, options={"max_iterations": 400}, limits={"model_calls": None}, **more)


def marks(own: Settings, file: str) -> list[list[str]]:
    """The lines of a file that a tool wrote: line, key and attempt of each."""
    return [line.split() for line in (own.files_root / file).read_text().splitlines()]


def whole_log(own: Settings, run: Run, result: RunResult) -> list[Record]:
    """The archived log: it is whole, untouched, and ends in the result's head."""
    archive = Archive(own.archive_file)
    records = [Record.model_validate(one) for one in archive.records(run.id)]
    assert [record.seq for record in records] == list(range(result.records))
    assert chain(records) == result.log_head
    assert archive.broken_at(run.id) is None
    return records


async def run_id(run: Run) -> str:
    """Of the execution that is at work."""
    return str((await run.describe()).run_id)


def latest(client: Client, run: Run) -> Run:
    """A handle of whatever execution is at work."""
    return client.get_workflow_handle(run.id, result_type=RunResult)


async def cassette_plays(client: Client, own: Settings, run: Run) -> None:
    """All executions are one course."""
    cassette = await exported(AgentClient(Connection(client, own, "the test server")), run.id)
    assert (await play(cassette)).difference == ""


async def test_nobody_begins_a_run_with_what_another_has_carried(short: Client, own: Settings) -> None:
    """It would have that run's decisions, and its calls the keys of that run's calls."""
    run = await begin(short, long_task(*steps(9, file="carried.txt"), "at the end"))
    await latest(short, run).result()
    history = await latest(short, run).fetch_history()
    given = history.events[0].workflow_execution_started_event_attributes.input.payloads
    (carried,) = await short.data_converter.decode(given, [AgentTask])
    assert carried.carry.origin_run_id == run.result_run_id
    forged = await begin(short, carried)
    with pytest.raises(WorkflowFailureError) as refused:
        await forged.result()
    assert "`carry` is not of this run" in str(refused.value.cause)
    written = marks(own, "carried.txt")
    assert [line for line, _, _ in written] == [f"step{n}" for n in range(9)]


async def test_long_run_has_one_log_and_repeats_no_call(short: Client, own: Settings) -> None:
    given = long_task(*steps(12, file="long.txt"), "at the end")
    run = await begin(short, given)
    result = await latest(short, run).result()
    assert (result.answer, result.step, result.counters["tool_calls"]) == ("at the end", 13, 12)
    assert await run_id(latest(short, run)) != run.result_run_id == result.run_id
    written = marks(own, "long.txt")
    assert [line for line, _, _ in written] == [f"step{n}" for n in range(12)]
    assert {key.split("/")[1] for _, key, _ in written} == {run.result_run_id}
    records = whole_log(own, run, result)
    rebuilt = restored(program_for(given, {}, run.id), records)
    assert (rebuilt.state, rebuilt.step, len(rebuilt.conversation)) == ("DONE", 13, 2 + 12 * 2 + 1)
    assert tool_calls(await told_by_history(short, run)) == tool_calls(records)
    await replayed(latest(short, run), own)
    await cassette_plays(short, own, run)


async def test_reset_of_an_execution_goes_on_with_the_chain(short: Client, own: Settings) -> None:
    """The first execution, and a later one: their calls and those behind them are made once."""
    file = "reset.txt"
    replies = [calls((("pay", "mark_once")[n % 2], {"line": f"n{n}", "file": file})) for n in range(12)]
    run = await begin(short, long_task(*replies, "all", tools=("pay", "mark_once"), fuse="off"))
    first = await latest(short, run).result()
    last = short.get_workflow_handle(run.id, run_id=await run_id(latest(short, run)), result_type=RunResult)
    for execution in (run, last):
        for event in (await boundaries(execution))[1::6]:
            await reset(execution, short, event)
            result = await latest(short, run).result()
            assert (result.answer, result.run_id) == (first.answer, first.run_id)
            assert [line for line, _, _ in marks(own, file)] == [f"n{n}" for n in range(12)]
            whole_log(own, run, result)


ASKED: dict[str, Any] = {"people": People(), "approvals": Approvals(), "tools": ("mark_once",)}


async def test_what_people_said_holds_in_later_executions(short: Client, own: Settings) -> None:
    """An approval for later calls, commands by id, done calls, and a rollback behind the last execution."""
    lines = ["first", *(f"paid{number}" for number in range(10)), "last"]
    replies = [calls(("mark_once", {"line": line, "file": "paid.txt"})) for line in lines]
    run = await begin(short, long_task(*replies, "all", **ASKED))
    first, run = await run_id(run), latest(short, run)
    await command(run, "limits", limits={"tool_calls": 50}, id="c1")
    await decide(run, "approve")
    request = await eventually(lambda: asked_for(run, "paid0"))
    await decide(run, "approve", request, standing_approval={"arguments": {"line": {"pattern": "^paid"}}})
    await eventually(lambda: asked_for(run, "last"))
    assert await run_id(run) != first
    repeated = await command(run, "limits", limits={"tool_calls": 50}, id="c1")
    assert "before" in repeated.text
    done = await run.query("effects", EffectsQuery(), result_type=EffectsPage)
    assert [call.arguments["line"] for call in done.calls] == lines[:-1]
    await command(run, "rollback", step=2)
    await eventually(lambda: asked_for(run, "last", branch=1))
    await decide(run, "reject", text="enough")
    result = await run.result()
    assert (result.answer, result.branch) == ("all", 1)
    assert [one.outcome for one in result.decisions] == ["approved", "approved", "withdrawn", "rejected"]
    assert [line for line, _, _ in marks(own, "paid.txt")] == [*lines[:-1], *lines[1:-1]]
    whole_log(own, run, result)
    await replayed(run, own)
    await cassette_plays(short, own, run)


async def asked_for(run: Run, line: str, branch: int = 0) -> Request | None:
    """The open request for a call with this line."""
    if (await until(run, lambda status: True)).branch != branch:
        return None
    page: RequestsPage = await run.query("requests", PageQuery(), result_type=RequestsPage)
    return next((one for one in page.open if (one.arguments or {}).get("line") == line), None)


async def test_open_request_is_the_same_after_continue_as_new(short: Client, own: Settings) -> None:
    run = await begin(short, task(calls(("mark_once", {"line": "x"})), "done", **ASKED))
    asked, first, run = await open_request(run), await run_id(run), latest(short, run)

    async def continued() -> bool:
        await run.signal("junk", 1)
        return await run_id(run) != first

    await eventually(continued)
    assert (await open_request(run)).digest == asked.digest
    await decide(run, "approve", asked)
    result = await run.result()
    events = [record.event for record in whole_log(own, run, result)]
    assert (result.answer, events.count("Decided")) == ("done", 1)
    assert events.count("UnusableSignal") > 10
    status = await run.query("status", result_type=RunStatus)
    assert len(status.unusable_messages) > 10, "their names are carried, too"


@asynccontextmanager
async def archive_waits(own: Settings, run: Run) -> AsyncIterator[None]:
    """Inside, the run waits for its archive, which somebody else has locked."""
    lock = sqlite3.connect(own.archive_file, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")

    async def is_waiting() -> bool:
        pending = (await run.describe()).raw_description.pending_activities
        return any(one.activity_type.name == "archive_log" for one in pending)

    try:
        await eventually(is_waiting)
        yield
    finally:
        lock.rollback()
        lock.close()


async def test_signal_and_cancellation_while_the_archive_is_written_count(
    short: Client, own: Settings
) -> None:
    run = latest(short, await begin(short, long_task(*steps(20), "there")))
    async with archive_waits(own, run):
        await run.signal("hello", 1)
        await run.cancel()
    result = await run.result()
    assert result.exit_reason == "cancelled"
    assert "UnusableSignal" in [record.event for record in whole_log(own, run, result)]


async def test_rollback_is_refused_when_the_earlier_log_is_lost(short: Client, own: Settings) -> None:
    replies = [*steps(24), calls(("mark_once", {"line": "asks"}))]
    run = await begin(short, long_task(*replies, "done", **{**ASKED, "tools": ("mark", "mark_once")}))
    first, run = await run_id(run), latest(short, run)
    await open_request(run)
    assert await run_id(run) != first
    with closing(sqlite3.connect(own.archive_file)) as archive, archive:
        archive.execute("DELETE FROM records WHERE workflow_id=? AND seq=3", (run.id,))
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await command(run, "rollback", step=2)
    assert "archive" in str(refused.value.cause)
    await decide(run, "approve")
    assert (await run.result()).ok


@contextmanager
def broken_archive(own: Settings) -> Iterator[None]:
    """Inside, a folder is where the archive's file should be."""
    file, aside = own.archive_file, own.archive_file.with_name("aside.db")
    if file.exists():
        file.rename(aside)
    file.mkdir()
    try:
        yield
    finally:
        file.rmdir()
        if aside.exists():
            aside.rename(file)


async def test_failing_archive_is_told_and_hardly_holds_back_the_result(short: Client, own: Settings) -> None:
    with broken_archive(own):
        run = await begin(short, task("said"))
        result = await run.result()
    assert (result.ok, result.archived) == (True, False)
    events = (await run.fetch_history()).events
    asked = [
        one for one in events if one.activity_task_scheduled_event_attributes.activity_id[:7] == "archive"
    ]
    assert events[-1].event_time.ToSeconds() - asked[0].event_time.ToSeconds() < 8
    assert (await (await begin(short, task("said"))).result()).archived
    await replayed(run, own)


@pytest.mark.parametrize(
    "long", [pytest.param(0, id="short", marks=pytest.mark.exhaustive), pytest.param(3, id="in parts")]
)
async def test_log_comes_to_the_archive_when_it_is_back(quiet: Client, own: Settings, long: int) -> None:
    """By the next worker, where none was there. The end is never written before what comes before it: readers
    would see a log that is not whole."""
    agents = AgentClient(Connection(quiet, own, "the test server", queues=(TASK_QUEUE,)))
    with broken_archive(own):
        async with build_worker(quiet, own):
            mark = calls(("mark", {"line": "x"}))
            replies = [mark.model_copy(update={"reply": f"{number} " * 2**20}) for number in range(long)]
            run = await begin(quiet, task(*replies, "said"))
            result = await run.result()
            assert not result.archived
            assert await run.query("status", result_type=RunStatus)
            events = (await run.fetch_history()).events
            failures = [one.activity_task_failed_event_attributes.failure.message for one in events]
            behind_gap = "an earlier part of the log could not be written"
            assert (behind_gap in failures) == bool(long)
    assert (await eventually(lambda: ended_line(agents, run))).waiting == ""
    assert [one.run async for one in missing_ends(agents)] == [run.id]
    assert run.id not in [line.id for line in await agents.list(waiting=True)]
    async with build_worker(quiet, own):
        await eventually(lambda: agents.is_archived(run.id))
    assert [one async for one in missing_ends(agents)] == []
    whole_log(own, run, result)
    kept = await agents.archive.result(run.id)
    assert kept == result.model_copy(update={"archived": True})
    assert list(await agents.archive.histories(run.id)) == [await run_id(run)]


async def test_run_that_cannot_be_written_holds_up_no_other(quiet: Client, own: Settings) -> None:
    """It is tried again; one that was written is not looked up again, not even when somebody deletes it."""
    archive = Archive(own.archive_file)
    agents = AgentClient(Connection(quiet, own, "the test server", queues=(TASK_QUEUE,)))
    with broken_archive(own):
        async with build_worker(quiet, own):
            runs = [await begin(quiet, task("said")) for _ in range(3)]
            for run in runs:
                await run.result()
    lines = [await eventually(partial(ended_line, agents, run)) for run in runs]
    first, second, third = (line.id for line in sorted(lines, key=lambda line: str(line.closed)))
    with archive.database.writing("test") as execute:
        execute(
            "CREATE TRIGGER refused BEFORE INSERT ON records"
            f" WHEN new.workflow_id IN ('{first}', '{third}') BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    async with repairing_archive(quiet, TASK_QUEUE, ArchiveActivities(archive), pause=0.1):
        await eventually(lambda: agents.is_archived(second))
        archive.delete(second, next(line.run_id for line in lines if line.id == second))
        with archive.database.writing("test") as execute:
            execute("DROP TRIGGER refused")
        await eventually(lambda: agents.is_archived(third))
        await eventually(lambda: agents.is_archived(first))
        assert not await agents.is_archived(second)


async def ended_line(agents: AgentClient, run: Run) -> RunLine | None:
    """The line of the run when the server lists it as over."""
    return next((line for line in await agents.list() if line.id == run.id and line.log_head), None)


async def test_log_that_the_archive_has_lost_is_named(short: Client, own: Settings) -> None:
    agents = AgentClient(Connection(short, own, "the test server", queues=(TASK_QUEUE,)))
    run = await begin(short, task("said"))
    await run.result()

    async def named() -> list[str]:
        return [one.problem async for one in missing_ends(agents) if one.run == run.id]

    assert await named() == []
    Archive(own.archive_file).delete(run.id, await run_id(run))
    assert "backup" in (await eventually(named))[0]


async def test_archive_that_fails_for_a_while_loses_nothing(short: Client, own: Settings) -> None:
    with broken_archive(own):
        run = await begin(short, long_task(*steps(12), "there"))
        first, run = await run_id(run), latest(short, run)

        async def continued() -> bool:
            return await run_id(run) != first

        await eventually(continued)
    result = await run.result()
    assert (result.answer, result.archived) == ("there", True)
    whole_log(own, run, result)


@pytest.mark.exhaustive
async def test_three_hundred_steps_are_one_run(own: Settings) -> None:
    async with (
        real_server(own, "limit.historyCount.suggestContinueAsNew=1200") as client,
        build_worker(client, own),
    ):
        run = await begin(client, long_task(*steps(300, file="far.txt"), "far"))
        result = await latest(client, run).result()
        assert await run_id(latest(client, run)) != run.result_run_id
    assert (result.answer, result.step) == ("far", 301)
    assert [line for line, _, _ in marks(own, "far.txt")] == [f"step{n}" for n in range(300)]
    whole_log(own, run, result)


async def test_cron_schedule_is_refused_with_the_way_that_works(short: Client) -> None:
    run = await begin(short, task("done", tools=("mark",)), cron_schedule="@every 1s")
    with pytest.raises(WorkflowContinuedAsNewError):  # so Temporal calls every end of such a run
        await run.result(follow_runs=False)
    await run.terminate()
    first = short.get_workflow_handle(run.id, run_id=run.first_execution_run_id)
    with pytest.raises(WorkflowQueryFailedError, match="temporal schedule create --cron"):
        await first.query("status")
