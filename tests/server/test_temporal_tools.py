"""What Temporal's own tools do to a run: activities that others complete or fail, pauses, terminate."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import FailureError
from temporalio.service import RPCError

from activities.settings import Settings
from client.sdk.agent import AgentClient
from client.server.connection import Connection
from client.server.embedded import temporal_binary
from tests.server.conftest import real_server
from tests.server.trials import (
    Run,
    begin,
    calls,
    decide,
    eventually,
    failed_tasks,
    open_request,
    replayed,
    scripted,
    task,
)
from worker import build_worker
from workflows.people import Approvals, People

FOREVER = 3600


async def temporal_cli(client: Client, *words: str) -> str:
    """What `temporal ...` prints."""
    address = client.service_client.config.target_host
    command = (str(temporal_binary()), *words, "--address", address)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return out.decode()


async def under_way(run: Run, kind: str = "call_tool") -> str:
    """Id of the activity of this type that a worker has begun."""

    async def found() -> str:
        description = await run.describe()
        pending = description.raw_description.pending_activities
        begun = (one for one in pending if one.HasField("last_started_time"))
        return next((one.activity_id for one in begun if one.activity_type.name == kind), "")

    return await eventually(found)


def marks(settings: Settings, file: str) -> int:
    """How many lines tools have written."""
    path = settings.files_root / file
    return len(path.read_text().splitlines()) if path.exists() else 0


async def more_than(before: int, settings: Settings, file: str) -> bool:
    """Tools have written more lines."""
    return marks(settings, file) > before


def stuck(tool: str, file: str = "stuck.txt", **more: Any) -> Any:
    """A run whose first call never ends."""
    call = calls((tool, {"line": "stuck", "file": file, "seconds": FOREVER}))
    return task(call, "done", tools=(tool,), **more)


ENDINGS = [
    pytest.param(("complete", "--result", '"ready"'), "no ToolResult", id="text"),
    pytest.param(("complete", "--result", "null"), "no ToolResult", id="null"),
    pytest.param(("complete", "--result", '{"output": 5}'), "no ToolResult", id="other fields"),
    pytest.param(("fail", "--reason", "the operator says so"), "the operator says so", id="fail"),
]


@pytest.mark.parametrize(("ending", "said"), ENDINGS)
async def test_call_that_is_ended_from_outside_failed(
    working: Client, settings: Settings, ending: tuple[str, ...], said: str
) -> None:
    run = await begin(working, stuck("mark"))
    activity = await under_way(run)
    await temporal_cli(working, "activity", *ending, "--workflow-id", run.id, "--activity-id", activity)
    result = await run.result()
    assert (result.answer, await failed_tasks(run)) == ("done", 0)
    (call,) = result.calls
    assert call.error == "failed"
    assert said in call.output
    await replayed(run, settings)


@pytest.mark.parametrize(("ending", "said"), [ENDINGS[0], ENDINGS[-1]])
async def test_unsafe_call_that_is_ended_from_outside_is_asked_about(
    working: Client, ending: tuple[str, ...], said: str
) -> None:
    run = await begin(working, stuck("mark_once", people=People()))
    activity = await under_way(run)
    await temporal_cli(working, "activity", *ending, "--workflow-id", run.id, "--activity-id", activity)
    request = await open_request(run, "outcome")
    assert said in request.text
    await decide(run, "answer", request, text="it is done")
    assert (await run.result()).answer == "done"


async def test_call_is_completed_from_outside_with_a_result(working: Client) -> None:
    run = await begin(working, stuck("mark"))
    activity = await under_way(run)
    result = '{"id": "c1", "tool": "mark", "output": "by hand"}'
    ending = ("complete", "--result", result)
    await temporal_cli(working, "activity", *ending, "--workflow-id", run.id, "--activity-id", activity)
    (call,) = (await run.result()).calls
    assert (call.error, call.output) == (None, "by hand")


@pytest.mark.parametrize(("ending", "said"), [ENDINGS[0], ENDINGS[-1]])
async def test_question_that_is_ended_from_outside_failed(
    working: Client, ending: tuple[str, ...], said: str
) -> None:
    slow = {"default": scripted("done", delay_seconds=FOREVER)}
    run = await begin(working, task(machine="react", models=slow))
    activity = await under_way(run, "ask_model")
    await temporal_cli(working, "activity", *ending, "--workflow-id", run.id, "--activity-id", activity)
    result = await run.result()
    assert (result.ok, await failed_tasks(run)) == (False, 0)
    assert said.replace("ToolResult", "ModelReplied") in (result.error or "")


async def pending(run: Run) -> Any:
    """The activity under way, as Temporal's UI shows it."""
    (one,) = (await run.describe()).raw_description.pending_activities
    return one


async def state(run: Run) -> str:
    """Of the activity under way, as Temporal's UI shows it."""
    (one,) = (await run.describe()).raw_description.pending_activities
    return PendingActivityState.Name(one.state).removeprefix("PENDING_ACTIVITY_STATE_").lower()


async def reaches(run: Run, wanted: str) -> bool:
    """Wait until the activity under way is in this state."""

    async def is_there() -> bool:
        return await state(run) == wanted

    return await eventually(is_there)


async def test_paused_call_that_may_be_repeated_is_made_again(working: Client, settings: Settings) -> None:
    file = "again.txt"
    run = await begin(working, stuck("mark", file))
    where = ("--workflow-id", run.id, "--activity-id", await under_way(run))
    await eventually(lambda: more_than(0, settings, file))
    await temporal_cli(working, "activity", "pause", *where)
    await reaches(run, "paused")
    agents = AgentClient(Connection(working, settings, "the test server"))
    status = await agents.status(run.id)
    (paused,) = status.paused_calls
    assert re.fullmatch(r"mark\(.* is paused in Temporal by .*; `temporal activity unpause .*`.*", paused)
    assert status.failing is None
    await temporal_cli(working, "activity", "unpause", *where)
    await eventually(lambda: more_than(1, settings, file))
    await run.terminate()


async def test_attempt_that_did_not_fail_is_not_counted(working: Client, settings: Settings) -> None:
    """An operator stops the first one: in all there are four, and three of them fail."""
    file = "counted.txt"
    call = calls(("broken", {"line": "tried", "file": file, "until": "fail.txt"}))
    run = await begin(working, task(call, "done", tools=("broken",), options={"max_tool_attempts": 3}))
    where = ("--workflow-id", run.id, "--activity-id", await under_way(run))
    await eventually(lambda: more_than(0, settings, file))
    await temporal_cli(working, "activity", "pause", *where)
    await reaches(run, "paused")
    (settings.files_root / "fail.txt").touch()
    await temporal_cli(working, "activity", "unpause", *where)
    assert (await run.result()).answer == "done"
    assert marks(settings, file) == 4


@pytest.mark.parametrize("verb", ["pause", "reset"])
async def test_unsafe_call_whose_activity_is_begun_again_is_asked_about(
    working: Client, settings: Settings, verb: str
) -> None:
    """By `activity pause` and `activity unpause`, or `activity reset`."""
    file = f"again-{verb}.txt"
    run = await begin(working, stuck("mark_once", file, people=People()))
    where = ("--workflow-id", run.id, "--activity-id", await under_way(run))
    await eventually(lambda: more_than(0, settings, file))
    await temporal_cli(working, "activity", verb, *where)
    if verb == "pause":
        await reaches(run, "paused")
        await temporal_cli(working, "activity", "unpause", *where)
    request = await open_request(run, "outcome")
    await decide(run, "answer", request, text="it is done")
    assert (await run.result()).answer == "done"
    assert marks(settings, file) == 1


@pytest.fixture(scope="module")
async def pausing(settings: Settings) -> AsyncIterator[Client]:
    """A server whose workflows can be paused, and a worker."""
    async with (
        real_server(settings, "frontend.WorkflowPauseEnabled=true") as client,
        build_worker(client, settings),
    ):
        yield client


async def test_web_ui_offers_the_messages_of_a_run(pausing: Client) -> None:
    run = await begin(pausing, stuck("mark_once", people=People(), approvals=Approvals()))
    await open_request(run)
    offered = (await run.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)).definition
    for messages in (offered.signal_definitions, offered.update_definitions):
        assert {"decide", "command"} <= {one.name for one in messages if '"by": "ann"' in one.description}


async def test_paused_workflow_hears_when_it_is_unpaused(pausing: Client) -> None:
    run = await begin(pausing, stuck("mark_once", people=People(), approvals=Approvals()))
    request = await open_request(run)
    decision = {"request": request.id, "digest": request.digest, "decision": "reject"}
    pausing_words = ("--workflow-id", run.id, "--reason", "x")
    await temporal_cli(pausing, "workflow", "pause", *pausing_words)
    with pytest.raises(RPCError, match="paused"):
        await decide(run, "reject", request)
    await run.signal("decide", decision)
    await temporal_cli(pausing, "workflow", "unpause", *pausing_words)
    assert [one.outcome for one in (await run.result()).decisions] == ["rejected"]


@pytest.mark.parametrize("name", ["decide", "command", "no_such_update"])
async def test_refused_update_shows_no_path_of_the_worker(working: Client, name: str) -> None:
    run = await begin(working, stuck("mark_once", people=People(), approvals=Approvals()))
    await open_request(run)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await run.execute_update(name, {"nonsense": True})
    assert isinstance(refused.value.cause, FailureError)
    failure = refused.value.cause.failure
    assert failure is not None
    assert (failure.stack_trace, failure.HasField("cause")) == ("", False)
    await run.terminate()


async def test_failed_run_shows_no_path_of_the_worker(working: Client) -> None:
    run = await begin(working, {"goal": "nonsense", "machine": 5})
    with pytest.raises(WorkflowFailureError):
        await run.result()
    assert "/activities/" not in (text := (await run.fetch_history()).to_json())
    assert "/workflows/" not in text
