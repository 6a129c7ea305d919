"""What deadlines bring, and what is left behind when a command or a limit takes the call at hand away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from activities.contracts import EffectFailed
from tests.machines.answers import act, final, said, tool_failed, tool_said
from tests.machines.scripts_tools import calls
from tests.people.bench import Bench, unsafe
from tests.workflows.trial_machines import DESIGNS
from workflows.kernel.errors import MachineError
from workflows.people import Approvals, Asking, People

FREELY = Approvals(effects={"unsafe": "never"})
ANSWERS = (act("tool", q="x"), tool_said("paid", cost=0.5), act("tool", q="y"), tool_said(), final())
REFUSED = EffectFailed(error="fatal", type="HTTP401", message="no such key")
ON_TROUBLE = People(on_trouble="ask")


def deadline(at_deadline: Any, **more: Any) -> People:
    """People who do not answer within a minute."""
    return People(asking=Asking(deadline_seconds=60, at_deadline=at_deadline), **more)


@asynccontextmanager
async def half_done() -> AsyncIterator[Bench]:
    """A run that is paused between two calls of one reply, of which the first is made."""
    answers = (calls("tool", "tool"), tool_said("paid", cost=0.5))
    people = People(on_limit="ask")
    async with Bench("tools", answers, tool=unsafe(), people=people, limits={"tool_calls": 5}) as run:
        first, second = run.open
        await run.decide("approve", first)
        run.blocked = True
        await run.decide("approve", second)
        await run.command("pause", at_once=True)
        run.blocked = False
        await run.settled()
        assert run.loop.paused
        assert len(run.called) == 1
        yield run


# -- deadlines --------------------


async def test_a_call_that_a_deadline_approves_is_made_and_its_request_is_expired() -> None:
    async with Bench("react", ANSWERS, tool=unsafe(), people=deadline("approve")) as run:
        assert run.called == []
        await run.wait(61)
        assert len(run.called) == 1
        assert run.loop.desk.get("r1").outcome == "expired"
        await run.wait(61)
        assert run.exit.ok
        assert run.loop.stack.ledger.used("tool_calls") == 2


@pytest.mark.parametrize(
    ("at_deadline", "ends"), [("approve", None), ("reject", "expired"), ("abort", "expired")]
)
async def test_an_interrupt_that_nobody_answers_goes_on_or_ends_the_run(
    at_deadline: Any, ends: str | None
) -> None:
    async with Bench("react", ANSWERS, people=deadline(at_deadline, interrupt_every=1)) as run:
        (asked,) = run.open
        await run.wait(61)
        if ends is None:
            assert run.open[0].step == asked.step + 1
            await run.wait(61)
            assert run.exit.ok
        else:
            assert (run.exit.reason, run.record("Closed").by) == (ends, "deadline")


async def test_a_run_stands_still_once_for_each_number_of_steps_and_always_before_a_state_that_is_named() -> (
    None
):
    people = People(interrupt_every=1, interrupt_states=("action",))
    async with Bench("react", ANSWERS, people=people) as run:
        seen = []
        while run.open:
            seen.append((run.open[0].step, run.open[0].state))
            await run.decide("resume")
        assert seen == [(1, "action"), (2, "action"), (3, "action")]
        assert run.exit.ok


async def test_every_state_that_is_named_is_stood_before() -> None:
    async with Bench("react", ANSWERS, people=People(interrupt_states=("validate", "action"))) as run:
        seen = []
        while run.open:
            seen.append((run.open[0].step, run.open[0].state))
            await run.decide("resume")
        assert seen[:4] == [(1, "validate"), (1, "action"), (2, "validate"), (2, "action")]
        assert run.exit.ok


ESCALATED = (*[said('{"thought": "probably"}')] * 4, final("sure"))


@pytest.mark.parametrize(
    ("at_deadline", "reason", "ok"),
    [("approve", "goal_achieved", True), ("reject", "retries_exhausted", False), ("abort", "expired", False)],
)
async def test_a_machine_that_asks_hears_what_the_deadline_says(
    at_deadline: Any, reason: str, ok: bool
) -> None:
    async with Bench("react", ESCALATED, people=deadline(at_deadline)) as run:
        assert run.open[0].kind == "escalation"
        await run.wait(61)
        assert (run.exit.reason, run.exit.ok) == (reason, ok)


async def test_an_abort_is_an_answer_to_the_machine_that_asked() -> None:
    async with Bench("react", ESCALATED) as run:
        await run.decide("abort", text="enough")
        assert run.exit.reason == "aborted"
        assert "Closed" not in run.events, "the machine ends by itself"


async def test_a_call_that_expires_costs_no_tool_call() -> None:
    async with Bench("react", (ANSWERS[0], final()), tool=unsafe(), people=deadline("reject")) as run:
        await run.wait(61)
        assert run.exit.ok
        assert run.loop.stack.ledger.used("tool_calls") == 0


async def test_a_call_that_fails_is_a_tool_call_all_the_same() -> None:
    async with Bench("react", (ANSWERS[0], tool_failed("failed"), final())) as run:
        assert run.exit.ok
        assert run.loop.stack.ledger.used("tool_calls") == 1


@pytest.mark.parametrize(("at_deadline", "reason"), [("abort", "expired"), ("reject", "limit")])
async def test_a_limit_that_nobody_answers_ends_the_run(at_deadline: Any, reason: str) -> None:
    people = deadline(at_deadline, on_limit="ask")
    async with Bench("react", ANSWERS, people=people, limits={"model_calls": 1}) as run:
        await run.wait(61)
        assert run.exit.reason == reason


async def test_an_abort_at_a_limit_ends_the_run_as_aborted() -> None:
    async with Bench("react", ANSWERS, people=People(on_limit="ask"), limits={"model_calls": 1}) as run:
        await run.decide("abort", text="too dear")
        assert (run.exit.reason, "too dear" in (run.exit.error or "")) == ("aborted", True)


async def test_a_top_up_that_is_not_enough_counts_once_and_is_asked_about_again() -> None:
    async with Bench("react", ANSWERS, people=People(on_limit="ask"), limits={"model_calls": 1}) as run:
        await run.decide("topup", amounts={"model_calls": 0.5})
        (again,) = run.open
        assert (again.id, again.arguments) == ("r2", {"counter": "model_calls", "cap": 1.5})
        assert again.place.endswith("+1")
        await run.decide("topup", again, amounts={"model_calls": 9})
        assert run.loop.stack.ledger.caps["model_calls"] == 10.5
        assert run.exit.ok


async def test_what_is_said_at_an_interrupt_is_heard_before_what_was_ordered_at_the_same_moment() -> None:
    async with Bench("react", ANSWERS, people=People(interrupt_every=1)) as run:
        await run.decide("resume")
        assert "Steered" not in run.events, "nothing was said"
        assert "RefusedCommand" not in run.events
        run.order("steer", text="second")
        await run.decide("resume", text="first")
        assert [r.about["text"] for r in run.records if r.event == "Steered"] == ["first", "second"]
        assert run.exit.ok


# -- what is left behind --------------------


async def test_what_was_asked_about_a_call_is_withdrawn_when_a_limit_ends_it() -> None:
    people = People(on_limit="ask")
    async with Bench("react", ANSWERS, tool=unsafe(), people=people, limits={"tool_calls": 5}) as run:
        (asked,) = run.open
        await run.command("pause")
        await run.command("limits", limits={"tool_calls": 0})
        await run.command("resume")
        limit = run.open[-1]
        assert [request.kind for request in run.open] == ["approval", "limit"]
        await run.decide("finish", limit)
        assert run.loop.desk.get(asked.id).outcome == "withdrawn"
        assert "the limit ends it" in run.record("Withdrawn").reason
        assert run.called == []


@pytest.mark.parametrize("how", ["limit", "rollback", "abort"])
async def test_a_call_that_was_made_is_in_log_and_costs_once_however_its_effect_is_left(how: str) -> None:
    async with half_done() as run:
        if how == "limit":
            await run.command("limits", limits={"tool_calls": 0})
            await run.command("resume")
            await run.decide("finish", run.open[-1])
        else:
            await run.command(how, step=1)
        assert run.events.count("CallMade") == 1
        assert "paid" in run.record("CallMade").reason
        assert run.loop.stack.ledger.used("cost_usd") == 0.5
        assert run.loop.calls.settled == {}
        assert run.loop.calls.asked == {}


async def test_a_model_that_refused_is_asked_anew_behind_a_rollback() -> None:
    async with Bench("react", (REFUSED, *ANSWERS), people=ON_TROUBLE) as run:
        (asked,) = run.open
        order = await run.command("rollback", step=1)
        assert order.refused == ""
        assert run.loop.desk.get(asked.id).outcome == "withdrawn"
        assert run.exit.ok, "the refusal of before is forgotten"


async def test_a_model_that_refused_is_asked_anew_with_a_message_that_changes_the_call() -> None:
    async with Bench("react", (REFUSED, *ANSWERS), people=ON_TROUBLE) as run:
        (asked,) = run.open
        await run.command("steer", text="be quick")
        assert run.loop.desk.get(asked.id).outcome == "withdrawn"
        assert run.exit.ok


# -- the end, and what is carried on --------------------


async def test_what_is_carried_on_is_all_there_in_the_next_run_of_a_chain() -> None:
    async with Bench("react", ANSWERS, people=People(interrupt_every=1)) as run, Bench("react", ()) as later:
        await run.decide("resume")
        await run.command("pause")
        later.loop.load(run.loop.dump())
        assert (later.loop.paused, later.loop.stood) == (True, run.loop.stood)
        assert run.loop.stood > 0
        assert later.loop.calls == run.loop.calls
        later.loop.paused = False


async def test_a_command_to_a_run_whose_machine_breaks_a_rule_is_refused() -> None:
    breaking = next(design for design in DESIGNS if design.name == "breaking")
    run = Bench(breaking, (final(),))
    run.blocked = True
    async with run:
        order = run.order("pause")
        run.blocked = False
        with pytest.raises(MachineError):
            await run.settled()
        assert order.refused == "the run is over"


async def test_an_abort_that_answers_the_machine_waits_until_a_paused_run_goes_on() -> None:
    async with Bench("react", ESCALATED) as run:
        await run.command("pause")
        await run.decide("abort")
        assert run.loop.stack.exit is None
        await run.command("resume")
        assert run.exit.reason == "aborted"


async def test_an_abort_by_a_decision_comes_before_what_was_ordered_at_the_same_moment() -> None:
    async with Bench("react", ANSWERS, tool=unsafe()) as run:
        await run.command("pause")
        order = run.order("resume")
        await run.decide("abort")
        assert run.exit.reason == "aborted"
        assert order.refused == "the run is over"


@pytest.mark.parametrize("notify", [(), ("opened",), ("closed",)])
async def test_people_are_told_of_the_moments_that_are_named_and_no_other(notify: Any) -> None:
    async with Bench("react", ANSWERS[:1], tool=unsafe(), people=People(notify=notify)) as run:
        await run.decide("approve")
        assert [moment for moment, _ in run.noticed] == list(notify)


async def test_an_abort_gives_back_what_was_reserved_for_a_call_that_never_began_and_no_more() -> None:
    async with Bench("react", ANSWERS, tool=unsafe()) as run:
        await run.command("abort")
        assert run.loop.stack.ledger.used("tool_calls") == 0
    run = Bench("react", ANSWERS)
    run.blocked = True
    async with run:
        await run.command("abort")
        assert run.loop.stack.ledger.used("model_calls") == 1


async def test_an_abort_names_an_unsafe_call_that_was_under_way() -> None:
    async with Bench("react", ANSWERS, tool=unsafe()) as run:
        run.blocked = True
        await run.decide("approve")
        await run.command("abort")
        assert "nobody knows whether tool" in (run.exit.error or "")
