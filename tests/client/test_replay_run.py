"""A run again from what was recorded: the same for the same code, and in words where something differs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHistory

from activities.contracts import ToolSpec
from activities.settings import Settings
from client.agent import AgentClient
from client.archived import ArchivedRuns
from client.described import changed_tools
from client.errors import UnknownRun, UsageError
from client.prompts import _results
from client.recorded import part_of, parts_of
from client.replay import by_number, first_changed, judged, replay
from tests.client.peoplekit import marks, opened, until_true
from tests.client.test_time_steps import Lonely, elsewhere, finished, waiting_task
from tests.conftest import TOOLS, real_server
from tests.workflows.record import SCENARIOS
from tests.workflows.test_subgraphs import holding
from tests.workflows.trials import act, final, task
from worker import build_worker
from workflows.kernel.log import Record

STEPS = (act("mark", line="r1"), act("mark", line="r2"), final("both"))
SEVERAL = [
    *(
        "code-queries",
        "code-tools",
        "contract-answer",
        "planner-tools",
        "react-cancelled",
        "react-flaky-tools",
    ),
    *("react-limit", "react-signalled", "simple-failed", "staged-review", "tools-parallel", "tools-reported"),
]
"""Of each machine something, and what comes from outside."""


async def run_of_steps(agents: AgentClient) -> str:
    """A run of three steps that is over."""
    return await finished(agents, task(*STEPS, tools=("mark",)))


async def records_of(agents: AgentClient, run_id: str) -> dict[int, Record]:
    """Its log by number."""
    return {record.seq: record for record in await agents.records(run_id, full=True)}


@pytest.mark.parametrize("name", SEVERAL)
async def test_a_run_of_today_s_code_is_the_same_again(agents: AgentClient, name: str) -> None:
    handle = await SCENARIOS[name](agents.temporal)
    with suppress(WorkflowFailureError):  # a machine may end by raising
        await handle.result()
    told = await replay(agents, handle.id)
    assert (told.same, told.goes_on, told.record, told.changed) == (True, None, None, ())
    assert told.records == len(await agents.records(handle.id))
    assert told.calls > 0


async def test_a_replay_calls_nothing_and_changes_nothing(agents: AgentClient, settings: Settings) -> None:
    run_id = await run_of_steps(agents)
    before = marks(settings.files_root), await agents.result(run_id), await records_of(agents, run_id)
    events = len((await agents.temporal.get_workflow_handle(run_id).fetch_history()).events)
    assert (await replay(agents, run_id)).same
    assert (
        marks(settings.files_root),
        await agents.result(run_id),
        await records_of(agents, run_id),
    ) == before
    assert len((await agents.temporal.get_workflow_handle(run_id).fetch_history()).events) == events


async def test_what_people_said_meanwhile_is_followed(agents: AgentClient) -> None:
    run_id = await agents.start(waiting_task())
    await opened(agents, run_id)
    await agents.pause(run_id)
    await agents.rollback(run_id, 2, by="Ada")
    await agents.resume(run_id)
    (request,) = await opened(agents, run_id)
    await agents.steer(run_id, "mind the cost")
    assert (live := await replay(agents, run_id)).same, live
    await agents.edit(run_id, request.id, {"line": "edited"}, by="Bob")
    await agents.temporal.get_workflow_handle(run_id).signal("nonsense", args=[])
    await agents.result(run_id)
    told = await replay(agents, run_id)
    assert told.same, told
    events = {record.event for record in (await records_of(agents, run_id)).values()}
    assert {"RolledBack", "Requested", "Decided", "Paused", "UnusableSignal"} <= events
    assert told.records == len(await agents.records(run_id))


async def test_a_run_that_goes_on_is_replayed_as_far_as_it_has_come(agents: AgentClient) -> None:
    run_id = await agents.start(waiting_task())
    await opened(agents, run_id)
    told = await replay(agents, run_id)
    assert (told.same, told.goes_on, told.records) == (True, True, len(await agents.records(run_id)))
    await agents.abort(run_id)


async def test_a_fork_is_replayed_behind_the_records_of_its_source(agents: AgentClient) -> None:
    from client.fork import fork

    run_id = await fork(agents, await run_of_steps(agents), 2)
    await agents.result(run_id)
    assert (await replay(agents, run_id)).same


async def test_runs_inside_are_named_as_they_have_histories_of_their_own(agents: AgentClient) -> None:
    run_id = await finished(agents, holding(final("x"), options={"mode": "child"}))
    told = await replay(agents, run_id)
    assert told.same
    (note,) = told.notes
    child = note.split(": ", 1)[1].split(";")[0]
    assert child.startswith(f"{run_id}/")
    assert (await replay(agents, child)).same


async def test_only_what_came_before_a_step_may_be_looked_at(agents: AgentClient) -> None:
    run_id = await run_of_steps(agents)
    whole, part = await replay(agents, run_id), await replay(agents, run_id, 2)
    assert (part.same, part.step, part.records, part.calls) == (True, 2, 6, 2)
    assert (whole.records, whole.calls) == (len(await agents.records(run_id)), 5)
    with pytest.raises(UsageError, match="no step 9"):
        await replay(agents, run_id, 9)


async def test_a_run_that_temporal_has_forgotten_cannot_be_replayed_and_what_can_be_done_is_said(
    agents: AgentClient, settings: Settings
) -> None:
    run_id = await run_of_steps(agents)
    with pytest.raises(UnknownRun, match=f"ratchet log {run_id}"):
        await replay(await elsewhere(agents, settings), run_id)


async def test_a_long_run_is_replayed_through_all_its_executions(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=(str(TOOLS),))
    async with (
        real_server(settings, "limit.historyCount.suggestContinueAsNew=60") as client,
        build_worker(client, settings),
    ):
        agents = AgentClient(client, ArchivedRuns(settings.data_dir / "archive.db"), where="here")
        agents.worker_here = True
        replies = [act("mark", line=f"step{n}") for n in range(12)]
        run_id = await finished(agents, task(*replies, final("at the end"), tools=("mark",)))
        told = await replay(agents, run_id)
        parts = await parts_of(client, run_id)
        # the first execution's retention has passed
        rest = await judged(client, parts[1:], await records_of(agents, run_id), complete=True)
        assert told.same, told
        assert (told.records, told.calls) == (len(await agents.records(run_id)), 25)
        assert len(parts) > 1
        assert rest.same, rest
        await hand_over_is_compared(agents, run_id)
        assert "on only" in rest.notes[0]


async def hand_over_is_compared(agents: AgentClient, run_id: str) -> None:
    """What one execution hands to the next is held against what the code of today would hand on."""
    first, *_ = await parts_of(agents.temporal, run_id)
    events = json.loads(first.history.to_json())
    handed = events["events"][-1]["workflowExecutionContinuedAsNewEventAttributes"]
    (held,) = handed["input"]["payloads"]
    given = json.loads(base64.b64decode(held["data"]))
    given["carry"]["ledger"]["spent"]["model_calls"] += 1
    held["data"] = payload(given)
    altered = await part_of(agents.temporal, WorkflowHistory.from_json(run_id, json.dumps(events)))
    told = await judged(agents.temporal, [altered], await records_of(agents, run_id), complete=False)
    (call,) = told.changed
    assert call.place == "continue-as-new"
    assert [one.at for one in call.differences] == ["carry.ledger.spent.model_calls"]


async def test_without_a_worker_a_waiting_run_is_held_against_its_history_s_calls(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=(str(TOOLS),))
    async with real_server(settings) as client:
        agents = Lonely(client, ArchivedRuns(settings.data_dir / "archive.db"), where="here")
        async with build_worker(client, settings):
            run_id = await agents.start(waiting_task())
            await until_true(lambda: waits(agents, run_id))
        told = await replay(agents, run_id)
        assert (told.same, told.unread, told.goes_on, told.records) == (False, True, True, 0)
        assert (told.trouble, told.record, told.changed) == ("", None, ()), "nothing differs"
        assert told.calls > 0


async def waits(agents: AgentClient, run_id: str) -> bool:
    """The run waits for a person, as lists tell it."""
    return (await agents.describe(run_id)).waiting == "approval"


# -- where something differs --------------------


async def altered(agents: AgentClient, run_id: str, change: Callable[[dict[str, Any]], None]) -> Any:
    """The verdict on the run's history after a change of its events: as if other code had made it."""
    history = await agents.temporal.get_workflow_handle(run_id).fetch_history()
    events = json.loads(history.to_json())
    for event in events["events"]:
        change(event)
    part = await part_of(agents.temporal, WorkflowHistory.from_json(run_id, json.dumps(events)))
    return await judged(agents.temporal, [part], await records_of(agents, run_id), complete=True)


def scheduled(event: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The attributes of the event that asks for an activity."""
    found: dict[str, Any] = event.get("activityTaskScheduledEventAttributes", {})
    return found if found.get("activityId") == name else None


async def test_another_call_than_the_recorded_one_is_told_with_both_names(agents: AgentClient) -> None:
    def change(event: dict[str, Any]) -> None:
        if asked := scheduled(event, "action#8:1"):
            asked["activityId"] = "action#9:1"

    told = await altered(agents, await run_of_steps(agents), change)
    assert (told.same, told.goes_on) == (False, None)
    assert told.trouble.startswith(
        "the run called action#9:1 (call_tool); the code of today calls action#8:1 (call_tool). "
        "An open run with this history cannot go on (Temporal: Nondeterminism error: Activity id"
    )
    assert told.record is None, "until then the log is the same"


async def test_a_run_inside_that_would_be_given_something_else_today_is_told(agents: AgentClient) -> None:
    run_id = await finished(agents, holding(final("x"), options={"mode": "child"}))

    def change(event: dict[str, Any]) -> None:
        if asked := event.get("startChildWorkflowExecutionInitiatedEventAttributes"):
            (held,) = asked["input"]["payloads"]
            given = json.loads(base64.b64decode(held["data"]))
            held["data"] = payload({**given, "goal": "another goal"})

    told = await altered(agents, run_id, change)
    (call,) = told.changed
    assert (told.same, call.activity) == (False, "AgentWorkflow")
    assert [(one.at, one.was) for one in call.differences] == [("goal", '"another goal"')]


async def test_a_tool_that_describes_itself_otherwise_today_is_told(agents: AgentClient) -> None:
    asked: list[str] = []

    def change(event: dict[str, Any]) -> None:
        if scheduled(event, "describe-tools"):
            asked.append(event["eventId"])
        done = event.get("activityTaskCompletedEventAttributes", {})
        if done.get("scheduledEventId") in asked:
            (held,) = done["result"]["payloads"]
            told = json.loads(base64.b64decode(held["data"]))
            (mark,) = told["tools"]
            held["data"] = payload({**told, "tools": [{**mark, "reconciles": True}]})

    told = await altered(agents, await run_of_steps(agents), change)
    (tool,) = told.tools
    assert (told.same, told.goes_on, told.record) == (False, None, None)
    assert (tool.tool, [(one.at, one.was, one.now) for one in tool.differences]) == (
        "mark", [("reconciles", "true", "false")],
    )  # fmt: skip


def test_tools_that_are_not_known_here_are_named() -> None:
    one = ToolSpec(name="one", description="One.", parameters={})
    here = (one.model_copy(update={"description": "Another."}),)
    changed, missing = changed_tools((one, one.model_copy(update={"name": "two"})), here)
    assert ([tool.tool for tool in changed], missing) == (["one"], ("two",))


async def test_another_retry_policy_and_other_timeouts_are_told_by_name(agents: AgentClient) -> None:
    def change(event: dict[str, Any]) -> None:
        if asked := scheduled(event, "action#3:1"):
            asked["retryPolicy"]["maximumAttempts"] = 77
            asked["heartbeatTimeout"] = "1s"

    told = await altered(agents, await run_of_steps(agents), change)
    (call,) = told.changed
    assert [(one.at, one.was) for one in call.differences] == [
        ("options.heartbeat_timeout", "1.0"), ("options.maximum_attempts", "77"),
    ]  # fmt: skip


def payload(value: Any) -> str:
    """JSON as a history holds it."""
    return base64.b64encode(json.dumps(value).encode()).decode()


async def test_a_prompt_that_is_another_one_today_is_told_by_its_first_difference(
    agents: AgentClient,
) -> None:
    def change(event: dict[str, Any]) -> None:
        if asked := scheduled(event, "thought#6:1"):
            (held,) = asked["input"]["payloads"]
            request = json.loads(base64.b64decode(held["data"]))
            request["messages"][-1]["content"] = "Observation: was done r1"
            held["data"] = payload(request)

    told = await altered(agents, await run_of_steps(agents), change)
    assert (told.same, told.goes_on, told.changed_calls) == (False, None, 1)
    (call,) = told.changed
    assert (call.place, call.activity) == ("thought#6:1", "call_model")
    (difference,) = call.differences
    assert (difference.at, difference.was, difference.now) == (
        "messages[3].content", '"Observation: was done r1"', '"Observation: done r1"',
    )  # fmt: skip


async def test_other_arguments_of_a_tool_are_told_by_name(agents: AgentClient) -> None:
    def change(event: dict[str, Any]) -> None:
        if asked := scheduled(event, "action#3:1"):
            (held,) = asked["input"]["payloads"]
            request = json.loads(base64.b64decode(held["data"]))
            request["arguments"] = {"line": "r0"}
            held["data"] = payload(request)

    told = await altered(agents, await run_of_steps(agents), change)
    (call,) = told.changed
    assert [(one.at, one.was, one.now) for one in call.differences] == [("arguments.line", '"r0"', '"r1"')]


async def test_an_answer_that_the_machine_takes_otherwise_parts_the_log_there(agents: AgentClient) -> None:
    """The recorded result is changed, so that the machine of today writes other records than the log has."""

    def change(event: dict[str, Any]) -> None:
        done = event.get("activityTaskCompletedEventAttributes")
        for held in done["result"]["payloads"] if done else ():
            text = base64.b64decode(held["data"]).decode()
            held["data"] = base64.b64encode(text.replace("done r2", "done XX").encode()).decode()

    told = await altered(agents, await run_of_steps(agents), change)
    assert told.record is not None
    assert (told.record.seq, told.record.step) == (8, 2)
    assert (told.record.was, told.record.now) == ("action: Acted", "action: Acted")
    first = told.record.differences[0]
    assert (first.at, first.was, first.now) == ("reason", '"done r2"', '"done XX"')


async def test_code_that_fails_on_a_history_is_told_in_its_own_words(agents: AgentClient) -> None:
    def change(event: dict[str, Any]) -> None:
        done = event.get("activityTaskCompletedEventAttributes")
        for held in done["result"]["payloads"] if done else ():
            if b"model_replied" not in base64.b64decode(held["data"]):
                continue
            held["data"] = base64.b64encode(b'{"kind": "model_replied", "text": 5}').decode()

    told = await altered(agents, await run_of_steps(agents), change)
    assert not told.goes_on
    assert told.trouble.startswith(
        "the run called action#3:1 (call_tool); the code of today fails the run: "
        "Payload validation failed: not a valid ModelReplied: text"
    )


def record(seq: int, **more: Any) -> Record:
    """A record of a log."""
    return Record(seq=seq, machine="m", state="s", event="e", **more)


LOG = {seq: record(seq, reason=f"r{seq}") for seq in range(5)}


@pytest.mark.parametrize(
    ("now", "whole", "upto", "found"),
    [
        pytest.param(LOG, True, None, (None, 5), id="the same"),
        pytest.param({**LOG, 3: record(3, reason="x")}, True, None, (3, 4), id="another one"),
        pytest.param({**LOG, 3: record(3, reason="x")}, True, 3, (None, 3), id="another one behind the step"),
        pytest.param({**LOG, 5: record(5)}, True, None, (5, 6), id="one more today"),
        pytest.param({**LOG, 5: record(5)}, False, None, (None, 5), id="one more of a run that goes on"),
        pytest.param({n: LOG[n] for n in range(3)}, True, None, (3, 4), id="one fewer today"),
        pytest.param({n: LOG[n] for n in (2, 3, 4)}, True, None, (None, 3), id="the beginning is forgotten"),
        pytest.param({}, True, None, (None, 0), id="nothing to look at"),
    ],
)
def test_the_first_record_that_differs_is_found(
    now: dict[int, Record], whole: bool, upto: int | None, found: tuple[int | None, int]
) -> None:
    changed, looked = first_changed(LOG, now, whole=whole, upto=upto)
    assert (changed.seq if changed else None, looked) == found


def test_a_record_counts_as_the_execution_wrote_it_that_had_it_first() -> None:
    handed = [record(1, reason="as it was handed on"), record(2)]
    assert by_number([[LOG[0], LOG[1]], handed]) == {0: LOG[0], 1: LOG[1], 2: record(2)}


def test_when_it_happened_is_no_difference() -> None:
    was = {0: record(0, started=1.7e9, finished=1.7e9, counters={"seconds": 1, "tool_calls": 1})}
    now = {0: record(0, started=1.8e9, finished=1.8e9, counters={"seconds": 2, "tool_calls": 1})}
    assert first_changed(was, now, whole=True) == (None, 1)
    spent = {0: record(0, started=1.7e9, finished=1.7e9, counters={"seconds": 1, "tool_calls": 2})}
    changed, _ = first_changed(was, spent, whole=True)
    assert changed is not None
    assert [one.at for one in changed.differences] == ["counters.tool_calls"]


def test_of_a_result_only_what_its_release_could_say_is_compared() -> None:
    now: dict[str, Any] = {
        "ok": True, "exit_reason": "done", "agent": "a", "machine": "m", "machine_version": "1", "state": "s",
        "steps": 1, "counters": {}, "workflow_id": "w", "run_id": "r", "records": 2, "log_head": "x",
        "calls": [],
    }  # fmt: skip
    was = {name: value for name, value in now.items() if name != "calls"} | {"log_head": "y"}
    told, today = _results(was, now)
    assert told == today
    told, today = _results(was, {**now, "steps": 2})
    assert (told["steps"], today["steps"]) == (1, 2)
    assert _results(None, now) == (None, now)


def test_what_a_run_says_of_a_time_that_is_none_of_its_own_is_compared() -> None:
    was, now = ({0: record(0, patch={"answer": {"deadline": n, "started": n}})} for n in (5, 9))
    changed, _ = first_changed(was, now, whole=True, span=(1.7e9, 1.8e9))
    assert changed is not None
    assert [one.at for one in changed.differences] == ["patch.answer.deadline", "patch.answer.started"]
