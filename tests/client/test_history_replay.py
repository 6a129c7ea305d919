"""Replay, checkpoints, snapshots and forks of runs on the real server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from activities.contracts import ArchiveRequest
from activities.settings import Settings
from activities.store.archive import Archive
from client.errors import RatchetError, UnknownRun, UsageError
from client.history.differences import first_difference
from client.history.fork import ForkChanges
from client.history.replay import first_changed
from client.history.replayer import plugin_of, replayed
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from tests.client.asking import asking, opened, talk, without_worker
from tests.server.conftest import TOOLS, real_server
from tests.server.trials import eventually, scripted, task
from worker import build_worker
from workflows.api import Limits
from workflows.kernel.log import FORKED, Record
from workflows.people import Decided

# -- replay --------------------


async def test_replay_of_unchanged_code_is_the_same(agents: AgentClient, settings: Settings) -> None:
    result = await agents.run(talk())
    marks = await asyncio.to_thread((settings.files_root / "marks.txt").read_text)
    replay = await agents.replay(result.workflow_id)
    assert (replay.same, replay.can_continue, replay.records) == (True, None, result.records)
    assert replay.notes == ()
    assert await asyncio.to_thread((settings.files_root / "marks.txt").read_text) == marks


async def test_open_run_with_decisions_replays_and_can_continue(agents: AgentClient) -> None:
    run = await agents.start(asking("replay-one", "replay-two"))
    first = await opened(agents, run)
    await agents.command(run, "steer", "be quick")
    await agents.decide(run, first, "approve")
    await eventually(lambda: agents.requests(run))
    replay = await agents.replay(run)
    assert (replay.same, replay.can_continue) == (True, True)
    assert replay.records == len(await agents.records(run))
    assert (await agents.replay(run, 1)).records < replay.records
    await agents.command(run, "abort")


async def test_run_that_heard_an_unreadable_signal_replays_the_same(agents: AgentClient) -> None:
    run = await agents.start(asking("heard"))
    await opened(agents, run)
    broken = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b"{"))
    await agents.temporal.get_workflow_handle(run).signal("decide", broken)
    await agents.command(run, "abort")
    await agents.result(run)
    assert "UnusableSignal" in [record.event for record in await agents.records(run)]
    assert (await agents.replay(run)).same


async def test_changed_answer_is_found_with_its_step(agents: AgentClient) -> None:
    """A history whose tool answered something else stands for code that does something else."""
    run = (await agents.run(talk())).workflow_id
    history = await agents.temporal.get_workflow_handle(run).fetch_history()
    for event in history.events:
        done = event.activity_task_completed_event_attributes
        for payload in done.result.payloads:
            payload.data = payload.data.replace(b"done one", b"done six")
    recorded = {record.seq: record for record in await agents.records(run, full=True)}
    found = await replayed(plugin_of(agents.temporal), history)
    difference, _ = first_changed(recorded, {one.seq: one for one in found.records}, whole=True)
    assert difference is not None
    assert difference.step == 1
    assert difference.difference is not None
    assert "one" in difference.difference.left
    assert "six" in difference.difference.right


async def test_changed_call_fails_with_both_names(agents: AgentClient) -> None:
    run = (await agents.run(talk())).workflow_id
    history = await agents.temporal.get_workflow_handle(run).fetch_history()
    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    scheduled[2].activity_id = "elsewhere#9:9"
    found = await replayed(plugin_of(agents.temporal), history)
    assert "elsewhere#9:9" in str(found.failure)


async def test_replay_needs_temporals_history(agents: AgentClient) -> None:
    with pytest.raises(UnknownRun, match="retention"):
        await agents.replay("nobody-has-it")
    refused = await agents.start(task("x", machine="nothing"))
    with pytest.raises(RatchetError, match="nothing"):
        await agents.result(refused)
    assert (await agents.replay(refused)).records == 0


def record(seq: int, **more: Any) -> Record:
    """A record of the log."""
    return Record(**{"seq": seq, "machine": "m", "state": "s", "event": "E", "step": seq, **more})


@pytest.mark.parametrize(
    ("today", "whole", "before", "expected"),
    [
        pytest.param([record(0), record(1)], True, None, (None, 2), id="the same"),
        pytest.param([record(0), record(1, reason="x")], True, None, (1, 2), id="another reason"),
        pytest.param([record(0), record(1, at=7)], True, None, (1, 2), id="another time"),
        pytest.param([record(0), record(1, reason="x")], True, 1, (None, 1), id="but later"),
        pytest.param([record(0)], True, None, (1, 2), id="one fewer"),
        pytest.param([record(0)], False, None, (None, 1), id="one fewer, unfinished"),
        pytest.param([record(0), record(1), record(2)], True, None, (2, 3), id="one more"),
        pytest.param([], True, None, (None, 0), id="nothing to compare"),
    ],
)
def test_first_changed_record(today: list[Record], whole: bool, before: int | None, expected: Any) -> None:
    recorded = {0: record(0), 1: record(1)}
    found, count = first_changed(recorded, {one.seq: one for one in today}, whole=whole, before=before)
    assert (found.seq if found else None, count) == expected


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, None),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ("a[1].b", "2", "3")),
        ({"a": 1}, {}, ("a", "1", "")),
        ([1], [1, None], ("[1]", "", "null")),
        (True, 1, ("", "true", "1")),
        ("x" * 90 + "a", "x" * 90 + "b", ("", '…"' + "x" * 24 + 'a"', '…"' + "x" * 24 + 'b"')),
    ],
)
def test_first_difference_names_its_place(left: Any, right: Any, expected: Any) -> None:
    found = first_difference(left, right)
    assert (None if found is None else (found.at, found.left, found.right)) == expected


# -- checkpoints --------------------


async def test_snapshot_is_what_the_log_says(agents: AgentClient) -> None:
    run = (await agents.run(talk())).workflow_id
    lines = await agents.checkpoints(run)
    assert [(line.step, line.holds) for line in lines] == [(number, True) for number in range(5)]
    snapshot = await agents.snapshot(run, 2)
    assert (snapshot.machine, snapshot.step, snapshot.records) == ("tools", 2, lines[2].seq + 1)
    assert snapshot.counters["tool_calls"] == 1
    assert [one.step for one in snapshot.next][:1] == [2]
    with pytest.raises(UsageError, match=r"No step 9.*0 to 4"):
        await agents.snapshot(run, 9)


async def test_fork_goes_on_behind_the_end(agents: AgentClient) -> None:
    first = await agents.run(talk())
    end = (await agents.checkpoints(first.workflow_id))[-1]
    assert (end.step, end.state, end.states) == (first.step + 1, "DONE", ())
    script = {"default": scripted(*["never asked again"] * 3, "and in German")}
    fork = await agents.fork(first.workflow_id, end.step, ForkChanges(models=script, message="In German?"))
    result = await agents.result(fork)
    assert (result.answer, result.calls, result.unheard) == ("and in German", (), ())
    assert result.counters["model_calls"] == 1


async def test_step_behind_a_rollback_is_left(agents: AgentClient) -> None:
    run = await agents.start(asking("left-behind"))
    await opened(agents, run)
    await agents.command(run, "rollback", step=1)
    await agents.decide(run, await opened(agents, run), "reject")
    await agents.result(run)
    lines = await agents.checkpoints(run)
    assert [(line.step, line.branch, line.holds) for line in lines if line.step == 1] == [
        (1, 0, False),
        (1, 1, True),
    ]


async def test_archive_gives_the_same_checkpoints(agents: AgentClient, settings: Settings) -> None:
    run = (await agents.run(talk())).workflow_id
    archive = Archive(settings.archive_file)
    part = ArchiveRequest(
        workflow_id="kept", run_id="first", after="", records=archive.records(run), result=archive.result(run)
    )
    await asyncio.to_thread(archive.add, part)
    assert await agents.checkpoints("kept") == await agents.checkpoints(run)
    fork = await agents.fork("kept", 3)
    assert (await agents.result(fork)).ok


async def test_unknown_machine_says_what_to_do(agents: AgentClient) -> None:
    refused = await agents.start(task("x", machine="nothing"))
    with pytest.raises(RatchetError, match="no log yet"):
        await agents.checkpoints(refused)


async def test_steps_are_read_without_the_runs_code(agents: AgentClient, settings: Settings) -> None:
    run = (await agents.run(task("done"))).workflow_id
    gone = settings.model_copy(update={"modules": ("gone.py",)})
    elsewhere = AgentClient(Connection(agents.temporal, gone, "the test server"))
    assert await elsewhere.checkpoints(run) == await agents.checkpoints(run)
    with pytest.raises(UsageError, match=r"gone\.py"):
        await elsewhere.snapshot(run, 0)


async def test_steps_come_from_the_history_without_a_worker(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", files_root=tmp_path, modules=(str(TOOLS),))
    async with real_server(settings) as temporal:
        agents = AgentClient(Connection(temporal, settings, "the test server"))
        async with build_worker(temporal, settings.model_copy(update={"shutdown_seconds": 0})):
            run = await agents.start(asking("no-worker", "never"))
            first = await opened(agents, run)
            await agents.decide(run, first, "approve")
            await eventually(lambda: agents.requests(run))
            lines, effects = await agents.checkpoints(run), await agents.effects_to_repeat(run, 0)
        await eventually(lambda: without_worker(agents))
        assert await agents.checkpoints(run) == lines
        assert await agents.effects_to_repeat(run, 0) == effects
        assert [call.tool for call in effects.calls] == ["mark_once"]
        replay = await agents.replay(run)
        assert (replay.can_continue, replay.records, len(replay.notes)) == (True, 0, 1)


# -- fork --------------------


async def test_fork_repeats_no_earlier_call(agents: AgentClient, settings: Settings) -> None:
    source = await agents.run(talk())
    run = await agents.fork(source.workflow_id, 2, by="ann")
    result = await agents.result(run)
    assert (result.ok, result.answer) == (True, "both")
    assert result.origin is not None
    assert (result.origin.workflow_id, result.origin.step) == (source.workflow_id, 2)
    records, before = (
        await agents.records(run, full=True),
        await agents.records(source.workflow_id, full=True),
    )
    copied = next(record.seq for record in records if record.event == FORKED)
    assert records[:copied] == before[:copied]
    assert records[copied].by == "ann (claimed)"
    assert result.counters["tool_calls"] == 1
    assert (await agents.replay(run)).same


async def test_fork_takes_other_limits_models_tools_and_a_message(agents: AgentClient) -> None:
    source = (await agents.run(talk())).workflow_id
    changes = ForkChanges(
        limits={"model_calls": 7},
        models={"default": scripted("given", "before", "otherwise")},
        tools=("mark", "flaky"),
        message="Try it in another way.",
    )
    result = await agents.result(await agents.fork(source, 2, changes))
    assert result.answer == "otherwise"
    task = await agents.archive.task(result.workflow_id)
    assert task is not None
    assert (task.limits, task.tools) == (Limits(model_calls=7), ("mark", "flaky"))
    transcript = await agents.transcript(result.workflow_id)
    assert any(message.content == "Try it in another way." for message in transcript)


async def test_fork_that_does_not_fit_starts_nothing(agents: AgentClient) -> None:
    source = (await agents.run(talk())).workflow_id
    with pytest.raises(UsageError, match="No step 7"):
        await agents.fork(source, 7)
    with pytest.raises(UsageError, match=r"limits\.hours"):
        await agents.fork(source, 1, ForkChanges(limits={"hours": 1}))
    with pytest.raises(UsageError, match="critic"):
        await agents.fork(source, 1, ForkChanges(models={"critic": scripted("x")}))


async def test_waiting_run_is_forked_and_its_calls_are_named(agents: AgentClient) -> None:
    source = await agents.start(asking("fork-one", "fork-two"))
    first = await opened(agents, source)
    await agents.decide(source, first, "approve")
    await eventually(lambda: agents.requests(source))
    assert [call.tool for call in (await agents.effects_to_repeat(source, 1)).calls] == ["mark_once"]
    fork = await agents.fork(source, 2)
    request = await opened(agents, fork)
    assert isinstance(await agents.decide(fork, request, "reject"), Decided)
    assert (await agents.result(fork)).ok
    # what the source did before the fork's step belongs to the fork
    assert [call.step for call in (await agents.effects_to_repeat(fork, 1)).calls] == [1]
    assert (await agents.effects_to_repeat(fork, 2)).calls == ()
    assert (await agents.effects_to_repeat("nobody-has-it", 1)).unknown
    again = await agents.fork(fork, 2)
    await agents.command(again, "abort")
    assert (await agents.compare(fork, again)).shared > 0
    await agents.command(source, "abort")
