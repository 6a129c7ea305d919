"""A run on its way, with what people do to it: for tests of messages and rollbacks on every machine."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import strategies as st

from activities.contracts import CallTools, Effect, ToolSpec
from tests.machines import scripts_refund_desk
from tests.machines.deskkit import DESIGN as DESK
from tests.machines.script import PARTS, TOOL
from tests.machines.test_all_machines import BROKEN, OUTSIDE_THE_TABLE, answer_to, scripts
from workflows.kernel.design import Brief, Design
from workflows.kernel.errors import name_of
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record, lineage
from workflows.kernel.machine import Machine
from workflows.kernel.moves import forked, rolled_back, steered
from workflows.kernel.rebuild import rebuild
from workflows.kernel.stack import Nesting, Stack, answered, began
from workflows.kernel.step import Cause
from workflows.registry import design, shipped

__all__ = ["MACHINES", "Live", "of_every_machine"]

MACHINES = (*shipped(), DESK)
"""Ours, and the example of a user's own."""
of_every_machine = pytest.mark.parametrize("made", [pytest.param(one, id=one.name) for one in MACHINES])
MOST = {"model_calls": 25.0, "tool_calls": 25.0}


def _make(call: Any, depth: int) -> tuple[Machine[Any], Any]:
    made = design(call.machine)
    options = made.options.model_validate(call.options)
    brief = Brief(call.goal, "t-1", call.instructions, (TOOL,), depth)
    return made.build(options, PARTS), made.begin(brief, options)


class Live:
    """One run: where it is, its log, and all that it asked for."""

    def __init__(
        self, made: Design, options: Any = None, tools: tuple[ToolSpec, ...] = (TOOL,), goal: str = "goal"
    ) -> None:
        knobs = made.options.model_validate(options or {})
        self.made, self.machine = made, made.build(knobs, PARTS)
        self.clock = itertools.count(1000.0)
        self.nesting = Nesting(_make)
        self.first = context = made.begin(Brief(goal, "t-1", tools=tools), knobs)
        self.records: list[Record] = []
        self.effects: list[Effect] = []
        self.marks: list[int] = []
        """How many records there were when each effect was asked for."""
        names = [spec.name for spec in tools]
        ledger = Ledger(caps=MOST)
        self._keep(began(self.machine, context, self.nesting, now=1000.0, ledger=ledger, tools=names))

    def _keep(self, stack: Any, asked: bool = True) -> None:
        self.stack = stack
        self.records += stack.records
        if asked and stack.effect is not None:
            self.effects.append(stack.effect)
            self.marks.append(len(self.records))

    @property
    def effect(self) -> Any:
        """What is wanted now."""
        return self.stack.effect

    @property
    def snapshot(self) -> Any:
        """Where the run's machine is."""
        return self.stack.first.step.snapshot

    def answer(self, answer: Any) -> None:
        """The world answers."""
        self._keep(answered(self.stack, answer, self.nesting, now=next(self.clock)))

    def say(self, text: str) -> None:
        """A person says something; a call that is asked for anew takes the place of the stale one."""
        stale, cause = self.effect, Cause("Steered", by="ann", reason=text)
        self._keep(steered(self.stack, text, self.nesting, cause=cause, now=next(self.clock)), asked=False)
        if self.effect is not stale:
            self.effects[-1] = self.effect

    def back(self, step: int, begun: bool = False) -> None:
        """A person sends the run back to the beginning of a step; `begun`: what waits is being performed."""
        cause = Cause("RolledBack", by="ann")
        now = next(self.clock)
        here = self.stack, self.records, step, self.nesting
        self._keep(rolled_back(*here, cause=cause, now=now, begun=begun))

    def fork(self, step: int, brief: Brief) -> Stack:
        """The run that a task with this brief makes of it from a step on; this one stays as it is."""
        knobs = self.made.options()
        return forked(
            self.machine, self.records, step, self.nesting, cause=Cause("Forked", by="ann"), now=5000.0,
            ledger=Ledger(), tools=(TOOL.name,), retell=(self.first, self.made.begin(brief, knobs)),
        )  # fmt: skip

    def draw(self, data: st.DataObject) -> Any:
        """Any answer that the world may give now."""
        given = scripts_refund_desk if self.made is DESK else scripts(self.made)
        return data.draw(answer_to(self.effect, given))

    def play(self, data: st.DataObject, most: int) -> list[Any]:
        """Go on with at most so many answers; those that were given."""
        given = []
        for _ in range(most):
            if self.effect is None:
                break
            given.append(self.draw(data))
            self.answer(given[-1])
        return given

    def end(self, data: st.DataObject) -> None:
        """Go on to the end, which must come, by the rules."""
        for _ in range(2000):
            if self.effect is None:
                break
            self.answer(self.draw(data))
        assert self.stack.exit is not None
        reasons = {"limit", "max_transitions", "aborted", *self.machine.limit_reasons.values()}
        assert self.stack.exit.reason in {*self.made.exits, *reasons}

    def check(self) -> None:
        """The log gives the state again, out of JSON too; no rule was broken, no row invented."""
        again = [Record.model_validate_json(record.model_dump_json()) for record in self.records]
        assert rebuild(self.machine, again) == (self.snapshot.state, self.snapshot.context)
        assert [record.seq for record in again] == list(range(len(again)))
        own = [record for record in lineage(again) if not record.within]
        assert [record.event for record in own if record.event in BROKEN] == []
        rows = {(name_of(r.source), r.event.__name__, name_of(r.target)) for r in self.machine.rows}
        fail = name_of(self.machine.fail_state) if self.machine.fail_state else None
        outside = {*OUTSIDE_THE_TABLE, "RolledBack"}
        moves = {(r.state, r.event, r.to) for r in own if r.to and r.event not in outside}
        assert {move for move in moves - rows if move[2] != fail} == set()


def wanted(effects: list[Effect]) -> list[tuple[Any, ...]]:
    """What was asked for, without prompts: kind, tools with their arguments."""
    return [
        (e.kind, *((run.tool, run.arguments) for run in e.runs)) if isinstance(e, CallTools) else (e.kind,)
        for e in effects
    ]
