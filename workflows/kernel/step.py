"""The pure step function: `start` a machine, `advance` it by one answer, never do anything.

Order within one transition (spec 2.1, R-002-7): the state's patch is held against its writes and
merged into a candidate; fields are reset; on_exit(old), action, on_enter(new); the invariant of the
new state is checked on the candidate; only then is it kept and recorded. A refusal keeps nothing.

What a state wants done is in `asking`, how a machine moves in `moving`. Where `Machine.hold` says so,
the machine stands still before a state instead of entering it; `go_on` enters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import BaseModel

from activities.contracts import Effect, EffectFailed, ErrorClass, JsonObject
from workflows.kernel.asking import Say, ask, close_here, finish, handed_out, parts
from workflows.kernel.errors import (
    AgentError,
    BadPatch,
    MachineError,
    RecoverableError,
    TransientError,
    name_of,
)
from workflows.kernel.fields import Fields, Patch, freeze
from workflows.kernel.hold import Hold
from workflows.kernel.ledger import Breach, Ledger, spent_by
from workflows.kernel.log import STARTED
from workflows.kernel.machine import Machine, Said
from workflows.kernel.moving import begin, enter, fail, move, visit
from workflows.kernel.snapshot import Snapshot, Step
from workflows.kernel.turn import Change, Turn

__all__ = [
    "Cause", "Inside", "Return", "advance", "close", "go_on", "note", "reenter", "refuse", "return_to",
    "start",
]  # fmt: skip

C = TypeVar("C", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Inside:
    """Where a machine inside another begins: it goes on with that one's log."""

    within: str
    """The outer effect."""
    seq: int
    """Number of the next record."""
    branch: int = 0


def start(
    machine: Machine[C],
    context: C,
    *,
    now: float,
    ledger: Ledger | None = None,
    inside: Inside | None = None,
) -> Step[C]:
    """Enter the initial state. `now` in seconds since 1970. Raises MachineError for a broken rule."""
    if type(context) is not machine.context:
        problem = f"a {type(context).__name__} came as context; expected a {machine.context.__name__}"
        raise BadPatch(machine.name, machine.initial, problem)
    try:
        frozen: C = freeze(context)
        values = Fields.of(machine.context).dump(frozen)
    except (ValueError, RecursionError) as error:
        raise BadPatch(machine.name, machine.initial, f"the first context does not fit: {error}") from error
    first = Snapshot(machine.initial, frozen, entered=now, began=now)
    if inside:
        first = replace(first, within=inside.within, seq=inside.seq, branch=inside.branch)
    turn = Turn(machine, first, ledger or Ledger(), now)
    turn.record(STARTED, to=name_of(machine.initial), patch=values, writes=tuple(values), by="kernel")
    return _run(turn, lambda: begin(turn))


def advance(machine: Machine[C], step: Step[C], answer: BaseModel, *, now: float) -> Step[C]:
    """Feed the answer to the effect that `step` asked for. Raises MachineError for a broken rule.

    Answers of the shipped effects are those of `contracts.Answer`; an effect of one's own may have its own.
    """
    if step.exit is not None:
        raise MachineError(machine.name, step.snapshot.state, "an answer came, but the run is over")
    if isinstance(step.effect, Hold):
        problem = "an answer came, but the state is not entered yet; `go_on` enters it"
        raise MachineError(machine.name, step.snapshot.state, problem)
    turn = Turn(machine, step.snapshot, step.ledger.charge(spent_by(answer)), now)
    return _run(turn, lambda: _answer(turn, answer))


def go_on(machine: Machine[C], step: Step[C], *, now: float) -> Step[C]:
    """Enter the state that the machine stands still before. Raises MachineError for a broken rule, and
    when it does not stand still."""
    if not isinstance(step.effect, Hold):
        waits = f"it waits for {step.effect.kind!r}" if step.effect else "the run is over"
        problem = f"the machine does not stand still before it: {waits}"
        raise MachineError(machine.name, step.snapshot.state, problem)
    turn = Turn(machine, replace(step.snapshot, entered=now), step.ledger, now)
    return _run(turn, lambda: enter(turn))


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
    return close_here(Turn(machine, step.snapshot, step.ledger, now), reason, error, by)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something happens that the machine has not decided, for the log: `Steered`, `Paused`, ..."""

    event: str
    by: str
    reason: str = ""
    about: JsonObject = field(default_factory=dict)
    """What a person's message said: see `Record.about`."""


def reenter(  # noqa: PLR0913  # what is changed, and the two ways in which that may go
    machine: Machine[C],
    step: Step[C],
    cause: Cause,
    *,
    now: float,
    patch: Patch | None = None,
    strict: bool = False,
    begun: bool = False,
) -> Step[C]:
    """Enter the state again because the effect that waited is stale: after a message from a person.

    It is another visit, but no other step, and no transition. What was reserved for the stale effect is
    given back, unless performing it had `begun`. `strict`: a broken rule raises MachineError, whatever the
    machine's policy is.
    """
    turn = Turn(machine, step.snapshot, step.ledger if begun else step.ledger.without(step.effect), now)

    def again() -> Said:
        visit(turn, _changed(turn, cause, patch), again=True, spends=False)
        return enter(turn)

    return _settle(turn, again) if strict else _run(turn, again)


def note(
    machine: Machine[C],
    step: Step[C],
    cause: Cause,
    *,
    now: float,
    error: str | None = None,
    patch: Patch | None = None,
) -> Step[C]:
    """Write something into the log; the effect goes on. Raises MachineError when a patch breaks a rule."""
    turn = Turn(machine, step.snapshot, step.ledger, now)
    turn.call_began, turn.view = now, turn.new_view()
    context = _changed(turn, cause, patch, error)
    snapshot = replace(turn.snapshot, context=context)
    return replace(step, snapshot=snapshot, ledger=turn.ledger, records=tuple(turn.records))


def _changed(turn: Turn, cause: Cause, patch: Patch | None, error: str | None = None) -> Any:
    """The context after a patch from outside, which is recorded with its cause."""
    change = Change(turn, turn.snapshot.context)
    change.apply(patch, None)
    if change.patch:
        turn.check_candidate(change)
    turn.record(cause.event, change, reason=cause.reason, by=cause.by, about=cause.about, error=error)
    return change.context


def refuse(machine: Machine[C], step: Step[C], breach: Breach, *, now: float) -> Step[C]:
    """The effect at hand is not made, because of a limit: what the machine says to that, or the end."""
    effect, s = step.effect, step.snapshot
    turn = Turn(machine, replace(s, call=max(s.call - 1, 0)), step.ledger.without(effect), now)
    turn.refused = breach
    return _run(turn, lambda: effect)


@dataclass(frozen=True, slots=True)
class Return:
    """How a run goes back: by a rollback, or as a fork of another one."""

    event: str
    back_to: int
    """Of the records so far, those up to this number still hold."""
    left: str
    """The state that is left."""
    whole: Mapping[str, Any] = field(default_factory=dict)
    """Fields that get other values, whole."""
    patch: Patch | None = None


def return_to(
    machine: Machine[C], snapshot: Snapshot[C], ledger: Ledger, cause: Cause, way: Return, *, now: float
) -> Step[C]:
    """Enter the state of a restored snapshot. Raises MachineError for a broken rule, whatever the policy."""
    turn = Turn(machine, snapshot, ledger, now)

    def back() -> Said:
        change = Change(turn, snapshot.context)
        change.put(way.whole)
        change.apply(way.patch, None)
        turn.check_candidate(change)
        turn.record(
            way.event, change, state=way.left, to=name_of(snapshot.state), back_to=way.back_to,
            reason=cause.reason, by=cause.by, about=cause.about,
        )  # fmt: skip
        visit(turn, change.context)
        return enter(turn)

    return _settle(turn, back)


def _run(turn: Turn, say: Say) -> Step[Any]:
    """Settle, and where a rule is broken do what the machine's policy says."""
    try:
        return _settle(turn, say)
    except MachineError as error:
        target, broken = turn.machine.fail_state, error
        if target is None or turn.state == target or turn.failing:
            turn.record(type(error).__name__, error=str(error), by="kernel")
            error.step = Step(turn.snapshot, turn.ledger, records=tuple(turn.records))
            raise
    return _run(turn, lambda: fail(turn, broken))


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
    if turn.held is not None:
        return handed_out(turn, turn.held)
    patch, what = parts(turn, said)
    if what is None:
        return finish(turn, patch)
    return ask(turn, patch, what) if isinstance(what, Effect) else move(turn, patch, what)


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


def _answer(turn: Turn, answer: BaseModel) -> Said:
    """Fold an answer in: by the machine's `on_error` for a class it names, else by the state."""
    if isinstance(answer, EffectFailed) and answer.error in turn.on_error:
        return turn.on_error[answer.error](turn.view, answer, turn.at)
    if turn.stage.resume is None:
        kind = getattr(answer, "kind", type(answer).__name__)
        raise turn.error(MachineError, f"the answer {kind!r} came; no effect was asked for")
    return turn.stage.resume(turn.view, answer, turn.at)
