"""Models that refuse for good, one of them or some of many: people mend it, and what was answered stays."""

from __future__ import annotations

from typing import Any

import pytest

from activities.contracts import CallModels, EffectFailed, ModelsReplied
from activities.contracts_code import RunCode
from tests.machines.answers import failed, said
from tests.machines.driver import Reaction
from tests.machines.scripts_code import block, calls, ran
from tests.people.bench import Bench
from workflows.gate.calls import Calls
from workflows.people import Asking, People

ASKED = People(on_trouble="ask")
REFUSED = EffectFailed(error="fatal", type="HTTP401", message="no such key")
THREE = (block("llm_query_batched(['a', 'b', 'c'])"), calls("llm_query_batched", ["a", "b", "c"]))
PLACE = "EXECUTING#3:2"


def together(*replies: Any) -> ModelsReplied:
    return ModelsReplied(replies=replies)


def side_by_side(*answers: Reaction, people: People = ASKED) -> Bench:
    """A run that asks three models side by side."""
    return Bench("code", (*THREE, *answers), people=people)


def asked(run: Bench) -> list[tuple[str, int]]:
    """Where models were asked side by side, and how many."""
    return [(place, len(effect.calls)) for place, effect in run.performed if isinstance(effect, CallModels)]


def heard(run: Bench) -> Any:
    """What the block was told that had asked."""
    step, *_ = [effect for _, effect in run.performed if isinstance(effect, RunCode) and effect.answer]
    assert step.answer is not None
    return step.answer.value


async def test_of_calls_side_by_side_those_that_were_refused_are_made_again_and_no_other() -> None:
    answers = (together(said("A"), REFUSED, said("C")), together(said("B")), calls("FINAL", 1), ran())
    async with side_by_side(*answers) as run:
        (request,) = run.open
        assert (request.kind, request.place) == ("trouble", PLACE)
        assert "HTTP401" in request.text
        await run.decide("retry")
        assert asked(run) == [(PLACE, 3), (f"{PLACE}+1", 1)]
        (again,) = run.performed[3][1].calls  # type: ignore[attr-defined]  # it is a CallModels
        assert again.transcript.messages[-1].content == "b"
        assert heard(run) == ["A", "B", "C"]
        assert run.exit.ok


async def test_what_is_refused_again_is_asked_about_again() -> None:
    answers = (
        together(REFUSED, said("B"), REFUSED),
        together(said("A"), REFUSED),
        together(said("C")),
        calls("FINAL", 1),
        ran(),
    )
    async with side_by_side(*answers) as run:
        await run.decide("retry")
        (request,) = run.open
        assert (request.id, request.place) == ("r2", f"{PLACE}+1")
        await run.decide("retry")
        assert asked(run) == [(PLACE, 3), (f"{PLACE}+1", 2), (f"{PLACE}+2", 1)]
        assert heard(run) == ["A", "B", "C"]


async def test_calls_side_by_side_are_not_made_again_while_people_look_at_them() -> None:
    async with side_by_side(together(said("A"), REFUSED, said("C")), together(said("B"))) as run:
        await run.command("pause")
        await run.command("resume")
        assert asked(run) == [(PLACE, 3)]
        run.blocked = True
        await run.decide("retry")
        await run.command("pause", at_once=True)
        run.blocked = False
        await run.command("resume")
        assert asked(run) == [(PLACE, 3), (f"{PLACE}+1", 1), (f"{PLACE}+1", 1)]
        assert heard(run) == ["A", "B", "C"]


async def test_what_people_are_asked_about_is_carried_on_to_the_next_run_of_a_chain() -> None:
    async with side_by_side(together(said("A"), REFUSED, said("C"))) as run:
        kept = Calls.model_validate(run.loop.dump()["calls"])
        assert kept == run.loop.calls
        assert kept.unanswered() == (1,)


@pytest.mark.parametrize("how", ["deadline", "unattended", "stop"])
async def test_where_nobody_mends_it_the_machine_hears_of_the_refusal(how: str) -> None:
    people = {
        "deadline": People(on_trouble="ask", asking=Asking(deadline_seconds=60)),
        "unattended": People(on_trouble="ask", unattended=True),
        "stop": People(),
    }[how]
    answers = (together(said("A"), REFUSED, said("C")), ran())
    async with side_by_side(*answers, people=people) as run:
        if how == "deadline":
            await run.wait(61)
        assert len(asked(run)) == 1
        assert "no such key" in str(heard(run))


async def test_an_abort_ends_the_run_at_calls_side_by_side() -> None:
    async with side_by_side(together(said("A"), REFUSED, said("C"))) as run:
        await run.decide("abort", text="no more keys")
        assert run.exit.reason == "aborted"


@pytest.mark.parametrize("error", ["transient", "recoverable"])
async def test_what_is_no_refusal_for_good_is_the_machines_own_business(error: Any) -> None:
    async with side_by_side(together(said("A"), failed(error), said("C")), ran()) as run:
        assert run.open == ()


async def test_a_deadline_that_approves_tries_again() -> None:
    people = People(on_trouble="ask", asking=Asking(deadline_seconds=60, at_deadline="approve"))
    answers = (together(said("A"), REFUSED, said("C")), together(said("B")), ran())
    async with side_by_side(*answers, people=people) as run:
        await run.wait(61)
        assert len(asked(run)) == 2
        assert heard(run) == ["A", "B", "C"]
