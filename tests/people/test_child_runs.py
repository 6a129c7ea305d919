"""Commands to a run whose child run is at work: obeyed at once; what concerns the child is handed on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from activities.contracts import CallModel, Effect, MachineEnded
from client.keys import public_key
from tests.machines.driver import Reaction
from tests.machines.scripts_code import block, calls, ran
from tests.people.bench import RUN, Bench
from workflows.gate.desk import Desk
from workflows.gate.signing import sign, signed_content
from workflows.gate.ticket import Refused
from workflows.kernel.rebuild import rebuild
from workflows.people import Approvals, Command, Group, People

ENDED = MachineEnded(machine="code", ok=True, exit_reason="shallow", answer="A")
CHILD = f"{RUN}/EXECUTING#3:2"


@asynccontextmanager
async def with_a_child(*behind: Reaction, **more: Any) -> AsyncIterator[Bench]:
    """A run whose child run is at work; it ends when `blocked` is False."""

    def begins(effect: Effect) -> Any:
        run.blocked = True
        return calls("llm_query", "a")

    answers = (block("llm_query('a')"), begins, ENDED, *behind)
    run = Bench("code", answers, options={"nested": "always"}, **more)
    async with run:
        assert run.child() == CHILD
        yield run


async def child_ends(run: Bench) -> None:
    run.blocked = False
    await run.settled()


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_pause_is_obeyed_while_a_child_run_is_at_work_which_is_told(at_once: bool) -> None:
    async with with_a_child(calls("FINAL", 1), ran()) as run:
        order = await run.command("pause", at_once=at_once, by="ann", id="p1", signature="s")
        assert order.done is not None
        assert order.done.text == f"the run stands still; child run {CHILD} was told"
        assert (order.done.paused, run.loop.paused) == (True, True)
        assert run.told == [order.command]
        assert run.record("Paused").about["child"] == CHILD
        assert run.shown == "paused"
        begun = len(run.performed)
        await child_ends(run)
        assert len(run.performed) == begun, "a run that is paused begins nothing"
        await run.command("resume")
        assert run.exit.ok


async def test_a_resume_is_obeyed_while_a_child_run_is_at_work_which_is_told() -> None:
    async with with_a_child(calls("FINAL", 1), ran()) as run:
        await run.command("pause")
        order = await run.command("resume")
        assert order.done is not None
        assert order.done.text == f"the run goes on; child run {CHILD} was told"
        assert [command.command for command in run.told] == ["pause", "resume"]
        await child_ends(run)
        assert run.exit.ok
        assert [place for place, _ in run.performed].count("EXECUTING#3:2") == 1


async def test_nobody_is_told_of_a_pause_that_is_refused_or_comes_behind_the_child_run() -> None:
    async with with_a_child() as run:
        assert (await run.command("resume")).refused
        assert run.told == []
        run.child_at_work = ""  # it has ended, and the run has not heard of it
        order = run.order("pause")
        await child_ends(run)
        assert order.done is not None
        assert order.done.text == "the run stands still"
        assert "child" not in run.record("Paused").about


async def test_a_message_comes_before_the_next_model_call_of_the_run_itself() -> None:
    async with with_a_child(ran("1")) as run:
        order = await run.command("steer", text="mind the gap")
        assert order.done is not None
        assert f"behind child run {CHILD}, which does not hear it" in order.done.text
        assert run.told == []
        await child_ends(run)
        effect = run.performed[-1][1]
        assert isinstance(effect, CallModel)
        assert "mind the gap" in str([message.content for message in effect.transcript.messages])
        snapshot = run.loop.stack.first.step.snapshot
        assert rebuild(run.machine, run.records) == (snapshot.state, snapshot.context)


async def test_limits_count_at_the_run_itself_from_the_end_of_its_child_run_on() -> None:
    async with with_a_child(ran("1"), people=People(on_limit="ask")) as run:
        order = await run.command("limits", limits={"model_calls": 1})
        assert order.done is not None
        assert f"child run {CHILD} keeps those that it began with" in order.done.text
        assert run.child() == CHILD
        await child_ends(run)
        assert [request.kind for request in run.open] == ["limit"]


@pytest.mark.parametrize("command", ["abort", "rollback"])
async def test_commands_that_came_before_one_that_stops_the_child_run_are_obeyed_first(command: str) -> None:
    async with with_a_child() as run:
        orders = [run.order("pause"), run.order(command, step=0), run.order("limits", limits={"tokens": 9})]
        await run.settled()
        assert [bool(order.refused) for order in orders] == [False, False, command == "abort"]
        assert run.child() == ""
        assert run.record("ChildStopped").reason == "it was stopped"
        assert run.loop.stack.ledger.used("cost_usd") == 0.25
        moves = ("Paused", "Closed", "RolledBack", "LimitsSet", "RefusedCommand")
        stopped = "Closed" if command == "abort" else "RolledBack"
        last = "RefusedCommand" if command == "abort" else "LimitsSet"
        assert [event for event in run.events if event in moves] == ["Paused", stopped, last]


async def test_a_cancellation_ends_a_run_whose_child_run_was_told_to_stand_still() -> None:
    async with with_a_child() as run:
        await run.command("pause")
        await run.cancel()
        assert (run.exit.reason, run.exit.error) == ("cancelled", "it was stopped")
        assert run.loop.stack.ledger.used("cost_usd") == 0.25


# -- signatures --------------------

KEY = Ed25519PrivateKey.generate()
ABOVE = (("outermost", "first-1"), ("outer", "first-2"))


def signed(command: str, run: str, origin: str, **more: Any) -> Command:
    given = Command.model_validate({"command": command, "by": "ann", "id": "c1", **more})
    return given.model_copy(update={"signature": sign(KEY, signed_content(run, given, origin))})


def childs_desk() -> Desk:
    """The desk of a child run, to which signed commands may be given."""
    people = People(groups={"ops": Group(keys={"ann": public_key(KEY)})}, commands="ops")
    desk = Desk(people, Approvals(), workflow_id="child", origin="first-3", specs={})
    desk.commands.below(ABOVE, ())
    return desk


@pytest.mark.parametrize("command", ["pause", "resume"])
@pytest.mark.parametrize("above", [*ABOVE, ("child", "first-3")])
def test_a_child_run_takes_a_pause_that_was_signed_for_a_run_above_it(
    command: str, above: tuple[str, str]
) -> None:
    assert childs_desk().commands.count(signed(command, *above)) == "ann (verified)"


@pytest.mark.parametrize("above", [("outer", "first-1"), ("outermost", "first-3"), ("other", "first-2")])
def test_a_child_run_takes_no_pause_that_was_signed_for_another_run(above: tuple[str, str]) -> None:
    with pytest.raises(Refused, match="must be signed"):
        childs_desk().commands.count(signed("pause", *above))


@pytest.mark.parametrize(
    "command", [{"command": "abort"}, {"command": "steer", "text": "x"}, {"command": "rollback", "step": 0}]
)
def test_nothing_but_pause_and_resume_may_be_signed_for_a_run_above(command: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="must be signed"):
        childs_desk().commands.count(signed(run="outer", origin="first-2", **command))


def test_what_was_handed_on_counts_once() -> None:
    desk, pause = childs_desk(), signed("pause", "outer", "first-2")
    desk.commands.count(pause)
    assert desk.commands.seen(pause)


def test_a_child_run_takes_no_command_that_the_run_above_had_before_the_child_began() -> None:
    desk = childs_desk()
    desk.commands.below(ABOVE, heard=("c1",))
    with pytest.raises(Refused, match="a signature that is not theirs"):
        desk.commands.count(signed("resume", *ABOVE[0]))
    assert desk.commands.count(signed("resume", *ABOVE[0], id="c2")) == "ann (verified)"
    assert desk.commands.heard == ("c1", "c2"), "nor do those that the child runs"
