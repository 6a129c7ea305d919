"""The workflow in the real sandbox on the real server."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import SearchAttributeKey
from temporalio.worker import Worker

from activities.archive import Archive
from activities.contracts import ModelSpec, ScriptedReply
from activities.settings import Settings
from client.agent import AgentClient
from client.archived import ArchivedRuns
from client.plugin import connect
from tests.workflows.trials import act, begin, final, log_of, task, until
from workflows.api import (
    PAGE_BYTES,
    AgentResult,
    AgentStatus,
    Limits,
    LogPage,
    StepsPage,
    TranscriptPage,
)
from workflows.kernel.log import Record, chain


async def test_an_agent_thinks_acts_and_answers_and_its_log_is_archived(
    working: Client, settings: Settings
) -> None:
    handle = await begin(working, task(act("mark", line="one"), final("it is done"), tools=("mark",)))
    result = await handle.result()
    assert (result.ok, result.exit_reason, result.answer, result.state) == (
        True,
        "goal_achieved",
        "it is done",
        "__end__",
    )
    assert (result.counters["model_calls"], result.counters["tool_calls"], result.steps) == (2, 1, 2)
    records = await log_of(handle)
    assert chain(records) == result.log_head
    archive = Archive(settings.data_dir / "archive.db")
    kept = [Record.model_validate(one) for one in await archive.records(handle.id)]
    assert kept == records
    assert await archive.verify(handle.id) is None


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        pytest.param([], "one AgentTask is expected as input, 0 values came", id="no input"),
        pytest.param([{"goal": "a"}, 1], "2 values came", id="two inputs"),
        pytest.param(["nonsense"], "the whole input", id="a text"),
        pytest.param([{"gaol": "a"}], "gaol: Extra inputs are not permitted", id="misspelt key"),
        pytest.param([{"goal": " "}], "the goal is blank", id="blank goal"),
        pytest.param([{"goal": "x" * 1_000_000}], "the goal is 1,000,000 bytes", id="goal of a megabyte"),
        pytest.param(
            [{"goal": "a", "machine": "raect"}], "unknown machine raect; did you mean react", id="machine"
        ),
        pytest.param(
            [{"goal": "a", "options": {"max_steps": 0}}], "options.max_steps", id="knob out of range"
        ),
        pytest.param([{"goal": "a", "limits": {"tokens": -1}}], "limits.tokens", id="limit not positive"),
        pytest.param(
            [{"goal": "a", "tools": ["hammer"]}], "unknown tools: hammer. This worker has: ", id="tool"
        ),
        pytest.param(
            [{"goal": "a", "options": {"rules": [{"type": "none"}]}}], "unknown rule type", id="rule"
        ),
    ],
)
async def test_an_unusable_task_fails_the_run_at_once_with_a_readable_error(
    working: Client, inputs: list[Any], says: str
) -> None:
    handle = await working.start_workflow(
        "AgentWorkflow", args=inputs, id=f"bad-{abs(hash(says))}", task_queue="ratchet"
    )
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 10)
    assert says in str(failure.value.cause)
    assert getattr(failure.value.cause, "type", "") == "InvalidTask"
    if not says.startswith(("unknown", "options")):  # the task itself could not be read
        with pytest.raises(WorkflowQueryFailedError, match=re.escape(says)):
            await handle.query("status")
        return
    status = await handle.query("status", result_type=AgentStatus)
    assert status.exit_reason == "refused"
    assert says in str(status.error)


async def test_queries_answer_without_arguments_and_in_pages_that_temporal_can_show(working: Client) -> None:
    replies = [act("huge", line="x"), *(act("mark", line=str(n)) for n in range(8)), final("x" * 3000)]
    handle = await begin(working, task(*replies, tools=("mark", "huge")))
    await handle.result()
    for name, kind in (("log", LogPage), ("steps", StepsPage), ("transcript", TranscriptPage)):
        page = await handle.query(name, result_type=kind)
        assert page.next > 0
        assert len(page.model_dump_json().encode()) <= PAGE_BYTES
    diagram = await handle.query("diagram", result_type=str)
    assert "class state_end current" in diagram


async def test_a_transient_tool_failure_is_tried_three_times_and_a_tool_that_must_not_be_repeated_once(
    working: Client, settings: Settings
) -> None:
    replies = [
        act("flaky", line="f"),
        act("broken", line="b"),
        act("broken_once", line="o"),
        act("crash", line="c"),
    ]
    tools = ("flaky", "broken", "broken_once", "crash")
    handle = await begin(working, task(*replies, final("ok"), tools=tools))
    await handle.result()
    lines = (settings.files_root / "marks.txt").read_text().splitlines()
    mine = [line for line in lines if handle.id in line]
    assert {name: sum(line.startswith(name) for line in mine) for name in "fboc"} == {
        "f": 3,
        "b": 3,
        "o": 1,
        "c": 1,
    }
    keys = {line.split()[1] for line in mine if line.startswith("f")}
    assert len(keys) == 1, "every attempt of a call has the same idempotency key"
    seen = [r.reason for r in await log_of(handle) if r.event == "Acted"]
    assert seen[:4] == [
        "at last",
        "Error after 3 attempts: never",
        "Error after 1 attempt: never",
        "RuntimeError: boom",
    ]


async def test_a_cancelled_run_ends_as_cancelled_with_a_complete_result(working: Client) -> None:
    slow = task(act("mark", line="c", seconds=30), final("never"), tools=("mark",))
    handle = await begin(working, slow)
    await until(handle, lambda status: status.state == "action")
    await handle.cancel()
    result = await asyncio.wait_for(handle.result(), 10)
    assert (result.ok, result.exit_reason, result.state, result.steps) == (False, "cancelled", "action", 1)
    assert result.counters["tool_calls"] == 1
    assert (await log_of(handle))[-1].event == "Closed"
    status = await handle.query("status", result_type=AgentStatus)
    assert (status.exit_reason, status.error) == ("cancelled", result.error)


async def test_a_run_that_was_cancelled_before_a_worker_took_it_is_found_as_cancelled(
    working: Client, tmp_path: Path
) -> None:
    own = Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path)
    client = await connect(own, target_host=working.service_client.config.target_host)
    handle = await client.start_workflow(
        "AgentWorkflow",
        task(final("never"), tools=("read_file",)),
        id="too-late",
        task_queue="later",
        result_type=AgentResult,
    )
    await handle.cancel()
    early = asyncio.create_task(handle.execute_update("command", {"command": "pause"}))
    async with Worker(client, task_queue="later"):
        result = await asyncio.wait_for(handle.result(), 20)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await early
    assert "the run is over" in str(refused.value.cause)
    assert (result.exit_reason, result.error) == ("cancelled", "the run was cancelled before it began")
    attributes = (await handle.describe()).typed_search_attributes
    assert attributes[SearchAttributeKey.for_keyword("AgentExit")] == "cancelled"


async def test_a_limit_ends_the_run_before_the_call_that_would_pass_it(working: Client) -> None:
    replies = [act("mark", line="l") for _ in range(5)]
    given = task(*replies, tools=("mark",), limits=Limits(model_calls=3))
    result = await (await begin(working, given)).result()
    assert (result.exit_reason, result.counters["model_calls"]) == ("limit", 3)
    assert result.error == "the limit is reached, model_calls: 3 of 3 spent (see `limits` of the agent)"


async def test_a_limit_in_seconds_cuts_a_call_that_would_pass_it(working: Client) -> None:
    given = task(act("mark", line="l", seconds=25), final("x"), tools=("mark",), limits=Limits(seconds=1))
    result = await asyncio.wait_for((await begin(working, given)).result(), 15)
    assert (result.ok, result.exit_reason) == (False, "limit")
    assert result.error is not None
    assert "seconds" in result.error


async def test_rejected_thoughts_end_as_retries_exhausted_while_nobody_can_be_asked(working: Client) -> None:
    result = await (await begin(working, task(*[{"thought": "I guess so"}] * 4))).result()
    assert (result.exit_reason, result.outcome["retry_count"]) == ("retries_exhausted", 4)


async def test_the_store_that_lost_the_conversation_gets_it_once_again(
    working: Client, settings: Settings
) -> None:
    """The transcript cache may be deleted while a run is on its way."""
    import sqlite3

    replies = [act("mark", line="1"), act("mark", line="2", seconds=1), final("still here")]
    handle = await begin(working, task(*replies, tools=("mark",)))
    await until(handle, lambda status: status.step == 2)
    with sqlite3.connect(settings.data_dir / "cache.db") as cache:
        for (table,) in cache.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cache.execute(f"DELETE FROM {table}")
    result = await asyncio.wait_for(handle.result(), 20)
    assert result.answer == "still here"


async def test_history_holds_each_message_once(working: Client) -> None:
    word = "unmistakable"
    replies = [act("mark", line=f"{word}{n}") for n in range(6)]
    handle = await begin(working, task(*replies, final("end"), tools=("mark",)))
    await handle.result()
    asked = [
        event.activity_task_scheduled_event_attributes.input.SerializeToString().decode(errors="replace")
        for event in (await handle.fetch_history()).events
        if event.HasField("activity_task_scheduled_event_attributes")
        and event.activity_task_scheduled_event_attributes.activity_type.name == "call_model"
    ]
    assert sum(f"done {word}3" in text for text in asked) == 1
    assert max(len(text) for text in asked[1:]) < 1500, "a call carries only what is new"


async def test_what_a_model_is_saying_can_be_read_while_it_says_it(
    working: Client, settings: Settings
) -> None:
    spoken = "a long thought about many things " * 5
    agents = AgentClient(working, ArchivedRuns(settings.data_dir / "archive.db"), where="here")
    slow = ScriptedReply(reply=final(spoken), delay_seconds=4)
    handle = await begin(working, task(slow))
    texts: list[str] = []
    while not (await handle.describe()).close_time:
        now = await agents.now(handle.id)
        texts += [now.text] if now.text and now.text not in texts else []
        await asyncio.sleep(0.2)
    assert len(texts) > 1, "the text is seen to grow"
    assert all(json.dumps(final(spoken)).startswith(text) for text in texts)
    assert (await agents.now(handle.id)).text == ""


async def test_a_run_is_found_by_its_search_attributes(working: Client) -> None:
    given = task(final("found"), agent="finder", visibility="state")
    handle = await begin(working, given)
    await handle.result()
    wanted = {"Name": "finder", "Machine": "react", "Exit": "goal_achieved", "State": "__end__"}
    query = " AND ".join(f"Agent{name} = '{value}'" for name, value in wanted.items())
    for _ in range(100):
        found = [run.id async for run in working.list_workflows(query)]
        if found:
            break
        await asyncio.sleep(0.05)
    assert found == [handle.id]
    memo = await (await handle.describe()).memo()
    assert memo["machine"] == "react 1"
    assert len(memo["definition"]) == 16


def _echo(*words: str, delay: float = 0) -> ModelSpec:
    """A script that answers `a` with `A`; it fails for a word that is not in it."""
    entry = ScriptedReply(reply="{letter}!", expect=f"^(?P<letter>{'|'.join(words)})$", delay_seconds=delay)
    return ModelSpec(provider="scripted", name="script", script=(entry,))


async def test_models_are_asked_side_by_side_ten_at_a_time_and_answer_in_order(working: Client) -> None:
    words = "abcdefghijkl"
    given = task(machine="asking").model_copy(
        update={"goal": " ".join(words), "models": {"default": _echo(*words, delay=0.5)}}
    )
    handle = await begin(working, given)
    result = await handle.result()
    assert result.answer == " ".join(f"{word}!" for word in words)
    assert result.counters["model_calls"] == 12
    kinds = [
        EventType.Name(event.event_type).removeprefix("EVENT_TYPE_ACTIVITY_TASK_")
        async for event in handle.fetch_history_events()
        if "ACTIVITY_TASK" in EventType.Name(event.event_type)
    ]
    assert kinds[:10] == ["SCHEDULED"] * 10
    assert kinds[10] != "SCHEDULED", "the eleventh waits for one that ends"


async def test_one_model_call_of_several_may_fail(working: Client) -> None:
    given = task(machine="asking").model_copy(
        update={"goal": "a nonsense b", "models": {"default": _echo("a", "b")}}
    )
    assert (await (await begin(working, given)).result()).answer == "a! script_mismatch b!"
    over = given.model_copy(update={"limits": Limits(model_calls=2)})
    assert (await (await begin(working, over)).result()).exit_reason == "limit"
