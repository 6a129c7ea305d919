"""Commands, one by one: what each does to a run, and what is said of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from activities.contracts import JsonObject, RunMachine
from workflows.api import COUNTERS, MOST
from workflows.kernel.errors import MachineError
from workflows.kernel.log import Record
from workflows.kernel.moves import breach_of, capped, rolled_back, steerable, steered
from workflows.kernel.step import Cause
from workflows.people import Command, CommandDone, DoneCall

if TYPE_CHECKING:
    from workflows.loop import Loop

__all__ = ["Left", "Order", "check", "cuts_off", "obey", "refuse"]

ABORTED = "it was not done: an abort came"
SAID = 500
"""Characters of a refused command's text in the log."""
TITLE = 200
"""Characters of an effect's title in an answer."""
NAMED = 10
"""Limits of a refused command in the log."""


class Left(Exception):
    """A command came: what is being done is left, and taken up again behind it."""


@dataclass(slots=True, eq=False)
class Order:
    """A command in the inbox, and what became of it."""

    command: Command
    by: str
    done: CommandDone | None = None
    refused: str = ""
    why: str = ""
    """Why the run is ended, of an abort that was decided at a request."""
    cut: bool = False
    """A pause at once that did not let what was under way end, though the run was paused already."""
    checked: bool = False
    """A rollback that would be obeyed: it may stop what is under way."""

    @property
    def over(self) -> bool:
        """It was obeyed or refused."""
        return self.done is not None or bool(self.refused)


async def obey(loop: Loop, order: Order) -> None:
    """Do it, or say why not; a refusal changes nothing and is in the log."""
    command = order.command
    try:
        match command.command:
            case "abort":
                order.done = _aborted(loop, order)
            case "pause" | "resume":
                order.done = await _paused(loop, order)
            case "steer":
                order.done = _steered(loop, order)
            case "rollback":
                order.done = await _rolled_back(loop, order)
            case "limits":
                order.done = _limited(loop, order)
    except (ValueError, MachineError) as error:
        refuse(loop, order, str(error))


def cuts_off(loop: Loop, order: Order) -> bool:
    """It does not let the effect under way end."""
    command = order.command
    match command.command:
        case "abort":
            return True
        case "rollback":
            return order.checked or loop.older
        case "pause":
            # A child run is not stopped: it is told, and would begin anew.
            return command.at_once and not isinstance(loop.stack.effect, RunMachine)
        case "steer":
            says = loop.older or bool(command.text.strip())
            return says and steerable(loop.stack, begun=loop.begun)
    return False


async def check(loop: Loop, order: Order) -> None:
    """Would this rollback be obeyed? If not it is refused at once, and what is under way goes on."""
    try:
        await _looked_at(loop, order, _cause("RolledBack", order))
    except (ValueError, MachineError) as error:
        loop.inbox.remove(order)
        refuse(loop, order, str(error))
    else:
        order.checked = True


def refuse(loop: Loop, order: Order, reason: str) -> None:
    """The command is not obeyed; the log says why."""
    order.refused = reason
    loop.desk.commands.refuse(order.command, reason)
    loop.note(_cause("RefusedCommand", _short(order)), error=reason)


def _short(order: Order) -> Order:
    """For the log: what did not count may be sent by anybody, at any length."""
    command = order.command
    cut = {"text": command.text[:SAID], "limits": dict(list(command.limits.items())[:NAMED])}
    return Order(command.model_copy(update=cut), order.by)


def _cause(event: str, order: Order, reason: str | None = None) -> Cause:
    command = order.command
    empty = Command(command=command.command)
    said = {
        k: v
        for k, v in command.model_dump(mode="json").items()
        if v != getattr(empty, k) and k != "signature"
    }
    about: JsonObject = {"command": command.command, **said}
    return Cause(event, by=order.by, reason=command.text if reason is None else reason, about=about)


def _done(loop: Loop, order: Order, text: str, undone: tuple[str, ...] = ()) -> CommandDone:
    snapshot = loop.stack.first.step.snapshot
    return CommandDone(
        command=order.command.command,
        text=text,
        step=snapshot.step,
        branch=snapshot.branch,
        paused=loop.paused,
        undone=undone,
    )


def _aborted(loop: Loop, order: Order) -> CommandDone:
    said = f": {order.command.text}" if order.command.text else ""
    doubt = loop.in_doubt()
    unsafe = f"; nobody knows whether {doubt} took effect" if doubt else ""
    inside = "".join(f"; its child run: {text}" for text in loop.calls.stopped)
    loop.close("aborted", f"{order.why or f'{order.by} ended the run{said}'}{unsafe}{inside}", by=order.by)
    return _done(loop, order, "the run is ended")


async def _paused(loop: Loop, order: Order) -> CommandDone:
    pause = order.command.command == "pause"
    if loop.paused == pause and not order.cut:
        raise ValueError(
            "the run is paused already"
            if pause
            else "the run is not paused; what it asks is decided, such as with `ratchet approve RUN`"
        )
    child = "" if loop.older else await _told(loop, order.command)
    loop.paused = pause
    cause, said = _cause("Paused" if pause else "Resumed", order), ""
    if child:
        cause, said = replace(cause, about={**cause.about, "child": child}), f"; child run {child} was told"
    loop.note(cause)
    if pause and loop.under_way and not child:
        said = f" when what is under way has ended: {loop.under_way[:TITLE]}"
    return _done(loop, order, f"the run {'stands still' if pause else 'goes on'}{said}")


async def _told(loop: Loop, command: Command) -> str:
    """Hand it on to the child run; its workflow id, empty: there is none. Raises ValueError."""
    try:
        return await loop.raced(loop.world.tell_child(command), lambda: False)
    except Left as left:
        raise ValueError("the child run could not be told; send it again") from left


def _steered(loop: Loop, order: Order) -> CommandDone:
    if not order.command.text.strip():
        raise ValueError("a message to the model is expected as `text`, it is blank")
    now, place = loop.world.now(), loop.stack.top.place
    cause = _cause("Steered", order)
    begun, text = loop.begun, order.command.text
    loop.keep(steered(loop.stack, text, loop.nesting, cause=cause, now=now, begun=begun))
    if loop.stack.top.place != place:  # the call at hand is asked anew
        loop.leave("a message from a person has changed the call that it was about")
    child = loop.world.child()
    behind = f" of this run, behind child run {child}, which does not hear it" if child else ""
    return _done(loop, order, f"the message comes before the next model call{behind}")


async def _looked_at(loop: Loop, order: Order, cause: Cause) -> tuple[int, Sequence[Record]]:
    """The step to go back to and the whole log. Raises ValueError or MachineError when it cannot be done."""
    step = order.command.step
    if step is None:
        raise ValueError("a rollback needs a `step`: the one that is to begin again; `steps` lists them")
    records = await _log(loop)
    rolled_back(loop.stack, records, step, loop.nesting, cause=cause, now=loop.world.now())
    return step, records


async def _rolled_back(loop: Loop, order: Order) -> CommandDone:
    undoing = ", undoing what can be undone" if order.command.compensate else ""
    said = f": {order.command.text}" if order.command.text else ""
    cause = _cause("RolledBack", order, f"to step {order.command.step}{undoing}{said}")
    step, records = await _looked_at(loop, order, cause)
    loop.leave(f"the run is rolled back to step {step}")
    undone = await _compensated(loop, step, order.by) if order.command.compensate else ()
    now, begun = loop.world.now(), loop.begun
    loop.keep(rolled_back(loop.stack, records, step, loop.nesting, cause=cause, now=now, begun=begun))
    return _done(loop, order, f"back at the beginning of step {step}", undone)


async def _log(loop: Loop) -> Sequence[Record]:
    """The whole log. Raises ValueError when it cannot be read, or an abort came first."""
    if loop.older:
        return await loop.world.log()
    try:
        return await loop.raced(loop.world.log(), loop.aborting)
    except Left as left:
        raise ValueError(f"{ABORTED} while the log was read") from left


async def _compensated(loop: Loop, step: int, by: str) -> tuple[str, ...]:
    """Undo what can be undone since the step, the newest first; a failure is told, and the next one tried.

    An abort lets no other begin, and stops the one under way unless its tool is `unsafe`: ValueError.
    """
    undone: list[str] = []
    for call in reversed(loop.calls.since(step)):
        if not call.undoable or call.undone is not None:
            continue
        if loop.world.cancelling():
            raise asyncio.CancelledError
        if loop.aborting() and not loop.older:
            raise ValueError(f"{ABORTED} before {call.tool} at {call.place} was undone")
        undone.append(await _undone(loop, call, by))
    return tuple(undone)


async def _undone(loop: Loop, call: DoneCall, by: str) -> str:
    """Undo a call; what came of it, which is in the log."""
    name, undoing = f"{call.tool} at {call.place}", loop.world.compensate(call)
    try:
        stops = loop.aborting if call.effect != "unsafe" else lambda: False
        done = await (undoing if loop.older else loop.raced(undoing, stops))
    except (Left, asyncio.CancelledError) as stopped:
        loop.note(Cause("Compensated", by=by, reason=f"{name}: nobody knows whether it is undone"))
        if isinstance(stopped, asyncio.CancelledError):
            raise
        raise ValueError(f"{ABORTED} while {name} was being undone") from stopped
    text = f"{'undone' if done.ok else 'not undone'}: {done.text}"
    if done.ok:
        loop.calls.undone(call, text)
    loop.note(Cause("Compensated", by=by, reason=f"{name}: {text}"))
    return f"{name}: {text}"


def _withdraw_limits(loop: Loop) -> None:
    """What is asked about limits is asked anew, with those of now; what was done of the effect stays done."""
    if not any(request.kind == "limit" for request in loop.desk.open):
        return
    if loop.older:
        loop.leave("the limits were changed")
    loop.desk.withdraw(loop.world.now(), "the limits were changed", kind="limit")
    loop.tell()


def _limited(loop: Loop, order: Order) -> CommandDone:
    limits = order.command.limits
    if not limits:
        raise ValueError('no limit is named; expected `limits` such as {"model_calls": 100}, null for none')
    for name, cap in limits.items():
        if name not in COUNTERS:
            raise ValueError(f"there is no limit {name!r}; there are {', '.join(COUNTERS)}")
        if cap is not None and not 0 <= cap <= MOST:
            raise ValueError(f"{name}: {cap:g} is no limit; expected 0 to {MOST:g}, or null for none")
    before = breach_of(loop.stack)
    loop.keep(capped(loop.stack, limits))
    changed = before is not None and (before.counter in limits or breach_of(loop.stack) != before)
    if changed or loop.older:
        _withdraw_limits(loop)
        loop.calls.topups.append("limits")  # a top-up that was decided before is about another cap
    told = ", ".join(
        f"{name} {'none' if cap is None else f'{cap:g}'}" for name, cap in sorted(limits.items())
    )
    loop.note(_cause("LimitsSet", order, told))
    child = loop.world.child()
    kept = f"; child run {child} keeps those that it began with" if child else ""
    return _done(loop, order, f"limits now: {told}{kept}")
