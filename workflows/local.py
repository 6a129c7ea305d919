"""Run an agent machine without Temporal: the loop of the design over a plain function that performs effects.

    ended = Local(perform).run(design("react"), context)

Spec 1.8: an interrupt function is asked before every state, a person may end the run or send it back, and
each run may be kept in a store, to be gone on with from any of its steps. In production there is the
workflow instead, with requests, deadlines and approvals (`workflows/loop.py`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel

from activities.contracts import Effect, RunMachine, ToolSpec
from workflows import registry
from workflows.kernel.design import Brief, Design
from workflows.kernel.errors import name_of
from workflows.kernel.fields import Fields
from workflows.kernel.hold import Hold
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import ROLLED_BACK, Record
from workflows.kernel.machine import Exit, Machine
from workflows.kernel.moves import entered, rolled_back
from workflows.kernel.rebuild import rebuild
from workflows.kernel.restore import steps_done
from workflows.kernel.snapshot import Snapshot, Step, load, position
from workflows.kernel.stack import Frame, Nesting, Stack, answered, began, closed
from workflows.kernel.step import Cause, Return, return_to

__all__ = ["Choice", "Local", "Outcome", "Standing", "every", "stored"]

Perform = Callable[[Any], BaseModel]
"""Effect -> its answer, as the activities give it."""
Store = MutableMapping[str, list[str]]
"""Trace id -> the run as lines of JSON, one for each step that began and one for the end: what came since the
one before. The newest run of an id wins. Its keys are the runs that are there."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands: what an interrupt function and a person are shown."""

    machine: str
    state: str
    """About to be entered."""
    context: Any
    steps: int
    """How many are done."""
    at_step: bool
    """A step begins here."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a person wants of a run that stands still."""

    decision: Literal["resume", "abort", "rollback"] = "resume"
    target_step: int | None = None
    """For `rollback`: the last step that stays, counted from 0."""
    by: str = "a person"
    text: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that is over."""

    exit: Exit
    context: Any
    records: tuple[Record, ...]
    """The whole log."""
    ledger: Ledger


def every(steps: int) -> Callable[[Standing], bool]:
    """An interrupt function: before each step that follows so many, once per number of steps (R-000-13)."""
    if steps < 1:
        raise ValueError(f"a run cannot be interrupted every {steps} steps; expected 1 or more")
    asked: list[int] = []

    def is_due(standing: Standing) -> bool:
        due = standing.at_step and standing.steps > 0 and standing.steps % steps == 0
        if not due or asked[-1:] == [standing.steps]:
            return False
        asked.append(standing.steps)
        return True

    return is_due


@dataclass(frozen=True, slots=True)
class Local:
    """How runs without Temporal are performed, watched and kept. Raises ValueError when nobody is to be asked
    where an interrupt function is given."""

    perform: Perform
    interrupt_fn: Callable[[Standing], bool] | None = None
    """Asked before every state that is entered; true: the person is asked."""
    ask: Callable[[Standing], Choice] | None = None
    store: Store | None = None
    tools: tuple[ToolSpec, ...] = ()
    """Those that machines inside may be given."""
    now: Callable[[], float] = time.time
    """Seconds since 1970."""

    def __post_init__(self) -> None:
        if self.interrupt_fn is not None and self.ask is None:
            raise ValueError("`interrupt_fn` says when a person is asked; give `ask` too, which asks")

    def run(
        self,
        machine: Machine[Any] | Design,
        context: BaseModel,
        *,
        trace_id: str = "",
        ledger: Ledger | None = None,
    ) -> Outcome:
        """Run it to its end; a design is built with its default knobs.

        With a store and a trace id the run is kept at each step and at its end. Raises MachineError for a
        broken rule, and what `perform` raises.
        """
        known = self._watched(_built(machine))
        nesting, tools = self._nesting(trace_id), [spec.name for spec in self.tools]
        stack = began(known, context, nesting, now=self.now(), ledger=ledger, tools=tools)
        if trace_id and self.store is not None:
            self.store[trace_id] = []
        return self._go_on(stack, [], nesting, trace_id)

    def replay(self, machine: Machine[Any] | Design, trace_id: str, up_to_step: int) -> Outcome:
        """Load a run that was kept, go back so that step `up_to_step` is the last that stays, and run on.

        Raises ValueError for a run that the store does not have and for a step that the run does not have.
        """
        known = self._watched(_built(machine))
        kept = _kept(known, self.store or {}, trace_id)
        if kept is None:
            there = ", ".join(sorted(self.store or ())) or "none"
            raise ValueError(f"no run {trace_id!r} is stored; there is {there}")
        snapshot, ledger, records = kept
        frame = Frame(known, Step(snapshot, ledger), frozenset(spec.name for spec in self.tools))
        nesting = self._nesting(trace_id)
        stack = self._back(Stack((frame,)), records, nesting, Choice("rollback", up_to_step))
        return self._go_on(stack, records, nesting, trace_id)

    # -- the loop --------------------

    def _go_on(self, stack: Stack, records: list[Record], nesting: Nesting, trace_id: str) -> Outcome:
        """`records`: those before the stack's own, which the store has."""
        step, kept = -1, len(records)
        while True:
            records += stack.records
            first = stack.first.step
            if trace_id and self.store is not None and (first.exit or first.snapshot.step != step):
                self.store[trace_id].append(_line(stack, records[kept:]))
                step, kept = first.snapshot.step, len(records)
            effect = stack.effect
            if effect is None:
                assert first.exit is not None
                return Outcome(first.exit, first.snapshot.context, tuple(records), stack.ledger)
            stack = self._next(stack, effect, records, nesting)

    def _next(self, stack: Stack, effect: Effect, records: list[Record], nesting: Nesting) -> Stack:
        if not isinstance(effect, Hold):
            return answered(stack, self.perform(effect), nesting, now=self.now())
        assert self.ask is not None
        choice = self.ask(_standing(stack.first.machine, stack.first.step.snapshot))
        if choice.decision == "abort":
            error = f"{choice.by} ended the run{': ' if choice.text else ''}{choice.text}"
            return closed(stack, "aborted", now=self.now(), error=error, by=choice.by)
        if choice.decision == "rollback":
            return self._back(stack, records, nesting, choice)
        return entered(stack, nesting, now=self.now())

    def _back(self, stack: Stack, records: list[Record], nesting: Nesting, choice: Choice) -> Stack:
        """The next state is entered at once: nobody is asked again before that (spec 1.8)."""
        target, first = choice.target_step, stack.first
        if target is None:
            raise ValueError("a rollback needs a `target_step`: the last step that stays, counted from 0")
        cause = Cause(ROLLED_BACK, by=choice.by, reason=choice.text)
        if first.machine.rewind is not None:
            context = first.machine.rewind(first.step.snapshot.context, target)
            step = _rewound(first, context, target, cause, self.now())
            return Stack((replace(first, step=step),), step.records)
        return rolled_back(stack, records, target + 2, nesting, cause=cause, now=self.now())

    # -- what it is made of --------------------

    def _watched(self, machine: Machine[Any]) -> Machine[Any]:
        interrupt = self.interrupt_fn
        if interrupt is None:
            return machine

        def hold(snapshot: Snapshot[Any]) -> bool:
            return snapshot.state not in machine.final and interrupt(_standing(machine, snapshot))

        return replace(machine, hold=hold)

    def _nesting(self, trace_id: str) -> Nesting:
        def make(call: RunMachine, depth: int) -> tuple[Machine[Any], BaseModel]:
            design = registry.design(call.machine, call.machine_version, newest=False)
            options = design.options.model_validate(call.options)
            tools = tuple(spec for spec in self.tools if spec.name in call.tools_given)
            brief = Brief(call.goal, trace_id, call.instructions, tools, depth, call.context, call.values)
            return design.build(options, registry.parts()), design.begin(brief, options)

        return Nesting(make)


def _built(machine: Machine[Any] | Design) -> Machine[Any]:
    if isinstance(machine, Design):
        return machine.build(machine.options(), registry.parts())
    return machine


def _standing(machine: Machine[Any], snapshot: Snapshot[Any]) -> Standing:
    return Standing(
        machine=machine.name,
        state=name_of(snapshot.state),
        context=snapshot.context,
        steps=steps_done(machine, snapshot),
        at_step=snapshot.state == machine.step_state,
    )


def _rewound(frame: Frame, context: Any, target: int, cause: Cause, now: float) -> Step[Any]:
    """Go back by the state alone, also behind the run's end, because its steps are in it (R-000-14)."""
    machine, live = frame.machine, frame.step.snapshot
    names = Fields.of(machine.context).names
    whole = {n: getattr(context, n) for n in names if getattr(context, n) != getattr(live.context, n)}
    way = Return(cause.event, back_to=live.seq - 1, left=name_of(live.state), whole=whole)
    state: Any = machine.step_state
    # Node visits are counted anew; the step that begins now is the one behind the last that stays.
    at = replace(live, state=state, step=target + 1, transitions=0, branch=live.branch + 1, entered=now)
    return return_to(machine, at, frame.step.ledger, cause, way, now=now)


# -- runs that are kept --------------------


def stored(machine: Machine[Any] | Design, store: Mapping[str, list[str]], trace_id: str) -> Any:
    """The state (context) of a run as it was kept last; None for an id that the store does not have.

    Raises ValueError when it is no run of this machine.
    """
    kept = _kept(_built(machine), store, trace_id)
    return kept[0].context if kept else None


def _line(stack: Stack, records: Sequence[Record]) -> str:
    """What the store has not yet: these records, and where the run stands behind them."""
    row = {
        "position": position(replace(stack.first.step.snapshot, seq=stack.top.step.snapshot.seq)),
        "ledger": stack.ledger.model_dump(mode="json"),
        "log": [record.model_dump(mode="json") for record in records],
    }
    return json.dumps(row, allow_nan=False)


def _kept(
    machine: Machine[Any], store: Mapping[str, list[str]], trace_id: str
) -> tuple[Snapshot[Any], Ledger, list[Record]] | None:
    rows = [json.loads(line) for line in store.get(trace_id, ())]
    if not rows:
        return None
    records = [Record.model_validate(record) for row in rows for record in row["log"]]
    _, context = rebuild(machine, records)
    snapshot = load(machine, {**rows[-1]["position"], "context": Fields.of(machine.context).dump(context)})
    return snapshot, Ledger.model_validate(rows[-1]["ledger"]), records
