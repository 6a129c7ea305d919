"""What people say to a run, by signal and by update: into one inbox, whoever it comes from.

A signal is never fatal, and each is in the log: what it did, why it is refused or cannot be used, or that it
came before. An update is answered: it is refused with the reason, before it costs the history anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from activities.contracts import JsonObject
from workflows.gate.orders import Order, refuse
from workflows.gate.ticket import Refused
from workflows.intake import faults
from workflows.kernel.step import Cause
from workflows.loop import Loop
from workflows.people import Command, CommandDone, Decided, Decision

__all__ = ["Messages"]

M = TypeVar("M", bound=BaseModel)
FACTS = {"request", "digest", "decision", "id", "by"}
"""What the log says of a decision that does not count, or came before; its arguments may be long."""
SAID = 500
"""Characters of its comment."""
AT_ONCE = 500
"""Signals that are heard in one workflow task. Temporal takes a worker that needs 2 s for one as stuck, and
gives the same task out again, for ever; ten thousand signals may have come while no worker ran."""
SOON = 0.001
"""Seconds until the next ones are heard."""
KEPT = 20
"""Names of unusable signals that `status` shows, also when the run goes on as new."""


class Messages:
    """Signals and updates of one run; those that come before it has begun wait."""

    def __init__(self) -> None:
        self.loop: Loop | None = None
        self.unusable: list[str] = []
        self._commanded = True
        self._begun = False
        self._over = False
        self._waiting: deque[tuple[str, Sequence[RawValue]]] = deque()
        self._later: asyncio.Task[None] | None = None
        self._heard = (-1, 0)
        """The workflow task at hand, by the history's length, and how many signals were heard in it."""
        self._orders: dict[str, Order] = {}

    def begin(self, loop: Loop, *, commanded: bool) -> None:
        """The run has begun. `commanded` is False for runs from before people could command them."""
        self.loop, self._commanded, self._begun = loop, commanded, True
        self._hear()

    def end(self) -> None:
        """The run is over: whatever comes now is refused."""
        self._over = True

    # -- signals --------------------

    def signal(self, name: str, inputs: Sequence[RawValue]) -> None:
        """A signal of any name with any number of values."""
        self._waiting.append((name, inputs))
        if self._begun and self._later is None:
            self._hear()

    @property
    def busy(self) -> bool:
        """Signals wait that were too many for one workflow task."""
        return bool(self._waiting)

    def _hear(self) -> None:
        """Take signals in the order in which they came, `AT_ONCE` of them; the others soon."""
        length = workflow.info().get_current_history_length()
        count = self._heard[1] if self._heard[0] == length else 0
        while self._waiting and count < AT_ONCE:
            count += 1
            self._signalled(*self._waiting.popleft())
        self._heard = (length, count)
        if self._waiting and self._later is None:
            self._later = asyncio.create_task(self._hear_the_rest())

    async def _hear_the_rest(self) -> None:
        while self._waiting and not self._over:
            await workflow.sleep(SOON)
            self._hear()
        self._later = None

    def _signalled(self, name: str, inputs: Sequence[RawValue]) -> None:
        if self._over or self.loop is None:
            return
        try:
            if not self._commanded:
                raise ValueError("this run began before people could command it")
            if name == "decide":
                self._decided(self.loop, Decision.model_validate(_only(inputs)))
            elif name == "command":
                self._ordered(self.loop, Command.model_validate(_only(inputs)))
            else:
                raise ValueError("no such signal is known to this run; it was ignored")
        except Exception as error:  # noqa: BLE001  # a signal in the history would harm the run for ever
            self._useless(self.loop, name, inputs, error)

    def _decided(self, loop: Loop, decision: Decision) -> None:
        loop.tell()  # so that the log grows by nothing but this decision
        length = loop.stack.top.step.snapshot.seq
        about = decision.model_dump(mode="json", include=FACTS, exclude_defaults=True)
        try:
            loop.hear(decision)
            if loop.stack.top.step.snapshot.seq == length:
                loop.note(_again("RepeatedDecision", decision.by, about))
        except Refused as refused:
            about["text"] = decision.text[:SAID]
            loop.note(Cause("RefusedDecision", by=_claimed(decision.by), about=about), error=str(refused))
        _show(loop)

    def _ordered(self, loop: Loop, command: Command) -> None:
        if loop.desk.commands.seen(command):
            about: JsonObject = {"command": command.command, "id": command.id}
            loop.note(_again("RepeatedCommand", command.by, about))
            return
        try:
            self._order(loop, command)
        except Refused as refused:
            refuse(loop, Order(command, _claimed(command.by)), str(refused))

    def _useless(self, loop: Loop, name: str, inputs: Sequence[RawValue], error: Exception) -> None:
        self.unusable = [*self.unusable, name[:100]][-KEPT:]
        problem = faults(error) if isinstance(error, ValidationError) else str(error)
        reason = f"{name[:100]!r} with {len(inputs)} values"
        loop.note(Cause("UnusableSignal", by="signal", reason=reason), error=problem[:1000])

    # -- updates --------------------

    def check_decision(self, inputs: Sequence[Any]) -> None:
        """Refuse what is not valid now; raises ApplicationError of type `Refused`."""
        decision = _read(Decision, inputs)
        self._check_open()
        if self.loop is not None and self._begun:
            try:
                self.loop.desk.check(decision, self.loop.world.now())
            except Refused as refused:
                raise _refusal(str(refused)) from None

    def check_command(self, inputs: Sequence[Any]) -> None:
        """Refuse what nobody of the group has said; raises ApplicationError of type `Refused`."""
        command = _read(Command, inputs)
        self._check_open()
        if self.loop is not None and self._begun and not self.loop.desk.commands.seen(command):
            try:
                self.loop.desk.commands.check(command)
            except Refused as refused:
                raise _refusal(str(refused)) from None

    def _check_open(self) -> None:
        if self._over:
            raise _refusal("the run is over; nothing can be decided or commanded any more")
        if not self._commanded:
            raise _refusal("this run began before people could command it; it can only be cancelled")

    async def decide(self, inputs: Sequence[Any]) -> Decided:
        """Count a decision; what its request has come to."""
        decision, loop = _read(Decision, inputs), await self._loop()
        try:
            decided = loop.hear(decision)
        except Refused as refused:
            raise _refusal(str(refused)) from None
        _show(loop)
        return decided

    async def command(self, inputs: Sequence[Any]) -> CommandDone:
        """Put a command into the inbox and wait until it is obeyed."""
        command, loop = _read(Command, inputs), await self._loop()
        try:
            order = self._order(loop, command)
        except Refused as refused:
            raise _refusal(str(refused)) from None
        await workflow.wait_condition(lambda: order.over)
        if order.done is None:
            raise _refusal(order.refused)
        return order.done

    def _order(self, loop: Loop, command: Command) -> Order:
        """The command in the inbox; one that came before is the same order. Raises Refused."""
        if loop.desk.commands.seen(command):
            return self._orders.get(command.id) or _before(loop, command)
        order = Order(command, loop.desk.commands.count(command))
        loop.inbox.append(order)
        if command.id:
            self._orders[command.id] = order
        return order

    async def _loop(self) -> Loop:
        await workflow.wait_condition(lambda: self._begun or self._over)
        self._check_open()
        if self.loop is None:
            raise _refusal("the run ended before it began")
        return self.loop


def _show(loop: Loop) -> None:
    """The log and the lists have what a decision has come to, also when the run goes on waiting."""
    loop.tell()
    loop.world.waits(loop)


def _again(event: str, by: str, about: JsonObject) -> Cause:
    return Cause(event, by=_claimed(by), reason="it came before and counts once", about=about)


def _claimed(by: str) -> str:
    return f"{by or 'somebody'} (claimed)"


def _before(loop: Loop, command: Command) -> Order:
    """A command that an earlier run of the chain has obeyed or refused."""
    if (why := loop.desk.commands.refusal(command)) is not None:
        return Order(command, command.by, refused=why)
    done = CommandDone(command=command.command, text="it was obeyed before", paused=loop.paused)
    return Order(command, command.by, done=done)


def _only(inputs: Sequence[Any]) -> Any:
    if len(inputs) != 1:
        raise ValueError(f"one JSON object is expected as input, {len(inputs)} values came")
    value = inputs[0]
    if isinstance(value, RawValue):
        value = workflow.payload_converter().from_payload(value.payload)
    if not isinstance(value, dict):
        raise ValueError(f"one JSON object is expected as input, a value of type {type(value).__name__} came")
    return value


def _read(kind: type[M], inputs: Sequence[Any]) -> M:
    """What an update says; raises ApplicationError of type `Refused`."""
    try:
        return kind.model_validate(_only(inputs))
    except ValidationError as error:
        raise _refusal(f"not a valid {kind.__name__.lower()}: {faults(error)}") from None
    except ValueError as error:
        raise _refusal(str(error)) from None


def _refusal(reason: str) -> ApplicationError:
    """To be raised from None: a cause would be told after it, and pydantic's repeats what was sent."""
    return ApplicationError(reason, type="Refused", non_retryable=True)
