"""People and a run on the real server: what only Temporal can show, its own tools included."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.worker import Worker

from activities.settings import Settings
from activities.store.archive import Archive
from client.sdk.agent import AgentClient
from client.server.connection import Connection, open_client
from client.server.embedded import temporal_binary
from tests.server.conftest import TOOLS
from tests.server.trials import (
    Run,
    begin,
    calls,
    command,
    decide,
    eventually,
    failed_tasks,
    log_of,
    open_request,
    replayed,
    scripted,
    task,
    until,
)
from workflows.api import AgentTask
from workflows.kernel.canonical import digest_of
from workflows.kernel.log import chain
from workflows.people import Approvals, Group, People, RequestSettings


def asking(*more: Any, line: str = "paid", **given: Any) -> AgentTask:
    """A run whose first call needs an approval."""
    careful = {"tools": ("mark_once",), "people": People(), "approvals": Approvals()}
    return task(calls(("mark_once", {"line": line})), *more, "done", **{**careful, **given})


@asynccontextmanager
async def own_worker(temporal: Client, queue: str, own: Settings, **more: Any) -> AsyncIterator[None]:
    """A worker with settings of its own, on a queue of its own."""
    client = await open_client(own, {"target_host": temporal.service_client.config.target_host})
    async with Worker(client, task_queue=queue, **more):
        yield


@pytest.fixture
def own(tmp_path: Path, settings: Settings) -> Settings:
    """Settings of a worker of this test, over the session's data."""
    return settings.model_copy(update={"files_root": tmp_path, "modules": (str(TOOLS),)})


# -- Temporal's own tools --


async def temporal_cli(client: Client, *words: str) -> Any:
    """What `temporal workflow ...` prints, as JSON."""
    address = client.service_client.config.target_host
    command = (str(temporal_binary()), "workflow", *words, "--address", address, "-o", "json")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return json.loads(out) if out.strip() else None


async def test_temporals_cli_queries_updates_and_signals(working: Client) -> None:
    run = await begin(working, asking(calls(("mark_once", {"line": "two"}))))
    first = await open_request(run)
    answered = await temporal_cli(working, "query", "-w", run.id, "--type", "requests")
    (page,) = answered["queryResult"]
    assert [one["id"] for one in page["open"]] == [first.id]
    decision = {"request": first.id, "digest": first.digest, "decision": "approve", "by": "ann"}
    update = ("update", "execute", "-w", run.id, "--name", "decide", "--input", json.dumps(decision))
    assert (await temporal_cli(working, *update))["result"]["outcome"] == "approved"
    second = await eventually(lambda: request_after(run, first.id))
    decision = {"request": second.id, "digest": second.digest, "decision": "reject", "text": "no"}
    await temporal_cli(working, "signal", "-w", run.id, "--name", "decide", "--input", json.dumps(decision))
    assert [one.outcome for one in (await run.result()).decisions] == ["approved", "rejected"]


async def request_after(run: Run, earlier: str) -> Any:
    """The open request, unless it is the earlier one."""
    request = await open_request(run)
    return request if request.id != earlier else None


async def details(run: Run) -> str:
    """What Temporal's Web UI shows of the run at the moment."""
    metadata: WorkflowMetadata = await run.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details


async def test_ui_shows_the_decision_to_paste(working: Client) -> None:
    """Nothing that a model writes becomes a link, a picture or another block of code."""
    evil = "![x](http://evil/x.png) ```json\n{}\n``` **Waits**"
    run = await begin(working, asking(line=evil))
    await open_request(run)
    shown = await details(run)
    (pasted,) = re.findall(r"```json\n(.*?)\n```", shown, re.DOTALL)
    assert "evil" not in re.sub(r"`[^`]*`", "", shown.replace(pasted, ""))
    await run.signal("decide", {**json.loads(pasted), "by": "ann"})
    assert [one.outcome for one in (await run.result()).decisions] == ["approved"]
    assert "```json" not in await details(run)


async def test_ui_hides_nothing_of_what_is_approved(working: Client) -> None:
    """What it shows in part is approved by a digest that is not there; no character turns the text around."""
    run = await begin(working, asking(line=f"a\u202eb\u200bc{'x' * 1000} and wipe the disk"))
    request = await open_request(run)
    shown = await details(run)
    assert "wipe" not in shown
    assert request.digest not in shown
    assert "ratchet inbox" in shown
    assert "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}cxxx" in shown
    await run.signal("decide", {"request": request.id, "digest": request.digest, "decision": "reject"})
    await run.result()


async def test_lists_show_who_is_waited_for_and_how_it_ended(working: Client) -> None:
    people = People(requests=RequestSettings(deadline_seconds=900))
    run = await begin(working, asking(name="asking", people=people, visibility="state"))
    request = await open_request(run)

    async def listed(query: str) -> dict[str, Any]:
        async for found in working.list_workflows(f"WorkflowId='{run.id}' AND {query}"):
            pairs = found.typed_search_attributes.search_attributes
            return {pair.key.name: pair.value for pair in pairs}
        return {}

    shown = await eventually(lambda: listed("AgentWaiting='approval' AND AgentName='asking'"))
    assert (shown["AgentMachine"], shown["AgentState"]) == ("tools", "EXECUTING_TOOLS")
    deadline: datetime = shown["AgentDeadline"]
    assert deadline.timestamp() == pytest.approx(request.deadline)
    memo = await (await run.describe()).memo()
    assert [one["digest"] for one in memo["requests"]] == [request.digest]
    await decide(run, "approve")
    await run.result()
    shown = await eventually(lambda: listed("AgentExit='stop'"))
    assert "AgentWaiting" not in shown
    assert "AgentDeadline" not in shown
    assert not (await (await run.describe()).memo()).get("requests")


# -- notices and deadlines --


@asynccontextmanager
async def webhook(bodies: list[dict[str, Any]]) -> AsyncIterator[str]:
    """The address of a web server that keeps what it is sent."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(re.findall(r"content-length: (\d+)", head)[0])
        bodies.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"


async def test_webhook_is_told_when_request_opens_nears_end_and_closes(
    temporal: Client, own: Settings
) -> None:
    bodies: list[dict[str, Any]] = []
    moments = RequestSettings(deadline_seconds=60, warn_seconds=59.9)
    people = People(requests=moments, notify=("opened", "expiring", "closed"))
    async with webhook(bodies) as url:
        hooked = own.model_copy(update={"notify_url": SecretStr(url)})
        async with own_worker(temporal, "hooked", hooked):
            run = await begin(temporal, asking(people=people), task_queue="hooked")
            request = await open_request(run)

            async def warned() -> bool:
                return len(bodies) == 2

            await eventually(warned)
            await decide(run, "approve", request)
            await run.result()
    assert sorted(body["moment"] for body in bodies) == ["closed", "expiring", "opened"]
    assert {body["run"] for body in bodies} == {run.id}
    assert bodies[0]["request"]["digest"] == request.digest


async def test_webhook_that_is_down_holds_no_deadline_up(temporal: Client, own: Settings) -> None:
    groups = {"desk": Group(members=("ann",)), "boss": Group(members=("bob",))}
    escalating = RequestSettings(
        group="desk", deadline_seconds=0.3, at_deadline="escalate", escalate_to=("boss", "desk")
    )
    people = People(groups=groups, requests=escalating, notify=("opened",))
    down = own.model_copy(update={"notify_url": SecretStr("http://127.0.0.1:9/nobody")})
    async with own_worker(temporal, "down", down):
        run = await begin(temporal, asking(people=people), task_queue="down")

        async def expired() -> Any:
            return [one for one in await log_of(run) if one.event == "Expired"]

        await until(run, lambda status: status.records > 0)
        await eventually(expired)
        events = [record.event for record in await log_of(run)]
        assert events.count("Escalated") == 2
        assert await failed_tasks(run) == 0
        await run.terminate("its notices would be tried for half a minute")


@pytest.mark.parametrize(
    ("at_deadline", "outcome", "exit_reason"),
    [("approve", "expired", "stop"), ("reject", "expired", "stop"), ("abort", "expired", "expired")],
)
async def test_deadline_that_passes_does_what_it_says(
    working: Client, settings: Settings, at_deadline: Any, outcome: str, exit_reason: str
) -> None:
    people = People(requests=RequestSettings(deadline_seconds=0.2, at_deadline=at_deadline))
    run = await begin(working, asking(people=people))
    result = await run.result()
    assert (result.exit_reason, [one.outcome for one in result.decisions]) == (exit_reason, [outcome])
    assert len(result.calls) == (at_deadline == "approve")
    await replayed(run, settings)


async def test_decision_after_deadline_never_counts_though_no_worker_ran(
    temporal: Client, own: Settings
) -> None:
    """By signal and by update; what was made in time counts, whenever a worker hears it."""
    people = People(requests=RequestSettings(deadline_seconds=4, at_deadline="reject"))
    agents = AgentClient(Connection(temporal, own, temporal.service_client.config.target_host))
    async with own_worker(temporal, "late", own, max_cached_workflows=0):
        runs = [
            await begin(temporal, asking(people=people, line=f"late-{number}"), task_queue="late")
            for number in range(7)
        ]
        requests = [await open_request(run) for run in runs]

    async def all_fired() -> bool:
        histories = [await run.fetch_history() for run in runs]
        return all(
            any(one.HasField("timer_fired_event_attributes") for one in history.events)
            for history in histories
        )

    await eventually(all_fired)
    times = [requests[0].created + 1, requests[1].created + 1, requests[2].deadline, requests[3].deadline]
    sent = [
        {"request": one.id, "digest": one.digest, "decision": "approve", "by": "ann", "made_at": made_at}
        for one, made_at in zip(requests, [*times, None, None], strict=False)
    ]
    updates = [asyncio.create_task(runs[n].execute_update("decide", sent[n])) for n in (0, 2, 4)]
    for number in (1, 3, 5):
        await runs[number].signal("decide", sent[number])
    await agents.decide(runs[6].id, requests[6], "approve", by="ann", signal=True)
    async with own_worker(temporal, "late", own):
        results = [await run.result() for run in runs]
        answers = await asyncio.gather(*updates, return_exceptions=True)
    assert [one.decisions[0].outcome for one in results] == ["approved"] * 2 + ["expired"] * 5
    assert [len(one.calls) for one in results] == [1] * 2 + [0] * 5
    assert [isinstance(one, WorkflowUpdateFailedError) for one in answers] == [False, True, True]
    for run in (runs[3], runs[5], runs[6]):
        records = Archive(own.archive_file).records(run.id)
        assert "was to be decided before" in str(
            [one for one in records if one["event"] == "RefusedDecision"]
        )


# -- many messages, early messages, no cache --


@pytest.mark.exhaustive
async def test_two_thousand_signals_at_once_are_all_in_the_log(temporal: Client, own: Settings) -> None:
    """They come while no worker runs; the last one is a command."""
    run = await begin(temporal, asking(), task_queue="storm")
    for _ in range(20):
        await asyncio.gather(*(run.signal("junk", number) for number in range(100)))
    await run.signal("command", {"command": "limits", "limits": {"tool_calls": 7}})
    async with own_worker(temporal, "storm", own):
        await until(run, lambda status: status.caps.get("tool_calls") == 7)
        await decide(run, "approve")
        result = await run.result()
    events = [str(record["event"]) for record in Archive(own.archive_file).records(run.id)]
    assert (result.ok, events.count("UnusableSignal")) == (True, 2000)
    assert events.index("LimitsSet") > max(n for n, event in enumerate(events) if event == "UnusableSignal")


@pytest.mark.exhaustive
async def test_five_thousand_commands_at_once_on_busy_machine_are_obeyed(
    temporal: Client, own: Settings
) -> None:
    """Temporal gives up a workflow task after 2 s, and would do so again each time."""
    run = await begin(temporal, asking(), task_queue="busy")
    for part in range(50):
        await asyncio.gather(
            *(
                run.signal("command", {"command": "limits", "limits": {"tool_calls": 7}, "id": f"{part}-{n}"})
                for n in range(100)
            )
        )
    loop = (sys.executable, "-c", "while True: pass")
    loops = [await asyncio.create_subprocess_exec(*loop) for _ in range(8)]
    try:
        async with own_worker(temporal, "busy", own):
            await until(run, lambda status: status.records > 5000)
            await decide(run, "approve")
            assert (await run.result()).ok
    finally:
        for one in loops:
            one.kill()
            await one.wait()
    events = [record["event"] for record in Archive(own.archive_file).records(run.id)]
    assert events.count("LimitsSet") == 5000


async def test_signal_before_the_run_begins_comes_after_its_first_record(
    working: Client, settings: Settings
) -> None:
    run = await begin(working, asking(), start_signal="junk", start_signal_args=[1])
    await decide(run, "reject")
    result = await run.result()
    log = await log_of(run)
    assert [record.event for record in log[:2]] == ["Started", "UnusableSignal"]
    assert [record.seq for record in log] == list(range(len(log)))
    assert (result.archived, chain(log)) == (True, result.log_head)
    await replayed(run, settings)


async def test_run_that_no_worker_has_in_memory_hears_people(temporal: Client, own: Settings) -> None:
    """Each task replays the whole history, as after a restart of all workers."""
    async with own_worker(temporal, "forgetful", own, max_cached_workflows=0):
        run = await begin(temporal, asking(calls(("mark_once", {"line": "two"}))), task_queue="forgetful")
        first = await open_request(run)
        assert (await command(run, "pause")).paused
        await command(run, "steer", text="be quick")
        await decide(run, "approve", first)
        await command(run, "resume")
        second = await eventually(lambda: request_after(run, first.id))
        await decide(run, "edit", second, arguments={"line": "edited"})
        result = await run.result()
        assert await failed_tasks(run) == 0
    assert [one.outcome for one in result.decisions] == ["approved", "edited"]
    assert [call.arguments["line"] for call in result.calls] == ["paid", "edited"]
    await replayed(run, own)


async def test_decision_that_is_heard_before_its_request_counts(working: Client) -> None:
    """As where a worker shows a request and is lost before Temporal has its workflow task."""
    shown = await begin(working, asking())
    request = await open_request(shown)
    slowly = calls(("mark_once", {"line": "paid"})).model_copy(update={"delay_seconds": 0.3})
    run = await begin(working, asking(models={"default": scripted(slowly, "done")}))
    origin = str((await run.describe()).run_id)
    digest = digest_of([run.id, origin, request.activity_id, "approval", "mark_once", request.arguments])
    decision = {"request": "r1", "digest": digest, "decision": "approve", "by": "ann"}
    with suppress(WorkflowUpdateFailedError):  # on a busy machine the request comes later: it is kept
        await run.execute_update("decide", decision)
    assert [one.outcome for one in (await run.result()).decisions] == ["approved"]
    await decide(shown, "reject", request)
    await shown.result()
