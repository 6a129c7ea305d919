"""Runs without Temporal: what a user's test of an own agent looks like, and the rules of spec 1.8."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

import ratchet
from activities.contracts import (
    REFUSAL,
    ArtifactRead,
    AskModel,
    CallTools,
    Effect,
    EffectFailed,
    Message,
    ModelReplied,
    ReadArtifacts,
    ToolCall,
    Usage,
    do,
)
from activities.settings import Settings
from activities.tools import Tool, TransientError
from client.agents.agentfile import load_agent
from client.sdk.local import Asked, Local, Position, ScriptedModel, every, tool_call
from tests.people import any_effect
from tests.people.bench import brain
from workflows import registry
from workflows.api import AgentSpec, Limits
from workflows.hosts.memory import Unanswered
from workflows.kernel.errors import UndeclaredAccess
from workflows.kernel.machine import Machine, Run, Visit, state
from workflows.machines.react.rules import Rule
from workflows.people import ApprovalRule, Approvals, Command, Decision, People, Request, RequestSettings
from workflows.task import InvalidTask


class Words(BaseModel, frozen=True, extra="forbid"):
    """Look at something."""

    x: str = Field(max_length=20)


LOOK = Tool(name="look", params=Words, run=lambda p: f"saw {p.x}", effect="read")
PAY = Tool(name="pay", params=Words, run=lambda p: f"paid {p.x}")
ANY_EFFECT = AgentSpec(name="any_effect", machine="any_effect", tools=("look", "pay"))
SCRIPT = ["tools look a", "tools look b", "answer c"]


def local(*script: Any, agent: AgentSpec = ANY_EFFECT, **more: Any) -> Local:
    """The machine `any_effect` with both tools."""
    return Local(agent, model=ScriptedModel(script), tools=[LOOK, PAY], **more)


@pytest.mark.parametrize("machine", [machine.name for machine in registry.shipped()])
async def test_refusal_of_the_model_ends_the_run_of_any_machine(machine: str) -> None:
    refusal = ModelReplied(
        text="I cannot help with that.", finish_reason=REFUSAL, usage=Usage(input_tokens=7)
    )
    model = ScriptedModel([refusal])
    outcome = await Local(AgentSpec(machine=machine), model=model, tools=[LOOK]).run("begin")
    result = outcome.result
    assert (result.ok, result.exit_reason, result.answer) == (False, "model_refused", None)
    assert result.error == "the model refused: I cannot help with that."
    counters = result.counters
    assert (counters["model_calls"], counters["input_tokens"]) == (1, 7)


async def test_refusal_of_sub_query_is_an_error_for_block() -> None:
    refusal = ModelReplied(text="I will not.", finish_reason=REFUSAL)
    seen: list[str] = []

    def last(asked: Asked) -> str:
        seen.append(asked.messages[-1].content)
        return "FINAL(gone on)"

    model = ScriptedModel(['```repl\nprint(llm_query("x"))\n```', refusal, last])
    outcome = await Local(AgentSpec(machine="code"), model=model).run("begin")
    assert (outcome.ok, outcome.answer) == (True, "gone on")
    assert "Error: model_refused: the model refused: I will not." in seen[0]


# -- a user's test --------------------


def test_user_tests_agent_in_ten_lines() -> None:
    model = ScriptedModel(["tools look a", "answer done"])
    outcome = Local(any_effect.MACHINE, model=model, tools=[LOOK]).run_sync("begin")
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
    outcome = await Local(any_effect.MACHINE, model=model, tools=[tool]).run("begin")
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
        local(agent=AgentSpec(machine="any_effect", tools=("dig",)))
    with pytest.raises(InvalidTask, match="klerk"):
        await local(agent=AgentSpec(machine="klerk")).run("begin")


def test_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="several are called look"):
        Local(ANY_EFFECT, model=ScriptedModel([]), tools=[LOOK, PAY, LOOK])


async def test_broken_rule_raises_on_request() -> None:
    greedy = state(any_effect.S.THINK, writes={"todo"}, counts="steps")(
        lambda c, run: ({"answer": "mine"}, any_effect.Finished())
    )
    machine = Machine(
        name="greedy", options=any_effect.Options, context=any_effect.Notes, begin=any_effect.begin,
        initial=any_effect.S.THINK, table={any_effect.S.THINK: {any_effect.Finished: any_effect.S.DONE}},
        states=[greedy], result=any_effect.result,
    )  # fmt: skip
    outcome = await Local(machine, model=ScriptedModel([])).run("begin")
    assert outcome.result.exit_reason == "broken_rule"
    problem = outcome.records[-1].error
    assert problem is not None
    assert problem.startswith("the undeclared field 'answer'")
    with pytest.raises(UndeclaredAccess) as raised:
        outcome.raise_if_failed()
    assert greedy.visit is not None
    line = greedy.visit.__code__.co_firstlineno
    assert str(raised.value) == (f"greedy: in state think, {problem} ({__file__}, line {line}, in <lambda>)")


async def test_limit_of_seconds_ends_a_model_that_hangs() -> None:
    async def hang(asked: object) -> str:
        await asyncio.sleep(3600)
        return ""

    agent = ANY_EFFECT.model_copy(update={"limits": Limits(seconds=0.05)})
    outcome = await Local(agent, model=hang, tools=[LOOK, PAY]).run("begin")
    assert outcome.result.exit_reason == "limit"


async def test_cancelled_test_cancels_the_run() -> None:
    async def hang(asked: object) -> str:
        await asyncio.sleep(3600)
        return ""

    task = asyncio.create_task(Local(ANY_EFFECT, model=hang, tools=[LOOK, PAY]).run("begin"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- shipped machines and agent files --------------------


async def test_agent_file_brings_its_tools(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(
        "from pydantic import BaseModel\n"
        "from ratchet import Tool\n"
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


async def test_variable_of_a_block_brings_the_label_of_its_call() -> None:
    block = "```repl\npay(x='1')\nfound = look(x='a')\npay(x=found)\nFINAL('done')\n```"
    rules = (ApprovalRule(tools=("pay",), after=("untrusted",)), ApprovalRule(ask="never"))
    agent = AgentSpec(machine="code", tools=("look", "pay"), approvals=Approvals(rules=rules))
    tools = [
        Tool(name="look", params=Words, run=lambda p: f"pay {p.x}", effect="read"),
        Tool(name="pay", params=Words, run=lambda p: "paid", brings=()),
    ]
    asked: list[Request] = []

    def decide(request: Request) -> Decision:
        asked.append(request)
        return Decision(request=request.id, digest=request.digest, decision="approve")

    outcome = await Local(agent, model=ScriptedModel([block]), tools=tools, decide=decide).run("pay")
    assert [(request.arguments, request.holds[0][:24]) for request in asked] == [
        ({"x": "pay a"}, "untrusted text from look")
    ]
    assert outcome.ok


def keeper() -> Machine:
    """Run a tool, ask the model, and read back from the store what the tool returned."""

    def keep(c: any_effect.Notes, run: Run) -> Visit:
        run_look = ToolCall(id="1", tool="look", arguments={"x": "a"})
        returned = yield from do(CallTools(calls=(run_look,)))
        yield from do(AskModel(say=(Message(role="user", content=run.input.goal),)))
        read = ArtifactRead(digest=returned.results[0].whole or "")
        found = yield from do(ReadArtifacts(reads=(read,), chars=10))
        return {"answer": found.texts[0].text}, any_effect.Finished()

    asks: set[type[Effect[Any]]] = {AskModel, CallTools, ReadArtifacts}
    return Machine(
        name="keeper", options=any_effect.Options, context=any_effect.Notes, begin=any_effect.begin,
        initial=any_effect.S.THINK, table={any_effect.S.THINK: {any_effect.Finished: any_effect.S.DONE}},
        result=any_effect.result,
        states=[state(any_effect.S.THINK, asks=asks, writes={"answer"}, counts="steps")(keep)],
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


async def test_option_called_machine_is_the_authors_own() -> None:
    class Lathe(any_effect.Options, frozen=True):
        machine: str = "lathe"

    turner = replace(keeper(), name="turner", options=Lathe)
    tool = Tool(name="look", params=Words, run=lambda p: "long " * 10_000, effect="read")
    done = await Local(turner, tools=[tool], model=ScriptedModel(["ok"]), check_purity=False).run("x")
    assert done.result.ok


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


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (None, r"waits for r1 \(approval: May the agent call pay .* asked 1 times"),
        (Command(command="steer", text="be quick"), "asked 20 times"),
        (Command(command="pause"), "refused: The run is paused already"),
        (Command(command="rollback", step=9), "refused: No step 9"),
    ],
    ids=lambda value: getattr(value, "command", ""),
)
async def test_run_that_nobody_will_answer_raises(choice: Any, said: str) -> None:
    with pytest.raises(Unanswered, match=said):
        await local("tools pay 3", decide=lambda request: choice).run("begin")


async def test_request_is_asked_about_again_after_a_command() -> None:
    choices: list[Any] = [
        Command(command="rollback", step=9), Command(command="pause"), Command(command="resume"), "approve",
    ]  # fmt: skip
    outcome = await local("tools pay 3", "answer b", decide=lambda request: choices.pop(0)).run("begin")
    assert (outcome.answer, outcome.tool_calls, choices) == ("b", (("pay", {"x": "3"}),), [])


async def test_request_that_is_left_open_expires() -> None:
    times = count(1000.0, 10)
    agent = ANY_EFFECT.model_copy(update={"people": People(requests=RequestSettings(deadline_seconds=60))})
    given = local("tools pay 3", "answer b", agent=agent, decide=lambda _: None, now=lambda: next(times))
    outcome = await given.run("begin")
    assert [one.outcome for one in outcome.result.decisions] == ["expired"]


async def test_run_that_is_paused_for_ever_raises() -> None:
    choices: list[Any] = [Command(command="pause"), "approve"]
    with pytest.raises(Unanswered, match="is paused"):
        await local("tools pay 3", decide=lambda request: choices.pop(0)).run("begin")


async def test_each_run_of_one_agent_is_interrupted() -> None:
    agent = local(*SCRIPT, *SCRIPT, interrupt=every(1), decide=lambda request: "resume")
    for _ in range(2):
        outcome = await agent.run("begin")
        assert len(outcome.result.decisions) == 2


def test_interrupt_without_a_person_is_refused() -> None:
    with pytest.raises(ValueError, match="decide"):
        local(interrupt=lambda position: True)


# -- the parts of a run --------------------


async def test_model_knows_in_which_role_an_inner_run_asks() -> None:
    block = "```repl\nprint(llm_query('how many?'))\n```"
    model = ScriptedModel({"default": [block, "FINAL(one)"], "sub": ["FINAL(two)"]})
    outcome = await Local(
        AgentSpec(machine="code", options={"nested": "always", "max_depth": 2}), model=model
    ).run("count")
    assert (outcome.answer, model.unused) == ("one", 0)
    assert [asked.role for asked in model.asked] == ["default", "sub", "default"]


async def test_rules_policies_and_hooks_are_functions() -> None:
    rule = Rule("no_ants", "terminal", lambda step, context: "ants" if "ants" in step.thought else None)
    options = {"rules": ["no_ants"]}
    agent, thought = AgentSpec(machine="react", options=options), '{"thought": "ants everywhere"}'
    given = Local(agent, model=ScriptedModel([thought]), rules={"no_ants": lambda spec: rule})
    assert (await given.run("look")).result.exit_reason == "rule_violation"
    planned = AgentSpec(machine="planner", options={"decide": "never"})
    stops = {"never": lambda plan, state: {"continue": False}}
    outcome = await Local(planned, model=ScriptedModel(['{"goal": "x"}']), hooks=stops).run("look")
    assert outcome.result.exit_reason == "stopped"
    with pytest.raises(InvalidTask, match="never"):
        await Local(planned, model=ScriptedModel([])).run("look")


async def test_records_come_while_the_run_goes_on() -> None:
    seen: list[str] = []
    script = [*SCRIPT[:2], lambda asked: f"answer {len(seen)}"]
    outcome = await local(*script, on_record=lambda record: seen.append(record.event)).run("begin")
    assert seen == [record.event for record in outcome.records]
    assert 0 < int(outcome.answer or "") < len(seen)


async def test_run_begins_with_a_context_and_what_was_spent() -> None:
    notes = any_effect.Notes(seen=("so far",))
    outcome = await local("answer b").run("begin", context=notes)
    assert outcome.calls[0].call.say[0].content == "so far"  # type: ignore[union-attr]  # it is a question
    limits = ANY_EFFECT.model_copy(update={"limits": Limits(model_calls=5)})
    outcome = await local("answer b", agent=limits).run("begin", spent={"model_calls": 5})
    assert (outcome.result.exit_reason, outcome.calls) == ("limit", ())
    with pytest.raises(InvalidTask, match="any_effect begins with a Notes, not with a"):
        await local().run("begin", context=ratchet.Context())


async def test_run_sync_in_a_running_loop_says_await() -> None:
    with pytest.raises(RuntimeError, match=r"use `await local.run"):
        local("answer b").run_sync("begin")


# -- stored runs --------------------


async def test_stored_run_is_replayed_from_a_step() -> None:
    store: dict[str, list[str]] = {}
    await local(*SCRIPT, store=store).run("begin", trace_id="t-1")
    again = await local("tools look z", "answer y", store=store).replay("t-1", 2, "begin")
    assert (again.answer, again.context.seen) == ("y", ("ok saw a", "ok saw z"))
    assert again.result.counters["model_calls"] == 5
    with pytest.raises(ValueError, match="No step 9"):
        await local(store=store).replay("t-1", 9, "begin")
    with pytest.raises(ValueError, match="t-1"):
        await local(store=store).replay("t-2", 1, "begin")


async def test_replayed_stored_run_has_not_more_of_a_bound() -> None:
    store: dict[str, list[str]] = {}
    rule = {"tools": ["look"], "ask": "never", "at_most": {"calls": 2}}
    agent = ANY_EFFECT.model_copy(update={"approvals": Approvals.model_validate({"rules": [rule]})})
    await local("tools look a", "tools look b", "answer x", agent=agent, store=store).run("go", trace_id="t")
    again = await local("tools look c", "answer y", agent=agent, store=store).replay("t", 2, "go")
    first, second = again.context.seen
    assert first == "ok saw a"
    assert second.startswith("rejected look needs a person's approval")


async def test_store_that_fails_does_not_end_the_run() -> None:
    class Broken(dict[str, list[str]]):
        def __setitem__(self, key: str, value: list[str]) -> None:
            raise OSError("disk full")

    store: MutableMapping[str, list[str]] = Broken()
    outcome = await local(*SCRIPT, store=store).run("begin", trace_id="t-1")
    assert outcome.ok
    assert "disk full" in outcome.store_errors[0]


# -- an edited call --------------------

PAY_3 = {"action": "pay", "params": {"x": "3"}}
CALL_3 = {"tool_id": "pay", "params": {"x": "3"}, "out_artifacts_spec": [{"name": "paid"}]}
EDITS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "react": (
        {},
        [{"thought": "pay", "action": "pay", "action_input": {"x": "3"}}, "Thought: FINAL ANSWER: 1"],
    ),
    "tools": ({}, [tool_call("pay", x="3"), "done"]),
    "code": ({}, ["```repl\nprint(pay(x='3')['paid'])\n```", "FINAL(done)"]),
    "staged": (
        {},
        [{"intent": "change", "suggested_tools": ["pay"]}, tool_call("pay", x="3"), {"final_answer": "done"}],
    ),
    "planner": ({}, [{"goal": "pay"}, tool_call("pay", x="3"), "done"]),
    "planner without a plan": ({"mode": "simple"}, [PAY_3, {"action": "finish"}]),
    "contract": (
        {},
        [
            {"action": "call_tool", "strategy": "explore", "tool_call": CALL_3},
            {"action": "complete", "strategy": "exit", "completion_summary": "done"},
        ],
    ),
}
"""Machine -> options and replies of a run that wants to pay 3."""


@pytest.mark.parametrize("name", EDITS)
async def test_every_machine_tells_model_of_edit_beside_the_result(name: str) -> None:
    """The result stays JSON."""
    options, script = EDITS[name]
    model = ScriptedModel([json.dumps(one) if isinstance(one, dict) else one for one in script])
    machine = name.partition(" ")[0]
    agent = AgentSpec(machine=machine, options=options, tools=("pay",))
    tool = Tool(name="pay", params=Words, run=lambda p: {"paid": p.x})

    def edit(request: Request) -> Decision:
        changed = {"x": "2"}
        return Decision(request=request.id, digest=request.digest, decision="edit", arguments=changed)

    outcome = await Local(agent, model=model, tools=[tool], decide=edit).run("pay 3")
    assert (outcome.ok, model.unused, outcome.tool_calls) == (True, 0, (("pay", {"x": "2"}),))
    texts = [message.content for message in model.asked[-1].messages]
    assert sum("A person changed the arguments" in text and 'pay {"x": "2"}' in text for text in texts) == 1
    assert outcome.result.unheard == ()


@pytest.mark.parametrize("name", ["TransientError", "RecoverableError", "FatalError"])
async def test_error_of_state_ends_run_or_goes_to_on_error(name: str) -> None:
    """By the names that authors import; a bug is any other."""
    busy = getattr(ratchet, name)("busy")

    def fails(c: Any, run: Run) -> Any:
        raise busy

    states = [state(any_effect.S.THINK, counts="steps")(fails), *any_effect.MACHINE.states[1:]]
    machine = replace(any_effect.MACHINE, states=states)
    outcome = await Local(machine, model=ScriptedModel([]), tools=[LOOK]).run("begin")
    assert (outcome.result.exit_reason, outcome.result.error) == ("failed", "busy")
    handled = replace(machine, on_error=lambda c, error, run: ({"answer": str(error)}, any_effect.Finished()))
    outcome = await Local(handled, model=ScriptedModel([]), tools=[LOOK]).run("begin")
    assert outcome.answer == "busy"


# -- behind the end --------------------


@pytest.mark.parametrize("name", EDITS)
async def test_finished_run_goes_on_behind_its_last_step(name: str) -> None:
    """What was done is not done again (spec 1.8)."""
    options, script = EDITS[name]
    replies = [json.dumps(one) if isinstance(one, dict) else one for one in script]
    agent = AgentSpec(machine=name.partition(" ")[0], options=options, tools=("pay",))
    pay = Tool(name="pay", params=Words, run=lambda p: {"paid": p.x}, effect="read")
    store: dict[str, list[str]] = {}
    first = await Local(agent, model=ScriptedModel(replies), tools=[pay], store=store).run("go", trace_id="t")
    ended = first.result.step
    assert (first.ok, ended > 0) == (True, True)

    again = [{"intent": "general_inquiry"}, replies[-1]] if name == "staged" else [replies[-1]]
    model = ScriptedModel([json.dumps(one) if isinstance(one, dict) else one for one in again])
    local = Local(agent, model=model, tools=[pay], store=store)
    outcome = await local.replay("t", ended + 1, "go")
    assert (outcome.ok, outcome.tool_calls, model.unused) == (True, (), 0)
    assert (outcome.result.step, outcome.result.branch) == (ended + 1, 1)
    assert outcome.result.outcome.get("exit_reason") in (None, outcome.result.exit_reason)


# -- inner runs --------------------


def limited(limits: dict[str, Any], model: Any) -> Local:
    """The machine `any_effect` with limits."""
    agent = ANY_EFFECT.model_copy(update={"limits": Limits(**{"model_calls": None, **limits})})
    return Local(agent, model=model, tools=[LOOK, PAY])


def replies(asked: Any) -> Any:
    """A model that runs `any_effect` inside itself."""
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


def test_missing_model_is_asked_for_in_words() -> None:
    with pytest.raises(TypeError, match="plays no `script` of an agent file: give `model`, such as Scripted"):
        Local(ANY_EFFECT)
