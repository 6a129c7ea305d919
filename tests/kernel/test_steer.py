"""A person's message: before the next model call, and no call that was made is made again for it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import CallModel, Effect, Message, ModelReplied, Transcript
from tests.kernel.puppet import CALM, Ask, Ended, S, Told, Went, hear, puppet
from tests.kernel.runkit import INNER, MODEL, Played, Run
from workflows.kernel.errors import (
    BadPatch,
    InvariantViolation,
    MachineError,
    PreconditionFailed,
    RecoverableError,
)
from workflows.kernel.hold import Hold
from workflows.kernel.machine import At, Machine
from workflows.kernel.moves import steerable, steered
from workflows.kernel.rebuild import rebuild
from workflows.kernel.stack import Nesting, Stack, answered
from workflows.kernel.step import Cause

ANN = Cause("Steered", by="ann", reason="hurry", about={"command": "steer"})


def _prompt(c: Any, at: At) -> CallModel:
    """The names that the context holds, one message each."""
    return CallModel(transcript=Transcript(Message(role="user", content=name) for name in c.names))


def _fold(c: Any, text: str) -> dict[str, Any]:
    return {"names": [text]}


def talker(again: Any = False, **changes: Any) -> Machine[Any]:
    """A asks the model at once, and then what it is told; B only asks."""
    asks: Any = {"enter": _prompt, "grants": {"ask", "call_model", "run_machine"}, "again": again}
    states = {S.A: {**asks, "resume": hear}, **changes.pop("states", {})}
    return puppet(states=states, **{"fold_steer": _fold, "step_state": S.A, **changes})


def _steer(play: Played, text: str = "hurry") -> Stack:
    play.now += 1
    stack = steered(play.stack, text, play.nesting, cause=ANN, now=play.now)
    play.keep(stack)
    return stack


def _messages(effect: Effect | None) -> list[str]:
    assert isinstance(effect, CallModel)
    return [message.content for message in effect.transcript]


def test_the_call_at_hand_is_asked_for_anew_with_the_message_before_it() -> None:
    play = Played(talker())
    assert steerable(play.stack)
    assert _messages(_steer(play).effect) == ["hurry"]
    (record,) = play.stack.records
    assert (record.event, record.to, record.by, record.reason, record.about, record.writes) == (
        "Steered", None, "ann", "hurry", {"command": "steer"}, ("names",),
    )  # fmt: skip
    s = play.stack.first.step.snapshot
    assert (s.visit, s.call, s.step, s.transitions) == (2, 1, 1, 0)
    assert rebuild(play.machine, play.records) == (S.A, play.context)


def test_the_stale_call_is_not_paid_and_no_round_is_counted_for_it() -> None:
    play = Played(talker(), model_calls=1)
    for _ in range(3):
        _steer(play)
    ledger = play.stack.ledger
    assert (ledger.used("model_calls"), ledger.used("rounds")) == (1, 1)
    assert _messages(play.stack.effect) == ["hurry"]


def test_a_stale_call_that_was_begun_is_paid_and_so_is_the_new_one_where_a_limit_allows_it() -> None:
    """The provider may have billed it."""
    play = Played(talker(), model_calls=2)
    play.keep(steered(play.stack, "one", play.nesting, cause=ANN, now=1, begun=True))
    assert (_messages(play.stack.effect), play.stack.ledger.used("model_calls")) == (["one"], 2)
    assert steerable(play.stack)
    assert not steerable(play.stack, begun=True)
    play.keep(steered(play.stack, "two", play.nesting, cause=ANN, now=2, begun=True))
    assert (_messages(play.stack.effect), play.stack.ledger.used("model_calls")) == (["one"], 2)
    assert play.context.names == ["one", "two"]


@pytest.mark.parametrize("waits", [Ask(), INNER.model_copy(update={"mode": "child"})])
def test_what_is_no_model_call_goes_on_and_the_next_one_has_the_message(waits: Effect) -> None:
    play = Played(talker()).tell(waits)
    assert not steerable(play.stack)
    assert _steer(play).effect == waits
    s = play.stack.first.step.snapshot
    assert (s.visit, s.call, play.stack.records[0].to) == (1, 2, None)
    assert rebuild(play.machine, play.records) == (S.A, play.context)
    play.tell(_prompt)
    assert _messages(play.stack.effect) == ["hurry"]


def test_a_machine_that_stands_still_keeps_standing_and_has_the_message_when_it_goes_in() -> None:
    play = Played(talker(hold=lambda s: s.visit == 1))
    assert _steer(play).effect == Hold(state="a")
    assert play.context.names == ["hurry"]


@pytest.mark.parametrize(
    ("again", "anew"),
    [(False, False), (True, True), (lambda c: c.total == 1, True), (lambda c: c.total == 2, False)],
)
def test_later_calls_of_a_visit_are_asked_for_anew_only_where_the_state_says_so(
    again: Any, anew: bool
) -> None:
    play = Played(talker(again)).tell(({"total": 1}, MODEL))
    assert play.stack.top.step.snapshot.call == 2
    assert steerable(play.stack) is anew
    stack = _steer(play)
    assert (stack.effect == MODEL) is not anew
    assert stack.top.step.snapshot.visit == (2 if anew else 1)


def test_a_call_that_a_limit_would_refuse_now_is_not_asked_for_anew() -> None:
    """What a machine says at a limit, it may say only once."""
    play = Played(talker(on_limit=lambda c, breach, at: MODEL), model_calls=0)
    assert play.stack.effect == MODEL
    assert not steerable(play.stack)
    assert _steer(play).effect == MODEL


def test_what_was_read_before_the_message_is_still_named_by_the_next_record() -> None:
    play = Played(talker()).tell(lambda c, at: (c.goal, Ask())[1])
    _steer(play)
    play.tell(Went())
    assert play.records[-2].reads == ()
    assert "goal" in play.records[-1].reads


def test_a_machine_that_takes_no_messages_refuses_them_readably() -> None:
    play = Played(puppet())
    with pytest.raises(MachineError, match="cannot be heard: none of its machines takes messages"):
        _steer(play)
    with pytest.raises(MachineError, match="the run is over"):
        _steer(Played(talker()).tell(Ended()))


def _refuses(c: Any, text: str) -> Any:
    raise RecoverableError("not now")


@pytest.mark.parametrize("fail", [None, S.FAILED])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("fold", "kind"),
    [
        (lambda c, text: {"total": 9}, InvariantViolation),
        (lambda c, text: {"total": "x"}, BadPatch),
        (lambda c, text: {"nosuch": 1}, MachineError),
        (_refuses, MachineError),
    ],
)
def test_a_message_that_breaks_a_rule_is_refused_and_the_run_goes_on(
    fold: Any, kind: type[MachineError], first: bool, fail: S | None
) -> None:
    """Whatever the machine's policy is."""
    strict: Any = {
        S.A: {"holds": lambda c, last: c.total < 9, "enter": _prompt, "grants": {"ask", "call_model"}}
    }
    play = Played(puppet(states=strict, fold_steer=fold, fail_state=fail))
    if not first:
        play.tell(Ask())
    before, log = play.stack, list(play.records)
    with pytest.raises(kind):
        _steer(play)
    assert (play.stack, play.records) == (before, log)
    play.tell(Went())
    assert play.stack.first.step.snapshot.state is S.B


def test_a_state_that_cannot_be_entered_with_the_message_refuses_it() -> None:
    strict: Any = {
        S.A: {"requires": lambda c, last: not c.names, "enter": _prompt, "grants": {"ask", "call_model"}}
    }
    play = Played(puppet(states=strict, fold_steer=_fold, fail_state=S.FAILED))
    with pytest.raises(PreconditionFailed):
        _steer(play)
    assert play.context.names == []


def _nested(inner: Machine[Any]) -> Played:
    """The puppet, with this machine at work inside."""
    play = Played(talker())
    play.nesting = Nesting(lambda call, depth: (inner, play.context))
    return play.tell(INNER)


def test_the_machine_at_work_inside_hears_the_message() -> None:
    inner = talker()
    play = _nested(inner)
    assert _messages(_steer(play).effect) == ["hurry"]
    assert [(r.event, r.within) for r in play.stack.records] == [("Steered", "a#1:2")]
    assert play.context.names == []
    assert rebuild(inner, play.records, "a#1:2")[1].names == ["hurry"]


def test_where_the_machine_inside_takes_no_messages_the_one_below_hears_it() -> None:
    inner = talker(fold_steer=None)
    play = _nested(inner)
    assert not steerable(play.stack)
    waits = play.stack.effect
    assert _steer(play).effect == waits
    assert [(r.event, r.within) for r in play.stack.records] == [("Steered", "")]
    assert play.context.names == ["hurry"]
    play.tell(Went(), Went(), Ask())
    assert [record.seq for record in play.records] == list(range(len(play.records)))
    for frame in play.stack.frames:
        there = frame.step.snapshot.state, frame.step.snapshot.context
        assert rebuild(frame.machine, play.records, frame.within) == there


@settings(CALM, max_examples=200)
@given(st.integers(0, 2**32))
def test_messages_at_any_time_leave_a_run_that_the_log_tells_of(seed: int) -> None:
    """Random machines with machines inside; with rollbacks between the messages."""
    run, r = Run(seed), Random(seed)
    for _ in range(8):
        run.tell(3)
        if run.failed or run.stack.effect is None:
            return
        effect, anew, old, seen = run.stack.effect, steerable(run.stack), run.stack.top.place, dict(run.seen)
        try:
            run.keep(steered(run.stack, "m", run.nesting, cause=ANN, now=run.now))
        except MachineError:
            run.seen = seen
            continue
        run.check()
        if not anew:
            assert (run.stack.effect, run.stack.top.place) == (effect, old)
        if r.random() < 0.2:
            run.back(r.choice(sorted(run.seen)))
            run.check()


def test_an_answer_comes_to_the_call_that_was_asked_for_anew() -> None:
    play = Played(talker(states={S.B: {"enter": _prompt, "grants": {"ask", "call_model"}, "resume": _took}}))
    play.tell(Went())
    _steer(play)
    stack = answered(play.stack, ModelReplied(text="yes"), play.nesting, now=9.0)
    assert stack.first.step.snapshot.context.goal == "yes"


def _took(c: Any, reply: Any, at: At) -> Any:
    return ({"goal": reply.text}, Ask()) if not isinstance(reply, Told) else reply.said
