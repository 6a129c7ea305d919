"""The loop of a run with people in command: perform an effect, give the answer back, obey in between. Pure:
what the world does comes in through `World`, so that a run without Temporal is driven by the same code.

The order of things is fixed. Commands are obeyed one by one as they came, before anything else is done;
decisions count at once, the first that is valid. What waits for people, or is under way, is left when a
command comes that concerns it, and taken up again behind it: a call that has ended is never made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from activities.contracts import CallModels, Effect, JsonObject, MachineEnded
from workflows.gate import words
from workflows.gate.calls import Calls
from workflows.gate.desk import Desk
from workflows.gate.effects import take
from workflows.gate.orders import Left, Order, check, cuts_off, obey, refuse
from workflows.kernel.errors import MachineError, name_of
from workflows.kernel.ledger import spent_by
from workflows.kernel.stack import Nesting, Stack, charged, closed, noted, unspent
from workflows.kernel.step import Cause
from workflows.people import Command, Decided, Decision, People, Request
from workflows.where import Where
from workflows.world import World

__all__ = ["Loop"]

T = TypeVar("T")
SAID = 500
"""Characters of a call's output in the log, where no machine was told of it."""
MACHINES_OWN = {"question", "escalation"}
"""Kinds of request whose `abort` is an answer to the machine that asked."""
BESIDE = {"pause", "resume", "limits"}
"""Commands that are obeyed while an effect is under way."""
TOO_LATE = "the run is over"
"""Why a command is not obeyed that the run did not come to any more; the log has it, too."""


class Loop:
    """One run from its first effect to its end. Raises MachineError when its machine breaks a rule."""

    def __init__(self, world: World, stack: Stack, nesting: Nesting, desk: Desk, people: People) -> None:
        self.world, self.nesting, self.desk, self.people = world, nesting, desk, people
        self.stack = stack
        self.older = False
        """It began when commands were looked at only when they were obeyed: it goes on as it began."""
        desk.commands.below(world.above(), world.heard_above())
        self.inbox: list[Order] = []
        self.paused = False
        self.stood = -1
        """So many steps were done when the run stood still last: once per number (R-000-13)."""
        self.calls = Calls()
        self._doing = ""
        """Place of the effect that was begun last."""
        self.under_way = ""
        """Title of the effect that is being performed."""

    # -- what it is carried on with --------------------

    def dump(self) -> JsonObject:
        """All that `load` needs in another run of the chain."""
        calls = self.calls.model_dump(mode="json")
        desk = self.desk.dump()
        stands: JsonObject = {"paused": self.paused, "stood": self.stood, "doing": self._doing}
        return {**stands, "desk": desk, "calls": calls}

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what a run before this one knew; the desk is loaded by whoever makes it."""
        self.paused, self.stood = bool(values.get("paused")), int(values.get("stood", -1))
        self._doing = str(values.get("doing", ""))
        self.calls = Calls.model_validate(values.get("calls") or {})

    # -- the loop --------------------

    async def run(self) -> None:
        """Go on until the run is over; a cancellation of the run ends it where it is."""
        try:
            await self._to_the_end()
        except MachineError:
            self._leave_nothing_open()
            raise
        for order in self.inbox:
            refuse(self, order, TOO_LATE)
        self._leave_nothing_open()

    def _leave_nothing_open(self) -> None:
        """Whatever waits for the run waits no longer, and nobody is shown that it waits."""
        for order in self.inbox:
            order.refused = order.refused or TOO_LATE
        self.paused = False
        self.desk.withdraw(self.world.now(), "the run is over")
        self.world.waits(self)

    async def _to_the_end(self) -> None:
        try:
            while self.stack.effect is not None:
                await self._go_on()
        except asyncio.CancelledError:
            self.cancelled(self.in_doubt())

    async def _go_on(self) -> None:
        self.tell()
        if self.inbox:
            await self._obey_next()
            return
        await self.world.between()
        if self.world.cancelling():
            raise asyncio.CancelledError
        try:
            if self.inbox:
                return
            if self.paused:
                await self.until(lambda: False, "paused")
            effect = self.stack.effect
            if effect is not None:
                await take(self, effect)
        except Left:
            return

    async def _obey_next(self) -> None:
        order = self.inbox.pop(0)
        try:
            await obey(self, order)
        finally:
            if not order.over:  # it was cut short, and is refused when the run is over
                self.inbox.insert(0, order)

    # -- what is done with it --------------------

    def hear(self, decision: Decision) -> Decided:
        """Count a decision; raises Refused. An abort ends the run whatever else it waits for, also where it
        is paused; of a machine's own question it is the answer."""
        asked = any(request.id == decision.request for request in self.desk.open)
        decided = self.desk.decide(decision, self.world.now())
        self.tell()
        ends = asked and decided.outcome == "aborted" and decided.kind not in MACHINES_OWN
        if ends and (self.paused or not self.older):
            request = self.desk.get(decided.request)
            order = Order(Command(command="abort"), words.who(request), why=words.aborted(request))
            self.inbox.insert(0, order)
        return decided

    def keep(self, stack: Stack) -> None:
        """Take a move over."""
        self.stack = stack
        self.world.keep(stack)

    def note(self, cause: Cause, error: str | None = None) -> None:
        """Write into the log what changes nothing."""
        self.keep(noted(self.stack, cause, now=self.world.now(), error=error))

    def tell(self) -> None:
        """What happened at the desk goes into the log and to those who want to be notified."""
        told, self.desk.told = self.desk.told, []
        for one in told:
            self.note(Cause(one.event, by=one.by, reason=words.told(one), about=one.about))
            if one.moment is not None and one.moment in self.people.notify:
                self.world.notify(one.moment, one.request)

    def close(self, reason: str, error: str, by: str = "person") -> None:
        """End the run where it is; open requests are withdrawn."""
        self.leave(f"the run ended: {reason}")
        stack = self.stack if self.begun else unspent(self.stack)
        self.keep(closed(stack, reason, now=self.world.now(), error=error, by=by))

    @property
    def begun(self) -> bool:
        """The effect at hand was begun, so that somebody may have to pay for it."""
        return self._doing == self.stack.top.place

    def leave(self, why: str) -> None:
        """The effect at hand is left for good: what was asked is withdrawn, what was done is in the log."""
        self.desk.withdraw(self.world.now(), why)
        self.tell()
        for name, result in self.calls.made():
            self.note(
                Cause("CallMade", by="kernel", reason=f"{result.tool} at {name}: {result.output[:SAID]}")
            )
            self.stack = charged(self.stack, {"cost_usd": result.cost_usd} if result.cost_usd else {})
        for reply in self.calls.replies.values():
            self.stack = charged(self.stack, spent_by(reply))
        self.calls.begin_anew()

    def in_doubt(self) -> str:
        """Calls of which nobody knows whether they took effect, in words; empty: none."""
        unknown = [f"{r.tool} at {n}" for n, r in self.calls.settled.items() if r.error == "unknown_outcome"]
        return ", ".join(one for one in [self.world.in_doubt(), *unknown] if one)

    def cancelled(self, unsafe: str, inside: str | None = None) -> None:
        """Cancelled through Temporal; a call that was interrupted is named, also one of a child run."""
        text = inside or "the run was cancelled by a request to Temporal"
        text += f"; nobody knows whether {unsafe} took effect" if unsafe else ""
        self.close("cancelled", text)

    # -- waiting --------------------

    async def until(self, condition: Callable[[], bool], why: str) -> None:
        """Wait for it; deadlines are kept meanwhile. Leaves when a command comes."""
        while not condition():
            if self.world.cancelling():
                raise asyncio.CancelledError
            if self.inbox or self.world.full():
                raise Left
            moment = self.desk.next_moment()
            left = None if moment is None else max(moment - self.world.now(), 0)
            self.world.waits(self)
            if left != 0:
                await self.world.until(
                    lambda: condition() or bool(self.inbox) or self.world.full(), left, why
                )
            self.desk.due(self.world.now())
            self.tell()

    async def ask(self, kind: Any, place: str, **what: Any) -> Request | None:
        """A request, once it is closed; None when the run is unattended."""
        if self.people.unattended:
            return None
        request = self.open(kind, place, **what)
        await self.until(lambda: self.desk.get(request.id).outcome != "open", f"{kind} {request.id}")
        return self.desk.get(request.id)

    def open(self, kind: Any, place: str, **what: Any) -> Request:
        """Put a request to people, or find it where it was put before."""
        top = self.stack.top
        request = self.desk.ask(
            kind,
            place,
            machine=top.machine.name,
            state=name_of(top.step.snapshot.state),
            step=self.stack.first.step.snapshot.step,
            now=self.world.now(),
            **what,
        )
        self.tell()
        return request

    def ended_by(self, request: Request) -> bool:
        """End the run if that is what was decided, or what its deadline says; raises Left for an abort that
        waits in the inbox to be obeyed."""
        if request.outcome == "aborted" and request.settled is not None:
            if self.aborting() and not self.older:
                raise Left
            self.close("aborted", words.aborted(request), by=words.who(request))
        elif request.outcome == "expired" and request.at_deadline == "abort":
            self.close("expired", words.expired(request), by="deadline")
        else:
            return False
        return True

    # -- performing --------------------

    async def race(self, effect: Effect, where: Where) -> BaseModel:
        """Do it, unless a command comes that stops it; a call that must not be cut off is let end."""
        self.stand()
        if self.desk.open:  # what was asked at a call that is made no more
            self.desk.withdraw(self.world.now(), "the run has gone on without it")
            self.tell()
        self.world.waits(self)
        self._doing = self.stack.top.place
        settled: dict[str, Any] = self.calls.settled
        if isinstance(effect, CallModels):
            settled = {} if self.older else self.calls.replies
        self.under_way = effect.title
        try:
            answer = await self.raced(self.world.perform(effect, where, settled))
        finally:
            self.under_way = ""
        self.calls.inherit(self.world.child_calls(), self.stack.first.step.snapshot)
        if not isinstance(answer, MachineEnded) or answer.exit_reason != "cancelled":
            return answer
        stopped = bool(self.inbox) if self.older else self._stopping()
        if stopped and not self.world.cancelling():
            # A child run that is stopped answers: what it spent is spent, and the command comes first.
            self.stack = charged(self.stack, spent_by(answer))
            self.calls.stopped.append(answer.error or "")
            self.note(Cause("ChildStopped", by="kernel", reason=answer.error or ""))
            raise Left
        return answer

    def stand(self) -> None:
        """Begin nothing in a run that is paused: raises Left."""
        if self.paused and not self.older:
            raise Left

    async def raced(self, doing: Coroutine[Any, Any, T], stops: Callable[[], bool] | None = None) -> T:
        """The outcome of what is being done; raises Left when a command came that does not let it end:
        `stops` says whether one has, if not every command that concerns the effect at hand is one."""
        task = asyncio.ensure_future(doing)
        try:
            if stops is not None:
                await asyncio.sleep(0)  # what needs no waiting is not stopped by what came before it
                await self._watch(task, stops)
            else:
                await self._watch(task, self._stopping, self._beside)
                if not task.done() and self.world.stop_soon():
                    await self._watch(task, self.aborting)
        except asyncio.CancelledError:
            pass
        except Exception:  # nothing wider: a run that is put out of memory must not wait for anything
            await self._stopped(task)
            raise
        if not task.done() and stops is None:
            self._cut_by_a_pause()
        await self._stopped(task)
        if task.cancelled():
            if self.world.cancelling():
                raise asyncio.CancelledError
            raise Left
        return task.result()

    async def _stopped(self, task: asyncio.Future[Any]) -> None:
        """Cancel it until it has ended."""
        while not task.done():
            task.cancel()
            try:
                await self.world.ended(task)
            except asyncio.CancelledError:
                continue

    def _cut_by_a_pause(self) -> None:
        """What a pause let go on is stopped by a pause at once: that one is no repeat."""
        for order in self.inbox if not self.older else ():
            if order.command.command == "pause" and order.command.at_once:
                order.cut = True
                return

    async def _watch(
        self,
        task: asyncio.Future[Any],
        stops: Callable[[], bool],
        beside: Callable[[], Order | None] = lambda: None,
    ) -> None:
        """Wait until it has ended or is to be stopped; orders that `beside` gives are seen to meanwhile."""
        while not (task.done() or stops()):
            if self.world.cancelling():
                raise asyncio.CancelledError
            if (order := beside()) is not None:
                await self._see_to(order)
                self.world.waits(self)
            else:
                await self.world.until(lambda: task.done() or stops() or beside() is not None, None, "")

    def _beside(self) -> Order | None:
        """An order to be seen to while the effect at hand goes on: a rollback, which may be refused and then
        stops nothing; what changes nothing of the effect; and any while a child run is at work, for hours
        perhaps."""
        if self.older or not self.inbox:
            return None
        for order in self.inbox:
            if order.command.command == "rollback" and not order.checked:
                return order
        first = self.inbox[0]
        return first if self.world.child() or first.command.command in BESIDE else None

    async def _see_to(self, order: Order) -> None:
        if order.command.command == "rollback":
            await check(self, order)
        else:
            await self._obey_next()

    def aborting(self) -> bool:
        """An abort came."""
        return any(order.command.command == "abort" for order in self.inbox)

    def _stopping(self) -> bool:
        """A command came that does not let the effect under way end."""
        return any(cuts_off(self, order) for order in self.inbox)
