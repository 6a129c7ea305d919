"""A random run with machines inside it, sent back and forked, which knows by itself what was where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from pydantic import BaseModel

from activities.contracts import CallModel, Effect, ModelReplied, RunMachine, Transcript
from tests.kernel.puppet import Ask, Context, Ended, Looped, S, Stray, Told, Went
from tests.kernel.randomkit import random_machine, random_patch, speaks
from workflows.kernel.errors import MachineError, RecoverableError
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record
from workflows.kernel.machine import At, Machine
from workflows.kernel.moves import forked, rolled_back
from workflows.kernel.rebuild import rebuild
from workflows.kernel.restore import checkpoints, restored
from workflows.kernel.snapshot import Snapshot
from workflows.kernel.stack import Nesting, Stack, answered, began
from workflows.kernel.step import Cause

BOB = Cause("Forked", by="bob", reason="from run x, step n", about={"workflow_id": "x"})
ANN = Cause("RolledBack", by="ann", reason="not like this", about={"command": "rollback"})
MODEL = CallModel(transcript=Transcript())
INNER = RunMachine(machine="inner", goal="g")
WENT = Went()
SAYS = (
    Ask(), MODEL, INNER, INNER, WENT, WENT, WENT, WENT, Looped(), Looped(), Ended(), Stray(),
    RecoverableError("odd"),
)  # fmt: skip
DECIDES = (WENT, WENT, WENT, Ask(), MODEL, INNER, Ended())


def heard(c: Any, answer: Any, at: At) -> Any:
    """A `resume` that says what it is told; an inner machine's end is counted."""
    if isinstance(answer, Told):
        return answer.said(c, at) if callable(answer.said) else answer.said
    return {"total": 1}, Ask()


def talkative(r: Random, **changes: Any) -> Machine[Any]:
    """A random machine whose states may call models and run other machines."""
    machine = random_machine(r, **{"decides": DECIDES, **changes})
    grants: Any = {"grants": {"ask", "call_model", "run_machine"}, "resume": heard}
    states = {s: replace(d, **grants) if d.resume else d for s, d in machine.states.items()}
    return replace(machine, states=states, fold_steer=lambda c, text: {"names": [text]})


def nest(r: Random) -> Nesting:
    """The machine `inner`, at most two levels deep."""
    inner = talkative(r)

    def make(call: RunMachine, depth: int) -> tuple[Machine[Any], BaseModel]:
        return inner, Context(goal=call.goal)

    return Nesting(make, limit=2)


def same(run: Run) -> None:
    """What the log says of each step's beginning is what the kernel had shown of it."""
    log = written(run.records)
    points = checkpoints(run.machine, log)
    assert [point.step for point in points] == sorted(run.seen)
    for point in points:
        was, found = run.seen[point.step], restored(run.machine, log, point.step)
        assert (found.state, found.context) == (was.state, was.context)
        assert (found.transitions, found.hold_backs) == (was.transitions, was.hold_backs)
        assert (found.last, found.began) == (was.last, was.began)
        assert (found.unmatched, found.call, found.reads, found.within) == (0, 0, (), "")
        assert (found.step, found.seq) == (max(point.step - 1, 0), point.seq + 1)


class Run:
    """One run. `seen` holds, for each step that it can go back to, the snapshot at its arrival there, as the
    kernel showed it: an oracle that knows nothing of the log."""

    def __init__(self, seed: int, **changes: Any) -> None:
        self.r = Random(seed)
        step_state = self.r.choice([S.A, S.A, S.B, None])
        machine = talkative(self.r, **{"step_state": step_state, "max_transitions": 50, **changes})
        self.machine = replace(machine, hold=self._arrived)
        self.nesting = nest(self.r)
        self.records: list[Record] = []
        self.seen: dict[int, Snapshot[Any]] = {}
        self.now = 0.0
        self.failed = False
        """The first machine has broken a rule: the run is over, its last stack is none to go on from."""
        self.stack: Stack
        self.move(lambda: began(self.machine, Context(), self.nesting, now=0))
        # An `on_enter` that breaks a rule at the very start: no state was ever entered.
        self.failed = self.failed or self.seen[0].state != self.machine.initial

    def _arrived(self, snapshot: Snapshot[Any]) -> bool:
        self.seen.setdefault(0, snapshot)
        if snapshot.state == self.machine.step_state:
            self.seen[snapshot.step] = snapshot
        return False

    def move(self, move: Any) -> None:
        """Take a move over; a machine that breaks a rule ends the run."""
        try:
            self.keep(move())
        except MachineError:
            self.failed = True

    def keep(self, stack: Stack) -> None:
        """Take a stack over with its records."""
        self.stack = stack
        self.records += stack.records

    @property
    def snapshot(self) -> Snapshot[Any]:
        """Of the first machine."""
        return self.stack.first.step.snapshot

    def tell(self, most: int = 20) -> None:
        """Random answers, until the run is over."""
        for _ in range(self.r.randint(0, most)):
            if self.failed or self.stack.effect is None:
                return
            self.now += 1
            said = (random_patch(self.r), self.r.choice(SAYS))
            answer = ModelReplied(text="") if self.r.random() < 0.1 else Told(said=speaks(said))
            self.move(lambda answer=answer: answered(self.stack, answer, self.nesting, now=self.now))

    def back(self, step: int) -> bool:
        """Roll back; False when the machine cannot begin there, and then nothing has changed."""
        self.now += 1
        here = self.stack, self.records, step, self.nesting
        return self._again(step, lambda: rolled_back(*here, cause=ANN, now=self.now))

    def fork(self, step: int, after: Context | None = None) -> bool:
        """Go on as a fork of itself, with a ledger of its own; `after`: told otherwise."""
        self.now += 1
        retell = (Context(), after) if after else None
        more: dict[str, Any] = {"cause": BOB, "now": self.now, "ledger": Ledger(), "tools": ()}
        here = self.machine, self.records, step, self.nesting
        done = self._again(step, lambda: forked(*here, retell=retell, **more))
        if done:
            self.seen = {number: replace(was, began=self.now) for number, was in self.seen.items()}
        return done

    def _again(self, step: int, move: Callable[[], Stack]) -> bool:
        seen, log = dict(self.seen), len(self.records)
        # Where a run begins in its step state, its start is step 1 too.
        one = self.machine.initial == self.machine.step_state and step <= 1
        begun = (0, 1) if one else (step,)
        self.seen = {number: was for number, was in seen.items() if number < step or number in begun}
        try:
            stack = move()
        except (MachineError, ValueError):  # a ValueError: it could not be told anew
            self.seen = seen
            return False
        self.keep(stack)
        # What the run was told when it went back is part of the step.
        upto = next(n for n, record in enumerate(self.records) if n >= log and record.back_to is not None)
        _, context = rebuild(self.machine, self.records[: upto + 1])
        self.seen |= {number: replace(self.seen[number], context=context) for number in begun}
        return True

    def check(self) -> None:
        """The log tells what is, of every machine at work; and is without gaps."""
        for frame in self.stack.frames:
            there = (frame.step.snapshot.state, frame.step.snapshot.context)
            assert rebuild(frame.machine, self.records, frame.within) == there
        assert [record.seq for record in self.records] == list(range(len(self.records)))
        assert self.stack.top.step.snapshot.seq == len(self.records)


class Played:
    """A run by hand."""

    def __init__(self, machine: Machine[Any], context: Any = None, **caps: float) -> None:
        first = Context() if context is None else context
        self.machine, self.nesting = machine, Nesting(lambda call, depth: (machine, first))
        self.now = 0.0
        self.stack = began(machine, first, self.nesting, now=0, ledger=Ledger(caps=caps))
        self.records: list[Record] = [*self.stack.records]

    def tell(self, *told: Any) -> Played:
        """One answer after the other."""
        for each in told:
            self.now += 1
            fits = isinstance(each, BaseModel) and not isinstance(each, Effect)
            answer = each if fits else Told(said=each)
            self.keep(answered(self.stack, answer, self.nesting, now=self.now))
        return self

    def back(self, step: int, cause: Cause = ANN, begun: bool = False) -> Played:
        """Roll back; `begun`: what waits is being performed."""
        self.now += 1
        here = self.stack, self.records, step, self.nesting
        self.keep(rolled_back(*here, cause=cause, now=self.now, begun=begun))
        return self

    def keep(self, stack: Stack) -> None:
        """Take a stack over with its records."""
        self.stack, self.records = stack, [*self.records, *stack.records]

    @property
    def context(self) -> Any:
        """Of the first machine."""
        return self.stack.first.step.snapshot.context


def written(records: Sequence[Record]) -> list[Record]:
    """The same records, once through JSON."""
    return [Record.model_validate_json(record.model_dump_json()) for record in records]
