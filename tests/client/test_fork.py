"""A new run from a step of another one, on the real server."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from activities.settings import Settings
from client.agent import AgentClient
from client.agentfile import shipped_agents
from client.archived import ArchivedRuns
from client.checkpoints import Source, checkpoints_of, snapshot_at, source_of
from client.choose import Choice
from client.differences import timeless
from client.errors import DuplicateRun, RatchetError, UnknownRun, UsageError
from client.fork import Changes, Effects, changed, effects, fork, forked_task
from tests.client.conftest import run_ratchet
from tests.client.peoplekit import ATTENDED, marks, opened, until_true
from tests.client.test_time_steps import ERA, Lonely, Taskless, elsewhere, finished, waiting_task
from tests.conftest import MACHINES, TOOLS, real_server
from tests.workflows.scenarios_simple import SCENARIOS as SIMPLE
from tests.workflows.test_subgraphs import holding
from tests.workflows.trials import act, final, scripted, task
from worker import build_worker
from workflows.api import AgentResult, AgentStatus, AgentTask, Limits, Origin
from workflows.kernel.log import FORKED

AGENT = """
name: careful
machine: {machine}
models:
  default:
    provider: scripted
    name: script
    script:
      - reply: {{"thought": "Next.", "action": "mark", "action_input": {{"line": "{line}"}}}}
      - reply: {{"thought": "Next.", "action": "mark", "action_input": {{"line": "{line}"}}}}
      - reply: {{"thought": "FINAL ANSWER: otherwise", "action": null}}
tools: [mark]
people: {{unattended: true}}
"""


def talk(name: str) -> AgentTask:
    """A run of three steps that leaves two marks."""
    replies = (act("mark", line=f"{name}-1"), act("mark", line=f"{name}-2"), final("both"))
    return task(*replies, tools=("mark",), agent=name)


def agent_file(folder: Path, line: str, machine: str = "react") -> str:
    """Another agent, which answers otherwise."""
    path = folder / "careful.yaml"
    path.write_text(AGENT.format(line=line, machine=machine))
    return str(path)


async def test_a_fork_goes_on_from_its_step_and_repeats_no_earlier_call(
    agents: AgentClient, settings: Settings
) -> None:
    source = await finished(agents, talk("fork-a"))
    run_id = await fork(agents, source, 2)
    result = await agents.result(run_id)
    assert (result.ok, result.answer, result.steps) == (True, "both", 3)
    assert (result.counters["model_calls"], result.counters["tool_calls"]) == (2, 1), "its ledger began at 0"
    lines = marks(settings.files_root)
    assert (lines.count("fork-a-1"), lines.count("fork-a-2")) == (1, 2)


async def test_what_a_fork_may_do_again_is_told_before_it_starts(
    agents: AgentClient, settings: Settings, tmp_path: Path
) -> None:
    source = await finished(agents, talk("fork-again"))
    lines = [[call.arguments["line"] for call in (await effects(agents, source, n)).calls] for n in range(4)]
    both = ["fork-again-1", "fork-again-2"]
    assert lines == [both, both, both[1:], []]
    again = await fork(agents, source, 2)
    await agents.result(again)
    known = await effects(agents, again, 1)
    assert ([call.arguments["line"] for call in known.calls], known.unknown) == (both, "")
    taken = await forked_task(agents, source, 2, Changes())
    assert taken.fork is not None
    other = Origin(workflow_id=source, run_id="another", step=2)
    stranger = await finished(
        agents, taken.model_copy(update={"fork": taken.fork.model_copy(update={"origin": other})})
    )
    known = await effects(agents, stranger, 1)
    assert ([call.arguments["line"] for call in known.calls], "not archived" in known.unknown) == (
        both[1:],
        True,
    ), "what another run did that has the id of the source now is none of its own"


async def test_what_a_run_did_that_only_the_archive_knows_is_told_where_it_was_archived(
    agents: AgentClient, settings: Settings
) -> None:
    source = await finished(agents, talk("fork-old"))
    again = await fork(agents, source, 2)
    await agents.result(again)
    forgetful = await elsewhere(agents, settings)
    for run in (source, again):
        for step in range(4):
            assert await effects(forgetful, run, step) == await effects(agents, run, step)
    unheard = await effects(forgetful, "never-there", 0)
    assert (unheard.calls, "not archived" in unheard.unknown) == ((), True)
    forgetful._archive = Callless(settings.data_dir / "archive.db")
    known = await effects(forgetful, source, 1)
    assert (known.calls, "the archive has its log alone" in known.unknown) == ((), True)
    toolless = await finished(agents, task(final("said")))
    assert await effects(forgetful, toolless, 1) == Effects()


async def test_what_a_child_run_has_done_so_far_is_told_before_a_fork(agents: AgentClient) -> None:
    script = (act("mark", line="fork-inside"), act("mark_once", line="fork-asked"), final("inside"))
    tools = ("mark", "mark_once")
    run_id = await agents.start(holding(*script, tools=tools, options={"mode": "child"}, **ATTENDED))
    child = (await until_true(lambda: child_at_work(agents, run_id))).child
    (asked,) = await opened(agents, child)
    at_work = await effects(agents, run_id, 0)
    (call,) = at_work.calls
    assert (call.arguments["line"], call.place.startswith(f"{child}: "), at_work.unknown) == (
        "fork-inside",
        True,
        "",
    )
    await agents.reject(child, asked.id)
    await agents.result(run_id)
    (after,) = (await effects(agents, run_id, 0)).calls
    assert (after.key, after.step, after.place) == (call.key, call.step, call.place)


async def child_at_work(agents: AgentClient, run_id: str) -> AgentStatus | None:
    """Its status once a child run is at work."""
    status = await agents.status(run_id)
    return status if status.child else None


class Callless(ArchivedRuns):
    """Of runs that ended before their calls were archived."""

    async def result(self, run_id: str) -> AgentResult | None:
        """As they were."""
        found = await super().result(run_id)
        return found and AgentResult.model_validate(found.model_dump(exclude={"calls"}))


async def test_what_a_fork_may_do_again_is_known_without_a_worker(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path / ".ratchet", files_root=tmp_path, modules=(str(TOOLS), str(MACHINES))
    )
    script = (act("mark", line="fork-in"), act("mark_once", line="fork-asked"), final("inside"))
    nested = holding(*script, tools=("mark", "mark_once"), options={"mode": "child"}, **ATTENDED)
    async with real_server(settings) as client:
        agents = Lonely(client, ArchivedRuns(settings.data_dir / "archive.db"), where="here")
        async with build_worker(client, settings):
            source = await finished(agents, talk("fork-alone"))
            outer = await agents.start(nested)
            await until_true(lambda: asks_inside(agents))
        found = await effects(agents, source, 2)
        assert ([call.arguments["line"] for call in found.calls], found.unknown) == (["fork-alone-2"], "")
        found = await effects(agents, outer, 0)
        assert ([call.arguments["line"] for call in found.calls], found.unknown) == (["fork-in"], "")


async def asks_inside(agents: AgentClient) -> bool:
    """A child run waits for a person, as lists tell it."""
    return any(line.waiting for line in await agents.list(running=True))


async def test_a_fork_remembers_where_it_comes_from_and_shows_its_source_s_records(
    agents: AgentClient,
) -> None:
    source = await finished(agents, talk("fork-b"))
    run_id = await fork(agents, source, 3, new_id="fork-b-again")
    result = await agents.result(run_id)
    assert run_id == "fork-b-again"
    assert result.origin is not None
    assert (result.origin.workflow_id, result.origin.step) == (source, 3)
    log, old = await agents.records(run_id, full=True), await agents.records(source, full=True)
    own = next(record for record in log if record.event == FORKED)
    assert log[: own.seq] == old[: own.seq]
    assert (own.branch, own.back_to) == (1, own.seq - 1)
    assert [record.seq for record in log] == list(range(len(log)))
    assert (await agents.result(source)).records == len(old), "the source is as it was"
    with pytest.raises(DuplicateRun):
        await fork(agents, source, 3, new_id=run_id)


@pytest.mark.parametrize("step", [0, 1, 2, 3])
async def test_a_fork_begins_with_the_snapshot_of_its_step(agents: AgentClient, step: int) -> None:
    source = await finished(agents, talk(f"fork-c{step}"))
    run_id = await fork(agents, source, step)
    await agents.result(run_id)
    before, after = await snapshot_at(agents, source, step), await snapshot_at(agents, run_id, step)
    kept = {name: value for name, value in after.context.items() if name != "trace_id"}
    assert kept == {name: value for name, value in before.context.items() if name != "trace_id"}
    assert (after.context["trace_id"], after.state) == (run_id, before.state)
    assert after.counters.get("model_calls", 0) == 0


async def test_a_run_that_waits_for_a_person_can_be_forked_and_goes_on_waiting(agents: AgentClient) -> None:
    source = await agents.start(waiting_task())
    (asked,) = await opened(agents, source)
    run_id = await fork(agents, source, 3)
    (again,) = await opened(agents, run_id)
    assert (again.tool, again.arguments, again.run) == (asked.tool, asked.arguments, run_id)
    assert again.digest != asked.digest, "an approval of the one releases nothing in the other"
    await agents.reject(run_id, again.id)
    assert [request.id for request in await agents.requests(source)] == [asked.id]
    await agents.abort(source)


async def test_goal_and_settings_of_a_fork_may_be_others(agents: AgentClient) -> None:
    source = await finished(agents, talk("fork-d"))
    changes = Changes(goal="try it in another way", settings=("limits.model_calls=1", "max_steps=9"))
    made = await forked_task(agents, source, 2, changes)
    assert (made.goal, made.limits.model_calls, made.options) == (
        "try it in another way",
        1,
        {"max_steps": 9},
    )
    run_id = await agents.start(made)
    assert (await agents.result(run_id)).exit_reason == "limit"
    said = [message.content for message in await agents.transcript(run_id)]
    assert "try it in another way" in said
    assert "try it" not in said


async def test_a_changed_agent_goes_on_with_what_was_done(
    agents: AgentClient, settings: Settings, tmp_path: Path
) -> None:
    source = await finished(agents, talk("fork-e"))
    run_id = await fork(agents, source, 2, changes=Changes(agent=agent_file(tmp_path, "fork-e-new")))
    result = await agents.result(run_id)
    assert (result.agent, result.answer) == ("careful", "otherwise")
    lines = marks(settings.files_root)
    assert (lines.count("fork-e-1"), lines.count("fork-e-2"), lines.count("fork-e-new")) == (1, 1, 1)


async def test_another_machine_is_refused_with_what_cannot_change(
    agents: AgentClient, tmp_path: Path
) -> None:
    source = await finished(agents, talk("fork-f"))
    with pytest.raises(UsageError, match=r"ran on the machine react .version 1.*careful has tools"):
        await fork(agents, source, 2, changes=Changes(agent=agent_file(tmp_path, "x", "tools")))
    with pytest.raises(UsageError, match="Machine, machine version and material"):
        await fork(agents, source, 2, changes=Changes(settings=("version='7'",)))


async def test_a_step_that_is_not_there_is_refused_before_anything_starts(agents: AgentClient) -> None:
    source = await finished(agents, talk("fork-g"))
    with pytest.raises(UsageError, match="no step 4 to go back to; it has steps 0 to 3"):
        await fork(agents, source, 4, new_id="never-started")
    with pytest.raises(UnknownRun):
        await agents.describe("never-started")


async def test_settings_that_make_no_sense_are_refused_by_name(agents: AgentClient) -> None:
    source = await finished(agents, talk("fork-h"))
    with pytest.raises(UsageError, match=r"--set limits\.tokens=many"):
        await fork(agents, source, 2, changes=Changes(settings=("limits.tokens=many",)))
    with pytest.raises(UsageError, match=r"--set max_steps=-3: options\.max_steps: "):
        await fork(agents, source, 2, changes=Changes(settings=("max_steps=-3",)))
    with pytest.raises(UsageError, match=r"options\.max_stepz: .*did you mean `max_steps`"):
        await fork(agents, source, 2, changes=Changes(settings=("max_stepz=3",)))


async def test_a_fork_of_a_fork_and_of_a_rolled_back_run_go_on_from_what_holds_there(
    agents: AgentClient, settings: Settings
) -> None:
    source = await agents.start(waiting_task())
    await opened(agents, source)
    await agents.rollback(source, 2)
    (request,) = await opened(agents, source)
    first = await fork(agents, source, 3)
    await opened(agents, first)
    second = await fork(agents, first, 2)
    await opened(agents, second)
    lines = await checkpoints_of(agents, second)
    assert [(line.step, line.branch) for line in lines if line.held] == [(0, 0), (1, 0), (2, 2), (3, 2)]
    context = timeless((await snapshot_at(agents, second, 3)).context, ERA)
    expected = timeless((await snapshot_at(agents, source, 3)).context, ERA)
    assert context["steps"] == expected["steps"]
    assert request.run == source
    for run in (source, first, second):
        await agents.abort(run)


async def test_a_run_that_only_the_archive_knows_is_forked_with_its_task_or_with_an_agent(
    agents: AgentClient, settings: Settings, tmp_path: Path
) -> None:
    source = await finished(agents, talk("fork-i"))
    forgetful = await elsewhere(agents, settings)
    made = await forked_task(forgetful, source, 2, Changes())
    assert made == await forked_task(agents, source, 2, Changes())
    forgetful._archive = Taskless(settings.data_dir / "archive.db")
    with pytest.raises(RatchetError, match="name it with --agent"):
        await forked_task(forgetful, source, 2, Changes())
    changes = Changes(agent=agent_file(tmp_path, "fork-i-new"))
    with pytest.raises(RatchetError, match="give it with --goal"):
        await forked_task(forgetful, source, 2, changes)
    made = await forked_task(forgetful, source, 2, Changes(agent=changes.agent, goal="try it"))
    assert (await agents.result(await agents.start(made))).answer == "otherwise"


def test_a_fork_without_changes_has_the_task_of_its_source() -> None:
    everything: dict[str, Any] = {
        "limits": Limits(model_calls=None, tokens=5), "options": {"max_steps": 3}, "instructions": "be kind",
        "visibility": "state", "values": {"a": 1}, "machine_version": "1",
    }  # fmt: skip
    given = [task(final("x"), **everything), waiting_task()]
    for path in shipped_agents():
        agent, _ = Choice(agent=str(path)).finish()
        if not agent.modules:  # its machine is not loaded here
            given.append(agent.task("the goal"))
    for one in given:
        source = Source.of("a-run", "its-id", one, ())
        made = changed(source, Changes())
        assert made == one.model_copy(update={"machine_version": made.machine_version})


async def test_other_machines_can_be_forked_too(agents: AgentClient) -> None:
    handle: Any = await SIMPLE["simple-finish"](agents.temporal)
    await handle.result()
    run_id = await fork(agents, handle.id, 2)
    result = await agents.result(run_id)
    assert (result.machine, result.ok, result.counters["model_calls"]) == ("simple", True, 1)
    source = await source_of(agents, run_id)
    assert source.task is not None
    assert source.task.models["default"] == scripted().model_copy(
        update={"script": source.task.models["default"].script}
    )


async def test_nobody_is_asked_for_a_fork_that_no_worker_takes_and_a_refusal_is_told(
    agents: AgentClient, settings: Settings
) -> None:
    source = await finished(agents, talk("fork-there"))
    address = agents.temporal.service_client.config.target_host
    modules = json.dumps([str(TOOLS)])

    async def fork_there(*words: str) -> subprocess.CompletedProcess[str]:
        told = ("fork", source, "--step", "1", "--address", address, *words)
        return await asyncio.to_thread(run_ratchet, settings.data_dir, *told, RATCHET_MODULES=modules)

    nobody = await fork_there("--namespace", "temporal-system")
    assert (nobody.returncode, "nothing was started" in nobody.stderr) == (1, True), nobody.stderr
    assert "fork-there-1" not in nobody.stderr
    lacking = await fork_there("--yes", "--detach", "--id", "fork-lacking", "--agent", "payments")
    assert (lacking.returncode, lacking.stdout) == (1, ""), lacking.stderr
    assert "run fork-lacking was refused, so nothing was done" in lacking.stderr
    assert "transfer.py: start that worker with `ratchet dev --agent FILE`" in lacking.stderr
