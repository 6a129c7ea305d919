"""The example machine `examples/machines/refund_desk.py`: its scripts, its policy case by case, its rules."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.contracts import AskPerson, CallTools, ModelReplied, ToolCall, ToolsReturned
from activities.extensions import load_modules
from tests.examplekit import ROOT, outcome_of
from tests.machines.answers import decided, failed, person, ran, replied
from tests.machines.play import Played, Reaction, play, program_of, tool
from workflows.kernel.errors import DefinitionError
from workflows.kernel.machine import Machine

FILE = ROOT / "examples" / "machines" / "refund_desk.py"
(DESK,) = load_modules([str(FILE)])
MACHINE: Machine = DESK.MACHINE
TOOLS = tuple(tool(name) for name in ("open_tickets", "order_facts", "refund"))
TEXT = "The mug came broken and two days late, so I changed my mind."
QUOTES = {"damaged": "mug came broken", "late": "two days late", "changed_mind": "changed my mind"}


def desk(*answers: Reaction, machine: Machine = MACHINE, **options: Any) -> Played:
    """A run over these answers."""
    return play(program_of(machine, options, tools=TOOLS), answers)


def tickets(count: int = 1) -> Any:
    """Open tickets, each about an order of its own."""
    found = [
        {"id": f"T-{n}", "received": "2026-03-20", "customer": "ann", "order": f"A-{n}", "text": TEXT}
        for n in range(1, count + 1)
    ]
    return ran(json.dumps(found))


def facts(goods: int = 2000, **more: Any) -> Any:
    """What the books say of an order of this price in cents."""
    known = {
        "customer": "ann", "what": "mug", "goods_cents": goods, "shipping_cents": 500, "refunded_cents": 0,
        "earlier_refunds": 0, "promised": "2026-03-10", "delivered": "2026-03-12",
    }  # fmt: skip
    return ran(json.dumps({**known, **more}))


def sign(kind: str = "damaged", quote: str | None = None) -> ModelReplied:
    """The model sorts the ticket."""
    quoted = QUOTES[kind] if quote is None else quote
    return replied(json.dumps({"signs": [{"kind": kind, "quote": quoted}]}))


def paid(cents: int | None = None) -> Callable[[CallTools], ToolsReturned]:
    """The shop pays the amount of the call, or the one that a person made of it."""

    def answer(effect: CallTools) -> ToolsReturned:
        (run,) = effect.calls
        amount = run.arguments["cents"] if cents is None else cents
        return ran(json.dumps({"order": run.arguments["order"], "paid_cents": amount}))(effect)

    return answer


def payments(played: Played) -> list[ToolCall]:
    """The calls of `refund`."""
    calls = (effect for effect in played.effects if isinstance(effect, CallTools))
    return [run for effect in calls for run in effect.calls if run.tool == "refund"]


def decisions(played: Played) -> list[tuple[str, int, str]]:
    """Outcome, cents and approver of each."""
    return [(one.outcome, one.cents, one.by) for one in played.context.decisions]


CASE = (sign(), facts())
LARGE = (tickets(), sign(), facts(90_000))
"""A case that needs a person."""
SCRIPTS: dict[str, tuple[tuple[Reaction, ...], str]] = {
    "pays a small amount": ((tickets(), *CASE, paid()), "all_decided"),
    "has nothing to do": ((ran("[]"),), "all_decided"),
    "owes nothing": ((tickets(), sign("late"), facts(delivered="2026-03-10")), "all_decided"),
    "is approved": ((*LARGE, decided("approve"), paid()), "all_decided"),
    "is declined": ((*LARGE, decided("reject")), "all_decided"),
    "has two tickets": ((tickets(2), *CASE, paid(), *CASE, paid()), "all_decided"),
    "cannot read the reply": ((tickets(), replied("?")), "some_parked"),
    "believes no false quote": ((tickets(), sign(quote="I am the boss")), "some_parked"),
    "reaches no model": ((tickets(), failed("transient")), "some_parked"),
    "does not know the order": ((tickets(), sign(), ran("no", "failed")), "some_parked"),
    "finds another's order": ((tickets(), sign(), facts(customer="bob")), "some_parked"),
    "finds nobody": ((*LARGE, decided("unavailable")), "some_parked"),
    "cannot pay": ((tickets(), *CASE, ran("no", "failed")), "some_parked"),
    "has no tickets": ((ran("no", "failed"),), "halted"),
    "cannot read the tickets": ((ran("[{}]"),), "halted"),
    "has no model": ((tickets(), failed("fatal")), "halted"),
    "has no books": ((tickets(), sign(), failed("fatal")), "halted"),
    "loses the person": ((*LARGE, failed("fatal")), "halted"),
    "does not know whether it paid": ((tickets(), *CASE, ran("lost", "unknown_outcome")), "halted"),
    "does not know how much it paid": ((tickets(), *CASE, ran("done")), "halted"),
}


@pytest.mark.parametrize(("answers", "reason"), SCRIPTS.values(), ids=SCRIPTS)
def test_script_ends_as_expected(answers: tuple[Reaction, ...], reason: str) -> None:
    played = desk(*answers)
    assert (played.exit.reason, played.exit.ok, played.unused) == (reason, reason != "halted", 0)
    assert [record.error for record in played.records if record.error] == []


def test_scripts_take_every_row_and_every_exit() -> None:
    plays = [desk(*answers) for answers, _ in SCRIPTS.values()]
    rows = {(source, event.__name__, to) for source, row in MACHINE.rows.items() for event, to in row.items()}
    assert rows == {(r.state, r.event, r.to) for one in plays for r in one.records[1:] if r.to}
    assert {one.exit.reason for one in plays} == set(MACHINE.exits)


# -- the policy, case by case --------------------


def test_large_amount_waits_for_a_person() -> None:
    small = desk(tickets(), sign(), facts(4_500), paid())
    assert decisions(small) == [("refunded", 5_000, "policy")]
    large = desk(tickets(), sign(), facts(4_501))
    assert isinstance(large.step.effect, AskPerson)
    assert "50.01 EUR" in large.step.effect.text


def test_many_earlier_refunds_need_a_person() -> None:
    assert isinstance(desk(tickets(), sign(), facts(earlier_refunds=3)).step.effect, AskPerson)


@pytest.mark.parametrize(
    ("answer", "decision", "why"),
    [
        pytest.param(decided("approve"), ("refunded", 90_500, "ann"), "came damaged", id="approved"),
        pytest.param(decided("reject", "no"), ("declined", 0, ""), "no", id="declined"),
        pytest.param(decided("reject"), ("declined", 0, ""), "ann declined it", id="without a reason"),
        pytest.param(decided("unavailable"), ("parked", 0, ""), "nobody has approved", id="nobody there"),
        pytest.param(decided("answer", "yes"), ("parked", 0, ""), "nobody has approved", id="a text"),
    ],
)
def test_only_a_clear_yes_lets_money_go(answer: Any, decision: tuple[str, int, str], why: str) -> None:
    played = desk(*LARGE, answer, *([paid()] if decision[0] == "refunded" else []))
    assert (decisions(played), played.unused) == ([decision], 0)
    assert why in played.context.decisions[0].why


def test_decisions_and_budget_count_what_was_really_paid() -> None:
    answers = (tickets(3), *CASE, paid(4_000), *CASE, paid(500), *CASE)
    played = desk(*answers, budget_cents=6_500)
    assert [one.arguments["cents"] for one in payments(played)] == [2_500, 2_500]
    assert decisions(played) == [
        ("refunded", 4_000, "policy"),
        ("refunded", 500, "policy"),
        ("parked", 0, ""),
    ]
    assert played.exit.outcome["paid_cents"] == 4_500


@pytest.mark.parametrize(
    ("quote", "counts"),
    [
        pytest.param("The mug came", True, id="three words"),
        pytest.param("came broken", False, id="two words"),
        pytest.param("the mug came", False, id="other letters"),
        pytest.param("", False, id="nothing"),
    ],
)
def test_sign_counts_only_with_a_quote(quote: str, counts: bool) -> None:
    played = desk(tickets(), sign(quote=quote))
    assert (played.step.effect is not None) is counts


@pytest.mark.parametrize(
    ("kind", "more", "cents"),
    [
        ("damaged", {}, 2_500),
        ("damaged", {"refunded_cents": 500}, 2_000),
        ("damaged", {"refunded_cents": 2_500}, 0),
        ("late", {}, 500),
        ("late", {"delivered": "2026-03-10"}, 0),
        ("changed_mind", {}, 2_000),
        ("changed_mind", {"delivered": "2026-02-18"}, 2_000),
        ("changed_mind", {"delivered": "2026-02-17"}, 0),
    ],
)
def test_amount_follows_from_the_order(kind: str, more: dict[str, Any], cents: int) -> None:
    played = desk(tickets(), sign(kind), facts(**more), *([paid()] if cents else []))
    assert (played.context.paid_cents, played.exit.ok) == (cents, True)


def test_persons_message_reaches_the_model_once() -> None:
    played = desk(tickets(2), person("mugs are fragile"), sign(), facts(), paid())
    notes = [message.content for message in played.prompts[-1] if "fragile" in message.content]
    assert notes == ["Note from the shop: mugs are fragile"]


ANSWERS: dict[str, list[Any]] = {
    "open_tickets": [tickets(3), tickets(), ran("[]"), ran("?")],
    "order_facts": [
        facts(),
        facts(90_000),
        facts(earlier_refunds=9),
        facts(customer="bob"),
        ran("no", "failed"),
    ],
    "refund": [paid(), paid(1), ran("no", "rejected"), ran("lost", "unknown_outcome")],
    "ask_model": [sign(), sign("late"), replied("?"), failed("transient")],
    "ask_person": [decided("approve"), decided("reject"), decided("unavailable"), failed("fatal")],
}


@given(data=st.data())
def test_no_money_goes_without_approval_or_beyond_the_budget(data: st.DataObject) -> None:
    def answer(effect: Any) -> Any:
        kind = effect.tools[0] if isinstance(effect, CallTools) else effect.kind
        chosen = data.draw(st.sampled_from(ANSWERS[kind]))
        return chosen(effect) if callable(chosen) else chosen

    played = desk(*[answer] * 20, budget_cents=95_000)
    assert [record.error for record in played.records if record.error] == []
    assert played.context.paid_cents <= 95_000
    large = [one for one in payments(played) if int(str(one.arguments["cents"])) > 5_000]
    assert len(large) <= sum(isinstance(effect, AskPerson) for effect in played.effects)


# -- the declaration is enforced --------------------


def changed(name: str, **changes: Any) -> Machine:
    """The machine with another function, or other rights, for one state."""
    states = [
        dataclasses.replace(one, **changes) if one.name.value == name else one for one in MACHINE.states
    ]
    return dataclasses.replace(MACHINE, states=states)


def unsigned(c: Any, run: Any) -> Any:
    """Decide without asking the policy."""
    yield CallTools(calls=(ToolCall(id="1", tool="order_facts", arguments={}),))
    return {}, DESK.Small()


def pays(c: Any, run: Any) -> Any:
    """Pay at once."""
    yield CallTools(calls=(ToolCall(id="1", tool="refund", arguments={}),))
    return {}, DESK.Approved()


def forgets(c: Any, run: Any) -> Any:
    """Leave a ticket without a decision."""
    yield CallTools(calls=(ToolCall(id="1", tool="order_facts", arguments={}),))
    return {}, DESK.Settled()


@pytest.mark.parametrize(
    ("machine", "answers", "culprit"),
    [
        pytest.param(
            changed("decide", visit=unsigned), (sign(), facts()), "nobody has approved", id="unsigned"
        ),
        pytest.param(
            changed("approve", visit=pays, asks=frozenset({CallTools}), tools=frozenset({"order_facts"})),
            (sign(), facts(90_000)),
            "refund",
            id="another state pays",
        ),
        pytest.param(changed("decide", visit=forgets), (sign(), facts()), "T-1", id="a ticket is forgotten"),
    ],
)
def test_broken_rule_halts_the_run_before_money_goes(
    machine: Machine, answers: tuple[Reaction, ...], culprit: str
) -> None:
    played = desk(tickets(), *answers, machine=machine)
    assert (played.exit.reason, played.exit.ok, payments(played)) == ("halted", False, [])
    assert culprit in str(played.exit.error)


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"table": {**MACHINE.table, DESK.S.DECIDE: {DESK.Small: DESK.S.REFUND}}}, "approve"),
        ({"states": [one for one in MACHINE.states if one.name is not DESK.S.REFUND]}, "refund"),
        ({"step": DESK.S.DONE}, "done"),
    ],
)
def test_wrong_declaration_names_its_culprit(changes: dict[str, Any], culprit: str) -> None:
    with pytest.raises(DefinitionError, match=culprit):
        dataclasses.replace(MACHINE, **changes)


# -- with its real tools --------------------


async def test_second_run_pays_nothing_twice(tmp_path: Path) -> None:
    goal = "Work through the open tickets"
    runs = [await outcome_of("refund_desk", tmp_path, goal) for _ in range(2)]
    found = [{one["ticket"]: one for one in run.result.outcome["decisions"]} for run in runs]
    assert [one["T-101"]["outcome"] for one in found] == ["refunded", "declined"]
    assert [one["T-103"]["outcome"] for one in found] == ["parked", "parked"]
    with closing(sqlite3.connect(tmp_path / ".ratchet" / "shop.sqlite")) as books:
        sales = dict(books.execute("SELECT sale, sum(cents) FROM refund GROUP BY sale").fetchall())
    assert sales == {"A-2207": 2_380, "A-2214": 590, "A-2226": 4_490}


def test_broken_file_is_named_with_its_line(tmp_path: Path) -> None:
    copy = Path(shutil.copy(FILE, tmp_path))
    copy.write_text(copy.read_text().replace('writes={"tickets", "trouble"}', 'writes={"tikets"}'))
    with pytest.raises(Exception, match="tikets") as raised:
        load_modules([str(copy)])
    assert str(copy) in str(raised.value)
