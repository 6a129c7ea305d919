"""Machines inside machines: a run is a stack of frames, and the topmost is at work (spec 1.9). Pure.

An effect `RunMachine` of mode `inline` opens a frame; its end is the answer to the machine below.
One log holds the records of all, numbered in one sequence; `Record.within` names the outer effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from activities.contracts import CallModel, Effect, EffectFailed, MachineEnded, RunMachine
from workflows.kernel.errors import AgentError, MachineError, name_of
from workflows.kernel.ledger import SHARED, Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import Exit, Machine
from workflows.kernel.snapshot import Step
from workflows.kernel.step import Cause, advance, close, note, start

__all__ = ["Frame", "Nesting", "Stack", "answered", "began", "caps_left", "charged", "closed", "noted"]


@dataclass(frozen=True, slots=True)
class Frame:
    """One machine of the stack, where it is, and the effect of the machine below that opened it."""

    machine: Machine[Any]
    step: Step[Any]
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
    """(call, depth) -> the machine and its first context; raises ValueError or AgentError for a bad call."""
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
        """What is to be performed; a model role of an inner machine is given in the run's own terms."""
        wanted = None if self.exit else self.top.step.effect
        if not isinstance(wanted, CallModel):
            return wanted
        role = wanted.role
        for frame in reversed(self.frames):
            role = frame.call.roles.get(role, role) if frame.call else role
        return wanted if role == wanted.role else wanted.model_copy(update={"role": role})

    @property
    def ledger(self) -> Ledger:
        """What the run has spent, the machines that are at work inside included."""
        total = self.first.step.ledger
        for frame in self.frames[1:]:
            total = total.charge(_shared(frame.step.ledger))
        return total


def began(
    machine: Machine[Any], context: BaseModel, nesting: Nesting, *, now: float, ledger: Ledger | None = None
) -> Stack:
    """Start the run's machine, and those that it opens at once. Raises MachineError for a broken rule."""
    step = start(machine, context, now=now, ledger=ledger)
    return _settled(Stack((Frame(machine, step),), step.records), nesting, now)


def answered(stack: Stack, answer: BaseModel, nesting: Nesting, *, now: float) -> Stack:
    """Give the answer to the machine at work. Raises MachineError when the first breaks a rule."""
    return _settled(_told(Stack(stack.frames), answer, now), nesting, now)


def closed(stack: Stack, reason: str, *, now: float, error: str | None = None, by: str = "kernel") -> Stack:
    """End the run in the state it is in, the innermost machine first."""
    records: tuple[Record, ...] = ()
    frames = list(stack.frames)
    while frames:
        frame = frames.pop()
        step = close(frame.machine, frame.step, reason, now=now, error=error, by=by)
        records += step.records
        if not frames:
            return Stack((replace(frame, step=step),), records)
        frames[-1] = _after(frames[-1], step)
    raise ValueError("a stack has at least one frame")


def noted(stack: Stack, cause: Cause, *, now: float, error: str | None = None) -> Stack:
    """Write something into the log that changes nothing."""
    top = stack.top
    step = note(top.machine, top.step, cause, now=now, error=error)
    return Stack((*stack.frames[:-1], replace(top, step=step)), step.records)


def caps_left(call: RunMachine, ledger: Ledger) -> dict[str, float]:
    """The caps of an inner machine: its own, and what the outer one has left, whichever is less."""
    caps = {name: cap for name, cap in call.limits.items() if name not in ("depth", "max_transitions")}
    for name in ledger.caps:
        if name in SHARED or name == "seconds":
            caps[name] = min(caps.get(name, ledger.left(name)), ledger.left(name))
    return caps


def _shared(ledger: Ledger) -> dict[str, float]:
    return {name: amount for name, amount in ledger.spent.items() if name in SHARED and amount}


def _after(outer: Frame, inner: Step[Any]) -> Frame:
    """The outer machine goes on behind the inner one's records."""
    snapshot = replace(outer.step.snapshot, seq=inner.snapshot.seq)
    return replace(outer, step=replace(outer.step, snapshot=snapshot))


def _told(stack: Stack, answer: BaseModel, now: float) -> Stack:
    """One answer to the topmost machine; when it breaks a rule, the one below is told so."""
    top = stack.top
    try:
        step = advance(top.machine, top.step, answer, now=now)
    except MachineError as error:
        if len(stack.frames) == 1 or error.step is None:
            if error.step is not None:  # what machines inside did before is in the log all the same
                error.step = replace(error.step, records=(*stack.records, *error.step.records))
            raise
        outer = Stack((*stack.frames[:-2], _after(stack.frames[-2], error.step)))
        told = replace(outer, records=(*stack.records, *error.step.records))
        spent = _shared(error.step.ledger)
        return _told(charged(told, spent), _broken(error), now)
    return Stack((*stack.frames[:-1], replace(top, step=step)), (*stack.records, *step.records))


def charged(stack: Stack, spent: dict[str, float]) -> Stack:
    """The machine at work has spent this."""
    top = stack.top
    step = replace(top.step, ledger=top.step.ledger.charge(spent))
    return Stack((*stack.frames[:-1], replace(top, step=step)), stack.records)


def _broken(error: Exception) -> EffectFailed:
    return EffectFailed(error="fatal", type=type(error).__name__, message=str(error))


def _settled(stack: Stack, nesting: Nesting, now: float) -> Stack:
    """Open what the top machine asks for, close what has ended, until there is something to perform."""
    while True:
        step = stack.top.step
        if step.exit is not None and len(stack.frames) > 1:
            ended = _ended(stack.top, step.exit)
            below = Stack((*stack.frames[:-2], _after(stack.frames[-2], step)), stack.records)
            stack = _told(below, ended, now)
        elif isinstance(step.effect, RunMachine) and step.exit is None:
            depth = nesting.depth + len(stack.frames)
            if depth > nesting.limit:
                stack = _told(stack, _too_deep(step.effect, nesting.limit), now)
            elif step.effect.mode == "child":
                return stack
            else:
                stack = _opened(stack, step.effect, nesting, depth, now)
        else:
            return stack


def _too_deep(call: RunMachine, limit: int) -> EffectFailed:
    text = f"{call.machine} would be nested deeper than {limit}, the limit `depth` of the run"
    return EffectFailed(error="recoverable", type="depth_limit", message=text)


def _opened(stack: Stack, call: RunMachine, nesting: Nesting, depth: int, now: float) -> Stack:
    outer = stack.top
    try:
        machine, context = nesting.make(call, depth)
        ledger = Ledger(caps=caps_left(call, outer.step.ledger))
        step = start(
            machine, context, now=now, ledger=ledger, seq=outer.step.snapshot.seq, within=outer.place
        )
    except MachineError as error:
        below = stack
        if error.step is not None:
            below = Stack((*stack.frames[:-1], _after(outer, error.step)))
            below = replace(below, records=(*stack.records, *error.step.records))
        return _told(below, _broken(error), now)
    except (ValueError, AgentError) as error:
        return _told(stack, _broken(error), now)
    return Stack((*stack.frames, Frame(machine, step, call)), (*stack.records, *step.records))


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
