"""What a state wants done: its patch is kept, limits are asked, then it is handed out, or the run ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from activities.contracts import Effect
from workflows.kernel.errors import EmptyPatch, TransitionLimitExceeded
from workflows.kernel.fields import Patch
from workflows.kernel.ledger import price_of, reserved_for
from workflows.kernel.machine import Event, Said
from workflows.kernel.snapshot import Step
from workflows.kernel.turn import Change, Turn
from workflows.kernel.view import fields_read

__all__ = ["Say", "ask", "close_here", "finish", "handed_out", "parts"]

Say = Callable[[], Said]
"""What is asked next."""


def parts(turn: Turn, said: Said) -> tuple[Patch, Effect | Event | None]:
    """What a state says, taken apart: patch, and effect, event or nothing. Raises EmptyPatch."""
    if not isinstance(said, tuple):
        return {}, said
    if len(said) != 2 or isinstance(said[1], tuple):
        problem = f"the state said {len(said)} things; expected an effect, an event or (patch, one of them)"
        raise turn.error(EmptyPatch, problem)
    return said[0], said[1]


def ask(turn: Turn, patch: Patch, effect: Effect) -> Step[Any] | Say:
    """Keep the patch, check the limits, and hand the effect out."""
    _patched(turn, patch, effect)
    breach, turn.refused = turn.refused or turn.ledger.breach(price_of(effect)), None
    if breach is None:
        return _reserved(turn, effect)
    resolve = turn.machine.on_limit
    said = resolve(turn.snapshot.context, breach, turn.at) if resolve else None
    more, instead = parts(turn, said)
    if instead is not None and not isinstance(instead, Effect):
        return lambda: said
    _patched(turn, more, instead or effect)
    if instead is not None:
        return _reserved(turn, instead)
    reason = turn.machine.limit_reasons.get(breach.counter, "limit")
    return close_here(turn, reason, f"the limit is reached, {breach}", "kernel")


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


def _reserved(turn: Turn, effect: Effect) -> Step[Any]:
    s = turn.snapshot
    turn.snapshot = replace(s, call=s.call + 1, entered=turn.now, reads=fields_read(turn.view))
    turn.ledger = turn.ledger.charge(reserved_for(effect))
    return handed_out(turn, effect)


def handed_out(turn: Turn, effect: Effect) -> Step[Any]:
    """The step that waits for this effect."""
    return Step(turn.snapshot, turn.ledger, effect=effect, records=tuple(turn.records))


def finish(turn: Turn, patch: Patch) -> Step[Any]:
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


def close_here(turn: Turn, reason: str, error: str | None, by: str) -> Step[Any]:
    """End the run in the state it is in."""
    change = Change(turn, turn.snapshot.context)
    if turn.machine.on_close:
        change.apply(turn.machine.on_close(turn.snapshot.context, reason), None)
    turn.record("Closed", change, reason=f"{reason}: {error}" if error else reason, by=by)
    turn.snapshot = replace(turn.snapshot, context=change.context)
    base = turn.machine.result(turn.snapshot.context, turn.state)
    ended = base.model_copy(update={"reason": reason, "ok": False, "error": error})
    return Step(turn.snapshot, turn.ledger, exit=ended, records=tuple(turn.records))
