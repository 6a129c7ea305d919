"""What the SDK reads of runs on the real server: live, over, without a worker, and from the archive alone."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import ActivityType, Payloads
from temporalio.api.enums.v1 import PendingActivityState, TimeoutType
from temporalio.api.failure.v1 import Failure, TimeoutFailureInfo
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowInput,
    WorkflowHandle,
)
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from activities.contracts import ArchiveRequest, MaterialRef
from activities.extensions import load_modules
from activities.settings import Settings
from activities.store.archive import Archive
from client.errors import (
    DuplicateRun,
    NoWorker,
    RatchetError,
    Refused,
    RunFailed,
    RunNotBegun,
    RunRefused,
    UnknownRun,
    UsageError,
)
from client.history.recorded import beginning_of
from client.runs.pending import Heartbeat, heartbeat_in
from client.sdk.agent import AgentClient, new_run_id
from client.sdk.sending import SentSignal
from client.server.connection import Connection
from tests.client.asking import talk
from tests.server.conftest import real_server
from tests.server.trials import calls, eventually, scripted, task
from worker import build_worker
from workflows import registry
from workflows.api import TASK_QUEUE, RunStatus
from workflows.kernel.log import STARTED, chain
from workflows.people import CommandDone

SLOW = calls(("mark", {"line": "slow", "seconds": 30}))


async def test_program_needs_few_lines_for_server_worker_and_run(data_dir: Path) -> None:
    async with AgentClient.connect(settings=Settings(data_dir=data_dir), worker=True) as agents:
        assert await agents.has_worker()
        assert (await agents.run(task("said", tools=("calculator",)))).answer == "said"
        assert agents.ui


async def test_watch_gives_every_record_once(agents: AgentClient) -> None:
    run = await agents.start(talk())
    other = asyncio.create_task(_watched(agents, run))
    seen = await _watched(agents, run)
    result = await agents.result(run)
    assert [record.seq for record in seen] == list(range(result.records))
    assert (seen[0].event, result.ok, result.answer) == (STARTED, True, "both")
    assert chain(await agents.records(run, full=True)) == result.log_head
    assert await other == seen
    assert [record.seq for record in await _watched(agents, run, 2)] == list(range(2, result.records))


async def _watched(agents: AgentClient, run: str, since: int = 0) -> list[Any]:
    return [record async for record in agents.watch(run, since)]


async def test_finished_run_tells_everything(agents: AgentClient) -> None:
    result = await agents.run(talk())
    run = result.workflow_id
    status = await agents.status(run)
    assert (status.answer, status.step) == ("both", 3)
    assert status.finished == (await agents.records(run))[-1].at
    assert [line.step for line in await agents.steps(run)] == [1, 2, 3]
    assert [message.role for message in await agents.transcript(run)][-2:] == ["tool", "assistant"]
    assert "DONE" in await agents.diagram(run)
    assert await agents.archive.broken_at(run) is None


async def test_lists_show_runs_newest_first(agents: AgentClient) -> None:
    name = "lister"
    runs = [await agents.start(talk(name=name, goal=f"goal {n}")) for n in range(3)]
    for run in runs:
        await agents.result(run)

    async def listed() -> Any:  # visibility is written a little later
        lines = await agents.list(agent=name)
        ended = [line for line in lines if line.exit_reason and line.progress != "running"]
        return lines if len(ended) == 3 else ()

    lines = await eventually(listed)
    assert [line.id for line in lines] == runs[::-1]
    assert (lines[0].goal, lines[0].machine, lines[0].progress) == ("goal 2", "tools", "completed")
    assert await agents.list(agent="x' OR AgentName = 'lister") == ()


async def test_taken_id_starts_nothing(agents: AgentClient) -> None:
    run = await agents.start(talk())
    with pytest.raises(DuplicateRun, match=f"`ratchet watch {run}` follows it"):
        await agents.start(talk(), run)
    await agents.result(run)
    with pytest.raises(DuplicateRun, match=f"{run} exists already.* even for a run that was refused"):
        await agents.start(talk(), run)


class BusyServer(Interceptor):
    """Answers of starts are lost: of the first `before` nothing was done, of the next `behind` all was."""

    def __init__(self, before: int, behind: int) -> None:
        self.before, self.behind = before, behind

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return LostAnswers(next, self)


class LostAnswers(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, server: BusyServer) -> None:
        super().__init__(next)
        self.server = server

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        lost = RPCError("Timeout expired", RPCStatusCode.CANCELLED, b"")
        if self.server.before:
            self.server.before -= 1
            raise lost
        handle = await super().start_workflow(input)
        if self.server.behind:
            self.server.behind -= 1
            raise lost
        return handle


def behind(agents: AgentClient, settings: Settings, server: BusyServer) -> AgentClient:
    """The same client, of a server that is busy."""
    config = agents.temporal.config()
    config["plugins"], config["interceptors"] = [], [server]
    config["data_converter"] = agents.temporal.data_converter
    busy = Client(**config)
    return AgentClient(Connection(busy, settings, "the test server", queues=(TASK_QUEUE,)))


@pytest.mark.parametrize("lost", [(2, 0), (0, 2), (1, 1)], ids=["before", "behind", "both"])
async def test_start_goes_on_when_the_server_is_busy(
    lost: tuple[int, int], agents: AgentClient, settings: Settings
) -> None:
    run = await behind(agents, settings, BusyServer(*lost)).start(talk())
    assert (await agents.result(run)).answer == "both"


async def test_start_at_a_busy_server_takes_nobody_elses_run(agents: AgentClient, settings: Settings) -> None:
    """Not even one of the same task."""
    run = await agents.start(talk())
    with pytest.raises(DuplicateRun, match=run):
        await behind(agents, settings, BusyServer(1, 0)).start(talk(), run)
    await agents.result(run)


async def test_run_that_learns_its_tools_answers_once_it_begins(
    agents: AgentClient, settings: Settings
) -> None:
    # a machine that lists its tools in its first prompt asks the workers for them before it begins
    runs = [await agents.start(task("x", machine="react", tools=("mark", "calculator"))) for _ in range(5)]
    found = await asyncio.gather(*(agents.status(run) for run in runs))
    assert {status.machine for status in found} == {"react"}
    await asyncio.gather(*(agents.cancel(run) for run in runs))


async def test_run_that_does_not_begin_in_time_says_so(working: Client, agents: AgentClient) -> None:
    queue = "nobody describes tools here"
    async with Worker(working, task_queue=queue, no_remote_activities=True):
        given = task("x", machine="react", tools=("mark", "calculator"))
        run = await agents.start(given, task_queue=queue)
        await eventually(lambda: agents.has_worker(run))
        with pytest.raises(RunNotBegun, match=f"run {run} has not begun yet.*ratchet watch {run}"):
            await agents.query(run, "status", RunStatus, seconds=1)
        await agents.cancel(run)


async def test_unknown_run_is_named_by_every_method(agents: AgentClient) -> None:
    for ask in (
        agents.status,
        agents.records,
        agents.result,
        agents.requests,
        agents.cancel,
        agents.describe,
    ):
        with pytest.raises(UnknownRun, match="nobody-has-it"):
            await ask("nobody-has-it")
    with pytest.raises(UnknownRun, match="nobody-has-it"):
        await agents.command("nobody-has-it", "pause")
    with pytest.raises(UnknownRun, match="nobody-has-it"):
        await _watched(agents, "nobody-has-it")


async def test_short_id_finds_exactly_one_run(agents: AgentClient) -> None:
    first, second = new_run_id("finder") + "-one", new_run_id("finder") + "-two"
    for run in (first, second):
        await agents.run(talk(), run)
    async with asyncio.timeout(120):
        while True:
            with suppress(UnknownRun):
                assert await agents.find(first[:-2]) == first
                assert await agents.find(second[-13:]) == second
                break
            await asyncio.sleep(0.05)
    assert await agents.find(first) == first
    with pytest.raises(UsageError, match=second):
        await agents.find("finder-")
    with pytest.raises(Refused, match="is over"):
        await agents.find(first, running=True)
    with pytest.raises(UnknownRun, match="no-such"):
        await agents.find("no-such")


async def test_cancelled_run_still_gives_a_result(agents: AgentClient) -> None:
    run = await agents.start(task(SLOW, "done"))
    async for record in agents.watch(run):
        if record.to is not None:
            break
    await agents.cancel(run)
    assert (await agents.result(run)).exit_reason == "cancelled"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"tools": ()}, "needs at least one"),
        ({"options": {"max_steps": "many"}}, "options.max_steps"),
        ({"models": {"default": scripted("x"), "critic": scripted("x")}}, "no role critic"),
    ],
)
async def test_task_that_a_worker_would_refuse_uses_up_no_id(
    agents: AgentClient, wrong: dict[str, Any], problem: str
) -> None:
    run = f"refused-{len(problem)}"
    with pytest.raises(UsageError, match=problem):
        await agents.start(task("done", **wrong), run)
    assert (await agents.run(task("done"), run)).ok


PICKY = """
from enum import Enum
from pydantic import BaseModel
from ratchet import Context, Event, Exit, Machine, state

class S(Enum):
    READ, DONE = "read", "done"

class Options(BaseModel, frozen=True): ...
class Memory(Context): ...
class Done(Event): ...

@state(S.READ, counts="reads")
def read(c, run):
    return {}, Done()

def begin(given, options):
    if not given.material or not given.trace_id.startswith("order-"):
        raise ValueError("runs are called order-NUMBER and have material")
    return Memory()

MACHINE = Machine(
    name="picky", options=Options, context=Memory, begin=begin, initial=S.READ,
    table={S.READ: {Done: S.DONE}}, states=[read], takes_material=True,
    result=lambda c, run: Exit(reason="read", ok=True),
)
"""


async def test_machine_is_asked_with_id_and_material_of_run(agents: AgentClient, tmp_path: Path) -> None:
    file = tmp_path / "picky.py"
    file.write_text(PICKY)  # one small file
    for module in load_modules([str(file)]):
        registry.add_module(module)
    given = task("x", machine="picky", tools=())
    with pytest.raises(UsageError, match="runs are called order-NUMBER"):
        await agents.start(given, "order-7")
    assert (await agents.run(given, "order-7", material="the text")).ok


async def test_run_without_a_result_says_why(agents: AgentClient) -> None:
    refused = await agents.start(task("x", machine="nothing"))
    with pytest.raises(RunRefused, match="nothing"):
        await agents.result(refused)
    ended = await agents.start(task(SLOW, "done"))
    await agents.temporal.get_workflow_handle(ended).terminate(reason="enough")
    with pytest.raises(RunFailed, match="enough"):
        await agents.result(ended)
    raises = await agents.run(task(calls(("saw", {}))))
    assert raises.raises == "ToolNotFound"


async def test_material_goes_where_machines_take_it(agents: AgentClient) -> None:
    with pytest.raises(UsageError, match="takes no material"):
        await agents.start(talk(), material="text")
    run = await agents.start(task("x", machine="code", tools=()), material="x" * 200_000)
    started = (await beginning_of(agents.temporal, run)).task
    assert started is not None
    assert isinstance(started.material, MaterialRef)
    await agents.cancel(run)


async def test_archive_answers_when_temporal_has_forgotten(agents: AgentClient, settings: Settings) -> None:
    result = await agents.run(talk())
    forgotten = await _archive_as(agents, settings, result.workflow_id, "forgotten", with_result=True)
    assert (await agents.result(forgotten)).answer == "both"
    assert (await agents.status(forgotten)).finished
    assert len(await _watched(agents, forgotten)) == result.records
    assert await agents.find(forgotten) == forgotten
    assert [line.step for line in await agents.steps(forgotten)] == [1, 2, 3]


async def test_run_with_lost_end_shows_its_beginning(agents: AgentClient, settings: Settings) -> None:
    result = await agents.run(talk())
    run = await _archive_as(agents, settings, result.workflow_id, "cut-off", with_result=False)
    assert len(await _watched(agents, run)) == result.records
    for ask in (agents.result, agents.status):
        with pytest.raises(UnknownRun, match=rf"has its beginning.*{result.records} records"):
            await ask(run)


async def _archive_as(
    agents: AgentClient, settings: Settings, source: str, name: str, *, with_result: bool
) -> str:
    """Archive a run under an id that Temporal does not know."""
    archive = Archive(settings.archive_file)
    records = await asyncio.to_thread(archive.records, source)
    result = await asyncio.to_thread(archive.result, source)
    part = ArchiveRequest(
        workflow_id=name, run_id="first", after="", records=records, result=result if with_result else None
    )
    await asyncio.to_thread(archive.add, part)
    return name


async def test_damaged_archive_harms_no_run_that_temporal_knows(working: Client, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    await asyncio.to_thread(settings.archive_file.write_text, "no database\n" * 100)
    agents = AgentClient(Connection(working, settings, "the test server", queues=(TASK_QUEUE,)))
    run = await agents.start(task("all the same"))
    assert len(await _watched(agents, run)) == (await agents.result(run)).records
    assert (await agents.status(run)).finished
    for read in (agents.status, agents.result, agents.records):
        with pytest.raises(RatchetError, match="archive cannot be read"):
            await read("nobody-has-it")


async def test_heartbeat_shows_what_is_said_or_fails(agents: AgentClient) -> None:
    (said,) = await agents.temporal.data_converter.encode(["The answer is"])
    for pending, expected in (
        (PendingActivityInfo(heartbeat_details=Payloads(payloads=[said])), Heartbeat("The answer is")),
        (
            PendingActivityInfo(
                activity_type=ActivityType(name="ask_model"), heartbeat_details=Payloads(payloads=[said])
            ),
            Heartbeat("The answer is", is_of_model=True),
        ),
        (
            PendingActivityInfo(activity_id="think#1:0", last_failure=Failure(message="no\nanswer")),
            Heartbeat(failures={"think#1:0 attempt 0": "think#1:0 failed and is tried again: no answer"}),
        ),
    ):
        description = DescribeWorkflowExecutionResponse(pending_activities=[pending])
        assert await heartbeat_in(agents.temporal, description) == expected
    run = await agents.run(talk())
    assert await agents.heartbeat(run.workflow_id) == Heartbeat()


@pytest.mark.parametrize(
    ("began", "is_begun", "asks"), [(10, True, True), (20, True, False), (10, False, False)]
)
async def test_call_whose_worker_died_does_not_ask_the_model(
    agents: AgentClient, began: int, is_begun: bool, asks: bool
) -> None:
    """Temporal keeps the heartbeat of the attempt before."""
    state = PendingActivityState
    pending = PendingActivityInfo(
        activity_type=ActivityType(name="call_tool"),
        heartbeat_details=Payloads(payloads=await agents.temporal.data_converter.encode(["", 0, 1000.0])),
        state=state.PENDING_ACTIVITY_STATE_STARTED if is_begun else state.PENDING_ACTIVITY_STATE_SCHEDULED,
        last_started_time=Timestamp(seconds=began),
        last_heartbeat_time=Timestamp(seconds=15),
    )
    description = DescribeWorkflowExecutionResponse(pending_activities=[pending])
    assert (await heartbeat_in(agents.temporal, description)).asks_since == (1000 if asks else None)


async def test_heartbeat_names_each_call_whose_worker_was_gone(agents: AgentClient) -> None:
    """In the words of the call, and in the same order however the server gives them."""
    run = await agents.start(task(SLOW, "done", tools=("mark",)))

    def is_tool(pending: PendingActivityInfo) -> bool:
        return pending.activity_type.name == "call_tool"

    async def scheduled() -> DescribeWorkflowExecutionResponse | None:
        found = (await agents.description(run)).raw_description
        return found if any(map(is_tool, found.pending_activities)) else None

    description = await eventually(scheduled)
    (call,) = filter(is_tool, description.pending_activities)
    gone = TimeoutFailureInfo(timeout_type=TimeoutType.TIMEOUT_TYPE_HEARTBEAT)
    call.last_failure.CopyFrom(Failure(message="activity Heartbeat timeout", timeout_failure_info=gone))
    call.attempt = 2
    other = PendingActivityInfo(activity_id="*", last_failure=Failure(message="no answer"), attempt=3)
    description.pending_activities.append(other)
    found = await heartbeat_in(agents.temporal, description)
    first, second = found.failures.values()
    assert first == "* failed and is tried again: no answer"
    assert second.startswith("mark(")
    assert second.endswith(": its worker was gone; it is made again")
    assert (found.attempt, found.next_try) == (3, None)
    await agents.cancel(run)


async def test_status_says_when_what_fails_is_tried_again(agents: AgentClient) -> None:
    """A machine that tries a tool again; the run itself does not know of it."""
    tries = task(
        calls(("flaky", {"line": "again"})), "done", tools=("flaky",), options={"max_tool_attempts": 3}
    )
    run = await agents.start(tries)

    async def failing() -> RunStatus | None:
        status = await agents.status(run)
        return status if status.failing and status.next_try else None

    status = await eventually(failing)
    assert "not yet, attempt" in (status.failing or "")
    assert 2 <= status.attempt <= 3
    assert abs(time.time() - (status.next_try or 0)) < 60
    assert (await agents.result(run)).ok
    assert (await agents.status(run)).failing is None


async def test_run_is_listed_and_found_without_a_worker(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", files_root=tmp_path)
    async with real_server(settings) as temporal:
        agents = AgentClient(Connection(temporal, settings, "the test server"))
        run = await agents.start(task("late", tools=("calculator",)), "waits-for-a-worker")
        for ask in (agents.status, agents.records, agents.requests, agents.transcript):
            with pytest.raises(NoWorker):
                await ask(run)
        assert (await agents.describe(run)).progress == "running"
        async with build_worker(temporal, settings):
            assert (await agents.result(run)).answer == "late"
        assert (await agents.status(run)).finished  # from the archive


async def test_id_that_is_used_again_has_another_worker(agents: AgentClient) -> None:
    """A client keeps nothing about the runs that it has seen: it would grow with each of them."""
    run = (await agents.run(talk())).workflow_id
    assert await agents.has_worker(run)
    again = await agents.temporal.start_workflow("AgentWorkflow", talk(), id=run, task_queue="nobody")
    assert not await agents.has_worker(run)
    await again.terminate()


@pytest.mark.exhaustive
async def test_watch_and_replay_go_on_through_continue_as_new(tmp_path: Path) -> None:
    modules = (str(Path(__file__).parents[1] / "server" / "trial_tools.py"),)
    settings = Settings(data_dir=tmp_path / "data", files_root=tmp_path, modules=modules)
    async with real_server(settings, "limit.historyCount.suggestContinueAsNew=40") as temporal:
        agents = AgentClient(Connection(temporal, settings, "the test server", queues=(TASK_QUEUE,)))
        async with build_worker(temporal, settings):
            run = await agents.start(task(*[calls(("mark", {"line": "x"}))] * 12, "done"))
            first = (await agents.description(run)).run_id
            watching = asyncio.create_task(_watched(agents, run))
            answers = [await _limited(agents, run, number) for number in range(40)]
            seen, result = await watching, await agents.result(run)
        assert all(isinstance(one, CommandDone) for one in answers[:5])
        assert [record.seq for record in seen] == list(range(result.records))
        assert (await agents.description(run)).run_id != first
        replay = await agents.replay(run)
        assert (replay.same, replay.can_continue, replay.records) == (True, None, result.records)


async def _limited(agents: AgentClient, run: str, number: int) -> CommandDone | SentSignal | None:
    """Every update is answered, also one that continue-as-new has lost; None: the run is over."""
    with suppress(Refused):
        return await agents.command(run, "limits", limits={"tool_calls": 100 + number})
    return None
