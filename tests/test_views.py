"""What a run did, step by step, is the same in every view, whatever the machine."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel
from rich.console import Console

from activities.contracts import ModelReplied, NativeCall
from activities.tools import Tool
from client.cli.live import LiveView
from client.cli.render import record_block
from client.console import steps as console
from client.history.compare import align_steps
from client.runs.readings import RecordReader
from client.runs.steps import checkpoint_lines, reply_before_text
from client.sdk.local import Asked, Local, ScriptedModel
from tests.people import any_effect, look_first
from workflows import steps
from workflows.api import AgentSpec
from workflows.hosts.memory import LocalOutcome
from workflows.kernel.log import FORKED, LoggedCall, Record, checkpoints
from workflows.status import RunResult


class Place(BaseModel):
    """Look somewhere."""

    x: str


def native(text: str, x: str) -> ModelReplied:
    """A reply that asks for a call."""
    call = NativeCall(id=f"c{x}", name="look", arguments=json.dumps({"x": x}))
    return ModelReplied(text=text, tool_calls=(call,), finish_reason="tool_calls")


def contract(x: str) -> dict[str, Any]:
    call = {"tool_id": "look", "params": {"x": x}, "out_artifacts_spec": [{"name": f"at_{x}"}]}
    return {"action": "call_tool", "strategy": "explore", "notes": f"I try {x}.", "tool_call": call}


def thinks(x: str) -> dict[str, Any]:
    return {"intent": "change", "suggested_tools": ["look"], "reasoning": f"I try {x}."}


SCRIPTS: dict[str, tuple[dict[str, Any], Sequence[Any]]] = {
    "react": ({}, [*({"thought": f"I try {x}.", "action": "look", "action_input": {"x": x}} for x in "ab"),
                   "Thought: FINAL ANSWER: seen"]),
    "tools": ({}, [native("I try a.", "a"), native("I try b.", "b"), "seen"]),
    "code": ({}, [*(f"I try {x}.\n```repl\nprint(look(x='{x}'))\n```" for x in "ab"), "FINAL(seen)"]),
    "staged": ({"max_iterations": 3}, [thinks("a"), native("", "a"), {"summary": "more", "need_loop": True},
                                       thinks("b"), native("", "b"), {"final_answer": "seen"}]),
    "planner": ({}, [{"goal": "look"}, native("I try a.", "a"), native("I try b.", "b"), "seen"]),
    "planner without a plan": ({"mode": "simple"}, [*({"action": "look", "params": {"x": x}} for x in "ab"),
                                                    {"action": "finish"}]),
    "contract": ({}, [contract("a"), contract("b"), {"action": "complete", "strategy": "exit"}]),
    "any_effect": ({}, ["tools look a", "tools look b", "answer seen"]),
    "look_first": ({}, ["I try a.", "I try b."]),
}  # fmt: skip
"""Machine -> options and replies of a run that looks at a in its first step, and at b in its second one."""
SILENT = ("planner without a plan", "any_effect")
"""Their replies have no thought."""
OWN = {"any_effect": any_effect.MACHINE, "look_first": look_first.MACHINE}
"""Machines of these tests."""


def agent_of(name: str) -> Any:
    machine = name.partition(" ")[0]
    spec = AgentSpec(machine=machine, options=SCRIPTS[name][0], tools=("look",))
    return OWN.get(machine, spec)


def seen(place: Place) -> str:
    return f"saw {place.x}"


def tools_of(name: str, look: Callable[[Place], str] = seen) -> list[Tool[Any]]:
    names = ("look", "take") if name == "look_first" else ("look",)
    return [Tool(name=tool, params=Place, run=look, effect="read") for tool in names]


def local(name: str, **more: Any) -> Local:
    _, script = SCRIPTS[name]
    replies = [json.dumps(one) if isinstance(one, dict) else one for one in script]
    return Local(
        agent_of(name), model=ScriptedModel(replies), tools=tools_of(name), check_purity=False, **more
    )


async def run(name: str) -> LocalOutcome:
    done = await local(name).run("look at a and b")
    assert (done.result.exit_reason != "broken_rule", done.result.ok) == (True, True)
    return done


def terminal(records: Sequence[Record], result: RunResult) -> dict[int, str]:
    """The blocks that `ratchet run` prints, by step."""
    file = io.StringIO()
    view = LiveView(Console(file=file, width=100, color_system=None))
    for record in records:
        view.show(record)
    view.end(result)
    parts = re.split(r"^ {2}(\d+)  ", file.getvalue(), flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


async def test_reply_read_as_data_is_shown_as_machine_reads_it() -> None:
    """Also where the visit goes on after the reply: here it maps what exists."""
    mapped = {"action": "decision", "strategy": "exploit", "notes": "That is all.",
              "map_slots": [{"slot_name": "table", "source_path": "at_a"}]}  # fmt: skip
    ends = {"action": "complete", "strategy": "exit", "completion_summary": "It is there."}
    agent = AgentSpec(
        machine="contract",
        options={"slots": [{"name": "table", "description": "all of it"}]},
        tools=("look",),
    )
    tool = Tool(name="look", params=Place, run=lambda place: f"saw {place.x}", effect="read")
    model = ScriptedModel([json.dumps(one) for one in (contract("a"), mapped, ends)])
    done = await Local(agent, model=model, tools=[tool], check_purity=False).run("look at a")
    blocks = terminal(done.records, done.result)
    assert (blocks[1].count("I try a."), blocks[2].count("That is all.")) == (1, 1)
    assert '"action"' not in "".join(blocks.values())
    assert "kept as at_a" in blocks[1]


@pytest.mark.parametrize("name", SCRIPTS)
async def test_every_view_tells_the_same_steps_thoughts_and_calls(name: str) -> None:
    done = await run(name)
    records = done.records
    blocks = terminal(records, done.result)
    shown = {step.number: step for step in console.steps_of(records)}
    lines = {line.step: line for line in steps.steps_of(records)}
    pairs = {pair.step: pair.left for pair in align_steps(records, ())}
    assert set(shown) == set(lines) == set(pairs) - {0} >= set(blocks)
    for number, x in ((1, "a"), (2, "b")):
        thought, title, result = f"I try {x}.", f'look(x="{x}")', f"saw {x}"
        items = shown[number].items
        assert [call.text for item in items for call in item.calls if call.title == title] == [result]
        assert any(title in item.plan for item in items)
        assert (blocks[number].count(f"→ {title}"), result in blocks[number]) == (1, True)
        pair = pairs[number]
        assert pair is not None
        assert any(title in said for said in pair.summary)
        if name not in SILENT:
            assert any(thought in item.text for item in items)
            assert blocks[number].count(thought) == 1
            assert thought in " ".join(pair.summary)
        other = "b" if x == "a" else "a"
        for text in (blocks[number], str(items), " ".join(pair.summary), lines[number].summary):
            assert f'look(x="{other}")' not in text


A, B = (f'look(x="{x}"); take(x="{x}")' for x in "ab")
"""The calls of both steps of `look_first`."""


def compared(records: Sequence[Record]) -> dict[int, list[str]]:
    """The calls that `compare` names, by step."""
    pairs = {pair.step: pair.left for pair in align_steps(records, ())}
    return {
        step: [said[2:] for said in left.summary if said.startswith("→ ")]
        for step, left in pairs.items() if left
    }  # fmt: skip


def planned(records: Sequence[Record]) -> dict[int, list[str]]:
    """The calls that the console says are wanted, by step."""
    return {one.number: [item.plan for item in one.items if item.plan] for one in console.steps_of(records)}


async def rolled_back(name: str) -> tuple[LocalOutcome, LocalOutcome]:
    """A run, and the same run after its second step was begun again."""
    store: dict[str, list[str]] = {}
    done = await local(name, store=store).run("look at a and b", trace_id="one")
    model = ScriptedModel(["I try b again."])
    again = Local(agent_of(name), model=model, tools=tools_of(name), check_purity=False, store=dict(store))
    return done, await again.replay("one", 2, "look at a and b")


def forked(records: Sequence[Record]) -> list[Record]:
    """The log of a fork, which has nothing of the branch that was left."""
    (back,) = (one for one in records if one.back_to is not None)
    assert back.back_to is not None
    begun = back.model_copy(update={"event": FORKED})
    after = [one for one in records if one.seq > back.seq]
    moved = [one.model_copy(update={"branch": 0}) for one in (*records[: back.back_to + 1], begun, *after)]
    return [one.model_copy(update={"seq": n}) for n, one in enumerate(moved)]


async def test_call_that_step_begins_with_stands_in_that_step() -> None:
    records = (await run("look_first")).records
    summaries = {1: f"I try a. -> {A}", 2: f"I try b. -> {B}"}
    assert {line.step: line.summary for line in steps.steps_of(records)} == summaries
    assert {line.step: line.summary for line in checkpoint_lines("r", records)} == {0: "", **summaries}
    assert {step: "; ".join(calls) for step, calls in compared(records).items() if calls} == {1: A, 2: B}
    assert {step: "; ".join(calls) for step, calls in planned(records).items()} == {1: A, 2: B}


async def test_call_under_way_stands_in_newest_step_alone() -> None:
    records = (await run("look_first")).records
    second = next(one.seq for one in checkpoints(records) if one.step == 2)
    begun = records[: second + 1]
    lines = {1: f"I try a. -> {A}", 2: 'look(x="b")'}
    assert {line.step: line.summary for line in steps.steps_of(begun)} == lines
    assert {line.step: line.summary for line in checkpoint_lines("r", begun)} == {0: "", **lines}
    assert "; ".join(compared(begun)[1]) == A
    assert compared(begun)[2] == ['look(x="b"): not ended']
    assert "; ".join(planned(begun)[1]) == A
    assert planned(begun)[2] == ['look(x="b")']


async def test_each_call_stands_once_after_a_rollback_or_fork() -> None:
    _, again = await rolled_back("look_first")
    for records in (again.records, forked(again.records)):
        summaries = {1: f"I try a. -> {A}", 2: f"I try b again. -> {B}"}
        assert {line.step: line.summary for line in steps.steps_of(records)} == summaries
        lines = [line for line in checkpoint_lines("r", records) if line.holds]
        assert {line.step: line.summary for line in lines} == {0: "", **summaries}
        assert {step: "; ".join(calls) for step, calls in compared(records).items() if calls} == {1: A, 2: B}
        assert {step: "; ".join(calls) for step, calls in planned(records).items()} == {1: A, 2: B}
        (back,) = (one.seq for one in records if one.back_to is not None)
        begun = records[: back + 1]
        assert [line.summary for line in steps.steps_of(begun)] == [summaries[1], 'look(x="b")']
        assert compared(begun)[2] == ['look(x="b"): not ended']
        assert planned(begun)[2] == ['look(x="b")']
    left = [line.summary for line in checkpoint_lines("r", again.records) if not line.holds]
    assert left == [f"I try b. -> {B}"]


@pytest.mark.parametrize("name", SCRIPTS)
async def test_rollback_leaves_steps_before_it_as_they_were(name: str) -> None:
    done = await run(name)
    point = next(one for one in checkpoints(done.records) if one.step == 2)
    last = done.records[-1]
    back = Record(
        seq=last.seq + 1, machine=last.machine, state=last.state, event="RolledBack", to=point.state,
        branch=1, step=1, of_step=1, begins=True, back_to=point.seq, counters=last.counters, by="ann",
        at=last.at,
    )  # fmt: skip
    before, after = (
        (
            next(line for line in steps.steps_of(log) if line.step == 1),
            next(line for line in checkpoint_lines("r", log) if line.step == 1),
            next(pair.left for pair in align_steps(log, ()) if pair.step == 1),
        )
        for log in (done.records, [*done.records, back])
    )
    assert before == after


async def test_runs_differ_in_the_step_whose_first_call_differs() -> None:
    records = (await run("look_first")).records
    other = [
        one.model_copy(update={"asked": tuple(
            call.model_copy(update={"title": call.title.replace('look(x="b")', 'look(x="c")')})
            for call in one.asked
        )})
        for one in records
    ]  # fmt: skip
    different = [pair for pair in align_steps(records, other) if pair.difference]
    assert [pair.step for pair in different] == [2]
    found = different[0].difference
    assert found is not None
    assert (found.left, found.right) == ('look(x="b")', 'look(x="c")')


@pytest.mark.parametrize("name", SCRIPTS)
async def test_step_behind_reply_is_said_to_make_its_calls_first(name: str) -> None:
    store: dict[str, list[str]] = {}
    done = await local(name, store=store).run("look at a and b", trace_id="one")
    for point in checkpoints(done.records):
        first = await first_of(name, store, point.step)
        text = reply_before_text(done.records, point.step)
        wanted = first != "model" and name != "look_first"  # which calls by itself
        assert wanted is bool(text), (point, first, text)
        assert (first == "nothing") is ("reads nothing new" in text)


async def first_of(name: str, store: dict[str, list[str]], step: int) -> str:
    """What a run does first that begins this step again."""
    done: list[str] = []

    def model(asked: Asked) -> str:
        done.append("model")
        return "no more"

    def look(place: Place) -> str:
        done.append(place.x)
        return "seen"

    again = Local(
        agent_of(name), model=model, tools=tools_of(name, look), check_purity=False, store=dict(store)
    )
    with suppress(Exception):  # what the model says then fits no machine
        await again.replay("one", step, "look at a and b")
    return done[0] if done else "nothing"


@pytest.mark.parametrize("name", SCRIPTS)
async def test_every_view_counts_the_same_in_each_step(name: str) -> None:
    records = (await run(name)).records
    pairs = {pair.step: pair.left for pair in align_steps(records, ())}
    for step in console.steps_of(records):
        pair = pairs[step.number]
        spent = {counter: amount for counter, amount in step.spent.items() if amount and counter != "seconds"}
        assert pair is not None
        assert (pair.spent, pair.path) == (spent, tuple(step.path))


def test_time_spent_waiting_for_a_person_is_in_no_step() -> None:
    """Nor does a step begin with the visit that goes on in it."""
    ask = LoggedCall(kind="ask_model", title="ask")
    common: dict[str, Any] = {"machine": "tools", "state": "EXECUTING_TOOLS"}
    records = (
        Record(seq=0, event="Started", to="EXECUTING_TOOLS", started=10, at=10, by="kernel", **common),
        Record(seq=1, event="Requested", started=10, at=11, by="kernel", step=1, of_step=1, **common),
        Record(seq=2, event="Decided", started=10, at=100, by="ann", step=1, of_step=1, **common),
        Record(seq=3, event="Called", started=10, at=102, step=1, of_step=1, answered=(ask,), **common),
        Record(seq=4, event="Asked", to="DONE", started=10, at=105, of_step=2, answered=(ask,), thought="x",
               **common),
    )  # fmt: skip
    first, second = console.steps_of(records)
    assert [(one.started, one.seconds) for one in (first, second)] == [(10, 2), (102, 3)]
    assert [(one.started, one.finished) for one in steps.steps_of(records)] == [(10, 102), (102, 105)]
    result = RunResult(agent="a", machine="tools", machine_version="1", state="DONE", step=2, ok=True,
                       exit_reason="answered", workflow_id="w", run_id="r")  # fmt: skip
    blocks = terminal(records, result)
    assert ["this step: 2.0 s" in blocks[1], "this step: 3.0 s" in blocks[2]] == [True, True]


@pytest.mark.parametrize("name", SCRIPTS)
async def test_log_names_each_call_where_asked_for_and_where_ended(name: str) -> None:
    records = (await run(name)).records
    asked = {call.id: call.title for record in records for call in record.asked}
    ended = {
        call.id: call.title for record in records for call in record.answered
        if call.kind not in ("ask_model", "together")
    }  # fmt: skip
    assert asked == ended
    assert set(asked.values()) >= {'look(x="a")', 'look(x="b")'}
    reader = RecordReader()
    text = "\n".join(record_block(record, reader.read(record)).plain for record in records)
    assert text.count('→ look(x="a")') == 1
