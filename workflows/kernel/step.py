"""The pure step function: `start` a machine, `advance` it by one answer, never do anything.

Order within one transition (spec 2.1, R-002-7): the state's patch is held against its writes and
merged into a candidate; fields are reset; on_exit(old), action, on_enter(new); the invariant of the
new state is checked on the candidate; only then is it kept and recorded. A refusal keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel

from activities.contracts import Effect, EffectFailed, ErrorClass
from workflows.kernel.errors import (
    AgentError,
    BadPatch,
    EmptyPatch,
    MachineError,
    NoTransitionError,
    RecoverableError,
    TransientError,
    TransitionLimitExceeded,
    name_of,
)
from workflows.kernel.fields import Fields, Patch, freeze
from workflows.kernel.ledger import Ledger, price_of, spent_by
from workflows.kernel.log import STARTED, Record
from workflows.kernel.machine import Event, Machine, Move, Row, Said
from workflows.kernel.snapshot import Snapshot, Step
from workflows.kernel.turn import Change, Turn
from workflows.kernel.view import fields_read

__all__ = ["Cause", "advance", "close", "note", "reenter", "start"]

C = TypeVar("C", bound=BaseModel)
Say = Callable[[], Said]


def start(
    machine: Machine[C],
    context: C,
    *,
    now: float,
    ledger: Ledger | None = None,
    seq: int = 0,
    within: str = "",
) -> Step[C]:
    """Enter the initial state. `now` in seconds since 1970. Raises MachineError for a broken rule.

    A machine inside another goes on with that one's log: `seq` is the next record's number, `within`
    the outer effect.
    """
    if type(context) is not machine.context:
        problem = f"a {type(context).__name__} came as context; expected a {machine.context.__name__}"
        raise BadPatch(machine.name, machine.initial, problem)
    try:
        frozen: C = freeze(context)
        values = Fields.of(machine.context).dump(frozen)
    except (ValueError, RecursionError) as error:
        raise BadPatch(machine.name, machine.initial, f"the first context does not fit: {error}") from error
    first = Snapshot(machine.initial, frozen, entered=now, began=now, seq=seq, within=within)
    turn = Turn(machine, first, ledger or Ledger(), now)
    turn.record(STARTED, to=name_of(machine.initial), patch=values, writes=tuple(values), by="kernel")
    return _run(turn, lambda: _begin(turn))


def advance(machine: Machine[C], step: Step[C], answer: BaseModel, *, now: float) -> Step[C]:
    """Feed the answer to the effect that `step` asked for. Raises MachineError for a broken rule.

    Answers of the shipped effects are those of `contracts.Answer`; an effect of one's own may have its own.
    """
    if step.exit is not None:
        raise MachineError(machine.name, step.snapshot.state, "an answer came, but the run is over")
    turn = Turn(machine, step.snapshot, step.ledger.charge(spent_by(answer)), now)
    return _run(turn, lambda: _answer(turn, answer))


def close(
    machine: Machine[C],
    step: Step[C],
    reason: str,
    *,
    now: float,
    error: str | None = None,
    by: str = "kernel",
) -> Step[C]:
    """End the run in the state it is in: cancel, abort and limits need no row."""
    return _close(Turn(machine, step.snapshot, step.ledger, now), reason, error, by)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a state is entered again, for the log: `Steered`, `Resumed`, ..., and by whom."""

    event: str
    by: str
    reason: str = ""


def reenter(
    machine: Machine[C], step: Step[C], cause: Cause, *, now: float, patch: Patch | None = None
) -> Step[C]:
    """Enter the state again because the effect that waited is stale: after a steer, a pause, an edit.

    It is another visit, but not another step.
    """
    turn = Turn(machine, step.snapshot, step.ledger, now)

    def again() -> Said:
        change = Change(turn, turn.snapshot.context)
        change.apply(patch, None)
        turn.check_candidate(change)
        turn.record(cause.event, change, to=name_of(turn.state), reason=cause.reason, by=cause.by)
        _visit(turn, change.context, again=True)
        return _arrive(turn)

    return _run(turn, again)


def note(
    machine: Machine[C], step: Step[C], cause: Cause, *, now: float, error: str | None = None
) -> Step[C]:
    """Write something into the log that changes nothing; the effect goes on."""
    turn = Turn(machine, step.snapshot, step.ledger, now)
    turn.call_began, turn.view = now, turn.new_view()
    turn.record(cause.event, reason=cause.reason, by=cause.by, error=error)
    return replace(step, snapshot=turn.snapshot, ledger=turn.ledger, records=tuple(turn.records))


def _run(turn: Turn, say: Say) -> Step[Any]:
    """Settle, and where a rule is broken do what the machine's policy says."""
    try:
        return _settle(turn, say)
    except MachineError as error:
        fail, broken = turn.machine.fail_state, error
        if fail is None or turn.state == fail or turn.failing:
            turn.record(type(error).__name__, error=str(error), by="kernel")
            error.step = Step(turn.snapshot, turn.ledger, records=tuple(turn.records))
            raise
    return _run(turn, lambda: _fail(turn, broken))


def _settle(turn: Turn, say: Say) -> Step[Any]:
    """Take every decision that needs no effect; bounded by the machine's `max_transitions`."""
    while True:
        try:
            outcome = _heard(turn, say())
        except AgentError as error:
            outcome = _recovery(turn, error)
        if isinstance(outcome, Step):
            return outcome
        say = outcome


def _heard(turn: Turn, said: Said) -> Step[Any] | Say:
    patch, what = _parts(turn, said)
    if what is None:
        return _finish(turn, patch)
    return _ask(turn, patch, what) if isinstance(what, Effect) else _move(turn, patch, what)


def _parts(turn: Turn, said: Said) -> tuple[Patch, Effect | Event | None]:
    if not isinstance(said, tuple):
        return {}, said
    if len(said) != 2 or isinstance(said[1], tuple):
        problem = f"the state said {len(said)} things; expected an effect, an event or (patch, one of them)"
        raise turn.error(EmptyPatch, problem)
    return said[0], said[1]


def _recovery(turn: Turn, error: AgentError) -> Say:
    """What users' parts raise, wherever they are called, goes to the machine's `on_error`, once."""
    kind: ErrorClass = "fatal"
    if isinstance(error, TransientError):
        kind = "transient"
    elif isinstance(error, RecoverableError):
        kind = "recoverable"
    failure = EffectFailed(error=kind, type=type(error).__name__, message=str(error))
    answer = turn.on_error.get(kind)
    if answer is None or turn.recovering:
        why = f"there is no `on_error` for {kind}" if answer is None else "`on_error` had been asked already"
        raise turn.error(MachineError, f"{failure.type} ({failure.message}) came; {why}") from error
    turn.recovering = True
    return lambda: answer(turn.view, failure, turn.at)


def _begin(turn: Turn) -> Said:
    """The first visit: on_enter runs once, also when the initial state is final (spec 2.1)."""
    change = Change(turn, turn.snapshot.context)
    callback = turn.stage.on_enter
    change.allow(callback(change.context) if callback else None, turn.stage)
    turn.check_candidate(change)
    if change.patch:
        turn.record("on_enter", change)
    turn.snapshot = replace(turn.snapshot, visit=0)
    _visit(turn, change.context)
    return _arrive(turn)


def _visit(turn: Turn, context: Any, *, again: bool = False) -> None:
    """A new visit of the state that the machine is in; `again` when no transition led there."""
    s = turn.snapshot
    begins = turn.state == turn.machine.step_state and not again
    turn.snapshot = replace(
        s, context=context, visit=s.visit + 1, call=0, step=s.step + begins, entered=turn.now, reads=()
    )
    if turn.stage.spends:
        turn.ledger = turn.ledger.charge({turn.stage.spends: 1})
    turn.view, turn.recovering = turn.new_view(), False


def _arrive(turn: Turn) -> Said:
    turn.check_precondition()
    enter = turn.stage.enter
    return enter(turn.view, turn.at) if enter else None


def _answer(turn: Turn, answer: BaseModel) -> Said:
    """Fold an answer in: by the machine's `on_error` for a class it names, else by the state."""
    if isinstance(answer, EffectFailed) and answer.error in turn.on_error:
        return turn.on_error[answer.error](turn.view, answer, turn.at)
    if turn.stage.resume is None:
        kind = getattr(answer, "kind", type(answer).__name__)
        raise turn.error(MachineError, f"the answer {kind!r} came; no effect was asked for")
    return turn.stage.resume(turn.view, answer, turn.at)


def _ask(turn: Turn, patch: Patch, effect: Effect) -> Step[Any] | Say:
    """Keep the patch, check the limits, and hand the effect out."""
    _patched(turn, patch, effect)
    breach = turn.ledger.breach(price_of(effect))
    if breach is None:
        return _hand_out(turn, effect)
    resolve = turn.machine.on_limit
    said = resolve(turn.snapshot.context, breach, turn.at) if resolve else None
    more, instead = _parts(turn, said)
    if instead is not None and not isinstance(instead, Effect):
        return lambda: said
    _patched(turn, more, instead or effect)
    if instead is not None:
        return _hand_out(turn, instead)
    reason = turn.machine.limit_reasons.get(breach.counter, "limit")
    return _close(turn, reason, f"the limit is reached, {breach}", "kernel")


def _patched(turn: Turn, patch: Patch, effect: Effect) -> None:
    """Keep the patch that comes with an effect; raises MachineError when the state may not have them."""
    turn.check_grant(effect)
    if turn.snapshot.call >= turn.stage.max_effects:
        problem = f"one visit asked for more than {turn.stage.max_effects} effects"
        raise turn.error(TransitionLimitExceeded, problem)
    change = Change(turn, turn.snapshot.context)
    change.allow(patch, turn.stage)
    turn.check_candidate(change)
    if change.patch:
        turn.record(effect.kind, change, reason=effect.title)
    turn.snapshot = replace(turn.snapshot, context=change.context)
    turn.view = turn.new_view(fields_read(turn.view))


def _hand_out(turn: Turn, effect: Effect) -> Step[Any]:
    reserved = {counter: amount for counter, amount in price_of(effect).items() if amount}
    s = turn.snapshot
    turn.snapshot = replace(s, call=s.call + 1, entered=turn.now, reads=fields_read(turn.view))
    return Step(turn.snapshot, turn.ledger.charge(reserved), effect=effect, records=tuple(turn.records))


def _move(turn: Turn, patch: Patch, event: Event) -> Step[Any] | Say:
    """Follow the first row that fits the event; everything is kept, or nothing."""
    machine = turn.machine
    change = Change(turn, turn.snapshot.context)
    change.allow(patch, turn.stage)
    row = next((r for r in machine.rows if r.fits(turn.state, event, change.context)), None)
    if row is None:
        return _unmatched(turn, event)
    if row.target in machine.final and machine.hold_back:
        held = _held_back(turn, change, row, event)
        if held is not None:
            return held
    # A final state may always be entered: there the run ends anyway.
    if turn.snapshot.transitions >= machine.max_transitions and row.target not in machine.final:
        problem = f"{machine.max_transitions} transitions were made, the most that are allowed"
        return _close(turn, "max_transitions", problem, "kernel")
    _cross(turn, change, row, event)
    return lambda: _arrive(turn)


def _cross(turn: Turn, change: Change, row: Row, event: Event) -> None:
    old, new = turn.stage, turn.machine.states[row.target]
    change.clear(row.reset)
    change.allow(old.on_exit(change.context) if old.on_exit else None, old)
    change.apply(row.action(event, change.context) if row.action else None, frozenset(row.writes))
    change.allow(new.on_enter(change.context) if new.on_enter else None, new)
    reason = str(getattr(event, "reason", "") or "")
    _cross_over(turn, change, turn.draft(type(event).__name__, change, to=name_of(row.target), reason=reason))


def _cross_over(turn: Turn, change: Change, record: Record) -> None:
    """The transition that the record tells of, if the new state's invariant lets it."""
    turn.check_candidate(change, record)
    turn.keep(record)
    s = turn.snapshot
    state = turn.machine.state_named(str(record.to))
    turn.snapshot = replace(s, state=state, transitions=s.transitions + 1, unmatched=0, last=record)
    _visit(turn, change.context)


def _held_back(turn: Turn, change: Change, row: Row, event: Event) -> Say | None:
    """The gate before a final state may send another event, a limited number of times per run."""
    hold, s = turn.machine.hold_back, turn.snapshot
    if hold is None or s.hold_backs >= turn.machine.max_hold_backs:
        return None
    said = hold(change.context, Move(event, row.target, turn.state), turn.at)
    if said is None:
        return None
    change.apply(said[0], None)
    turn.check_candidate(change)
    turn.record("HeldBack", change, reason=f"{type(event).__name__} was held back")
    turn.snapshot = replace(turn.snapshot, context=change.context, hold_backs=s.hold_backs + 1)
    turn.view = turn.new_view()
    return lambda: said[1]


def _unmatched(turn: Turn, event: Event) -> Step[Any] | Say:
    machine, name = turn.machine, type(event).__name__
    expected = [row.event.__name__ for row in machine.rows if row.source == turn.state]
    problem = f"{name} came; expected {' or '.join(expected) or 'nothing: the state is final'}"
    if machine.on_unmatched == "end":
        return _close(turn, "dead_end", problem, "kernel")
    if machine.on_unmatched != "stay" or turn.snapshot.unmatched >= machine.max_unmatched:
        raise turn.error(NoTransitionError, problem)
    turn.record(name, reason=problem)
    turn.snapshot = replace(turn.snapshot, unmatched=turn.snapshot.unmatched + 1)
    _visit(turn, turn.snapshot.context, again=True)
    return lambda: _arrive(turn)


def _finish(turn: Turn, patch: Patch) -> Step[Any]:
    """A final state has said its last."""
    if turn.state not in turn.machine.final:
        raise turn.error(EmptyPatch, "the state said nothing; an effect or an event was expected")
    change = Change(turn, turn.snapshot.context)
    change.allow(patch, turn.stage)
    turn.check_candidate(change)
    if change.patch:
        turn.record("Finished", change)
        turn.snapshot = replace(turn.snapshot, context=change.context)
    ended = turn.machine.result(turn.snapshot.context, turn.state)
    return Step(turn.snapshot, turn.ledger, exit=ended, records=tuple(turn.records))


def _close(turn: Turn, reason: str, error: str | None, by: str) -> Step[Any]:
    change = Change(turn, turn.snapshot.context)
    if turn.machine.on_close:
        change.apply(turn.machine.on_close(turn.snapshot.context, reason), None)
    turn.record("Closed", change, reason=f"{reason}: {error}" if error else reason, by=by)
    turn.snapshot = replace(turn.snapshot, context=change.context)
    base = turn.machine.result(turn.snapshot.context, turn.state)
    ended = base.model_copy(update={"reason": reason, "ok": False, "error": error})
    return Step(turn.snapshot, turn.ledger, exit=ended, records=tuple(turn.records))


def _fail(turn: Turn, broken: MachineError) -> Said:
    """A broken rule leads to the fail state; the patch that broke it is dropped (spec 3.7).

    No row leads there, so there is no action, and the old state's on_exit is not called.
    """
    machine, turn.failing = turn.machine, True
    fail: Any = machine.fail_state
    change = Change(turn, turn.snapshot.context)
    try:
        if machine.on_violation:
            change.apply(machine.on_violation(broken, turn.snapshot.context), None)
        callback = machine.states[fail].on_enter
        change.allow(callback(change.context) if callback else None, machine.states[fail])
        text = str(broken)
        record = turn.draft(type(broken).__name__, change, to=name_of(fail), error=text, by="kernel")
        _cross_over(turn, change, record)
    except (MachineError, AgentError) as worse:
        problem = f"{broken.problem}; the fail state cannot be entered: {worse}"
        raise turn.error(type(broken), problem) from worse
    return _arrive(turn)
