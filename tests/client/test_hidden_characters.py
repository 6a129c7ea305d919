"""What a person reads and decides by holds no character that they cannot see."""

from __future__ import annotations

import io
import json

import pytest
from pydantic import ValidationError

from client.cli.output import print_json
from client.console.texts import shown
from client.runs.words import plain
from workflows.people import Group

HIDDEN = (
    "\u034f\u115f\u3164\u2800\ufe0f\U000e0100\u180b\u17b4"  # printable, says Python
    "\u200b\u202e\u2066\ufeff\u00ad\u061c\U000e0041\x85\x1b\x9b\u2028\ue000"
)


@pytest.mark.parametrize("hidden", HIDDEN, ids=lambda hidden: f"{ord(hidden):X}")
def test_hidden_character_is_shown_everywhere(hidden: str) -> None:
    """A payee `Ann` with one more of them is not Ann."""
    name = f"An{hidden}n"
    assert shown(name) == f"An⟨U+{ord(hidden):04X}⟩n"
    assert plain(name) == "An\N{REPLACEMENT CHARACTER}n"
    print_json({"to": name}, stream=(printed := io.StringIO()))
    assert hidden not in printed.getvalue()
    assert json.loads(printed.getvalue()) == {"to": name}
    with pytest.raises(ValidationError, match="is not a name"):
        Group(members=(name,))


@pytest.mark.parametrize("text", ["Zoë Łęcka", "金额 5000", "שלום", "e\u0301", "✅ done", "a\nb\tc"])
def test_what_people_see_is_left_as_it_is(text: str) -> None:
    assert (shown(text), plain(text)) == (text, text)
