"""Machines inside machines: a run is a stack of frames, and the topmost is at work (spec 1.9). Pure.

An effect `RunMachine` of mode `inline` opens a frame; its end is the answer to the machine below.
One log holds the records of all, numbered in one sequence; `Record.within` names the outer effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from activities.contracts import (
    GOAL_BYTES,
    CallModel,
    CallModels,
    Effect,
    EffectFailed,
    MachineEnded,
    RunMachine,
)
from workflows.kernel.errors import KernelError, MachineError, TransitionLimitExceeded, name_of
from workflows.kernel.ledger import SHARED, Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import Exit, Machine
from workflows.kernel.snapshot import Step
from workflows.kernel.step import Cause, Inside, advance, close, note, start

__all__ = [
    "Frame", "Nesting", "Stack", "alone", "answered", "began", "caps_left", "charged", "closed",
    "ledger_inside", "moved", "noted", "settled", "unspent",
]  # fmt: skip

MOST_OPENED = 100
"""Machines in one move, without anything performed in between."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One machine of the stack, where it is, and the effect of the machine below that opened it."""

    machine: Machine[Any]
    step: Step[Any]
    tools: frozenset[str] = frozenset()
    """Names of the tools that it may use: those that the machine below gave it, of its own."""
    call: RunMachine | None = None

    @property
    def within(self) -> str:
        """The outer effect, such as `research#3:1`; empty for the first machine."""
        return self.step.snapshot.within

    @property
    def place(self) -> str:
        """`<state>#<visit>:<call>` behind the outer places: unique in the run."""
        s = self.step.snapshot
        here = f"{name_of(s.state)}#{s.visit}:{s.call}"
        return f"{s.within}/{here}" if s.within else here


@dataclass(frozen=True, slots=True)
class Nesting:
    """How machines inside are made, and how deep they may be nested (R-000-15)."""

    make: Callable[[RunMachine, int], tuple[Machine[Any], BaseModel]]
    """(call, depth) -> the machine and its first context; raises ValueError or KernelError for a bad call."""
    depth: int = 0
    """Of the run itself, which may be nested in another."""
    limit: int = 5


@dataclass(frozen=True, slots=True)
class Stack:
    """A run: its machines from the first to the one at work, and what the last move added to the log."""

    frames: tuple[Frame, ...]
    records: tuple[Record, ...] = ()

    @property
    def top(self) -> Frame:
        """The machine at work."""
        return self.frames[-1]

    @property
    def first(self) -> Frame:
        """The machine that the run is about."""
        return self.frames[0]

    @property
    def exit(self) -> Exit | None:
        """How the run ended."""
        return self.first.step.exit

    @property
    def effect(self) -> Effect | None:
        """What is to be performed; model roles of inner machines are given in the run's own terms."""
        wanted = None if self.exit else self.top.step.effect
        if isinstance(wanted, CallModel):
            return self._in_our_terms(wanted)
        if isinstance(wanted, CallModels):
            return wanted.model_copy(update={"calls": tuple(map(self._in_our_terms, wanted.calls))})
        if isinstance(wanted, RunMachine):
            named = {role for frame in self.frames if frame.call for role in frame.call.roles}
            roles = {role: wanted.roles.get(role, role) for role in sorted(named | set(wanted.roles))}
            return wanted.model_copy(update={"roles": {r: self._role(name) for r, name in roles.items()}})
        return wanted

    def _in_our_terms(self, call: CallModel) -> CallModel:
        role = self._role(call.role)
        return call if role == call.role else call.model_copy(update={"role": role})

    def _role(self, role: str) -> str:
        """What the machine at work calls so, in the run's own terms."""
        for frame in reversed(self.frames):
            role = frame.call.roles.get(role, role) if frame.call else role
        return role

    @property
    def ledger(self) -> Ledger:
        """What the run has spent, the machines that are at work inside included."""
        total = self.first.step.ledger
        for frame in self.frames[1:]:
            total = total.charge(_shared(frame.step.ledger))
        # Machines below the one at work have not looked at the clock since it began.
        return total.at_least("seconds", self.top.step.snapshot.entered - self.first.step.snapshot.began)


def began(
    machine: Machine[Any],
    context: BaseModel,
    nesting: Nesting,
    *,
    now: float,
    ledger: Ledger | None = None,
    tools: Iterable[str] = (),
) -> Stack:
    """Start the run's machine, and those that it opens at once. Raises MachineError for a broken rule."""
    step = start(machine, context, now=now, ledger=ledger)
    return settled(Stack((Frame(machine, step, frozenset(tools)),), step.records), nesting, now=now)


def answered(stack: Stack, answer: BaseModel, nesting: Nesting, *, now: float) -> Stack:
    """Give the answer to the machine at work. Raises MachineError when the first breaks a rule."""
    return settled(_told(Stack(stack.frames), answer, now), nesting, now=now)


def unspent(stack: Stack) -> Stack:
    """With what was reserved for the effect at hand given back, because performing it has never begun."""
    top = stack.top
    step = replace(top.step, ledger=top.step.ledger.without(top.step.effect))
    return replace(stack, frames=(*stack.frames[:-1], replace(top, step=step)))


def closed(stack: Stack, reason: str, *, now: float, error: str | None = None, by: str = "kernel") -> Stack:
    """End the run in the state it is in, the innermost machine first. What was reserved for the effect at
    hand stays spent; where performing it has never begun, close the stack that `unspent` gives."""
    left = alone(stack, reason, now=now, error=error, by=by)
    step = _closed(left.first, reason, now, error, by)
    return Stack((replace(left.first, step=step),), (*left.records, *step.records))


def alone(stack: Stack, reason: str, *, now: float, error: str | None = None, by: str = "kernel") -> Stack:
    """Close the machines inside, the innermost first: only the first one is left, with what they spent."""
    records: tuple[Record, ...] = ()
    frames = list(stack.frames)
    while len(frames) > 1:
        step = _closed(frames.pop(), reason, now, error, by)
        records += step.records
        frames[-1] = _after(frames[-1], step)
    return Stack(tuple(frames), records)


def _closed(frame: Frame, reason: str, now: float, error: str | None, by: str) -> Step[Any]:
    """Close one machine; an `on_close` that breaks a rule is recorded and passed over."""
    try:
        return close(frame.machine, frame.step, reason, now=now, error=error, by=by)
    except MachineError as broken:
        cause = Cause(type(broken).__name__, by="kernel")
        told = note(frame.machine, frame.step, cause, now=now, error=str(broken))
        plain = replace(frame.machine, on_close=None)
        step = close(plain, told, reason, now=now, error=error, by=by)
        return replace(step, records=(*told.records, *step.records))


def noted(stack: Stack, cause: Cause, *, now: float, error: str | None = None) -> Stack:
    """Write something into the log that changes nothing."""
    top = stack.top
    step = note(top.machine, top.step, cause, now=now, error=error)
    return Stack((*stack.frames[:-1], replace(top, step=step)), step.records)


def caps_left(call: RunMachine, ledger: Ledger) -> dict[str, float]:
    """The caps of an inner machine: its own, and what the outer one has left, whichever is less."""
    own = call.limits.model_dump(exclude_none=True, exclude={"max_transitions"})
    caps: dict[str, float] = dict(own)
    for name in ledger.caps:
        if name in SHARED or name == "seconds":
            caps[name] = min(caps.get(name, ledger.left(name)), ledger.left(name))
    return caps


def ledger_inside(call: RunMachine, ledger: Ledger) -> Ledger:
    """The ledger that an inner machine begins with.

    Where the outer machine's cap is the binding one and people are asked about that, they are asked
    here too; the inner machine's own limits end it.
    """
    caps, own = caps_left(call, ledger), call.limits.model_dump(exclude_none=True)
    asked = (name for name in ledger.advice if name in caps and ledger.left(name) < own.get(name, math.inf))
    return Ledger(caps=caps, advice=tuple(asked))


def _shared(ledger: Ledger) -> dict[str, float]:
    return {name: amount for name, amount in ledger.spent.items() if name in SHARED and amount}


def charged(stack: Stack, spent: dict[str, float]) -> Stack:
    """The machine at work has spent this."""
    top = stack.top
    step = replace(top.step, ledger=top.step.ledger.charge(spent))
    return replace(stack, frames=(*stack.frames[:-1], replace(top, step=step)))


def _after(outer: Frame, inner: Step[Any], *, charge: bool = True) -> Frame:
    """The outer machine goes on behind the inner one's records; what that one spent is its own."""
    snapshot = replace(outer.step.snapshot, seq=inner.snapshot.seq)
    ledger = outer.step.ledger.charge(_shared(inner.ledger)) if charge else outer.step.ledger
    return replace(outer, step=replace(outer.step, snapshot=snapshot, ledger=ledger))


def _told(stack: Stack, answer: BaseModel, now: float) -> Stack:
    """One answer to the topmost machine."""
    return moved(stack, lambda top: advance(top.machine, top.step, answer, now=now), now=now)


def moved(stack: Stack, move: Callable[[Frame], Step[Any]], *, now: float) -> Stack:
    """One move of the topmost machine; when it breaks a rule, the one below is told so.

    Its records come behind those of the stack. Raises MachineError when the first machine breaks a rule.
    """
    top = stack.top
    try:
        step = move(top)
    except MachineError as error:
        if error.step is None:
            raise
        error.step = replace(error.step, records=(*stack.records, *error.step.records))
        if len(stack.frames) == 1:
            raise
        below = _after(stack.frames[-2], error.step, charge=False)
        outer = Stack((*stack.frames[:-2], below), error.step.records)
        return _told(outer, _broken(error, _shared(error.step.ledger)), now)
    return Stack((*stack.frames[:-1], replace(top, step=step)), (*stack.records, *step.records))


def _broken(error: Exception, spent: dict[str, float] | None = None) -> EffectFailed:
    return EffectFailed(error="fatal", type=type(error).__name__, message=str(error), spent=spent or {})


def settled(stack: Stack, nesting: Nesting, *, now: float) -> Stack:
    """Open what the top machine asks for, close what has ended, until there is something to perform."""
    opened = 0
    while True:
        step = stack.top.step
        if step.exit is not None and len(stack.frames) > 1:
            below = _after(stack.frames[-2], step, charge=False)
            ended = _ended(stack.top, step.exit)
            stack = _told(Stack((*stack.frames[:-2], below), stack.records), ended, now)
            continue
        if not isinstance(step.effect, RunMachine) or step.exit is not None:
            return stack
        depth = nesting.depth + len(stack.frames)
        fault = _fault(step.effect, stack.top, depth, nesting.limit)
        if fault is None and step.effect.mode == "child":
            return stack
        opened += 1
        if opened > MOST_OPENED:
            raise _endless(stack)
        stack = _told(stack, fault, now) if fault else _opened(stack, step.effect, nesting, depth, now)


def _fault(call: RunMachine, outer: Frame, depth: int, limit: int) -> EffectFailed | None:
    """What is wrong with a call, whichever way it is run."""
    if depth > limit:
        text = f"{call.machine} would be nested deeper than {limit}, the limit `depth` of the run"
        return EffectFailed(error="recoverable", type="depth_limit", message=text)
    size = len(call.goal.encode(errors="replace"))
    problem = ""
    if not call.goal.strip():
        problem = "the goal is blank"
    elif size > GOAL_BYTES:
        problem = f"the goal is {size:,} bytes, at most {GOAL_BYTES:,} are allowed"
    elif unknown := sorted(set(call.tools_given) - outer.tools):
        problem = f"{outer.machine.name} cannot give the tools {', '.join(unknown)}: it has them not"
    if not problem:
        return None
    message = f"{call.machine} cannot be run: {problem}"
    return EffectFailed(error="fatal", type="inner_machine", message=message)


def _endless(stack: Stack) -> MachineError:
    """Machines that end at once, opened again and again: nothing else would stop them."""
    first, top = stack.first, stack.top
    text = f"{MOST_OPENED} machines were opened without a call of a model or a tool in between"
    error = TransitionLimitExceeded(first.machine.name, first.step.snapshot.state, text)
    last = note(
        top.machine, top.step, Cause("Endless", by="kernel"), now=top.step.snapshot.entered, error=text
    )
    end = last if len(stack.frames) == 1 else _after(first, last).step
    error.step = replace(end, records=(*stack.records, *last.records))
    return error


def _opened(stack: Stack, call: RunMachine, nesting: Nesting, depth: int, now: float) -> Stack:
    outer = stack.top
    try:
        machine, context = nesting.make(call, depth)
    except (ValueError, KernelError) as error:
        return _told(stack, _broken(error), now)
    ledger, s = ledger_inside(call, outer.step.ledger), outer.step.snapshot
    try:
        inside = Inside(outer.place, s.seq, s.branch)
        step = start(machine, context, now=now, ledger=ledger, inside=inside)
    except MachineError as error:
        if error.step is None:
            return _told(stack, _broken(error), now)
        below = _after(outer, error.step, charge=False)
        told = Stack((*stack.frames[:-1], below), (*stack.records, *error.step.records))
        return _told(told, _broken(error, _shared(error.step.ledger)), now)
    frame = Frame(machine, step, frozenset(call.tools_given), call)
    return Stack((*stack.frames, frame), (*stack.records, *step.records))


def _ended(frame: Frame, ended: Exit) -> MachineEnded:
    return MachineEnded(
        machine=frame.machine.name,
        ok=ended.ok,
        exit_reason=ended.reason,
        answer=ended.answer,
        error=ended.error,
        outcome=ended.outcome,
        spent=_shared(frame.step.ledger),
    )
