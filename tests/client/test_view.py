"""What people see on terminals of all widths."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console
from rich.spinner import Spinner

from client.listing import RunLine
from client.view import (
    LiveView,
    _Waiting,
    change_block,
    escaped,
    listing,
    out,
    pairs,
    record_block,
    spent,
)
from workflows.kernel.errors import error_named
from workflows.kernel.log import Record


def test_a_narrow_terminal_lists_a_run_on_one_line_with_its_whole_id() -> None:
    run_id, goal = "log_detective-20261121-014141-5364", "which one fails, and why? " * 10
    line = RunLine(
        id=run_id, goal=goal, agent="log_detective", machine="react", progress="completed",
        exit_reason="goal_achieved", started=datetime(2026, 11, 21, tzinfo=UTC), run_id="r",
    )  # fmt: skip
    for width in (80, 130):
        console = Console(width=width, record=True, file=StringIO())
        console.print(listing([line], width))
        head, row = console.export_text().splitlines()
        assert row.startswith(f"{run_id}  goal_achieved")
        assert len(row) <= width
        assert ("agent" in head) == (width == 130)


def test_a_cost_that_nobody_knows_is_not_shown_as_nothing() -> None:
    assert spent({"input_tokens": 5, "cost_usd": 0.25}) == "5 tokens · $0.2500"
    assert "cost unknown" in spent({"input_tokens": 5, "cost_usd": 0, "unpriced_calls": 2})


def test_the_log_says_who_read_and_wrote_what_and_the_patch_when_asked() -> None:
    record = Record(
        seq=1, machine="m", state="a", event="E", reads=("x",), writes=("y",), patch={"y": 1}, by="Ada"
    )
    assert change_block(record, full=False).plain.splitlines() == [
        "      reads x",
        "      writes y",
        "      by Ada",
    ]
    assert '"y": 1' in change_block(record, full=True).plain


def test_a_terminal_shows_the_end_of_what_the_model_is_saying() -> None:
    console = Console(width=200, file=StringIO(), force_terminal=True)
    with LiveView(console) as view:
        view.show(Record(seq=0, machine="m", state="a", event="Started", to="a"))
        view.saying("first words \x1b[2J\n" + "then " * 50 + "the newest")
        time.sleep(0.3)
    shown = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    assert "… " in shown
    assert "the newest" in shown
    assert "first words" not in shown
    assert "\x1b[2J" not in shown


def test_what_was_spent_is_told_when_it_changes_and_a_request_on_a_terminal_once() -> None:
    spends = {"model_calls": 1, "input_tokens": 5}
    records = [
        Record(seq=0, machine="m", state="a", event="Replied", to="b", counters=spends),
        Record(seq=1, machine="m", state="b", event="Requested", reason="r1: may it?", counters=spends),
    ]
    for terminal in (True, False):
        console = Console(width=80, file=StringIO(), force_terminal=terminal, color_system=None)
        with LiveView(console) as view:
            for record in records:
                view.show(record)
        shown = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
        assert shown.count("1 model call · 5 tokens · $0") == 1
        assert ("r1: may it?" in shown) != terminal, "the whole request follows there"


def test_an_error_is_raised_by_its_name() -> None:
    for name in ("StageError", "InvariantViolation", "MaxIterationsExceeded"):
        error = error_named(name, "m", "a", "why")
        assert (type(error).__name__, "why" in str(error)) == (name, True)
    assert "SomethingElse: why" in str(error_named("SomethingElse", "m", "a", "why"))


def test_what_tools_returned_is_shown() -> None:
    said = [{"role": "tool", "content": "two lines\nof it"}, {"role": "user", "content": "not this"}]
    record = Record(seq=1, machine="m", state="a", event="E", patch={"transcript": said})
    shown = record_block(record).plain
    assert "← two lines\n      of it" in shown
    assert "not this" not in shown


def test_a_steps_time_is_without_the_time_that_people_took() -> None:
    asked = Record(seq=1, machine="m", state="a", event="Decided", started=100, finished=160)
    called = Record(seq=2, machine="m", state="a", event="ToolsExecuted", started=99, finished=160.4)
    assert "   0.4 s" in record_block(called, asked).plain
    assert "   61.4 s" in record_block(called).plain


def test_json_keeps_its_meaning_and_steers_no_terminal() -> None:
    value = {"said": "a\x1b\x7f\x9b2J \u202e\U000e0001 \N{NO-BREAK SPACE}ä 漢\n"}
    shown = escaped(json.dumps(value, indent=2, ensure_ascii=False))
    assert json.loads(shown) == value
    assert "ä 漢" in shown
    assert all(c.isprintable() or c == "\n" for c in shown)


def test_names_in_records_and_results_steer_no_terminal() -> None:
    bad = "x\x9b2J"
    record = Record(seq=0, machine=bad, state=bad, event=bad, to=bad, within="a")
    assert "\x9b" not in record_block(record).plain


def test_what_is_waited_for_takes_one_line_of_any_terminal() -> None:
    for width in (40, 80, 200):
        for asked in ("", "r1 mark_once with a long list of arguments, " * 5):
            console = Console(width=width, file=StringIO(), force_terminal=True)
            waiting = _Waiting("some_state")
            waiting.text, waiting.person = "漢字 said " * 40 + "the newest", asked
            lines = console.render_lines(Spinner("dots", text=waiting))
            texts = ["".join(segment.text for segment in line).rstrip() for line in lines]
            assert len(texts) == 1, texts
            assert texts[0].endswith("0 s" if asked else "the newest")


def test_a_table_in_a_pipe_is_not_filled_up_with_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    out().print(pairs([("a", "short"), ("b", "long " * 20)]))
    out().print("kept as it is  ")
    first, second, last = capsys.readouterr().out.splitlines()
    assert (first, second.endswith("long"), last) == ("a  short", True, "kept as it is  ")
