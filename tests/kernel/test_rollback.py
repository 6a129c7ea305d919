"""Rollback: step N is begun again as the log says that it began; what was spent or numbered stays so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.puppet import CALM, Ask, Ended, S, Went, puppet
from tests.kernel.runkit import ANN, INNER, MODEL, Played, Run, same, written
from tests.kernel.test_stack import nest as nest_notes
from tests.kernel.test_stack import outer_machine, said, subgraph
from tests.kernel.test_stack import run as run_notes
from workflows.kernel.errors import InvariantViolation, MachineError, PreconditionFailed, RecoverableError
from workflows.kernel.ledger import reserved_for
from workflows.kernel.log import ROLLED_BACK, lineage
from workflows.kernel.machine import Machine
from workflows.kernel.moves import rolled_back
from workflows.kernel.rebuild import rebuild
from workflows.kernel.restore import checkpoints, restored, steps_done
from workflows.kernel.stack import Nesting, Stack, answered, closed, unspent

SEEDS = st.integers(0, 2**32)


@settings(CALM, max_examples=300)
@given(SEEDS)
def test_a_step_that_is_begun_again_is_as_it_was_whatever_came_after_it(seed: int) -> None:
    """Random machines with machines inside, random play, rollbacks to any step, one after the other."""
    run = Run(seed)
    for branch in range(1, run.r.randint(2, 6)):
        run.tell()
        if run.failed:
            return
        run.check()
        same(run)
        step = run.r.choice(sorted(run.seen))
        target, before, old = restored(run.machine, run.records, step), run.stack, len(run.records)
        if not run.back(step):
            return
        run.check()
        same(run)
        back = next(record for record in run.records[old:] if record.event == ROLLED_BACK)
        assert (back.to, back.back_to, back.branch) == (target.state.value, target.seq - 1, branch)
        assert (back.by, back.reason, back.about) == (ANN.by, ANN.reason, ANN.about)
        assert rebuild(run.machine, run.records[: back.seq + 1]) == (target.state, target.context)
        assert run.snapshot.visit > before.first.step.snapshot.visit
        assert all(record.branch == branch for record in run.records[back.seq :])
        returned = reserved_for(before.effect)
        for name, amount in before.ledger.spent.items():
            assert run.stack.ledger.used(name) >= amount - returned.get(name, 0)


@settings(CALM, max_examples=100)
@given(SEEDS)
def test_no_place_of_a_run_is_ever_used_twice(seed: int) -> None:
    """Places are the stems of activity ids and idempotency keys, also on other branches."""
    run = Run(seed)
    places: list[str] = []

    def keep(stack: Stack, kept: Any = run.keep) -> None:
        kept(stack)
        places.extend([stack.top.place] if stack.effect else [])

    run.keep = keep  # type: ignore[method-assign]  # the run is watched
    for _ in range(4):
        run.tell()
        if run.failed or not run.back(run.r.choice(sorted(run.seen))):
            break
    assert len(places) == len(set(places))


# -- by hand --------------------


def stepping(**changes: Any) -> Machine[Any]:
    """Each visit of B is a step."""
    return puppet(**{"step_state": S.B, **changes})


def test_the_state_is_entered_anew_on_a_branch_of_its_own() -> None:
    play = Played(stepping()).tell(({"total": 1}, Went()), ({"total": 10}, Went()), Went())
    assert play.context.total == 11
    play.back(1)
    s = play.stack.first.step.snapshot
    assert (s.state, s.step, s.visit, s.call, s.branch, s.context.total) == (S.B, 1, 5, 1, 1, 1)
    assert play.stack.effect == Ask()
    (record,) = play.stack.records
    assert (record.event, record.state, record.to, record.step, record.branch) == (
        ROLLED_BACK, "b", "b", 0, 1,
    )  # fmt: skip
    assert (record.back_to, record.patch, record.by) == (1, {}, "ann")


def test_its_record_says_which_state_was_left_and_when() -> None:
    play = Played(stepping()).tell(Went(), Went()).back(1)
    (record,) = play.stack.records
    assert (record.state, record.to, record.started, record.finished) == ("a", "b", 3, 3)


def test_a_step_that_was_left_behind_is_no_longer_there_and_the_next_one_is_counted_anew() -> None:
    play = Played(stepping()).tell(*[Went()] * 5)
    assert [point.step for point in checkpoints(play.machine, play.records)] == [0, 1, 2, 3]
    play.back(1)
    with pytest.raises(ValueError, match="step 2 is none that puppet has begun; there are 0 to 1"):
        play.back(2)
    play.tell(Went(), ({"total": 5}, Went()))
    assert play.stack.first.step.snapshot.step == 2
    play.back(2)
    assert (play.context.total, play.stack.first.step.snapshot.branch) == (5, 2)


@pytest.mark.parametrize("step", [-1, 4, 99])
def test_a_step_that_was_never_begun_is_refused_with_those_that_were(step: int) -> None:
    play = Played(stepping()).tell(*[Went()] * 5)
    with pytest.raises(ValueError, match=f"step {step} is none .* there are 0 to 3"):
        play.back(step)
    with pytest.raises(ValueError, match="there are 0, the start"):
        Played(puppet()).back(1)


def test_the_start_is_a_step_too_and_what_on_enter_wrote_there_is_written_once() -> None:
    count = {"on_enter": lambda c: {"total": 1}}
    play = Played(stepping(states={S.A: count})).tell(Went(), Went())
    assert play.context.total == 2
    assert play.back(0).context.total == 1
    assert play.tell(Went()).stack.first.step.snapshot.step == 1


def test_where_a_run_begins_in_its_step_state_its_start_is_step_one_too() -> None:
    play = Played(puppet(step_state=S.A)).tell(({"total": 1}, Went()), Went())
    assert [(p.step, p.seq, p.state) for p in checkpoints(play.machine, play.records)] == [
        (0, 0, "a"), (1, 0, "a"), (2, 2, "a"),
    ]  # fmt: skip
    for step in (0, 1):
        again = Played(puppet(step_state=S.A)).tell(({"total": 1}, Went()), Went()).back(step)
        s = again.stack.first.step.snapshot
        assert (s.step, s.transitions, s.last, s.context.total) == (1, 0, None, 0)


def test_counters_of_the_machine_go_back_and_the_ledger_does_not() -> None:
    machine = stepping(hold_back=lambda c, move, at: ({}, Went()), max_transitions=9)
    play = Played(machine).tell(Went(), Ended(), Went())
    before = play.stack.first.step
    assert (before.snapshot.hold_backs, before.snapshot.transitions) == (1, 3)
    play.back(1)
    after = play.stack.first.step
    assert (after.snapshot.hold_backs, after.snapshot.transitions) == (0, 1)
    assert after.ledger.used("rounds") == before.ledger.used("rounds") == 2
    play.tell(Ended())
    assert play.stack.first.step.snapshot.hold_backs == 1


@pytest.mark.parametrize(("begun", "paid"), [(False, 1), (True, 2)])
def test_what_was_reserved_for_a_call_that_was_never_begun_is_given_back(begun: bool, paid: int) -> None:
    """One that was begun may have been billed."""
    asks = {S.B: {"grants": {"ask", "call_model"}}}
    play = Played(stepping(states=asks)).tell(Went(), MODEL)
    assert play.stack.ledger.used("model_calls") == 1
    here = play.stack, play.records, 1, play.nesting
    play.keep(rolled_back(*here, cause=ANN, now=9, begun=begun))
    assert play.stack.effect == Ask()
    play.tell(MODEL)
    assert play.stack.ledger.used("model_calls") == paid


def test_the_reservation_of_a_machine_inside_is_given_back_too() -> None:
    inner = puppet(states={S.A: {"grants": {"ask", "call_model"}}})
    play = Played(stepping(states={S.B: {"grants": {"ask", "run_machine"}}}))
    play.nesting = Nesting(lambda call, depth: (inner, play.context))
    play.tell(Went(), INNER, MODEL)
    assert play.stack.ledger.used("model_calls") == 1
    here = play.stack, play.records, 1, play.nesting
    for begun in (False, True):
        assert rolled_back(*here, cause=ANN, now=9, begun=begun).ledger.used("model_calls") == begun
        left = closed(play.stack if begun else unspent(play.stack), "aborted", now=9)
        assert left.ledger.used("model_calls") == begun


def test_a_run_that_is_over_can_begin_a_step_again() -> None:
    play = Played(stepping()).tell(Went(), Ended())
    assert play.stack.exit is not None
    play.back(1)
    assert play.stack.exit is None
    assert play.stack.effect == Ask()


def test_an_invariant_that_looks_at_the_last_transition_sees_the_one_that_led_there() -> None:
    came: list[Any] = []

    def holds(c: Any, last: Any) -> bool:
        came.append(last.seq if last else None)
        return True

    watched = {"holds": holds}
    play = Played(stepping(states={S.B: watched})).tell(Went(), Went())
    came.clear()
    play.back(1)
    assert came[0] == 1


def test_the_machine_may_tell_the_restored_state_of_what_was_undone() -> None:
    told: Any = lambda before, c: {"tree": {"from": before.total, "to": c.total}}  # noqa: E731  # one line
    play = Played(stepping(on_rollback=told)).tell(({"total": 1}, Went()), ({"total": 2}, Went()))
    assert play.back(1).context.tree == {"from": 3, "to": 1}
    assert rebuild(play.machine, written(play.records)) == (S.B, play.context)
    assert play.back(1).context.tree == {"from": 1, "to": 1}
    assert checkpoints(play.machine, play.records)[1].seq == play.records[-1].seq


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        ({"on_rollback": lambda before, c: {"total": 99}}, InvariantViolation),
        ({"states": {S.B: {"requires": lambda c, last: c.hidden}}}, PreconditionFailed),
        ({"on_rollback": lambda before, c: _refuse()}, MachineError),
    ],
)
@pytest.mark.parametrize("fail", [None, S.FAILED])
def test_a_rollback_that_breaks_a_rule_is_refused_and_the_run_goes_on(
    broken: Any, kind: type[MachineError], fail: S | None
) -> None:
    """Whatever the machine's policy: a person's slip does not end a run."""
    sound = stepping(states={S.B: {"holds": lambda c, last: c.total < 9}}, fail_state=fail)
    play = Played(sound).tell(Went(), Went())
    changed = broken.get("states")
    if changed:
        stage = replace(sound.states[S.B], requires=lambda c, last: False)
        play.machine = replace(sound, states={**sound.states, S.B: stage})
    else:
        play.machine = replace(sound, on_rollback=broken["on_rollback"])
    play.stack = replace(play.stack, frames=(replace(play.stack.first, machine=play.machine),))
    before, log = play.stack, len(play.records)
    with pytest.raises(kind):
        play.back(1)
    assert (play.stack, len(play.records)) == (before, log)
    assert play.tell(Ask()).stack.effect == Ask()


def _refuse() -> Any:
    raise RecoverableError("not from here")


def test_machines_at_work_inside_are_closed_and_what_they_spent_is_kept() -> None:
    nesting = nest_notes()
    stacks, log = run_notes(outer_machine(subgraph()), said("a", 1), nesting=nesting)
    stack = stacks[-1]
    assert len(stack.frames) == 2
    back = rolled_back(stack, log, 1, nesting, cause=ANN, now=9.0, begun=True)
    assert [(r.machine, r.event, r.reason, r.by, r.branch) for r in back.records] == [
        ("inner", "Closed", "rolled_back", "ann", 0), ("outer", ROLLED_BACK, ANN.reason, "ann", 1),
    ]  # fmt: skip
    assert [r.seq for r in back.records] == [len(log), len(log) + 1]
    assert len(back.frames) == 1
    assert back.first.step.ledger.used("model_calls") == stack.ledger.used("model_calls") + 1 == 3
    again = answered(back, said("b"), nesting, now=10.0)
    inner = again.top.step.snapshot
    assert (inner.within, inner.branch, again.records[-1].branch) == ("inside#4:1", 1, 1)
    assert rebuild(again.top.machine, [*log, *back.records, *again.records], "inside#4:1")[1] == inner.context


def test_a_step_is_restored_as_it_was_when_its_state_was_about_to_be_entered_last() -> None:
    """On the branch, and with the visits, of then; also where another branch has begun since."""
    count = {"on_enter": lambda c: {"total": 1}}
    play = Played(stepping(states={S.A: count})).tell(*[Went()] * 3).back(1).tell(Went(), Went(), Went())

    def at(step: int) -> tuple[int, int, int]:
        there = restored(play.machine, play.records, step)
        return there.visit, there.branch, there.seq

    assert [at(step) for step in (0, 1, 2)] == [(0, 0, 2), (4, 1, 6), (6, 1, 8)]
    play.back(0)
    assert at(0) == (8, 2, 10)
    points = checkpoints(play.machine, play.records)
    assert restored(play.machine, play.records, 0, points) == restored(play.machine, play.records, 0)


def test_a_rollback_may_end_the_run_at_a_limit_that_is_used_up() -> None:
    play = Played(stepping(states=_asks_models()), model_calls=2).tell(*[Went()] * 3)
    assert play.stack.effect == MODEL
    play.back(1, begun=True)
    assert play.stack.exit is not None
    assert play.stack.exit.reason == "limit"


def _asks_models() -> Any:
    return {S.B: {"enter": lambda c, at: MODEL, "grants": {"ask", "call_model"}}}


def test_the_records_of_machines_inside_are_no_steps_of_the_run() -> None:
    """The inner machine of these tests begins a step of its own."""
    _, log = run_notes(outer_machine(subgraph()), said("a"), said("b"), said("c"))
    assert [record.within for record in log if record.machine == "inner"] == ["inside#2:1"] * 2
    assert [point.step for point in checkpoints(outer_machine(subgraph()), log)] == [0, 1]


def test_steps_are_counted_by_the_machine_if_it_counts_them_itself() -> None:
    play = Played(stepping()).tell(*[Went()] * 3)
    snapshot = play.stack.first.step.snapshot
    assert steps_done(play.machine, snapshot) == 1
    assert steps_done(replace(play.machine, steps_done=lambda c: c.total + 7), snapshot) == 7


def test_a_log_without_its_beginning_shows_no_steps() -> None:
    play = Played(stepping()).tell(Went(), Went())
    with pytest.raises(ValueError, match="the log begins with record 1, Went, not with Started"):
        checkpoints(play.machine, play.records[1:])
    with pytest.raises(ValueError, match="the log begins with nothing"):
        checkpoints(play.machine, [])


def test_the_lineage_leaves_out_what_was_gone_back_behind_and_keeps_the_rest() -> None:
    play = Played(stepping()).tell(*[Went()] * 3).back(1).tell(Went()).back(0).tell(Went())
    assert [record.seq for record in lineage(play.records)] == [0, 6, 7]
    assert [record.back_to for record in play.records if record.back_to is not None] == [1, 0]
