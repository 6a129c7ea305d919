"""Standing still: the kernel hands out a `Hold` instead of entering a state, and changes nothing by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.puppet import CALM, Ask, Context, Ended, Play, S, Stray, Told, Went, puppet
from tests.kernel.randomkit import random_patch, speaks
from tests.kernel.runkit import SAYS, nest, talkative
from workflows.kernel.errors import MachineError, PreconditionFailed
from workflows.kernel.hold import Hold
from workflows.kernel.log import Record
from workflows.kernel.machine import Machine
from workflows.kernel.moves import entered
from workflows.kernel.rebuild import rebuild
from workflows.kernel.snapshot import Snapshot
from workflows.kernel.stack import Stack, answered, began
from workflows.kernel.step import Cause, advance, close, go_on, note, reenter
from workflows.kernel.verify import definition_hash

Holds = Callable[[Snapshot[Any]], bool]


def always(snapshot: Snapshot[Any]) -> bool:
    """Before every state."""
    return True


def _through(machine: Machine[Any], seed: int) -> tuple[list[Record], Any]:
    """A whole random run, and its end; whoever stands still goes on at once."""
    r, nesting = Random(seed), nest(Random(seed + 1))
    records: list[Record] = []

    def kept(stack: Stack) -> Stack:
        records.extend(stack.records)
        while isinstance(stack.effect, Hold):
            stack = entered(stack, nesting, now=now)
            records.extend(stack.records)
        return stack

    now = 0.0
    try:
        stack = kept(began(machine, Context(), nesting, now=now))
        for _ in range(15):
            if stack.effect is None:
                break
            now += 1
            said = (random_patch(r), r.choice(SAYS))
            stack = kept(answered(stack, Told(said=speaks(said)), nesting, now=now))
    except MachineError as error:
        return [*records, *error.step.records], (type(error), str(error))
    return records, (stack.first.step.snapshot, stack.ledger, stack.effect, stack.exit)


@settings(CALM, max_examples=200)
@given(st.integers(0, 2**32))
def test_a_run_that_stands_still_now_and_then_is_the_same_run(seed: int) -> None:
    """Random machines with machines inside; records, counters and end are the same to the last."""
    machine, r = talkative(Random(seed)), Random(seed + 2)
    stood: Machine[Any] = replace(machine, hold=lambda snapshot: r.random() < 0.7)
    assert _through(stood, seed) == _through(machine, seed)


def test_before_each_state_and_once_for_each_arrival() -> None:
    play = Play(puppet(hold=always))
    seen = []
    for said in ([], [Went()], [Went()], [Ended()]):
        play.tell(*said)
        effect, snapshot = play.step.effect, play.step.snapshot
        assert isinstance(effect, Hold)
        seen.append((effect.state, snapshot.visit, snapshot.call))
        play.step = go_on(play.machine, play.step, now=play.now)
    assert seen == [("a", 1, 0), ("b", 2, 0), ("a", 3, 0), ("end", 4, 0)]
    assert play.step.exit is not None


def test_a_hold_costs_nothing_needs_no_grant_and_says_what_it_waits_for() -> None:
    play = Play(puppet(hold=always))
    assert play.step.effect == Hold(state="a")
    assert play.step.effect is not None
    assert play.step.effect.title == "stand still before a"
    assert {name: amount for name, amount in play.step.ledger.spent.items() if amount} == {"rounds": 1}


def test_it_is_the_run_s_and_no_part_of_the_definition() -> None:
    assert definition_hash(puppet(hold=always)) == definition_hash(puppet())


def test_it_sees_the_state_and_the_step_that_are_about_to_begin() -> None:
    seen: list[Any] = []

    def watch(snapshot: Snapshot[Any]) -> bool:
        seen.append((snapshot.state, snapshot.step, snapshot.context.total))
        return False

    Play(puppet(hold=watch, step_state=S.B)).tell(({"total": 1}, Went()), Went(), Went())
    assert seen == [(S.A, 0, 0), (S.B, 1, 1), (S.A, 1, 1), (S.B, 2, 1)]


def test_states_that_only_decide_are_stood_before_too() -> None:
    decides: Any = {S.B: {"enter": lambda c, at: Ended(), "resume": None, "grants": set()}}
    play = Play(puppet(states=decides, hold=lambda s: s.state is S.B)).tell(Went())
    assert play.step.effect == Hold(state="b")
    assert go_on(play.machine, play.step, now=2).exit is not None


def test_the_fail_state_is_stood_before_too() -> None:
    play = Play(puppet(fail_state=S.FAILED, hold=lambda s: s.state is S.FAILED)).tell(
        ({"hidden": "x"}, Went())
    )
    assert play.step.effect == Hold(state="failed")
    assert go_on(play.machine, play.step, now=2).exit is not None


def test_an_event_without_a_row_is_no_arrival() -> None:
    holds = [False]
    play = Play(puppet(on_unmatched="stay", hold=lambda s: holds[0]))
    holds[0] = True
    assert play.tell(Stray()).step.effect == Ask()


def test_a_state_that_is_entered_again_is_not_stood_before() -> None:
    play = Play(puppet(hold=lambda s: s.state is S.B)).tell(Went())
    assert play.step.effect == Hold(state="b")
    again = reenter(play.machine, play.step, Cause("Steered", "ann"), now=9)
    assert again.effect == Ask()


def test_the_precondition_is_asked_when_the_state_is_entered() -> None:
    """A person may have changed something meanwhile."""
    strict = {S.B: {"requires": lambda c, last: c.total > 0}}
    play = Play(puppet(states=strict, hold=lambda s: s.state is S.B)).tell(Went())
    with pytest.raises(PreconditionFailed):
        go_on(play.machine, play.step, now=2)
    told = note(play.machine, play.step, Cause("Steered", "ann"), now=2, patch={"total": 1})
    assert told.effect == Hold(state="b")
    assert go_on(play.machine, told, now=3).effect == Ask()


def test_the_wait_is_not_the_visit_s() -> None:
    play = Play(puppet(hold=lambda s: s.state is S.B)).tell(Went())
    step = go_on(play.machine, play.step, now=500)
    record = advance(play.machine, step, Told(said=Went()), now=501).records[0]
    assert (record.started, record.finished) == (500, 501)


def test_an_answer_to_a_machine_that_stands_still_is_an_error_that_changes_nothing() -> None:
    play = Play(puppet(hold=always))
    with pytest.raises(MachineError, match="in state a, an answer came, but the state is not entered yet"):
        advance(play.machine, play.step, Told(said=Went()), now=1)


def test_a_machine_that_does_not_stand_still_cannot_go_on() -> None:
    play = Play(puppet())
    with pytest.raises(MachineError, match="does not stand still before it: it waits for 'ask'"):
        go_on(play.machine, play.step, now=1)
    play.tell(Ended())
    with pytest.raises(MachineError, match="does not stand still before it: the run is over"):
        go_on(play.machine, play.step, now=1)


def test_a_run_that_stands_still_can_be_ended_there() -> None:
    play = Play(puppet(hold=lambda s: s.state is S.B)).tell(Went())
    closed = close(play.machine, play.step, "aborted", now=3, by="ann")
    assert closed.exit is not None
    assert (closed.exit.reason, closed.effect) == ("aborted", None)
    assert rebuild(play.machine, [*play.records, *closed.records])[0] is S.B
