"""Exploration: what it finds, and that merging runs loses nothing."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from activities.contracts import (
    AskModel,
    AskPerson,
    CallTools,
    EffectFailed,
    Message,
    ModelReplied,
    Together,
    ToolCall,
    ToolSpec,
    do,
)
from tests.machines.play import program_of
from workflows.kernel.context import Append, Context
from workflows.kernel.machine import Event, Exit, Machine, Run, State, Visit, VisitEnd, state
from workflows.kernel.properties import (
    Property,
    Scenario,
    asks_person,
    at_most,
    enters,
    event,
    last,
    never,
)
from workflows.kernel.properties import calls as calls_of
from workflows.verify.runs.domain import WITHOUT, Domain
from workflows.verify.runs.explore import Explored, explore
from workflows.verify.runs.moments import PropertyBug

ENDLESS = 60.0


def explored(
    machine: Machine,
    *properties: Property,
    replies: Sequence[str] = ("yes", "no"),
    merge: bool = True,
    ticks: int | None = None,
    tools: Sequence[ToolSpec] = (),
) -> Explored:
    """The machine with these replies alone; `ticks`: stop after so many looks at the clock."""
    scenario = Scenario(
        replies=tuple(replies),
        without=frozenset(
            {"transient", "fatal", "too long", "refuses", "'It is forty-two.'", "''", "'It is', cut off"}
        ),
    )
    clock = itertools.count(0, ENDLESS / ticks if ticks else 0.0)
    return explore(
        program_of(machine), Domain(scenario, {one.name: one for one in tools}), properties,
        seconds=ENDLESS, clock=lambda: next(clock), merge=merge, compare=50,
    )  # fmt: skip


# -- a small machine by hand --------------------


class S(Enum):
    ASK, JUDGE, END = "ask", "judge", "end"


class Asked(Event): ...


class Good(Event): ...


class Bad(Event): ...


class Options(BaseModel, frozen=True):
    rounds: int = 3


class Memory(Context):
    said: str = ""
    rounds: int = 0
    log: tuple[str, ...] = ()
    flag: bool = False


@state(S.ASK, asks={AskModel}, reads={"rounds"}, writes={"said", "rounds", "log"}, counts="rounds")
def ask(c: Memory, run: Run) -> Visit:
    reply = yield from do(AskModel(say=(Message(role="user", content="well?"),), label="well"))
    return {"said": reply.text, "rounds": c.rounds + 1, "log": Append(reply.text)}, Asked()


@state(S.JUDGE, reads={"said", "rounds"}, writes={"flag"})
def judge(c: Memory, run: Run) -> VisitEnd:
    if c.said == "yes" or c.rounds >= run.options.rounds:
        return {}, Good()
    return {"flag": True}, Bad()


def result(c: Memory, run: Run) -> Exit:
    return Exit(reason="over", ok=True, answer=c.said, outcome={"log": list(c.log)})


def small(**changes: Any) -> Machine:
    given: dict[str, Any] = dict(
        name="small", options=Options, context=Memory, begin=lambda input, options: Memory(),
        initial=S.ASK, table={S.ASK: {Asked: S.JUDGE}, S.JUDGE: {Good: S.END, Bad: S.ASK}},
        states=[ask, judge], result=result, exits={"over": "it is over"},
    )  # fmt: skip
    return Machine(**{**given, **changes})


def test_all_answers_are_tried_in_all_states() -> None:
    found = explored(small())
    assert found.complete
    assert not found.violations
    assert found.arrows == {("ask", "Asked", "judge"), ("judge", "Bad", "ask"), ("judge", "Good", "end")}
    assert found.ends == {"over": 4}


def test_counterexample_is_a_shortest_one() -> None:
    found = explored(small(), at_most("two questions", 2, lambda x: x.kind == "asked"))
    (one,) = found.violations.values()
    assert [exchange.text for exchange in one.exchanges] == ["model: no", "model: no"]
    assert (one.name, one.built_in, one.shown) == ("two questions", False, "state ask asks: well")


def test_what_is_only_appended_does_not_tell_runs_apart() -> None:
    assert explored(small()).states == 3
    assert explored(small(), merge=False).states == 3


def test_closed_run_does_not_tell_logs_apart() -> None:
    """A model that refuses ends the run as `model_refused`, whatever `result` says and has read."""
    scenario = Scenario(replies=("no", "nay"), without=WITHOUT - {"refuses"})
    logged = small(result=lambda c, run: Exit(reason="over", ok=True, outcome={"log": list(c.log)}))
    found = explore(program_of(logged), Domain(scenario, {}), seconds=ENDLESS, clock=lambda: 0.0)
    assert found.ends["model_refused"]
    assert found.states == 3


def test_field_that_only_a_property_reads_tells_runs_apart() -> None:
    watching = never("a flag at the end", lambda x: x.kind == "ended" and x.context.flag)
    assert [one.name for one in explored(small(), watching).violations.values()] == ["a flag at the end"]
    assert "flag" in explored(small(), watching).needs["ask"]
    assert "flag" not in explored(small()).needs.get("ask", ())


@pytest.mark.parametrize("reads", [
    lambda c, came_from: "no" if c.flag else "",
    lambda c, came_from: "no" if c.model_dump()["flag"] else "",
    lambda c, came_from: "no" if dict(c)["flag"] else "",
    lambda c, came_from: "no" if "flag=True" in repr(c) else "",
    lambda c, came_from: "no" if c == c.model_copy(update={"flag": True}) else "",
    lambda c, came_from: "no" if c.after({"said": ""}).flag else "",
])  # fmt: skip
def test_field_that_only_an_invariant_reads_tells_runs_apart(reads: Any) -> None:
    found = explored(small(states=[ask, judge, State(S.END, holds=reads)]))
    assert any(one.name == "InvariantViolated" for one in found.violations.values())


# -- a field that is only tested --------------------


def judged_by(look: Callable[[Any], Any]) -> Explored:
    """A machine whose JUDGE asks this of a list that ASK appends replies of different lengths to."""

    @state(S.ASK, asks={AskModel}, writes={"log"}, counts="rounds")
    def again(c: Memory, run: Run) -> Visit:
        reply = yield from do(AskModel(say=(Message(role="user", content="well?"),), label="well"))
        return {"log": Append(*(["x"] * len(reply.text)))}, Asked()

    @state(S.JUDGE, reads={"log"})
    def tests(c: Memory, run: Run) -> VisitEnd:
        return {}, Good() if look(c) and run.counts["rounds"] > 1 else Bad()

    return explored(
        small(states=[again, tests], caps=lambda options: {"rounds": 3}), replies=("", "a", "bbb")
    )


@pytest.mark.parametrize("look", [
    lambda c: "yes" if c.log else "",
    lambda c: not c.log,
    lambda c: any(True for _ in "a" if c.log),
], ids=["if", "not", "in a comprehension"])  # fmt: skip
def test_field_only_tested_tells_runs_apart_by_being_empty(look: Any) -> None:
    found = judged_by(look)
    assert "bool:log" in found.needs["judge"]
    assert "log" not in found.needs["judge"]
    assert not found.conflicts


@pytest.mark.parametrize("look", [
    lambda c: len(c.log) == 4,
    lambda c: bool(c.log and c.log[2:] and not c.log[4:]),
    lambda c: (c.log or ("",))[3:],
    lambda c: bool(getattr(c, "log")[3:]),  # noqa: B009  # another way to read it
    lambda c: (shown := c.log) and shown[3:],
    lambda c: [*c.log][3:] if c.log else False,
], ids=["length", "and", "or", "getattr", "named", "tested and read"])  # fmt: skip
def test_field_looked_into_tells_runs_apart_by_what_it_holds(look: Any) -> None:
    found = judged_by(look)
    assert "log" in found.needs["judge"]
    assert not found.conflicts


def test_run_that_goes_round_is_found_with_its_round() -> None:
    @state(S.JUDGE, reads={"said"})
    def patient(c: Memory, run: Run) -> VisitEnd:
        return {}, Good() if c.said == "yes" else Bad()

    @state(S.ASK, asks={AskModel}, writes={"said"}, counts="rounds")
    def again(c: Memory, run: Run) -> Visit:
        reply = yield from do(AskModel(say=(Message(role="user", content="well?"),), label="well"))
        return {"said": reply.text}, Asked()

    (one,) = explored(small(states=[again, patient])).violations.values()
    assert (one.name, one.rounds) == ("every run ends by itself", 1)
    assert [exchange.text for exchange in one.exchanges] == ["model: no"]


def test_round_that_a_person_leads_is_none() -> None:
    @state(S.ASK, asks={AskPerson}, writes={"said"}, counts="rounds")
    def person(c: Memory, run: Run) -> Visit:
        decided = yield from do(AskPerson(about="question", text="well?", options=("approve", "reject")))
        return {"said": "no" if decided.decision == "reject" else "yes"}, Asked()

    @state(S.JUDGE, reads={"said"})
    def patient(c: Memory, run: Run) -> VisitEnd:
        return {}, Good() if c.said == "yes" else Bad()

    assert not explored(small(states=[person, patient])).violations
    assert explored(small(states=[person, patient])).transitions is None


def test_round_where_nobody_is_there_is_one() -> None:
    @state(S.ASK, asks={AskPerson}, writes={"said"}, counts="rounds")
    def person(c: Memory, run: Run) -> Visit:
        decided = yield from do(AskPerson(about="question", text="well?", options=("approve", "reject")))
        return {"said": "no" if decided.decision == "unavailable" else "yes"}, Asked()

    @state(S.JUDGE, reads={"said"})
    def patient(c: Memory, run: Run) -> VisitEnd:
        return {}, Good() if c.said == "yes" else Bad()

    (one,) = explored(small(states=[person, patient])).violations.values()
    assert {exchange.text for exchange in one.exchanges} == {"person: unavailable"}


@pytest.mark.parametrize("ends", [
    lambda c, run: Exit(reason="undeclared" if c.said == "no" else "over"),
    lambda c, run: Exit(reason="over") if c.said != "no" else 1 / 0,
])  # fmt: skip
def test_what_only_the_result_reads_is_tried_with_every_value(ends: Any) -> None:
    @state(S.JUDGE)
    def once(c: Memory, run: Run) -> VisitEnd:
        return {}, Good()

    table = {S.ASK: {Asked: S.JUDGE}, S.JUDGE: {Good: S.END}}
    assert explored(small(states=[ask, once], table=table, result=ends)).violations


def test_what_a_broken_rule_undoes_was_not_overwritten() -> None:
    class T(Enum):
        ASK, WAIT, NEXT, FAIL = "ask", "wait", "next", "fail"

    @state(T.ASK, asks={AskModel}, writes={"flag"})
    def first(c: Memory, run: Run) -> Visit:
        reply = yield from do(AskModel(say=(Message(role="user", content="1?"),), label="first"))
        return {"flag": reply.text == "no"}, Asked()

    @state(T.WAIT, asks={AskModel}, writes={"flag", "rounds"})
    def second(c: Memory, run: Run) -> Visit:
        reply = yield from do(AskModel(say=(Message(role="user", content="2?"),), label="second"))
        return {"flag": False, "rounds": 5 if reply.text == "no" else 1}, Asked()

    @state(T.FAIL, reads={"flag"})
    def fails(c: Memory, run: Run) -> VisitEnd:
        return {}, {False: Good}[c.flag]()

    machine = small(
        initial=T.ASK, step=None, fail=T.FAIL,
        table={T.ASK: {Asked: T.WAIT}, T.WAIT: {Asked: S.END}, T.FAIL: {Good: S.END}},
        states=[first, second, fails, State(S.END, holds=lambda c, left: "much" if c.rounds > 3 else "")],
    )  # fmt: skip
    assert any(one.name == "no exception" for one in explored(machine).violations.values())


def test_effects_side_by_side_are_seen() -> None:
    @state(S.ASK, asks={AskPerson})
    def both(c: Memory, run: Run) -> Visit:
        one = AskPerson(about="question", text="well?", options=("approve",))
        yield from do(Together(effects=(one, one)))
        return {}, Asked()

    watching = never("no person is asked", asks_person)
    table = {S.ASK: {Asked: S.END}}
    found = explored(small(states=[both], table=table), watching)
    assert "no person is asked" in [one.name for one in found.violations.values()]


def test_calls_of_one_effect_count_each_by_itself() -> None:
    @state(S.ASK, asks={CallTools})
    def twice(c: Memory, run: Run) -> Visit:
        calls = tuple(ToolCall(id=str(n), tool="pay") for n in range(2))
        yield from do(CallTools(calls=calls))
        return {}, Asked()

    found = explored(
        small(states=[twice], table={S.ASK: {Asked: S.END}}), at_most("one payment", 1, calls_of("pay"))
    )
    assert "one payment" in [one.name for one in found.violations.values()]


def test_property_that_never_comes_up_is_named() -> None:
    found = explored(small(), at_most("one payment", 1, calls_of("payy")), never("no call", calls_of("pay")))
    assert found.came_up == {"no call"}


def test_moments_before_an_exception_are_seen() -> None:
    @state(S.JUDGE, reads={"said"})
    def broken(c: Memory, run: Run) -> VisitEnd:
        raise KeyError(c.said)

    found = explored(small(states=[ask, broken]), never("nobody judges", enters(S.JUDGE)))
    assert {one.name for one in found.violations.values()} == {"no exception", "nobody judges"}


def test_bug_of_the_author_is_named_with_its_line() -> None:
    @state(S.JUDGE, reads={"said"})
    def broken(c: Memory, run: Run) -> VisitEnd:
        return {}, {"yes": Good, "no": Bad}[c.said + "!"]()

    (one,) = explored(small(states=[ask, broken])).violations.values()
    assert one.name == "no exception"
    assert "KeyError" in one.detail
    assert f"{__file__}, line" in one.author_line


def test_effect_that_cannot_be_made_is_told_in_our_words() -> None:
    @state(S.JUDGE, reads={"said"}, asks={AskPerson})
    def broken(c: Memory, run: Run) -> Visit:
        yield from do(AskPerson(about="question", text="Good?", options=("yes",)))
        return {}, Good()

    (one,) = explored(small(states=[ask, broken])).violations.values()
    assert one.detail.startswith("ValidationError: AskPerson: options.0: expected 'approve', ")


def test_undeclared_exit_is_found() -> None:
    (one,) = explored(small(exits={})).violations.values()
    assert (one.name, one.detail) == ("declared exits", "the exit reason 'over' is not in `exits`")


def test_property_that_raises_is_named() -> None:
    with pytest.raises(PropertyBug, match=r"the property 'mine' raised ZeroDivisionError: .*test_explore.py"):
        explored(small(), never("mine", lambda x: 1 / 0))


def test_exploration_that_is_cut_says_so() -> None:
    found = explored(small(), ticks=3)
    assert not found.complete
    assert found.waiting > 0


def test_newest_reply_tells_runs_apart_where_later_state_reads_it() -> None:
    @state(S.JUDGE)
    def by_reply(c: Memory, run: Run) -> VisitEnd:
        return {}, Good() if run.reply is not None and run.reply.content == "yes" else Bad()

    @state(S.ASK, asks={AskModel}, counts="rounds")
    def again(c: Memory, run: Run) -> Visit:
        yield from do(AskModel(say=(Message(role="user", content="well?"),), label="well"))
        return {}, Asked()

    found = explored(small(states=[again, by_reply]))
    assert {event for _, event, _ in found.arrows} == {"Asked", "Good", "Bad"}
    assert found.needs["judge"] == ("run.reply",)
    assert found.needs.get("ask", ()) == ()


# -- random machines: merged or not, the same is found --------------------

FIELDS = ("a", "b", "c")
STATES = Enum("STATES", {f"S{n}": f"s{n}" for n in range(4)})  # type: ignore[misc]  # made of data
EVENTS: list[type[Event]] = [type(f"E{n}", (Event,), {}) for n in range(2)]


class Cells(Context):
    """Small numbers, and a list that some states look at."""

    a: int = 0
    b: int = 0
    c: int = 0
    seen: tuple[int, ...] = ()


plans = st.lists(
    st.fixed_dictionaries({
        "asks": st.booleans(),
        "reads": st.sets(
            st.sampled_from([
                *FIELDS, "reply", "tail", "step", "seen", "list", "any", "none", "first", "b or",
            ]),
            max_size=3,
        ),
        "writes": st.dictionaries(st.sampled_from(FIELDS), st.integers(0, 2), max_size=2),
        "copies": st.none() | st.sampled_from(FIELDS),
        "appends": st.booleans(),
        "targets": st.tuples(st.integers(0, 3), st.integers(0, 3)),
    }),
    min_size=3, max_size=3,
)  # fmt: skip


READS: dict[str, Callable[[Cells, Run], int]] = {
    "a": lambda c, run: c.a,
    "b": lambda c, run: c.b,
    "c": lambda c, run: c.c,
    "seen": lambda c, run: sum(c.seen),
    "reply": lambda c, run: len(run.reply.content) if run.reply else 0,
    "tail": lambda c, run: sum(len(one.content) for one in run.tail),
    "step": lambda c, run: run.step,
    "list": lambda c, run: len(run.conversation),
    "any": lambda c, run: 1 if c.seen else 0,
    "none": lambda c, run: int(not c.seen),
    "first": lambda c, run: c.seen[0] if c.seen else 0,
    "b or": lambda c, run: c.b or 1,
}


def visit_of(plan: dict[str, Any]) -> Any:
    def visit(c: Cells, run: Run) -> Visit:
        total = sum(READS[name](c, run) for name in sorted(plan["reads"]))
        if plan["asks"]:
            reply = yield from do(AskModel(say=(Message(role="user", content=f"{total % 2}?"),), label="q"))
            total += len(reply.text)
        patch: dict[str, Any] = dict(plan["writes"])
        if plan["copies"]:
            patch["a"] = (total + getattr(c, plan["copies"])) % 3
        if plan["appends"]:
            patch["seen"] = Append(total % 3)
        return patch, EVENTS[total % 2]()

    return visit


def machine_of(plans: list[dict[str, Any]]) -> Machine:
    names = list(STATES)
    every = {*FIELDS, "seen"}
    table: dict[Any, Any] = {}
    for at, plan in enumerate(plans):
        # the first event always leads on, so that every state is reached and every run can end
        table[names[at]] = {EVENTS[0]: names[at + 1], EVENTS[1]: names[plan["targets"][0]]}
    states = [
        State(
            name, visit_of(plan), frozenset(every), frozenset(every), frozenset({AskModel}), counts="entries"
        )
        for name, plan in zip(names, plans, strict=False)
    ]
    return Machine(
        name="random", options=Options, context=Cells, begin=lambda input, options: Cells(),
        initial=names[0], table=table, states=states, step=names[1], exits={"over": "it is over"},
        result=lambda c, run: Exit(reason="over", ok=c.a == 0),
        caps=lambda options: {"entries": 5},
    )  # fmt: skip


@settings(max_examples=settings().max_examples * 3 // 5)  # each is explored twice
@given(plans)
def test_merging_loses_nothing(found: list[dict[str, Any]]) -> None:
    machine = machine_of(found)
    watched = (
        at_most("three of the second event", 3, event(EVENTS[1])),
        never(
            "c is two in the last state", lambda x: x.kind == "moved" and x.to == "s2" and x.context.c == 2
        ),
        last("the third state is the last that asks", enters("s2")),
        never("a bad end", lambda x: x.kind == "ended" and not x.exit.ok),
    )
    merged = explored(machine, *watched, replies=("x", "yy"))
    exact = explored(machine, *watched, replies=("x", "yy"), merge=False)
    assert merged.complete
    assert exact.complete
    assert not merged.conflicts
    assert merged.states <= exact.states
    assert merged.arrows == exact.arrows
    assert set(merged.ends) == set(exact.ends)
    assert set(merged.violations) == set(exact.violations)
    lengths = {name: len(one.exchanges) for name, one in exact.violations.items()}
    assert {name: len(one.exchanges) for name, one in merged.violations.items()} == lengths


def test_reply_is_the_answer_of_a_model() -> None:
    scenario = Scenario(replies=("yes",))
    effect = AskModel(label="q", say=(Message(role="user", content="?"),))
    texts = [one.text for one in Domain(scenario, {}).answers(effect)]
    assert texts[0] == "model: yes"
    assert any(isinstance(one.answer, ModelReplied) for one in Domain(scenario, {}).answers(effect))


# -- what tells runs apart --------------------


class Item(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class Hidden(Context):
    """Fields whose contents are easily overlooked."""

    few: Annotated[tuple[str, ...], Field(max_length=1)] = ()
    item: Item = Item()
    secret: SecretStr = SecretStr("")
    mixed: tuple[int | bool, ...] = ()
    said: str = ""

    @functools.cached_property
    def loud(self) -> str:
        """It is kept beside the fields."""
        return self.said.upper()


class T(Enum):
    FIRST, SECOND, THIRD, END = "first", "second", "third", "end"


Write = Callable[[str], dict[str, Any]]


def three(first: Write, second: Write, look: Callable[[Hidden], Any]) -> Explored:
    """Two states write what the replies "x" and "y" make of their fields; then `look` says what is wrong."""
    every = frozenset(Hidden.model_fields)

    def asks(write: Write) -> Any:
        def visit(c: Hidden, run: Run) -> Visit:
            reply = yield from do(AskModel(say=(Message(role="user", content="?"),), label="q"))
            return write(reply.text), Asked()

        return visit

    def begin(input: Any, options: Any) -> Hidden:
        made = Hidden()
        assert not made.loud
        return made

    asked = frozenset({AskModel})
    machine = Machine(
        name="three", options=Options, context=Hidden, begin=begin,
        initial=T.FIRST,
        table={T.FIRST: {Asked: T.SECOND}, T.SECOND: {Asked: T.THIRD}, T.THIRD: {Good: T.END}},
        states=[
            State(T.FIRST, asks(first), every, every, asked),
            State(T.SECOND, asks(second), every, every, asked),
            State(T.THIRD, lambda c, run: ({}, Good()), holds=lambda c, left: "no" if look(c) else ""),
        ],
        result=lambda c, run: Exit(reason="over", ok=True), exits={"over": "it is over"},
    )  # fmt: skip
    return explored(machine, replies=("x", "y"))


def writes_nothing(text: str) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(("first", "second", "look", "name"), [
    (
        lambda text: {"few": Append("1")} if text == "y" else {}, lambda text: {"few": Append("2")},
        lambda c: False, "BadPatch",
    ),
    (
        lambda text: {"item": Item(name=text)}, writes_nothing,
        lambda c: getattr(c.item, "name", "") == "y", "InvariantViolated",
    ),
    (
        lambda text: {"secret": SecretStr(text)}, writes_nothing,
        lambda c: c.secret.get_secret_value() == "y", "InvariantViolated",
    ),
    (lambda text: {"said": text}, writes_nothing, lambda c: c.loud == "Y", "InvariantViolated"),
], ids=["append to a short tuple", "extra values", "a secret", "a cached property"])  # fmt: skip
def test_field_tells_runs_apart_by_all_that_it_holds(first: Any, second: Any, look: Any, name: str) -> None:
    found = three(first, second, look)
    assert name in {one.name for one in found.violations.values()}
    assert not found.conflicts


def test_value_equal_to_old_one_is_still_written() -> None:
    found = three(
        lambda text: {"mixed": (True,) if text == "y" else ()},
        lambda text: {"mixed": (1,)},
        lambda c: c.mixed[0] is True,
    )
    assert not found.violations


def test_property_memory_tells_runs_apart_by_all_that_it_holds() -> None:
    def step(first: SecretStr | None, x: Any) -> tuple[SecretStr | None, bool]:
        if first is None and isinstance(x.answer, ModelReplied):
            first = SecretStr(x.answer.text)
        return first, x.kind == "ended" and first is not None and first.get_secret_value() == "no"

    found = explored(small(), Property("the first reply is no no", step))
    assert [one.name for one in found.violations.values()] == ["the first reply is no no"]


# -- the domain --------------------


def question(**more: Any) -> AskModel:
    return AskModel(label="q", say=(Message(role="user", content="?"),), **more)


def test_reply_that_reads_like_a_failure_is_tried_beside_it() -> None:
    scenario = Scenario(replies=("transient", "x: timeout"), without=frozenset({"timeout"}))
    answers = [one.answer for one in Domain(scenario, {}).answers(question())]
    assert {"transient", "x: timeout"} <= {one.text for one in answers if isinstance(one, ModelReplied)}
    assert "transient" in {one.error for one in answers if isinstance(one, EffectFailed)}


def test_call_may_end_by_each_error() -> None:
    effect = CallTools(calls=(ToolCall(id="1", tool="pay"),))
    answers = [one.answer for one in Domain(Scenario(), {}).answers(effect)]
    errors = {one.results[0].error for one in answers if not isinstance(one, EffectFailed)}
    assert errors == {None, "failed", "transient", "timeout", "rejected", "expired", "unknown_outcome"}


def test_effects_side_by_side_get_answers_of_their_own() -> None:
    call = CallTools(calls=(ToolCall(id="1", tool="pay"),))
    tried = Domain(Scenario(), {}).answers(Together(effects=(question(beside=True), call)))
    rows = [one.answer.answers for one in tried]
    assert all(isinstance(one, ModelReplied | EffectFailed) for one, _ in rows)
    assert any(isinstance(first, ModelReplied) and not other.results[0].ok for first, other in rows)
    assert any(isinstance(first, EffectFailed) and other.results[0].ok for first, other in rows)


def test_offered_tool_is_called_with_each_of_its_choices() -> None:
    kinds = list("abcdefgh")
    spec = ToolSpec(
        name="look", description="", effect="read",
        parameters={"type": "object", "properties": {"kind": {"enum": kinds}}, "required": ["kind"]},
    )  # fmt: skip
    tried = Domain(Scenario(), {"look": spec}).answers(question(offer=("look",)))
    called = {one.answer.tool_calls[0].arguments for one in tried if getattr(one.answer, "tool_calls", ())}
    assert {f'{{"kind": "{kind}"}}' for kind in kinds} <= called


class Coded(BaseModel):
    code: str = Field(pattern=r"^[A-Z]{3}$")


def test_form_that_takes_no_reply_is_named() -> None:
    domain = Domain(Scenario(), {})
    domain.answers(question(form=Coded))
    assert list(domain.unfit) == ["q: no reply fits the form"]
    domain = Domain(Scenario(words={"code": ["ABC"], "cod": ["A"]}), {})
    domain.answers(question(form=Coded))
    assert not domain.unfit
    assert list(domain.unused) == ["words for `cod`"]


def test_counter_that_one_state_reads_does_not_tell_others_apart() -> None:
    @state(S.JUDGE, reads={"said"}, counts="judged")
    def counting(c: Memory, run: Run) -> VisitEnd:
        assert run.counts["judged"] > 0
        return {}, Good() if c.said == "yes" else Bad()

    found = explored(small(states=[ask_again, counting], caps=lambda options: {"judged": 3}))
    assert "count:rounds" not in found.needs["judge"]


@state(S.ASK, asks={AskModel}, writes={"said"}, counts="rounds")
def ask_again(c: Memory, run: Run) -> Visit:
    reply = yield from do(AskModel(say=(Message(role="user", content="well?"),), label="well"))
    return {"said": reply.text}, Asked()


def test_event_that_is_no_class_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`event` takes classes of events, as `event\(Paid\)`"):
        event("Paid")  # type: ignore[arg-type]  # what is refused


def test_longest_run_is_measured_over_merged_ones() -> None:
    found = explored(small())
    assert found.transitions is not None
    assert 6 <= found.transitions < found.limit


def test_fields_read_on_way_to_exception_tell_runs_apart() -> None:
    class T(Enum):
        FIRST, SECOND, JUDGE = "first", "second", "judge"

    def asking(label: str, field: str) -> Any:
        def visit(c: Memory, run: Run) -> Visit:
            reply = yield from do(AskModel(say=(Message(role="user", content="?"),), label=label))
            return {field: reply.text if field == "said" else reply.text == "no"}, Asked()

        return visit

    @state(T.JUDGE, reads={"said"})
    def raises(c: Memory, run: Run) -> VisitEnd:
        raise KeyError if c.said == "no" else ValueError

    model = frozenset({AskModel})
    machine = small(
        initial=T.FIRST,
        table={T.FIRST: {Asked: T.SECOND}, T.SECOND: {Asked: T.JUDGE}, T.JUDGE: {Good: S.END}},
        states=[
            State(T.FIRST, asking("one", "said"), writes=frozenset({"said"}), asks=model),
            State(T.SECOND, asking("two", "flag"), writes=frozenset({"flag"}), asks=model),
            raises,
        ],
        result=lambda c, run: Exit(reason="over"),
    )  # fmt: skip
    assert explored(machine).needs["second"] == ("said",)
