"""The moments at which a message, a failure or a new version could lose something."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import given as forall
from hypothesis import settings as bounds
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.worker import Replayer

from activities.archive import Archive
from activities.settings import Settings
from client.agent import AgentClient
from client.archived import ArchivedRuns
from client.plugin import RatchetPlugin
from tests.conftest import TOOLS, real_server
from tests.workflows.record import HISTORIES
from tests.workflows.trials import act, begin, final, log_of, task, until
from worker import build_worker
from workflows import registry
from workflows.api import AgentResult, AgentTask
from workflows.kernel.log import Record, chain

SOON = "limit.historyCount.suggestContinueAsNew=60"
STEPS = 10


@pytest.fixture
def own(tmp_path: Path) -> Settings:
    """Settings of a worker of its own."""
    return Settings(
        data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=(str(TOOLS),), shutdown_seconds=1
    )


@asynccontextmanager
async def _long_run(own: Settings) -> AsyncIterator[tuple[Client, WorkflowHandle[Any, AgentResult]]]:
    """A run that continues as new twice on its way."""
    async with real_server(own, SOON) as client, build_worker(client, own):
        steps = [act("mark", line=f"step{n}") for n in range(STEPS)]
        yield client, await begin(client, task(*steps, final("there"), tools=("mark",)))


@asynccontextmanager
async def _archive_waits(own: Settings, handle: WorkflowHandle[Any, Any]) -> AsyncIterator[None]:
    """Inside, the run waits for its archive, which somebody else has locked."""
    path = own.data_dir / "archive.db"
    lock = sqlite3.connect(path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    try:
        while True:
            pending = (await handle.describe()).raw_description.pending_activities
            if any(one.activity_type.name == "archive_log" for one in pending):
                break
            await asyncio.sleep(0.02)
        yield
    finally:
        lock.rollback()
        lock.close()


async def _continued(handle: WorkflowHandle[Any, Any], first: str | None) -> None:
    """Wait until the run goes on under another run id than its first."""
    while (await handle.describe()).run_id == first:  # noqa: ASYNC110  # the run is in another process
        await asyncio.sleep(0.02)


async def _whole_log(own: Settings, handle: WorkflowHandle[Any, Any], result: AgentResult) -> list[Record]:
    """The archived log, which must be whole and end in the result's head."""
    archive = Archive(own.data_dir / "archive.db")
    records = [Record.model_validate(one) for one in await archive.records(handle.id)]
    assert [r.seq for r in records] == list(range(result.records))
    assert chain(records) == result.log_head
    assert await archive.verify(handle.id) is None
    return records


async def test_a_signal_during_the_archive_before_continue_as_new_is_in_the_log(own: Settings) -> None:
    async with _long_run(own) as (client, handle):
        Archive(own.data_dir / "archive.db")
        await _first_archive(own, client)
        async with _archive_waits(own, handle):
            await handle.signal("hello", args=[])
        result = await asyncio.wait_for(handle.result(), 30)
    assert (result.answer, result.counters["tool_calls"]) == ("there", STEPS)
    events = [r.event for r in await _whole_log(own, handle, result)]
    assert events.count("UnusableSignal") == 1


async def test_a_cancel_during_the_archive_before_continue_as_new_is_obeyed(own: Settings) -> None:
    async with _long_run(own) as (client, handle):
        await _first_archive(own, client)
        async with _archive_waits(own, handle):
            await handle.cancel()
            await asyncio.sleep(0.2)
        result = await asyncio.wait_for(handle.result(), 30)
    assert result.exit_reason == "cancelled"
    assert result.counters["tool_calls"] < STEPS
    await _whole_log(own, handle, result)


async def test_an_archive_that_fails_for_a_while_loses_nothing(own: Settings) -> None:
    path = own.data_dir / "archive.db"
    async with real_server(own, SOON) as client:
        path.mkdir(parents=True)  # a folder where the database should be
        steps = [act("mark", line=f"step{n}", seconds=0.1) for n in range(STEPS)]
        async with build_worker(client, own):
            handle = await begin(client, task(*steps, final("there"), tools=("mark",)))
            first = handle.first_execution_run_id
            await _continued(handle, first)
            path.rmdir()
            result = await asyncio.wait_for(handle.result(), 60)
    assert result.answer == "there"
    await _whole_log(own, handle, result)


async def _first_archive(own: Settings, client: Client) -> None:
    """Make the archive's file by a short run, so that it can be locked."""
    await (await begin(client, task(final("x")))).result()
    assert (own.data_dir / "archive.db").exists()


async def test_the_log_of_a_continued_run_is_whole_while_its_model_thinks(own: Settings) -> None:
    async with real_server(own, SOON) as client, build_worker(client, own):
        steps = [act("mark", line=f"step{n}") for n in range(5)]
        slow = task(*steps, act("mark", line="slow", seconds=2), final("there"), tools=("mark",))
        handle = await begin(client, slow)
        first = handle.first_execution_run_id
        agents = AgentClient(client, ArchivedRuns(own.data_dir / "archive.db"), ui=None, where="here")
        await _continued(handle, first)
        await until(handle, lambda status: status.records > 10)
        now = await agents.status(handle.id)
        records = await agents.records(handle.id)
        assert [r.seq for r in records][: now.records] == list(range(now.records))
        assert len(records) > 10
        await handle.result()


async def test_a_call_that_ends_before_a_cancel_reaches_it_is_in_the_log(working: Client) -> None:
    """A cancellation reaches a worker with a heartbeat, up to a second late."""
    handle = await begin(working, task(act("mark_once", line="c", seconds=0.3), tools=("mark_once",)))
    await until(handle, lambda status: status.state == "action")
    await handle.cancel()
    result = await asyncio.wait_for(handle.result(), 20)
    assert result.exit_reason == "cancelled"
    log = await log_of(handle)
    if "nobody knows" not in str(result.error):
        assert "done c" in [r.reason for r in log if r.event == "Acted"]


async def test_a_cancel_in_the_middle_of_an_unsafe_call_says_that_nobody_knows_what_it_did(
    working: Client,
) -> None:
    handle = await begin(working, task(act("mark_once", line="c", seconds=30), tools=("mark_once",)))
    await until(handle, lambda status: status.state == "action")
    await handle.cancel()
    result = await asyncio.wait_for(handle.result(), 20)
    assert (result.exit_reason, result.outcome["exit_reason"]) == ("cancelled", "cancelled")
    assert "nobody knows whether mark_once(" in str(result.error)
    assert (await log_of(handle))[-1].reason.endswith("took effect")


async def test_a_version_that_is_loaded_beside_changes_no_open_run(tmp_path: Path) -> None:
    newer = replace(registry.design("react", "1"), version="2", begin=lambda brief, options: 1 / 0)  # type: ignore[arg-type,return-value]  # must never be called
    registry._add(newer, "test")
    try:
        plugin = RatchetPlugin(Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path))
        from temporalio.client import WorkflowHistory

        text = (HISTORIES / "react-tools.json").read_text()
        assert json.loads(text)["events"]
        await Replayer(workflows=[], plugins=[plugin]).replay_workflow(WorkflowHistory.from_json("old", text))
        assert registry.design("react").version == "2"
    finally:
        del registry._designs["react", "2"]


HOSTILE: list[Any] = [
    {"models": {"default": {"timeout_seconds": 1e300}}},
    {"models": {"default": {"attempts": 2**31}}},
    {"models": {"default": {"provider": "scripted", "script": [{"reply": 1, "delay_seconds": 1e300}]}}},
    {"limits": {"tokens": 10**400}},
    {"limits": {"cost_usd": 1e400}},
    {"carry": {"origin_run_id": "x", "snapshot": {}, "ledger": {}, "effect": {}}},
    {
        "carry": {
            "origin_run_id": "x",
            "snapshot": {"state": "thought"},
            "ledger": {},
            "effect": {"kind": "call_model"},
        }
    },
    {"options": {"max_steps": 10**30}},
    {"heartbeat_seconds": 1},
]


@pytest.mark.parametrize("more", HOSTILE, ids=lambda more: json.dumps(more)[:60])
async def test_numbers_and_states_that_nobody_can_use_fail_the_run_at_once(
    working: Client, more: Any
) -> None:
    handle = await begin(working, {"goal": "try it", **more})
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 10)
    assert getattr(failure.value.cause, "type", "") == "InvalidTask"


async def test_a_payload_that_is_no_json_fails_the_run_at_once(working: Client) -> None:
    from temporalio.common import RawValue

    odd = RawValue(Payload(metadata={"encoding": b"json/protobuf", "messageType": b"none.Such"}, data=b"{}"))
    handle = await begin(working, odd)
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 10)
    assert "send JSON" in str(failure.value.cause)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(sorted(AgentTask.model_fields))


@bounds(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@forall(st.dictionaries(FIELDS, JSON, max_size=4))
async def test_any_json_as_input_ends_the_run_soon(working: Client, more: dict[str, Any]) -> None:
    handle = await begin(working, {"goal": "try it", "limits": {"model_calls": 1}, **more})
    ended = await asyncio.wait_for(asyncio.gather(handle.result(), return_exceptions=True), 20)
    for failure in ended:
        if isinstance(failure, BaseException):
            assert isinstance(failure, WorkflowFailureError)
            assert getattr(failure.cause, "type", "") == "InvalidTask", failure.cause
