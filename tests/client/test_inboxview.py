"""What people see of what waits for them, and numbers as they type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from client.amounts import amounts_of, caps_of
from client.errors import Refused, UsageError
from client.finding import check_fits
from client.inbox import Ask, InboxLine, oldest_first
from client.inboxview import (
    VERBS,
    answers,
    decided_text,
    done_text,
    effects_table,
    inbox_table,
    next_after,
    next_decided,
    request_block,
    run_head,
    span,
    summary,
    why,
)
from client.listing import RunLine
from client.sending import Sent
from client.view import LiveView, listing, status_lines
from tests.workflows.trials import task as trial
from workflows.api import AgentStatus, Origin
from workflows.kernel.log import Record
from workflows.people import (
    ApprovalRule,
    Approvals,
    CommandDone,
    Condition,
    Decided,
    Decision,
    DoneCall,
    Remember,
    Request,
    Vote,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def request(**more: Any) -> Request:
    """A request as a run asks it."""
    given = {
        "id": "r1", "kind": "approval", "run": "shop-1", "machine": "react", "state": "action", "step": 3,
        "place": "action#3:1", "text": "May it?", "tool": "pay", "arguments": {"to": "x"}, "digest": "d" * 32,
        "options": ("approve", "reject", "edit", "abort"), "created": NOW.timestamp(), **more,
    }  # fmt: skip
    return Request.model_validate(given)


def shown(what: object, width: int = 120) -> str:
    """As a terminal shows it."""
    console = Console(width=width, record=True, file=StringIO())
    console.print(what)
    return console.export_text()


def test_a_request_is_shown_with_all_that_a_decision_needs() -> None:
    asked = request(
        deadline=NOW.timestamp() + 600,
        at_deadline="abort",
        group="ops",
        approvers=("Ada", "Bob"),
        signed=True,
        quorum=2,
        votes=(Vote(id="v", verb="approve", by="Ada", verified=True, at=0, text="fine"),),
    )
    text = request_block(asked, "shop-1", NOW.timestamp()).plain
    for part in ("r1 approval", "run shop-1", "react: action, step 3", "pay", '"to": "x"', "d" * 32):
        assert part in text
    assert "in 10 min (abort)" in text
    assert "to be decided by 2 of Ada, Bob, signed" in text
    assert "Ada: approve fine" in text


def test_nothing_of_a_model_or_a_tool_steers_the_terminal() -> None:
    evil = "\x1b[2J\x9b1m\u202e"
    asked = request(
        kind="question", text=evil, tool=f"t{evil}", arguments={evil: evil}, approvers=(f"A{evil}",)
    )
    done = Decided(request="r1", kind="question", outcome="answered", text=evil, by=(evil,))
    line = InboxLine(run=f"r{evil}", waiting="question", started=NOW, asks=(Ask(**asked.model_dump()),))
    texts = [
        request_block(asked, f"r{evil}", 0).plain,
        summary(asked),
        decided_text(done, asked),
        shown(inbox_table([line], NOW)),
    ]
    for text in texts:
        assert not {"\x1b", "\x9b", "\u202e"} & set(text), text


def test_long_arguments_are_cut_aloud_and_can_be_shown_whole() -> None:
    asked = request(arguments={f"a{n}": n for n in range(100)})
    assert "… 42 more lines" in request_block(asked, "r", 0).plain
    whole = request_block(asked, "r", 0, full=True).plain
    assert "more lines" not in whole
    assert '"a99": 99' in whole
    assert (
        "too long to be read" in request_block(Ask(**{**asked.model_dump(), "arguments": None}), "r", 0).plain
    )


def test_the_commands_that_answer_can_be_pasted() -> None:
    asked = request(run="my run", options=tuple(VERBS))
    assert answers(asked, asked.run) == [
        "ratchet approve 'my run' r1 --digest dddddddd",
        "ratchet reject 'my run' r1 --digest dddddddd -m <why>",
        "ratchet edit 'my run' r1 --digest dddddddd [--args JSON]",
        "ratchet answer 'my run' r1 --digest dddddddd <text>",
        "ratchet resume 'my run' r1 --digest dddddddd",
        "ratchet retry 'my run' r1 --digest dddddddd",
        "ratchet topup 'my run' r1 --digest dddddddd COUNTER=MORE",
        "ratchet finish 'my run' r1 --digest dddddddd",
        "ratchet abort 'my run' r1 --digest dddddddd",
    ]


def test_a_narrow_list_leaves_room_for_what_is_asked() -> None:
    ask = Ask(**request(deadline=NOW.timestamp() + 7200).model_dump())
    line = InboxLine(
        run="shop-20261121-abcd", waiting="approval", since=NOW, deadline=NOW + timedelta(hours=2),
        started=NOW, asks=(ask, ask),
    )  # fmt: skip
    narrow = shown(inbox_table([line], NOW, 80), 80).splitlines()
    assert all('approval r1: pay(to="x")' in row and "in 2 h" in row for row in narrow[1:])
    assert "2026-11-21" not in "".join(narrow)
    assert "2026-11-21" in shown(inbox_table([line], NOW, 200), 200)


def test_why_a_call_is_asked_about_is_the_entry_of_the_agent_file() -> None:
    rules = (ApprovalRule(tools=("pay",), arguments={"cents": Condition(above=9)}),)
    approvals = Approvals(rules=rules, tools={"pay": "first_time"}, effects={"keyed": "always"})
    task = trial(approvals=approvals)
    for because, said in (
        ("rules.0", '{"tools": ["pay"], "arguments": {"cents": {"above": 9.0}}, "ask": "always"}'),
        ("tools.pay", "first_time"),
        ("effects.keyed", "always"),
        ("effects.unsafe", "always"),
    ):
        asked = request(because=because)
        assert why(asked, task) == f"the agent's approvals.{because}: {said}"
        assert f"asked because of the agent's approvals.{because}\n" in request_block(asked, "r", 0).plain
    assert why(request(kind="limit")) == "the agent's people.on_limit is `ask`"
    assert why(Ask(**request(because="rules.0").model_dump())) == ""


@pytest.mark.parametrize("kind", ["question", "escalation", "interrupt", "limit", "outcome", "trouble"])
def test_why_the_others_ask_is_a_sentence(kind: str) -> None:
    text = request_block(request(kind=kind), "r", 0).plain
    assert re.search(
        r"asked because (the machine asks|the machine gives|the agent's people\..* (is|says)|nobody knows)",
        text,
    )


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        (Remember(same=True), "calls of pay with the same arguments"),
        (Remember(), "calls of pay whatever their arguments"),
        (Remember(arguments={"to": Condition(equals="x")}), 'calls of pay where to is "x"'),
        (
            Remember(arguments={"to": Condition(one_of=(None,))}),
            'calls of pay where to fits {"one_of": [null]}',
        ),
    ],
)
def test_what_is_remembered_of_an_approval_is_said(memory: Remember, said: str) -> None:
    done = Decided(request="r1", kind="approval", outcome="approved", by=("Ada",))
    decision = Decision(request="r1", digest="", decision="approve", remember=memory)
    assert decided_text(done, request(), decision).splitlines()[1:] == [
        f"  for the rest of this run it approves {said}, too"
    ]


def test_what_was_undone_is_said_once() -> None:
    call = DoneCall(
        step=1, branch=0, place="p", tool="pay", arguments={}, effect="unsafe", undone="undone: payment 5"
    )
    assert shown(effects_table([call])).count("undone: ") == 1
    done = CommandDone(command="rollback", text="back", undone=("undone: undone", "not undone: late"))
    assert done_text(done).splitlines() == ["back", "  undone", "  not undone: late"]


def test_a_verb_that_does_not_fit_is_refused_also_where_the_memo_alone_is_known() -> None:
    asked = request()
    for known in (asked, Ask(**asked.model_dump())):
        check_fits(known, ("approve",), "shop-1")
        with pytest.raises(
            UsageError, match=r"r1 of run shop-1 cannot be answered by `topup`.*\n.*approve, reject"
        ):
            check_fits(known, ("topup",), "shop-1")
    vote = Vote(id="v", verb="approve", by="Ada", verified=False, at=0)
    closed = request(outcome="approved", closed=NOW.timestamp(), settled=vote)
    with pytest.raises(Refused, match=r"r1 of run shop-1 is closed: approved by Ada, .* ago"):
        check_fits(closed, ("approve",), "shop-1")


def test_a_limit_names_its_counter_and_what_a_top_up_makes_of_it() -> None:
    text = "A limit is reached, model_calls: 3 of 3 spent. Top it up, by how much?"
    limit = request(kind="limit", text=text, arguments={"counter": "model_calls", "cap": 3.0}, tool=None)
    assert '"counter"' not in request_block(limit, "r", 0).plain
    more = Decision(request="r1", digest="", decision="topup", amounts={"model_calls": 4})
    done = Decided(request="r1", kind="limit", outcome="topped_up", by=("Ada",))
    assert decided_text(done, limit, more).splitlines()[1] == (
        "  model_calls: at most 7 now, 3 before; 3 spent"
    )
    asked = limit.model_copy(update={"options": ("topup",)})
    assert answers(asked, "r") == ["ratchet topup r r1 --digest dddddddd model_calls=MORE"]


def test_what_comes_next_is_said_of_each_command_and_decision() -> None:
    def done(command: str, **more: Any) -> CommandDone:
        return CommandDone(command=command, text="", **more)

    assert "`ratchet resume r`" in next_after(done("pause", paused=True), "r")
    assert "`ratchet resume r`" in next_after(done("steer", paused=True), "r")
    assert "`ratchet result r`" in next_after(done("abort"), "r")
    assert "`ratchet watch r`" in next_after(done("limits"), "r")
    approved = Decided(request="r1", kind="approval", outcome="approved")
    assert "still asks approval r2: pay(" in next_decided(approved, "r", [request(id="r2")])
    assert "`ratchet watch r`" in next_decided(approved, "r", [])
    assert "`ratchet resume r`" in next_decided(approved, "r", [], paused=True)
    assert "`ratchet inbox r`" in next_decided(approved.model_copy(update={"outcome": "open"}), "r", [])
    sent = Sent(run="r", message="decide", id="1", body={}, text="sent")
    assert "`ratchet dev`" in next_decided(sent, "r", [])


def test_the_head_of_a_run_names_the_runs_inside_it() -> None:
    line = RunLine(
        id="shop-1", progress="running", agent="shop", machine="react", waiting="paused", started=NOW
    )
    text = shown(run_head(line, ["shop-1/think"], NOW), 200)
    assert "shop-1, stands paused; `ratchet resume shop-1`" in text
    asks = line.model_copy(update={"waiting": "approval", "waiting_since": NOW - timedelta(minutes=3)})
    assert "waits for people for 3 min and stands paused; `ratchet resume shop-1 --pause`" in shown(
        run_head(asks, [], NOW, paused=True), 200
    )
    assert "paused" not in shown(run_head(asks, [], NOW), 200)
    assert "shop-1/think is under way; `ratchet inbox shop-1/think`" in text


def test_every_choice_has_a_letter_of_its_own() -> None:
    letters = [letter for letter, _ in VERBS.values()]
    assert len(set(letters) | {"s", "l"}) == len(letters) + 2


def test_the_inbox_puts_first_who_has_waited_longest() -> None:
    def line(run: str, minutes: int | None) -> InboxLine:
        since = None if minutes is None else NOW - timedelta(minutes=minutes)
        return InboxLine(run=run, waiting="paused", since=since, started=NOW)

    found = oldest_first([line("a", 1), line("b", None), line("c", 60)])
    assert [one.run for one in found] == ["c", "a", "b"]
    text = shown(inbox_table(found, NOW), 80).splitlines()
    assert text[1].split() == ["c", "1", "h", "paused"]
    assert all(len(row) <= 80 for row in text)


def test_a_run_that_waits_is_listed_so_and_its_status_says_what_to_do() -> None:
    line = RunLine(
        id="shop-1", run_id="x", progress="running", agent="shop", machine="react", waiting="approval",
        waiting_since=NOW, deadline=NOW, state="action", started=NOW,
    )  # fmt: skip
    assert "waits: approval" in shown(listing([line], 80), 80)
    assert "waits: approval until 2026-11-21" in shown(listing([line], 200), 200)
    over = line.model_copy(update={"exit_reason": "aborted", "progress": "completed"})
    assert "waits" not in shown(listing([over], 80), 80)
    status = AgentStatus(
        agent="shop", machine="react", machine_version="1", state="action", step=3, visit=1,
        waiting="approval", requests=2, paused=True, origin=Origin(workflow_id="first", run_id="y", step=2),
    )  # fmt: skip
    text = shown(status_lines(line, status), 200)
    assert "2 open requests: `ratchet inbox shop-1`), and paused" in text
    assert "forked from  first, step 2" in text


def test_the_line_below_the_records_says_whom_it_waits_for() -> None:
    console = Console(width=200, file=StringIO(), force_terminal=True)
    with LiveView(console) as view:
        view.show(Record(seq=0, machine="m", state="a", event="Paused"))
        shown_now = str(view._waiting.line(80))
        assert shown_now.startswith("paused")
        view.asking("approval r1")
        assert str(view._waiting.line(80)).startswith("waits for a person: approval r1")
        view.asking("")
        view.show(Record(seq=1, machine="m", state="a", event="Resumed"))
        assert str(view._waiting.line(80)).startswith("a ")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1 min"), (7200, "2 h"), (200_000, "2 d"), (-5, "0 s")],
)
def test_a_length_of_time_is_said_roughly(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_amounts_and_caps_are_read_as_people_type_them() -> None:
    assert amounts_of(["cost_usd=0.5", "tokens=10_000"]) == {"cost_usd": 0.5, "tokens": 10_000}
    assert caps_of(["cost_usd=0", "tokens=none"]) == {"cost_usd": 0, "tokens": None}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param([], "say how much more", id="nothing"),
        pytest.param(["cost"], "expected COUNTER=NUMBER", id="no number"),
        pytest.param(["token=x"], "'x' is no number", id="a word"),
        pytest.param(["tokn"], "did you mean `tokens`", id="misspelt"),
        pytest.param(["tokens=nan"], "no number that counts", id="not a number"),
        pytest.param(["tokens=inf"], "no number that counts", id="infinite"),
        pytest.param(["tokens=-1"], "above 0", id="negative"),
        pytest.param(["tokens=0"], "above 0", id="zero"),
    ],
)
def test_what_is_no_amount_is_named(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        amounts_of(words)
