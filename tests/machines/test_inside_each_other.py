"""Any shipped machine runs inside any other, as the state in front of it, and both logs hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from activities.contracts import RunMachine
from tests.machines.script import PARTS, TOOL, Script
from tests.machines.test_all_machines import scripts
from workflows.kernel.design import Brief, Design
from workflows.kernel.log import STARTED, Record
from workflows.kernel.machine import Machine
from workflows.kernel.rebuild import rebuild
from workflows.kernel.stack import Nesting, Stack, answered, began
from workflows.kernel.subgraph import Subgraph, preceded
from workflows.registry import shipped

SHIPPED = shipped()


def simplest(design: Design) -> Script:
    """The machine's first script that ends and needs no first context of its own."""
    found: tuple[Script, ...] = scripts(design).SCRIPTS
    return next(s for s in found if not s.changed and s.run(design).last.exit is not None)


def built(design: Design, script: Script) -> Machine[Any]:
    """The machine as the script wants it."""
    return design.build(design.options.model_validate(dict(script.options)), PARTS)


def first_context(design: Design, script: Script) -> BaseModel:
    """What it begins with."""
    options = design.options.model_validate(dict(script.options))
    return design.begin(Brief("find out", "trace-1", tools=(TOOL,)), options)


def run(outer: Design, inner: Design) -> tuple[Machine[Any], Machine[Any], Stack, list[Record]]:
    """The inner machine's script, then the outer one's, as one run."""
    script, inside = simplest(outer), simplest(inner)
    within = built(inner, inside)
    sub = Subgraph(machine=inner.name, goal="find out", merge=lambda c, ended: {})
    machine = preceded(built(outer, script), sub)

    def make(call: RunMachine, depth: int) -> tuple[Machine[Any], BaseModel]:
        assert call.machine == inner.name
        return within, first_context(inner, inside)

    answers: Iterator[Any] = itertools.chain(inside.answers, script.answers)
    nesting, clock = Nesting(make), itertools.count(1.0)
    stack = began(machine, first_context(outer, script), nesting, now=next(clock))
    records = list(stack.records)
    for answer in answers:
        said = answer(stack.effect) if callable(answer) else answer
        stack = answered(stack, said, nesting, now=next(clock))
        records += stack.records
    return machine, within, stack, records


@pytest.mark.parametrize("inner", SHIPPED, ids=lambda design: f"inner-{design.name}")
@pytest.mark.parametrize("outer", SHIPPED, ids=lambda design: f"outer-{design.name}")
def test_a_machine_runs_inside_another_and_both_come_to_their_ends(outer: Design, inner: Design) -> None:
    machine, within, stack, records = run(outer, inner)
    alone, inner_alone = simplest(outer).run(outer).exit, simplest(inner).run(inner).exit
    assert stack.exit is not None
    assert (stack.exit.reason, stack.exit.ok) == (alone.reason, alone.ok)
    assert [r.seq for r in records] == list(range(len(records)))
    state, context = rebuild(machine, records)
    assert (state, context) == (stack.first.step.snapshot.state, stack.first.step.snapshot.context)
    place = next(r.within for r in records if r.within)
    inside = rebuild(within, records, place)[1]
    assert within.result(inside, rebuild(within, records, place)[0]).reason == inner_alone.reason
    assert [r.machine for r in records if r.event == STARTED] == [outer.name, inner.name]
    spent, both = stack.first.step.ledger, [simplest(d).run(d).last.ledger for d in (outer, inner)]
    assert spent.used("model_calls") == sum(ledger.used("model_calls") for ledger in both)
    assert spent.used("tool_calls") == sum(ledger.used("tool_calls") for ledger in both)
