"""A run that goes round in circles: the model is told once, then people are asked, then the run ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from activities.contracts import AskModel, CodeStepped, ModelReplied, RunCode, ToolResult
from tests.machines import code_scripts, contract_scripts, staged_scripts
from tests.machines.answers import call, calls, replied
from tests.machines.play import tool
from tests.people.bench import Bench
from workflows.api import AgentTask
from workflows.gate.stuck import StuckSettings
from workflows.hosts import CallSite, HostCall
from workflows.hosts.memory import LocalRuns
from workflows.people import People, RequestSettings

ALONE, STOPS = People(unattended=True), People(on_stuck="stop")
TOLD = 'You are going round in circles: look(x="a") was called 5 times with the same result'


def circling(until: str = "") -> Any:
    """A model that looks at the same thing until it hears this."""

    def reply(call: AskModel) -> str:
        return "answer other" if until and any(until in said.content for said in call.say) else "tools look a"

    return reply


def told(bench: Bench) -> int:
    """How often the model was told."""
    said = bench.drive.run.suspension.snapshot.conversation
    return sum(TOLD in message.content for message in said if message.role == "user")


async def test_model_that_is_told_finds_another_way() -> None:
    async with Bench(circling("round in circles")) as bench:
        assert (bench.result.exit_reason, bench.result.answer) == ("answered", "other")
        assert (told(bench), bench.begun) == (1, (6, 5))
        assert bench.record("Steered").by == "kernel"
        assert "Requested" not in bench.events


@pytest.mark.parametrize("people", [ALONE, STOPS])
@pytest.mark.parametrize("hops", [False, True])
async def test_run_without_people_ends_stuck(people: People, hops: bool) -> None:
    async with Bench(circling(), people=people, hops=hops) as bench:
        result = bench.result
        assert (result.ok, result.exit_reason, told(bench)) == (False, "stuck", 1)
        assert result.error == 'look(x="a") was called 5 times with the same result, and nothing new between'
        assert bench.begun == bench.counted == (10, 10)


async def test_people_are_asked_and_the_count_starts_anew() -> None:
    async with Bench(circling("look elsewhere")) as bench:
        request = bench.open[0]
        assert (request.kind, request.options) == ("stuck", ("resume", "finish", "abort"))
        assert request.text.startswith('The run is stuck: look(x="a") was called 5 times')
        assert bench.begun == (10, 10)
        await bench.decide("resume")
        assert told(bench) == 2
        assert len(bench.performed) > 30
        await bench.decide("resume", text="look elsewhere")
        assert (bench.result.answer, bench.open) == ("other", ())


@pytest.mark.parametrize(("verb", "exit_reason"), [("finish", "stuck"), ("abort", "aborted")])
async def test_people_may_end_it(verb: Any, exit_reason: str) -> None:
    async with Bench(circling()) as bench:
        await bench.decide(verb)
        assert bench.result.exit_reason == exit_reason
        assert bench.counted == bench.begun == (10, 10)


@pytest.mark.parametrize(
    ("at_deadline", "exit_reason"), [("reject", "stuck"), ("abort", "expired"), ("approve", None)]
)
async def test_deadline_ends_it_or_goes_on(at_deadline: Any, exit_reason: str | None) -> None:
    settings = RequestSettings(deadline_seconds=60, at_deadline=at_deadline)
    async with Bench(circling(), people=People(kinds={"stuck": settings})) as bench:
        await bench.pass_time(61)
        assert (bench.result.exit_reason if bench.over else None) == exit_reason


async def test_text_at_an_interrupt_begins_the_count_anew() -> None:
    people = People(interrupt_every=8, on_stuck="stop")
    async with Bench(circling(), people=people) as bench:
        assert told(bench) == 1
        await bench.decide("resume", text="go on")
        assert (told(bench), bench.open[0].kind) == (2, "interrupt")


async def test_persons_message_takes_the_request_back() -> None:
    async with Bench(circling("look elsewhere")) as bench:
        await bench.command("steer", text="look elsewhere")
        assert bench.result.answer == "other"
        assert bench.record("Withdrawn").about["kind"] == "stuck"


async def test_rollback_begins_the_count_anew() -> None:
    async with Bench(circling()) as bench:
        begun = len(bench.performed)
        await bench.command("rollback", step=1)
        assert bench.open[0].kind == "stuck"
        assert len(bench.performed) == 2 * begun  # known calls are new again


async def test_nobody_watches_where_the_agent_says_so() -> None:
    async with Bench(circling(), stuck=None, limits={"model_calls": 40}, people=ALONE) as bench:
        assert (bench.result.exit_reason, told(bench)) == ("limit", 0)


async def test_inner_run_is_watched_by_itself() -> None:
    def reply(call: AskModel) -> str:
        newest = call.say[-1].content
        if newest == "begin":
            return "child inner"
        return (
            "tools look a" if newest in ("inner", "ok look a") or "circles" in newest else f"answer {newest}"
        )

    async with Bench(reply, people=ALONE, stuck=StuckSettings(repeats=2)) as bench:
        child = next(iter(bench.children.values()))
        assert child.result.exit_reason == "stuck"
        assert bench.result.exit_reason == "answered"


def stage(asked: AskModel) -> ModelReplied:
    """The three stages of a pass."""
    if asked.label.startswith("think"):
        return staged_scripts.thinks("tool")
    acts = asked.label.startswith("act")
    return calls(call("tool", q="x")) if acts else staged_scripts.observed(need_loop=True)


ACT = {"thought": "I look", "action": "tool", "action_input": {"q": "x"}}
SIMPLE = {"action": "tool", "params": {"q": "x"}}
MACHINES: dict[str, tuple[dict[str, Any], Callable[[AskModel], ModelReplied]]] = {
    "react": ({}, lambda _: replied(json.dumps(ACT))),
    "tools": ({"max_iterations": 40}, lambda _: calls(call("tool", q="x"))),
    "code": ({"max_iterations": 40}, lambda _: code_scripts.block("look()")),
    "staged": ({"max_iterations": 40}, stage),
    "planner": ({"mode": "simple", "max_iterations": 40}, lambda _: replied(json.dumps(SIMPLE))),
    "contract": ({"slots": [contract_scripts.WIDE]}, lambda _: contract_scripts.call("answer")),
}
"""Options, and a model that always wants the same."""


@pytest.mark.parametrize("name", MACHINES)
async def test_every_machine_is_told_and_then_stopped(name: str) -> None:
    options, model = MACHINES[name]
    asked: list[str] = []

    def perform(one: HostCall, site: CallSite) -> Any:
        if isinstance(one, AskModel):
            asked.append(" ".join(message.content for message in (*site.conversation, *one.say)))
            return model(one)
        if isinstance(one, RunCode):
            return CodeStepped(session="s", printed="nothing")
        return ToolResult(id=getattr(one, "id", ""), tool="tool", output="the same")

    given = {"goal": "find out", "machine": name, "tools": ("tool",), "options": options}
    outcome = await LocalRuns({"tool": tool("tool")}).run(AgentTask.model_validate(given), perform)
    assert (outcome.result.exit_reason, outcome.result.ok) == ("stuck", False)
    assert [record.event for record in outcome.records].count("Steered") == 1
    assert "You are going round in circles" in asked[-1]
