"""Runs without Temporal: the interrupt function, rollback, kept runs and replay of spec 1.8."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import Effect, RunMachine
from tests.machines.answers import act, final, said, thought, tool_said
from tests.machines.script import PARTS, TOOL
from tests.machines.scripts_code import block, calls, ran
from tests.machines.test_all_machines import answer_to, built, every_machine, plays, scripts
from workflows.kernel.design import Brief, Design
from workflows.kernel.errors import name_of
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record
from workflows.kernel.rebuild import rebuild
from workflows.local import Choice, Local, Outcome, Standing, every, stored
from workflows.machines.react import DESIGN
from workflows.machines.react_context import S
from workflows.registry import design

MACHINE = DESIGN.build(DESIGN.options(), PARTS)
ROUND = (act("tool", q="x"), tool_said("found"))
GO_ON, ABORT = Choice(), Choice("abort", by="ann", text="enough")


class World:
    """Answers in their order, and the effects they were given to."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.effects = list(answers), list[Effect]()

    def __call__(self, effect: Effect) -> Any:
        self.effects.append(effect)
        answer = self.answers.pop(0)
        return answer(effect) if callable(answer) else answer


class Person:
    """Decisions in their order, then `go on`; and where they were asked for."""

    def __init__(self, *choices: Choice) -> None:
        self.choices, self.asked = list(choices), list[Standing]()

    def __call__(self, standing: Standing) -> Choice:
        self.asked.append(standing)
        return self.choices.pop(0) if self.choices else GO_ON


def context(machine: Design = DESIGN, **options: Any) -> Any:
    """The first context of a machine."""
    return machine.begin(Brief("find out", "t-1", tools=(TOOL,)), machine.options.model_validate(options))


def clock() -> float:
    """It stands still."""
    return 1000.0


def run(
    answers: Iterable[Any],
    interrupt: Callable[[Standing], bool] | None = None,
    ask: Person | None = None,
    store: dict[str, list[str]] | None = None,
) -> Outcome:
    """A ReAct run over these answers, kept as `t-1`."""
    local = Local(World(*answers), interrupt, ask, store, now=clock)
    return local.run(MACHINE, context(), trace_id="t-1")


def visited(outcome: Outcome) -> str:
    """The states in the order in which they were entered."""
    return " ".join(record.to for record in outcome.records if record.to)


# -- the loop --------------------


def test_a_design_runs_with_its_default_knobs_and_a_plain_function() -> None:
    world = World(*ROUND, final("42"))
    ended = Local(world).run(DESIGN, context())
    assert (ended.exit.answer, ended.exit.ok, world.answers) == ("42", True, [])
    assert ended.ledger.used("model_calls") == 2
    assert ended.context.metadata["tool_history"] == ["tool"]


def test_a_limit_ends_a_run_as_anywhere() -> None:
    ended = Local(World(thought("a"))).run(MACHINE, context(), ledger=Ledger(caps={"model_calls": 1}))
    assert ended.exit.reason == "limit"


def test_a_machine_inside_another_runs_in_the_same_loop() -> None:
    code = design("code")
    machine = code.build(
        code.options.model_validate({"nested": {"policy": "always", "mode": "inline"}}), PARTS
    )
    world = World(block("llm_query('a')"), calls("llm_query", "a"), said("A"), ran(), said("FINAL(42)"))
    ended = Local(world, tools=(TOOL,)).run(machine, context(code))
    assert (ended.exit.answer, world.answers) == ("42", [])
    assert "code" in {record.machine for record in ended.records if record.within}
    assert not [effect for effect in world.effects if isinstance(effect, RunMachine)]


@every_machine
def test_every_machine_comes_to_what_its_scripts_come_to(design: Design) -> None:
    for script, play in zip(scripts(design).SCRIPTS, plays(design), strict=True):
        if play.last.exit is None:
            continue
        _, first = rebuild(play.machine, play.records[:1])
        seconds = itertools.count(1000.0)
        local = Local(World(*script.answers), tools=(TOOL,), now=seconds.__next__)
        ended = local.run(play.machine, first)
        assert (ended.exit, ended.records) == (play.exit, play.records), script.name


# -- the interrupt function (1.8) --------------------


def test_the_interrupt_function_sees_the_state_before_every_node() -> None:
    seen: list[Standing] = []

    def watch(standing: Standing) -> bool:
        seen.append(standing)
        return False

    ended = run((*ROUND, final()), watch, Person())
    nodes = "thought validate action observation commit"
    assert " ".join(standing.state for standing in seen) == f"{nodes} {nodes}"
    assert visited(ended) == f"{nodes} {nodes} __end__"
    assert [standing.steps for standing in seen] == [0, 1, 1, 1, 1, 1, 2, 2, 2, 2]
    assert [standing.at_step for standing in seen if standing.state == "thought"] == [True, True]
    assert all(standing.context.trace_id == "t-1" for standing in seen)


def test_a_person_is_asked_only_where_the_function_says_so_and_anything_else_goes_on() -> None:
    person = Person()
    ended = run((*ROUND, final()), lambda standing: standing.state == "action", person)
    assert [standing.state for standing in person.asked] == ["action", "action"]
    assert ended.exit.ok


def test_abort_returns_the_terminated_state_and_the_node_is_not_executed() -> None:
    world, person = World(*ROUND, final()), Person(ABORT)
    ended = Local(world, lambda standing: standing.state == "action", person).run(MACHINE, context())
    assert (ended.exit.reason, ended.exit.error) == ("aborted", "ann ended the run: enough")
    assert (ended.context.terminated, ended.context.metadata["exit_reason"]) == (True, "aborted")
    assert [effect.kind for effect in world.effects] == ["call_model"]
    assert ended.records[-1].by == "ann"


def test_abort_before_the_first_node_asks_nobody_anything() -> None:
    world = World()
    ended = Local(world, lambda standing: True, Person(ABORT)).run(MACHINE, context())
    assert (ended.exit.reason, ended.context.steps, world.effects) == ("aborted", (), [])


def test_rollback_goes_on_with_the_next_node_in_the_same_turn_without_asking_again() -> None:
    person = Person(Choice("rollback", 0, by="ann"))
    due = every(2)
    ended = run((*ROUND, act("tool", q="y"), tool_said("B"), final("7")), due, person)
    assert [standing.steps for standing in person.asked] == [2]
    nodes = "thought validate action observation commit"
    assert visited(ended) == f"{nodes} {nodes} thought thought validate action observation commit __end__"
    assert [step.id for step in ended.context.steps] == [0, 1]
    noted = [ended.context.metadata[name] for name in ("rolled_back_from", "rolled_back_to")]
    assert (noted, ended.exit.answer) == ([2, 0], "7")
    assert [record.branch for record in ended.records if record.to][-6:] == [1] * 6


def test_a_rollback_to_a_step_that_there_is_not_is_refused() -> None:
    for target in (1, -1, None):
        with pytest.raises(ValueError, match=r"step 1; there are the steps 0 to 0|step -1|needs a"):
            run((*ROUND, final()), every(1), Person(Choice("rollback", target)))


def test_what_a_run_has_spent_stays_spent_after_a_rollback() -> None:
    answers = (act("tool", cost=0.25), tool_said("A"), act("tool", q="y"), tool_said("B"), final("7"))
    ended = run(answers, every(2), Person(Choice("rollback", 0)))
    assert ended.ledger.used("model_calls") == 3
    assert ended.ledger.used("cost_usd") == 0.25


def test_R_000_13_every_n_steps_a_person_is_asked_on_entering_thought_once_per_number_of_steps() -> None:
    """The question is not put again when the run comes there once more behind a rollback."""
    person = Person(GO_ON, Choice("rollback", 1))
    more = [thought(word) for word in "abcdefgh"]
    ended = run((*more, final()), every(2), person)
    assert [(standing.state, standing.steps) for standing in person.asked] == [
        ("thought", 2), ("thought", 4), ("thought", 6),
    ]  # fmt: skip
    assert ended.exit.ok
    once = every(2)
    standing = Standing("react", "thought", None, steps=2, at_step=True)
    assert [once(standing), once(standing)] == [True, False]


@pytest.mark.parametrize("steps", [0, -1])
def test_R_000_13_no_number_of_steps_below_one_makes_sense(steps: int) -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        every(steps)


def test_R_000_13_a_run_without_steps_is_not_interrupted() -> None:
    person = Person()
    assert run((final(),), every(1), person).exit.ok
    assert person.asked == []


def test_an_interrupt_function_without_anybody_to_ask_is_refused() -> None:
    with pytest.raises(ValueError, match="give `ask` too"):
        Local(World(), interrupt_fn=lambda standing: True)


# -- runs that are kept, and replay (1.8) --------------------


def test_a_kept_state_is_loaded_equal_with_real_steps_and_read_only_metadata() -> None:
    store: dict[str, list[str]] = {}
    ended = run((*ROUND, final()), store=store)
    loaded = stored(MACHINE, store, "t-1")
    assert loaded == ended.context
    assert type(loaded.steps[0]) is type(ended.context.steps[0])
    with pytest.raises(TypeError):
        loaded.metadata["goal"] = "another"
    assert json.loads(store["t-1"][-1])["position"]["state"] == "__end__"


def test_an_unknown_id_is_none_and_the_ids_are_listed_and_the_newest_wins() -> None:
    store: dict[str, list[str]] = {}
    assert stored(MACHINE, store, "t-1") is None
    run((final("1"),), store=store)
    assert list(store) == ["t-1"]
    run((final("2"),), store=store)
    assert (list(store), stored(MACHINE, store, "t-1").answer) == (["t-1"], "2")


def test_a_run_is_kept_at_each_step_so_that_one_that_broke_off_can_be_gone_on_with() -> None:
    store: dict[str, list[str]] = {}
    with pytest.raises(IndexError):
        run((*ROUND, *ROUND), store=store)
    assert [step.id for step in stored(MACHINE, store, "t-1").steps] == [0, 1]
    again = Local(World(final("7")), store=store, now=clock).replay(MACHINE, "t-1", 1)
    assert (again.exit.answer, len(again.context.steps)) == ("7", 3)


def test_what_is_written_at_a_step_is_what_came_since_the_one_before() -> None:
    """So a run of any length is written once, and going back adds to it."""
    store: dict[str, list[str]] = {}
    rounds = [one for n in range(10, 28) for one in (act("tool", q=f"{n}"), tool_said("A"))]
    ended = run((*rounds, final()), store=store)
    lines = list(store["t-1"])
    assert len(lines) == 20
    assert max(map(len, lines[2:])) < 1.2 * min(map(len, lines[2:-1]))
    again = Local(World(final("7")), store=store, now=clock).replay(MACHINE, "t-1", 18)
    assert store["t-1"][:20] == lines
    numbers = [record["seq"] for line in store["t-1"] for record in json.loads(line)["log"]]
    assert numbers == list(range(len(again.records)))
    assert again.records[: len(ended.records)] == ended.records


def test_a_machine_of_one_s_own_goes_back_by_its_state_where_it_says_how() -> None:
    """Also behind the end of a run that is over, as ReAct does; nothing in the loop knows a machine."""
    own = replace(
        MACHINE, name="own", rewind=lambda c, step: c.model_copy(update={"trace_id": f"back {step}"})
    )
    store: dict[str, list[str]] = {}
    Local(World(*ROUND, final("1")), store=store, now=clock).run(own, context(), trace_id="t-1")
    again = Local(World(final("2")), store=store, now=clock).replay(own, "t-1", 1)
    assert (again.context.trace_id, again.exit.answer) == ("back 1", "2")
    plain = replace(MACHINE, name="plain", rewind=None)
    Local(World(*ROUND, final("1")), store=store, now=clock).run(plain, context(), trace_id="t-2")
    with pytest.raises(ValueError, match="step 3 is none that plain has begun; there are 0 to 2"):
        Local(World(final("2")), store=store).replay(plain, "t-2", 1)


def _plain(state: Any) -> Any:
    metadata = {k: v for k, v in state.metadata.items() if not k.startswith(("rolled_back", "tool_history"))}
    return state.model_copy(update={"metadata": metadata})


@pytest.mark.parametrize("up_to", [0, 1])
def test_R_000_14_replay_of_a_finished_run_gives_the_same_state_with_the_same_replies(up_to: int) -> None:
    """R-000-14: the run is open again. The history of tools holds what was really run."""
    answers = [*ROUND, act("tool", q="y"), tool_said("B"), final("42")]
    store: dict[str, list[str]] = {}
    ended = run(answers, store=store)
    again = Local(World(*answers[2 * (up_to + 1) :]), store=store, now=clock).replay(MACHINE, "t-1", up_to)
    assert _plain(again.context) == _plain(ended.context)
    assert (again.exit.answer, again.exit.reason) == ("42", "goal_achieved")
    assert stored(MACHINE, store, "t-1") == again.context
    assert again.records[: len(ended.records)] == ended.records
    assert rebuild(MACHINE, again.records) == (S.END, again.context)


def test_a_finished_run_can_be_gone_on_with_behind_its_last_step() -> None:
    store: dict[str, list[str]] = {}
    run((*ROUND, final("1")), store=store)
    again = Local(World(final("2")), store=store).replay(MACHINE, "t-1", 1)
    assert (again.exit.answer, len(again.context.steps)) == ("2", 3)


def test_replay_of_an_unknown_run_is_an_error_that_says_which_there_are() -> None:
    stores: list[tuple[dict[str, list[str]], str]] = [({}, "none"), ({"t-2": ["{}"]}, "t-2")]
    for store, there in stores:
        with pytest.raises(ValueError, match=f"no run 't-1' is stored; there is {there}"):
            Local(World(), store=store).replay(MACHINE, "t-1", 0)


def test_replay_to_a_step_that_the_run_has_not_is_an_error() -> None:
    store: dict[str, list[str]] = {}
    run((final(),), store=store)
    for step in (1, -1):
        with pytest.raises(ValueError, match=f"cannot go back to step {step}"):
            Local(World(), store=store).replay(MACHINE, "t-1", step)


def test_a_run_without_a_trace_id_is_not_kept() -> None:
    store: dict[str, list[str]] = {}
    Local(World(final()), store=store).run(MACHINE, context())
    assert store == {}


@every_machine
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_every_machine_can_be_kept_sent_back_and_gone_on_with(design: Design, data: st.DataObject) -> None:
    """Its log, kept as JSON, gives the state again, on either branch; what was spent stays spent."""
    machine, given = built(design), scripts(design)
    store: dict[str, list[str]] = {}

    def perform(effect: Any) -> Any:
        return data.draw(answer_to(effect, given))

    first = design.begin(Brief("goal", "t-1", tools=(TOOL,)), design.options())
    caps = {"model_calls": 12.0, "tool_calls": 12.0}
    ended = Local(perform, store=store, now=clock).run(
        machine, first, trace_id="t-1", ledger=Ledger(caps=caps)
    )
    assert stored(machine, store, "t-1") == ended.context
    log = [Record.model_validate(record) for line in store["t-1"] for record in json.loads(line)["log"]]
    assert tuple(log) == ended.records
    begun = [r for r in ended.records if r.to == name_of(machine.step_state) and not r.within]
    if len(begun) < 2 or ended.ledger.breach({"model_calls": 1}):
        return
    target = data.draw(st.integers(0, len(begun) - 2))
    again = Local(perform, store=store, now=clock).replay(machine, "t-1", target)
    assert rebuild(machine, again.records)[1] == again.context
    assert again.ledger.used("model_calls") >= ended.ledger.used("model_calls")
    assert stored(machine, store, "t-1") == again.context
