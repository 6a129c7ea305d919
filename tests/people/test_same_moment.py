"""Commands that come at the same moment, in every situation: obeyed one after the other, as they came."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.machines.answers import act, final, tool_said
from tests.people.bench import Bench, unsafe
from workflows.kernel.rebuild import rebuild
from workflows.people import People

ANSWERS = (act("tool", q="x"), tool_said(), act("tool", q="y"), tool_said(), final())
COMMANDS: Mapping[str, Mapping[str, Any]] = {
    "pause": {"name": "pause"},
    "pause at once": {"name": "pause", "at_once": True},
    "resume": {"name": "resume"},
    "abort": {"name": "abort", "text": "enough"},
    "steer": {"name": "steer", "text": "mind the gap"},
    "rollback": {"name": "rollback", "step": 1},
    "limits": {"name": "limits", "limits": {"model_calls": 50}},
}
EVENTS = {
    "pause": "Paused", "pause at once": "Paused", "resume": "Resumed", "abort": "Closed", "steer": "Steered",
    "rollback": "RolledBack", "limits": "LimitsSet",
}  # fmt: skip


async def _asking_a_model(run: Bench) -> None:
    assert run.performed


async def _waiting(run: Bench) -> None:
    assert run.open


async def _paused(run: Bench) -> None:
    await run.command("pause")


def _blocked() -> Bench:
    run = Bench("react", ANSWERS)
    run.blocked = True
    return run


SITUATIONS: Mapping[str, tuple[Callable[[Bench], Awaitable[None]], Callable[[], Bench]]] = {
    "during a model call": (_asking_a_model, _blocked),
    "while waiting": (_waiting, lambda: Bench("react", ANSWERS, tool=unsafe())),
    "while paused": (_paused, lambda: Bench("react", ANSWERS, tool=unsafe())),
    "before a step": (_waiting, lambda: Bench("react", ANSWERS, people=People(interrupt_every=1))),
}


@dataclass
class Expected:
    """What commands come to, one after the other."""

    paused: bool = False
    calling: bool = False
    """A call is under way, which only a pause at once stops."""
    over: bool = False
    branch: int = 0
    told: list[str] = field(default_factory=list)

    def obey(self, name: str) -> bool:
        """True: it is obeyed."""
        cuts = name == "pause at once" and self.calling
        again = name.startswith("pause") and self.paused and not cuts
        if self.over or again or (name == "resume" and not self.paused):
            return False
        self.calling = self.calling and name in {"pause", "resume", "limits"}
        self.paused = name.startswith("pause") or (self.paused and name != "resume")
        self.over = name == "abort"
        self.branch += name == "rollback"
        self.told.append(EVENTS[name])
        return True


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(("first", "second"), list(itertools.product(COMMANDS, COMMANDS)))
async def test_two_commands_at_the_same_moment_are_obeyed_one_after_the_other(
    situation: str, first: str, second: str
) -> None:
    reach, made = SITUATIONS[situation]
    async with made() as run:
        await reach(run)
        calling = situation == "during a model call"
        expected, seen = Expected(paused=run.loop.paused, calling=calling), len(run.records)
        orders = [run.order(**COMMANDS[name]) for name in (first, second)]
        obeyed = [expected.obey(name) for name in (first, second)]
        run.answers = iter(())  # whatever is asked from now on is not answered
        await run.settled()
        if not all(order.over for order in orders):  # they wait for the effect under way
            run.answers, run.blocked = iter(ANSWERS[:1]), False
            await run.settled()
        assert [order.refused == "" for order in orders] == obeyed
        assert [order.over for order in orders] == [True, True]
        assert [r.event for r in run.records[seen:] if r.event in EVENTS.values()] == expected.told
        assert run.loop.stack.first.step.snapshot.branch == expected.branch
        assert (run.loop.stack.exit is not None) == expected.over
        assert run.loop.paused == (expected.paused and not expected.over)
        snapshot = run.loop.stack.first.step.snapshot
        assert rebuild(run.machine, run.records) == (snapshot.state, snapshot.context)


async def test_a_decision_and_an_abort_at_the_same_moment_release_nothing() -> None:
    async with Bench("react", ANSWERS, tool=unsafe()) as run:
        run.order("abort")
        decided = await run.decide("approve")
        assert decided.outcome == "approved"
        assert run.called == []
        assert run.exit.reason == "aborted"


async def test_what_was_approved_before_a_rollback_is_asked_again_behind_it() -> None:
    async with Bench("react", ANSWERS, tool=unsafe()) as run:
        asked = run.open[0]
        await run.command("pause")
        await run.decide("approve", asked)
        await run.command("rollback", step=1)
        run.answers = iter(ANSWERS)
        await run.command("resume")
        assert run.called == []
        (again,) = run.open
        assert (again.arguments, again.digest != asked.digest) == (asked.arguments, True)


async def test_a_call_that_has_ended_is_not_made_again_when_the_effect_is_begun_anew() -> None:
    """Two calls of one reply: the pause comes while the first, which must not be cut off, is under way."""
    from tests.machines.scripts_tools import calls

    answers = (calls("tool", "tool"), tool_said("paid"))
    async with Bench("tools", answers, tool=unsafe()) as run:
        for request in run.open:
            run.blocked = True
            await run.decide("approve", request)
        assert len(run.called) == 1
        run.order("pause", at_once=True)
        await run.settled()
        assert not run.loop.paused
        run.blocked = False
        await run.settled()
        assert run.loop.paused
        assert len(run.called) == 1
        await run.command("resume")
        assert [name for name, _ in run.called] == [f"{run.performed[1][0]}.0", f"{run.performed[1][0]}.1"]


async def test_effects_since_a_step_name_what_was_done_and_a_compensation_runs_backwards_once() -> None:
    tool = unsafe(compensates=True)
    async with Bench("react", ANSWERS, tool=tool) as run:
        while run.open:
            await run.decide("approve")
            if len(run.called) == 2:
                break
    answers = (*ANSWERS[:4],)
    async with Bench("react", answers, tool=tool) as run:
        while run.open:
            await run.decide("approve")
        since = run.loop.calls.since(1)
        assert [(call.step, call.tool, call.undoable) for call in since] == [
            (1, "tool", True),
            (2, "tool", True),
        ]
        assert [call.step for call in run.loop.calls.since(2)] == [2]
        order = await run.command("rollback", step=1, compensate=True)
        assert order.done is not None
        assert run.compensated == [since[1].place, since[0].place]
        assert len(order.done.undone) == 2
        assert [call.undone for call in run.loop.calls.since(1)] == ["undone: as asked"] * 2
        await run.command("rollback", step=1, compensate=True)
        assert len(run.compensated) == 2


async def test_a_message_that_changes_the_call_at_hand_withdraws_what_was_asked_about_it() -> None:
    people = People(on_limit="ask")
    async with Bench("react", ANSWERS, people=people, limits={"model_calls": 1}) as run:
        (asked,) = run.open
        assert asked.kind == "limit"
        await run.command("steer", text="mind the gap")
        (again,) = run.open
        assert (again.kind, again.id) == ("limit", "r2")
        assert run.loop.desk.get(asked.id).outcome == "withdrawn"
        await run.decide("topup", amounts={"model_calls": 5})
        assert run.exit.ok
