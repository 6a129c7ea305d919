"""Forks of every machine that are told another goal: they are, or they are refused readably."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.machines.livekit import Live, of_every_machine
from tests.machines.script import TOOL
from tests.machines.scripts_staged import TOOLS, asks
from workflows.kernel.design import Brief, Design
from workflows.kernel.fields import Fields
from workflows.kernel.restore import checkpoints
from workflows.registry import design

RANDOM = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
OLD, NEW = "Count the yellow boats.", "Weigh the purple bricks."


def _told(context: Any) -> str:
    return json.dumps(Fields.of(type(context)).dump(context))


@of_every_machine
@RANDOM
@given(data=st.data())
def test_a_fork_is_told_its_own_goal_at_every_step_also_when_people_had_spoken(
    made: Design, data: st.DataObject
) -> None:
    live = Live(made, goal=OLD)
    for n in range(data.draw(st.integers(0, 2))):
        live.play(data, data.draw(st.integers(0, 6)))
        if live.effect is not None:
            live.say(f"And hurry, {n}.")
    live.play(data, data.draw(st.integers(0, 10)))
    step = data.draw(st.sampled_from(checkpoints(live.machine, live.records))).step
    event(f"{made.name}: step {step}")
    context = live.fork(step, Brief(NEW, "t-2", "Be quick.", tools=(TOOL,))).first.step.snapshot.context
    assert NEW in _told(context)


def test_a_staged_run_that_was_told_something_can_be_forked_with_another_goal() -> None:
    live = Live(design("staged"), goal=OLD)
    live.say("and hurry")
    live.answer(TOOLS)
    live.answer(asks("tool", q="x"))
    fork = live.fork(1, Brief(NEW, "t-2", tools=(TOOL,)))
    assert fork.first.step.snapshot.context.user_input == NEW
    assert live.snapshot.context.user_input == OLD
    acting: Any = live.effects[1]
    assert "The user says: and hurry" in acting.transcript.messages[-1].content
