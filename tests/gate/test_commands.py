"""Who may give commands, and that each counts once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gate.house import ORIGIN, PEOPLE, again, desk, ordered
from workflows.gate.commands import UNSIGNED_IDS
from workflows.gate.desk import Desk
from workflows.gate.ticket import Refused
from workflows.people import Command, People


def of(group: str | None) -> Desk:
    """A desk of a run to which this group gives commands."""
    return desk(people=PEOPLE.model_copy(update={"commands": group}))


def pause(**what: Any) -> Command:
    """A command."""
    return Command(command="pause", **{"by": "ann", **what})


def refusal(at: Desk, command: Command) -> str:
    """Why it does not count; nothing has changed by it."""
    before = at.dump()
    with pytest.raises(Refused) as asked:
        at.command_allowed(command)
    with pytest.raises(Refused):
        at.count(command)
    assert at.dump() == before
    return asked.value.reason


def test_anybody_may_give_commands_where_nobody_is_named() -> None:
    at = of(None)
    assert at.count(pause(by="")) == "somebody (claimed)"
    assert at.count(pause(by="eve")) == "eve (claimed)"


@pytest.mark.parametrize("name", ["a\nb", "ann (verified)", "ann, bob", " ann", "ann\u202e"])
def test_a_name_that_would_deceive_in_the_log_is_refused(name: str) -> None:
    assert "is no name; up to 100 printable characters" in refusal(of(None), pause(by=name))


def test_only_the_group_may_give_commands() -> None:
    at = of("team")
    assert at.count(pause()) == "ann (claimed)"
    assert refusal(at, pause(by="eve")) == (
        "eve may not give commands to this run; ann, bob may (team): "
        "let one of them do it, and name them in `by`"
    )
    assert "somebody without a name may not" in refusal(at, pause(by=""))


@pytest.mark.parametrize(
    "command",
    [
        Command(command="limits", by="zoe", limits={"cost_usd": None}),
        Command(command="rollback", by="zoe", step=1, compensate=True),
    ],
)
def test_what_a_group_approves_is_not_brought_about_by_anybodys_command(command: Command) -> None:
    assert "set `people.commands` in the agent file to the group that may (team, two," in refusal(
        of(None), command
    )
    assert of("team").count(command.model_copy(update={"by": "ann"})) == "ann (claimed)"
    alone = desk(people=People())
    assert alone.count(command) == "zoe (claimed)", "where nobody is named, there is nobody to go round"
    assert of(None).count(Command(command="rollback", by="zoe", step=1)) == "zoe (claimed)"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (pause(id="x"), "signed with the key of ann, no signature came"),
        (pause(id="x", signature="junk"), "not theirs"),
        (ordered(pause(id="x"), key="bob"), "not theirs"),
        (ordered(pause(id="x"), run="another"), "not theirs"),
        (ordered(pause(id="x"), origin="another"), "not theirs"),
        (ordered(pause(id="x")).model_copy(update={"command": "abort"}), "not theirs"),
        (ordered(pause(id="x")).model_copy(update={"id": "y"}), "not theirs"),
        (ordered(pause(by="eve", id="x")), "eve may not"),
        (ordered(pause()), "needs an `id`"),
    ],
)
def test_a_command_that_is_not_its_givers_is_refused(command: Command, words: str) -> None:
    assert words in refusal(of("signed"), command)


def test_a_signed_command_is_verified_and_counts_once() -> None:
    at = of("signed")
    command = ordered(pause(id="x"))
    assert not at.seen(command)
    assert at.count(command) == "ann (verified)"
    assert at.seen(command)
    assert again(at).seen(command)
    at.command_allowed(command)
    assert "another command came under the id 'x'" in refusal(at, ordered(pause(id="x", text="!")))


def test_a_repeat_is_harmless_and_a_command_without_id_is_always_new() -> None:
    at = of(None)
    at.count(pause(id="x"))
    at.command_allowed(pause(id="x"))
    assert at.seen(pause(id="x"))
    assert "under the id 'x'" in refusal(at, pause(id="x", by="bob"))
    assert not at.seen(pause(id="x", by="bob"))
    at.count(pause())
    at.count(pause(text="other"))
    assert not at.seen(pause())


def test_ids_of_signed_commands_are_never_forgotten_and_others_in_the_end() -> None:
    signed, plain = of("signed"), of("team")
    for number in range(UNSIGNED_IDS + 1):
        signed.count(ordered(pause(id=str(number))))
        plain.count(pause(id=str(number)))
    assert signed.seen(pause(id="0"))
    assert not plain.seen(pause(id="0"))
    assert plain.seen(pause(id="1"))


def test_the_run_that_is_signed_for_is_the_desks() -> None:
    assert of("signed").run[1] == ORIGIN
