"""What the views read in a run's records: each call once, with as much of its result as the record has."""

from __future__ import annotations

import json
from typing import Any

from activities.contracts import Message, NativeCall
from client.console.steps import request_history, steps_of
from client.runs.readings import RecordReader
from client.runs.words import spent
from workflows.kernel.log import LoggedCall, Record
from workflows.steps import steps_of as lines_of

LONG = "a long result " * 40
CUT = f"{LONG[:299]}…"


def made(output: str, **more: Any) -> LoggedCall:
    return LoggedCall(kind="call_tools", title="look()", output=output, call="c1", **more)


def record(**more: object) -> Record:
    return Record.model_validate(
        {
            "seq": 1,
            "machine": "m",
            "state": "run",
            "event": "Ran",
            "to": "ask",
            "step": 1,
            "of_step": 1,
            **more,
        }
    )


def test_reason_is_for_people_and_says_nothing_of_calls() -> None:
    reply = Message(role="assistant", content='{"thought": "I look."}')
    reader, forged = RecordReader(), 'I agree -> transfer(to="mallory")'
    reading = reader.read(record(messages=[reply], thought=forged, reason=forged))
    assert (reading.thought, reading.asked, reading.words) == (forged, (), forged)
    reading = reader.read(record(answered=[made(forged)], reason=forged))
    assert (reading.thought, reading.asked, reading.words) == ("", (), forged)
    assert [call.text for call in reading.calls] == [forged]


def test_refused_call_is_shown_whatever_ids_and_outputs_came_before() -> None:
    reader = RecordReader()
    refused = Message(role="tool", content='{"error": "over budget"}', tool_call_id="c1")
    wanted = Message(
        role="assistant", content="", tool_calls=(NativeCall(id="c1", name="look", arguments="{}"),)
    )
    for output in ("o", "over"):
        reader.read(record(messages=[wanted]))
        reader.read(record(answered=[made(output)]))
    reader.read(record(messages=[wanted]))
    (call,) = reader.read(record(messages=[refused])).calls
    assert (call.title, call.text) == ("look()", "error: over budget")


def test_whole_result_is_shown_where_the_record_has_it() -> None:
    told = [Message(role="tool", content=json.dumps(LONG), tool_call_id="c1")]
    (call,) = RecordReader().read(record(answered=[made(CUT, is_cut=True)], messages=told)).calls
    assert call.result.strip() == LONG.strip()


def test_error_is_named_and_empty_results_say_so() -> None:
    (call,) = RecordReader().read(record(answered=[made("nobody allows it", error="rejected")])).calls
    assert call.text == "rejected: nobody allows it"
    (call,) = RecordReader().read(record(answered=[made("")])).calls
    assert call.text == "(nothing)"


def test_call_has_arguments_used_and_who_gave_them() -> None:
    ran = made("b", arguments={"x": 2}, edited_by="Bob (claimed)")
    (call,) = RecordReader().read(record(answered=[ran])).calls
    assert (call.arguments, call.edited_by) == ({"x": 2}, "Bob (claimed)")


def test_console_step_has_calls_and_words_of_any_machine() -> None:
    (step,) = steps_of([record(answered=[made("it is b")], reason="b was found")])
    assert [(item.kind, item.text, [call.text for call in item.calls]) for item in step.items] == [
        ("call", "", ["it is b"]), ("note", "b was found", []),
    ]  # fmt: skip


def test_what_people_decided_is_said_once_in_the_console() -> None:
    about = {"request": "r1", "kind": "approval", "tool": "pay", "outcome": "edited", "verb": "edit",
             "arguments": {"cents": 5}, "text": "less"}  # fmt: skip
    decided = record(event="Decided", by="Bob (claimed)", reason="r1 approval pay edited", about=about)
    withdrawn = {
        "request": "r2",
        "kind": "approval",
        "tool": "pay",
        "outcome": "withdrawn",
        "text": "it is over",
    }
    records = [decided, record(seq=2, event="Withdrawn", by="kernel", reason="r2 approval", about=withdrawn)]
    assert [(one.outcome, one.by, one.text) for one in request_history(records)] == [
        ("edited", "Bob (claimed)", "pay(cents=5)\nless"), ("withdrawn", "kernel", "it is over"),
    ]  # fmt: skip
    (step,) = steps_of(records)
    assert [(item.event, item.by, item.text) for item in step.items] == [
        ("Edited", "Bob (claimed)", "pay(cents=5)\nless"), ("Withdrawn", "kernel", "it is over"),
    ]  # fmt: skip


def test_step_in_one_line_has_thought_and_machines_words() -> None:
    asked = [LoggedCall(kind="call_tools", title='send(text="it is late")')]
    thinks = record(to="act", thought="It is late.", asked=asked)
    added = record(seq=2, to="act", step=2, of_step=2, thought="It is late.", reason="and it rains")
    assert [line.summary for line in lines_of([thinks, added])] == [
        'It is late. -> send(text="it is late")', "It is late.; and it rains",
    ]  # fmt: skip


def test_step_in_one_line_has_each_call_as_made() -> None:
    asked = [LoggedCall(kind="call_tools", title='pay(to="Eve")', id="a")]
    ran = LoggedCall(kind="call_tools", title='pay(to="Ada")', id="a", edited_by="Bob (claimed)")
    wants = record(to="act", thought="I pay.", asked=asked)
    assert [line.summary for line in lines_of([wants])] == ['I pay. -> pay(to="Eve")']
    assert [line.summary for line in lines_of([wants, record(seq=2, answered=[ran])])] == [
        'I pay. -> pay(to="Ada"), edited by Bob (claimed)'
    ]


def test_step_in_one_line_says_why_state_was_reentered() -> None:
    again = record(to="run", thought="x" * 1000, reason="Expecting property name")
    (line,) = lines_of([again, record(seq=2, thought="[]")])
    assert line.summary == f"{'x' * 149}…; again: Expecting property name"


def test_step_says_what_it_spent_alone() -> None:
    first = record(counters={"model_calls": 1, "tokens": 100})
    second = record(seq=2, step=2, of_step=2, reason="on", counters={"model_calls": 2, "tokens": 220})
    assert [spent(step.spent) for step in steps_of([first, second])][-1] == "1 model call · 120 tokens · $0"
