"""Temporal's reset: a run begins again from any event of its history, and nothing is done or asked twice."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.settings import Settings
from activities.store.archive import Archive
from activities.store.stores import Stores
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.server.trials import (
    Run,
    begin,
    boundaries,
    calls,
    command,
    decide,
    eventually,
    failed_tasks,
    open_request,
    replayed,
    reset,
    task,
    until,
)
from workflows.api import TASK_QUEUE, PageQuery, RunResult
from workflows.people import Approvals, People, RequestsPage

CAREFUL: dict[str, Any] = {"people": People(), "approvals": Approvals(effects={"unsafe": "always"})}


def written(settings: Settings, file: str) -> Counter[str]:
    """How often each line was written by a tool."""
    path = settings.files_root / file
    return Counter(line.split()[0] for line in path.read_text().splitlines()) if path.exists() else Counter()


async def look_after(run: Run, settings: Settings) -> list[str]:
    """A person who approves, and says of an unknown outcome what is written. What was asked."""
    asked: list[str] = []
    while (await until(run, lambda s: s.requests > 0 or s.finished is not None)).finished is None:
        request = await open_request(run)
        asked.append(request.kind)
        if request.kind == "approval":
            await decide(run, "approve", request)
            continue
        arguments: dict[str, Any] = request.arguments or {}
        is_made = written(settings, arguments["file"])[arguments["line"]]
        await decide(
            run, "answer" if is_made else "retry", request, **({"text": "it is written"} if is_made else {})
        )
    return asked


async def by_signal(run: Run, verb: str) -> None:
    """Decide the open request by a signal."""
    request = await open_request(run)
    decision = {"request": request.id, "digest": request.digest, "decision": verb, "by": "ann"}
    await run.signal("decide", decision)


async def next_request(run: Run, earlier: str) -> Any:
    """The open request behind this one."""

    async def found() -> Any:
        page: RequestsPage = await run.query("requests", PageQuery(), result_type=RequestsPage)
        return next((one for one in page.open if one.id != earlier), None)

    return await eventually(found)


@pytest.mark.parametrize("way", ["signal", pytest.param("update", marks=pytest.mark.exhaustive)])
async def test_reset_to_any_event_repeats_no_effect_and_keeps_approvals(
    working: Client, settings: Settings, way: str
) -> None:
    """A keyed call, and unsafe ones that were approved, the second one by signal or by update."""
    file = f"reset-{way}.txt"
    given = task(
        calls(("pay", {"line": "keyed", "file": file})),
        calls(("mark_once", {"line": "first", "file": file})),
        calls(("mark_once", {"line": "second", "file": file})),
        "done",
        tools=("pay", "mark_once"),
        **CAREFUL,
    )
    run = await begin(working, given)
    request = await open_request(run)
    await decide(run, "approve", request)
    second = await next_request(run, request.id)
    await (by_signal(run, "approve") if way == "signal" else decide(run, "approve", second))
    first = await run.result()
    heads = {first.log_head}
    for event in await boundaries(run):
        again = await reset(run, working, event)
        result = await asyncio.wait_for(again.result(), 60)
        heads.add(result.log_head)
        assert (result.answer, result.exit_reason) == (first.answer, first.exit_reason)
        assert [one.outcome for one in result.decisions] == ["approved", "approved"]
        assert written(settings, file) == {"keyed": 1, "first": 1, "second": 1}
        assert await failed_tasks(again) == 1, "the reset itself is one"
        assert result.archived
        await replayed(again, settings)
    archive = Archive(settings.archive_file)
    kept = [run_id for workflow_id, run_id in archive.runs() if workflow_id == run.id]
    assert {archive.broken_at(run.id, one) for one in kept} == {None}
    assert {(archive.result(run.id, one) or {})["log_head"] for one in kept} == heads, "no log is lost"


@pytest.mark.exhaustive
async def test_reset_to_any_event_of_run_that_was_rolled_back(working: Client, settings: Settings) -> None:
    """A rollback that Temporal hands on comes at another moment, so a person may be asked."""
    file = "rolled.txt"
    given = task(
        calls(("pay", {"line": "keyed", "file": file})),
        calls(("mark_once", {"line": "unsafe", "file": file})),
        calls(("pay", {"line": "last", "file": file, "seconds": 0.1})),
        "done",
        tools=("pay", "mark_once"),
        **CAREFUL,
    )
    run = await begin(working, given)
    request = await open_request(run)
    await decide(run, "approve", request)
    await until(run, lambda status: status.step == 2)
    await command(run, "rollback", step=1)
    await by_signal(run, "approve")
    first = await run.result()
    before = written(settings, file)
    assert before["unsafe"] == 2
    for event in await boundaries(run):
        again = await reset(run, working, event)
        await look_after(again, settings)
        result = await again.result()
        assert (result.answer, result.exit_reason) == (first.answer, first.exit_reason)
        assert written(settings, file) == before


async def test_reset_in_middle_of_unsafe_call_asks_a_person(working: Client, settings: Settings) -> None:
    file = "middle.txt"
    call = calls(("mark_once", {"line": "unsafe", "file": file, "seconds": 3600}))
    run = await begin(working, task(call, "done", tools=("mark_once",), people=People()))

    async def is_begun() -> bool:
        return bool(written(settings, file))

    await eventually(is_begun)
    again = await reset(run, working, (await boundaries(run))[0])
    assert await look_after(again, settings) == ["outcome"]
    assert (await again.result()).ok
    assert written(settings, file) == {"unsafe": 1}


async def test_reset_of_outer_run_repeats_no_call_of_inner_run(working: Client, settings: Settings) -> None:
    file = "inner.txt"
    script = (
        calls(("pay", {"line": "keyed", "file": file})),
        calls(("mark_once", {"line": "unsafe", "file": file})),
        "done",
    )
    inner = {"machine": "tools", "goal": "inside", "give": ["pay", "mark_once"]}
    given = task(
        *script, tools=("pay", "mark_once"), machine="nester", options={"inner": [inner]}, people=People()
    )
    run = await begin(working, given)
    first = await run.result()
    assert first.ok
    for event in await boundaries(run):
        again = await reset(run, working, event)
        result = await asyncio.wait_for(again.result(), 60)
        assert (result.ok, result.answer) == (True, first.answer)
        assert written(settings, file) == {"keyed": 1, "unsafe": 1}


async def inner_run(run: Run, client: Client) -> Run:
    """The execution of its inner run, once that is started."""

    async def found() -> Run | None:
        started = [
            one.child_workflow_execution_started_event_attributes.workflow_execution
            for one in (await run.fetch_history()).events
            if one.HasField("child_workflow_execution_started_event_attributes")
        ]
        if not started:
            return None
        last = started[-1]
        return client.get_workflow_handle(last.workflow_id, run_id=last.run_id, result_type=RunResult)

    return await eventually(found)


def nested(file: str, seconds: float = 0, **more: Any) -> Any:
    """A run whose inner run's inner run writes one line."""
    inner = {"machine": "tools", "goal": "inside", "give": ["mark_once"]}
    middle = {"machine": "nester", "goal": "between", "give": ["mark_once"], "options": {"inner": [inner]}}
    call = calls(("mark_once", {"line": "unsafe", "file": file, "seconds": seconds}))
    options = {"inner": [middle]}
    return task(call, "done", tools=("mark_once",), machine="nester", options=options, **more)


async def test_reset_ends_inner_runs_under_way_and_begins_them_again(
    working: Client, settings: Settings
) -> None:
    """From before they began, and from behind that; they wait for an approval."""
    for number, which in enumerate((0, -1)):
        file = f"waiting{number}.txt"
        run = await begin(working, nested(file, **CAREFUL))
        await open_request(await inner_run(await inner_run(run, working), working))
        first = await inner_run(run, working)
        again = await reset(run, working, (await boundaries(run))[which])
        innermost = await inner_run(await inner_run(again, working), working)
        await decide(innermost, "approve", await open_request(innermost))
        result = await asyncio.wait_for(again.result(), 60)
        assert (result.ok, result.answer) == (True, "ran: stop: done")
        assert written(settings, file) == {"unsafe": 1}
        assert (await first.describe()).close_time is not None, "no inner run is left alone"


async def test_reset_while_inner_run_makes_a_call_asks_person(working: Client, settings: Settings) -> None:
    file = "inner-middle.txt"
    run = await begin(working, nested(file, seconds=3600, people=People()))

    async def is_begun() -> bool:
        return bool(written(settings, file))

    await eventually(is_begun)
    again = await reset(run, working, (await boundaries(run))[0])
    innermost = await inner_run(await inner_run(again, working), working)
    assert await look_after(innermost, settings) == ["outcome"]
    assert (await asyncio.wait_for(again.result(), 60)).answer == "ran: stop: done"
    assert written(settings, file) == {"unsafe": 1}


async def test_reset_is_shown_with_who_how_far_and_what_stands(
    working: Client, settings: Settings, tmp_path: Path
) -> None:
    """The second reset goes back behind the first one, which is still told of; the list has one line."""
    file = "shown.txt"
    given = task(
        calls(("pay", {"line": "keyed", "file": file})),
        calls(("mark_once", {"line": "unsafe", "file": file})),
        "done",
        tools=("pay", "mark_once"),
        approvals=Approvals(effects={"unsafe": "never"}),
    )
    run = await begin(working, given)
    assert not (await run.result()).was_reset
    events = await boundaries(run)
    again = await reset(run, working, events[-2])
    assert (await again.result()).was_reset
    last = await reset(again, working, events[0])
    assert (await last.result()).was_reset
    agents = AgentClient(Connection(working, settings, "the test server", queues=(TASK_QUEUE,)))
    assert (await agents.status(run.id)).was_reset
    first, second = await agents.resets(run.id)
    assert {one.reason for one in (first, second)} == {"a test"}
    assert (first.step, second.step) == (None, 0)
    assert first.back_to > second.back_to
    assert [(one.title.partition("(")[0], one.outcome) for one in second.calls] == [
        ("pay", "made"), ("mark_once", "made"),
    ]  # fmt: skip
    assert written(settings, file) == {"keyed": 1, "unsafe": 1}
    other = settings.model_copy(update={"data_dir": tmp_path})
    elsewhere = AgentClient(Connection(working, other, "the test server", queues=(TASK_QUEUE,)))
    Stores(other).calls.make()
    for store in ("younger", "older, and of other workers"):
        told = (await elsewhere.resets(run.id))[1]
        assert (told.calls, "--data-dir" in told.unknown) == ((), True), store
        with closing(sqlite3.connect(other.calls_file)) as calls_file, calls_file:
            calls_file.execute("UPDATE made SET at=0")

    async def listed() -> bool:
        lines = [one for one in await agents.list() if one.id == run.id]
        return [one.run_id for one in lines] == [last.run_id]

    await eventually(listed)


async def test_run_that_was_reset_is_read_as_it_is_now(working: Client, settings: Settings) -> None:
    """The archive has the end that it had before, under the same id."""
    ends = settings.files_root / "reset.txt"
    ends.touch()
    run = await begin(working, task(calls(("mark", {"line": "again", "until": ends.name})), "done"))
    await run.result()
    agents = AgentClient(Connection(working, settings, "the test server", queues=(TASK_QUEUE,)))
    assert (await agents.status(run.id)).exit_reason == "stop"
    ends.unlink()
    last = await reset(run, working, (await boundaries(run))[0])
    await until(last, lambda status: status.doing.startswith("calling mark"))
    assert (await agents.status(run.id)).doing.startswith("calling mark")
    ends.touch()
    assert (await last.result()).was_reset
