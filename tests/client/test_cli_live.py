"""What `run` and `watch` print of a run's records: a block for each step."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from rich.console import Console

from activities.contracts import Message, NativeCall, ToolError, call_title
from client.cli.live import LiveView
from client.runs.pending import Heartbeat
from client.runs.words import clock
from workflows.api import RunResult
from workflows.kernel.log import EDITED, LoggedCall, Record
from workflows.status import RunStatus

LINK = "https://example.com/a/very/long/path/that/is/longer/than/any/line/of/a/terminal/of/eighty/columns"


def record(state: str, event: str, to: str | None, step: int, **more: object) -> Record:
    return Record.model_validate(
        {
            "seq": 1,
            "machine": "m",
            "state": state,
            "event": event,
            "to": to,
            "step": step,
            "of_step": step,
            **more,
        }
    )


def said(content: str, *calls: tuple[str, dict[str, object]]) -> dict[str, object]:
    """What a record of a model's reply has besides."""
    wanted = tuple(NativeCall(id=str(i), name=n, arguments=json.dumps(a)) for i, (n, a) in enumerate(calls))
    return {
        "messages": (Message(role="assistant", content=content, tool_calls=wanted),),
        "answered": (LoggedCall(kind="ask_model", title="ask"),),
        "thought": content,
        "asked": wants(*(call_title(name, arguments) for name, arguments in calls)),
    }


def wants(*titles: str) -> tuple[LoggedCall, ...]:
    """Calls that come next."""
    return tuple(LoggedCall(kind="call_tools", title=title, id=str(i)) for i, title in enumerate(titles))


def made(
    *calls: tuple[str, str], error: ToolError | None = None, is_cut: bool = False, by: str = ""
) -> tuple[LoggedCall, ...]:
    """Calls that have ended: title, and what came of it."""
    return tuple(
        LoggedCall(
            kind="call_tools",
            title=title,
            output=output,
            error=error,
            call=str(i),
            id=str(i),
            is_cut=is_cut,
            edited_by=by,
        )
        for i, (title, output) in enumerate(calls)
    )


def returned(*outputs: str) -> tuple[Message, ...]:
    return tuple(
        Message(role="tool", content=json.dumps(one), tool_call_id=str(i)) for i, one in enumerate(outputs)
    )


def shown(records: Iterable[Record], width: int = 80, answer: str | None = None) -> str:
    """All that is printed, without trailing blanks."""
    file = io.StringIO()
    view = LiveView(Console(file=file, width=width, color_system=None))
    for one in records:
        view.show(one)
    view.end(
        RunResult(
            agent="a", machine="m", machine_version="1", state="done", step=1, exit_reason="done",
            ok=True, answer=answer, error=None, counters={}, records=1, workflow_id="w", run_id="r",
        )
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


STARTED = record("ask", "Started", "ask", 0, by="kernel")


def test_step_is_one_block_with_thought_call_result_and_cost() -> None:
    found = shown(
        [
            STARTED,
            record("ask", "Replied", "run", 1, **said("I look.", ("look", {"path": "a", "limit": 5})),
                   counters={"model_calls": 1, "tokens": 1200, "cost_usd": 0.0021}, started=1.0, at=2.5),
            record("run", "Ran", "ask", 1, messages=returned("it is b"),
                   answered=made(('look(path="a", limit=5)', "it is b")),
                   counters={"model_calls": 1, "tokens": 1200, "cost_usd": 0.0021}, started=2.5, at=3.0),
            record("ask", "Replied", "done", 2, **said("It is b."),
                   counters={"model_calls": 2, "tokens": 1300, "cost_usd": 0.0022}, started=3.0, at=4.0),
        ],
        answer="It is b.",
    )  # fmt: skip
    assert found == (
        "\n  1  I look.\n"
        '     → look(path="a", limit=5)\n'
        "       it is b\n"
        "     this step: 1,200 tokens · $0.0021 · 2.0 s\n"
        "\nIt is b.\n"
        "✓ done · 1 step"
    )


def test_several_calls_stand_above_their_own_results() -> None:
    found = shown(
        [
            STARTED,
            record("ask", "Replied", "run", 1, **said("Both.", ("add", {"a": 1}), ("sub", {"a": 2}))),
            record("run", "Ran", "ask", 1, messages=returned("one", "two"),
                   answered=made(("add(a=1)", "one"), ("sub(a=2)", "two"))),
        ]
    )  # fmt: skip
    assert "     → add(a=1)\n       one\n     → sub(a=2)\n       two\n" in found


def test_edited_call_is_shown_as_it_was_made() -> None:
    found = shown(
        [
            STARTED,
            record("ask", "Drafted", "run", 1, thought="I pay.", asked=wants('pay(to="Eve")'),
                   messages=(Message(role="assistant", content='{"thought": "I pay."}'),),
                   answered=(LoggedCall(kind="ask_model", title="think"),)),
            record("run", "Decided", None, 1, by="Bob (claimed)", reason="r1 edited"),
            record("run", "Steered", None, 1, by="kernel", reason="It was edited", about={EDITED: "run#1:0"}),
            record("run", "Acted", "ask", 1, answered=made(('pay(to="Ada")', "paid"), by="Bob (claimed)")),
        ]
    )  # fmt: skip
    assert found.split("\n")[1:5] == [
        "  1  I pay.",
        "     • Decided by Bob (claimed): r1 edited",
        '     → pay(to="Ada"), edited by Bob (claimed)',
        "       paid",
    ]


def test_reply_that_leads_to_the_next_step_belongs_to_it() -> None:
    found = shown(
        [
            record("init", "Began", "ask", 0, **said("First."), begins=True, of_step=1),
            record("ask", "Found", "run", 1, asked=wants("look()")),
            record("run", "Ran", None, 1, answered=made(("look()", "x")), messages=returned("x")),
            record("run", "Executed", "ask", 1, **said("Second."), begins=True, of_step=2),
            record("ask", "Found", "run", 2, asked=wants("look(n=2)")),
            record("run", "Ran", None, 2, answered=made(("look(n=2)", "y"))),
        ]
    )
    assert found.startswith(
        "\n  1  First.\n     → look()\n       x\n\n  2  Second.\n     → look(n=2)\n       y\n"
    )


@pytest.mark.parametrize("width", [80, 120])
def test_lines_hang_and_links_stay_whole(width: int) -> None:
    words = "some words that are wrapped " * 8
    found = shown([STARTED, record("ask", "Replied", "run", 1, **said(f"{words}{LINK} and on"))], width)
    lines = found.splitlines()
    assert LINK in found
    assert [line[:5] for line in lines[2:-2]] == ["     "] * (len(lines) - 4)
    assert all(len(line) <= width for line in lines if LINK not in line)


def test_log_record_is_wrapped_below_itself_on_a_terminal() -> None:
    file = io.StringIO()
    view = LiveView(Console(file=file, width=60, force_terminal=True, color_system=None), verbose=True)
    view.show(record("ask", "Replied", "run", 1, **said(f"a\tb {'some words ' * 20}{LINK}")))
    _, first, *lines = file.getvalue().rstrip().splitlines()
    assert first.endswith("ask → run  Replied   step 1")
    assert [line[:6].strip() for line in lines] == [""] * len(lines)
    assert all(len(line) <= 60 for line in lines)
    assert "".join(line.strip() for line in lines).count("words") == 20


def test_log_record_names_who_caused_it() -> None:
    file = io.StringIO()
    view = LiveView(Console(file=file, width=60, color_system=None), verbose=True)
    for by in ("ann (claimed)", "machine"):
        view.show(record("ask", "Paused", None, 1, by=by, reason="lunch"))
    _, first, *lines, second, reason = file.getvalue().splitlines()
    assert (first[-17:], second[-17:]) == ("  Paused   step 1",) * 2
    assert (lines, reason) == (["      lunch", "      by ann (claimed)"], "      lunch")


def test_log_record_says_when_it_happened() -> None:
    moments = (1e9, 1e9 + 5, 1e9 + 86_400)
    file = io.StringIO()
    view = LiveView(Console(file=file, width=60, color_system=None), verbose=True)
    for seq, at in enumerate(moments):
        view.show(record("ask", "Replied", "run", 1, seq=seq, started=at, at=at))
    (day, one), (_, two), (next_day, three) = (
        clock(datetime.fromtimestamp(at, UTC)).split() for at in moments
    )
    assert file.getvalue().splitlines() == [
        day,
        f"   0  {one}  ask → run  Replied   step 1",
        f"   1  {two}  ask → run  Replied   step 1",
        next_day,
        f"   2  {three}  ask → run  Replied   step 1",
    ]


def test_long_result_says_how_much_is_left_out() -> None:
    text = "\n".join(f"line {number}" for number in range(40))
    ran = record(
        "run",
        "Ran",
        "ask",
        1,
        answered=made(("read()", f"{text[:299]}…"), is_cut=True),
        messages=returned(text),
    )
    found = shown([STARTED, ran])
    assert "       line 5\n       … 34 more lines\n" in found


def test_why_a_state_is_entered_again_stands_below_the_reply() -> None:
    again = record("ask", "Unreadable", "ask", 1, **said("{'a': 1}"), reason="Expecting property name")
    found = shown([STARTED, again, record("ask", "Read", "done", 1, **said("[]"))])
    assert found.startswith("\n  1  {'a': 1}\n     ↻ Expecting property name\n     []\n")


def test_refusal_and_what_people_do_are_shown_with_who() -> None:
    found = shown(
        [
            STARTED,
            record("ask", "Paused", None, 1, by="Ada (claimed)"),
            record("ask", "LimitsSet", None, 1, by="Bob (claimed)", reason="tokens 5"),
            record("ask", "Broke", "ask", 1, error="undeclared field x"),
        ]
    )
    assert "• Paused by Ada (claimed)" in found
    assert "• Limits set by Bob (claimed): tokens 5" in found
    assert "✗ refused: undeclared field x" in found


def test_call_of_any_machine_shows_result_and_what_machine_says() -> None:
    found = shown(
        [
            STARTED,
            record("read", "WasRead", "write", 1, answered=made(('read(path="a")', "a long\nstory")),
                   reason="the file has 12 characters"),
        ]
    )  # fmt: skip
    assert found.startswith(
        '\n  1  → read(path="a")\n       a long\n       story\n     the file has 12 characters\n'
    )


def test_call_is_shown_once_and_as_it_was_made() -> None:
    """The model wrote a text for the number, and left a default out."""
    found = shown(
        [
            STARTED,
            record("ask", "Replied", "run", 1, **said("I pay.", ("pay", {"cents": "5"}))),
            record("run", "Ran", "ask", 1, answered=made(("pay(cents=5)", "paid"))),
        ]
    )  # fmt: skip
    assert found.startswith("\n  1  I pay.\n     → pay(cents=5)\n       paid\n")


@pytest.mark.parametrize(
    ("words", "answer", "shown_words"),
    [("4", "4", ""), ("2 and 2 is 4", "4", "  1  2 and 2 is 4\n")],
)
def test_words_that_are_the_answer_are_shown_once(words: str, answer: str, shown_words: str) -> None:
    found = shown([STARTED, record("ask", "Replied", "done", 1, **said(words))], answer=answer)
    assert found == f"{shown_words and chr(10)}{shown_words}\n4\n✓ done · 1 step"


def test_words_that_others_contain_are_shown() -> None:
    texts = ("No", "Now I know. Pay 500.", "Now I know.")
    spoken = [record("ask", "Replied", "ask", number, **said(text)) for number, text in enumerate(texts, 1)]
    found = shown([STARTED, *spoken])
    assert "1  No\n" in found
    assert "2  Now I know. Pay 500.\n" in found


def test_thought_stands_above_what_people_are_asked_about_its_call() -> None:
    file = io.StringIO()
    view = LiveView(Console(file=file, width=80, color_system=None))
    view.show(STARTED)
    view.show(record("ask", "Replied", "run", 1, **said("I pay.", ("pay", {"cents": 5}))))
    assert "I pay." in file.getvalue()


def test_answer_told_by_machine_is_shown_once() -> None:
    ended = record("ask", "Ended", "done", 1, reason="It is b.")
    assert shown([STARTED, ended], answer="It is b.") == "\nIt is b.\n✓ done · 1 step"


def test_person_is_named_whatever_the_words() -> None:
    paused = record("ask", "Paused", None, 1, by="al", reason="also lunch")
    assert "Paused by al: also lunch" in shown([STARTED, paused])


def test_question_that_ends_the_run_says_why_once() -> None:
    failed = (LoggedCall(kind="ask_model", title="ask", output="no key", error="bad_key"),)
    ended = record("ask", "Failed", "done", 1, answered=failed)
    found = shown([STARTED, ended], answer="bad_key: no key")
    assert found == "\n  1  → ask\n\nbad_key: no key\n✓ done · 1 step"


def test_failed_call_is_named_error_whatever_its_output_looks_like() -> None:
    ran = record("run", "Ran", "ask", 1, answered=made(("send()", "3 of 4"), error="failed"))
    assert "→ send()\n       failed: 3 of 4\n" in shown([STARTED, ran])


def test_result_that_the_model_is_told_later_is_shown_once() -> None:
    found = shown(
        [
            STARTED,
            record("ask", "Replied", "run", 1, **said("I look.", ("look", {}))),
            record("run", "ToolsReturned", None, 1,
                   answered=made(("look()", "it is b"))),
            record("run", "Told", "ask", 1, **{**said("So it is b"), "messages": (
                *returned("it is b"), Message(role="assistant", content="So it is b"))}),
        ]
    )  # fmt: skip
    assert found.count("→ look()") == 1
    assert found.count("it is b\n") == 2  # the result, and the thought


def test_call_is_shown_although_its_visit_broke_a_rule() -> None:
    broke = record("book", "Empty visit", None, 1, by="kernel", reason="the visit returned Booked",
                   answered=made(("book()", "booked Rome")))  # fmt: skip
    found = shown([STARTED, broke])
    assert "→ book()\n       booked Rome\n" in found
    assert "the visit returned Booked" in found


def test_call_that_was_not_made_is_shown_with_the_reason() -> None:
    found = shown(
        [
            STARTED,
            record("ask", "Replied", "run", 1, **said("I look.", ("look", {}), ("fly", {"to": "moon"}))),
            record("run", "Ran", "ask", 1, answered=made(("look()", "b")), messages=(
                *returned("b"),
                Message(role="tool", content='{"error": "there is no tool fly"}', tool_call_id="1"))),
        ]
    )  # fmt: skip
    assert '     → look()\n       b\n     → fly(to="moon")\n       error: there is no tool fly\n' in found


@pytest.mark.parametrize("state", ["EXECUTING_TOOLS", "executing_tools"])
def test_line_below_the_blocks_says_in_words_what_goes_on(state: str) -> None:
    file = io.StringIO()
    view = LiveView(Console(file=file, width=80, color_system=None, force_terminal=True))
    with view.shown():
        view.show(record("ask", "Replied", state, 1))
    assert "executing tools" in file.getvalue()
    assert state not in file.getvalue()


@pytest.mark.parametrize("doing", ["asking the model", 'calling look(path="\n' + "a/" * 90 + '")'])
def test_line_below_blocks_says_what_is_running_since_when(doing: str) -> None:
    file = io.StringIO()
    view = LiveView(Console(file=file, width=80, color_system=None, force_terminal=True))
    facts = {"agent": "a", "machine": "m", "machine_version": "1", "state": "init", "step": 1}
    view.show(record("ask", "Replied", "executing_tools", 1))
    view.show_activity(RunStatus.model_validate({**facts, "doing": doing, "doing_since": time.time() - 45}))
    with view.shown():
        pass
    assert re.search(rf"{doing[:12]}.* 4[5-9] s *$", file.getvalue(), flags=re.MULTILINE)
    view.show(record("ask", "Replied", "ask", 1))  # what came before says nothing of what follows
    with view.shown():
        pass
    assert re.search(r"ask \d s *$", file.getvalue(), flags=re.MULTILINE)


def test_each_failed_attempt_prints_once_and_running_is_no_failure() -> None:
    file = io.StringIO()
    view = LiveView(Console(file=file, width=80, color_system=None, force_terminal=True))
    one, two = {"a attempt 2": "weather() fails"}, {"b attempt 2": "map() fails"}
    for failures in (one, {**two, **one}, {}, two, {"a attempt 3": "weather() fails"}):
        view.show_heartbeat(Heartbeat(failures=failures, attempt=2))
        with view.shown():
            pass
    found = file.getvalue()
    assert (found.count("! weather() fails"), found.count("! map() fails")) == (2, 1)
    assert "starting" in found
    assert "failed" not in found


def test_bug_stands_on_the_line_below_the_steps() -> None:
    file = io.StringIO()
    view = LiveView(Console(file=file, width=80, color_system=None, force_terminal=True))
    for failures in ({"KeyError: 'x'": "KeyError: 'x'"}, {}):
        view.show_heartbeat(Heartbeat(failures=failures))
        with view.shown():
            pass
    bug, after = file.getvalue().split("\x1b[?25h", 1)
    assert "cannot go on, and is tried again: KeyError: 'x'" in bug
    assert ("KeyError" in after, "starting" in after) == (False, True)
