"""When a run counts as stuck: by its calls and their results, and by what its model says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts import (
    AskModel,
    AskPerson,
    CallTools,
    CodeStepped,
    Effect,
    EffectFailed,
    MachineEnded,
    Message,
    ModelReplied,
    NativeCall,
    PersonDecided,
    RunCode,
    RunMachine,
    Together,
    ToolCall,
    ToolResult,
    ToolSpec,
    ToolsReturned,
)
from activities.contracts.answers import Answers
from workflows.gate.stuck import MAX_KNOWN_CALLS, StuckGuard, StuckSettings

Fact = tuple[Effect[Any], Any]
ids = itertools.count()


def tool(name: str, **more: Any) -> ToolSpec:
    return ToolSpec(name=name, description=name, parameters={"type": "object"}, **more)


SPECS = {spec.name: spec for spec in (tool("look"), tool("poll", news="always"), tool("clock", news="never"))}


def call(name: str = "look", x: object = 1, output: str = "same", **more: Any) -> Fact:
    """A call, with an id, a duration and a cost that no other one has."""
    number = next(ids)
    run = ToolCall(id=f"c{number}", tool=name, arguments={"x": x})
    result = ToolResult(id=run.id, tool=name, output=output, seconds=number, cost_usd=number, **more)
    return CallTools(calls=(run,)), ToolsReturned(results=(result,))


def reply(text: str, tool: str = "", *, beside: bool = False, asked: str = "") -> Fact:
    """A reply, perhaps with a native call."""
    calls = (NativeCall(id=f"call_{next(ids)}", name=tool, arguments="{}"),) if tool else ()
    say = (Message(role="user", content=asked),) if asked else ()
    return AskModel(beside=beside, say=say), ModelReplied(text=text, tool_calls=calls, seconds=next(ids))


def guard(facts: Iterable[Fact] = (), **settings: Any) -> StuckGuard:
    one = StuckGuard(StuckSettings(**settings), SPECS)
    for effect, answer in facts:
        one.learn(effect, answer)
    return one


def stuck(facts: Sequence[Fact]) -> bool:
    return bool(guard(facts).problem)


@pytest.mark.parametrize(
    ("facts", "is_stuck"),
    [
        ([call() for _ in range(4)], False),
        ([call() for _ in range(5)], True),
        ([call(error="failed") for _ in range(5)], True),
        ([call(x=n) for n in range(50)], False),
        ([call(output=f"{n} %") for n in range(50)], False),
        ([fact for _ in range(5) for fact in (call(), reply(f"thought {next(ids)}"))], True),
        ([fact for _ in range(5) for fact in (call(x=1), call(x=2))], True),
        ([fact for n in range(50) for fact in (call(), call(x=n))], False),
        ([fact for _ in range(50) for fact in (call(), call("poll"))], False),
        ([call("poll") for _ in range(50)], False),
        ([call("clock", output=f"{n} o'clock") for n in range(5)], True),
        ([fact for n in range(5) for fact in (call("clock", output=str(n)), call())], True),
        ([reply("I am ready") for _ in range(10)], False),
        ([reply("I am ready") for _ in range(11)], True),
        ([reply("", tool="look") for _ in range(11)], True),
        ([reply(f"thought {n}") for n in range(50)], False),
        ([fact for n in range(20) for fact in (reply("more"), call(x=n))], False),
        ([reply("spam", asked=f"mail {n}") for n in range(50)], False),
        ([reply("spam", asked="mail") for n in range(11)], True),
    ],
)
def test_run_is_stuck_when_nothing_new_comes(facts: list[Fact], is_stuck: bool) -> None:
    assert stuck(facts) == is_stuck


INNER = RunMachine(machine="react", goal="find out", label="inner")


@pytest.mark.parametrize(
    "fact",
    [
        lambda n: (RunCode(block="search('x')", session=f"s{n}"), CodeStepped(session=f"t{n}", error="no x")),
        lambda n: (INNER, MachineEnded(machine="react", ok=False, exit_reason="limit", workflow_id=f"w{n}")),
        lambda n: (INNER, EffectFailed(error="recoverable", type="depth_limit", message="too deep")),
        lambda n: (AskModel(beside=True, say=(Message(role="user", content="?"),)), reply("no")[1]),
        lambda n: (Together(effects=(call()[0],)), Answers(answers=(call()[1],))),
    ],
    ids=["a block of code", "an inner run", "an inner run that fails", "a question beside", "side by side"],
)
def test_everything_that_a_machine_does_is_a_call(fact: Any) -> None:
    assert not stuck([fact(n) for n in range(4)])
    assert stuck([fact(n) for n in range(5)])


def test_problem_says_which_call_how_often() -> None:
    assert guard([call() for _ in range(6)]).problem == (
        "look(x=1) was called 6 times with the same result, and nothing new between"
    )


def test_rules_can_be_switched_off() -> None:
    facts = [fact for _ in range(50) for fact in (call(), reply("again"))]
    assert guard(facts, repeats=None).problem.startswith("the model's last")
    assert guard(facts, replies=None).problem.startswith("look(x=1)")
    assert not guard(facts, repeats=None, replies=None).problem
    assert not StuckGuard(None, SPECS).problem


def test_warned_model_gets_another_try_until_a_new_call() -> None:
    one = guard([call() for _ in range(5)])
    one.warn()
    assert (one.problem, one.warned) == ("", True)
    one.learn(*reply("I will do it otherwise"))
    assert one.warned
    for _ in range(5):
        one.learn(*call())
    assert (bool(one.problem), one.warned) == (True, True)
    one.learn(*call(x=2))
    assert (one.problem, one.warned) == ("", False)


def test_what_a_person_does_begins_the_count_anew() -> None:
    facts = [
        *(call() for _ in range(5)),
        (AskPerson(about="question", text="?"), PersonDecided(decision="answer")),
    ]
    assert not stuck(facts)


things = st.one_of(
    st.builds(call, st.sampled_from(["look", "poll", "clock"]), st.integers(0, 3), st.sampled_from("ab")),
    st.builds(reply, st.sampled_from("ab"), beside=st.booleans()),
    st.just("tell"),
)


@given(st.lists(things, max_size=60), st.integers(0, 60))
def test_guard_that_goes_on_elsewhere_finds_the_same(facts: list[Any], hop: int) -> None:
    here, there = guard(), guard()
    for number, fact in enumerate(facts):
        for one in (here, there):
            one.warn() if fact == "tell" else one.learn(*fact)
        if number == hop:
            there = guard().load(json.loads(json.dumps(there.dump())))
        assert (there.problem, there.warned) == (here.problem, here.warned)


@given(st.lists(st.integers(), min_size=MAX_KNOWN_CALLS + 50, max_size=MAX_KNOWN_CALLS + 80, unique=True))
def test_memory_is_bounded_and_new_calls_are_never_stuck(xs: list[int]) -> None:
    one = guard([call(x=x) for x in xs])
    assert not one.problem
    assert len(json.dumps(one.dump())) < 50 * MAX_KNOWN_CALLS
