"""Whatever signals come, in any order and number: no run fails by them, and every one is in its log."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import RawValue
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.archive import Archive
from activities.settings import Settings
from client.plugin import connect
from tests.conftest import TOOLS, real_server
from tests.people.temporalkit import (
    PATIENCE,
    Handle,
    asking_task,
    begun,
    calls,
    decision,
    marks,
    noted,
    reached,
    replayed,
    requests,
    waits_for,
)
from tests.workflows.trials import begin, log_of, task
from worker import build_worker
from workflows.api import AgentResult, AgentStatus, AgentTask
from workflows.kernel.log import Record
from workflows.messages import AT_ONCE
from workflows.people import Approvals, Asking, Group, People

WORDS = st.sampled_from(
    ["approve", "reject", "edit", "answer", "resume", "topup", "abort", "retry", "finish"]
)

decisions = st.fixed_dictionaries(
    {
        "request": st.sampled_from(["r1", "r1", "r2", "r3", "r9"]),
        "digest": st.sampled_from(["right", "right", "right", "stale", "junk"]),
        "decision": st.one_of(st.just("approve"), WORDS),
        "by": st.sampled_from(["ann", "bob", "eve", "zed", ""]),
    },
    optional={
        "arguments": st.sampled_from([{"line": "edited"}, {"lime": 1}, {}]),
        "remember": st.sampled_from([{}, {"same": True}, {"arguments": {"line": {"longer_than": 3}}}]),
    },
)
commands = st.fixed_dictionaries(
    {"command": st.sampled_from(["pause", "resume", "steer", "rollback", "limits", "limits", "abort"])},
    optional={
        "step": st.integers(0, 3),
        "at_once": st.booleans(),
        "compensate": st.booleans(),
        "limits": st.dictionaries(st.sampled_from(["model_calls", "tool_calls", "what"]), st.integers(-1, 9)),
    },
)
junk = st.one_of(
    st.binary(max_size=30),
    st.recursive(st.none() | st.text(max_size=5) | st.floats(), lambda v: st.lists(v, max_size=3)).map(
        lambda value: json.dumps(value).encode()
    ),
)
signals = st.lists(
    st.one_of(
        st.tuples(st.just("decide"), decisions),
        st.tuples(st.just("command"), commands),
        st.tuples(st.sampled_from(["decide", "command", "else"]), junk),
        st.tuples(st.just("again"), st.integers(0, 13)),
    ),
    max_size=14,
)
DONE = {"Voted", "Decided", "RefusedDecision", "RepeatedDecision"}
OBEYED = {"Paused", "Resumed", "Steered", "LimitsSet", "RolledBack", "RefusedCommand", "RepeatedCommand"}
Signal = tuple[str, Any]
ANN: dict[str, Any] = {"request": "r1", "digest": "right", "decision": "approve", "by": "ann"}
TWICE: list[Signal] = [
    ("decide", ANN), ("again", 0), ("command", {"command": "pause"}), ("again", 2),
    ("decide", {**ANN, "by": "zed"}), ("again", 4), ("again", 2), ("decide", {**ANN, "by": "bob"}),
    ("again", 0), ("command", {"command": "resume"}), ("again", 2), ("command", {"command": "rollback"}),
    ("again", 11), ("else", b"1"), ("again", 13),
]  # fmt: skip
"""Votes, commands, what is refused and what is junk, each sent again: at once, and later."""


def asking() -> AgentTask:
    """Two unsafe calls at once, then a third; two of three people must agree."""
    group = Group(members=("ann", "bob", "eve"), quorum=2)
    people = People(groups={"desk": group}, asking=Asking(group="desk"))
    replies = (calls("mark_once", "any-1", "any-2"), calls("mark_once", "any-3"), "over")
    return task(*replies, tools=("mark_once",), machine="tools", people=people, approvals=Approvals())


async def spelt(handle: Handle, sent: list[Signal], name: str, given: Any) -> Signal:
    """The signal as it is sent; what has an id has its number as id, so that it is found in the log."""
    if name == "again":
        return sent[given % len(sent)] if sent else ("else", b"")
    if isinstance(given, bytes):
        return name, given
    said = {**given, "id": f"s{len(sent)}.", "text": f"s{len(sent)}."}
    if name == "decide":
        digests = {request.id: request.digest for request in await requests(handle)}
        known = {"right": digests.get(said["request"], ""), "stale": digests.get("r1", "")}
        said["digest"] = known.get(said["digest"], "0")
    return name, said


async def send(handle: Handle, name: str, said: Any) -> None:
    """As somebody does who has Temporal alone."""
    if isinstance(said, bytes):
        said = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=said))
    await handle.signal(name, said)


def told_of(signal: Signal, records: list[Record]) -> list[str]:
    """The events that say what became of a signal, and of others of the same id."""
    name, said = signal
    if isinstance(said, bytes):
        return [r.event for r in records if r.event == "UnusableSignal"]
    events = DONE if name == "decide" else OBEYED
    found = [r.event for r in records if r.event in events and r.about.get("id") == said["id"]]
    ends = name == "command" and said["command"] == "abort"
    return found + [r.event for r in records if ends and r.event == "Closed" and said["id"] in r.reason]


def kind_of(signal: Signal) -> str:
    """Signals of one kind cannot be told from each other in the log."""
    return "junk" if isinstance(signal[1], bytes) else str(signal[1]["id"])


async def heard(handle: Handle) -> list[int]:
    """The numbers of the signals that came before the run was over; later ones nobody hears."""
    events = (await handle.fetch_history()).events
    ended = [
        e.activity_task_scheduled_event_attributes.workflow_task_completed_event_id
        for e in events
        if e.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        and e.activity_task_scheduled_event_attributes.activity_type.name == "archive_log"
    ]
    started = next(
        e.workflow_task_completed_event_attributes.started_event_id for e in events if e.event_id == ended[-1]
    )
    came = [e.event_id for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED]
    return [number for number, event in enumerate(came) if event < started]


@examples(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(wanted=signals)
@example(wanted=TWICE)
async def test_no_list_of_signals_fails_a_run_and_each_is_in_the_log_once(
    working: Client, settings: Settings, wanted: list[Signal]
) -> None:
    handle = await begin(working, asking())
    if wanted == TWICE:
        await waits_for(handle)
    last = ("command", {"command": "abort"})
    sent: list[Signal] = []
    with suppress(RPCError):  # it is over by then
        for name, given in (*wanted, last):
            sent.append(await spelt(handle, sent, name, given))
            await send(handle, *sent[-1])
    result = await handle.result()
    assert (await handle.describe()).status == WorkflowExecutionStatus.COMPLETED
    assert result.exit_reason in {"aborted", "limit", "no_tool_calls", "completed"}, result
    records = await log_of(handle)
    there = [sent[number] for number in await heard(handle)]
    for signal in there:
        same = [other for other in there if kind_of(other) == kind_of(signal)]
        told = told_of(signal, records)
        assert len(told) == len(same), (signal, told, same)
    if wanted == TWICE:
        wanted_events = {
            0: ["RepeatedDecision", "RepeatedDecision", "Voted"],
            2: ["Paused", "RepeatedCommand", "RepeatedCommand", "RepeatedCommand"],
            4: ["RefusedDecision", "RefusedDecision"],
            11: ["RefusedCommand", "RepeatedCommand"],
        }
        # In whatever order: a repeat may come before the run has come to the first one.
        assert {n: sorted(told_of(sent[n], records)) for n in wanted_events} == wanted_events
        assert result.exit_reason == "aborted"
    await replayed(handle, settings)


async def test_what_is_said_after_so_many_signals_is_heard_too(working: Client, tmp_path: Path) -> None:
    own = Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=(str(TOOLS),))
    client = await connect(own, target_host=working.service_client.config.target_host)
    handle: Handle = await client.start_workflow(
        "AgentWorkflow", asking_task("calm"), id="calm", task_queue="calm", result_type=AgentResult
    )
    for number in range(AT_ONCE + 20):  # no worker runs, so that all come in one task
        await handle.signal("junk", number)

    async def all_heard() -> bool:
        return len(await noted(handle, "UnusableSignal")) == AT_ONCE + 20

    async with Worker(client, task_queue="calm"):
        request = await waits_for(handle)
        await reached(all_heard)
        await handle.signal("decide", decision(request, "approve"))
        assert (await asyncio.wait_for(handle.result(), PATIENCE)).ok


async def test_more_signals_than_one_task_bears_are_heard_in_their_order_and_none_is_lost(
    tmp_path: Path,
) -> None:
    """They came while no worker ran; the run goes on as new in between."""
    own = Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=(str(TOOLS),))
    async with real_server(own, "limit.historyCount.suggestContinueAsNew=60") as client:
        async with build_worker(client, own):
            handle, request = await begun(client, asking_task("storm"))
        sent: list[tuple[str, Any]] = [("junk", n) for n in range(2300)]
        sent[10] = ("decide", decision(request, "approve"))
        sent[2000] = ("command", {"command": "steer", "text": "calm down"})
        for name, said in sent:
            await handle.signal(name, said)
        async with build_worker(client, own):
            result = await client.get_workflow_handle(handle.id, result_type=AgentResult).result()
            latest = client.get_workflow_handle(handle.id)
            status = await latest.query("status", result_type=AgentStatus)
        assert result.run_id != handle.first_execution_run_id
        assert status.unusable_messages == ("junk",) * 20, "names of the newest ones are carried on"
        events = (await handle.fetch_history()).events
    assert not [e for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED]
    assert (result.ok, marks(own)) == (True, ["storm"])
    archive = Archive(own.data_dir / "archive.db")
    records = [Record.model_validate(one) for one in await archive.records(handle.id)]
    heard = [r.event for r in records if r.event in {"UnusableSignal", "Decided", "Steered"}]
    assert len(heard) == len(sent)
    assert (heard.index("Decided"), heard.count("UnusableSignal")) == (10, 2298)
