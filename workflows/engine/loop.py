"""The loop of a run. `Drive` moves it; `run_state.py` holds it, `commands.py` obeys what people order.

What holds for every machine and every host:

1.  Commands are obeyed one by one as they came, before anything else. One that is refused changes nothing,
    but for calls that a rollback has undone before an abort, and inner runs that were told of a pause before
    another could not be.
2.  A decision counts at once, also while the run is paused or waits for something else. An abort that is
    decided at a request comes before all commands that wait.
3.  Before an effect people are asked: whether the run enters a state (interrupt), the machine's own
    question, more of a limit, what to do about a circle, which calls may be made. All calls of an effect are
    asked about at once. What was decided counts for just the call that was shown: one that new code has
    changed is asked about again.
4.  Calls are counted before they begin, all else once it is known. A call that would pass a limit is not
    made: people raise the limit, or the run ends. A limit that is lowered counts for all that has not begun.
5.  A call that has ended is never made again. So an effect may be left at any moment and taken on later.
6.  What waits for people is left when any command comes. What is under way is left for an abort, for a
    rollback that can be done, for a pause `at_once` (inner runs are told to pause instead), and for a message
    where the effect is one question of the conversation (not one beside it, or several side by side). An
    unsafe call under way is left for an abort alone.
7.  Beside what is under way, the others are obeyed at once: pause, resume and limits, also behind a message
    that waits for tools; all commands while inner runs are under way. A rollback is checked first; one that
    cannot be done is refused at once.
8.  An outcome that is unknown, or a question that failed, is recovered before the machine hears of it: by the
    agent's settings, then by people; of several, each is. What a limit of seconds has ended meets that limit,
    and so does what people let pass after it; an inner run that failed has ended, and is not run again.
9.  An abort stops the undoing of calls in a rollback: no other begins, and one under way is stopped unless
    its tool is unsafe.
10. A cancellation from outside ends the run once what is under way has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from activities.contracts import (
    AskModel,
    AskPerson,
    Effect,
    EffectFailed,
    JsonObject,
    RunMachine,
    ToolSpec,
)
from workflows.api import AgentTask, RunResult, RunStatus
from workflows.engine.calls.call_site import repeated_id
from workflows.engine.calls.effect_calls import EffectCalls
from workflows.engine.calls.run_calls import RunCalls
from workflows.engine.calls.under_way import OutOfTime, is_out_of_time
from workflows.engine.commands import CommandQueue
from workflows.engine.run_state import Preempted, RunEnds, RunState
from workflows.gate import texts
from workflows.hosts import Host, Identity
from workflows.kernel.errors import MachineError
from workflows.kernel.ledger import Breach
from workflows.kernel.log import EDITED
from workflows.kernel.machine import Exit, Interrupt
from workflows.kernel.snapshot import Suspension, dump
from workflows.kernel.transition import (
    advance,
    ended_by_violation,
    leave_interrupt,
    refuse,
    resume,
    steer,
    with_credit,
)
from workflows.people import Request

__all__ = ["Drive"]


class Drive:
    """One run, from its first effect to its end."""

    def __init__(  # what a run is made of
        self,
        host: Host,
        task: AgentTask,
        specs: Mapping[str, ToolSpec],
        identity: Identity,
        suspension: Suspension,
        carried: JsonObject | None = None,
    ) -> None:
        """`specs` by name, filled when they are known; `carried` is the `dump` of the execution before.

        Raises ValueError and the like for what is not one."""
        self.run = RunState(host, task, specs, identity, suspension)
        self.calls = RunCalls(self.run)
        self.commands = CommandQueue(self.run, self.calls)
        self.calls.connect(self.commands.unless_preempted)
        if carried is not None:
            values: Any = carried
            self.run.load(values["run"])
            self.calls.load(values["calls"])

    def dump(self) -> JsonObject:
        """All that another execution needs to go on (`task.carried_step` and `carried`)."""
        step = dump(self.run.suspension)
        return {"step": step, "run": self.run.dump(), "calls": self.calls.dump()}

    # -- the loop --------------------

    async def move(self) -> None:
        """Go on until the run is over; `result` says how. Raises only what is a fault of Ratchet or the
        host."""
        run = self.run
        run.adopt(replace(run.suspension, records=()))
        try:
            while run.suspension.effect is not None:
                await self._next_move()
        except asyncio.CancelledError:
            self._end_cancelled()
        except MachineError as error:
            run.adopt(ended_by_violation(error))
        run.charge(self.calls.early.drop())
        self.commands.refuse_all("The run is over.")
        run.paused = False
        run.withdraw_requests("the run is over")
        run.host.publish(())

    async def _next_move(self) -> None:
        run = self.run
        run.log_requests()
        if run.queue:
            await self.commands.obey(self.run.queue[0])
            return
        if run.host.cancelled():
            raise asyncio.CancelledError
        await run.host.between()
        try:
            if run.paused:
                await run.wait_until(lambda: False, "paused")
            if not run.queue:
                await self._handle_pending()
        except Preempted:
            return
        except RunEnds as end:
            self.calls.close(end.reason, end.text, by=end.by)

    async def _handle_pending(self) -> None:
        """Ask people what the pending effect asks of them first, then perform it."""
        suspension = self.run.suspension
        effect = suspension.effect
        if isinstance(effect, Interrupt):
            await self._interrupt(effect)
        elif isinstance(effect, AskPerson):
            self.deliver(await self.calls.ask_people(effect, self.run.place), effect)
        elif suspension.breach is not None:
            await self._meet_limit(suspension.breach)
        elif effect is not None:
            if isinstance(effect, AskModel) and effect.brings_notes and self.run.stuck.problem:
                await self._break_circle(self.run.stuck.problem)
            await self._perform()

    async def _perform(self) -> None:
        """Make the calls of the pending effect, and give the machine the answer.

        Calls that have ended are kept, so performing the effect again makes only those that are missing.
        """
        run, calls = self.run, EffectCalls(self.calls)
        await calls.ready()
        while (breach := await calls.breach()) is None:
            limits_changed = run.limits_changed
            answer = await self._made(calls)
            if not calls.is_unknown and self._is_out_of_time(answer, limits_changed):
                self._meet_time_limit(calls, limits_changed)
                return
            if not await calls.recover():
                self.deliver(answer, calls.effect)
                return
            calls.prepare()
        if run.paused or run.queue:  # while calls were made that are made again
            raise Preempted
        await self._meet_limit(breach)

    async def _made(self, calls: EffectCalls) -> Any:
        """The answer to the effect. Raises Preempted when a command ends it."""
        run, stopped = self.run, self.calls.pending.children_stopped
        if run.paused:
            raise Preempted
        known = len(stopped)
        try:
            answer = await self.commands.unless_preempted(calls.make())
            is_lost = isinstance(answer, EffectFailed) or calls.is_unknown
            if run.host.cancelled() and is_lost:
                raise asyncio.CancelledError  # it failed while it was being ended: no answer for the machine
            return answer
        except OutOfTime as error:
            if not is_out_of_time(run.suspension, run.host.now()):  # people have raised the limit meanwhile
                raise Preempted from error
            return EffectFailed(error="transient", type="deadline", message=str(error))
        finally:
            self.calls.charge_unbilled()
            for one in stopped[known:]:
                run.log_event("ChildStopped", reason=one.text, brings=one.brought)

    def deliver(self, answer: Any, effect: Effect[Any]) -> None:
        """Give the machine the answer to its effect; the calls that were begun count."""
        run, pending = self.run, self.calls.pending
        run.settle()
        run.stuck.learn(effect, answer)
        run.withdraw_requests("the run went on without it")
        now = self.calls.early.end_time(effect, run.suspension, run.host.now())
        for note in pending.edit_notes(effect, run.place, pending.results):
            run.adopt(steer(run.suspension, note, now=now, by="kernel", about={EDITED: run.place}))
        self.calls.forget_effect()
        run.adopt(advance(run.suspension, answer, now=now, effect=effect))

    # -- what people are asked before --------------------

    async def _interrupt(self, effect: Interrupt) -> None:
        """The run is paused before a state, once for each number of steps (R-000-13). A text is a message to
        the model."""
        run = self.run
        if effect.step > run.interrupted_at or effect.state in run.people.interrupt_states:
            topic = texts.interrupt(effect.state, effect.step, run.last_reason)
            request = await run.ask(topic, f"{run.place}?")
            if request is not None and request.expiry == "reject":
                raise RunEnds("expired", texts.expiry(request), "deadline")
            self._forward_text(request)
            if run.people.interrupt_every:
                run.interrupted_at = max(effect.step, run.interrupted_at)
        run.adopt(leave_interrupt(run.suspension, now=run.host.now()))

    async def _break_circle(self, problem: str) -> None:
        """The run goes round in circles: tell the model; when it does so again ask people, or end the run."""
        run, request = self.run, None
        if not run.stuck.warned:
            run.stuck.warn()
            run.steer(texts.stuck_warning(problem), by="kernel", about={"stuck": problem})
            return
        if run.people.on_stuck == "ask":
            request = await run.ask(texts.stuck(problem), f"{run.place}~stuck")
        if request is None or (request.outcome != "resumed" and request.expiry != "approve"):
            raise RunEnds("stuck", problem, texts.decided_by(request) if request else "kernel")
        run.stuck.reset()
        self._forward_text(request)

    def _forward_text(self, request: Request | None) -> None:
        """What a person wrote to a request goes to the model."""
        if request is not None and request.deciding_vote and (text := request.deciding_vote.text):
            self.run.steer(text, by=texts.decided_by(request), about={"request": request.id})

    # -- limits --------------------

    async def _meet_limit(self, breach: Breach) -> None:
        """The next call would pass a limit: more, the end that the limit stands for, or abort."""
        run, request = self.run, None
        if run.people.on_limit == "ask":
            name = repeated_id(f"{run.place}!{breach.counter}", run.limits_changed)
            request = await run.ask(texts.limit(breach.counter, breach.spent, breach.cap), name)
        now = run.host.now()
        if request is not None and request.outcome == "topped_up" and request.deciding_vote:
            run.limits_changed += 1
            run.adopt(with_credit(run.suspension, request.deciding_vote.amounts, now=now))
        else:
            self.calls.abandon_effect("a limit ends the run")
            run.adopt(refuse(replace(run.suspension, breach=breach), now=now))

    def _is_out_of_time(self, answer: Any, limits_changed: int) -> bool:
        """The call failed because `limits.seconds` ended it: the run reports the limit, not the failure.
        People may have removed it meanwhile: `limits_changed` is of the call's beginning. An inner run has
        limits of its own, and has ended: its failure is its answer."""
        suspension = self.run.suspension
        if not isinstance(answer, EffectFailed) or isinstance(suspension.asked, RunMachine):
            return False
        if "seconds" not in suspension.ledger.caps and self.run.limits_changed == limits_changed:
            return False
        return is_out_of_time(suspension, self.run.host.now()) or answer.type == "deadline"

    def _meet_time_limit(self, calls: EffectCalls, limits_changed: int) -> None:
        """Meet the limit, or, where people have raised it meanwhile, have the call made again."""
        run = self.run
        if run.limits_changed == limits_changed:
            # A call ends a moment before the time of the run, to say why. That is no time for another.
            ledger = run.suspension.ledger
            ledger = ledger.with_seconds(ledger.caps["seconds"])
            run.suspension = replace(run.suspension, ledger=ledger)
        calls.make_again()
        run.adopt(resume(run.suspension, now=run.host.now()))
        run.settle()

    # -- the end --------------------

    def _end_cancelled(self) -> None:
        if self.run.suspension.exit is not None:
            return
        try:
            self.calls.close("cancelled", f"the run was cancelled{self.calls.unknown_text}")
        except MachineError as error:
            self.run.adopt(ended_by_violation(error))

    def fail(self, kind: str, error: str) -> None:
        """End the run where it is: its machine broke a rule that the kernel does not see."""
        run = self.run
        self.calls.abandon_effect(error)
        run.log_event(kind, error=error)
        exit_ = Exit(reason="broken_rule", error=error, raises=kind)
        ended = replace(run.suspension, records=(), asked=None, breach=None, live=None, exit=exit_)
        run.adopt(ended)

    def status(self, unusable: Iterable[str] = ()) -> RunStatus:
        """Where the run is; `unusable` are names of signals that could not be understood."""
        return self.run.status(self.calls.facts, unusable)

    def result(self, log_head: str = "") -> RunResult:
        """What came out; `log_head` is the hash of the log's last record. The run must be over."""
        return self.run.result(self.calls.done.calls, log_head)
