"""Machines inside machines: in memory for every pair, on the server where Temporal's part matters."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from activities.extensions import load_modules
from activities.settings import Settings
from activities.store.archive import Archive
from tests.machines import code_scripts, contract_scripts, staged_scripts
from tests.machines.answers import calls as asks_for
from tests.machines.answers import ran, replied
from tests.machines.play import tool
from tests.server.conftest import OUTER_MACHINE
from tests.server.fakes import FakeWorld, Scenario, play
from tests.server.trials import (
    Run,
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
from workflows import registry
from workflows.api import AgentTask, RunResult
from workflows.hosts.memory import LocalOutcome
from workflows.people import Approvals, People


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """The user's machine is known in memory, too."""
    for module in load_modules([str(OUTER_MACHINE)]):
        registry.add_module(module)


# -- every pair, in memory --

LOOK = tool("look")
Inner = tuple[str, dict[str, Any], tuple[Any, ...]]
"""Name, options, and a script that ends with the answer 42."""
INNER: dict[str, Inner] = {
    "react": ("react", {}, (replied(json.dumps({"thought": "FINAL ANSWER: 42", "action": None})),)),
    "tools": ("tools", {}, (asks_for("look"), ran("found"), replied("42"))),
    "code": ("code", {"max_depth": 2}, (replied("FINAL(42)"),)),
    "staged": ("staged", {}, (staged_scripts.NOTHING, staged_scripts.ANSWER)),
    "planner": (
        "planner",
        {"mode": "simple"},
        (replied(json.dumps({"action": "finish", "params": {"answer": "42"}})),),
    ),
    "contract": (
        "contract",
        {"slots": []},
        (contract_scripts.say("complete", "exit", completion_summary="42"),),
    ),
    "nester": (
        "nester",
        {"inner": [{"machine": "tools", "goal": "inside", "give": ["look"]}]},
        (replied("42"),),
    ),
}


def of_user(inner: Inner) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """A user's machine runs it."""
    name, options, script = inner
    given = {"machine": name, "goal": "inside", "options": options, "give": ["look"]}
    return {"machine": "nester", "options": {"inner": [given]}}, script


def of_staged(inner: Inner) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """It is a stage."""
    name, options, script = inner
    stage = {
        "name": "inner",
        "flow_type": "machine",
        "enters": "Asking",
        "exits": ["Observing"],
        "machine": name,
        "options": options,
        "tools": ["look"],
        "writes": ["extensions"],
    }
    stages = [stage, *staged_scripts.stages(think=None, act=None, observe={"exits": ["Finished"]})]
    return {"machine": "staged", "options": {"stages": stages}}, (*script, staged_scripts.ANSWER)


def of_code(inner: Inner) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """A sub-query is a run of it."""
    name, options, script = inner
    nested = {"policy": "always", "machine": name, "options": options}
    asks = (code_scripts.block("llm_query('inside')"), code_scripts.calls("llm_query", "inside"))
    return {"machine": "code", "options": {"nested": nested}}, (
        *asks, *script, code_scripts.ended("42"), replied("FINAL(42)"),
    )  # fmt: skip


Outer = Callable[[Inner], tuple[dict[str, Any], tuple[Any, ...]]]


async def in_memory(given: dict[str, Any], *script: Any, exit_reason: str = "ran") -> LocalOutcome:
    """A run in memory over these answers."""
    whole = AgentTask.model_validate({"goal": "outside", "tools": ["look"], **given})
    scenario = Scenario("children", whole, (LOOK,), script, exit_reason)
    return await play(scenario, "outer", FakeWorld())


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER.keys())
@pytest.mark.parametrize("outer", [of_user, of_staged, of_code])
async def test_every_machine_runs_inside_every_other(outer: Outer, inner: Inner) -> None:
    given, script = outer(inner)
    outcome = await in_memory(given, *script)
    assert outcome.ok
    assert "42" in (outcome.answer or "")
    asked = [call for call in script if getattr(call, "kind", "") == "model_replied"]
    assert outcome.result.counters["model_calls"] == len(asked)
    inner_calls = [one.site.key for one in outcome.calls if one.site.key.startswith("outer/outer/")]
    assert inner_calls, "the inner run has ids of its own"


# -- limits, depth, roles and tools, in memory --


def nested(*inner: dict[str, Any], together: bool = False, **more: Any) -> dict[str, Any]:
    """A task of the user's machine over these inner machines."""
    whole = [
        {"machine": "tools", "goal": f"inside {n}", "give": ["look"], **one} for n, one in enumerate(inner)
    ]
    return {"machine": "nester", "options": {"inner": whole, "together": together}, **more}


async def test_inner_run_gets_what_limits_leave() -> None:
    """Two inner runs of two model calls each; three are allowed. The second meets the limit."""
    one = (asks_for("look"), ran("found"), replied("42"))
    outcome = await in_memory(nested({}, {}, limits={"model_calls": 3}), *one, *one[:2])
    assert outcome.answer == "stop: 42\nlimit: None"
    assert outcome.result.counters["model_calls"] == 3


async def test_inner_run_keeps_its_own_limit() -> None:
    own = {"limits": {"tool_calls": 0}}
    outcome = await in_memory(nested(own, {}), asks_for("look"), replied("42"))
    assert outcome.answer == "limit: None\nstop: 42"


async def test_cost_of_inner_runs_is_added_once() -> None:
    outcome = await in_memory(nested({}, {}, together=True), replied("a", 0.1), replied("b", 0.2))
    assert outcome.answer == "stop: a\nstop: b"
    assert outcome.result.counters["cost_usd"] == pytest.approx(0.3)


async def test_runs_nest_no_deeper_than_allowed() -> None:
    deep: dict[str, Any] = {"machine": "tools", "goal": "bottom", "give": ["look"]}
    for _ in range(2):
        deep = {"machine": "nester", "goal": "deeper", "give": ["look"], "options": {"inner": [deep]}}
    given = {"machine": "nester", "options": {"inner": [deep]}}
    outcome = await in_memory({**given, "limits": {"depth": 3}}, replied("42"))
    assert outcome.answer == "ran: ran: stop: 42"
    outcome = await in_memory({**given, "limits": {"depth": 2}})
    assert outcome.answer == "ran: ran: failed: depth_limit"


async def test_inner_run_has_only_the_tools_that_it_is_given() -> None:
    acts = {"thought": "I look", "action": "look", "action_input": {}}
    ends = {"thought": "FINAL ANSWER: 42", "action": None}
    script = (replied(json.dumps(acts)), replied(json.dumps(ends)))
    outcome = await in_memory(nested({"machine": "react", "give": []}), *script)
    assert (outcome.answer, outcome.tool_calls) == ("goal_achieved: 42", ())
    assert (await in_memory(nested({"give": ["hammer"]}))).answer == "failed: inner_machine"


# -- on the server --


def outer_task(*inner: dict[str, Any], together: bool = False, **more: Any) -> AgentTask:
    """The same for the real worker: each inner run gets the script's replies from its first."""
    given = [{"machine": "tools", "goal": "inside", "give": ["mark", "mark_once"], **one} for one in inner]
    models = {"default": scripted(calls(("mark", {"line": "in", "seconds": 0.3})), "inside")}
    return task(
        **{
            "machine": "nester",
            "tools": ("mark", "mark_once"),
            "options": {"inner": given, "together": together},
            "models": models,
            **more,
        }
    )


def inner_run(client: Client, run: Run, number: int = 0, together: bool = False) -> Run:
    """One of the inner runs."""
    place = f"run#1:{0 if together else number}{f'.{number}' if together else ''}"
    name = f"{run.id}/{str(run.result_run_id)[:8]}/{place}"
    return client.get_workflow_handle(name, result_type=RunResult)


async def under_way(client: Client, run: Run) -> Run:
    """The inner run, once it makes its call."""
    await until(run, lambda status: bool(status.children))
    child = inner_run(client, run)
    await until(child, lambda status: status.doing.startswith("calling mark"))
    return child


async def test_siblings_run_side_by_side_and_count_once(working: Client, settings: Settings) -> None:
    run = await begin(working, outer_task({}, {}, {}, together=True))
    result = await run.result()
    assert result.answer == "\n".join(["stop: inside"] * 3)
    assert (result.counters["model_calls"], result.counters["tool_calls"]) == (6, 3)
    assert sorted(call.activity_id.split(":")[1] for call in result.calls) == ["0.0", "0.1", "0.2"]
    kinds = [event.event_type for event in (await run.fetch_history()).events]
    began = EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED
    ended = EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED
    assert kinds.count(began) == 3
    assert max(n for n, kind in enumerate(kinds) if kind == began) < kinds.index(ended)
    await replayed(run, settings)
    await replayed(inner_run(working, run, 1, together=True), settings)


async def test_inner_run_asks_model_of_the_role_it_is_given(working: Client) -> None:
    models = {"default": scripted("from default"), "other": scripted("from other")}
    run = await begin(working, outer_task({}, {"roles": {"default": "other"}}, models=models))
    assert (await run.result()).answer == "stop: from default\nstop: from other"


async def test_pause_and_resume_reach_the_inner_run(working: Client, settings: Settings) -> None:
    models = {"default": scripted(calls(("mark", {"line": "in", "until": "paused"})), "inside")}
    run = await begin(working, outer_task({}, people=People(), models=models))
    child = await under_way(working, run)
    assert child.id in (await command(run, "pause")).text
    (settings.files_root / "paused").touch()
    await until(child, lambda status: status.waiting == "paused" and status.doing.startswith("ask"))
    await command(run, "resume")
    assert (await run.result()).answer == "stop: inside"
    assert "Paused" in [record.event for record in await log_of(child)]
    await replayed(run, settings)


async def test_pause_arriving_as_one_inner_run_ends_reaches_the_other(
    temporal: Client, settings: Settings
) -> None:
    """To a worker that keeps no run in memory Temporal tells both at once."""
    slow = scripted(calls(("mark", {"line": "slow", "until": "told"})), "inside")
    models = {"default": scripted("quick"), "other": slow}
    given = outer_task({}, {"roles": {"default": "other"}}, together=True, models=models)
    forgetful = settings.model_copy(update={"max_cached_runs": 0})
    async with build_worker(temporal, forgetful, "forgetful"):
        run = await begin(temporal, given, task_queue="forgetful")
        other = inner_run(temporal, run, 1, together=True)
        await until(run, lambda status: status.children == (other.id,))
        done = await command(run, "pause", at_once=True)
        (settings.files_root / "told").touch()
        await command(run, "resume")
        await run.result()
    assert done.text.endswith(f"Told its inner runs: {other.id}.")
    kept = Archive(settings.archive_file).records(other.id)
    assert [one["event"] for one in kept if "ann" in str(one.get("by"))] == ["Paused", "Resumed"]
    await replayed(run, settings)


async def test_run_cancelled_while_inner_runs_are_paused_has_its_result(
    temporal: Client, settings: Settings
) -> None:
    """Both messages came while no worker ran, so the pause is handed down as the run is cancelled."""
    slow = {"default": scripted(calls(("mark", {"line": "slow", "seconds": 30})), "inside")}
    given = outer_task({}, {}, together=True, models=slow, people=People())
    async with build_worker(temporal, settings, "away"):
        run = await begin(temporal, given, task_queue="away")
        await until(run, lambda status: len(status.children) == 2)
    await run.signal("command", {"command": "pause", "by": "ann"})
    await run.cancel()
    async with build_worker(temporal, settings, "away"):
        result = await run.result()
        kept = Archive(settings.archive_file).records(run.id)
        assert (result.exit_reason, result.archived, len(kept)) == ("cancelled", True, result.records)
        await replayed(run, settings)


@pytest.mark.parametrize("how", ["cancel", "abort", "rollback"])
async def test_inner_run_ends_when_the_outer_one_leaves_it(
    working: Client, settings: Settings, how: str
) -> None:
    slow = {"default": scripted(calls(("mark", {"line": "slow", "seconds": 30})), "inside")}
    run = await begin(working, outer_task({}, models=slow, people=People()))
    child = await under_way(working, run)
    if how == "cancel":
        await run.cancel()
    elif how == "abort":
        await command(run, "abort", text="enough")
    else:
        assert (await command(run, "rollback", step=0)).branch == 1
        await until(run, lambda status: bool(status.children) and child.id not in status.children)
        await run.cancel()
    result = await run.result()
    assert result.exit_reason == {"abort": "aborted"}.get(how, "cancelled")
    assert (await child.result()).exit_reason == "cancelled"
    assert child.id in result.calls[0].activity_id
    await replayed(run, settings)


async def test_request_of_inner_run_is_found_from_outer_one(working: Client) -> None:
    models = {"default": scripted(calls(("mark_once", {"line": "asked"})), "inside")}
    careful: dict[str, Any] = {"people": People(), "approvals": Approvals()}
    run = await begin(working, outer_task({}, models=models, **careful))
    status = await until(run, lambda status: bool(status.children))
    child: Run = working.get_workflow_handle(status.children[0], result_type=RunResult)
    request = await open_request(child, "approval")
    assert (request.run, request.tool) == (child.id, "mark_once")
    await decide(child, "reject", request, text="no")
    result = await run.result()
    assert (result.answer, result.calls) == ("stop: inside", ())


async def test_inner_runs_stay_within_the_bounds_of_the_outer_one(
    working: Client, settings: Settings
) -> None:
    both = calls(("mark_once", {"line": "in", "seconds": 0.1}), ("mark_once", {"line": "in", "seconds": 0.1}))
    at_most = {"calls": 3, "sum": {"seconds": 0.3}}
    rules = [{"tools": ["mark_once"], "ask": "never", "at_most": at_most}]
    careful: dict[str, Any] = {
        "people": People(),
        "approvals": Approvals.model_validate({"rules": rules}),
    }
    run = await begin(working, outer_task({}, {}, models={"default": scripted(both, "inside")}, **careful))
    status = await until(run, lambda status: status.children == (inner_run(working, run, 1).id,))
    assert [bound.text for bound in status.bounds] == ["3 of 3 calls", "0.3 of 0.3 seconds"]
    request = await open_request(inner_run(working, run, 1), "approval")
    assert request.bound is not None
    assert request.bound.passed_text == "rules.0 allows this inner run at most 1 call unasked; 1 made"
    await decide(inner_run(working, run, 1), "reject", request, text="no")
    result = await run.result()
    assert [bound.text for bound in result.bounds] == ["3 of 3 calls", "0.3 of 0.3 seconds"]
    assert len(result.calls) == 3
    await replayed(run, settings)


async def test_terminated_inner_run_is_an_unknown_outcome(working: Client, settings: Settings) -> None:
    slow = {"default": scripted(calls(("mark", {"line": "gone", "seconds": 30})), "inside")}
    run = await begin(working, outer_task({}, models=slow))
    child = await under_way(working, run)
    await child.terminate("somebody did")
    result = await run.result()
    assert result.answer == "failed: TerminatedError"
    assert [(call.activity_id, call.effect) for call in result.calls] == [(child.id, "unsafe")]
    assert "unknown" in str(result.calls[0].error)
    await replayed(run, settings)


async def test_inner_run_that_raises_is_one_that_failed(working: Client, settings: Settings) -> None:
    models = {"default": scripted(calls(("saw", {})))}
    run = await begin(working, outer_task({}, models=models))
    result = await run.result()
    assert (result.ok, result.answer) == (True, "failed: None")
    assert result.counters["model_calls"] == 1
    await replayed(run, settings)


async def test_cancelled_run_waits_for_inner_runs_that_are_being_started(
    working: Client, settings: Settings
) -> None:
    slow = {"default": scripted(calls(("mark", {"line": "slow", "seconds": 30})), "inside")}
    run = await begin(working, outer_task(*[{}] * 10, together=True, models=slow))
    tasks = 0
    async for event in run.fetch_history_events(wait_new_event=True):
        tasks += event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED
        if tasks == 2:  # the one that starts them
            break
    await run.cancel()
    assert (await run.result()).exit_reason == "cancelled"
    kinds = [EventType.Name(event.event_type) for event in (await run.fetch_history()).events]
    ends = [kind for kind in kinds if kind.startswith("EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_")]
    assert len(ends) == 2 * kinds.count("EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED")
    await replayed(run, settings)


async def test_label_of_an_inner_runs_call_comes_up(working: Client) -> None:
    """Its specs are known since its first reply alone."""
    run = await begin(working, outer_task({}, {"goal": "again"}))
    result = await run.result()
    child = inner_run(working, run)
    assert [(one.tool, one.run) for one in (await child.result()).labels] == [("mark", "")]
    assert [(one.tool, one.run) for one in result.labels] == [("mark", child.id)]
    second = inner_run(working, run, 1)
    assert [one.run for one in (await second.result()).labels] == [child.id]
