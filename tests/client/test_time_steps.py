"""Where a run can go back to, and what it was there: live, over, rolled back, archived, without a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_jsonable_python
from temporalio.client import Client

from activities.settings import Settings
from client.agent import AgentClient
from client.archived import ArchivedRuns
from client.checkpoints import CheckpointLine, checkpoints_of, snapshot_at
from client.differences import timeless
from client.errors import RatchetError, UnknownRun, UsageError
from client.finding import find_any
from tests.client.peoplekit import opened
from tests.conftest import MACHINES, TOOLS, real_server
from tests.workflows.trials import act, final, task
from worker import build_worker
from workflows.api import AgentTask
from workflows.kernel.fields import Fields
from workflows.kernel.rebuild import rebuild
from workflows.people import Approvals, People
from workflows.registry import design, parts

THREE = (act("mark", line="one"), act("mark", line="two"), final("both"))
ERA = (1.7e9, 2.2e9)
"""Whenever runs may be, in seconds since 1970."""
ASKS = (act("mark", line="first"), act("mark", line="second"), act("mark_once", line="asked"))


def waiting_task() -> AgentTask:
    """A run that makes two calls, and then waits for somebody to approve the third."""
    return task(*ASKS, tools=("mark", "mark_once"), people=People(), approvals=Approvals())


async def finished(agents: AgentClient, given: AgentTask) -> str:
    """A run that is over."""
    run_id = await agents.start(given)
    await agents.result(run_id)
    return run_id


async def elsewhere(agents: AgentClient, settings: Settings) -> AgentClient:
    """A client whose server knows none of the runs: only the archive does."""
    address = agents.temporal.service_client.config.target_host
    plugins = agents.temporal.config()["plugins"]
    forgetful = await Client.connect(address, namespace="temporal-system", plugins=plugins)
    return AgentClient(forgetful, ArchivedRuns(settings.data_dir / "archive.db"), where="elsewhere")


async def test_every_step_of_a_finished_run_can_be_gone_back_to_and_the_start_too(
    agents: AgentClient,
) -> None:
    run_id = await finished(agents, task(*THREE, tools=("mark",)))
    lines = await checkpoints_of(agents, run_id)
    assert [(line.step, line.branch, line.held, line.state) for line in lines] == [
        (step, 0, True, "thought") for step in range(4)
    ]
    assert [line.said for line in lines[1:]] == [
        'Next. -> mark("one")', 'Next. -> mark("two")', "FINAL ANSWER: both",
    ]  # fmt: skip
    assert [line.counters.get("model_calls") for line in lines] == [None, 1, 2, 3]


async def test_a_snapshot_is_what_the_log_says_was_there_when_the_step_began(agents: AgentClient) -> None:
    run_id = await finished(agents, task(*THREE, tools=("mark",)))
    records = await agents.records(run_id, full=True)
    react = design("react")
    machine = react.build(react.options(), parts())
    for line in await checkpoints_of(agents, run_id):
        snapshot = await snapshot_at(agents, run_id, line.step)
        state, context = rebuild(machine, [record for record in records if record.seq <= line.seq])
        assert (snapshot.state, snapshot.records) == (state.value, line.seq + 1)
        assert snapshot.context == Fields.of(machine.context).dump(context)
    second = await snapshot_at(agents, run_id, 2)
    assert (second.counters["tool_calls"], len(second.context["steps"])) == (1, 1)  # type: ignore[arg-type]  # a list
    assert [moved.event for moved in second.next] == ["Drafted", "Accepted", "Acted", "Observed", "StepTaken"]
    assert second.next[2].reason == "done two"


async def test_a_live_run_shows_the_steps_that_it_has_begun_and_its_snapshots(agents: AgentClient) -> None:
    run_id = await agents.start(waiting_task())
    await opened(agents, run_id)
    lines = await checkpoints_of(agents, run_id)
    assert [line.step for line in lines] == [0, 1, 2, 3]
    assert lines[3].states == ("thought", "validate")
    third = await snapshot_at(agents, run_id, 3)
    assert [moved.event for moved in third.next] == ["Drafted", "Accepted", "Requested"]
    await agents.cancel(run_id)


async def test_what_a_rollback_went_back_behind_is_left_behind_and_told_so(agents: AgentClient) -> None:
    run_id = await agents.start(waiting_task())
    await opened(agents, run_id)
    await agents.rollback(run_id, 2, by="Ada")
    await agents.cancel(run_id)
    await agents.result(run_id)
    lines = await checkpoints_of(agents, run_id)
    assert [(line.step, line.branch) for line in lines if not line.held] == [(2, 0), (3, 0)]
    held = [(line.step, line.branch) for line in lines if line.held]
    assert held[:3] == [(0, 0), (1, 0), (2, 1)]
    assert [line.seq for line in lines] == sorted(line.seq for line in lines), "as it went"
    snapshot = await snapshot_at(agents, run_id, 2)
    assert (snapshot.branch, snapshot.counters["model_calls"]) == (1, 3), "what was spent stays spent"
    assert len(snapshot.context["steps"]) == 1  # type: ignore[arg-type]  # a list


@pytest.mark.parametrize("step", [4, 99])
async def test_a_step_that_never_began_is_refused_with_those_there_are(
    agents: AgentClient, step: int
) -> None:
    run_id = await finished(agents, task(*THREE, tools=("mark",)))
    with pytest.raises(UsageError, match=f"no step {step} to go back to; it has steps 0 to 3"):
        await snapshot_at(agents, run_id, step)


async def test_a_run_s_id_may_be_shortened_where_one_alone_is_meant(
    agents: AgentClient, settings: Settings
) -> None:
    for name in ("shorten-one", "shorten-other", "shorten-one/inside"):
        await agents.result(await agents.start(task(final("x")), name))
    for short in ("shorten-one", "shorten-on", "ten-one"):
        assert await find_any(agents, short) == "shorten-one"
    with pytest.raises(UsageError, match="several runs begin or end so"):
        await find_any(agents, "shorten-o")
    with pytest.raises(UnknownRun, match="no run nowhere-at-all"):
        await find_any(agents, "nowhere-at-all")
    assert await find_any(await elsewhere(agents, settings), "shorten-one") == "shorten-one"


async def test_an_unknown_run_is_named(agents: AgentClient) -> None:
    for ask in (checkpoints_of(agents, "nix"), snapshot_at(agents, "nix", 0)):
        with pytest.raises(UnknownRun, match="there is no run nix"):
            await ask


async def test_the_archive_gives_the_same_where_temporal_has_forgotten_the_run(
    agents: AgentClient, settings: Settings
) -> None:
    options = {"machine": "react", "tools": ["mark"]}
    for given in (
        task(*THREE, tools=("mark",)),
        task(*THREE, tools=("mark",), machine="holding", options=options),
    ):
        run_id = await finished(agents, given)
        forgetful = await elsewhere(agents, settings)
        assert await checkpoints_of(forgetful, run_id) == await checkpoints_of(agents, run_id)
        assert await snapshot_at(forgetful, run_id, 1) == await snapshot_at(agents, run_id, 1)


async def test_a_run_of_which_even_the_archive_does_not_know_the_task_is_read_with_default_options(
    agents: AgentClient, settings: Settings, tmp_path: Path
) -> None:
    run_id = await finished(agents, task(*THREE, tools=("mark",)))
    forgetful = await elsewhere(agents, settings)
    forgetful._archive = Taskless(settings.data_dir / "archive.db")
    snapshot = await snapshot_at(forgetful, run_id, 2)
    assert snapshot.context == (await snapshot_at(agents, run_id, 2)).context
    assert "default options" in snapshot.notes[0]


class Taskless(ArchivedRuns):
    """An archive of runs that ended before tasks were kept."""

    async def begun(self, run_id: str) -> tuple[AgentTask | None, str]:
        return None, ""


async def test_without_a_worker_steps_and_snapshots_come_from_the_history(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=(str(TOOLS), str(MACHINES))
    )
    async with real_server(settings) as client:
        agents = AgentClient(client, ArchivedRuns(settings.data_dir / "archive.db"), where="here")
        async with build_worker(client, settings):
            run_id = await agents.start(waiting_task())
            agents.worker_here = True
            await opened(agents, run_id)
            with_worker = await both(agents, run_id)
        agents.worker_here = False
        other = await Client.connect(
            client.service_client.config.target_host, plugins=client.config()["plugins"]
        )
        alone = Lonely(other, ArchivedRuns(settings.data_dir / "archive.db"), where="here")
        assert await both(alone, run_id) == with_worker


async def both(agents: AgentClient, run_id: str) -> Any:
    """Steps and a snapshot."""
    lines: tuple[CheckpointLine, ...] = await checkpoints_of(agents, run_id)
    return timeless(to_jsonable_python([*lines, await snapshot_at(agents, run_id, 2)]), ERA)


class Lonely(AgentClient):
    """A client that sees at once that no worker is there; the server takes a minute and a half."""

    async def _check_worker(self, run_id: str) -> None:
        from client.rpc import no_worker

        raise no_worker(self.where)


async def test_a_run_whose_machine_is_not_known_here_says_what_to_do(agents: AgentClient) -> None:
    run_id = await agents.start(AgentTask(goal="x", machine="nowhere"))
    with pytest.raises(RatchetError, match=r"unknown machine nowhere.*RATCHET_MODULES"):
        await checkpoints_of(agents, run_id)
