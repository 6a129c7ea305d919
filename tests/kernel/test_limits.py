"""Limits that people are asked about: what the next call would pass, more of it, other caps, the end."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import (
    CallModels,
    CallTools,
    InnerLimits,
    ModelReplied,
    RunMachine,
    ToolRun,
    Usage,
)
from tests.kernel.puppet import CALM, Ask, Context, Ended, S, Told, Went, hear, puppet
from tests.kernel.randomkit import random_patch, speaks
from tests.kernel.runkit import INNER, MODEL, SAYS, nest, talkative
from workflows.kernel.errors import MachineError
from workflows.kernel.ledger import Breach, Ledger, reserved_for
from workflows.kernel.log import Record
from workflows.kernel.machine import At, Machine
from workflows.kernel.moves import breach_of, capped, refused_by_limit, topped_up
from workflows.kernel.rebuild import rebuild
from workflows.kernel.stack import Nesting, Stack, answered, began, ledger_inside

COUNTERS = ("model_calls", "tool_calls", "tokens", "cost_usd", "seconds")
TOOLS = CallTools(runs=(ToolRun(id="1", tool="ls"), ToolRun(id="2", tool="ls")))


def _resume(c: Any, answer: Any, at: At) -> Any:
    return hear(c, answer, at) if isinstance(answer, Told) else Ask()


def asks(**changes: Any) -> Machine[Any]:
    """Says what it is told, and asks on when a model has replied or a machine inside has ended."""
    grants = {"ask", "call_model", "call_models", "call_tools", "run_machine"}
    talks: Any = {"grants": grants, "resume": _resume}
    return puppet(states={S.A: talks, S.B: talks}, **changes)


class Limited:
    """A run whose limits people are asked about, with machines inside."""

    def __init__(self, machine: Any = None, **caps: float) -> None:
        self.machine, self.now = machine or asks(), 0.0
        self.nesting = Nesting(lambda call, depth: (asks(), Context()))
        ledger = Ledger(caps=caps, advice=COUNTERS)
        self.stack = began(self.machine, Context(), self.nesting, now=0, ledger=ledger)
        self.records: list[Record] = [*self.stack.records]

    def tell(self, *said: Any, seconds: float = 1) -> Limited:
        """One answer after the other, so many seconds apart."""
        for each in said:
            self.now += seconds
            answer = each if isinstance(each, ModelReplied) else Told(said=each)
            self.keep(answered(self.stack, answer, self.nesting, now=self.now))
        return self

    def refuse(self) -> Limited:
        """Nobody gives more."""
        breach = breach_of(self.stack)
        assert breach is not None
        self.keep(refused_by_limit(self.stack, breach, self.nesting, now=self.now))
        return self

    def keep(self, stack: Stack) -> None:
        """Take a stack over with its records."""
        self.stack, self.records = stack, [*self.records, *stack.records]

    @property
    def ends(self) -> list[tuple[str, str]]:
        """Where and why machines were closed."""
        return [(record.within, record.reason) for record in self.records if record.event == "Closed"]


def replied(tokens: int = 0, usd: float = 0) -> ModelReplied:
    """A reply with its price."""
    return ModelReplied(text="", usage=Usage(input_tokens=tokens), cost_usd=usd)


@pytest.mark.parametrize(
    ("caps", "effect", "breach"),
    [
        ({"model_calls": 1}, MODEL, None),
        ({"model_calls": 0}, MODEL, Breach(counter="model_calls", spent=0, cap=0)),
        ({"model_calls": 1}, CallModels(calls=(MODEL, MODEL)), Breach(counter="model_calls", spent=0, cap=1)),
        ({"tool_calls": 2}, TOOLS, None),
        ({"tool_calls": 1}, TOOLS, Breach(counter="tool_calls", spent=0, cap=1)),
        ({"tool_calls": 0}, MODEL, None),
        ({"tokens": 0}, MODEL, Breach(counter="tokens", spent=0, cap=0)),
        ({"tokens": 1}, MODEL, None),
        ({"cost_usd": 0}, TOOLS, Breach(counter="cost_usd", spent=0, cap=0)),
        ({"seconds": 1}, MODEL, Breach(counter="seconds", spent=1, cap=1)),
        ({"seconds": 2}, MODEL, None),
        ({"seconds": 0, "tokens": 0, "model_calls": 0}, Ask(), None),
    ],
)
def test_the_limit_that_the_call_at_hand_would_pass_is_found_before_it_is_made(
    caps: dict[str, float], effect: Any, breach: Breach | None
) -> None:
    run = Limited(**caps).tell(effect)
    assert run.stack.effect == effect
    assert breach_of(run.stack) == breach


def test_nothing_is_asked_of_a_run_that_is_over_or_whose_limits_nobody_is_asked_about() -> None:
    assert breach_of(Limited(model_calls=0).tell(Ended()).stack) is None
    strict = began(asks(), Context(), Limited().nesting, now=0, ledger=Ledger(caps={"seconds": 0}))
    assert breach_of(strict) is None


def test_a_top_up_is_exactly_that_much_more() -> None:
    run = Limited(model_calls=1).tell(MODEL, replied(), MODEL)
    assert breach_of(run.stack) == Breach(counter="model_calls", spent=1, cap=1)
    run.stack = topped_up(run.stack, {"model_calls": 1, "tokens": 5})
    assert (breach_of(run.stack), run.stack.records) == (None, ())
    assert run.stack.ledger.caps == {"model_calls": 2}
    run.tell(replied(), MODEL)
    assert breach_of(run.stack) == Breach(counter="model_calls", spent=2, cap=2)


def test_a_call_that_is_refused_is_not_counted_and_the_run_ends_as_at_any_limit() -> None:
    run = Limited(model_calls=1).tell(MODEL, replied(), ({"total": 1}, MODEL)).refuse()
    assert run.stack.exit is not None
    assert (run.stack.exit.reason, run.stack.effect) == ("limit", None)
    assert run.ends == [("", "limit: the limit is reached, model_calls: 1 of 1 spent")]
    assert run.stack.ledger.used("model_calls") == 1
    assert rebuild(run.machine, run.records)[1].total == 1


def test_the_machine_is_asked_what_it_says_to_the_limit() -> None:
    """An event, one more effect, or nothing; with a patch."""
    for said, effect, exits in ((Went(), Ask(), None), (MODEL, MODEL, None), (None, None, "stopped")):
        resolve: Any = lambda c, breach, at, said=said: ({"total": int(breach.cap) + 3}, said)  # noqa: E731  # one line
        run = Limited(asks(on_limit=resolve, limit_reasons={"model_calls": "stopped"}), model_calls=0)
        run.tell(MODEL).refuse()
        assert run.stack.effect == effect
        assert (run.stack.exit.reason if run.stack.exit else None) == exits
        assert run.stack.first.step.snapshot.context.total == 3
        assert rebuild(run.machine, run.records)[1].total == 3


def test_whoever_refuses_once_is_not_asked_again() -> None:
    run = Limited(asks(on_limit=lambda c, breach, at: MODEL if c.total else Went()), model_calls=0)
    run.tell(MODEL).refuse()
    assert run.stack.ledger.advice == ()
    run.tell(({"total": 1}, MODEL))
    assert (run.stack.effect, breach_of(run.stack)) == (MODEL, None)


# -- with machines inside --------------------


def inside(**limits: Any) -> RunMachine:
    """The inner machine, with limits of its own."""
    return INNER.model_copy(update={"limits": InnerLimits(**limits)})


def test_people_are_asked_about_the_run_s_limit_also_while_a_machine_inside_is_at_work() -> None:
    run = Limited(model_calls=2).tell(MODEL, replied(), INNER, MODEL, replied(), MODEL)
    assert len(run.stack.frames) == 2
    assert breach_of(run.stack) == Breach(counter="model_calls", spent=2, cap=2)
    run.stack = topped_up(run.stack, {"model_calls": 1})
    assert breach_of(run.stack) is None
    run.tell(replied(), MODEL)
    assert breach_of(run.stack) == Breach(counter="model_calls", spent=3, cap=3)


def test_the_clock_of_the_run_goes_on_while_a_machine_inside_is_at_work() -> None:
    run = Limited(seconds=10).tell(INNER, Ask(), seconds=4).tell(MODEL, seconds=4)
    assert run.stack.first.step.ledger.used("seconds") == 4
    assert breach_of(run.stack) == Breach(counter="seconds", spent=12, cap=10)
    run.stack = topped_up(run.stack, {"seconds": 10})
    assert breach_of(run.stack) is None
    run.tell(replied(), MODEL, seconds=4)
    assert breach_of(run.stack) == Breach(counter="seconds", spent=20, cap=20)


def test_limits_of_its_own_end_a_machine_inside_without_a_question() -> None:
    run = Limited(model_calls=9).tell(inside(model_calls=1), MODEL)
    assert breach_of(run.stack) is None
    run.tell(replied(), MODEL)
    assert run.ends == [("a#1:2", "limit: the limit is reached, model_calls: 1 of 1 spent")]
    assert len(run.stack.frames) == 1


def test_a_top_up_of_the_run_does_not_lift_the_own_limit_of_a_machine_inside() -> None:
    run = Limited(model_calls=1).tell(inside(model_calls=2), MODEL, replied(), MODEL)
    assert breach_of(run.stack) == Breach(counter="model_calls", spent=1, cap=1)
    run.stack = topped_up(run.stack, {"model_calls": 5})
    run.tell(replied(), MODEL)
    assert run.ends == [("a#1:2", "limit: the limit is reached, model_calls: 2 of 2 spent")]


def test_a_refusal_ends_the_machine_inside_and_then_the_run_at_its_next_call() -> None:
    run = Limited(model_calls=1).tell(INNER, MODEL, replied(), MODEL).refuse()
    assert run.ends == [("a#1:2", "limit: the limit is reached, model_calls: 1 of 1 spent")]
    assert (len(run.stack.frames), run.stack.effect) == (1, Ask())
    run.tell(MODEL)
    assert run.ends[-1] == ("", "limit: the limit is reached, model_calls: 1 of 1 spent")


@pytest.mark.parametrize(
    ("caps", "breach"),
    [
        ({"model_calls": None}, None),
        ({"model_calls": 3}, None),
        ({"model_calls": 1}, Breach(counter="model_calls", spent=2, cap=1)),
        ({"tokens": 7, "model_calls": None}, Breach(counter="tokens", spent=7, cap=7)),
        ({"tokens": 8, "model_calls": None}, None),
    ],
)
@pytest.mark.parametrize("deep", [0, 1, 2])
def test_other_caps_hold_at_once_for_the_run_and_the_machines_inside(
    caps: dict[str, float | None], breach: Breach | None, deep: int
) -> None:
    run = Limited(model_calls=2).tell(*[INNER] * deep, MODEL, replied(4), MODEL, replied(3), MODEL)
    assert len(run.stack.frames) == deep + 1
    assert breach_of(run.stack) == Breach(counter="model_calls", spent=2, cap=2)
    run.stack = capped(run.stack, caps)
    assert breach_of(run.stack) == breach
    assert run.stack.records == ()
    if breach:
        run.refuse()
        assert len(run.stack.frames) == max(deep, 1)


def test_caps_of_machines_inside_follow_also_where_nobody_is_asked() -> None:
    nesting = Limited().nesting
    stack = began(asks(), Context(), nesting, now=0, ledger=Ledger(caps={"model_calls": 9}))
    for said in (INNER, inside(model_calls=4), Ask()):
        stack = answered(stack, Told(said=said), nesting, now=1)
    for cap, caps in ((2, [2, 2, 2]), (6, [6, 6, 4]), (None, [None, None, 4])):
        changed = capped(stack, {"model_calls": cap})
        assert [frame.step.ledger.caps.get("model_calls") for frame in changed.frames] == caps
        assert all(frame.step.ledger.advice == () for frame in changed.frames)


def test_a_machine_inside_asks_about_what_it_has_from_a_run_that_asks() -> None:
    ledger = Ledger(caps={"model_calls": 9, "tokens": 5, "rounds": 3}, advice=COUNTERS)
    inner = ledger_inside(inside(model_calls=9, tokens=6, tool_calls=1), ledger)
    assert inner == Ledger(caps={"model_calls": 9, "tokens": 5, "tool_calls": 1}, advice=("tokens",))
    assert reserved_for(None) == {}


# -- in general --------------------


PLAIN = tuple(said for said in SAYS if said != INNER)


def _told(seed: int, advice: tuple[str, ...]) -> tuple[list[Any], Any]:
    """A whole random run under limits; asked for more, nobody gives any."""
    r = Random(seed)
    machine, nesting = talkative(r, decides=(Went(), Went(), MODEL, Ask())), nest(r)
    caps = {name: float(r.randint(0, 4)) for name in r.sample(("model_calls", "tokens", "seconds"), 2)}
    records: list[Record] = []
    now = 0.0

    def kept(stack: Stack) -> Stack:
        records.extend(stack.records)
        while (breach := breach_of(stack)) is not None:
            stack = refused_by_limit(stack, breach, nesting, now=now)
            records.extend(stack.records)
        return stack

    try:
        first = Ledger(caps=caps, advice=advice)
        stack = kept(began(machine, Context(), nesting, now=now, ledger=first))
        for _ in range(15):
            if stack.effect is None:
                break
            now += 1
            answer = Told(said=speaks((random_patch(r), r.choice(PLAIN))))
            stack = kept(answered(stack, answer, nesting, now=now))
    except MachineError as error:
        return [*records, *error.step.records], str(error)
    return records, (stack.effect, stack.exit, stack.first.step.snapshot.context)


@settings(CALM, max_examples=300)
@given(st.integers(0, 2**32))
def test_who_asks_and_gets_nothing_ends_as_one_who_does_not_ask(seed: int) -> None:
    """Without machines inside: those are begun, and asked about when they call."""
    asked, end = _told(seed, COUNTERS)
    strict, strict_end = _told(seed, ())
    assert end == strict_end
    plain = [record.model_copy(update={"started": 0, "reads": ()}) for record in asked]
    assert plain == [record.model_copy(update={"started": 0, "reads": ()}) for record in strict]
