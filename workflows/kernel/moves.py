"""What people make a run do, and no machine has decided: go back, fork, hear a message, spend more. Pure.

Every move gives a new stack, whose records are those of the move alone. Where a move breaks a rule of the
machine, MachineError is raised, and the stack that was there goes on as if nothing had been said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from activities.contracts import CallModel
from workflows.kernel.errors import AgentError, MachineError, failure_words, name_of
from workflows.kernel.fields import Fields
from workflows.kernel.ledger import Breach, Ledger, price_of
from workflows.kernel.log import FORKED, ROLLED_BACK, Record, lineage
from workflows.kernel.machine import Machine
from workflows.kernel.restore import restored
from workflows.kernel.retell import RETOLD, deaf, differing, pairs, retold, told
from workflows.kernel.snapshot import Snapshot
from workflows.kernel.stack import Frame, Nesting, Stack, alone, ledger_inside, moved, settled, unspent
from workflows.kernel.step import Cause, Return, go_on, note, reenter, refuse, return_to

__all__ = [
    "breach_of", "capped", "entered", "forked", "refused_by_limit", "rolled_back", "steerable", "steered",
    "topped_up",
]  # fmt: skip


def entered(stack: Stack, nesting: Nesting, *, now: float) -> Stack:
    """Enter the state that the run stands still before. Raises MachineError when it does not."""
    gone = moved(Stack(stack.frames), lambda top: go_on(top.machine, top.step, now=now), now=now)
    return settled(gone, nesting, now=now)


# -- back to a step --------------------


def rolled_back(  # noqa: PLR0913  # the run, its log, where to, who wants it, and what was under way
    stack: Stack,
    records: Sequence[Record],
    step: int,
    nesting: Nesting,
    *,
    cause: Cause,
    now: float,
    begun: bool = False,
) -> Stack:
    """Begin a step again, on a new branch; `records` is the whole log so far. `begun`: performing the effect
    at hand had begun, so what was reserved for it stays spent; else it is given back.

    Machines at work inside are closed; what was spent stays spent, visits and records are counted on.
    Raises ValueError saying which steps there are, or what a fork cannot be told anew there, MachineError
    where the machine cannot begin there.
    """
    machine = stack.first.machine
    target = restored(machine, records, step)
    calm = alone(stack if begun else unspent(stack), "rolled_back", now=now, by=cause.by)
    live = calm.first.step.snapshot
    kept = [record for record in lineage(records) if record.seq < target.seq]
    first = Fields.of(machine.context).load(records[0].patch)
    # A fork stays what it was told, also before the step at which it was forked.
    before, after = told(first, kept), told(first, records)
    if before != after:
        cause = replace(cause, about={**cause.about, RETOLD: differing(first, after)})
    way = Return(
        ROLLED_BACK,
        back_to=target.seq - 1,
        left=name_of(live.state),
        whole=_anew(machine, target, before, after, records),
        patch=_said(machine, live, "on_rollback", live.context, target.context),
    )
    snapshot = replace(
        target, visit=live.visit, seq=live.seq, branch=live.branch + 1, began=live.began, entered=now
    )
    step_again = return_to(machine, snapshot, calm.first.step.ledger, cause, way, now=now)
    again = Stack((replace(calm.first, step=step_again),), (*calm.records, *step_again.records))
    return settled(again, nesting, now=now)


def forked(  # noqa: PLR0913  # a new run begins here: all that `began` is given, and where it comes from
    machine: Machine[Any],
    records: Sequence[Record],
    step: int,
    nesting: Nesting,
    *,
    cause: Cause,
    now: float,
    ledger: Ledger,
    tools: Iterable[str],
    retell: tuple[BaseModel, BaseModel] | None = None,
) -> Stack:
    """Begin a step of another run in a new one; the stack's records come behind `records`, that run's log.

    `retell`: the first context of that log, and the one that the new run's task begins with: what differs is
    told anew. Raises ValueError saying which steps there are, or which field cannot be told anew there;
    MachineError where it cannot begin there.
    """
    target = restored(machine, records, step)
    whole: dict[str, Any] = {}
    if retell is not None:
        first, after = retell
        kept = [record for record in lineage(records) if record.seq < target.seq]
        whole = _anew(machine, target, told(first, kept), after, records)
        cause = replace(cause, about={**cause.about, RETOLD: differing(first, after)})
    snapshot = replace(
        target,
        visit=max(record.visit for record in records if not record.within),
        seq=records[-1].seq + 1,
        branch=max(record.branch for record in records) + 1,
        began=now,
        entered=now,
    )
    way = Return(FORKED, back_to=target.seq - 1, left=name_of(target.state), whole=whole)
    begun = return_to(machine, snapshot, ledger, cause, way, now=now)
    return settled(Stack((Frame(machine, begun, frozenset(tools)),), begun.records), nesting, now=now)


def _anew(
    machine: Machine[Any], target: Snapshot[Any], before: Any, after: Any, records: Sequence[Record]
) -> dict[str, Any]:
    """What is to be told anew, whole; raises ValueError when the run has changed a field of it meanwhile."""
    known = pairs(machine, before, after, records[0].started)
    if lost := deaf(target.context, known):
        names = ", ".join(f"`{name}`" for name in lost)
        problem = f"{machine.name}: {names} cannot be told anew: by then the run had changed it"
        raise ValueError(f"{problem}; go back to an earlier step, or leave what it says as it is")
    return retold(target.context, known)


def _said(machine: Machine[Any], snapshot: Snapshot[Any], slot: str, *given: Any) -> Any:
    """What a slot of the machine says; an error that it raises on purpose refuses the move."""
    say = getattr(machine, slot)
    try:
        return say(*given) if say else None
    except AgentError as error:
        problem = f"`{slot}` refuses: {failure_words(error)}"
        raise MachineError(machine.name, snapshot.state, problem) from error


# -- a message --------------------


def steerable(stack: Stack, *, begun: bool = False) -> bool:
    """Would a message come before the call at hand, which is then asked for anew?

    A model call of the machine at work, if entering its state again makes nothing again that was made: the
    call is the first of the visit, or the state says so (`State.again`). Not where a limit would refuse it;
    `begun`: the call at hand is paid for, too.
    """
    top, effect = stack.top, stack.top.step.effect
    if stack.exit is not None or not isinstance(effect, CallModel) or top.machine.fold_steer is None:
        return False
    snapshot = top.step.snapshot
    again = top.machine.states[snapshot.state].again
    if snapshot.call > 1 and not (again(snapshot.context) if callable(again) else again):
        return False
    ledger = top.step.ledger if begun else top.step.ledger.without(effect)
    return ledger.breach(price_of(effect)) is None


def steered(
    stack: Stack, text: str, nesting: Nesting, *, cause: Cause, now: float, begun: bool = False
) -> Stack:
    """A person's message, for the topmost machine that takes one: before the next model call, and before the
    one at hand if that is `steerable`. `begun`: performing that one had begun, so its reservation stays.

    Raises MachineError when no machine takes it or a rule is broken.
    """
    first = stack.first
    level = next((n for n in reversed(range(len(stack.frames))) if stack.frames[n].machine.fold_steer), None)
    if stack.exit is not None or level is None:
        why = "the run is over" if stack.exit else "none of its machines takes messages (`fold_steer`)"
        problem = f"a message from a person cannot be heard: {why}"
        raise MachineError(first.machine.name, first.step.snapshot.state, problem)
    frame, frames = stack.frames[level], list(stack.frames)
    patch = _said(frame.machine, frame.step.snapshot, "fold_steer", frame.step.snapshot.context, text)
    if steerable(stack, begun=begun):
        step = reenter(frame.machine, frame.step, cause, now=now, patch=patch, strict=True, begun=begun)
        frames[level] = replace(frame, step=step)
        return settled(Stack(tuple(frames), step.records), nesting, now=now)
    there = replace(frame.step, snapshot=replace(frame.step.snapshot, seq=stack.top.step.snapshot.seq))
    step = note(frame.machine, there, cause, now=now, patch=patch)
    frames[level] = replace(frame, step=step)
    top = frames[-1].step
    behind = replace(top, snapshot=replace(top.snapshot, seq=step.snapshot.seq))
    frames[-1] = replace(frames[-1], step=behind)
    return Stack(tuple(frames), step.records)


# -- limits --------------------


def breach_of(stack: Stack) -> Breach | None:
    """The first limit of the run that the effect at hand passes, of those that people are asked about
    (`Ledger.advice`); its price is reserved already."""
    effect = stack.effect
    if effect is None:
        return None
    asked = stack.first.step.ledger.advice
    caps = {name: cap for name, cap in stack.ledger.caps.items() if name in asked}
    ledger = stack.ledger.without(effect).model_copy(update={"caps": caps, "advice": ()})
    return ledger.breach(price_of(effect))


def refused_by_limit(stack: Stack, breach: Breach, nesting: Nesting, *, now: float) -> Stack:
    """The effect at hand is not made: what its machine says to the limit, or its end. From now on limits
    end the run without a question. Raises MachineError when the first machine breaks a rule."""
    strict = Stack(tuple(_with(frame, advice=()) for frame in stack.frames))
    ended = moved(strict, lambda top: refuse(top.machine, top.step, breach, now=now), now=now)
    return settled(ended, nesting, now=now)


def topped_up(stack: Stack, amounts: Mapping[str, float]) -> Stack:
    """Caps of the run raised by these amounts, and those that machines inside have from it."""
    ledger = stack.first.step.ledger
    for counter, amount in amounts.items():
        ledger = ledger.credit(counter, amount)
    return _recapped(stack, ledger.caps)


def capped(stack: Stack, caps: Mapping[str, float | None]) -> Stack:
    """Other caps for the run, None: none; and for machines inside where they have them from it."""
    merged = {**stack.first.step.ledger.caps, **caps}
    return _recapped(stack, {name: cap for name, cap in merged.items() if cap is not None})


def _recapped(stack: Stack, caps: Mapping[str, float]) -> Stack:
    """Caps of the first machine; those of each inner one follow, as if it had begun with them."""
    frames = [_with(stack.first, caps=dict(caps))]
    for frame in stack.frames[1:]:
        ledger = frame.step.ledger
        if frame.call is not None:
            ledger = ledger_inside(frame.call, _at_opening(frames[-1], frame))
        frames.append(_with(frame, caps=ledger.caps, advice=ledger.advice))
    return Stack(tuple(frames))


def _at_opening(outer: Frame, inner: Frame) -> Ledger:
    """The outer machine's ledger as it was when the inner one began: since then only the clock went on."""
    seconds = inner.step.snapshot.began - outer.step.snapshot.began
    ledger = outer.step.ledger
    return ledger.model_copy(update={"spent": {**ledger.spent, "seconds": round(seconds, 3)}})


def _with(frame: Frame, **changes: Any) -> Frame:
    ledger = frame.step.ledger.model_copy(update=changes)
    return replace(frame, step=replace(frame.step, ledger=ledger))
