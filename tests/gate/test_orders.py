"""What commands leave behind: in the log, and of what people are asked meanwhile."""

from __future__ import annotations

import json

import pytest

from tests.machines.answers import act, final, tool_said
from tests.people.bench import Bench, unsafe
from workflows.people import People

ANSWERS = (act("tool", q="x"), tool_said("paid", cost=0.5), final())
LONG = "x" * 20_000
ASKS = People(on_limit="ask")


async def test_a_refused_command_is_in_the_log_but_not_all_of_its_text() -> None:
    many = {f"{number}{'n' * 97}": 1.0 for number in range(100, 200)}
    async with Bench("react", ANSWERS, tool=unsafe()) as run:
        for name, more in (("resume", {}), ("limits", {"limits": many})):
            order = await run.command(name, text=LONG, by="ann", **more)
            assert order.refused
            told = run.record("RefusedCommand")
            assert len(json.dumps(told.model_dump(mode="json"))) < 5000
            assert (told.about["command"], told.about["by"]) == (name, "ann")
            assert str(told.about["text"]) == told.reason == "x" * 500
            assert told.error == order.refused


async def test_an_obeyed_message_is_whole_in_the_log() -> None:
    async with Bench("react", ANSWERS, tool=unsafe()) as run:
        await run.command("steer", text=LONG)
        assert run.record("Steered").about["text"] == LONG


async def test_a_long_reason_to_abort_at_a_request_ends_a_paused_run_too() -> None:
    async with Bench("react", ANSWERS, tool=unsafe()) as run:
        await run.command("pause")
        await run.decide("abort", text=LONG)
        assert run.exit.reason == "aborted"
        assert "ann (claimed) ended the run at request r1: xxx" in (run.exit.error or "")


@pytest.mark.parametrize(
    ("limits", "same"),
    [
        ({"cost_usd": 5.0}, True),
        ({"tool_calls": 0.0, "seconds": None}, True),
        ({"model_calls": 1.0}, False),
        ({"model_calls": 50.0, "cost_usd": 5.0}, False),
    ],
)
async def test_only_the_limit_that_is_set_is_asked_about_anew(
    limits: dict[str, float | None], same: bool
) -> None:
    async with Bench("react", ANSWERS, people=ASKS, limits={"model_calls": 1}) as run:
        (before,) = run.open
        await run.command("limits", limits=limits)
        assert (run.loop.desk.get(before.id).outcome == "open") == same
        assert ("Withdrawn" in run.events) != same
        if same:
            await run.decide("topup", before, amounts={"model_calls": 50})
            assert run.loop.stack.ledger.caps["model_calls"] == 51
            assert run.exit.ok


async def test_a_lower_limit_that_ends_the_run_first_is_asked_about_first() -> None:
    answers = (act("tool", q="x"), tool_said("paid", cost=0.5), final())
    async with Bench("react", answers, people=ASKS, limits={"model_calls": 1}) as run:
        (before,) = run.open
        assert before.arguments == {"counter": "model_calls", "cap": 1}
        await run.command("limits", limits={"cost_usd": 0.25})
        counters = [(request.arguments or {})["counter"] for request in run.open]
        assert counters == ["model_calls"]
        await run.decide("topup", before, amounts={"model_calls": 50})
        (then,) = run.open
        assert then.arguments == {"counter": "cost_usd", "cap": 0.25}
        await run.decide("topup", then, amounts={"cost_usd": 5})
        assert run.exit.ok


async def test_a_top_up_that_was_decided_counts_also_when_another_limit_is_set() -> None:
    async with Bench("react", ANSWERS, people=ASKS, limits={"model_calls": 1}) as run:
        await run.command("pause")
        await run.decide("topup", amounts={"model_calls": 50})
        await run.command("limits", limits={"cost_usd": 9})
        await run.command("resume")
        assert run.loop.stack.ledger.caps["model_calls"] == 51
        assert run.exit.ok
