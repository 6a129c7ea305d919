"""A live run: where it is, what it asks people, what its calls have brought, and how that is written down.

`Drive` (in `workflows/engine/loop.py`) moves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from activities.contracts import EarlyReply, JsonObject, ToolResult, ToolSpec, added
from workflows.api import AgentTask, RunResult, RunStatus
from workflows.engine.calls import Calls, CallState
from workflows.gate import texts
from workflows.gate.approvals import ApprovalPolicy, RequiredApproval
from workflows.gate.decisions import Commands, Refused
from workflows.gate.requests import Position, Requests
from workflows.gate.stuck import StuckGuard
from workflows.hosts import Host, Identity
from workflows.kernel.ledger import Breach
from workflows.kernel.machine import Exit
from workflows.kernel.snapshot import Suspension, dump
from workflows.kernel.transition import close, log_event
from workflows.people import Command, CommandDone, Decided, Decision, DoneCall, Request

__all__ = ["LiveRun", "Preempted", "QueuedCommand"]

LOGGED = 500
"""Characters of an output or a refused command in the log, where no machine was given it."""
COUNTED = ("model_calls", "tool_calls")
"""Counters of calls."""
EARLY, EARLY_BYTES = 100, 16_384
"""Decisions that are kept until what they are about is asked, and the most bytes of each as JSON."""
SHOWN = 2000
"""Characters of answer and error in a status; the result has the whole."""
OF_THE_MACHINE = {"question", "escalation"}
"""Kinds of request whose `abort` is an answer to the machine that asked."""
_DONE: TypeAdapter[list[DoneCall]] = TypeAdapter(list[DoneCall])
_DECISIONS: TypeAdapter[tuple[Decision, ...]] = TypeAdapter(tuple[Decision, ...])
_RESULTS: TypeAdapter[dict[str, ToolResult]] = TypeAdapter(dict[str, ToolResult])


class Preempted(Exception):
    """A command came: what is being done is left, and taken up again after it."""


@dataclass(slots=True, eq=False)
class QueuedCommand:
    """A command in the queue, and what became of it."""

    command: Command
    by: str
    """`ann (claimed)`."""
    done: CommandDone | None = None
    refused: str = ""
    """Why it was not obeyed."""
    reason: str = ""
    """Why the run ends, of an abort that was decided at a request."""
    checked: bool = False
    """A rollback that can be done, so it preempts."""
    preempted: bool = False
    """A pause `at_once` that has ended what was under way."""

    @property
    def is_over(self) -> bool:
        """It was obeyed or refused."""
        return self.done is not None or bool(self.refused)


class LiveRun:
    """One run at a moment."""

    def __init__(
        self,
        host: Host,
        task: AgentTask,
        specs: Mapping[str, ToolSpec],
        identity: Identity,
        step: Suspension,
        carried: JsonObject | None = None,
    ) -> None:
        """`specs` by name, filled when they are known; `carried` is the `dump` of the execution before.

        Raises ValueError for what is not one."""
        self.host, self.task, self.people, self.identity = host, task, task.people, identity
        self.step = step
        self.queue: list[QueuedCommand] = []
        self.paused = False
        self.interrupted_at = -1
        """The highest number of steps at which the run was paused: `interrupt_every` asks once for each."""
        self.performing = False
        """An effect is under way."""
        self.early: tuple[Decision, ...] = ()
        """Decisions about what this run has not asked, the newest ones. They count once it asks just that:
        only a run that was reset has asked it before."""
        self._by_id: dict[str, QueuedCommand] = {}
        self._last_at = 0.0
        """When the newest record was written."""
        self._unpublished = step.records
        """Of the run's beginning: what a person sends before the loop runs comes after them."""
        self._last_reason = ""
        """Of the newest transition."""
        me = {"workflow_id": identity.workflow_id, "origin": identity.origin}
        policy = ApprovalPolicy(task.approvals, task.people, specs)
        self.calls = Calls(host, task, specs, identity)
        self.commands = Commands(
            task.people, **me, parents=identity.parents, old_ids=identity.old_command_ids
        )
        self.calls.signed_ids = lambda: self.commands.signed_ids
        self.calls.newest_step = lambda step: self.step
        self.calls.tell_waiting = lambda text: self.log_event("CallWaits", reason=text)
        self.stuck = StuckGuard(task.stuck, specs)
        self.requests = Requests(policy, **me)
        if carried is not None:
            self._load(carried, me)

    def _load(self, values: Any, me: dict[str, str]) -> None:
        self.requests = Requests.load(values["requests"], self.requests.policy, **me)
        self.commands.load(values["commands"])
        self.early = _DECISIONS.validate_python(values["early_decisions"])
        self.paused, self.interrupted_at = bool(values["paused"]), int(values["interrupted_at"])
        self._last_reason = str(values["last_reason"])
        self.calls.state = CallState.model_validate(values["calls"])
        self.calls.done = _DONE.validate_python(values["done"])
        self.calls.cached = _RESULTS.validate_python(values["cached"])
        self.calls.early = EarlyReply.model_validate(values["early"]) if values["early"] else None
        self.calls.compaction.load(values["compaction"])
        self.calls.fallbacks.load(values["fallbacks"])
        self.stuck.load(values["stuck"])

    def dump(self) -> JsonObject:
        """All that another execution needs to go on (`task.carried_step` and `carried`)."""
        return {
            "step": dump(self.step),
            "paused": self.paused,
            "interrupted_at": self.interrupted_at,
            "last_reason": self._last_reason,
            "requests": self.requests.dump(),
            "early_decisions": _DECISIONS.dump_python(self.early, mode="json"),
            "commands": self.commands.dump(),
            "calls": self.calls.state.model_dump(mode="json"),
            "done": _DONE.dump_python(self.calls.done, mode="json"),
            "early": self.calls.early.model_dump(mode="json") if self.calls.early else None,
            "cached": _RESULTS.dump_python(self.calls.cached, mode="json"),
            "compaction": self.calls.compaction.dump(),
            "fallbacks": self.calls.fallbacks.dump(),
            "stuck": self.stuck.dump(),
        }

    # -- the log and the ledger --------------------

    def adopt(self, step: Suspension) -> None:
        """Take a move over."""
        self.step = step
        records, self._unpublished = (*self._unpublished, *step.records), ()
        self._last_reason = next((r.summary for r in reversed(records) if r.to), self._last_reason)
        self._last_at = records[-1].at if records else self._last_at
        self.host.publish(records)

    def log_event(self, event: str, *, by: str = "kernel", **more: Any) -> None:
        """Write something into the log; `more` are `reason`, `about` and `error`."""
        self.adopt(log_event(self.step, event, now=self.host.now(), by=by, not_begun=self.not_begun, **more))

    @property
    def not_begun(self) -> dict[str, float]:
        """What the ledger holds for calls of the pending effect that were not begun, by counter: one that
        waits for an approval was not made."""
        if self.step.asked is None:
            return {}
        return {name: -more for name, more in self._beyond(self.calls.state.begun).items() if more}

    @property
    def place(self) -> str:
        """The activity id of the pending effect."""
        return self.step.snapshot.place

    def charge(self, amounts: dict[str, float]) -> None:
        """Count what was spent outside of an answer."""
        if any(amounts.values()):
            self.step = replace(self.step, ledger=self.step.ledger.charge(amounts))

    @property
    def _price(self) -> dict[str, float]:
        """What the kernel has reserved for the pending effect."""
        asked = self.step.asked
        return asked.price if asked is not None and self.step.breach is None else {}

    def settle(self, calls: dict[str, float]) -> None:
        """Let the ledger hold these calls for the pending effect, in place of what it held: see `reserve`."""
        more = self._beyond(calls)
        self.charge(more)
        self.calls.state.beyond_price = added(self.calls.state.beyond_price, more)

    def _beyond(self, calls: dict[str, float]) -> dict[str, float]:
        held = added(self._price, self.calls.state.beyond_price)
        return {name: calls.get(name, 0) - held.get(name, 0) for name in COUNTED}

    def reserve(self, calls: dict[str, float]) -> Breach | None:
        """Have these calls reserved before they are begun, unless that would pass a limit.

        The whole rule (spec 7.4): calls are counted before they are begun, all else once it is known. The
        kernel reserves an effect's `price` when it returns the effect, here comes what goes beyond it: calls
        that are made again. Once the machine has the answer, or will never get it, `settle` leaves just the
        calls that were begun. Cost and tokens are charged with the answer (`advance`); what is in no answer,
        by `charge`.
        """
        price, more = self._price, self._beyond(calls)
        asked = {name: more.get(name, 0) for name in price if not price[name] or more[name] > 0}
        # answers that the machine does not have yet may have cost calls that no price covers
        further = {name: self.calls.spent.get(name, 0) for name in COUNTED}
        ledger = self.step.ledger.charge(further)
        breach = ledger.breach(asked) if max(more.values()) > 0 else None
        if breach is None:
            self.settle(calls)
        return breach

    # -- decisions --------------------

    def check_decision(self, decision: Decision) -> None:
        """Raise Refused for a decision that would not count; one that may be early cannot be judged yet."""
        self.check_live()
        if not self.may_be_early(decision):
            self.requests.check(decision, self.host.now())

    def may_be_early(self, decision: Decision) -> bool:
        """Whether a decision may be about a request that the run has not opened yet.

        That happens in a run that was reset, and where a worker showed the request but lost its workflow
        task: the repeated task hears the decision before it opens the request. Asked only before a decision
        is accepted: a replay outside of a worker does not know that the run was reset.
        """
        is_possible = self.identity.reset_since is not None or self.requests.is_next(decision.request)
        return is_possible and self.is_unknown(decision)

    def is_unknown(self, decision: Decision) -> bool:
        """It names a digest that no request has had so far."""
        return bool(decision.digest) and not self.requests.knows(decision.digest)

    def decide(self, decision: Decision) -> Decided:
        """Count a decision; the state of its request afterwards.

        An abort ends the run, also while it is paused or waits for something else. To a machine's own
        question it is just the answer.

        Raises:
            Refused: the decision does not count. One that came before its request is kept where there is
                room, as it then says, and counts once the request is open.
        """
        self.check_live()
        has_room = len(self.early) < EARLY and len(decision.model_dump_json()) <= EARLY_BYTES
        if has_room and self.is_unknown(decision) and decision not in self.early:
            self.early = (*self.early, decision)
        was_open = any(request.id == decision.request for request in self.requests.open_requests)
        try:
            decided = self.requests.decide(decision, self.host.now())
        except Refused as refused:
            if decision in self.early:
                raise Refused(f"{refused.reason} It is kept, and counts if the run asks just that.") from None
            raise
        self.log_requests()
        if was_open and decided.outcome == "aborted" and decided.kind not in OF_THE_MACHINE:
            request = self.requests.get(decided.request)
            abort = Command(command="abort")
            queued = QueuedCommand(abort, texts.decided_by(request), reason=texts.abort_reason(request))
            self.queue.insert(0, queued)
        self.host.publish(())
        return decided

    def _decide_early(self) -> None:
        """Count the decisions that came before their requests, which are open now."""
        for decision in self.early:
            if self.requests.knows(decision.digest):
                self.early = tuple(one for one in self.early if one is not decision)
                with suppress(Refused):
                    self.decide(decision)

    def check_live(self) -> None:
        """Raises Refused when the run is over."""
        if self.step.exit is not None:
            raise Refused("The run is over; nothing can be decided or commanded any more.")

    # -- waiting for people --------------------

    async def wait_until(self, condition: Callable[[], bool], why: str) -> None:
        """Wait, and keep the deadlines of requests. Raises Preempted when a command comes."""
        self._decide_early()
        while not condition():
            if self.host.cancelled():
                raise asyncio.CancelledError
            if self.queue:
                raise Preempted
            self.host.publish(())
            deadline = self.requests.next_deadline
            seconds = None if deadline is None else max(deadline - self.host.now(), 0)
            if seconds != 0:
                await self.host.wait(lambda: condition() or bool(self.queue), seconds, why)
            self.requests.keep_deadlines(self.host.now())
            self.log_requests()
            self._decide_early()  # about the request as an escalation has changed it
            if not condition():
                await self.host.between()

    def open(self, topic: texts.Topic, name: str, required: RequiredApproval | None = None) -> Request:
        """Ask people; a request that was opened there before is found again."""
        s = self.step.snapshot
        position = Position(
            machine=self.step.program.machine.name, state=s.state, step=s.step, activity_id=name
        )
        request = self.requests.open(topic, position, now=self.host.now(), required=required)
        self.log_requests()
        return request

    async def ask(
        self, topic: texts.Topic, name: str, required: RequiredApproval | None = None
    ) -> Request | None:
        """A request once it is closed; None when the run is unattended."""
        if self.people.unattended:
            return None
        request = self.open(topic, name, required)
        await self.wait_until(lambda: not self.requests.get(request.id).is_open, f"{topic.kind} {request.id}")
        return self.requests.get(request.id)

    def end_if_decided(self, request: Request | None) -> bool:
        """End the run if its deadline leads to that; True: it is over. Raises Preempted if an abort was
        decided: it is in the queue."""
        if request is None:
            return False
        if request.outcome == "aborted" and request.kind not in OF_THE_MACHINE:
            raise Preempted
        if request.expiry == "abort":
            self.close("expired", texts.expiry(request), by="deadline")
            return True
        return False

    def log_requests(self) -> None:
        """What happened to requests goes into the log and to those who are notified."""
        for event in self.requests.take_events():
            self.log_event(event.event, by=event.by, reason=event.reason, about=event.about)
            if event.moment is not None and event.moment in self.people.notify:
                self.host.notify(event.moment, event.request)

    # -- the end --------------------

    def close(self, reason: str, error: str, by: str = "person") -> None:
        """End the run where it is; open requests are withdrawn."""
        self.leave(f"the run ended: {reason}")
        self.adopt(close(self.step, reason, now=self.host.now(), error=error, by=by))

    def fail(self, kind: str, error: str) -> None:
        """End the run where it is: its machine broke a rule that the kernel does not see."""
        self.leave(error)
        self.log_event(kind, error=error)
        exit_ = Exit(reason="broken_rule", error=error, raises=kind)
        self.adopt(replace(self.step, records=(), asked=None, breach=None, live=None, exit=exit_))

    def leave(self, why: str) -> None:
        """The machine will not get an answer to the pending effect: withdraw requests, log the calls that
        were made, count what they cost."""
        self.requests.withdraw(self.host.now(), why)
        self.log_requests()
        for name, result in self.calls.made:
            self.log_event("CallMade", reason=f"{result.tool} at {name}: {result.output[:LOGGED]}")
        self.charge(added(self.calls.spent, self.calls.take_unbilled(), self.calls.drop_early()))
        self.settle(self.calls.state.begun)
        self.calls.reset()
        # Settled: the ledger holds nothing more for the effect.
        self.calls.state.beyond_price = {name: -amount for name, amount in self._price.items()}

    # -- what others see --------------------

    def _summary(self) -> dict[str, Any]:
        s, machine, exit_ = self.step.snapshot, self.step.program.machine, self.step.exit
        return {
            "agent": self.task.name,
            "machine": machine.name,
            "machine_version": machine.version,
            "state": s.state,
            "step": s.step,
            "branch": s.branch,
            "exit_reason": exit_.reason if exit_ else None,
            "answer": exit_.answer if exit_ else None,
            "error": exit_.error if exit_ else None,
            "counters": dict(self.step.ledger.refund(self.not_begun).spent),
            "records": s.seq,
            "origin": self.task.fork.origin if self.task.fork else None,
            "was_reset": self.identity.reset_since is not None,
        }

    def status(self, unusable: Iterable[str] = ()) -> RunStatus:
        """Where the run is; `unusable` are names of signals that could not be understood."""
        summary, s, effect = self._summary(), self.step.snapshot, self.step.effect
        cut = {name: summary[name] and summary[name][:SHOWN] for name in ("answer", "error")}
        waiting = next((one.kind for one in self.requests.open_requests), "paused" if self.paused else "")
        # of several calls, one that waits for its next attempt
        not_begun = max(self.calls.waiting.values(), key=lambda one: one.at or 0, default=None)
        failing: dict[str, Any] = {}
        if not_begun is not None:
            failing = {"failing": not_begun.text, "attempt": not_begun.attempt, "next_try": not_begun.at}
        return RunStatus(
            **{**summary, **cut, **failing},
            visit=s.visit,
            doing=(self.calls.summary or self.calls.prepared_effect or effect).title if effect else "",
            children=tuple(self.calls.children),
            caps=dict(self.step.ledger.caps),
            waiting=waiting,
            paused=self.paused,
            requests=len(self.requests.open_requests),
            inbox=sum(not note.from_run for note in s.inbox),
            unusable_messages=tuple(unusable),
            finished=self._last_at if self.step.exit else None,
        )

    def result(self, log_head: str = "") -> RunResult:
        """What came out; `log_head` is the hash of the log's last record. The run must be over."""
        exit_ = self.step.exit
        assert exit_ is not None, "the run is not over"
        return RunResult(
            **self._summary(),
            ok=exit_.ok,
            outcome=exit_.outcome,
            workflow_id=self.identity.workflow_id,
            run_id=self.identity.origin,
            log_head=log_head,
            calls=tuple(self.calls.done),
            decisions=self.requests.decisions(),
            unheard=tuple(note.content for note in self.step.snapshot.inbox if not note.from_run),
            raises=exit_.raises,
        )
