"""Runs without Temporal: what a user's test of an own agent looks like, and the rules of spec 1.8."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from activities.contracts import (
    ArtifactRead,
    AskModel,
    CallTools,
    Effect,
    EffectFailed,
    Message,
    ReadArtifacts,
    ToolRun,
    do,
)
from activities.settings import Settings
from activities.tools import Tool, TransientError
from client.agentfile import load_agent
from client.local import Asked, Local, Position, ScriptedModel, every, tool_call
from tests.people import clerk
from tests.people.bench import brain
from workflows.api import AgentSpec, Limits
from workflows.kernel.errors import UndeclaredAccess
from workflows.kernel.machine import Machine, Run, Visit, state
from workflows.local import stored_context
from workflows.people import Approvals, Command, Request
from workflows.task import InvalidTask


class Words(BaseModel, frozen=True, extra="forbid"):
    """Look at something."""

    x: str = Field(max_length=20)


LOOK = Tool(name="look", params=Words, run=lambda p: f"saw {p.x}", effect="read")
PAY = Tool(name="pay", params=Words, run=lambda p: f"paid {p.x}")
CLERK = AgentSpec(name="clerk", machine="clerk", tools=("look", "pay"))
SCRIPT = ["tools look a", "tools look b", "answer c"]


def local(*script: Any, agent: AgentSpec = CLERK, **more: Any) -> Local:
    """The clerk with both tools."""
    return Local(agent, model=ScriptedModel(script), tools=[LOOK, PAY], **more)


# -- a user's test --------------------


def test_user_tests_agent_in_ten_lines() -> None:
    model = ScriptedModel(["tools look a", "answer done"])
    outcome = Local(clerk.MACHINE, model=model, tools=[LOOK]).run_sync("begin")
    outcome.raise_if_failed()
    assert (outcome.ok, outcome.answer, outcome.state) == (True, "done", "done")
    assert outcome.tool_calls == (("look", {"x": "a"}),)
    assert [asked.text for asked in model.asked] == ["begin", "ok saw a"]
    assert outcome.states == ("think", "work", "think", "done")


class Place(BaseModel, frozen=True, extra="forbid"):
    """Make a file empty."""

    path: Path


@pytest.mark.parametrize("tool", ["write_file", "empty"])
def test_rule_on_a_folder_judges_the_path_that_is_opened(tmp_path: Path, tool: str) -> None:
    """With the rule of the shipped agent; the tool is a shipped one, or a user's."""
    empty = Tool(name="empty", params=Place, run=lambda p, call: (call.files_root / p.path).write_text("x"))
    rule = load_agent("assistant").approvals.rules[0].model_copy(update={"tools": (tool,)})
    agent = AgentSpec(
        machine="tools", tools=(tool,), approvals=Approvals(rules=(rule,), tools={tool: "always"})
    )
    more = {"content": "x"} if tool == "write_file" else {}
    paths = ("reports/../outside.txt", "reports/a/../../outside.txt", "outside.txt", "./reports//in.txt")
    model = ScriptedModel([*(tool_call(tool, path=path, **more) for path in paths), "done"])
    (tmp_path / "reports").mkdir()
    local = Local(agent, model=model, tools=[empty], settings=Settings(files_root=tmp_path))
    outcome = local.run_sync("go")
    assert outcome.ok
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in.txt", "reports"]
    assert outcome.tool_calls[-1][1]["path"] == "reports/in.txt"
    assert ["`..`" in asked.text for asked in model.asked] == [False, True, True, False, False]


async def test_tools_have_their_schemas_attempts_and_caps() -> None:
    failures = [TransientError("busy"), TransientError("busy")]

    def flaky(params: Words) -> str:
        if failures:
            raise failures.pop()
        return "long " * 10_000

    tool = Tool(name="look", params=Words, run=flaky, effect="read")
    model = ScriptedModel(
        [f"tools look {'a' * 21}", "tools look b", lambda asked: f"answer {len(asked.text)}"]
    )
    outcome = await Local(clerk.MACHINE, model=model, tools=[tool]).run("begin")
    assert model.asked[1].text.startswith("bad_arguments")
    assert len(outcome.tool_calls) == 1
    assert 10_000 < int(outcome.answer or "") < 20_000
    assert not failures


async def test_script_that_is_too_short_names_the_question() -> None:
    with pytest.raises(AssertionError, match="ok saw a"):
        await local("tools look a").run("begin")


async def test_failed_model_call_is_the_machines_business() -> None:
    failure = EffectFailed(error="fatal", type="HTTP401", message="no key")
    outcome = await local(failure).run("begin")
    assert (outcome.ok, outcome.result.exit_reason) == (False, "failed")


async def test_unknown_tool_and_machine_are_named() -> None:
    with pytest.raises(ValueError, match="dig"):
        local(agent=AgentSpec(machine="clerk", tools=("dig",)))
    with pytest.raises(InvalidTask, match="klerk"):
        await local(agent=AgentSpec(machine="klerk")).run("begin")


async def test_broken_rule_raises_on_request() -> None:
    greedy = state(clerk.S.THINK, writes={"todo"}, counts="steps")(
        lambda c, run: ({"answer": "mine"}, clerk.Finished())
    )
    machine = Machine(
        name="greedy", options=clerk.Options, context=clerk.Notes, begin=clerk.begin, initial=clerk.S.THINK,
        table={clerk.S.THINK: {clerk.Finished: clerk.S.DONE}}, states=[greedy], result=clerk.result,
    )  # fmt: skip
    outcome = await Local(machine, model=ScriptedModel([])).run("begin")
    assert outcome.result.exit_reason == "broken_rule"
    assert outcome.records[-1].error == outcome.records[-1].reason
    assert str(outcome.result.error).endswith(outcome.records[-1].reason)
    with pytest.raises(UndeclaredAccess, match="answer"):
        outcome.raise_if_failed()


async def test_limit_of_seconds_ends_a_model_that_hangs() -> None:
    async def hang(asked: object) -> str:
        await asyncio.sleep(3600)
        return ""

    agent = CLERK.model_copy(update={"limits": Limits(seconds=0.05)})
    outcome = await Local(agent, model=hang, tools=[LOOK, PAY]).run("begin")
    assert outcome.result.exit_reason == "limit"


async def test_cancelled_test_cancels_the_run() -> None:
    async def hang(asked: object) -> str:
        await asyncio.sleep(3600)
        return ""

    task = asyncio.create_task(Local(CLERK, model=hang, tools=[LOOK, PAY]).run("begin"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- shipped machines and agent files --------------------


async def test_agent_file_brings_its_tools(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(
        "from pydantic import BaseModel\n"
        "from activities.tools import Tool\n"
        "class Text(BaseModel):\n"
        '    """Count the words of a text."""\n'
        "    text: str\n"
        'TOOL = Tool(name="word_count", params=Text, run=lambda p: str(len(p.text.split())), effect="pure")\n'
    )
    (tmp_path / "agent.yaml").write_text(
        "machine: tools\ntools: [word_count, calculator]\nmodules: [counting.py]\n"
    )
    model = ScriptedModel([tool_call("word_count", text="a b c"), lambda asked: f"There are {asked.text}."])
    outcome = await Local(load_agent(tmp_path / "agent.yaml"), model=model).run("Count the words of a b c.")
    assert outcome.answer == "There are 3."
    assert set(model.asked[0].tools) == {"word_count", "calculator"}


async def test_code_runs_in_the_sandbox() -> None:
    model = ScriptedModel(["```repl\nx = sum(range(10))\nFINAL_VAR(x)\n```"])
    outcome = await Local(AgentSpec(machine="code"), model=model).run("Add them up.")
    assert outcome.answer == "45"


def keeper() -> Machine:
    """Run a tool, ask the model, and read back from the store what the tool returned."""

    def keep(c: clerk.Notes, run: Run) -> Visit:
        run_look = ToolRun(id="1", tool="look", arguments={"x": "a"})
        returned = yield from do(CallTools(runs=(run_look,)))
        yield from do(AskModel(say=(Message(role="user", content=run.input.goal),)))
        read = ArtifactRead(digest=returned.results[0].whole or "")
        found = yield from do(ReadArtifacts(reads=(read,), chars=10))
        return {"answer": found.texts[0].text}, clerk.Finished()

    asks: set[type[Effect[Any]]] = {AskModel, CallTools, ReadArtifacts}
    return Machine(
        name="keeper", options=clerk.Options, context=clerk.Notes, begin=clerk.begin, initial=clerk.S.THINK,
        table={clerk.S.THINK: {clerk.Finished: clerk.S.DONE}}, result=clerk.result,
        states=[state(clerk.S.THINK, asks=asks, writes={"answer"}, counts="steps")(keep)],
    )  # fmt: skip


async def test_runs_at_once_keep_their_own_stores() -> None:
    asked_slowly, other_is_over = asyncio.Event(), asyncio.Event()

    async def model(asked: Asked) -> str:
        if asked.text == "slow":
            asked_slowly.set()
            await other_is_over.wait()
        return "go on"

    tool = Tool(name="look", params=Words, run=lambda p: "long " * 10_000, effect="read")
    agent = Local(keeper(), model=model, tools=[tool])
    slow = asyncio.create_task(agent.run("slow"))
    await asked_slowly.wait()
    other = await agent.run("quick")
    other_is_over.set()
    assert ((await slow).answer, other.answer) == ("long long ", "long long ")


# -- people --------------------


async def test_person_decides_on_calls() -> None:
    asked: list[Request] = []

    def decide(request: Request) -> str:
        asked.append(request)
        return "approve"

    outcome = await local("tools pay 3", "answer b", decide=decide).run("begin")
    assert [(one.kind, one.tool, one.arguments) for one in asked] == [("approval", "pay", {"x": "3"})]
    assert outcome.tool_calls == (("pay", {"x": "3"}),)
    assert outcome.result.decisions[0].by == ("local",)


async def test_without_a_person_a_run_is_unattended() -> None:
    outcome = await local("tools pay 3", "answer b").run("begin")
    assert outcome.tool_calls == ()
    assert outcome.ok


async def test_interrupt_function_sees_each_state_before_it_is_entered() -> None:
    seen: list[Position] = []

    def watch(position: Position) -> bool:
        seen.append(position)
        return position.state == "work"

    outcome = await local(*SCRIPT, interrupt=watch, decide=lambda request: "resume").run("begin")
    assert [(one.state, one.step, one.begins_step) for one in seen] == [
        ("think", 1, True), ("work", 1, False), ("think", 2, True), ("work", 2, False), ("think", 3, True),
    ]  # fmt: skip
    assert seen[3].context.todo == "tools look b"
    assert [one.kind for one in outcome.result.decisions] == ["interrupt"] * 2


async def test_abort_at_an_interrupt_executes_nothing() -> None:
    outcome = await local(interrupt=lambda position: True, decide=lambda request: "abort").run("begin")
    assert (outcome.result.exit_reason, outcome.calls) == ("aborted", ())


async def test_rollback_goes_on_without_asking_again() -> None:
    choices: list[Any] = [Command(command="rollback", step=1), "resume"]
    script = ["tools look a", "tools look b", "tools look c", "answer d"]
    outcome = await local(
        *script, interrupt=every(1), decide=lambda request: choices.pop(0) if choices else "resume"
    ).run("begin")
    assert (outcome.answer, outcome.result.branch) == ("d", 1)
    assert [call[1]["x"] for call in outcome.tool_calls] == ["a", "b", "c"]


async def test_each_run_of_one_agent_is_interrupted() -> None:
    agent = local(*SCRIPT, *SCRIPT, interrupt=every(1), decide=lambda request: "resume")
    for _ in range(2):
        outcome = await agent.run("begin")
        assert len(outcome.result.decisions) == 2


def test_interrupt_without_a_person_is_refused() -> None:
    with pytest.raises(ValueError, match="decide"):
        local(interrupt=lambda position: True)


# -- stored runs --------------------


async def test_stored_run_is_replayed_from_a_step() -> None:
    store: dict[str, list[str]] = {}
    outcome = await local(*SCRIPT, store=store).run("begin", trace_id="t-1")
    assert stored_context(clerk.MACHINE, store, "t-1") == outcome.context
    assert stored_context(clerk.MACHINE, store, "other") is None
    again = await local("tools look z", "answer y", store=store).replay("t-1", 2, "begin")
    assert (again.answer, again.context.seen) == ("y", ("ok saw a", "ok saw z"))
    assert again.result.counters["model_calls"] == 5
    with pytest.raises(ValueError, match="No step 9"):
        await local(store=store).replay("t-1", 9, "begin")
    with pytest.raises(ValueError, match="t-1"):
        await local(store=store).replay("t-2", 1, "begin")


async def test_store_that_fails_does_not_end_the_run() -> None:
    class Broken(dict[str, list[str]]):
        def __setitem__(self, key: str, value: list[str]) -> None:
            raise OSError("disk full")

    store: MutableMapping[str, list[str]] = Broken()
    outcome = await local(*SCRIPT, store=store).run("begin", trace_id="t-1")
    assert outcome.ok
    assert "disk full" in outcome.store_errors[0]


# -- inner runs --------------------


def limited(limits: dict[str, Any], model: Any) -> Local:
    """The clerk with limits."""
    agent = CLERK.model_copy(update={"limits": Limits(**{"model_calls": None, **limits})})
    return Local(agent, model=model, tools=[LOOK, PAY])


def replies(asked: Any) -> Any:
    """A model that runs the clerk inside the clerk."""
    return brain("child inner")(asked.effect)


async def test_cost_of_an_inner_run_counts_once() -> None:
    outcome = await limited({"model_calls": 4}, replies).run("begin")
    assert outcome.answer == "inner answered ok saw i"
    assert outcome.result.counters["model_calls"] == 4


async def test_inner_run_may_spend_what_is_left() -> None:
    outcome = await limited({"model_calls": 2}, replies).run("begin")
    assert outcome.context.seen == ("inner limit None",)
    assert outcome.result.exit_reason == "limit"


async def test_inner_run_has_its_own_max_transitions() -> None:
    outcome = await local("short inner", "tools look i", "answer b").run("begin")
    assert outcome.context.seen == ("inner max_transitions None",)


async def test_depth_counts_runs_inside_runs() -> None:
    def nested(asked: Any) -> str:
        return "child deeper" if asked.text in ("begin", "deeper") else f"answer {asked.text[:60]}"

    outcome = await limited({"depth": 2}, nested).run("begin")
    assert len({call.site.key.rpartition("/")[0] for call in outcome.calls}) == 3
    assert "depth_limit" in (outcome.answer or "")
