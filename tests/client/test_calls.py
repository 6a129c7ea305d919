"""What the views read in a run's records: each call once, with as much of its result as the record has."""

from __future__ import annotations

import json

import pytest

from activities.contracts import Message, ToolCall
from client.calls import Reader
from client.console.steps import steps_of
from workflows.kernel.log import Answered, Record

LONG = "a long result " * 40
CUT = f"{LONG[:299]}…"


def made(output: str, **more: str) -> Answered:
    return Answered(kind="call_tools", title="look()", output=output, call="c1", **more)


def record(**more: object) -> Record:
    return Record.model_validate(
        {"seq": 1, "machine": "m", "state": "run", "event": "Ran", "to": "ask", "step": 1, **more}
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [("it is b", ""), ("look returned: it is b and what follows", ""), ("b was found", "b was found")],
)
def test_reason_that_only_repeats_a_result_is_not_shown_beside_it(reason: str, words: str) -> None:
    output = "it is b" if reason == "it is b" else "it is b and what follows"
    told = Reader().read(record(answered=[made(output)], reason=reason))
    assert (told.words, [call.text for call in told.calls]) == (words, [output])


@pytest.mark.parametrize(
    "more",
    [
        {"reason": LONG},
        {"messages": [Message(role="tool", content=json.dumps(LONG), tool_call_id="c1")]},
    ],
    ids=["in the reason", "in a message"],
)
def test_whole_result_is_shown_where_the_record_has_it(more: dict[str, object]) -> None:
    (call,) = Reader().read(record(answered=[made(CUT)], **more)).calls
    assert call.result.strip() == LONG.strip()


def test_error_is_named_and_empty_results_say_so() -> None:
    (call,) = Reader().read(record(answered=[made("nobody allows it", error="rejected")])).calls
    assert call.text == "rejected: nobody allows it"
    (call,) = Reader().read(record(answered=[made("")])).calls
    assert call.text == "(nothing)"


def test_arguments_are_shown_by_name_unless_others_were_used() -> None:
    for arguments, shown in (('{"x": 1}', {"x": 1}), ('{"x": 2}', None)):
        reader = Reader()
        asked = Message(
            role="assistant", content="", tool_calls=(ToolCall(id="c1", name="look", arguments=arguments),)
        )
        reader.read(record(messages=[asked]))
        ran = Answered(kind="call_tools", title="look(x=1)", output="b", call="c1")
        assert reader.read(record(answered=[ran])).calls[0].arguments == shown


def test_console_step_has_the_calls_of_any_machine_and_what_it_says() -> None:
    (step,) = steps_of([record(answered=[made("it is b")], reason="b was found")])
    assert [(item.kind, item.text, [call.text for call in item.calls]) for item in step.items] == [
        ("call", "", ["it is b"]), ("note", "b was found", []),
    ]  # fmt: skip
