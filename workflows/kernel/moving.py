"""How a machine moves: along a row of its table, to its fail state, into the state where it has arrived."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workflows.kernel.asking import Say, close_here
from workflows.kernel.errors import AgentError, MachineError, NoTransitionError, name_of
from workflows.kernel.fields import Patch
from workflows.kernel.hold import Hold
from workflows.kernel.log import HELD_BACK, Record
from workflows.kernel.machine import Event, Move, Row, Said
from workflows.kernel.snapshot import Step
from workflows.kernel.turn import Change, Turn

__all__ = ["arrive", "begin", "enter", "fail", "move", "visit"]


def begin(turn: Turn) -> Said:
    """The first visit: on_enter runs once, also when the initial state is final (spec 2.1)."""
    change = Change(turn, turn.snapshot.context)
    callback = turn.stage.on_enter
    change.allow(callback(change.context) if callback else None, turn.stage)
    turn.check_candidate(change)
    if change.patch:
        turn.record("on_enter", change)
    turn.snapshot = replace(turn.snapshot, visit=0)
    visit(turn, change.context)
    return arrive(turn)


def visit(turn: Turn, context: Any, *, again: bool = False, spends: bool = True) -> None:
    """A new visit of the state that the machine is in; `again` when no transition led there."""
    s = turn.snapshot
    begins = turn.state == turn.machine.step_state and not again
    turn.snapshot = replace(
        s, context=context, visit=s.visit + 1, call=0, step=s.step + begins, entered=turn.now, reads=()
    )
    if turn.stage.spends and spends:
        turn.ledger = turn.ledger.charge({turn.stage.spends: 1})
    turn.view, turn.recovering = turn.new_view(), False


def arrive(turn: Turn) -> Said:
    """Enter the state, unless the run is to stand still before it."""
    hold = turn.machine.hold
    if hold and hold(turn.snapshot):
        turn.held = Hold(state=name_of(turn.state))
        return None
    return enter(turn)


def enter(turn: Turn) -> Said:
    """What the state says first."""
    turn.check_precondition()
    say = turn.stage.enter
    return say(turn.view, turn.at) if say else None


def move(turn: Turn, patch: Patch, event: Event) -> Step[Any] | Say:
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
        return close_here(turn, "max_transitions", problem, "kernel")
    _cross(turn, change, row, event)
    return lambda: arrive(turn)


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
    visit(turn, change.context)


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
    turn.record(HELD_BACK, change, reason=f"{type(event).__name__} was held back")
    turn.snapshot = replace(turn.snapshot, context=change.context, hold_backs=s.hold_backs + 1)
    turn.view = turn.new_view()
    return lambda: said[1]


def _unmatched(turn: Turn, event: Event) -> Step[Any] | Say:
    machine, name = turn.machine, type(event).__name__
    expected = [row.event.__name__ for row in machine.rows if row.source == turn.state]
    problem = f"{name} came; expected {' or '.join(expected) or 'nothing: the state is final'}"
    if machine.on_unmatched == "end":
        return close_here(turn, "dead_end", problem, "kernel")
    if machine.on_unmatched != "stay" or turn.snapshot.unmatched >= machine.max_unmatched:
        raise turn.error(NoTransitionError, problem)
    turn.record(name, reason=problem)
    turn.snapshot = replace(turn.snapshot, unmatched=turn.snapshot.unmatched + 1)
    visit(turn, turn.snapshot.context, again=True)
    return lambda: enter(turn)


def fail(turn: Turn, broken: MachineError) -> Said:
    """A broken rule leads to the fail state; the patch that broke it is dropped (spec 3.7).

    No row leads there, so there is no action, and the old state's on_exit is not called.
    """
    machine, turn.failing = turn.machine, True
    target: Any = machine.fail_state
    change = Change(turn, turn.snapshot.context)
    try:
        if machine.on_violation:
            change.apply(machine.on_violation(broken, turn.snapshot.context), None)
        callback = machine.states[target].on_enter
        change.allow(callback(change.context) if callback else None, machine.states[target])
        text = str(broken)
        record = turn.draft(type(broken).__name__, change, to=name_of(target), error=text, by="kernel")
        _cross_over(turn, change, record)
    except (MachineError, AgentError) as worse:
        problem = f"{broken.problem}; the fail state cannot be entered: {worse}"
        raise turn.error(type(broken), problem) from worse
    return arrive(turn)
