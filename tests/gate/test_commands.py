"""Who may give commands, and that each counts once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.gate.house import ORIGIN, PEOPLE, again, desk, ordered
from tests.machines.answers import act, final
from tests.people.bench import Bench, unsafe
from workflows.gate.commands import REASON, REASONS, UNSIGNED_IDS
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
        at.commands.check(command)
    with pytest.raises(Refused):
        at.commands.count(command)
    assert at.dump() == before
    return asked.value.reason


def test_anybody_may_give_commands_where_nobody_is_named() -> None:
    at = of(None)
    assert at.commands.count(pause(by="")) == "somebody (claimed)"
    assert at.commands.count(pause(by="eve")) == "eve (claimed)"


@pytest.mark.parametrize(
    "name",
    ["a\nb", "ann (verified)", "ann, bob", " ann", "ann\u202e", "ann \uff08verified\uff09", "ann\uff0cbob"],
)
def test_a_name_that_would_deceive_in_the_log_is_refused(name: str) -> None:
    assert "is no name; up to 100 printable characters" in refusal(of(None), pause(by=name))


def test_only_the_group_may_give_commands() -> None:
    at = of("team")
    assert at.commands.count(pause()) == "ann (claimed)"
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
    assert of("team").commands.count(command.model_copy(update={"by": "ann"})) == "ann (claimed)"
    alone = desk(people=People())
    assert alone.commands.count(command) == "zoe (claimed)", (
        "where nobody is named, there is nobody to go round"
    )
    assert of(None).commands.count(Command(command="rollback", by="zoe", step=1)) == "zoe (claimed)"


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
    assert not at.commands.seen(command)
    assert at.commands.count(command) == "ann (verified)"
    assert at.commands.seen(command)
    assert again(at).commands.seen(command)
    at.commands.check(command)
    assert "another command came under the id 'x'" in refusal(at, ordered(pause(id="x", text="!")))


def test_a_repeat_is_harmless_and_a_command_without_id_is_always_new() -> None:
    at = of(None)
    at.commands.count(pause(id="x"))
    at.commands.check(pause(id="x"))
    assert at.commands.seen(pause(id="x"))
    assert "under the id 'x'" in refusal(at, pause(id="x", by="bob"))
    assert not at.commands.seen(pause(id="x", by="bob"))
    at.commands.count(pause())
    at.commands.count(pause(text="other"))
    assert not at.commands.seen(pause())


def test_ids_of_signed_commands_are_never_forgotten_and_others_in_the_end() -> None:
    signed, plain = of("signed"), of("team")
    for number in range(UNSIGNED_IDS + 1):
        signed.commands.count(ordered(pause(id=str(number))))
        plain.commands.count(pause(id=str(number)))
    assert signed.commands.seen(pause(id="0"))
    assert not plain.commands.seen(pause(id="0"))
    assert plain.commands.seen(pause(id="1"))


def test_the_run_that_is_signed_for_is_the_desks() -> None:
    assert of("signed").run[1] == ORIGIN


def test_a_repeat_of_a_refused_command_is_told_so_by_the_next_run_of_the_chain_too() -> None:
    at = of("team")
    at.commands.count(pause(id="x"))
    at.commands.count(pause(id="y"))
    assert at.commands.refusal(pause(id="x")) is None
    at.commands.refuse(pause(id="x"), "the run is paused already" + "!" * REASON)
    for knows in (at, again(at)):
        assert (knows.commands.refusal(pause(id="x")) or "").startswith("the run is paused already!")
        assert len(knows.commands.refusal(pause(id="x")) or "") == REASON
        assert knows.commands.refusal(pause(id="y")) is None


def test_what_was_never_counted_marks_no_command_as_refused() -> None:
    at = of("team")
    at.commands.count(pause(id="x"))
    before = at.dump()
    for stray in (pause(id="x", by="eve"), pause(id="x", text="!"), pause(id="z"), pause()):
        at.commands.refuse(stray, "another command came under the id")
        assert at.commands.refusal(stray) is None
    assert at.dump() == before


def test_of_old_refusals_only_the_reasons_are_forgotten() -> None:
    at = of("team")
    for number in range(UNSIGNED_IDS + 1):
        at.commands.count(pause(id=str(number)))
        at.commands.refuse(pause(id=str(number)), "no")
    assert not at.commands.seen(pause(id="0"))
    assert at.commands.refusal(pause(id="0")) is None
    assert at.commands.refusal(pause(id="1")) == "it was refused before; the log says why"
    assert at.commands.refusal(pause(id=str(UNSIGNED_IDS))) == "no"
    kept = cast("dict[str, str]", at.dump()["refused"])
    assert (len(kept), len([why for why in kept.values() if why])) == (UNSIGNED_IDS, REASONS)


async def test_a_command_that_the_run_refuses_is_kept_as_refused_and_one_that_it_obeys_is_not() -> None:
    async with Bench("react", (act("tool", q="x"), final()), tool=unsafe()) as run:
        for name in ("first", "second"):
            run.loop.desk.commands.count(pause(id=name))
            await run.command("pause", id=name, by="ann")
        knows = again(run.loop.desk)
        assert knows.commands.refusal(pause(id="first")) is None
        assert knows.commands.refusal(pause(id="second")) == "the run is paused already"
