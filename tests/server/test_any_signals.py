"""Whatever signals come, in any order: the run never fails by them, its log stays whole, and it replays."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.service import RPCError

from activities.settings import Settings
from tests.server.trials import Run, begin, calls, log_of, replayed, task
from workflows.api import AgentTask, PageQuery
from workflows.kernel.log import chain
from workflows.people import Approvals, Group, People, RequestSettings, RequestsPage

VERBS = ("approve", "reject", "edit", "answer", "resume", "retry", "topup", "finish", "abort")
DECISIONS = st.fixed_dictionaries(
    {
        "request": st.sampled_from(["r1", "r1", "r2", "r3", "r9"]),
        "digest": st.sampled_from(["right", "right", "right", "of r1", "junk"]),
        "decision": st.just("approve") | st.sampled_from(VERBS),
        "by": st.sampled_from(["ann", "bob", "eve", "zed", ""]),
    },
    optional={
        "arguments": st.sampled_from([{"line": "edited"}, {"lime": 1}, {}]),
        "standing_approval": st.sampled_from([{}, {"same": True}, {"arguments": {"line": {"minLength": 2}}}]),
    },
)
COMMANDS = st.fixed_dictionaries(
    {"command": st.sampled_from(["pause", "resume", "steer", "rollback", "limits", "limits", "abort"])},
    optional={
        "step": st.integers(0, 3),
        "at_once": st.booleans(),
        "compensate": st.booleans(),
        "text": st.sampled_from(["", "be quick"]),
        "limits": st.dictionaries(st.sampled_from(["model_calls", "tool_calls", "what"]), st.integers(-1, 9)),
    },
)
JSON = st.recursive(
    st.none() | st.text(max_size=5) | st.floats(), lambda inner: st.lists(inner, max_size=3)
).map(lambda value: json.dumps(value).encode())
SIGNALS = st.lists(
    st.tuples(st.just("decide"), DECISIONS)
    | st.tuples(st.just("command"), COMMANDS)
    | st.tuples(st.sampled_from(["decide", "command", "else"]), st.binary(max_size=30) | JSON)
    | st.tuples(st.just("wait"), st.none()),
    max_size=14,
)


def careful() -> AgentTask:
    """Two unsafe calls at once, one that takes a moment, another unsafe one; two of three must agree."""
    desk = Group(members=("ann", "bob", "eve"), quorum=2)
    people = People(groups={"desk": desk}, requests=RequestSettings(group="desk"), on_limit="ask")
    both = calls(("mark_once", {"line": "a1"}), ("mark_once", {"line": "a2"}))
    slow, last = calls(("mark", {"line": "b", "seconds": 0.05})), calls(("mark_once", {"line": "c"}))
    tools = ("mark", "mark_once")
    return task(both, slow, last, "done", tools=tools, people=people, approvals=Approvals())


async def send(run: Run, name: str, value: Any) -> None:
    """As somebody does who has nothing but Temporal."""
    if name == "wait":
        await asyncio.sleep(0.05)
        return
    if isinstance(value, bytes):
        value = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=value))
    elif name == "decide":
        page = await run.query("requests", PageQuery(), result_type=RequestsPage)
        digests = {request.id: request.digest for request in (*page.open, *page.closed)}
        known = {"right": digests.get(value["request"], ""), "of r1": digests.get("r1", "")}
        value = {**value, "digest": known.get(value["digest"], "0")}
    await run.signal(name, value)


@profile(max_examples=profile().max_examples // 5)  # each is a run on the server
@given(signals=SIGNALS)
async def test_no_signals_harm_a_run(working: Client, settings: Settings, signals: list[Any]) -> None:
    run = await begin(working, careful())
    with suppress(RPCError):  # it is over before the last one
        for name, value in (*signals, ("command", {"command": "abort"})):
            await send(run, name, value)
    result = await run.result()
    assert (result.exit_reason in {"aborted", "limit", "stop"}, result.archived) == (True, True)
    log = await log_of(run)
    assert [record.seq for record in log] == list(range(len(log)))
    assert chain(log) == result.log_head
    events = (await run.fetch_history()).events
    failed = [event.workflow_task_failed_event_attributes.cause for event in events]
    # A signal that comes while the run ends has its last task done again.
    assert set(failed) <= {0, WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND}
    await replayed(run, settings)
