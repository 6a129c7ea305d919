"""The slots around the table: errors of users' parts, limits, the gate before the end."""

from __future__ import annotations

from typing import Any

import pytest

from activities.contracts import CallModel, EffectFailed, ModelReplied, Transcript, Usage
from tests.kernel.puppet import ROWS, Ask, Context, Ended, Item, Play, S, Stray, Went, puppet
from workflows.kernel.errors import (
    AgentError,
    FatalError,
    InvariantViolation,
    MachineError,
    PermissionViolation,
    RecoverableError,
    TransientError,
)
from workflows.kernel.ledger import Ledger
from workflows.kernel.machine import Row
from workflows.kernel.step import advance, start

# -- on_error -------------------------------------------------------------------------------------------


def _raise(error: Exception) -> Any:
    def part(*_: object) -> Any:
        raise error

    return part


def _told(c: Any, failure: EffectFailed, at: Any) -> Any:
    return {"goal": f"{failure.error}/{failure.type}: {failure.message} in {at.state.value}"}, Ended()


ALL = dict.fromkeys(("transient", "recoverable", "fatal", "unknown_outcome"), _told)
RAISED: list[Any] = [
    (TransientError("slow"), "transient/TransientError: slow in a"),
    (RecoverableError("odd"), "recoverable/RecoverableError: odd in a"),
    (FatalError("bad key"), "fatal/FatalError: bad key in a"),
    (AgentError("plain"), "fatal/AgentError: plain in a"),
]


@pytest.mark.parametrize(("error", "goal"), RAISED)
def test_what_a_users_part_raises_goes_to_on_error_by_its_class(error: Exception, goal: str) -> None:
    play = Play(puppet(on_error=ALL)).tell(_raise(error))
    assert (play.state, play.context.goal) == (S.END, goal)


@pytest.mark.parametrize("kind", ["transient", "recoverable", "fatal", "unknown_outcome"])
def test_a_failed_effect_goes_to_on_error_by_its_class(kind: Any) -> None:
    play = Play(puppet(on_error=ALL)).tell(EffectFailed(error=kind, type="HTTP500", message="no"))
    assert play.context.goal == f"{kind}/HTTP500: no in a"


def test_a_failed_effect_of_a_class_without_handler_goes_to_resume() -> None:
    slots = {"resume": lambda c, answer, at: ({"goal": answer.type}, Ended())}
    play = Play(puppet(states={S.A: slots}, on_error={"transient": _told}))
    assert play.tell(EffectFailed(error="fatal", type="HTTP401", message="no")).context.goal == "HTTP401"


ODD = RecoverableError("odd")
PLACES: list[Any] = [
    pytest.param({"states": {S.A: {"on_exit": _raise(ODD)}}}, "a", id="on_exit"),
    pytest.param({"states": {S.B: {"on_enter": _raise(ODD)}}}, "a", id="on_enter"),
    pytest.param({"states": {S.B: {"holds": _raise(ODD)}}}, "a", id="invariant"),
    pytest.param({"states": {S.B: {"requires": _raise(ODD)}}}, "b", id="precondition"),
    pytest.param({"states": {S.B: {"enter": _raise(ODD)}}}, "b", id="enter"),
    pytest.param({"rows": [Row(S.A, Went, S.B, guard=_raise(ODD)), *ROWS[1:]]}, "a", id="guard"),
    pytest.param({"rows": [Row(S.A, Went, S.B, action=_raise(ODD)), ROWS[2], *ROWS[3:]]}, "a", id="action"),
]


@pytest.mark.parametrize(("changes", "where"), PLACES)
def test_on_error_hears_of_users_parts_wherever_they_are_called(changes: Any, where: str) -> None:
    """The candidate of the broken transition is dropped."""

    def answer(c: Any, failure: EffectFailed, at: Any) -> Any:
        return {"why": f"{failure.message} in {at.state.value}, total {c.total}"}, Ask()

    play = Play(puppet(on_error={"recoverable": answer}, **changes)).tell(({"total": 1}, Went()))
    assert play.context.why == f"odd in {where}, total {1 if where == 'b' else 0}"
    assert play.step.effect == Ask()


def test_without_on_error_it_is_a_broken_rule_that_names_the_cause() -> None:
    with pytest.raises(
        MachineError, match=r"in state a, FatalError \(bad\) came; there is no `on_error` for"
    ):
        Play(puppet()).tell(_raise(FatalError("bad")))
    assert Play(puppet(fail_state=S.FAILED)).tell(_raise(FatalError("bad"))).state is S.FAILED


def test_an_on_error_that_raises_itself_is_not_asked_again() -> None:
    machine = puppet(on_error={"fatal": _raise(FatalError("worse"))})
    with pytest.raises(MachineError, match=r"FatalError \(worse\) came; `on_error` had been asked already"):
        Play(machine).tell(_raise(FatalError("bad")))


def test_an_on_error_whose_event_raises_again_ends() -> None:
    """The event leads through the action that raised: without a bound this would turn for ever."""
    rows = [Row(S.A, Went, S.B, action=_raise(ODD)), *ROWS[2:]]
    with pytest.raises(MachineError, match="had been asked already"):
        Play(puppet(rows, on_error={"recoverable": lambda c, f, at: Went()})).tell(Went())


def test_on_error_stays_within_the_rights_of_the_failing_state() -> None:
    machine = puppet(on_error={"fatal": lambda c, f, at: c.hidden})
    with pytest.raises(PermissionViolation, match="'hidden' was read"):
        Play(machine).tell(_raise(FatalError("bad")))


def test_an_on_violation_that_raises_is_reported_with_the_broken_rule() -> None:
    machine = puppet(fail_state=S.FAILED, on_violation=_raise(FatalError("worse")), on_error=ALL)
    with pytest.raises(MachineError, match=r"Stray came; .*; the fail state cannot be entered: worse"):
        Play(machine).tell(Stray())


def test_a_bug_leaves_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        Play(puppet(on_error=ALL, fail_state=S.FAILED)).tell(lambda c, at: 1 / 0)


# -- limits ---------------------------------------------------------------------------------------------

MODEL = CallModel(transcript=Transcript())
CALLS: Any = {
    S.A: {"enter": lambda c, at: MODEL, "grants": {"call_model", "ask"}, "resume": lambda c, r, at: MODEL}
}
REPLY = ModelReplied(text="hm", usage=Usage(input_tokens=60, output_tokens=40), cost_usd=0.4)


def _run(machine: Any, **caps: float) -> Any:
    step = start(machine, Context(), now=0, ledger=Ledger(caps=caps))
    calls, records = 0, list(step.records)
    while step.effect is not None and calls < 50:
        calls += isinstance(step.effect, CallModel)
        step = advance(machine, step, REPLY, now=calls * 10)
        records += step.records
    return step, calls, records


@pytest.mark.parametrize(
    ("caps", "calls", "error"),
    [
        ({"model_calls": 3}, 3, "the limit is reached, model_calls: 3 of 3 spent"),
        ({"tokens": 250}, 3, "the limit is reached, tokens: 300 of 250 spent"),
        ({"cost_usd": 0.8}, 2, "the limit is reached, cost_usd: 0.8 of 0.8 spent"),
        ({"seconds": 25}, 3, "the limit is reached, seconds: 30 of 25 spent"),
        ({"tokens": 100, "model_calls": 1}, 1, "the limit is reached, model_calls: 1 of 1 spent"),
    ],
)
def test_a_limit_is_held_before_the_call_that_would_pass_it(caps: Any, calls: int, error: str) -> None:
    machine = puppet(states=CALLS, limit_reasons={"cost_usd": "cost_limit"})
    step, made, records = _run(machine, **caps)
    assert (made, step.exit.error, step.exit.ok) == (calls, error, False)
    assert step.exit.reason == ("cost_limit" if "cost_usd" in caps else "limit")
    assert (records[-1].event, step.snapshot.state) == ("Closed", S.A)


def test_a_limit_that_is_advice_ends_nothing() -> None:
    step = start(
        puppet(states=CALLS),
        Context(),
        now=0,
        ledger=Ledger(caps={"model_calls": 0}, advice=("model_calls",)),
    )
    assert step.effect == MODEL


def test_calls_are_reserved_once_and_settled_once() -> None:
    step, _, _ = _run(puppet(states=CALLS), model_calls=2)
    spent = step.ledger.spent
    assert {k: spent[k] for k in ("model_calls", "tokens", "input_tokens", "output_tokens", "cost_usd")} == {
        "model_calls": 2, "tokens": 200, "input_tokens": 120, "output_tokens": 80, "cost_usd": 0.8,
    }  # fmt: skip


LAST = CallModel(transcript=Transcript(), tool_choice="none", label="last call")


@pytest.mark.parametrize(
    ("said", "calls", "path"),
    [
        (None, 2, ["Closed"]),
        (({"goal": "out"}, None), 2, ["call_model", "Closed"]),
        (Ended("enough"), 2, ["Ended"]),
        (({"goal": "out"}, Ended("enough")), 2, ["Ended"]),
        (LAST, 3, ["Closed"]),
        (({"goal": "out"}, LAST), 3, ["call_model", "Closed"]),
    ],
    ids=["end", "patch and end", "event", "patch and event", "one more", "patch and one more"],
)
def test_what_may_be_said_at_a_limit(said: Any, calls: int, path: list[str]) -> None:
    asked: list[str] = []

    def resolve(c: Any, breach: Any, at: Any) -> Any:
        asked.append(f"{breach}, call {at.call}")
        return said if len(asked) == 1 else None

    step, made, records = _run(puppet(states=CALLS, on_limit=resolve), model_calls=2)
    assert asked[0] == "model_calls: 2 of 2 spent, call 2"
    assert (made, [r.event for r in records[1:]]) == (calls, path)
    assert step.snapshot.context.goal == ("out" if isinstance(said, tuple) else "goal")
    assert step.exit is not None
    assert step.ledger.used("model_calls") == calls


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (Ask(kind="ask").model_copy(update={"kind": "run_code"}), PermissionViolation),
        (({"hidden": "x"}, LAST), PermissionViolation),
        (({"hidden": "x"}, Ended()), PermissionViolation),
    ],
)
def test_what_is_said_at_a_limit_is_held_to_the_states_rights(said: Any, kind: Any) -> None:
    with pytest.raises(kind):
        _run(puppet(states=CALLS, on_limit=lambda c, breach, at: said), model_calls=0)


def test_a_resolver_that_always_wants_one_more_is_stopped_by_the_bound_on_effects() -> None:
    states = {S.A: {**CALLS[S.A], "max_effects": 5}}
    with pytest.raises(MachineError, match="asked for more than 5 effects"):
        _run(puppet(states=states, on_limit=lambda c, breach, at: ({"total": 1}, LAST)), model_calls=1)


# -- the gate before the end ----------------------------------------------------------------------------


def test_the_end_is_held_back_once_and_then_let_through() -> None:
    moves = []

    def hold(c: Any, move: Any, at: Any) -> Any:
        moves.append((type(move.event).__name__, move.target, move.state, c.total))
        return {"hidden": "wrap up"}, Went("one more round")

    play = Play(puppet(hold_back=hold)).tell(({"total": 1}, Ended("done")))
    assert moves == [("Ended", S.END, S.A, 1)]
    assert (play.state, play.context.hidden, play.context.total) == (S.B, "wrap up", 1)
    assert play.path[1:] == [("a", "HeldBack", None), ("a", "Went", "b")]
    assert play.tell(Ended()).step.exit is not None
    assert len(moves) == 1


def test_a_gate_that_says_nothing_lets_the_run_end_and_may_be_asked_again() -> None:
    asked = []
    hold: Any = lambda c, move, at: asked.append(at.visit)  # noqa: E731  # a gate of one line
    play = Play(puppet(hold_back=hold, max_hold_backs=2)).tell(Ended())
    assert (asked, play.step.snapshot.hold_backs) == ([1], 0)


def test_a_gate_may_not_break_the_states_invariant() -> None:
    holds = {"holds": lambda c, last: c.hidden == "secret"}
    with pytest.raises(InvariantViolation):
        Play(puppet(states={S.A: holds}, hold_back=lambda c, m, at: ({"hidden": "x"}, Went()))).tell(Ended())


def test_a_users_item_is_kept_as_it_was_given() -> None:
    """Freezing copies; the caller's own object stays changeable and apart."""
    tags = ["x"]
    play = Play(puppet()).tell(({"item": Item(name="mine", tags=tags)}, Went()))
    tags.append("y")
    assert play.context.item.tags == ["x"]
