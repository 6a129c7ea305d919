"""`ratchet list`: the newest runs, each once, whatever became of it."""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator
from contextlib import redirect_stdout
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PauseWorkflowExecutionRequest,
    PollWorkflowTaskQueueRequest,
    ResetWorkflowExecutionRequest,
    RespondWorkflowTaskCompletedRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus

from activities.settings import Settings
from client.cli.output import print_table
from client.server.embedded import EmbeddedServer
from tests.client.commandline import Cli, within
from tests.server.conftest import real_server
from tests.server.trials import eventually
from workflows.api import WORKFLOW_TYPE


@pytest.fixture(scope="module")
async def home(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Cli, Client]]:
    """A server without a worker, where 30 runs began one after the other; every second is over."""
    folder = tmp_path_factory.mktemp("data")
    async with await EmbeddedServer.attach(folder) as server:
        temporal = await Client.connect(server.record.address)
        for number in range(30):
            started = await temporal.start_workflow(
                WORKFLOW_TYPE, {"goal": "go"}, id=f"run-{number:02}", task_queue="nobody",
                memo={"goal": f"goal {number}"},
            )  # fmt: skip
            if number % 2:
                await started.terminate("enough")
        yield Cli(folder, folder), temporal


async def listed(cli: Cli, *words: str) -> list[str]:
    """Ids of the runs that `ratchet list WORDS` prints."""
    return [one["id"] for one in (await cli.beside("list", "--json", *words)).lines]


def newest(*numbers: int) -> list[str]:
    return [f"run-{number:02}" for number in numbers]


async def test_newest_twenty_come_first(home: tuple[Cli, Client]) -> None:
    cli, _ = home

    async def all_are_known() -> bool:
        return len(await listed(cli, "--limit", "0")) == 30

    await eventually(all_are_known)
    assert await listed(cli) == newest(*range(29, 9, -1))
    assert "the newest 20 of 30 runs" in (await cli.beside("list")).err
    assert await listed(cli, "--limit", "3") == newest(29, 28, 27)
    assert await listed(cli, "--running", "-n", "2") == newest(28, 26)


async def test_list_has_marks_and_relative_times(home: tuple[Cli, Client]) -> None:
    rows = (await home[0].beside("list", "--limit", "2")).out.splitlines()
    assert re.fullmatch(r"✗  run-29  terminated  \d+ \w+ ago  goal 29", rows[1])
    assert re.fullmatch(r"●  run-28  running     \d+ \w+ ago  goal 28", rows[2])


async def test_since_leaves_out_what_began_before(home: tuple[Cli, Client]) -> None:
    cli, temporal = home
    began = (await temporal.get_workflow_handle("run-20").describe()).start_time
    assert await listed(cli, "--since", began.isoformat()) == newest(*range(29, 19, -1))
    assert await listed(cli, "--since", (began + timedelta(days=1)).isoformat()) == []
    assert len(await listed(cli, "--since", "2h")) == 20
    wrong = await cli.beside("list", "--since", "yesterday")
    assert (wrong.code, "90min" in wrong.err) == (2, True)


async def test_run_that_was_reset_is_there_once(home: tuple[Cli, Client]) -> None:
    cli, temporal = home
    server = temporal.workflow_service
    await temporal.start_workflow(WORKFLOW_TYPE, {"goal": "go"}, id="reset", task_queue="by hand")
    task = await server.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace="default", task_queue=TaskQueue(name="by hand"))
    )
    await server.respond_workflow_task_completed(
        RespondWorkflowTaskCompletedRequest(namespace="default", task_token=task.task_token)
    )
    execution = WorkflowExecution(workflow_id="reset")
    reset = ResetWorkflowExecutionRequest(
        namespace="default", workflow_execution=execution, workflow_task_finish_event_id=4, request_id="again"
    )
    await server.reset_workflow_execution(reset)

    async def is_known() -> bool:
        executions = [run async for run in temporal.list_workflows("WorkflowId = 'reset'")]
        return len(executions) == 2 and {run.status for run in executions} == {
            WorkflowExecutionStatus.RUNNING,
            WorkflowExecutionStatus.TERMINATED,
        }

    await eventually(is_known)
    found = (await cli.beside("list", "--json", "--limit", "2")).lines
    assert [(one["id"], one["progress"]) for one in found] == [("reset", "running"), ("run-29", "terminated")]


async def test_run_with_status_unknown_to_the_sdk_breaks_nothing(tmp_path: Path) -> None:
    """Newer servers can pause a workflow by themselves."""
    async with real_server(Settings(data_dir=tmp_path), "frontend.WorkflowPauseEnabled=true") as temporal:
        address = str(temporal.service_client.config.target_host)
        await temporal.start_workflow(WORKFLOW_TYPE, {"goal": "go"}, id="held", task_queue="nobody")
        await temporal.workflow_service.pause_workflow_execution(
            PauseWorkflowExecutionRequest(namespace="default", workflow_id="held", request_id="1")
        )
        cli = Cli(tmp_path / "data", tmp_path)

        async def is_paused() -> bool:
            return "paused in Temporal" in (await cli.beside("list", "--running", "--address", address)).out

        await eventually(is_paused)
        shown = await cli.beside("show", "held", "--address", address)
        assert "paused in Temporal" in shown.out + shown.err, shown.err
        assert (await cli.beside("cancel", "held", "--address", address)).code == 0


def test_value_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    cli = Cli(tmp_path, tmp_path)
    for words, says in (
        (("list", "--limit", "few"), "'--limit' / '-n': 'few' is not a whole number"),
        (("list", "--limit", "-1"), "greater than or equal to 0"),
        (("costs", "--by", "week"), "'week' is not one of 'agent', 'model', 'day'"),
        (("list", "--port", "99999"), "less than or equal to 65535"),
    ):
        found = cli(*words)
        assert (found.code, says in found.err) == (2, True), found.err


class Terminal(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_table_on_terminal_is_cut_at_edge_and_has_styles() -> None:
    rows = [
        [("✓", "green"), ("漢字", ""), ("many words that do not fit there", "")],
        [("", ""), ("b", ""), ("c", "")],
    ]
    with redirect_stdout(shown := Terminal()), within({"TERM": "xterm", "COLUMNS": "33"}):
        print_table(("", "id", "goal"), rows)
    assert shown.getvalue().splitlines() == [
        "   \x1b[2mid\x1b[0m    \x1b[2mgoal\x1b[0m",
        "\x1b[32m✓\x1b[0m  漢字  many words that do no…",
        "   b     c",
    ]
    with redirect_stdout(shown), within({"TERM": "dumb", "COLUMNS": "33"}):
        print_table(("n", "calls"), [[("one", ""), ("1,000", "")]], right=True)
    assert shown.getvalue().splitlines()[3:] == ["n    calls", "one  1,000"]
