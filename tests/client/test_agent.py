"""`AgentClient` against the real server, with a worker, without one, and with the archive alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import Client

from activities.archive import ArchiveActivities
from activities.contracts import ArchiveRequest, ModelSpec
from activities.settings import Settings
from client.agent import AgentClient
from client.archived import ArchivedRuns
from client.errors import DuplicateRun, NoWorker, RatchetError, RunFailed, UnknownRun
from client.listing import list_filter
from client.live import Now, moment
from tests.client.peoplekit import until_true
from tests.conftest import TOOLS, real_server
from tests.workflows.trials import act, final, task
from worker import build_worker
from workflows.api import AgentTask
from workflows.kernel.log import STARTED, chain

TALK = (act("mark", line="one"), act("mark", line="two"), final("both"))


async def test_watching_gives_every_record_once_and_ends_with_the_run(agents: AgentClient) -> None:
    run_id = await agents.start(task(*TALK, tools=("mark",)))
    seen = [record async for record in agents.watch(run_id)]
    result = await agents.result(run_id)
    assert [record.seq for record in seen] == list(range(result.records))
    assert seen[0].event == STARTED
    assert (result.ok, result.answer) == (True, "both")
    assert chain(await agents.records(run_id, full=True)) == result.log_head


async def test_a_damaged_archive_spoils_no_run_that_the_server_knows(working: Client, tmp_path: Path) -> None:
    await asyncio.to_thread((tmp_path / "archive.db").write_text, "no database\n" * 100)
    client = AgentClient(working, ArchivedRuns(tmp_path / "archive.db"), where="the test server")
    client.worker_here = True
    run_id = await client.start(task(final("all the same")))
    seen = [record async for record in client.watch(run_id)]
    assert (await client.result(run_id)).records == len(seen) == len(await client.records(run_id))
    assert (await client.status(run_id)).finished
    for read in (client.status, client.result, client.records):
        with pytest.raises(RatchetError, match="the archive cannot be read"):
            await read("nobody-knows-it")


async def test_watching_a_finished_run_from_the_middle_gives_the_rest(agents: AgentClient) -> None:
    run_id = await agents.start(task(final("at once")))
    total = (await agents.result(run_id)).records
    assert [record.seq async for record in agents.watch(run_id, since=2)] == list(range(2, total))


async def test_two_watchers_see_the_same(agents: AgentClient) -> None:
    run_id = await agents.start(task(*TALK, tools=("mark",)))

    async def watch() -> list[int]:
        return [record.seq async for record in agents.watch(run_id)]

    first, second = await asyncio.gather(watch(), watch())
    assert first == second


async def test_everything_about_a_run_can_be_read(agents: AgentClient) -> None:
    given = task(*TALK, tools=("mark",), agent="reader")
    run_id = await agents.start(given)
    await agents.result(run_id)
    status = await agents.status(run_id)
    assert (status.agent, status.finished, status.answer) == ("reader", True, "both")
    steps = await agents.steps(run_id)
    assert [line.step for line in steps] == [1, 2, 3]
    spoken = [message.role for message in await agents.transcript(run_id)]
    assert spoken.count("assistant") == 3
    assert "class" in await agents.diagram(run_id)


async def test_runs_are_listed_newest_first_by_agent(agents: AgentClient) -> None:
    names = [await agents.start(task(final("x"), agent="listed")) for _ in range(3)]
    for name in names:
        await agents.result(name)
    lines = await agents.list(agent="listed", machine="react")
    while len(lines) < 3 or any(line.progress == "running" for line in lines):
        await asyncio.sleep(0.05)  # the list is made behind the runs
        lines = await agents.list(agent="listed", machine="react")
    assert [line.id for line in lines] == names[::-1]
    assert {(line.progress, line.exit_reason, line.goal) for line in lines} == {
        ("completed", "goal_achieved", "try it")
    }
    assert await agents.list(agent="nobody's") == ()


async def test_an_id_that_is_taken_starts_nothing_and_says_how_to_watch(agents: AgentClient) -> None:
    run_id = await agents.start(task(final("first")))
    await agents.result(run_id)
    with pytest.raises(DuplicateRun, match=f"ratchet watch {run_id}"):
        await agents.start(task(final("second")), run_id)
    assert (await agents.result(run_id)).answer == "first"


async def test_an_unknown_run_is_named_whatever_is_asked(agents: AgentClient) -> None:
    for ask in (agents.status, agents.log, agents.steps, agents.result, agents.cancel, agents.describe):
        with pytest.raises(UnknownRun, match="there is no run nix"):
            await ask("nix")
    with pytest.raises(UnknownRun, match="there is no run nix"):
        _ = [record async for record in agents.watch("nix")]


async def test_a_cancelled_run_still_gives_a_result(agents: AgentClient) -> None:
    run_id = await agents.start(task(act("mark", line="long", seconds=60), tools=("mark",)))
    async for record in agents.watch(run_id):
        if record.to == "action":
            await agents.cancel(run_id)
    result = await agents.result(run_id)
    assert (result.ok, result.exit_reason) == (False, "cancelled")


async def test_a_run_that_failed_says_why(agents: AgentClient) -> None:
    run_id = await agents.start(task(final("x"), tools=("no_such_tool",)))
    with pytest.raises(RunFailed, match=f"run {run_id} was refused, .*unknown tools: no_such_tool"):
        await agents.result(run_id)
    assert (await agents.describe(run_id)).progress == "failed"


async def test_a_terminated_run_says_so(agents: AgentClient) -> None:
    run_id = await agents.start(task(act("mark", line="t", seconds=60), tools=("mark",)))
    await agents.temporal.get_workflow_handle(run_id).terminate("enough")
    with pytest.raises(RunFailed, match="was terminated"):
        await agents.result(run_id)


async def test_the_archive_answers_where_temporal_knows_nothing(
    agents: AgentClient, settings: Settings
) -> None:
    run_id = await agents.start(task(*TALK, tools=("mark",)))
    result = await agents.result(run_id)
    address = agents.temporal.service_client.config.target_host
    elsewhere = await Client.connect(address, namespace="temporal-system")
    later = AgentClient(elsewhere, ArchivedRuns(settings.data_dir / "archive.db"))
    with pytest.raises(UnknownRun):
        await later.describe(run_id)
    assert await later.result(run_id) == result
    assert await later.steps(run_id) == await agents.steps(run_id)
    assert (await later.status(run_id)).answer == "both"
    assert chain(await later.records(run_id)) == result.log_head
    assert [record.seq async for record in later.watch(run_id)] == list(range(result.records))


async def test_of_a_run_whose_end_nobody_knows_the_archive_tells_what_it_has(
    agents: AgentClient, tmp_path: Path
) -> None:
    run_id = await agents.start(task(*TALK, tools=("mark",)))
    await agents.result(run_id)
    written = await agents.records(run_id, full=True)
    part = tuple(record.model_dump(mode="json") for record in written[:3])
    store = ArchiveActivities(tmp_path / "archive.db")
    await store.archive_log(ArchiveRequest(workflow_id=run_id, run_id="r", after="", records=part))
    store.close()
    address = agents.temporal.service_client.config.target_host
    converter = agents.temporal.data_converter
    elsewhere = await Client.connect(address, namespace="temporal-system", data_converter=converter)
    later = AgentClient(elsewhere, ArchivedRuns(tmp_path / "archive.db"))
    later.worker_here = True
    assert await later.cut_off(run_id)
    assert await later.records(run_id) == written[:3]
    assert [record async for record in later.watch(run_id)] == list(written[:3])
    for read in (later.result, later.status):
        with pytest.raises(UnknownRun, match=f"`ratchet log {run_id}` shows the 3 records"):
            await read(run_id)


async def test_without_a_worker_questions_are_refused_at_once_and_lists_still_answer(
    data_dir: Path,
) -> None:
    async with AgentClient.connect(settings=Settings(data_dir=data_dir)) as alone:
        assert not await alone.has_worker()
        run_id = await alone.start(task(final("later")), "waiting")
        with pytest.raises(NoWorker, match="`ratchet dev`"):
            await alone.status(run_id)
        with pytest.raises(NoWorker, match="ratchet run --resume"):
            _ = [record async for record in alone.watch(run_id)]
        assert (await alone.describe(run_id)).progress == "running"
        assert alone.ui is not None
        async with build_worker(alone.temporal, Settings(data_dir=data_dir)):
            await until_true(alone.has_worker)
        assert not await alone.has_worker(), "a worker that has said goodbye does not count"


async def test_a_list_filter_cannot_be_broken_out_of(agents: AgentClient) -> None:
    assert await agents.list(agent="x' OR AgentName != '") == ()
    assert "\\'" in list_filter(agent="a'b")


async def test_a_program_needs_few_lines_for_server_worker_and_run(data_dir: Path) -> None:
    async with AgentClient.connect(settings=Settings(data_dir=data_dir), worker=True) as agents:
        models = {"default": ModelSpec(provider="scripted", name="scripted")}
        result = await agents.run(AgentTask(goal="Say something.", models=models))
    assert result.answer


async def test_watching_goes_on_through_continue_as_new(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=(str(TOOLS),))
    async with (
        real_server(settings, "limit.historyCount.suggestContinueAsNew=60") as client,
        build_worker(client, settings),
    ):
        agents = AgentClient(client, ArchivedRuns(settings.data_dir / "archive.db"))
        agents.worker_here = True
        replies = [act("mark", line=f"step{n}") for n in range(12)]
        run_id = await agents.start(task(*replies, final("at the end"), tools=("mark",)))
        first = (await agents.describe(run_id)).run_id
        seen = [record.seq async for record in agents.watch(run_id)]
        result = await agents.result(run_id)
        assert [line.id for line in await agents.list(running=True)] == []
        bare = AgentClient(client, ArchivedRuns(tmp_path / "none.db"))
        bare.worker_here = True
        read = await bare.records(run_id)
    assert result.run_id != first, "the run was continued as new"
    assert seen == list(range(result.records))
    assert [record.seq for record in read] == seen, "the beginning is in Temporal's history, too"


async def test_what_fails_and_is_tried_again_is_told_in_one_line(working: Client) -> None:
    described = DescribeWorkflowExecutionResponse()
    assert await moment(working, described) == Now()
    described.pending_workflow_task.attempt = 2
    assert (await moment(working, described)).trouble is None
    described.pending_workflow_task.attempt = 3
    assert (await moment(working, described)).trouble == (
        "the workflow itself fails again and again; the cause is in worker.log"
    )
    described.pending_activities.add(activity_id="think#1")
    failing = described.pending_activities.add(activity_id="act#2")
    failing.last_failure.message = "HTTP 503:\n  " + "busy " * 100
    assert (await moment(working, described)).trouble == (
        f"act#2 failed and is tried again: {('HTTP 503: ' + 'busy ' * 100)[:300]}"
    )
