"""What is signed, and whose signature it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gate.house import KEYS, ORIGIN, RUN, public
from workflows.gate.signing import sign, signed_content, verified
from workflows.people import Command, Decision, Remember

DECISION = Decision(request="r1", digest="d" * 32, decision="approve", by="ann", id="x")
COMMAND = Command(command="abort", by="ann", id="x")
PUBLIC = {"ann": public("ann"), "bob": public("bob")}


def test_what_is_signed_is_written_down() -> None:
    """Other programs sign too: these bytes never change."""
    assert signed_content(RUN, DECISION) == (
        b"ratchet decision v1\n"
        b'{"message":{"by":"ann","decision":"approve","digest":"dddddddddddddddddddddddddddddddd",'
        b'"id":"x","request":"r1"},"run":"run-1"}'
    )
    assert signed_content(RUN, COMMAND, ORIGIN) == (
        b'ratchet command v1\n{"message":{"by":"ann","command":"abort","id":"x"},'
        b'"origin":"00000000-aaaa","run":"run-1"}'
    )


def test_what_stands_at_its_default_and_the_signature_are_not_signed() -> None:
    same = DECISION.model_copy(update={"signature": "abc", "text": "", "amounts": {}})
    assert signed_content(RUN, same) == signed_content(RUN, DECISION)


@pytest.mark.parametrize(
    "change",
    [
        {"request": "r2"},
        {"digest": "e" * 32},
        {"decision": "reject"},
        {"id": "y"},
        {"by": "bob"},
        {"text": "!"},
        {"arguments": {}},
        {"amounts": {"tokens": 1.0}},
        {"remember": Remember()},
        {"remember": Remember(same=True)},
    ],
)
def test_every_word_of_a_decision_is_signed(change: dict[str, Any]) -> None:
    assert signed_content(RUN, DECISION.model_copy(update=change)) != signed_content(RUN, DECISION)


@pytest.mark.parametrize(
    "change",
    [
        {"command": "pause"},
        {"id": "y"},
        {"by": "bob"},
        {"text": "!"},
        {"at_once": True},
        {"step": 0},
        {"compensate": True},
        {"limits": {"tokens": None}},
    ],
)
def test_every_word_of_a_command_is_signed(change: dict[str, Any]) -> None:
    changed = signed_content(RUN, COMMAND.model_copy(update=change), ORIGIN)
    assert changed != signed_content(RUN, COMMAND, ORIGIN)


def test_every_field_of_a_message_is_tried_above() -> None:
    """A new field must be signed too."""
    assert set(Decision.model_fields) == {
        *(
            "request",
            "digest",
            "decision",
            "id",
            "by",
            "text",
            "arguments",
            "amounts",
            "remember",
            "signature",
        ),
    }
    assert set(Command.model_fields) == {
        *("command", "id", "by", "text", "at_once", "step", "compensate", "limits", "signature"),
    }


def test_a_signature_is_for_one_run() -> None:
    """A workflow id is used again, so a command is signed for one chain; a decision's digest knows it."""
    assert signed_content("run-2", DECISION) != signed_content(RUN, DECISION)
    assert signed_content("run-2", COMMAND, ORIGIN) != signed_content(RUN, COMMAND, ORIGIN)
    assert signed_content(RUN, COMMAND, "another") != signed_content(RUN, COMMAND, ORIGIN)
    with pytest.raises(ValueError, match="origin"):
        signed_content(RUN, COMMAND)


def test_a_signature_is_its_owners_alone() -> None:
    content = signed_content(RUN, DECISION)
    mine = sign(KEYS["ann"], content)
    assert verified(PUBLIC, "ann", content, mine)
    assert not verified(PUBLIC, "bob", content, mine)
    assert not verified(PUBLIC, "eve", content, sign(KEYS["eve"], content)), "whose key is not listed"
    assert not verified(PUBLIC, "ann", content + b" ", mine)
    assert not verified({}, "ann", content, mine)
    assert not verified({"ann": "A" * 43}, "ann", content, mine)


@given(st.text(max_size=100), st.text(max_size=100), st.binary(max_size=20))
def test_junk_is_no_signature_and_raises_nothing(key: str, signature: str, content: bytes) -> None:
    assert not verified({"ann": key}, "ann", content, signature)
    assert not verified(PUBLIC, "ann", content, signature)
