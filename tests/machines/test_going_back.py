"""Rollback on every machine (spec 1.8, R-000-14): by its log a run goes back to the beginning of any of its
steps, at any time. Its state is what it was then, its loop counters too; what was spent stays spent, but for
what was reserved for an effect that was never begun."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from activities.contracts import CallModel, CallTools
from tests.machines.answers import act, final, said, thought, tool_said
from tests.machines.livekit import Live, of_every_machine
from tests.machines.scripts_code import block, calls, ran
from workflows.kernel.design import Design
from workflows.kernel.errors import name_of
from workflows.kernel.fields import Fields
from workflows.kernel.ledger import price_of, reserved_for
from workflows.kernel.rebuild import rebuild
from workflows.kernel.restore import checkpoints, restored
from workflows.registry import design

RANDOM = settings(deadline=None, max_examples=50, suppress_health_check=list(HealthCheck))
COUNTERS = ("model_calls", "tool_calls", "input_tokens", "output_tokens", "tokens", "cost_usd")


def expected(live: Live, step: int) -> Any:
    """The context in which a step began, and what the machine wants it to know of the rollback."""
    machine, target = live.machine, restored(live.machine, live.records, step)
    patch = machine.on_rollback(live.snapshot.context, target.context) if machine.on_rollback else {}
    fields = Fields.of(machine.context)
    changes = {name: fields.fold(name, getattr(target.context, name), d) for name, d in patch.items()}
    return target.state, target.context.model_copy(update=changes)


def asked_since(live: Live, seq: int) -> int:
    """How many effects had been asked for before the log was so long."""
    return next((n for n, at in enumerate(live.marks) if at >= seq), len(live.effects))


def plain(value: Any) -> Any:
    """Without the ids that are made from a visit's number, which never falls."""
    return re.sub(r"call_\d+_\d+", "call", str(value))


def shown(effects: list[Any]) -> list[Any]:
    """What was asked for, with its prompts."""
    return [
        (e.kind, e.role, [(m.role, plain(m)) for m in e.transcript]) if isinstance(e, CallModel)
        else (e.kind, [(run.tool, run.arguments) for run in e.runs]) if isinstance(e, CallTools)
        else (e.kind, plain(e))
        for e in effects
    ]  # fmt: skip


@of_every_machine
@RANDOM
@given(data=st.data())
def test_the_state_is_what_the_log_says_was_there_and_the_ledger_stays(
    made: Design, data: st.DataObject
) -> None:
    live = Live(made)
    live.play(data, data.draw(st.integers(0, 20)))
    if live.effect is None:
        return
    there = checkpoints(live.machine, live.records)
    step = data.draw(st.sampled_from(there)).step
    event(f"{made.name}: back to {step} of {len(there) - 1}")
    wants, spent, visit = expected(live, step), live.stack.ledger, live.snapshot.visit
    seq, begun = len(live.records), data.draw(st.booleans())
    returned = {} if begun else reserved_for(live.effect)
    live.back(step, begun)
    (record,) = [r for r in live.records[seq:] if r.event == "RolledBack" and not r.within]
    assert rebuild(live.machine, live.records[: record.seq + 1]) == wants
    assert (record.by, record.to, record.branch) == ("ann", name_of(wants[0]), 1)
    assert live.snapshot.visit > visit
    asked = price_of(live.effect) if live.effect else {}
    for name in COUNTERS:
        paid = spent.used(name) - returned.get(name, 0)
        assert round(live.stack.ledger.used(name) - paid, 9) == asked.get(name, 0)
    live.check()


@of_every_machine
@RANDOM
@given(data=st.data())
def test_with_the_same_answers_a_step_that_begins_again_goes_the_same_way(
    made: Design, data: st.DataObject
) -> None:
    """Prompts and calls are those of the first time: nothing from before the step is asked for again."""
    live = Live(made)
    answers = live.play(data, data.draw(st.integers(1, 20)))
    if live.effect is None:
        return
    step = data.draw(st.sampled_from(checkpoints(live.machine, live.records))).step
    from_ = asked_since(live, restored(live.machine, live.records, step).seq)
    first = live.effects[from_:]
    live.effects.clear()
    live.back(step)
    for answer in answers[from_:]:
        if live.effect is None:
            break
        live.answer(answer)
    again = live.effects
    count = min(len(first), len(again))
    assert shown(again[:count]) == shown(first[:count])
    assert len(again) == len(first) or live.stack.exit is not None
    live.check()


@of_every_machine
@RANDOM
@given(data=st.data())
def test_on_its_new_branch_a_run_ends_by_the_rules_whatever_is_answered(
    made: Design, data: st.DataObject
) -> None:
    live = Live(made)
    for branch in range(1, 4):
        live.play(data, data.draw(st.integers(0, 8)))
        if live.effect is None:
            break
        live.say(f"message {branch}")
        live.back(data.draw(st.sampled_from(checkpoints(live.machine, live.records))).step)
        assert live.snapshot.branch == branch
    live.end(data)
    live.check()
    assert len(checkpoints(live.machine, live.records)) >= 1


# -- machine by machine: loop counters go back --------------------


def running(name: str, *answers: Any, **options: Any) -> Live:
    """A run of a machine that has got these answers."""
    live = Live(design(name), options)
    for answer in answers:
        live.answer(answer(live.effect) if callable(answer) else answer)
    return live


def test_react_forgets_the_steps_behind_and_is_told_where_it_was() -> None:
    live = running("react", act("tool", q="x"), tool_said("A"), thought("I guess so"), thought("b", cost=0.2))
    live.back(2)
    context = live.snapshot.context
    assert [step.id for step in context.steps] == [0]
    assert (context.retry_count, context.metadata["tool_history"]) == (0, ["tool"])
    assert (context.metadata["rolled_back_from"], context.metadata["rolled_back_to"]) == (3, 0)
    assert (context.total_cost, live.stack.ledger.used("cost_usd")) == (0, 0.2)
    assert live.effect.label == "think #2"


def test_step_0_is_the_start_of_the_run() -> None:
    live = running("react", act("tool", q="x"), tool_said("A"))
    live.back(0)
    assert (live.snapshot.context.steps, live.effect.label) == ((), "think #1")
    assert live.snapshot.context.metadata["rolled_back_to"] == -1
    live.answer(final("7"))
    assert live.stack.exit is not None
    assert live.stack.exit.answer == "7"


def test_a_rollback_out_of_a_machine_inside_closes_it() -> None:
    made = {"nested": {"policy": "always", "mode": "inline"}, "max_depth": 2}
    live = running("code", block("llm_query('a')"), calls("llm_query", "a"), said("hm"), **made)
    assert len(live.stack.frames) == 2
    live.back(1)
    assert len(live.stack.frames) == 1
    assert [r.event for r in live.records if r.within][-1] == "Closed"
    assert live.effect.kind == "run_code"
    for answer in (ran(), said("FINAL(42)")):
        live.answer(answer)
    assert live.stack.exit is not None
    assert live.stack.exit.answer == "42"


@pytest.mark.parametrize("step", [-1, 3, 99])
def test_a_step_that_has_not_begun_cannot_be_gone_back_to(step: int) -> None:
    live = running("react", act("tool", q="x"), tool_said("A"))
    with pytest.raises(ValueError, match="there are 0 to 2"):
        live.back(step)


def test_tools_are_called_again_only_from_the_step_on_that_begins_again() -> None:
    live = running("react", act("tool", q="x"), tool_said("A"), act("tool", q="y"), tool_said("B"))
    live.back(2)
    live.answer(act("tool", q="z"))
    assert [effect.runs[0].arguments for effect in live.effects if isinstance(effect, CallTools)] == [
        {"q": "x"}, {"q": "y"}, {"q": "z"},
    ]  # fmt: skip
