"""Fork: a new run begins a step of another one, and is told what its own task says otherwise."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import Frozen, JsonObject, Message, Transcript
from tests.kernel.puppet import CALM, Ask, Context, Item, Looped, S, Went, hear, puppet
from tests.kernel.randomkit import random_patch
from tests.kernel.runkit import BOB, INNER, Played, Run, same, written
from workflows.kernel.errors import InvariantViolation
from workflows.kernel.fields import APPEND, COUNT, MERGE, Fields
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import FORKED, Record
from workflows.kernel.machine import Machine, State
from workflows.kernel.moves import forked
from workflows.kernel.rebuild import rebuild
from workflows.kernel.restore import checkpoints
from workflows.kernel.retell import deaf, retold, told
from workflows.kernel.stack import Nesting

SEEDS = st.integers(0, 2**32)


def _otherwise(r: Random) -> Context:
    """A first context with some fields that are not those that the source began with."""
    values: dict[str, Any] = {
        "goal": "another", "hidden": "changed", "total": r.randint(-2, 2), "why": "because",
        "items": (Item(name="new"),), "names": ["n"], "slots": ("s", "t"), "tree": {"a": 1, "b": {"c": 2}},
    }  # fmt: skip
    return Context(**{name: values[name] for name in r.sample(sorted(values), r.randint(0, len(values)))})


@settings(CALM, max_examples=300)
@given(SEEDS)
def test_forks_and_rollbacks_of_forks_and_forks_of_forks_are_what_their_one_log_says(seed: int) -> None:
    """Random machines and play; at each turn the run goes on as a fork, told otherwise, or goes back."""
    run = Run(seed)
    for branch in range(1, 6):
        run.tell(10)
        if run.failed:
            return
        run.check()
        same(run)
        step, log = run.r.choice(sorted(run.seen)), len(run.records)
        done = run.fork(step, _otherwise(run.r)) if run.r.random() < 0.6 else run.back(step)
        if not done:
            return
        run.check()
        same(run)
        assert run.snapshot.branch == branch
        own = [record for record in run.records if not record.within]
        assert [record.visit for record in own] == sorted(record.visit for record in own)
        assert run.snapshot.visit > max(record.visit for record in own if record.seq < log)


@settings(CALM, max_examples=300)
@given(SEEDS)
def test_whatever_is_told_otherwise_the_context_is_rebuilt_from_the_log(seed: int) -> None:
    """Also where a field can only grow, count or be merged into: its whole value is in the fork's record."""
    r = Random(seed)
    context, fields = Context(), Fields.of(Context)
    for _ in range(r.randint(0, 4)):
        for name, delta in random_patch(r).items():
            try:
                value = fields.fold(name, getattr(context, name), fields.checked(name, delta))
            except ValueError:
                continue
            context = context.model_copy(update={name: value})
    new = context.model_copy(update=retold(context, [(Context(), _otherwise(r))]))
    assert fields.load(fields.dump(new)) == new
    assert retold(context, [(Context(), Context())]) == {}


# -- by hand --------------------


class Talk(Frozen):
    """A context as shipped machines have it."""

    goal: str
    transcript: Annotated[Transcript, APPEND] = Transcript()
    metadata: Annotated[JsonObject, MERGE] = {}
    tools: tuple[str, ...] = ()
    count: Annotated[int, COUNT] = 0


def _begin(goal: str, *tools: str) -> Talk:
    opening = (Message(role="system", content="be brief"), Message(role="user", content=goal))
    return Talk(goal=goal, transcript=Transcript(opening), metadata={"goal": goal, "retries": 0}, tools=tools)


def _talking(**slots: Any) -> Machine[Any]:
    """Two states that talk; each visit of B is a step. `slots` are other ones of A."""
    names, plain = frozenset(Talk.model_fields), puppet()
    talks = State(
        enter=lambda c, at: Ask(), resume=hear, grants={"ask"}, reads=names, writes=names, spends="rounds"
    )
    return Machine(
        name="talking", context=Talk, initial=S.A, final={S.END}, step_state=S.B, table=plain.rows,
        states={S.A: replace(talks, **slots), S.B: talks, S.END: State()}, result=plain.result,
    )  # fmt: skip


def _said(text: str) -> Any:
    """A message is added, one key is changed, the run moves on."""
    return {"transcript": (Message(role="assistant", content=text),), "metadata": {"retries": 1}}, Went()


def _take_in(c: Any, at: Any) -> Any:
    """A state that makes the first message of the goal, as the planner does."""
    told = {"goal": c.goal, "at": at.now}
    return {"transcript": (Message(role="user", content=c.goal),), "metadata": told}, Went()


def _forked(play: Played, step: int, after: Talk | None, **more: Any) -> Played:
    """The fork as a run of its own, behind the source's records."""
    before = Fields.of(Talk).load(play.records[0].patch)
    fork = object.__new__(Played)
    fork.machine, fork.nesting, fork.now, fork.records = play.machine, play.nesting, 100.0, play.records
    stack = forked(
        play.machine, play.records, step, play.nesting, cause=BOB, now=100.0,
        ledger=Ledger(caps={"model_calls": 5}), tools=("ls",), retell=(before, after) if after else None,
    )  # fmt: skip
    fork.keep(stack)
    return fork


def _source() -> Played:
    return Played(_talking(), _begin("find it", "grep")).tell(_said("one"), _said("two"), _said("three"))


def _texts(play: Played) -> list[str]:
    return [message.content for message in play.context.transcript]


def test_a_fork_is_a_run_of_its_own_with_its_own_clock_ledger_and_branch() -> None:
    play = _source()
    fork = _forked(play, 1, None)
    assert fork.records[: len(play.records)] == play.records
    (record,) = fork.stack.records
    assert (record.event, record.seq, record.back_to, record.branch, record.to) == (FORKED, 4, 1, 1, "b")
    assert (record.by, record.reason, record.about, record.patch) == ("bob", BOB.reason, BOB.about, {})
    first = fork.stack.first
    assert (first.step.snapshot.began, first.step.snapshot.step, first.tools) == (
        100.0,
        1,
        frozenset({"ls"}),
    )
    assert first.step.ledger == Ledger(caps={"model_calls": 5}, spent={"seconds": 0, "rounds": 1})
    assert _texts(fork) == ["be brief", "find it", "one"]
    assert rebuild(fork.machine, written(fork.records)) == (S.B, fork.context)


def test_a_fork_counts_visits_on_from_its_machine_s_own_whatever_ran_inside() -> None:
    outer = puppet(step_state=S.B, states={S.A: {"grants": {"ask", "run_machine"}}})
    play = Played(outer)
    play.nesting = Nesting(lambda call, depth: (puppet(), Context()))
    play.tell(Went(), Went(), INNER, *[Went()] * 5)
    assert [max(r.visit for r in play.records if bool(r.within) is inside) for inside in (False, True)] == [
        2,
        5,
    ]
    fork = forked(outer, play.records, 1, play.nesting, cause=BOB, now=100.0, ledger=Ledger(), tools=())
    s = fork.first.step.snapshot
    assert (s.visit, s.branch, s.seq) == (3, 1, len(play.records) + 1)


def test_a_fork_is_told_its_own_goal_and_keeps_what_had_been_said() -> None:
    """Whole fields, the beginning of what only grows, keys of what is merged into; all else stays."""
    fork = _forked(_source(), 1, _begin("find another", "grep", "ls"))
    assert _texts(fork) == ["be brief", "find another", "one"]
    assert fork.context.metadata == {"goal": "find another", "retries": 1}
    assert (fork.context.goal, fork.context.tools) == ("find another", ("grep", "ls"))
    (record,) = fork.stack.records
    assert set(record.reset) == set(record.patch) == set(record.writes) == {
        "goal", "transcript", "metadata", "tools",
    }  # fmt: skip
    assert rebuild(fork.machine, written(fork.records)) == (S.B, fork.context)


def test_a_fork_that_goes_back_before_its_beginning_keeps_its_own_goal() -> None:
    fork = _forked(_source(), 2, _begin("find another")).tell(_said("four"))
    assert _texts(fork.back(1)) == ["be brief", "find another", "one"]
    assert _texts(fork.back(0)) == ["be brief", "find another"]
    assert (fork.context.goal, fork.context.metadata["retries"]) == ("find another", 0)
    fork.tell(_said("again"), _said("b"))
    assert _texts(fork.back(1)) == ["be brief", "find another", "again"]
    assert rebuild(fork.machine, written(fork.records)) == (S.B, fork.context)


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize("goal", ["third", "find it"])
def test_a_fork_of_a_fork_is_told_its_own_goal_also_if_it_is_the_first_one_s(step: int, goal: str) -> None:
    """From before, at and behind the step where the first fork began."""
    fork = _forked(_source(), 1, _begin("second")).tell(_said("four"), _said("five"))
    again = _forked(fork, step, _begin(goal))
    assert (again.context.goal, again.context.metadata["goal"], _texts(again)[1]) == (goal, goal, goal)
    assert again.back(0).context.goal == goal


def test_a_fork_that_cannot_be_told_what_the_run_has_changed_by_itself_is_refused_with_the_field() -> None:
    play = Played(_talking(), _begin("find it")).tell(({"goal": "my own", "count": 2}, Went()), Went())
    with pytest.raises(ValueError, match=r"`goal` cannot be told anew: .* had changed it; go back to"):
        _forked(play, 1, _begin("another"))
    with pytest.raises(ValueError, match="`count` cannot be told anew"):
        _forked(play, 1, _begin("find it").model_copy(update={"count": 7}))
    assert _forked(play, 0, _begin("another")).context.goal == "another"
    assert _forked(play, 1, _begin("my own")).context.goal == "my own"
    assert _texts(_forked(play, 1, _begin("find it").model_copy(update={"transcript": Transcript()}))) == []


def test_a_rollback_of_a_fork_that_cannot_be_told_anew_is_refused() -> None:
    fork = _forked(_source().tell(({"goal": "my own"}, Went())), 0, _begin("another"))
    fork.tell(({"goal": "its own"}, Went())).back(1)
    assert fork.context.goal == "its own"
    changed = Played(_talking(), _begin("find it")).tell(({"goal": "my own"}, Went()), Went(), Went())
    again = _forked(changed, 2, _begin("my own"))
    assert again.back(1).context.goal == "my own"


@pytest.mark.parametrize("was", [(), ("be brief",), ("be brief", "be brief")])
def test_a_fork_that_goes_back_again_and_again_is_told_its_opening_once(was: tuple[str, ...]) -> None:
    """Also where the old opening is the beginning of the new one, or where there was none."""
    first = Talk(goal="g", transcript=Transcript(Message(role="user", content=text) for text in was))
    source = Played(_talking(), first).tell(_said("one"), _said("two"))
    opening = ("be brief", "be brief", "be kind")
    after = Talk(goal="h", transcript=Transcript(Message(role="user", content=text) for text in opening))
    fork = _forked(source, 1, after)
    assert _texts(fork) == [*opening, "one"]
    for _ in range(3):
        assert _texts(fork.back(0)) == list(opening)
        assert fork.context.goal == "h"
    fork.tell(_said("three"))
    for _ in range(3):
        assert _texts(fork.back(1)) == [*opening, "three"]
    assert rebuild(fork.machine, written(fork.records)) == (S.B, fork.context)


def test_only_what_goes_back_tells_a_run_something_anew() -> None:
    """The newest such record that says what; a person's message may say anything."""
    first, plain = _begin("first"), {"machine": "m", "state": "a"}

    def record(seq: int, said: Any, back_to: int | None) -> Record:
        return Record(seq=seq, event="e", back_to=back_to, about={"retold": said} if said else {}, **plain)

    told_so = [record(1, {"goal": "second"}, 0), record(2, {"goal": "a message"}, None), record(3, None, 1)]
    assert told(first, told_so).goal == "second"
    assert told(first, [*told_so, record(4, "nonsense", 1)]).goal == "second"
    assert told(first, [*told_so, record(4, {"goal": "third", "nosuch": 1}, 1)]).goal == "third"
    assert told(first, []) == first


def test_what_the_machine_made_of_its_goal_before_it_asked_for_anything_is_told_anew_too() -> None:
    play = Played(_talking(enter=_take_in), Talk(goal="find it")).tell(({"metadata": {"n": 1}}, Ask()))
    play.tell(({"transcript": (Message(role="assistant", content="one"),)}, Looped()), Went())
    for step in (0, 1):
        fork = _forked(play, step, Talk(goal="another"))
        assert _texts(fork)[0] == fork.context.goal == fork.context.metadata["goal"] == "another"
    assert fork.context.metadata["at"] == 0


def test_what_the_machine_made_of_its_goal_comes_behind_an_opening_that_is_new() -> None:
    play = Played(_talking(enter=_take_in), Talk(goal="find it")).tell(_said("one"))
    kind = Transcript([Message(role="system", content="be kind")])
    assert _texts(_forked(play, 1, Talk(goal="another", transcript=kind))) == ["be kind", "another"]


def test_what_the_run_has_begun_otherwise_or_taken_away_stays_so() -> None:
    before, after = Context(names=["a"], tree={"k": 1}), Context(names=["b"], tree={"k": 2})
    own = before.model_copy(update={"names": ["x", "y"], "tree": {}})
    assert retold(own, [(before, after)]) == {}


def test_a_field_is_heard_where_another_says_it_or_the_machine_makes_the_same_of_both() -> None:
    was, now = Context(goal="old", hidden="old"), Context(goal="new", hidden="new")
    changed = was.model_copy(update={"hidden": "changed"})
    assert deaf(changed, [(was, now)]) == []
    assert deaf(changed, [(was, now.model_copy(update={"hidden": "other"}))]) == ["hidden"]
    plain = Context(goal="plain", hidden="old")
    assert deaf(plain, [(plain, plain), (was, now.model_copy(update={"hidden": "old"}))]) == []


def test_nobody_is_asked_to_stand_still_for_a_beginning_that_is_only_looked_at() -> None:
    play, asked = Played(_talking(), _begin("find it")).tell(_said("one")), list[Any]()

    def hold(snapshot: Any) -> bool:
        asked.append(snapshot.state)
        return False

    play.machine = replace(play.machine, hold=hold)
    assert _texts(_forked(play, 1, _begin("another")))[1] == "another"
    assert asked == []


def test_a_task_that_the_machine_cannot_begin_with_is_told_field_by_field() -> None:
    """Its beginning is only looked at; the step that is begun decides."""
    strict = _talking(holds=lambda c, last: c.goal != "another")
    fork = _forked(Played(strict, _begin("find it")).tell(_said("one")), 1, _begin("another"))
    assert (fork.context.goal, _texts(fork)) == ("another", ["be brief", "another", "one"])


def test_keys_that_nobody_tells_any_more_go_and_new_ones_come() -> None:
    before = Talk(goal="g", metadata={"a": 1, "b": 1, "in": {"x": 1, "y": 1}})
    old = before.model_copy(update={"metadata": {"a": 1, "b": 2, "in": {"x": 1, "y": 2, "z": 3}, "own": 1}})
    after = Talk(goal="g", metadata={"in": {"x": 9, "y": 9}, "new": 1})
    assert retold(old, [(before, after)]) == {
        "metadata": {"b": 2, "in": {"x": 9, "y": 2, "z": 3}, "own": 1, "new": 1}
    }


def test_a_fork_that_the_machine_cannot_begin_is_refused() -> None:
    machine = _talking()
    play = Played(machine, _begin("find it")).tell(_said("one"))
    stage = machine.states[S.B]
    strict = replace(stage, holds=lambda c, last: c.goal == "find it")
    play.machine = replace(machine, states={**machine.states, S.B: strict})
    with pytest.raises(InvariantViolation, match="the invariant of b does not hold"):
        _forked(play, 1, _begin("another"))
    with pytest.raises(ValueError, match="step 2 is none that talking has begun"):
        _forked(play, 2, None)


def test_the_steps_of_a_fork_go_on_from_those_of_its_source() -> None:
    fork = _forked(_source(), 2, None).tell(_said("x"), _said("y"))
    assert [point.step for point in checkpoints(fork.machine, fork.records)] == [0, 1, 2, 3]
    assert checkpoints(fork.machine, fork.records)[2].started == 100.0
