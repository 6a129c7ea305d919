"""Obeying what people order: pause, resume, abort, steer, rollback, limits; also beside what is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from activities.contracts import AskModel, JsonObject, added, cost_of_tools
from workflows.api import limits_problem
from workflows.engine.calls.done import compensation_text
from workflows.engine.calls.effect_calls import EffectCalls
from workflows.engine.calls.run_calls import MAX_LOGGED_CHARS, RunCalls
from workflows.engine.run_state import Preempted, QueuedCommand, RunState
from workflows.engine.waiting import cancel_until_done
from workflows.kernel.errors import MachineError
from workflows.kernel.ledger import Breach, plain_number
from workflows.kernel.log import Record
from workflows.kernel.rollback import rolled_back
from workflows.kernel.snapshot import Suspension
from workflows.kernel.transition import with_caps
from workflows.people import Command, CommandDone, DoneCall

__all__ = ["CommandQueue"]

T = TypeVar("T")

MAX_NAMED_REQUESTS = 5
"""That an answer names."""
MAX_LOGGED_LIMITS = 10
"""Of a refused command."""
HARMLESS = {"pause", "resume", "limits"}
"""Commands that change nothing about an effect under way, and are obeyed beside it."""


class CommandQueue:
    """The commands of one run, in the order in which they came."""

    def __init__(self, run: RunState, calls: RunCalls) -> None:
        self.run, self.calls = run, calls
        self._by_id: dict[str, QueuedCommand] = {}

    # -- what people send --------------------

    def check(self, command: Command) -> None:
        """Raises Refused for a command that would not count."""
        self.run.check_live()
        if not self.run.command_gate.is_repeat(command):
            self.run.command_gate.check(command)

    def put(self, command: Command) -> QueuedCommand:
        """Put a command into the queue; a repeat is the command that came before. Raises Refused."""
        run = self.run
        run.check_live()
        if run.command_gate.is_repeat(command):
            return self._by_id.get(command.id) or self._obeyed_before(command)
        queued = QueuedCommand(command, run.command_gate.accept(command))
        run.queue.append(queued)
        run.host.stop_early_questions()
        if command.id:
            self._by_id[command.id] = queued
        run.host.publish(())
        return queued

    def _obeyed_before(self, command: Command) -> QueuedCommand:
        """A command that an earlier execution of the chain has obeyed or refused."""
        queued = QueuedCommand(command, command.by)
        if self.run.command_gate.was_refused(command):
            queued.refused = "It was refused before; the log says why."
        else:
            self._done(queued, "It was obeyed before.")
        return queued

    # -- obeying, one by one --------------------

    async def obey(self, queued: QueuedCommand) -> None:
        """Obey a command of the queue, or refuse it."""
        queue = self.run.queue
        queue.remove(queued)
        try:
            await self._obey(queued)
        finally:
            if not queued.is_over:  # it was cancelled in the middle, and is refused when the run is over
                queue.insert(0, queued)

    async def _obey(self, queued: QueuedCommand) -> None:
        """Do it, or log why not."""
        if queued.command.command == "abort":
            self._abort(queued)
            return
        try:
            match queued.command.command:
                case "pause" | "resume":
                    await self._pause(queued)
                case "steer":
                    self._steer(queued)
                case "rollback":
                    await self._roll_back(queued)
                case "limits":
                    self._set_limits(queued)
        except (ValueError, MachineError) as error:
            self._refuse(queued, _text(error))

    def refuse_all(self, reason: str) -> None:
        """None of them is obeyed."""
        for queued in self.run.queue:
            self._refuse(queued, reason)

    def _done(self, queued: QueuedCommand, text: str, undone: tuple[str, ...] = ()) -> None:
        s, paused = self.run.suspension.snapshot, self.run.paused
        name = queued.command.command
        queued.done = CommandDone(
            command=name, text=text, step=s.step, branch=s.branch, paused=paused, undone=undone
        )

    def _refuse(self, queued: QueuedCommand, reason: str) -> None:
        queued.refused = reason
        self.run.command_gate.refuse(queued.command)
        self.log_refused(queued.command, queued.by, reason)

    def log_refused(self, command: Command, by: str, reason: str) -> None:
        """Log a command that does not count; anybody may send one of any length, so it is cut."""
        limits = dict(list(command.limits.items())[:MAX_LOGGED_LIMITS])
        cut = command.model_copy(update={"text": command.text[:MAX_LOGGED_CHARS], "limits": limits})
        self.run.log_event("RefusedCommand", by=by, reason=cut.text, about=_about(cut), error=reason)

    # -- beside what is under way --------------------

    async def unless_preempted(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of work for the effect. Raises Preempted when a command that concerns it ends it; other
        commands are obeyed meanwhile."""
        under_way = self.calls.under_way

        async def watch(task: asyncio.Future[T]) -> None:
            self.run.performing = True
            self.run.host.publish(())
            await self._watch(task, self._is_preempted, self._next_beside)
            if not task.done():
                under_way.hold(True)
                if under_way.unsafe:  # only an abort stops those
                    await self._watch(task, self._is_aborting, lambda: None)

        try:
            return await self._outcome(work, watch)
        finally:
            self.run.performing = False
            under_way.waiting.clear()

    async def _unless_aborted(
        self, work: Coroutine[Any, Any, T], what: str, is_stoppable: Callable[[], bool] = lambda: True
    ) -> T:
        """The outcome of work for a command. Raises ValueError when an abort stops it."""

        async def watch(task: asyncio.Future[T]) -> None:
            await asyncio.sleep(0)  # what needs no waiting is not stopped by what came before it
            await self._watch(task, lambda: self._is_aborting() and is_stoppable(), lambda: None)

        try:
            return await self._outcome(work, watch)
        except Preempted:
            raise ValueError(f"An abort came while {what}.") from None

    async def _outcome(
        self, work: Coroutine[Any, Any, T], watch: Callable[[asyncio.Future[T]], Awaitable[None]]
    ) -> T:
        """The outcome of the work. When `watch` returns before its end it is stopped: Preempted."""
        host, task = self.run.host, asyncio.ensure_future(work)

        async def stop() -> None:
            await cancel_until_done(task, lambda: host.wait(task.done, None, ""))

        try:
            await watch(task)
        except asyncio.CancelledError:
            pass
        except Exception:  # nothing wider: an execution that is evicted must not wait for anything
            await stop()
            raise
        if not task.done():
            self.calls.under_way.stop_now()
            self._mark_pause()
        await stop()
        if task.cancelled():
            raise asyncio.CancelledError if host.cancelled() else Preempted
        return task.result()

    async def _watch(
        self,
        task: asyncio.Future[Any],
        stops: Callable[[], bool],
        beside: Callable[[], QueuedCommand | None],
    ) -> None:
        """Wait until it has ended or is to be stopped; commands that `beside` gives are obeyed meanwhile."""
        host = self.run.host
        while not (task.done() or stops()):
            if host.cancelled():
                raise asyncio.CancelledError
            if (queued := beside()) is not None:
                await self._obey_beside(queued)
                host.publish(())
            else:
                await host.wait(lambda: task.done() or stops() or beside() is not None, None, "")

    def _next_beside(self) -> QueuedCommand | None:
        """The command to be obeyed while the effect goes on: one that changes nothing about it, also behind a
        message that waits for tools; any while inner runs are under way; and a rollback, which is checked
        first and may be refused."""
        queue = self.run.queue
        for queued in queue:
            if queued.command.command == "rollback" and not queued.checked:
                return queued
        children = self.calls.under_way.children
        return next((one for one in queue if children or one.command.command in HARMLESS), None)

    async def _obey_beside(self, queued: QueuedCommand) -> None:
        if queued.command.command != "rollback":
            await self.obey(queued)
            return
        try:
            await self._check_rollback(queued)
        except (ValueError, MachineError) as error:
            self.run.queue.remove(queued)
            self._refuse(queued, _text(error))
        else:
            queued.checked = True

    def _is_aborting(self) -> bool:
        return any(queued.command.command == "abort" for queued in self.run.queue)

    def _is_preempted(self) -> bool:
        return any(self._preempts(queued) for queued in self.run.queue)

    def _preempts(self, queued: QueuedCommand) -> bool:
        """It ends the effect under way."""
        command = queued.command
        match command.command:
            case "abort":
                return True
            case "rollback":
                return queued.checked
            case "pause":
                return command.at_once and not self.calls.under_way.children  # those are told
            case "steer":
                return bool(command.text.strip()) and self._is_asking()
        return False

    def _is_asking(self) -> bool:
        """The pending effect is a question that a person's message changes."""
        asked = self.run.suspension.asked
        return isinstance(asked, AskModel) and not asked.beside

    def _mark_pause(self) -> None:
        """In a paused run, a pause `at_once` that ends the effect under way is no repeat."""
        for queued in self.run.queue:
            if queued.command.command == "pause" and queued.command.at_once:
                queued.preempted = True
                return

    # -- each command --------------------

    def _abort(self, queued: QueuedCommand) -> None:
        text = queued.reason or f"{queued.by} ended the run{_colon(queued.command.text)}"
        self.calls.close("aborted", f"{text}{self.calls.unknown_text}", by=queued.by)
        self._done(queued, "The run has ended.")

    async def _pause(self, queued: QueuedCommand) -> None:
        run, under_way = self.run, self.calls.under_way
        pauses = queued.command.command == "pause"
        if run.paused == pauses and not queued.preempted:
            raise ValueError(
                "The run is paused already."
                if pauses
                else "The run is not paused. Decide on its requests, for example with `ratchet approve RUN`."
            )
        under_way.hold(pauses)  # before inner runs are told, which takes a while: none begins meanwhile
        try:
            children = tuple(under_way.children)
            told = [one for one in children if await run.host.tell_child(one, queued.command)]
        except ValueError:
            under_way.hold(run.paused)
            raise
        run.paused = pauses
        about = {**_about(queued.command), **({"children": [*told]} if told else {})}
        event, reason = "Paused" if pauses else "Resumed", queued.command.text
        run.log_event(event, by=queued.by, reason=reason, about=about)
        effect, waits = run.suspension.effect, under_way.waits and not under_way.titles
        if pauses and run.performing and not told and effect and not waits:
            title = under_way.titles or effect.title
            self._done(queued, f"The run pauses once this has ended: {title[:200]}.")
        else:
            after = f" Told its inner runs: {', '.join(told)}." if told else ""
            self._done(queued, f"The run {'is paused' if pauses else 'goes on'}.{after}")

    def _steer(self, queued: QueuedCommand) -> None:
        run, text = self.run, queued.command.text
        if not text.strip():
            raise ValueError("Steering needs a `text`: the message to the model.")
        if run.begun and not run.performing and self._is_asking():
            # The question was begun, and changes: it is another call.
            run.requests.withdraw(run.host.now(), "a person's message has changed the question")
            EffectCalls(self.calls).make_again()
        run.steer(text, by=queued.by, about=_about(queued.command))
        children = ", ".join(self.calls.under_way.children)
        behind = f" of this run; inner runs do not get it: {children}" if children else ""
        first = f"; first people decide {waits}" if (waits := self._waits_text()) else ""
        self._done(queued, f"The next question to the model{behind} brings the message{first}.")

    def _waits_text(self) -> str:
        """What the run asks people now, in short."""
        requests = self.run.requests.open_requests
        more = len(requests) - MAX_NAMED_REQUESTS
        named = [
            f"{one.id} ({one.kind}{f' of {one.tool}' if one.tool else ''})"
            for one in requests[:MAX_NAMED_REQUESTS]
        ]
        return ", ".join([*named, f"{more} more"] if more > 0 else named)

    def _set_limits(self, queued: QueuedCommand) -> None:
        run, limits = self.run, queued.command.limits
        if problem := limits_problem(limits):
            raise ValueError(problem)
        now, suspension = run.host.now(), run.suspension
        if run.performing or (run.begun and suspension.breach is None):
            ledger = suspension.ledger.with_seconds(now - suspension.snapshot.began)
            run.suspension = replace(suspension, ledger=ledger.capped(limits))
            self._meet_caps()
        else:
            run.adopt(with_caps(suspension, limits, now=now))
            if run.begun:
                run.settle()
        run.withdraw_requests("the limits were changed", kind="limit")
        run.limits_changed += 1
        shown = [f"{n} {'none' if cap is None else plain_number(cap)}" for n, cap in sorted(limits.items())]
        run.log_event("LimitsSet", by=queued.by, reason=", ".join(shown), about=_about(queued.command))
        children = ", ".join(self.calls.under_way.children)
        kept = f" Inner runs keep theirs: {children}." if children else ""
        self._done(queued, f"Limits now: {', '.join(shown)}.{''.join(self._reached(limits))}{kept}")

    def _reached(self, limits: Mapping[str, float | None]) -> Iterator[str]:
        """What follows of limits that leave nothing: their person may have meant to give more."""
        ledger, people = self.run.suspension.ledger, self.run.people
        asks = people.on_limit == "ask" and not people.unattended
        for counter, cap in sorted(limits.items()):
            if cap is not None and ledger.used(counter) >= cap:
                spent = Breach(counter=counter, spent=ledger.used(counter), cap=cap)
                follows = "people are asked" if asks else "the run ends"
                call = f"{counter.removesuffix('_calls')} call" if counter.endswith("_calls") else "call"
                yield f" {spent} already; {follows} before its next {call}."

    def _meet_caps(self) -> None:
        """What was begun stays reserved; all else of the effect meets the new caps."""
        run, rest = self.run, self.run.not_begun
        run.settle()
        if run.performing and rest and run.reserve(added(run.begun, rest), self.calls.pending.spent):
            self.calls.under_way.begin_no_more()

    # -- rollback --------------------

    async def _check_rollback(self, queued: QueuedCommand) -> Sequence[Record]:
        """The log, if the run can be rolled back. Raises ValueError or MachineError; changes nothing."""
        if queued.command.step is None:
            raise ValueError("A rollback needs a `step`: the one to begin again; `steps` lists them.")
        records = await self._unless_aborted(self.run.host.log(), "the log was read")
        self._back(queued, records)
        return records

    def _back(self, queued: QueuedCommand, records: Sequence[Record]) -> Suspension:
        """The run as it is after the rollback."""
        run, command = self.run, queued.command
        undoing = ", undoing what can be undone" if command.compensate else ""
        reason = f"to step {command.step}{undoing}{_colon(command.text)}"
        now, about = run.host.now(), _about(command)
        return rolled_back(
            run.suspension, records, command.step or 0, now=now, by=queued.by, reason=reason, about=about
        )

    async def _roll_back(self, queued: QueuedCommand) -> None:
        records, to_step = await self._check_rollback(queued), queued.command.step or 0
        self.calls.abandon_effect(f"the run is rolled back to step {to_step}")
        undone = await self._compensated(to_step, queued.by) if queued.command.compensate else ()
        self.calls.forget_effect()
        back = self._back(queued, records)
        self.run.stuck.reset()
        self.run.adopt(back)
        self.calls.label_summary()
        self._done(queued, f"Back at the beginning of step {to_step}.", undone)

    async def _compensated(self, since: int, by: str) -> tuple[str, ...]:
        """Undo what can be undone since that step, the newest first; a failure is logged.

        An abort lets no other begin, and stops the one under way unless its tool is unsafe: ValueError.
        """
        undone: list[str] = []
        for call in reversed(self.calls.done.since(since)):
            if not call.undoable or call.undone is not None:
                continue
            if self.run.host.cancelled():
                raise asyncio.CancelledError
            name = f"{call.tool} at {call.activity_id}"
            if self._is_aborting():
                raise ValueError(f"An abort came before {name} was undone.")
            text = f"{name}: {await self._compensate(call, name, by)}"
            self.run.log_event("Compensated", by=by, reason=text, about={"undoes": call.activity_id})
            undone.append(text)
        return tuple(undone)

    async def _compensate(self, call: DoneCall, name: str, by: str) -> str:
        """What came of undoing a call. Raises as `_unless_aborted`, once that is logged."""
        calls, under_way = self.calls, self.calls.under_way

        def is_stoppable() -> bool:
            return call.effect != "unsafe" or under_way.waits

        try:
            what = f"{name} was being undone"
            done = await self._unless_aborted(calls.done.compensate(call), what, is_stoppable)
        except (ValueError, asyncio.CancelledError):
            text = "not undone" if under_way.waits else "outcome of undoing it unknown"
            about: JsonObject = {"undoes": call.activity_id}
            self.run.log_event("Compensated", by=by, reason=f"{name}: {text}", about=about)
            raise
        finally:
            under_way.waiting.clear()
        calls.charge_unbilled(cost_of_tools((call.tool, done.cost_usd)))
        return compensation_text(done)


def _text(error: ValueError | MachineError) -> str:
    return error.text if isinstance(error, MachineError) else str(error)


def _colon(text: str) -> str:
    return f": {text}" if text else ""


def _about(command: Command) -> JsonObject:
    """Facts of a command for the log."""
    return command.model_dump(mode="json", exclude={"signature"}, exclude_defaults=True)
