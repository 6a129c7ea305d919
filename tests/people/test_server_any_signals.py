"""Whatever signals come, in any order and number: no run fails by them, and every one is in its log."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import RawValue
from temporalio.service import RPCError

from activities.archive import Archive
from activities.settings import Settings
from tests.conftest import TOOLS, real_server
from tests.people.temporalkit import (
    Handle,
    asking_task,
    begun,
    calls,
    decision,
    marks,
    replayed,
    requests,
)
from tests.workflows.trials import begin, log_of, task
from worker import build_worker
from workflows.api import AgentResult, AgentTask
from workflows.kernel.log import Record
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
    ),
    max_size=14,
)


def asking() -> AgentTask:
    """Two unsafe calls at once, then a third; two of three people must agree."""
    group = Group(members=("ann", "bob", "eve"), quorum=2)
    people = People(groups={"desk": group}, asking=Asking(group="desk"))
    replies = (calls("mark_once", "any-1", "any-2"), calls("mark_once", "any-3"), "over")
    return task(*replies, tools=("mark_once",), machine="tools", people=people, approvals=Approvals())


async def send(handle: Handle, number: int, name: str, given: Any) -> None:
    """One signal; what has an id has its number as id, so that it is found in the log."""
    if isinstance(given, bytes):
        payload = Payload(metadata={"encoding": b"json/plain"}, data=given)
        await handle.signal(name, RawValue(payload))
        return
    said = {**given, "id": f"s{number}.", "text": f"s{number}."}
    if name == "decide":
        digests = {request.id: request.digest for request in await requests(handle)}
        known = {"right": digests.get(said["request"], ""), "stale": digests.get("r1", "")}
        said["digest"] = known.get(said["digest"], "0")
    await handle.signal(name, said)


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


@examples(max_examples=25, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(sent=signals)
async def test_no_list_of_signals_fails_a_run_and_each_is_in_the_log(
    working: Client, settings: Settings, sent: list[tuple[str, Any]]
) -> None:
    handle = await begin(working, asking())
    last = ("command", {"command": "abort"})
    with suppress(RPCError):  # it is over by then
        for number, (name, said) in enumerate((*sent, last)):
            await send(handle, number, name, said)
    result = await handle.result()
    assert (await handle.describe()).status == WorkflowExecutionStatus.COMPLETED
    assert result.exit_reason in {"aborted", "limit", "no_tool_calls", "completed"}, result
    records = await log_of(handle)
    told = [record.model_dump_json() for record in records]
    numbers = await heard(handle)
    there = [(number, *said) for number, said in enumerate(sent) if number in numbers]
    for number, name, said in there:
        if not isinstance(said, bytes):
            assert any(f"s{number}." in line for line in told), (name, said, told)
    useless = [said for _, _, said in there if isinstance(said, bytes)]
    assert len([record for record in records if record.event == "UnusableSignal"]) == len(useless)
    await replayed(handle, settings)


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
        events = (await handle.fetch_history()).events
    assert not [e for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED]
    assert (result.ok, marks(own)) == (True, ["storm"])
    archive = Archive(own.data_dir / "archive.db")
    records = [Record.model_validate(one) for one in await archive.records(handle.id)]
    heard = [r.event for r in records if r.event in {"UnusableSignal", "Decided", "Steered"}]
    assert len(heard) == len(sent)
    assert (heard.index("Decided"), heard.count("UnusableSignal")) == (10, 2298)
