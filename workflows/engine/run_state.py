"""A live run: where it is, what it asks people, what it has spent, and how that is written down.

It holds and never moves by itself: `loop.py` moves it, `commands.py` obeys what people order, `calls/` makes
the calls. None of them is known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from activities.contracts import (
    AskPerson,
    JsonObject,
    LabelSource,
    Message,
    PersonDecided,
    ToolSpec,
    added,
)
from workflows.api import AgentTask, RunResult, RunStatus
from workflows.gate import texts
from workflows.gate.approvals import ApprovalPolicy, RequiredApproval, person_label
from workflows.gate.bounds import WITHIN_BOUND, Bounds
from workflows.gate.decisions import CommandGate, Refused
from workflows.gate.requests import RequestPlace, Requests
from workflows.gate.stuck import StuckGuard
from workflows.hosts import Host, Identity
from workflows.kernel.ledger import Breach
from workflows.kernel.snapshot import Suspension
from workflows.kernel.transition import log_event, steer
from workflows.people import Bound, Command, CommandDone, Decided, Decision, DoneCall, Kind, Request

__all__ = ["Preempted", "QueuedCommand", "RunEnds", "RunState"]

COUNTED = ("model_calls", "tool_calls")
"""Counters of calls."""
MAX_EARLY, MAX_EARLY_BYTES = 100, 16_384
"""Decisions that are kept until what they are about is asked, and the most bytes of each as JSON."""
DECISION_FACTS = {"request", "digest", "decision", "id", "by", "made_at"}
"""What the log says of a decision that does not count, or came before; its arguments may be long."""
COMMENT_CHARS = 500
"""Characters of the text of a refused one."""
RENUMBERED = {"approval", "question", "escalation"}
"""Kinds of request whose digest is over all that a person sees."""
MAX_STATUS_CHARS = 2000
"""Of answer and error in a status; the result has the whole."""
OF_THE_MACHINE = {"question", "escalation"}
"""Kinds of request whose `abort` is an answer to the machine that asked."""
BY_PEOPLE = {"Voted", "Decided"}
"""What people do to requests: their words and arguments come into the run."""
_DECISIONS: TypeAdapter[tuple[Decision, ...]] = TypeAdapter(tuple[Decision, ...])


class Preempted(Exception):
    """A command came: what is being done is left, and taken up again after it."""


class RunEnds(Exception):
    """The run ends here, for a reason that people or their deadline gave."""

    def __init__(self, reason: str, text: str, by: str) -> None:
        super().__init__(text)
        self.reason, self.text, self.by = reason, text, by


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


class RunState:
    """One run at a moment."""

    def __init__(
        self,
        host: Host,
        task: AgentTask,
        specs: Mapping[str, ToolSpec],
        identity: Identity,
        suspension: Suspension,
    ) -> None:
        """`specs` by name, filled when they are known."""
        self.host, self.task, self.specs, self.identity = host, task, specs, identity
        self.people = task.people
        self.suspension = suspension
        self.queue: list[QueuedCommand] = []
        """Commands that came and are not obeyed yet."""
        self.paused = False
        self.performing = False
        """An effect is under way."""
        self.interrupted_at = -1
        """The highest number of steps at which the run was paused: `interrupt_every` asks once for each."""
        self.early_decisions: tuple[Decision, ...] = ()
        """Decisions about what this run has not asked, the newest ones. They count once it asks just that:
        only a run that was reset has asked it before."""
        self.begun: dict[str, float] = {}
        """Calls of the pending effect that were begun, by counter; one that is made again counts again."""
        self.beyond_price: dict[str, float] = {}
        """What the ledger holds for them beyond the effect's price, by counter."""
        self.limits_changed = 0
        """How often people changed limits while the effect was pending."""
        self._last_at = 0.0
        """When the newest record was written."""
        self._unpublished = suspension.records
        """Of the run's beginning: what a person sends before the loop runs comes after them."""
        self.last_reason = ""
        """Of the newest transition."""
        me = {"workflow_id": identity.workflow_id, "origin": identity.origin}
        self.command_gate = CommandGate(
            task.people, **me, parents=identity.parents, old_ids=identity.old_command_ids
        )
        """Who may command, and which commands came already."""
        self.stuck = StuckGuard(task.stuck, specs)
        self.requests = Requests(ApprovalPolicy(task.approvals, task.people, specs, task.bounds), **me)

    def load(self, values: Any) -> None:
        """Go on as the execution before. Raises ValueError and the like for what is no dump."""
        me = {"workflow_id": self.identity.workflow_id, "origin": self.identity.origin}
        self.requests = Requests.load(values["requests"], self.requests.policy, **me)
        self.command_gate.load(values["commands"])
        self.stuck.load(values["stuck"])
        self.early_decisions = _DECISIONS.validate_python(values["early_decisions"])
        self.paused, self.interrupted_at = bool(values["paused"]), int(values["interrupted_at"])
        self.last_reason = str(values["last_reason"])
        self.begun, self.beyond_price = dict(values["begun"]), dict(values["beyond_price"])
        self.limits_changed = int(values["limits_changed"])

    def dump(self) -> JsonObject:
        """All that `load` needs, as JSON."""
        return {
            "requests": self.requests.dump(),
            "commands": self.command_gate.dump(),
            "stuck": self.stuck.dump(),
            "early_decisions": _DECISIONS.dump_python(self.early_decisions, mode="json"),
            "paused": self.paused,
            "interrupted_at": self.interrupted_at,
            "last_reason": self.last_reason,
            "begun": dict(self.begun),
            "beyond_price": dict(self.beyond_price),
            "limits_changed": self.limits_changed,
        }

    # -- the log --------------------

    def adopt(self, suspension: Suspension) -> None:
        """Take a move over."""
        self.suspension = suspension
        records, self._unpublished = (*self._unpublished, *suspension.records), ()
        self.last_reason = next((r.summary for r in reversed(records) if r.to), self.last_reason)
        self._last_at = records[-1].at if records else self._last_at
        self.host.publish(records)

    def log_event(self, event: str, *, by: str = "kernel", **more: Any) -> None:
        """Write something into the log; `more` are `reason`, `about`, `error` and `brings`."""
        now = self.host.now()
        self.adopt(log_event(self.suspension, event, now=now, by=by, not_begun=self.not_begun, **more))

    def log_bounds(self, what: str, activity_id: str, bounds: Sequence[Bound]) -> None:
        """Log what may pass unasked within these bounds, or, of an inner run, has."""
        facts: list[Any] = [one.model_dump(mode="json") for one in bounds]
        about: JsonObject = {"activity_id": activity_id, "bounds": facts}
        self.log_event(WITHIN_BOUND, reason=texts.within_bound(what, bounds), about=about)

    def steer(self, text: str, *, by: str, about: JsonObject) -> None:
        """A message to the model: the next question brings it. One from a person ends every circle."""
        now = self.host.now()
        if by != "kernel":
            self.stuck.reset()
            self.requests.withdraw(now, "a person's message has come", kind="stuck")
        message = Message(role="user", content=text, from_run=by == "kernel")
        self.adopt(steer(self.suspension, message, now=now, by=by, about=about, not_begun=self.not_begun))

    @property
    def place(self) -> str:
        """The activity id of the pending effect."""
        return self.suspension.snapshot.place

    @property
    def labels(self) -> tuple[LabelSource, ...]:
        """What the run has read that is untrusted or private, and what brought it."""
        return self.suspension.snapshot.labels

    # -- the ledger --------------------

    @property
    def bounds(self) -> Bounds:
        """What may pass unasked, and has."""
        return self.requests.policy.bounds

    @property
    def not_begun(self) -> dict[str, float]:
        """What the ledger holds for calls of the pending effect that were not begun, by counter: one that
        waits for an approval was not made."""
        if self.suspension.asked is None:
            return {}
        return {name: -more for name, more in self._beyond(self.begun).items() if more}

    def begin(self, counter: str, times: int = 1) -> None:
        """Count a call that begins."""
        begun = added(self.begun, {counter: times})
        self.begun = {name: count for name, count in begun.items() if count}

    def charge(self, amounts: dict[str, float]) -> None:
        """Count what was spent outside of an answer."""
        if any(amounts.values()):
            ledger = self.suspension.ledger.charge(amounts)
            self.suspension = replace(self.suspension, ledger=ledger)

    @property
    def price(self) -> dict[str, float]:
        """What the kernel has reserved for the pending effect."""
        asked = self.suspension.asked
        return asked.price if asked is not None and self.suspension.breach is None else {}

    def settle(self, calls: dict[str, float] | None = None) -> None:
        """Let the ledger hold these calls for the pending effect, in place of what it held: those that were
        begun, if none are given. See `reserve`."""
        more = self._beyond(self.begun if calls is None else calls)
        self.charge(more)
        self.beyond_price = added(self.beyond_price, more)

    def _beyond(self, calls: dict[str, float]) -> dict[str, float]:
        held = added(self.price, self.beyond_price)
        return {name: calls.get(name, 0) - held.get(name, 0) for name in COUNTED}

    def reserve(self, calls: dict[str, float], spent: dict[str, float]) -> Breach | None:
        """Have these calls reserved before they are begun, unless that would pass a limit.

        The whole rule (spec 7.4): calls are counted before they are begun, all else once it is known. The
        kernel reserves an effect's `price` when it returns the effect, here comes what goes beyond it: calls
        that are made again. Once the machine has the answer, or will never get it, `settle` leaves just the
        calls that were begun. Cost and tokens are charged with the answer (`advance`); what is in no answer,
        by `charge`. `spent` is in answers that the machine does not have yet: they may have cost calls that
        no price covers.
        """
        price, more = self.price, self._beyond(calls)
        asked = {name: more.get(name, 0) for name in price if not price[name] or more[name] > 0}
        ledger = self.suspension.ledger.charge({name: spent.get(name, 0) for name in COUNTED})
        breach = ledger.breach(asked) if max(more.values()) > 0 else None
        if breach is None:
            self.settle(calls)
        return breach

    def forget_effect(self) -> None:
        """Another effect follows."""
        self.begun, self.beyond_price, self.limits_changed = {}, {}, 0
        self.bounds.settle()

    def abandon_effect(self) -> None:
        """The pending effect gets no answer. It is settled: the ledger holds nothing more for it."""
        self.settle()
        self.forget_effect()
        self.beyond_price = {name: -amount for name, amount in self.price.items()}

    # -- decisions --------------------

    def check_decision(self, decision: Decision) -> None:
        """Raise Refused for a decision that would not count; one that may be early cannot be judged yet."""
        self.check_live()
        if not self.may_be_early(decision):
            self.requests.check(decision, self.host.now())

    def counts(self, decision: Decision) -> bool:
        """`decide` would count it now: it is not refused, comes neither early nor again."""
        return self.suspension.exit is None and self.requests.counts(decision, self.host.now())

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
        has_room = (
            len(self.early_decisions) < MAX_EARLY and len(decision.model_dump_json()) <= MAX_EARLY_BYTES
        )
        if has_room and self.is_unknown(decision) and decision not in self.early_decisions:
            self.early_decisions = (*self.early_decisions, decision)
        was_open = any(request.id == decision.request for request in self.requests.open_requests)
        try:
            decided = self.requests.decide(decision, self.host.now())
        except Refused as refused:
            if decision in self.early_decisions:
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
        for decision in self.early_decisions:
            if self.requests.knows(decision.digest):
                self.early_decisions = tuple(one for one in self.early_decisions if one is not decision)
                try:
                    self.decide(self._renumbered(decision))
                except Refused as refused:
                    self.log_refused(decision, str(refused))

    def _renumbered(self, decision: Decision) -> Decision:
        """About the open request for just this call or question. It may have had another number before the
        run was reset, as more or less was asked before it. A signature is over the number, too; the digest of
        other kinds says where the run stands, not what a person has seen there."""
        requests = [one for one in self.requests.open_requests if one.digest == decision.digest]
        named = [one.id for one in requests if one.kind in RENUMBERED]
        if decision.signature or not named or any(one.id == decision.request for one in requests):
            return decision
        return decision.model_copy(update={"request": named[0]})

    def log_refused(self, decision: Decision, why: str) -> None:
        """Log a decision that does not count, with what it says."""
        about = decision.model_dump(mode="json", include=DECISION_FACTS, exclude_defaults=True)
        about["text"] = decision.text[:COMMENT_CHARS]
        self.log_event(
            "RefusedDecision", by=person_label(decision.by, verified=False), about=about, error=why
        )

    def check_live(self) -> None:
        """Raises Refused when the run is over."""
        if self.suspension.exit is not None:
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
        s = self.suspension.snapshot
        place = RequestPlace(
            machine=self.suspension.program.machine.name, state=s.state, step=s.step, activity_id=name,
            labels=s.labels,
        )  # fmt: skip
        request = self.requests.open(topic, place, now=self.host.now(), required=required)
        self.log_requests()
        return request

    async def ask(
        self, topic: texts.Topic, name: str, required: RequiredApproval | None = None
    ) -> Request | None:
        """A request once it is closed; None when the run is unattended. Raises as `closed_request`."""
        if self.people.unattended:
            return None
        request = self.open(topic, name, required)
        await self.wait_until(lambda: not self.requests.get(request.id).is_open, f"{topic.kind} {request.id}")
        return self.closed_request(request.id)

    def closed_request(self, request_id: str) -> Request:
        """A request that is closed. Raises RunEnds if its deadline leads to that, and Preempted if an abort
        was decided: it is in the queue."""
        request = self.requests.get(request_id)
        if request.outcome == "aborted" and request.kind not in OF_THE_MACHINE:
            raise Preempted
        if request.expiry == "abort":
            raise RunEnds("expired", texts.expiry(request), "deadline")
        return request

    async def ask_people(self, effect: AskPerson, name: str) -> PersonDecided:
        """Ask people the question of the machine; what they decide. Raises as `closed_request`."""
        request = await self.ask(texts.question(effect), name)
        if request is None:
            return PersonDecided(decision="unavailable", text="nobody can be asked")
        vote = request.deciding_vote
        if vote is None:
            yes: Any = "approve" if "approve" in request.options else "resume"
            verb = yes if request.expiry == "approve" else "unavailable"
            return PersonDecided(decision=verb, text=texts.expiry(request), by="deadline")
        verb = vote.verb  # one of the options of an AskPerson
        return PersonDecided(decision=verb, text=vote.text, by=texts.decided_by(request))

    def log_requests(self) -> None:
        """What happened to requests goes into the log and to those who are notified."""
        step, people = self.suspension.snapshot.step, self.task.labels
        for event in self.requests.take_events():
            brings = people.of_people(event.by, step) if event.event in BY_PEOPLE else ()
            self.log_event(event.event, by=event.by, reason=event.reason, about=event.about, brings=brings)
            if event.moment is not None and event.moment in self.people.notify:
                self.host.notify(event.moment, event.request)

    def withdraw_requests(self, why: str, kind: Kind | None = None, only: str | None = None) -> None:
        """Requests of this kind, `only` this one, or all, are no longer asked."""
        self.requests.withdraw(self.host.now(), why, kind=kind, only=only)
        self.log_requests()

    # -- what others see --------------------

    def _summary(self) -> dict[str, Any]:
        s, machine, exit_ = self.suspension.snapshot, self.suspension.program.machine, self.suspension.exit
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
            "counters": dict(self.suspension.ledger.refund(self.not_begun).spent),
            "bounds": self.bounds.state(),
            "labels": s.labels,
            "records": s.seq,
            "origin": self.task.fork.origin if self.task.fork else None,
            "was_reset": self.identity.reset_since is not None,
        }

    def status(self, doing: Mapping[str, Any], unusable: Iterable[str]) -> RunStatus:
        """Where the run is. `doing` are the status' fields about calls; `unusable` are names of signals that
        could not be understood."""
        summary, s = self._summary(), self.suspension.snapshot
        cut = {name: summary[name] and summary[name][:MAX_STATUS_CHARS] for name in ("answer", "error")}
        waiting = next((one.kind for one in self.requests.open_requests), "paused" if self.paused else "")
        return RunStatus(
            **{**summary, **cut, **doing},
            visit=s.visit,
            caps=dict(self.suspension.ledger.caps),
            waiting=waiting,
            paused=self.paused,
            requests=len(self.requests.open_requests),
            inbox=sum(not note.from_run for note in s.inbox),
            unusable_messages=tuple(unusable),
            finished=self._last_at if self.suspension.exit else None,
        )

    def result(self, calls: Iterable[DoneCall], log_head: str) -> RunResult:
        """What came out, with the calls that were made outside; `log_head` is the hash of the log's last
        record. The run must be over."""
        exit_ = self.suspension.exit
        assert exit_ is not None, "the run is not over"
        return RunResult(
            **self._summary(),
            ok=exit_.ok,
            outcome=exit_.outcome,
            output=exit_.output,
            workflow_id=self.identity.workflow_id,
            run_id=self.identity.origin,
            log_head=log_head,
            calls=tuple(calls),
            decisions=self.requests.decisions(),
            unheard=tuple(note.content for note in self.suspension.snapshot.inbox if not note.from_run),
            raises=exit_.raises,
        )
