"""A user's own machine, `examples/machines/refund_desk.py`: what holds for ours holds for it, what it
promises about money holds whatever happens, it runs on the real server, and a broken file is refused."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.contracts import AskPerson, CallModel, CallTools, ToolRun
from activities.extensions import load_modules
from activities.settings import Settings
from activities.toolbox import ToolCallContext
from tests.client.conftest import ratchet_in
from tests.machines import scripts_refund_desk as scripts
from tests.machines.answers import decided, tool_failed
from tests.machines.deskkit import DESIGN, DESK
from tests.machines.deskkit import desk as run
from tests.machines.driver import Play
from tests.machines.script import Script
from tests.machines.test_all_machines import random_run
from workflows.kernel.design import Parts
from workflows.kernel.errors import name_of
from workflows.kernel.log import Record
from workflows.kernel.machine import Machine
from workflows.kernel.rebuild import rebuild
from workflows.kernel.snapshot import dump, load
from workflows.kernel.step import Cause, reenter

ROOT = Path(__file__).resolve().parents[2]


def built(**options: Any) -> Machine[Any]:
    """The machine under these knobs."""
    return DESIGN.build(DESIGN.options.model_validate(options), Parts())


def outcomes(play: Play) -> list[tuple[str, int, str]]:
    """The ledger of decisions: outcome, cents, who approved."""
    return [(entry.outcome, entry.cents, entry.by) for entry in play.context.decisions]


# -- what holds for ours holds for it --------------------


def test_the_scripts_take_every_row_use_every_answer_and_break_no_rule() -> None:
    plays = {script.name: script.run(DESIGN) for script in scripts.SCRIPTS}
    rows = {(name_of(r.source), r.event.__name__, name_of(r.target)) for r in built().rows}
    taken = {(r.state, r.event, r.to) for play in plays.values() for r in play.records if r.to}
    assert rows - taken == set()
    assert {name: play.unused for name, play in plays.items()} == dict.fromkeys(plays, 0)
    assert [r.error for play in plays.values() for r in play.records if r.error] == []
    assert {play.exit.reason for play in plays.values()} == set(DESIGN.exits)


def test_every_event_has_a_row() -> None:
    events = {
        kind
        for kind in vars(DESK).values()
        if isinstance(kind, type) and kind.__mro__[1:2] == (DESK.Happened,)
    }
    assert events == {row.event for row in built().rows}


def _same(play: Play) -> None:
    """The state equals what the log says, also out of JSON, and a snapshot survives JSON."""
    snapshot = play.last.snapshot
    again = [Record.model_validate_json(record.model_dump_json()) for record in play.records]
    assert rebuild(play.machine, again) == (snapshot.state, snapshot.context)
    assert load(play.machine, json.loads(json.dumps(dump(snapshot), allow_nan=False))) == snapshot


@pytest.mark.parametrize("script", [pytest.param(script, id=script.name) for script in scripts.SCRIPTS])
def test_the_state_can_be_rebuilt_from_the_log_of_every_script(script: Script) -> None:
    _same(script.run(DESIGN))


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_whatever_happens_no_money_goes_without_approval_or_beyond_the_budget(data: st.DataObject) -> None:
    play = random_run(DESIGN, data, most=40)
    _same(play)
    knobs, context = DESK.Options(), play.context
    broken = [record.error for record in play.records if record.error]
    assert broken == []
    assert context.paid_cents <= knobs.budget_cents
    paid = _payments(play)
    large = [payment for payment in paid if payment.arguments["cents"] > knobs.auto_refund_cents]
    assert len(large) <= sum(isinstance(effect, AskPerson) for effect in play.effects)
    assert sum(entry.outcome == "refunded" for entry in context.decisions) <= len(paid)
    if play.last.exit is not None and play.last.exit.ok:
        assert {t.id for t in context.tickets} == {entry.ticket for entry in context.decisions}


# -- the policy, case by case --------------------


PAID = scripts.paid()


def test_a_small_amount_goes_without_a_person_and_a_large_one_waits_for_one() -> None:
    small = run(scripts.tickets("A-1"), scripts.sign(), scripts.facts(4_500), PAID)
    assert outcomes(small) == [("refunded", 5_000, "policy")]
    large = run(scripts.tickets("A-1"), scripts.sign(), scripts.facts(4_501))
    assert isinstance(large.last.effect, AskPerson)
    assert "pay 50.01 EUR to ann" in large.last.effect.text


def test_a_customer_with_many_refunds_waits_for_a_person_also_for_a_small_amount() -> None:
    play = run(scripts.tickets("A-1"), scripts.sign(), scripts.facts(earlier_refunds=3))
    assert isinstance(play.last.effect, AskPerson)


@pytest.mark.parametrize(
    ("answer", "outcome", "why"),
    [
        pytest.param(decided("resume"), ("refunded", 90_500, "ann"), "came damaged", id="approved"),
        pytest.param(decided("abort", "no"), ("declined", 0, ""), "no", id="declined"),
        pytest.param(decided("abort"), ("declined", 0, ""), "ann declined it", id="without a reason"),
        pytest.param(decided("unavailable"), ("parked", 0, ""), "nobody has approved", id="nobody there"),
        pytest.param(decided("answer", "yes"), ("parked", 0, ""), "nobody has approved", id="a word"),
    ],
)
def test_only_a_clear_yes_lets_money_go(answer: Any, outcome: tuple[str, int, str], why: str) -> None:
    paid = (PAID,) if outcome[0] == "refunded" else ()
    play = run(scripts.tickets("A-1"), scripts.sign(), scripts.facts(90_000), answer, *paid)
    assert (outcomes(play), play.unused) == ([outcome], 0)
    assert why in play.context.decisions[0].why


def test_the_ledger_has_what_was_really_paid_also_when_a_person_edited_the_amount() -> None:
    """And so have the report and the budget: it is more than was proposed here, then less."""
    whole = (scripts.sign(), scripts.facts())
    three = scripts.tickets("A-1", "A-2", "A-3")
    play = run(three, *whole, scripts.paid(4_000), *whole, scripts.paid(500), *whole, budget_cents=6_500)
    assert [payment.arguments["cents"] for payment in _payments(play)] == [2_500, 2_500]
    assert outcomes(play) == [("refunded", 4_000, "policy"), ("refunded", 500, "policy"), ("parked", 0, "")]
    assert play.exit.outcome["paid_cents"] == play.context.paid_cents == 4_500
    assert str(play.exit.answer).startswith("3 tickets, 45.00 EUR paid back.")


def _payments(play: Play) -> list[ToolRun]:
    calls = (effect for effect in play.effects if isinstance(effect, CallTools))
    return [call for effect in calls for call in effect.runs if call.tool == "refund"]


def test_a_reason_is_never_longer_than_the_tool_takes() -> None:
    play = run(scripts.tickets("A-1"), scripts.sign(), scripts.facts(what="m" * 200), PAID)
    (payment,) = _payments(play)
    assert shop_tool("refund").params.model_validate(payment.arguments).cents == 2_500


@pytest.mark.parametrize(
    ("quote", "counts"),
    [
        pytest.param("The mug came", True, id="three words"),
        pytest.param("changed my mind.", True, id="up to the full stop"),
        pytest.param("came broken", False, id="two words"),
        pytest.param("the mug came", False, id="not to the letter"),
        pytest.param("the mug is broken", False, id="not in the ticket"),
        pytest.param("", False, id="nothing"),
    ],
)
def test_a_quote_counts_when_it_is_three_words_of_the_ticket(quote: str, counts: bool) -> None:
    play = run(scripts.tickets("A-1"), scripts.sign("damaged", quote))
    assert (play.last.effect is not None) is counts
    assert outcomes(play) == ([] if counts else [("parked", 0, "")])


@pytest.mark.parametrize(
    ("kind", "more", "cents"),
    [
        ("damaged", {}, 2_500),
        ("damaged", {"refunded_cents": 500}, 2_000),
        ("damaged", {"refunded_cents": 2_500}, 0),
        ("late", {}, 500),
        ("late", {"delivered": "2026-03-10"}, 0),
        ("late", {"refunded_cents": 500}, 0),
        ("changed_mind", {}, 2_000),
        ("changed_mind", {"delivered": "2026-02-18"}, 2_000),
        ("changed_mind", {"delivered": "2026-02-17"}, 0),
    ],
)
def test_what_is_due_follows_from_the_order(kind: str, more: dict[str, Any], cents: int) -> None:
    quote = {"damaged": "mug came broken", "late": "two days late", "changed_mind": "changed my mind"}[kind]
    paid = (PAID,) if cents else ()
    play = run(scripts.tickets("A-1"), scripts.sign(kind, quote), scripts.facts(**more), *paid)
    assert (play.context.paid_cents, play.exit.ok) == (cents, True)


def test_the_budget_of_a_run_holds_also_over_several_tickets() -> None:
    each = (scripts.sign(), scripts.facts())
    play = run(scripts.tickets("A-1", "A-2", "A-3"), *each, PAID, *each, PAID, *each, budget_cents=5_000)
    assert [outcome for outcome, _, _ in outcomes(play)] == ["refunded", "refunded", "parked"]


def test_a_word_from_a_person_on_the_way_is_told_to_the_model_once() -> None:
    play = run(scripts.tickets("A-1"))
    fold = play.machine.fold_steer
    assert fold is not None
    patch = fold(play.context, "mugs are fragile")
    again = reenter(play.machine, play.last, Cause("Steered", by="ann"), now=2000.0, patch=patch)
    assert isinstance(again.effect, CallModel)
    said = [message.content for message in again.effect.transcript]
    assert [text for text in said if "fragile" in text] == ["Note from the shop: mugs are fragile"]
    assert said.count(scripts.TEXT) == 1


def test_an_outcome_that_nobody_knows_ends_the_run() -> None:
    unknown = tool_failed("unknown_outcome", "nobody knows whether it took effect")
    play = run(scripts.tickets("A-1", "A-2"), scripts.sign(), scripts.facts(), unknown)
    assert (play.exit.reason, play.exit.ok) == ("halted", False)
    assert play.exit.error == "refund: nobody knows whether it took effect"


# -- the declaration is enforced --------------------


def _changed(machine: Machine[Any], event: type, target: Any, **changes: Any) -> Machine[Any]:
    rows = [
        dataclasses.replace(row, **changes) if (row.event, row.target) == (event, target) else row
        for row in machine.rows
    ]
    return dataclasses.replace(machine, table=rows)


def _play(machine: Machine[Any], *answers: Any) -> Play:
    design = dataclasses.replace(DESIGN, build=lambda options, parts: machine)
    return Script("", answers).run(design)


def test_a_refund_that_nobody_approved_breaks_a_rule_and_halts_the_run() -> None:
    unsigned = _changed(built(), DESK.Proposed, DESK.S.REFUND, action=None, writes=frozenset())
    play = _play(unsigned, scripts.tickets("A-1"), scripts.sign(), scripts.facts())
    assert play.exit.reason == "halted"
    assert "nobody has approved the refund" in str(play.exit.error)
    assert "refund" not in [tool for effect in play.effects for tool in effect.tools]


def test_no_other_state_may_ask_for_the_tool_that_pays() -> None:
    machine = built()
    pays = machine.states[DESK.S.REFUND].enter
    greedy = dataclasses.replace(machine.states[DESK.S.APPROVE], enter=pays, grants={"call_tools"})
    greedy = dataclasses.replace(greedy, tools=frozenset({"order_facts"}))
    play = _play(
        dataclasses.replace(machine, states={**machine.states, DESK.S.APPROVE: greedy}),
        scripts.tickets("A-1"), scripts.sign(), scripts.facts(90_000),
    )  # fmt: skip
    assert play.exit.reason == "halted"
    assert "the tool 'refund' was asked for; granted are ['order_facts']" in str(play.exit.error)


def test_a_budget_that_the_code_forgets_is_still_an_invariant() -> None:
    machine = built(budget_cents=100)
    decide = dataclasses.replace(machine.states[DESK.S.DECIDE], resume=DESK.Desk(DESK.Options()).decide)
    play = _play(
        dataclasses.replace(machine, states={**machine.states, DESK.S.DECIDE: decide}),
        scripts.tickets("A-1"), scripts.sign(), scripts.facts(),
    )  # fmt: skip
    assert play.exit.reason == "halted"
    assert "25.00 EUR would be paid, allowed are 1.00 EUR" in str(play.exit.error)


def test_a_ticket_that_the_code_forgets_breaks_the_invariant_of_the_end() -> None:
    forgets = _changed(built(), DESK.Decided, DESK.S.TAKE, action=None, writes=frozenset())
    play = _play(forgets, scripts.tickets("A-1"), *scripts.WHOLE)
    assert (play.exit.reason, play.exit.ok) == ("halted", False)
    assert "tickets ['T-1'], decisions []" in str(play.exit.error)


# -- its tools --------------------


def shop_tool(name: str) -> Any:
    """One of the shop's tools."""
    (module,) = load_modules([str(ROOT / "examples" / "tools" / "shop.py")])
    return next(tool for tool in module.TOOLS if tool.name == name)


def asked_for(data_dir: Path, name: str, key: str, **arguments: Any) -> Any:
    """What a tool of the shop returns to a call with this key."""
    tool = shop_tool(name)
    call = ToolCallContext(key, ROOT, Settings(data_dir=data_dir), 1, lambda text: None, lambda: False)
    return tool.call(tool.params.model_validate(arguments), call)


def in_the_books(data_dir: Path, query: str) -> list[Any]:
    """Rows of the shop's books."""
    with closing(sqlite3.connect(data_dir / "shop.sqlite")) as books:
        return books.execute(query).fetchall()


def test_a_refund_that_is_called_twice_with_one_key_pays_once(tmp_path: Path) -> None:
    whole = {"order": "A-2207", "cents": 2_380, "why": "came damaged"}
    said = [asked_for(tmp_path, "refund", "run/refund#1:1", **whole) for _ in range(2)]
    assert said == [{"order": "A-2207", "paid_cents": 2_380}] * 2
    assert in_the_books(tmp_path, "SELECT key, sale, cents FROM refund") == [
        ("run/refund#1:1", "A-2207", 2_380)
    ]
    with pytest.raises(ValueError, match="2380 cents are more than the 0 that are left of A-2207"):
        asked_for(tmp_path, "refund", "run/refund#2:1", **whole)
    assert asked_for(tmp_path, "order_facts", "any", order="A-2207")["refunded_cents"] == 2_380


# -- loaded, listed, drawn and run like ours --------------------


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a copy of the examples."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


AGENT = "examples/agents/refund_desk.yaml"
NOBODY_THERE = "people:\n  unattended: true\n"
"""Behind an agent file: who would be asked is not there, so what needs a person is parked."""


def test_it_runs_on_the_real_server_pays_once_and_what_it_decides_follows_from_the_data(shop: Path) -> None:
    with (shop / AGENT).open("a") as file:
        file.write(NOBODY_THERE)
    first = ratchet_in(shop, "run", "--agent", AGENT, "--json", "Work through the open tickets")
    assert first.returncode == 0, first.stderr
    result = json.loads(first.stdout.splitlines()[-1])
    assert (result["machine"], result["exit_reason"]) == ("refund_desk", "some_parked")
    found = {entry["ticket"]: (entry["outcome"], entry["cents"]) for entry in result["outcome"]["decisions"]}
    assert found["T-101"] == ("refunded", 2_380)
    assert found["T-102"] == ("refunded", 590)
    assert found["T-103"] == ("parked", 0)
    assert {ticket: found[ticket][0] for ticket in ("T-104", "T-107", "T-108", "T-109")} == {
        "T-104": "declined", "T-107": "declined", "T-108": "parked", "T-109": "parked",
    }  # fmt: skip

    orders = shop / "examples" / "data" / "shop" / "orders.jsonl"
    orders.write_text(orders.read_text().replace('"goods_cents": 38900', '"goods_cents": 4900'))
    again = ratchet_in(shop, "run", "--agent", AGENT, "--json", "Work through the open tickets")
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout.splitlines()[-1])
    found = {entry["ticket"]: (entry["outcome"], entry["cents"]) for entry in result["outcome"]["decisions"]}
    assert found["T-101"] == ("declined", 0)  # it was paid back by the first run
    assert found["T-103"] == ("refunded", 4_900)
    with closing(sqlite3.connect(shop / ".ratchet" / "shop.sqlite")) as books:
        paid = dict(books.execute("SELECT sale, sum(cents) FROM refund GROUP BY sale").fetchall())
    assert paid == {"A-2207": 2_380, "A-2214": 590, "A-2226": 4_490, "A-2219": 4_900}


def test_it_is_listed_told_and_drawn_like_ours(shop: Path) -> None:
    listed = ratchet_in(shop, "machines", "--agent", AGENT)
    assert re.search(r"^refund_desk 1 +Work through refund requests", listed.stdout, re.MULTILINE)
    drawn = ratchet_in(shop, "diagram", "refund_desk", "--agent", AGENT)
    assert "decide --> refund: Proposed [needs_nobody]" in drawn.stdout
    told = ratchet_in(shop, "machines", "refund_desk", "--agent", AGENT)
    assert "asks for: call_tools of refund" in told.stdout
    refused = ratchet_in(shop, "run", "--agent", AGENT, "--set", "return_days=400", "go")
    assert refused.returncode == 2
    assert "options.return_days" in refused.stderr
    assert "allowed is integer from 0 to 365" in refused.stderr


@pytest.mark.parametrize(
    ("text", "instead", "said"),
    [
        pytest.param(
            "        Row(S.DECIDE, Proposed, S.APPROVE),\n", "",
            "machine refund_desk: unreachable from list: approve", id="no way to a state",
        ),
        pytest.param(
            "S.APPROVE, S.REFUND)\n", "S.APPROVE)\n",
            "machine refund_desk: state refund is a dead end", id="no way out",
        ),
        pytest.param(
            'writes={"tickets"}', 'writes={"tikets"}',
            "state list declares the unknown field 'tikets' in writes", id="unknown field",
        ),
        pytest.param(
            ', spends="tickets"', "", "a cycle without a counting state", id="a cycle that counts nothing",
        ),
        pytest.param(
            "desk.needs_nobody, **signed", "None, **signed",
            "two rows without a guard before the last for state decide and event Proposed", id="two rows",
        ),
        pytest.param(
            '        name="refund_desk",\n        context', '        name="refunds",\n        context',
            "builds refunds of version 1", id="two names",
        ),
        pytest.param(
            "    desk = Desk(options)\n    return", "    desk = Desk(options.knobs)\n    return",
            "the machine refund_desk cannot be built: AttributeError", id="a bug",
        ),
        pytest.param("class Ticket(Frozen):", "class Ticket(Frozen:", "line 42", id="no Python"),
        pytest.param("DESIGN = Design(", "DESIGN = dict(", "is not a Design", id="no design"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_with_its_name_and_the_culprit(
    shop: Path, text: str, instead: str, said: str
) -> None:
    file = shop / "examples" / "machines" / "refund_desk.py"
    assert file.read_text().count(text) == 1
    file.write_text(file.read_text().replace(text, instead))
    refused = ratchet_in(shop, "machines", "--agent", AGENT)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"{file}: " in refused.stderr
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
