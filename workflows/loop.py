"""The loop of a run with people in command: perform an effect, give the answer back, obey in between. Pure:
what the world does comes in through `World`, so that a run without Temporal is driven by the same code.

The order of things is fixed. Commands are obeyed one by one as they came, before anything else is done;
decisions count at once, the first that is valid. What waits for people, or is under way, is left when a
command comes that concerns it, and taken up again behind it: a call that has ended is never made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from activities.contracts import (
    AskPerson,
    CallModel,
    CallTools,
    Effect,
    EffectFailed,
    JsonObject,
    MachineEnded,
    PersonDecided,
    ToolRun,
    ToolsReturned,
)
from workflows.gate import words
from workflows.gate.calls import Calls
from workflows.gate.desk import Desk
from workflows.gate.orders import obey
from workflows.gate.standing import steps_done
from workflows.kernel.errors import name_of
from workflows.kernel.hold import Hold
from workflows.kernel.ledger import spent_by
from workflows.kernel.moves import breach_of, entered, refused_by_limit, steerable, topped_up
from workflows.kernel.stack import Nesting, Stack, answered, charged, closed, noted
from workflows.kernel.step import Cause
from workflows.people import Command, CommandDone, People, Request
from workflows.where import Where, bounded
from workflows.world import World

__all__ = ["Loop", "Order"]

NOBODY = "no person can be asked"


class _Left(Exception):
    """A command came: what is being done is left, and taken up again behind it."""


@dataclass(slots=True, eq=False)
class Order:
    """A command in the inbox, and what became of it."""

    command: Command
    by: str
    done: CommandDone | None = None
    refused: str = ""

    @property
    def over(self) -> bool:
        """It was obeyed or refused."""
        return self.done is not None or bool(self.refused)


class Loop:
    """One run from its first effect to its end. Raises MachineError when its machine breaks a rule."""

    def __init__(self, world: World, stack: Stack, nesting: Nesting, desk: Desk, people: People) -> None:
        self.world, self.nesting, self.desk, self.people = world, nesting, desk, people
        self.stack = stack
        self.inbox: list[Order] = []
        self.paused = False
        self.stood = -1
        """So many steps were done when the run stood still last: once per number (R-000-13)."""
        self.calls = Calls()

    # -- what it is carried on with --------------------

    def dump(self) -> JsonObject:
        """All that `load` needs in another run of the chain."""
        calls = self.calls.model_dump(mode="json")
        desk = self.desk.dump()
        return {"paused": self.paused, "stood": self.stood, "desk": desk, "calls": calls}

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what a run before this one knew; the desk is loaded by whoever makes it."""
        self.paused, self.stood = bool(values.get("paused")), int(values.get("stood", -1))
        self.calls = Calls.model_validate(values.get("calls") or {})

    # -- the loop --------------------

    async def run(self) -> None:
        """Go on until the run is over; a cancellation of the run ends it where it is."""
        try:
            while self.stack.effect is not None:
                await self._go_on()
        except asyncio.CancelledError:
            self.cancelled(self.world.in_doubt())
        finally:
            self.paused = False
            self.world.waits(self)
            for order in self.inbox:
                order.refused = order.refused or "the run is over"

    async def _go_on(self) -> None:
        self.tell()
        if self.inbox:
            await obey(self, self.inbox[0])
            self.inbox.pop(0)
            return
        await self.world.between()
        if self.world.cancelling():
            raise asyncio.CancelledError
        try:
            if self.paused:
                await self.until(lambda: False, "paused")
            effect = self.stack.effect
            if effect is not None:
                await self._take(effect)
        except _Left:
            return

    async def _take(self, effect: Effect) -> None:
        """Whatever the effect asks of people first, then the effect itself."""
        if isinstance(effect, Hold):
            await self._stand()
        elif isinstance(effect, AskPerson):
            await self._question(effect)
        elif (breach := breach_of(self.stack)) is not None:
            await self._limit(str(breach), breach.counter, breach.cap)
        else:
            await self._perform(effect)

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
            self.note(Cause(one.event, by=one.by, reason=one.reason, about=one.about))
            if one.moment is not None and one.moment in self.people.notify:
                self.world.notify(one.moment, one.request)

    def close(self, reason: str, error: str, by: str = "person") -> None:
        """End the run where it is; open requests are withdrawn."""
        self.desk.withdraw(self.world.now(), f"the run ended: {reason}")
        self.tell()
        self.keep(closed(self.stack, reason, now=self.world.now(), error=error, by=by))

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
            if self.inbox:
                raise _Left
            moment = self.desk.next_moment()
            left = None if moment is None else max(moment - self.world.now(), 0)
            self.world.waits(self)
            if left != 0:
                await self.world.until(lambda: condition() or bool(self.inbox), left, why)
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
        """End the run if that is what was decided, or what its deadline says."""
        if request.outcome == "aborted" and request.settled is not None:
            self.close("aborted", words.aborted(request), by=words.who(request))
        elif request.outcome == "expired" and request.at_deadline == "abort":
            self.close("expired", words.expired(request), by="deadline")
        else:
            return False
        return True

    # -- what a run asks by itself --------------------

    async def _stand(self) -> None:
        """The run stands still before a step or a state."""
        first = self.stack.first
        snapshot, done = first.step.snapshot, steps_done(first.machine, first.step.snapshot)
        by_name = name_of(snapshot.state) in self.people.interrupt_states
        if done == self.stood and not by_name:
            self.keep(entered(self.stack, self.nesting, now=self.world.now()))
            return
        place = f"{bounded(self.stack.top.place)}?"
        text = words.interrupt(name_of(snapshot.state), snapshot.step)
        request = await self.ask("interrupt", place, text=text, options=("resume", "abort"))
        if request is not None:
            if self.ended_by(request):
                return
            if request.outcome == "expired" and request.at_deadline == "reject":
                self.close("expired", words.expired(request), by="deadline")
                return
            if request.settled is not None and request.settled.text:
                said = Command(command="steer", text=request.settled.text)
                self.inbox.insert(0, Order(said, words.who(request)))
        self.stood = done
        self.keep(entered(self.stack, self.nesting, now=self.world.now()))

    async def _question(self, effect: AskPerson) -> None:
        """The machine asks; what is decided is its answer."""
        place = bounded(self.stack.top.place)
        request = await self.ask(effect.about, place, text=effect.text, options=effect.options)
        if request is not None and request.outcome == "expired" and self.ended_by(request):
            return
        answer = PersonDecided(decision="unavailable", text=NOBODY) if request is None else _decided(request)
        self._answered(answer)

    async def _limit(self, breach: str, counter: str, cap: float) -> None:
        """The next call would pass a limit: more, the end that the limit stands for, or stop."""
        place = f"{bounded(self.stack.top.place)}!{counter}"
        asked: JsonObject = {"counter": counter, "cap": cap}
        request = await self.ask(
            "limit", place, text=words.limit(breach), arguments=asked, options=("topup", "finish", "abort")
        )
        if request is not None and self.ended_by(request):
            return
        now, found = self.world.now(), breach_of(self.stack)
        if request is not None and request.outcome == "topped_up" and request.settled is not None:
            self.keep(topped_up(self.stack, request.settled.amounts))
        elif found is not None:
            self.calls.begin_anew()
            self.keep(refused_by_limit(self.stack, found, self.nesting, now=now))

    # -- performing --------------------

    async def _perform(self, effect: Effect) -> None:
        top, depth = self.stack.top, self.nesting.depth + len(self.stack.frames)
        where = Where(bounded(top.place), top.step.snapshot.branch, depth, top.step.ledger, top.tools)
        if isinstance(effect, CallTools):
            answer: BaseModel | None = await self._tools(effect, where)
        else:
            answer = self.calls.failures[-1] if self.calls.failures else await self._race(effect, where)
            if isinstance(effect, CallModel) and isinstance(answer, EffectFailed):
                answer = await self._trouble(effect, answer, where)
        if answer is None:
            return
        if self.world.cancelling() and isinstance(answer, MachineEnded) and answer.exit_reason == "cancelled":
            self.stack = charged(self.stack, spent_by(answer))
            self.cancelled("", answer.error)
            return
        self._answered(answer)
        if self.world.cancelling() and self.stack.exit is None:
            self.cancelled("")

    def _answered(self, answer: BaseModel) -> None:
        self.calls.begin_anew()
        self.keep(answered(self.stack, answer, self.nesting, now=self.world.now()))

    async def _tools(self, effect: CallTools, where: Where) -> ToolsReturned | None:
        """Calls that ask wait for people; then all are made; then those of unknown outcome are cleared up."""
        names = where.calls(effect)
        if not await self._approved(effect, names):
            return None
        made = self.calls.edited(effect, names)
        while True:
            try:
                answer = await self._race(made, where)
            finally:
                step = self.stack.first.step.snapshot.step
                self.calls.note(made, names, where, step, self.world)
            if not isinstance(answer, ToolsReturned):
                raise TypeError(f"tools were called, {type(answer).__name__} came back")
            unknown = next((n for n, r in enumerate(answer.results) if r.error == "unknown_outcome"), None)
            if unknown is None or not await self._cleared(made.runs[unknown], where, names[unknown]):
                return None if self.stack.exit else self.calls.told(answer, names)

    async def _approved(self, effect: CallTools, names: tuple[str, ...]) -> bool:
        """Ask for the calls that need it, all at once; False when the run has ended by it."""
        spent = self.stack.ledger.used("cost_usd")
        for run, name in zip(effect.runs, names, strict=True):
            if name in self.calls.settled or name in self.calls.asked or run.tool not in self.stack.top.tools:
                continue
            asking = self.desk.asks(run, spent_usd=spent)
            if asking is None:
                self._let_pass(run, name, spent)
                continue
            if self.people.unattended:
                self.calls.settled[name] = words.unattended(run)
                continue
            request = self.open(
                "approval", name, text=words.approval(run), tool=run.tool, arguments=run.arguments,
                options=("approve", "reject", "edit", "abort"), asking=asking,
            )  # fmt: skip
            self.calls.asked[name] = request.id
        asked = [(name, self.calls.asked[name]) for name in names if name in self.calls.asked]
        await self.until(lambda: all(self.desk.get(r).outcome != "open" for _, r in asked), "approval")
        for run, name in zip(effect.runs, names, strict=True):
            if name in self.calls.asked:
                request = self.desk.get(self.calls.asked[name])
                if self.ended_by(request):
                    return False
                self.calls.decided(run, name, request)
        return True

    def _let_pass(self, run: ToolRun, name: str, spent: float) -> None:
        """The log says who approved a call beforehand."""
        by = self.desk.remembered_by(run, spent_usd=spent)
        if by and name not in self.calls.passed:
            self.calls.passed.append(name)
            reason = f"{run.title} was approved beforehand, by {', '.join(by)}"
            self.note(Cause("ApprovedBefore", by="kernel", reason=reason))

    async def _cleared(self, run: ToolRun, where: Where, name: str) -> bool:
        """Find out what became of a call, so that it may be made, or taken as made; False: nobody knows."""
        if self.world.cancelling():
            return False
        if name not in self.calls.reconciled:
            self.calls.reconciled.append(name)
            found = await self.world.reconcile(run, where, name)
            if found is not None:
                reason = f"{run.title}: {found.outcome}{f', {found.text}' if found.text else ''}"
                self.note(Cause("Reconciled", by="kernel", reason=reason))
                if self.calls.found(name, found):
                    return True
        what: JsonObject = {"arguments": run.arguments, "time": self.calls.tries.get(name, 0)}
        text = words.outcome(self.calls.settled[name])
        request = await self.ask(
            "outcome", name, text=text, tool=run.tool, arguments=what, options=("answer", "retry", "abort")
        )
        if request is None or self.ended_by(request):
            return False
        return self.calls.cleared(run, name, request)

    async def _trouble(self, effect: Effect, failure: EffectFailed, where: Where) -> BaseModel | None:
        """A model refuses for good: mend it and try again, or stop. None: the run is over."""
        answer: BaseModel = failure
        while (
            isinstance(answer, EffectFailed) and answer.error == "fatal" and self.people.on_trouble == "ask"
        ):
            if self.world.cancelling():
                return answer
            if not self.calls.failures:
                self.calls.failures.append(answer)
            what: JsonObject = {"time": self.calls.troubles}
            place, text = where.activity_id, words.trouble(answer)
            request = await self.ask("trouble", place, text=text, arguments=what, options=("retry", "abort"))
            if request is None:
                return answer
            if self.ended_by(request):
                return None
            if request.outcome != "retried" and request.at_deadline != "approve":
                return answer
            self.calls.retried()
            answer = await self._race(effect, where)
        return answer

    async def _race(self, effect: Effect, where: Where) -> BaseModel:
        """Do it, unless a command comes that stops it; a call that must not be cut off is let end."""
        if self.desk.open:  # what was asked at a call that is made no more
            self.desk.withdraw(self.world.now(), "the run has gone on without it")
            self.tell()
        self.world.waits(self)
        task = asyncio.ensure_future(self.world.perform(effect, where, self.calls.settled))
        try:
            await self.world.until(lambda: task.done() or self._stopping(), None, "")
            if not task.done() and self.world.stop_soon():
                await self.world.until(lambda: task.done() or self._aborting(), None, "")
        except asyncio.CancelledError:
            pass
        while not task.done():
            task.cancel()
            try:
                await self.world.ended(task)
            except asyncio.CancelledError:
                continue
        if task.cancelled():
            if self.world.cancelling():
                raise asyncio.CancelledError
            raise _Left
        return task.result()

    def _aborting(self) -> bool:
        return any(order.command.command == "abort" for order in self.inbox)

    def _stopping(self) -> bool:
        """A command came that does not let the effect under way end."""
        for order in self.inbox:
            command = order.command
            if command.command in {"abort", "rollback"} or (command.command == "pause" and command.at_once):
                return True
            if command.command == "steer" and steerable(self.stack):
                return True
        return False


def _decided(request: Request) -> PersonDecided:
    """What a request has come to, as the machine that asked understands it."""
    by, vote = words.who(request), request.settled
    if vote is None:
        going_on = request.at_deadline == "approve"
        text = words.expired(request)
        return PersonDecided(decision="resume" if going_on else "unavailable", text=text, by="deadline")
    verb: Any = vote.verb if vote.verb in {"resume", "abort", "answer"} else "answer"
    return PersonDecided(decision=verb, text=vote.text, by=by)
