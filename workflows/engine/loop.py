"""The loop of a run: ask people where they must be asked, make the calls, give the machine the answer.

`Drive` moves the run; what it moves, and how it is written down, is its other half: `LiveRun` in
`run_state.py`. The machine moves in the kernel, calls are made in `calls.py`, the world is the `Host`.

The order of things is fixed. Commands are obeyed one by one as they came, before anything else; decisions
count at once. Exceptions: an abort that was decided at a request comes first. Beside an effect under way a
rollback is checked at once, and one that is refused leaves the queue. An abort stops the undoing of calls.
What waits for people or is under way is left when a command preempts it, and taken up again afterwards: a
call that has ended is never made again. A command that is refused changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from activities.contracts import (
    AskModel,
    AskPerson,
    CallTools,
    Effect,
    EffectFailed,
    JsonObject,
    Message,
    ModelReplied,
    PersonDecided,
    ToolCall,
    ToolResult,
    added,
)
from workflows.api import limits_problem
from workflows.engine.calls import OutOfTime, is_out_of_time
from workflows.engine.compaction import Part
from workflows.engine.fallback import ModelChange
from workflows.engine.run_state import LOGGED, LiveRun, Preempted, QueuedCommand
from workflows.gate import texts
from workflows.gate.approvals import RequiredApproval
from workflows.kernel.errors import MachineError
from workflows.kernel.ledger import Breach, plain_number
from workflows.kernel.log import Record, members, tool_calls
from workflows.kernel.machine import Interrupt
from workflows.kernel.rollback import rolled_back
from workflows.kernel.snapshot import Suspension
from workflows.kernel.transition import (
    advance,
    leave_interrupt,
    refuse,
    resume,
    steer,
    with_caps,
    with_credit,
)
from workflows.people import Command, CommandDone, Request
from workflows.task import broken

__all__ = ["Drive"]

T = TypeVar("T")

NAMED = 10
"""Limits of a refused command in the log."""
HARMLESS = {"pause", "resume", "limits"}
"""Commands that change nothing about an effect under way, and are obeyed beside it."""


class Drive(LiveRun):
    """One run, from its first effect to its end."""

    # -- the loop --------------------

    async def run(self) -> None:
        """Go on until the run is over; `result` says how. Raises only what is a fault of Ratchet or the
        host."""
        self.adopt(replace(self.step, records=()))
        try:
            while self.step.effect is not None:
                await self._next_move()
        except asyncio.CancelledError:
            self._cancelled()
        except MachineError as error:
            self.adopt(broken(error))
        self.charge(self.calls.drop_early())
        for queued in self.queue:
            self._refuse(queued, "The run is over.")
        self.paused = False
        self.requests.withdraw(self.host.now(), "the run is over")
        self.log_requests()
        self.host.publish(())

    async def _next_move(self) -> None:
        self.log_requests()
        if self.queue:
            await self._obey_next()
            return
        if self.host.cancelled():
            raise asyncio.CancelledError
        await self.host.between()
        try:
            if self.paused:
                await self.wait_until(lambda: False, "paused")
            if not self.queue:
                await self._take_on()
        except Preempted:
            return

    async def _take_on(self) -> None:
        """Whatever the pending effect asks of people first, then the effect itself."""
        effect = self.step.effect
        if isinstance(effect, Interrupt):
            await self._interrupt(effect)
        elif isinstance(effect, AskPerson):
            if decided := await self._question(effect, self.place):
                self._answer(decided, effect)
        elif self.step.breach is not None:
            await self._limit(self.step.breach)
        elif effect is not None:
            if isinstance(effect, AskModel) and effect.brings_notes and self.stuck.problem:
                await self._unstick(self.stuck.problem)
                if self.step.exit is not None:
                    return
            await self._perform()

    def _cancelled(self) -> None:
        if self.step.exit is not None:
            return
        try:
            self.close("cancelled", f"the run was cancelled{self._left_open()}")
        except MachineError as error:
            self.adopt(broken(error))

    # -- what a run asks before it performs --------------------

    async def _interrupt(self, effect: Interrupt) -> None:
        """The run is paused before a state, once for each number of steps (R-000-13). A text is a message to
        the model."""
        if effect.step <= self.interrupted_at and effect.state not in self.people.interrupt_states:
            self.adopt(leave_interrupt(self.step, now=self.host.now()))
            return
        request = await self.ask(
            texts.interrupt(effect.state, effect.step, self._last_reason), f"{self.place}?"
        )
        if self.end_if_decided(request):
            return
        if request is not None and request.expiry == "reject":
            self.close("expired", texts.expiry(request), by="deadline")
            return
        self._hear(request)
        if self.people.interrupt_every:
            self.interrupted_at = max(effect.step, self.interrupted_at)
        self.adopt(leave_interrupt(self.step, now=self.host.now()))

    async def _question(self, effect: AskPerson, name: str) -> PersonDecided | None:
        """The machine asks; what is decided is its answer. None: the run has ended."""
        request = await self.ask(texts.question(effect), name)
        return None if self.end_if_decided(request) else _decision_for(request)

    async def _limit(self, breach: Breach) -> None:
        """The next call would pass a limit: more, the end that the limit stands for, or abort."""
        request = None
        if self.people.on_limit == "ask":
            name = _again(f"{self.place}!{breach.counter}", self.calls.state.limits_changed)
            request = await self.ask(texts.limit(breach.counter, breach.spent, breach.cap), name)
        if self.end_if_decided(request):
            return
        if request is not None and request.outcome == "topped_up" and request.deciding_vote:
            self.calls.state.limits_changed += 1
            self.adopt(with_credit(self.step, request.deciding_vote.amounts, now=self.host.now()))
        else:
            self.leave("a limit ends the run")
            self.adopt(refuse(replace(self.step, breach=breach), now=self.host.now()))

    async def _unstick(self, problem: str) -> None:
        """The run goes round in circles: tell the model; when it does so again ask people, or end the run."""
        if not self.stuck.warned:
            self.stuck.warn()
            self._steer(texts.stuck_warning(problem), by="kernel", about={"stuck": problem})
            return
        request = None
        if self.people.on_stuck == "ask":
            request = await self.ask(texts.stuck(problem), f"{self.place}~stuck")
        if self.end_if_decided(request):
            return
        if request is None or (request.outcome != "resumed" and request.expiry != "approve"):
            self.close("stuck", problem, by=texts.decided_by(request) if request else "kernel")
            return
        self.stuck.reset()
        self._hear(request)

    def _hear(self, request: Request | None) -> None:
        """What a person wrote to a request goes to the model."""
        if request is not None and request.deciding_vote and (text := request.deciding_vote.text):
            self.stuck.reset()
            self._steer(text, by=texts.decided_by(request), about={"request": request.id})

    async def _approvals(self, effect: Effect[Any]) -> None:
        """Ask for all calls that need it, at once, and wait for all decisions."""
        runs = tool_calls(effect, self.place)
        for name, run in runs.items():
            if name not in self.calls.state.results and name not in self.calls.state.approvals:
                self._ask_for(name, run)
        asked = {name: request for name, request in self.calls.state.approvals.items() if name in runs}

        def is_settled() -> bool:
            requests = [self.requests.get(request) for request in asked.values()]
            return any(one.expiry == "abort" for one in requests) or not any(one.is_open for one in requests)

        await self.wait_until(is_settled, "approval")
        for name, request_id in asked.items():
            request = self.requests.get(request_id)
            if self.end_if_decided(request):
                return
            self._take_over(name, runs[name], request)

    async def _member_questions(self, effect: Effect[Any]) -> None:
        """Questions to people side by side with other effects come before those."""
        for name, member in members(effect, self.place):
            if isinstance(member, AskPerson) and name not in self.calls.state.answers:
                if (decided := await self._question(member, name)) is None:
                    return
                self.calls.state.answers[name] = decided

    def _ask_for(self, name: str, run: ToolCall) -> None:
        """Let a call pass, ask for it, or say why it is not made."""
        spent_usd = self.task.spent_above_usd + self.step.ledger.used("cost_usd")
        required = self.requests.required_approval(run, spent_usd=spent_usd)
        state = self.calls.state
        if required is None:
            by = self.requests.earlier_approvers(run, spent_usd=spent_usd)
            if by and name not in state.passed:
                state.passed.append(name)
                text = f"{run.title} was approved before, by {', '.join(by)}"
                self.log_event("ApprovedBefore", reason=text)
        elif self.people.unattended:
            text = texts.unattended_text(run.tool)
            state.results[name] = texts.result_without_call(run, "rejected", text)
        else:
            state.approvals[name] = self.open(texts.approval(run), name, required).id

    def _take_over(self, name: str, run: ToolCall, request: Request) -> None:
        """What was decided about a call."""
        vote, state = request.deciding_vote, self.calls.state
        if request.outcome == "edited" and vote is not None and vote.arguments is not None:
            state.arguments[name], state.edited_by[name] = vote.arguments, texts.decided_by(request)
        elif request.expiry and request.expiry != "approve":
            text = f"This call was not made: {texts.expiry(request)}."
            state.results[name] = texts.result_without_call(run, "expired", text)
        elif request.outcome == "rejected":
            text = texts.rejection(request)
            state.results[name] = texts.result_without_call(run, "rejected", text)

    async def _approved(self, wanted: Effect[Any]) -> Effect[Any]:
        """The effect as it will be performed, once people have answered; the run may have ended."""
        await self._member_questions(wanted)
        effect = self.calls.prepared(wanted, self.place)
        if self.step.exit is None:
            await self._approvals(effect)
        if self.step.exit is None and self.calls.state.arguments:  # a person gave others
            effect = self.calls.prepared(wanted, self.place)
        return effect

    # -- performing --------------------

    async def _perform(self) -> None:
        """Ask for approvals, make the calls, find out unknown outcomes, and give the machine the answer.

        Calls that have ended are kept, so performing the effect again makes only those that are missing.
        """
        assert self.step.effect is not None
        calls, wanted = self.calls, self.step.effect
        if not calls.state.begun:
            self._log_models(calls.fallbacks.over(self.host.now()))
        effect = await self._approved(wanted)
        if self.step.exit is not None:
            return
        while (breach := await self._ready(effect)) is None:
            limits_changed = calls.state.limits_changed
            answer = await self._race(effect)
            if unknown := calls.unknown(effect, self.place):
                perform_again = await self._find_outcome(*unknown)
            elif self._is_out_of_time(answer, limits_changed):
                self._time_is_over(limits_changed)
                return
            else:
                perform_again = await self._recovers(wanted, effect, answer)
            if self.step.exit is not None:
                return
            if not perform_again:
                self._answer(answer, effect)
                return
            self.charge(calls.take_unbilled())  # of questions that are asked again
            effect = calls.prepared(wanted, self.place)
        await self._limit(breach)

    async def _recovers(self, wanted: Effect[Any], effect: Effect[Any], answer: Any) -> bool:
        """True: questions that failed are asked again: shorter, or of another model, or once people have
        fixed the cause. One that may send no further request is asked again, too: so it meets the limit."""
        return (
            self.calls.ask_to_the_limit(effect, self.place)
            or self.calls.ask_shorter(self.step, effect, answer)
            or self._log_models(self.calls.fall_back(wanted, effect, self.place))
            or await self._fix_trouble(self.calls.failed_questions(effect, self.place))
        )

    def _log_models(self, changes: Sequence[ModelChange]) -> bool:
        """Other models are asked from now on. True: the questions that failed are asked again."""
        for change in changes:
            self.log_event("ModelChanged", reason=change.text, about=change.model_dump(mode="json"))
        return any(change.asked for change in changes)

    async def _ready(self, effect: Effect[Any]) -> Breach | None:
        """Shorten a question that is too long, reserve the calls. A Breach: of a limit that this meets."""
        return await self._compact(effect) or self.reserve(self.calls.planned(effect, self.place))

    async def _compact(self, effect: Effect[Any]) -> Breach | None:
        """Have older messages summarised before a question that would fill too much of the model's window.

        A summary is a question like any other: it counts, and meets the limits before and after. A Breach: of
        the limit that it meets. Without a usable summary the question is sent as it is, and also if it is the
        last call that the run may make, unless it was refused.
        """
        calls, breach = self.calls, None
        while breach is None and (part := calls.part_to_summarise(self.step, effect)) is not None:
            assert isinstance(effect, AskModel)
            planned = added(calls.planned(effect, self.place), {"model_calls": 1})
            if (breach := self.reserve(planned)) is not None:
                is_last = breach.counter == "model_calls" and not calls.state.refused
                return None if is_last else breach
            if self.paused:
                raise Preempted
            reply = await self._unless_preempted(calls.summarise(self.step, effect, part))
            if self.host.cancelled() and isinstance(reply, EffectFailed):
                raise asyncio.CancelledError
            self.charge(added(reply.cost, calls.take_unbilled()))
            self._take_summary(effect, part, reply)
            breach = self.step.ledger.breach({n: 0 for n, amount in effect.price.items() if not amount})
        return breach

    def _take_summary(self, effect: AskModel, part: Part, reply: ModelReplied | EffectFailed) -> None:
        """Send it from now on, or the question as it is; log which."""
        calls, snapshot = self.calls, self.step.snapshot
        calls.state.summaries += 1
        text = "" if isinstance(reply, EffectFailed) else reply.text.strip()
        name = f"messages {part.start + 1} to {part.end}"
        about: JsonObject = {"start": part.start, "end": part.end, "tokens_before": part.tokens}
        if text and calls.compaction.replace(part, text, snapshot, self.requests.closed_requests):
            after = calls.compaction.tokens(snapshot.conversation, effect)
            sizes = f"the question has about {after:,} tokens instead of {part.tokens:,}"
            reason = f"{name} are sent as a summary from now on; {sizes}:\n{text[:LOGGED]}"
            self.log_event(
                "Compacted", reason=reason, about={**about, "tokens_after": after, "summary": text}
            )
            return
        calls.state.summary_failed = True
        calls.compaction.failed(snapshot.conversation, effect)
        problem = "the summary is no shorter than the messages" if text else "the summary is empty"
        if isinstance(reply, EffectFailed):
            problem = f"{reply.type}: {reply.message[:LOGGED]}"
        self.log_event("NotCompacted", reason=f"{name} are sent as they are: {problem}", about=about)

    def _answer(self, answer: Any, effect: Effect[Any]) -> None:
        """Give it to the machine; the calls that were begun count."""
        self.settle(self.calls.state.begun)
        self.stuck.learn(effect, answer)
        self.requests.withdraw(self.host.now(), "the run went on without it")
        self.log_requests()
        now = self.host.now()
        early = self.calls.early if isinstance(effect, CallTools) else None
        if early is not None:  # the tools had ended before the model began
            s = self.step.snapshot
            now = max(now - early.reply.seconds, (s.moments[-1].shown if s.moments else s.entered).now)
        for note in self.calls.edit_notes(effect, self.place, self.calls.state.results):
            self.adopt(steer(self.step, note, now=now, by="kernel"))
        self.calls.reset()
        self.adopt(advance(self.step, answer, now=now, effect=effect))

    def _is_out_of_time(self, answer: Any, limits_changed: int) -> bool:
        """The call failed because `limits.seconds` ended it: the run reports the limit, not the failure.
        People may have removed it meanwhile: `limits_changed` is of the call's beginning."""
        if not isinstance(answer, EffectFailed):
            return False
        if "seconds" not in self.step.ledger.caps and self.calls.state.limits_changed == limits_changed:
            return False
        return is_out_of_time(self.step, self.host.now()) or answer.type == "deadline"

    def _time_is_over(self, limits_changed: int) -> None:
        """Meet the limit, or, where people have raised it meanwhile, have the call made again."""
        if self.calls.state.limits_changed == limits_changed:
            # A call ends a moment before the time of the run, to say why. That is no time for another.
            ledger = self.step.ledger
            self.step = replace(self.step, ledger=ledger.at_least("seconds", ledger.caps["seconds"]))
        self.calls.ask_again(self.place)
        self.charge(self.calls.take_unbilled())
        self.adopt(resume(self.step, now=self.host.now()))
        self.settle(self.calls.state.begun)

    async def _find_outcome(self, name: str, run: ToolCall) -> bool:
        """Find out whether a call took effect, from its tool, then from people. True: it is known now."""
        if await self._reconcile(name, run):
            return True
        # Who may let a call happen may say whether it did.
        required = None if "outcome" in self.people.kinds else self._approval_of(name)
        times = self.calls.state.made_again.get(name, 0)
        why, until = self.calls.state.results[name].output, self.calls.acts_until(name)
        request = await self.ask(texts.outcome_unknown(run, why, until), _again(name, times), required)
        if request is None or self.end_if_decided(request):
            return False
        if request.outcome == "retried":
            self.calls.make_again(name)
        elif request.outcome == "answered" and request.deciding_vote is not None:
            by, text = texts.decided_by(request), request.deciding_vote.text
            output = f"(Reported by {by}, who looked up the outcome:)\n{text}"
            size = len(output.encode())
            result = ToolResult(id=run.id, tool=run.tool, output=output, bytes=size)
            self.calls.take_result(name, result)
        return request.outcome in ("retried", "answered")

    async def _reconcile(self, name: str, run: ToolCall) -> bool:
        """Have the tool look for the outcome, once for each time that the call is made."""
        if name in self.calls.state.reconciled:
            return False
        if self.paused:
            raise Preempted
        found = await self._unless_preempted(self.calls.reconcile(self.step, name, run))
        if found is None:
            return False
        details = f", {found.text}" if found.text else ""
        self.log_event("Reconciled", reason=f"{run.title}: {found.outcome}{details}")
        return self.calls.take_reconciled(name, found)

    def _approval_of(self, name: str) -> RequiredApproval | None:
        request_id = self.calls.state.approvals.get(name)
        return self.requests.approval_of(request_id) if request_id else None

    async def _fix_trouble(self, failed: dict[str, EffectFailed]) -> bool:
        """A model call failed permanently: people may fix the cause. True: ask the model again."""
        if not failed or self.people.on_trouble != "ask" or self.host.cancelled():
            return False
        name, failure = next(iter(failed.items()))
        request = await self.ask(
            texts.trouble(failure), _again(name, self.calls.state.asked_again.get(name, 0))
        )
        if request is None or self.end_if_decided(request):
            return False
        if request.outcome != "retried" and request.expiry != "approve":
            return False
        for name in failed:
            self.calls.ask_again(name)
        return True

    # -- under way --------------------

    async def _race(self, effect: Effect[Any]) -> Any:
        """The answer, unless a command preempts the effect."""
        if self.paused:
            raise Preempted
        stopped = len(self.calls.state.children_stopped)
        try:
            answer = await self._unless_preempted(self.calls.perform(self.step, effect))
            is_lost = isinstance(answer, EffectFailed) or self.calls.unknown(effect, self.place)
            if self.host.cancelled() and is_lost:
                raise asyncio.CancelledError  # it failed while it was being ended: no answer for the machine
            return answer
        except OutOfTime as error:
            if not is_out_of_time(self.step, self.host.now()):  # people have raised the limit meanwhile
                raise Preempted from error
            return EffectFailed(error="transient", type="deadline", message=str(error))
        finally:
            self.charge(self.calls.take_unbilled())
            for text in self.calls.state.children_stopped[stopped:]:
                self.log_event("ChildStopped", reason=text)

    async def _unless_preempted(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of work for the effect. Raises Preempted when a command that concerns it ends it; other
        commands are obeyed meanwhile."""

        async def watch(task: asyncio.Future[T]) -> None:
            self.performing = True
            self.host.publish(())
            await self._watch(task, self._is_preempted, self._next_beside)
            if not task.done():
                self.calls.hold(True)
                if self.calls.unsafe_under_way:  # only an abort stops those
                    await self._watch(task, self.is_aborting, lambda: None)

        try:
            return await self._outcome(work, watch)
        finally:
            self.performing = False
            self.calls.waiting.clear()

    async def _unless_aborted(
        self, work: Coroutine[Any, Any, T], what: str, is_stoppable: Callable[[], bool] = lambda: True
    ) -> T:
        """The outcome of work for a command. Raises ValueError when an abort stops it."""

        async def watch(task: asyncio.Future[T]) -> None:
            await asyncio.sleep(0)  # what needs no waiting is not stopped by what came before it
            await self._watch(task, lambda: self.is_aborting() and is_stoppable(), lambda: None)

        try:
            return await self._outcome(work, watch)
        except Preempted:
            raise ValueError(f"An abort came while {what}.") from None

    async def _outcome(
        self, work: Coroutine[Any, Any, T], watch: Callable[[asyncio.Future[T]], Awaitable[None]]
    ) -> T:
        """The outcome of the work. When `watch` returns before its end it is stopped: Preempted."""
        task = asyncio.ensure_future(work)
        try:
            await watch(task)
        except asyncio.CancelledError:
            pass
        except Exception:  # nothing wider: an execution that is evicted must not wait for anything
            await self._stopped(task)
            raise
        if not task.done():
            self.calls.stop_now()
            self._mark_pause()
        await self._stopped(task)
        if task.cancelled():
            raise asyncio.CancelledError if self.host.cancelled() else Preempted
        return task.result()

    async def _watch(
        self,
        task: asyncio.Future[Any],
        stops: Callable[[], bool],
        beside: Callable[[], QueuedCommand | None],
    ) -> None:
        """Wait until it has ended or is to be stopped; commands that `beside` gives are obeyed meanwhile."""
        while not (task.done() or stops()):
            if self.host.cancelled():
                raise asyncio.CancelledError
            if (queued := beside()) is not None:
                await self._obey_beside(queued)
                self.host.publish(())
            else:
                await self.host.wait(lambda: task.done() or stops() or beside() is not None, None, "")

    async def _stopped(self, task: asyncio.Future[Any]) -> None:
        """Cancel it until it has ended."""
        while not task.done():
            task.cancel()
            try:
                await self.host.wait(task.done, None, "")
            except asyncio.CancelledError:
                continue

    def is_aborting(self) -> bool:
        """An abort came."""
        return any(queued.command.command == "abort" for queued in self.queue)

    def _is_preempted(self) -> bool:
        return any(self._preempts(queued) for queued in self.queue)

    def _preempts(self, queued: QueuedCommand) -> bool:
        """It ends the effect under way."""
        command = queued.command
        match command.command:
            case "abort":
                return True
            case "rollback":
                return queued.checked
            case "pause":
                return command.at_once and not self.calls.children  # those are told
            case "steer":
                return bool(command.text.strip()) and self._is_asking()
        return False

    def _is_asking(self) -> bool:
        """The pending effect is a question that a person's message changes."""
        return isinstance(self.step.asked, AskModel) and not self.step.asked.beside

    def _mark_pause(self) -> None:
        """In a paused run, a pause `at_once` that ends the effect under way is no repeat."""
        for queued in self.queue:
            if queued.command.command == "pause" and queued.command.at_once:
                queued.preempted = True
                return

    # -- commands --------------------

    def _next_beside(self) -> QueuedCommand | None:
        """The command to be obeyed while the effect goes on: one that changes nothing about it, any while
        inner runs are under way, and a rollback, which is checked first and may be refused."""
        for queued in self.queue:
            if queued.command.command == "rollback" and not queued.checked:
                return queued
        first = self.queue[0] if self.queue else None
        return first if first and (self.calls.children or first.command.command in HARMLESS) else None

    async def _obey_beside(self, queued: QueuedCommand) -> None:
        if queued.command.command != "rollback":
            await self._obey_next()
            return
        try:
            await self._check_rollback(queued)
        except (ValueError, MachineError) as error:
            self.queue.remove(queued)
            self._refuse(queued, error.text if isinstance(error, MachineError) else str(error))
        else:
            queued.checked = True

    async def _obey_next(self) -> None:
        queued = self.queue.pop(0)
        try:
            await self._obey(queued)
        finally:
            if not queued.is_over:  # it was cancelled in the middle, and is refused when the run is over
                self.queue.insert(0, queued)

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
                    self._steer_by_command(queued)
                case "rollback":
                    await self._roll_back(queued)
                case "limits":
                    self._set_limits(queued)
        except (ValueError, MachineError) as error:
            self._refuse(queued, error.text if isinstance(error, MachineError) else str(error))

    def _done(self, queued: QueuedCommand, text: str, undone: tuple[str, ...] = ()) -> None:
        s = self.step.snapshot
        queued.done = CommandDone(
            command=queued.command.command,
            text=text,
            step=s.step,
            branch=s.branch,
            paused=self.paused,
            undone=undone,
        )

    def _refuse(self, queued: QueuedCommand, reason: str) -> None:
        queued.refused = reason
        self.commands.refuse(queued.command)
        self.log_refused(queued.command, queued.by, reason)

    def log_refused(self, command: Command, by: str, reason: str) -> None:
        """Log a command that does not count; anybody may send one of any length, so it is cut."""
        limits = dict(list(command.limits.items())[:NAMED])
        cut = command.model_copy(update={"text": command.text[:LOGGED], "limits": limits})
        self.log_event("RefusedCommand", by=by, reason=cut.text, about=_about(cut), error=reason)

    def _abort(self, queued: QueuedCommand) -> None:
        text = queued.reason or f"{queued.by} ended the run{_colon(queued.command.text)}"
        self.close("aborted", f"{text}{self._left_open()}", by=queued.by)
        self._done(queued, "The run has ended.")

    def _left_open(self) -> str:
        """What is unknown of the calls of a run that is stopped, and what its inner runs said."""
        names = self.calls.unknown_outcomes
        unknown = f"; outcome unknown: {names}" if names else ""
        return unknown + "".join(f"; its inner run: {text}" for text in self.calls.state.children_stopped)

    async def _pause(self, queued: QueuedCommand) -> None:
        pauses = queued.command.command == "pause"
        if self.paused == pauses and not queued.preempted:
            raise ValueError(
                "The run is paused already."
                if pauses
                else "The run is not paused. Decide on its requests, for example with `ratchet approve RUN`."
            )
        self.calls.hold(pauses)  # before inner runs are told, which takes a while: none begins meanwhile
        try:
            told = [
                one for one in tuple(self.calls.children) if await self.host.tell_child(one, queued.command)
            ]
        except ValueError:
            self.calls.hold(self.paused)
            raise
        self.paused = pauses
        about = {**_about(queued.command), **({"children": [*told]} if told else {})}
        event, reason = "Paused" if pauses else "Resumed", queued.command.text
        self.log_event(event, by=queued.by, reason=reason, about=about)
        after = f" Told its inner runs: {', '.join(told)}." if told else ""
        waits = self.calls.waits and not self.calls.under_way
        if pauses and self.performing and not told and self.step.effect and not waits:
            under_way = self.calls.under_way or self.step.effect.title
            self._done(queued, f"The run pauses once this has ended: {under_way[:200]}.")
        else:
            self._done(queued, f"The run {'is paused' if pauses else 'goes on'}.{after}")

    def _steer_by_command(self, queued: QueuedCommand) -> None:
        text = queued.command.text
        if not text.strip():
            raise ValueError("Steering needs a `text`: the message to the model.")
        if self.calls.state.begun and not self.performing and self._is_asking():
            # The question was begun, and changes: it is another call.
            self.requests.withdraw(self.host.now(), "a person's message has changed the question")
            self.calls.ask_again(self.place)
        self.stuck.reset()
        self.requests.withdraw(self.host.now(), "a person's message has come", kind="stuck")
        self._steer(text, by=queued.by, about=_about(queued.command))
        children = ", ".join(self.calls.children)
        behind = f" of this run; inner runs do not get it: {children}" if children else ""
        self._done(queued, f"The next question to the model{behind} brings the message.")

    def _steer(self, text: str, *, by: str, about: JsonObject) -> None:
        message = Message(role="user", content=text, from_run=by == "kernel")
        now = self.host.now()
        self.adopt(steer(self.step, message, now=now, by=by, about=about, not_begun=self.not_begun))

    def _set_limits(self, queued: QueuedCommand) -> None:
        limits = queued.command.limits
        if problem := limits_problem(limits):
            raise ValueError(problem)
        begun = self.calls.state.begun
        if self.performing or (begun and self.step.breach is None):
            # what was begun stays reserved; the next call meets the new caps
            self.step = replace(self.step, ledger=self.step.ledger.capped(limits))
        else:
            self.adopt(with_caps(self.step, limits, now=self.host.now()))
            if begun:
                self.settle(begun)
        self.requests.withdraw(self.host.now(), "the limits were changed", kind="limit")
        self.log_requests()
        self.calls.state.limits_changed += 1
        shown = [f"{n} {'none' if cap is None else plain_number(cap)}" for n, cap in sorted(limits.items())]
        self.log_event("LimitsSet", by=queued.by, reason=", ".join(shown), about=_about(queued.command))
        children = ", ".join(self.calls.children)
        kept = f" Inner runs keep theirs: {children}." if children else ""
        self._done(queued, f"Limits now: {', '.join(shown)}.{kept}")

    # -- rollback --------------------

    async def _check_rollback(self, queued: QueuedCommand) -> Sequence[Record]:
        """The log, if the run can be rolled back. Raises ValueError or MachineError; changes nothing."""
        if queued.command.step is None:
            raise ValueError("A rollback needs a `step`: the one to begin again; `steps` lists them.")
        records = await self._unless_aborted(self.host.log(), "the log was read")
        self._at_step(queued, records)
        return records

    def _at_step(self, queued: QueuedCommand, records: Sequence[Record]) -> Suspension:
        """The run as it is after the rollback."""
        command = queued.command
        undoing = ", undoing what can be undone" if command.compensate else ""
        reason = f"to step {command.step}{undoing}{_colon(command.text)}"
        now, about = self.host.now(), _about(command)
        return rolled_back(
            self.step, records, command.step or 0, now=now, by=queued.by, reason=reason, about=about
        )

    async def _roll_back(self, queued: QueuedCommand) -> None:
        records, to_step = await self._check_rollback(queued), queued.command.step or 0
        self.leave(f"the run is rolled back to step {to_step}")
        undone = await self._compensated(to_step, queued.by) if queued.command.compensate else ()
        self.calls.reset()
        self.stuck.reset()
        self.adopt(self._at_step(queued, records))
        self._done(queued, f"Back at the beginning of step {to_step}.", undone)

    async def _compensated(self, since: int, by: str) -> tuple[str, ...]:
        """Undo what can be undone since that step, the newest first; a failure is logged.

        An abort lets no other begin, and stops the one under way unless its tool is unsafe: ValueError.
        """
        undone: list[str] = []
        for call in reversed(self.calls.since(since)):
            if not call.undoable or call.undone is not None:
                continue
            if self.host.cancelled():
                raise asyncio.CancelledError
            name = f"{call.tool} at {call.activity_id}"
            if self.is_aborting():
                raise ValueError(f"An abort came before {name} was undone.")
            try:
                text = await self._unless_aborted(
                    self.calls.compensate(self.step, call),
                    f"{name} was being undone",
                    lambda effect=call.effect: effect != "unsafe" or self.calls.waits,  # type: ignore[misc]
                )
            except (ValueError, asyncio.CancelledError):
                text = "not undone" if self.calls.waits else "outcome of undoing it unknown"
                self.log_event("Compensated", by=by, reason=f"{name}: {text}")
                raise
            finally:
                self.calls.waiting.clear()
                self.charge(self.calls.take_unbilled())
            self.log_event("Compensated", by=by, reason=f"{name}: {text}")
            undone.append(f"{name}: {text}")
        return tuple(undone)

    # -- what people send --------------------

    def check_command(self, command: Command) -> None:
        """Raises Refused for a command that would not count."""
        self.check_live()
        if not self.commands.is_repeat(command):
            self.commands.check(command)

    def command(self, command: Command) -> QueuedCommand:
        """Put a command into the queue; a repeat is the command that came before. Raises Refused."""
        self.check_live()
        if self.commands.is_repeat(command):
            return self._by_id.get(command.id) or self._obeyed_before(command)
        queued = QueuedCommand(command, self.commands.accept(command))
        self.queue.append(queued)
        self.host.stop_early_questions()
        if command.id:
            self._by_id[command.id] = queued
        self.host.publish(())
        return queued

    def _obeyed_before(self, command: Command) -> QueuedCommand:
        """A command that an earlier execution of the chain has obeyed or refused."""
        queued = QueuedCommand(command, command.by)
        if self.commands.was_refused(command):
            queued.refused = "It was refused before; the log says why."
        else:
            self._done(queued, "It was obeyed before.")
        return queued


def _again(name: str, times: int) -> str:
    """The id of a request that is asked again there: a decision counts once."""
    return f"{name}+{times}" if times else name


def _colon(text: str) -> str:
    return f": {text}" if text else ""


def _about(command: Command) -> JsonObject:
    """Facts of a command for the log."""
    return command.model_dump(mode="json", exclude={"signature"}, exclude_defaults=True)


def _decision_for(request: Request | None) -> PersonDecided:
    """What a request came to, for the machine that asked."""
    if request is None:
        return PersonDecided(decision="unavailable", text="nobody can be asked")
    vote = request.deciding_vote
    if vote is None:
        yes: Any = "approve" if "approve" in request.options else "resume"
        verb = yes if request.expiry == "approve" else "unavailable"
        return PersonDecided(decision=verb, text=texts.expiry(request), by="deadline")
    verb = vote.verb  # one of the options of an AskPerson
    return PersonDecided(decision=verb, text=vote.text, by=texts.decided_by(request))
