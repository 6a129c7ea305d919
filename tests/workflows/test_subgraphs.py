"""Machines inside machines on the real server: inline and as child workflows."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Replayer

from activities.archive import Archive
from activities.settings import Settings
from client.agent import AgentClient
from client.archived import ArchivedRuns
from client.plugin import RatchetPlugin
from tests.conftest import MACHINES, TOOLS, real_server
from tests.workflows.trials import act, begin, final, log_of, task, until
from worker import build_worker
from workflows.api import TASK_QUEUE, AgentResult, AgentStatus, AgentTask, Limits, TranscriptPage
from workflows.kernel.errors import ExecutionError, MaxIterationsExceeded
from workflows.kernel.log import Record

Mode = Literal["inline", "child"]
both_ways = pytest.mark.parametrize("mode", ["inline", "child"])


def holding(*replies: Any, machine: str = "holding", tools: tuple[str, ...] = (), **more: Any) -> AgentTask:
    """A task whose machine runs ReAct as its state, with these replies."""
    options = {"tools": list(tools), **more.pop("options", {})}
    return task(*replies, tools=tools, machine=machine, options=options, **more)


def child_of(handle: Any) -> str:
    """The id of the child run of the machine `holding`."""
    return f"{handle.id}/{handle.result_run_id[:8]}/hold#1:1"


async def _replays(settings: Settings, handle: Any) -> None:
    replayer = Replayer(workflows=[], plugins=[RatchetPlugin(settings)])
    await replayer.replay_workflow(await handle.fetch_history())


@both_ways
async def test_an_inner_machine_uses_the_run_s_tools_and_models_and_its_answer_comes_out(
    working: Client, settings: Settings, mode: Mode
) -> None:
    given = holding(act("mark", line=f"in {mode}"), final("inside"), tools=("mark",), options={"mode": mode})
    handle = await begin(working, given)
    result = await handle.result()
    assert (result.ok, result.answer, result.outcome) == (True, "inside", {"inner": "goal_achieved"})
    assert (result.counters["model_calls"], result.counters["tool_calls"]) == (2, 1)
    await _replays(settings, handle)


async def test_an_inline_machine_writes_into_the_run_s_log_and_ids(working: Client) -> None:
    handle = await begin(working, holding(act("mark", line="in log"), final("x"), tools=("mark",)))
    await handle.result()
    records = await log_of(handle)
    assert [r.seq for r in records] == list(range(len(records)))
    assert {(r.machine, r.within) for r in records} == {("holding", ""), ("react", "hold#1:1")}
    history = (await handle.fetch_history()).to_json()
    assert '"hold#1:1/thought#1:1"' in history


async def test_a_child_run_has_a_log_and_a_result_of_its_own(working: Client) -> None:
    handle = await begin(working, holding(final("x"), options={"mode": "child"}))
    await handle.result()
    child = working.get_workflow_handle(child_of(handle), result_type=AgentResult)
    result = await child.result()
    assert (result.machine, result.answer) == ("react", "x")
    assert {record.within for record in await log_of(handle)} == {""}


@both_ways
async def test_inner_machines_keep_their_own_limits_and_the_run_s(working: Client, mode: Mode) -> None:
    replies = [act("mark", line="l")] * 3
    options = {"mode": mode, "limits": {"tool_calls": 1}}
    handle = await begin(working, holding(*replies, tools=("mark",), options=options))
    assert (await handle.result()).outcome == {"inner": "limit"}
    limits = Limits(tool_calls=1)
    handle = await begin(working, holding(*replies, tools=("mark",), options={"mode": mode}, limits=limits))
    assert (await handle.result()).outcome == {"inner": "limit"}


@both_ways
async def test_machines_are_nested_only_so_deep(working: Client, mode: Mode) -> None:
    """R-000-15: nesting has a depth limit, over inline machines and child workflows alike."""
    inner: dict[str, Any] = {"machine": "react", "mode": mode}
    for _ in range(2):
        inner = {"machine": "holding", "options": inner, "mode": mode}
    for depth, answer in ((3, "deep"), (2, "Error: depth_limit: react would be nested")):
        handle = await begin(working, holding(final("deep"), options=inner, limits=Limits(depth=depth)))
        assert str((await handle.result()).answer).startswith(answer)


@both_ways
async def test_a_cancelled_run_stops_the_machine_inside_too(working: Client, mode: Mode) -> None:
    given = holding(act("mark", line="c", seconds=30), tools=("mark",), options={"mode": mode})
    handle = await begin(working, given)
    if mode == "inline":
        await until(handle, lambda status: status.inside == ("react: action",))
    else:
        child = working.get_workflow_handle(child_of(handle))
        await until(handle, lambda status: status.doing.startswith("run react"))
        await _started(child)
        await until(child, lambda status: status.state == "action")
    await handle.cancel()
    result = await handle.result()
    assert (result.exit_reason, result.ok) == ("cancelled", False)
    if mode == "child":
        assert (await working.get_workflow_handle(child_of(handle)).describe()).status in {
            WorkflowExecutionStatus.COMPLETED,
            WorkflowExecutionStatus.CANCELED,
        }


async def _started(handle: Any) -> None:
    """Wait until the child exists."""
    while True:
        with suppress(RPCError):
            await handle.describe()
            return
        await asyncio.sleep(0.02)


@both_ways
async def test_an_inner_machine_that_cannot_be_made_is_told_to_the_outer_one(
    working: Client, mode: Mode
) -> None:
    options = {"mode": mode, "machine": "raect"}
    handle = await begin(working, holding(final("x"), options=options))
    assert "unknown machine raect; did you mean react" in str((await handle.result()).answer)


@both_ways
async def test_an_inner_machine_that_ends_by_raising_is_an_end_like_any_other(
    working: Client, mode: Mode
) -> None:
    options = {"mode": mode, "machine": "halting"}
    handle = await begin(working, holding(final("halted"), options=options))
    result = await handle.result()
    assert (result.answer, result.outcome) == ("halted", {"inner": "done"})


async def test_a_machine_may_end_by_raising_with_its_whole_result(
    working: Client, settings: Settings
) -> None:
    """The workflow fails with the error's name; result, log and archive are complete."""
    handle = await begin(working, holding("nonsense", "nonsense", "nonsense", machine="halting"))
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.non_retryable) == ("MaxIterationsExceeded", True)
    agents = AgentClient(working, ArchivedRuns(settings.data_dir / "archive.db"), where="here")
    result = await agents.result(handle.id)
    assert (result.raises, result.machine, result.outcome) == (
        "MaxIterationsExceeded",
        "halting",
        {"inner": "fatal_error"},
    )
    with pytest.raises(ExecutionError) as raised:
        result.raise_if_failed()
    assert type(raised.value) is MaxIterationsExceeded
    await _replays(settings, handle)


@both_ways
async def test_an_inner_machine_has_no_tools_but_those_it_was_given(working: Client, mode: Mode) -> None:
    given = holding(final("x"), options={"mode": mode, "tools": ["mark"]})
    handle = await begin(working, given)
    assert "cannot give the tools mark" in str((await handle.result()).answer)
    given = holding(
        act("mark", line="taken"), final("x"), tools=("mark",), options={"mode": mode, "tools": []}
    )
    handle = await begin(working, given)
    result = await handle.result()
    assert (result.answer, result.counters.get("tool_calls", 0)) == ("x", 0)


@both_ways
async def test_limits_mean_the_same_in_both_ways(working: Client, mode: Mode) -> None:
    free = Limits(model_calls=None)
    options = {"mode": mode, "limits": {"tool_calls": 0}}
    handle = await begin(working, holding(final("x"), options=options, limits=free))
    assert (await handle.result()).answer == "x"
    options = {"mode": mode, "limits": {"model_calls": 0}}
    handle = await begin(working, holding(final("x"), options=options))
    assert (await handle.result()).outcome == {"inner": "limit"}


@both_ways
async def test_a_broken_inner_machine_costs_what_it_cost(working: Client, mode: Mode) -> None:
    options = {"mode": mode, "machine": "breaking"}
    handle = await begin(working, holding("nonsense", options=options))
    result = await handle.result()
    assert "the undeclared field 'nosuch' was written" in str(result.answer)
    assert (result.counters["model_calls"], result.counters["tokens"] > 0) == (1, True)


@both_ways
async def test_errors_of_inner_machines_never_show_refused_values(working: Client, mode: Mode) -> None:
    options = {"mode": mode, "options": {"api_key": "sk-SECRET"}}
    handle = await begin(working, holding(final("x"), options=options))
    answer = str((await handle.result()).answer)
    assert "api_key" in answer
    assert "sk-SECRET" not in answer


async def test_an_unsafe_call_that_a_cancellation_met_in_a_child_run_is_named(working: Client) -> None:
    given = holding(act("mark_once", line="u", seconds=30), tools=("mark_once",), options={"mode": "child"})
    handle = await begin(working, given)
    child = working.get_workflow_handle(child_of(handle))
    await until(handle, lambda status: bool(status.inside))
    await _started(child)
    await until(child, lambda status: status.state == "action")
    await handle.cancel()
    result = await handle.result()
    assert result.exit_reason == "cancelled"
    assert "nobody knows whether mark_once" in str(result.error)
    assert result.counters["model_calls"] == 1


async def test_a_child_run_whose_id_is_taken_is_told_to_the_outer_machine(working: Client) -> None:
    given = holding(act("mark", line="x", seconds=1), final("x"), tools=("mark",), options={"mode": "child"})
    blocker = task(act("mark", line="b", seconds=20), tools=("mark",))
    handle = await begin(working, given, start_delay=timedelta(seconds=2))
    other = await working.start_workflow(
        "AgentWorkflow", blocker, id=child_of(handle), task_queue=TASK_QUEUE, result_type=AgentResult
    )
    assert "is there already" in str((await handle.result()).answer)
    await other.cancel()


async def test_an_error_of_megabytes_fails_the_workflow_and_not_its_server(working: Client) -> None:
    handle = await begin(working, holding(final("x" * 3_000_000), machine="halting"))
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert len(str(failed.value.cause)) < 3000


async def test_ids_stay_short_enough_for_the_server(working: Client) -> None:
    long_id = "r" * 900
    handle = await working.start_workflow(
        "AgentWorkflow",
        holding(final("x"), options={"mode": "child"}),
        id=long_id,
        task_queue=TASK_QUEUE,
        result_type=AgentResult,
    )
    assert (await handle.result()).answer == "x"


async def test_what_an_inner_machine_does_can_be_seen_while_it_does_it(working: Client) -> None:
    given = holding(act("mark", line="see", seconds=3), final("x"), tools=("mark",))
    handle = await begin(working, given)
    await until(handle, lambda status: status.inside == ("react: action",))
    page = await handle.query("transcript", result_type=TranscriptPage)
    assert [message.role for message in page.messages] == ["system", "user", "assistant"]
    assert (await handle.query("status", result_type=AgentStatus)).state == "hold"
    assert (await handle.result()).ok


@pytest.mark.parametrize(
    "values", [{"retry_count": "x"}, {"total_cost": "a"}, {"exit_reason": 3, "steps": None}]
)
async def test_values_of_an_outer_machine_harm_no_inner_one(working: Client, values: Any) -> None:
    handle = await begin(working, task(final("x"), values=values))
    assert (await handle.result()).answer == "x"


async def test_a_machine_at_work_inside_goes_on_when_the_history_is_cut(tmp_path: Path) -> None:
    modules = (str(TOOLS), str(MACHINES))
    settings = Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=modules)
    replies = [act("mark", line=f"step{n}") for n in range(8)]
    async with (
        real_server(settings, "limit.historyCount.suggestContinueAsNew=60") as client,
        build_worker(client, settings),
    ):
        handle = await begin(client, holding(*replies, final("at the end"), tools=("mark",)))
        first = handle.result_run_id
        result = await handle.result()
    assert (result.answer, result.counters["tool_calls"]) == ("at the end", 8)
    assert result.run_id != first, "the run was continued as new"
    marks = (tmp_path / "marks.txt").read_text().splitlines()
    assert [line.split()[0] for line in marks] == [f"step{n}" for n in range(8)]
    archive = Archive(settings.data_dir / "archive.db")
    records = [Record.model_validate(one) for one in await archive.records(handle.id)]
    assert [r.seq for r in records] == list(range(result.records))
    assert await archive.verify(handle.id) is None
