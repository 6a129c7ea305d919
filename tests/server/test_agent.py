"""Runs on the real server: how they begin, what people see of them, and how they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from activities.contracts import ModelSpec
from activities.settings import Settings
from activities.store.archive import Archive
from client.agents.schema import message_schema
from tests.server.trials import (
    begin,
    calls,
    command,
    decide,
    log_of,
    open_request,
    replayed,
    scripted,
    task,
    until,
)
from worker import build_worker
from workflows.api import LogPage, OnEnd, PageQuery, RunResult, RunStatus, StepsPage, TranscriptPage
from workflows.gate.stuck import StuckSettings
from workflows.kernel.log import Record, chain
from workflows.people import Approvals, People

MARK = calls(("mark", {"line": "one"}))
ASKED = People()
CAREFUL = Approvals(effects={"unsafe": "always"})


async def failure(run: Any) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as failed:
        await run.result()
    assert isinstance(failed.value.cause, ApplicationError)
    return failed.value.cause


async def test_run_ends_with_answer_and_replays(working: Client, settings: Settings) -> None:
    run = await begin(working, task(MARK, "all marked"))
    result = await run.result()
    assert (result.ok, result.answer, result.exit_reason) == (True, "all marked", "stop")
    assert result.counters["tool_calls"] == 1
    log = await log_of(run)
    assert chain(log) == result.log_head
    steps: StepsPage = await run.query("steps", PageQuery(), result_type=StepsPage)
    assert [line.step for line in steps.steps] == [1, 2]
    transcript: TranscriptPage = await run.query("transcript", PageQuery(), result_type=TranscriptPage)
    assert [m.role for m in transcript.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert "DONE" in await run.query("diagram", result_type=str)
    await replayed(run, settings)


async def test_long_log_is_archived_in_parts(working: Client, settings: Settings) -> None:
    """Of 4 MiB each and the rest: all at once would be too much for a workflow task."""
    long = [MARK.model_copy(update={"reply": f"{number} " * 2**20}) for number in range(4)]
    run = await begin(working, task(*long, "done"))
    result = await run.result()
    archive = Archive(settings.archive_file)
    assert (result.ok, result.archived, archive.broken_at(run.id)) == (True, True, None)
    assert chain(Record.model_validate(one) for one in archive.records(run.id)) == result.log_head
    scheduled = [event.activity_task_scheduled_event_attributes async for event in run.fetch_history_events()]
    assert [one.activity_type.name for one in scheduled].count("archive_log") == 3
    await replayed(run, settings)


@pytest.mark.parametrize(
    ("given", "culprit"),
    [
        ({}, "goal"),
        ([1, 2], "the whole: "),
        ({"goal": "x", "machine": "nothing"}, "nothing"),
        ({"goal": "x", "machine": "tools", "tools": ["hammer"]}, "hammer"),
        ({"goal": "x", "machine": "react", "options": {"speed": 1}}, "speed"),
        ({"goal": "x", "limits": {"hours": 1}}, "hours"),
    ],
)
async def test_invalid_task_fails_naming_the_culprit(working: Client, given: Any, culprit: str) -> None:
    error = await failure(await begin(working, given))
    assert error.type == "InvalidTask"
    assert culprit in error.message


async def test_failure_has_error_named_by_machine_and_its_result(working: Client) -> None:
    shown = OnEnd(failed="fail_workflow")
    error = await failure(await begin(working, task(calls(("saw", {})), on_end=shown)))
    assert error.type == "ToolNotFound"
    result = RunResult.model_validate(error.details[0])
    with pytest.raises(Exception, match="saw"):
        result.raise_if_failed()


async def test_cancelled_run_returns_a_result(working: Client, settings: Settings) -> None:
    run = await begin(working, task(calls(("mark", {"line": "slow", "seconds": 30})), "done"))
    await until(run, lambda status: status.doing.startswith("calling mark"))
    await run.cancel()
    result = await run.result()
    assert (result.exit_reason, result.ok) == ("cancelled", False)
    await replayed(run, settings)


@pytest.mark.parametrize("machine", ["react", "nester"])
async def test_run_cancelled_before_its_first_step_has_result_and_log(
    temporal: Client, settings: Settings, machine: str
) -> None:
    """No worker ran so far. `react` cannot begin without its tools' specs; `nester` can, but its first call
    is not made without."""
    inner = {"inner": [{"machine": "tools", "goal": "inside"}]} if machine == "nester" else {}
    run = await begin(temporal, task("done", machine=machine, options=inner), task_queue="cancelled early")
    await run.signal("command", {"command": "steer", "text": "too late", "by": "ann"})
    await run.cancel()
    async with build_worker(temporal, settings, "cancelled early"):
        result = await run.result()
        records = [Record.model_validate(one) for one in Archive(settings.archive_file).records(run.id)]
        assert (result.exit_reason, result.ok) == ("cancelled", False)
        assert (result.archived, chain(records)) == (True, result.log_head)
        assert any(record.event == "Closed" and "cancelled" in record.reason for record in records)
        status = await run.query("status", result_type=RunStatus)
        assert (status.exit_reason, status.finished) == ("cancelled", records[-1].at)
        await replayed(run, settings)


async def test_answers_are_what_their_schemas_say(working: Client) -> None:
    """As a program of another language gets them: plain JSON, in which no key is undescribed."""
    once = calls(("mark_once", {"line": "paid"}))
    given = task(once, "done", tools=("mark_once",), people=ASKED, approvals=CAREFUL)
    run = await begin(working, given.model_dump(mode="json"))
    request = await open_request(run, "approval")
    decision = {"request": request.id, "digest": request.digest, "decision": "approve", "by": "ann"}
    answers = {
        "task": given.model_dump(mode="json"),
        "command-done": await run.execute_update("command", {"command": "pause"}, result_type=dict),
        "requests": await run.query("requests", {"schemas": True}, result_type=dict),
        "decided": await run.execute_update("decide", decision, result_type=dict),
    }
    await run.signal("command", {"command": "resume"})
    answers["result"] = await working.get_workflow_handle(run.id, result_type=dict).result()
    for name in ("status", "log", "steps", "effects", "transcript"):
        answers[name] = await run.query(name, result_type=dict)
    answers["result-page"] = await run.query("result", {"since": 0}, result_type=dict)
    assert answers["requests"]["open"]
    assert answers["requests"]["tools"]
    assert answers["result"]["calls"] == answers["effects"]["calls"]
    for name, answer in answers.items():
        Draft202012Validator(closed(message_schema(name))).validate(answer)


def closed(schema: Any) -> Any:
    """The schema, with no other keys than it describes."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inside = {key: closed(one) for key, one in schema.items()}
    return {**inside, "additionalProperties": False} if isinstance(schema.get("properties"), dict) else inside


async def test_approval_by_update_lets_the_call_happen(working: Client, settings: Settings) -> None:
    once = calls(("mark_once", {"line": "paid"}))
    run = await begin(working, task(once, "done", tools=("mark_once",), people=ASKED, approvals=CAREFUL))
    request = await open_request(run, "approval")
    assert (request.tool, request.arguments and request.arguments["line"]) == ("mark_once", "paid")
    with pytest.raises(WorkflowUpdateFailedError):
        await run.execute_update("decide", {"request": request.id, "digest": "0" * 32, "decision": "approve"})
    assert (await decide(run, "approve")).outcome == "approved"
    result = await run.result()
    assert [(call.tool, call.effect) for call in result.calls] == [("mark_once", "unsafe")]
    assert result.decisions[0].outcome == "approved"
    await replayed(run, settings)


async def test_any_signal_is_harmless_and_in_the_log(working: Client, settings: Settings) -> None:
    once = calls(("mark_once", {"line": "no"}))
    run = await begin(working, task(once, "done", tools=("mark_once",), people=ASKED, approvals=CAREFUL))
    request = await open_request(run)
    await run.signal("nonsense", 1)
    await run.signal("decide", args=[])
    await run.signal("decide", {"request": "r9", "digest": "", "decision": "approve"})
    decision = {"request": request.id, "digest": request.digest, "decision": "reject", "by": "ann"}
    await run.signal("decide", decision)
    result = await run.result()
    assert result.decisions[0].outcome == "rejected"
    events = [record.event for record in await log_of(run)]
    assert events.count("UnusableSignal") == 2
    assert "RefusedDecision" in events
    await replayed(run, settings)


async def test_commands_are_obeyed_in_order(working: Client, settings: Settings) -> None:
    held = calls(("mark", {"line": "x", "until": "commanded"}))
    run = await begin(working, task(*[held] * 3, "done", people=ASKED))
    await until(run, lambda status: status.step > 0)
    assert (await command(run, "pause")).paused
    (settings.files_root / "commanded").touch()
    await until(run, lambda status: status.waiting == "paused")
    await command(run, "steer", text="be quick")
    done = await command(run, "rollback", step=1)
    assert (done.step, done.branch) == (1, 1)
    await command(run, "limits", limits={"tool_calls": 50})
    await command(run, "resume")
    result = await run.result()
    assert (result.ok, result.branch) == (True, 1)
    log = await log_of(run)
    assert [r.event for r in log if r.by.startswith("ann")] == [
        "Paused", "Steered", "RolledBack", "LimitsSet", "Resumed",
    ]  # fmt: skip
    assert chain(log) == result.log_head
    await replayed(run, settings)


async def test_abort_ends_a_paused_run(working: Client) -> None:
    run = await begin(working, task(MARK, "done", people=People(interrupt_every=1)))
    await open_request(run, "interrupt")
    await command(run, "abort", text="enough")
    result = await run.result()
    assert result.exit_reason == "aborted"
    assert "enough" in (result.error or "")


async def test_unknown_outcome_is_looked_up_then_asked(working: Client, settings: Settings) -> None:
    """A tool past its time limit: its own `reconcile` finds out, or a person says what happened."""
    slow = {"line": "trip", "seconds": 2}
    happened = calls(("book", {**slow, "found": "happened"}))
    run = await begin(working, task(happened, "done", tools=("book",)))
    result = await run.result()
    assert result.calls[0].error is None
    unknown = calls(("book", {**slow, "found": "unknown"}))
    run = await begin(working, task(unknown, "done", tools=("book",), people=ASKED))
    await open_request(run, "outcome")
    await decide(run, "answer", text="it was booked")
    assert (await run.result()).ok
    await replayed(run, settings)


async def test_limit_asks_for_more(working: Client) -> None:
    limits = {"model_calls": 1}
    given = task(MARK, "done", people=People(on_limit="ask"), limits=limits)
    run = await begin(working, given)
    await open_request(run, "limit")
    await decide(run, "topup", amounts={"model_calls": 5})
    assert (await run.result()).ok
    stopped = await (await begin(working, task(MARK, "done", limits=limits))).result()
    assert (stopped.exit_reason, stopped.ok) == ("limit", False)


async def test_run_that_goes_round_in_circles_asks_and_ends(working: Client, settings: Settings) -> None:
    marks = [calls(("list_files", {}))] * 4
    run = await begin(
        working, task(*marks, tools=("list_files",), people=ASKED, stuck=StuckSettings(repeats=2))
    )
    request = await open_request(run, "stuck")
    assert request.text.startswith("The run is stuck: list_files() was called")
    await decide(run, "finish", request)
    result = await run.result()
    assert (result.ok, result.exit_reason, result.counters["tool_calls"]) == (False, "stuck", 4)
    transcript: TranscriptPage = await run.query("transcript", PageQuery(), result_type=TranscriptPage)
    assert [m.role for m in transcript.messages].count("user") == 2
    await replayed(run, settings)


async def test_fallback_is_asked_when_a_model_is_unavailable(working: Client, settings: Settings) -> None:
    models = {
        "default": ModelSpec(provider="away", name="gone", fallback="backup"),
        "backup": scripted(MARK, "all marked"),
    }
    run = await begin(working, task(models=models))
    result = await run.result()
    assert (result.answer, result.counters["model_calls"]) == ("all marked", 3)
    changed = [record.reason for record in await log_of(run) if record.event == "ModelChanged"]
    assert len(changed) == 1
    assert changed[0].startswith(
        "default: backup (script) is asked instead of default (gone): unknown_provider"
    )
    await replayed(run, settings)


async def test_log_pages_stay_small(working: Client) -> None:
    big = calls(("mark", {"line": "x", "text": "y" * 9_000}))
    run = await begin(working, task(*[big] * 6, "done"))
    await run.result()
    page: LogPage = await run.query("log", PageQuery(), result_type=LogPage)
    assert len(page.model_dump_json()) < 13 * 1024
    assert page.next < page.total


@pytest.mark.exhaustive
async def test_hundred_runs_at_once_queried_and_signalled_replay(working: Client, settings: Settings) -> None:
    async def one(number: int) -> Any:
        run = await begin(working, task(MARK, f"done {number}"))
        await run.signal("command", {"command": "limits", "limits": {"tool_calls": 9}})
        await until(run, lambda status: status.step > 0)
        result = await run.result()
        assert result.answer == f"done {number}"
        return run

    runs = await asyncio.gather(*(one(number) for number in range(20)))
    for run in runs:
        await replayed(run, settings)
    assert scripted("x").script


async def test_start_with_a_hundred_thousand_tools_is_refused(working: Client) -> None:
    """Their check took minutes, and the workflow task was tried again for ever."""
    given = {"goal": "x", "tools": [f"t{number}" for number in range(100_000)]}
    with pytest.raises(WorkflowFailureError) as failed:
        await (await begin(working, given)).result()
    assert "values in lists and maps, most of them in `tools`; at most 50,000" in str(failed.value.cause)
