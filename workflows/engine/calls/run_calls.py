"""What all calls of a run share: their records, what is under way, what was done, and the features of calls.

A feature (compaction, fallback, early questions) has its decisions, its state and its dump in its own file.
Here it is made and carried on.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from activities.contracts import (
    AskModel,
    AskPerson,
    CallTools,
    Effect,
    JsonObject,
    PersonDecided,
    Together,
    ToolInput,
    ToolResult,
    added,
)
from activities.contracts.titles import cut
from workflows.engine.calls.call_site import call_site
from workflows.engine.calls.done import DoneCalls
from workflows.engine.calls.early import EarlyQuestions
from workflows.engine.calls.records import PendingEffect
from workflows.engine.calls.under_way import UnderWay
from workflows.engine.compaction import Compaction
from workflows.engine.fallback import Fallbacks, ModelChange
from workflows.engine.run_state import RunState
from workflows.hosts import CallSite, HostCall
from workflows.kernel.labels import first_of_each
from workflows.kernel.snapshot import Suspension
from workflows.kernel.transition import close

__all__ = ["RunCalls"]

MAX_LOGGED_CHARS = 500
"""Of an output in the log, where no machine was given it."""
UnlessPreempted = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
"""`CommandQueue.unless_preempted` in `commands.py`."""
_RESULTS: TypeAdapter[dict[str, ToolResult]] = TypeAdapter(dict[str, ToolResult])


class RunCalls:
    """The calls of one run."""

    unless_preempted: UnlessPreempted
    """Does work for the pending effect; raises Preempted when a command ends it. `connect` gives it."""

    def __init__(self, run: RunState) -> None:
        self.run = run
        self.pending = PendingEffect()
        """Of the pending effect."""
        self.prepared: Effect[Any] | None = None
        """The pending effect as its calls are made."""
        self.under_way = UnderWay(run)
        self.done = DoneCalls(run, self.under_way)
        self.cached: dict[str, ToolResult] = {}
        """Results of tools with `cache: run`, by call."""
        self.compaction = Compaction(run.task)
        self.fallbacks = Fallbacks(run.task.models)
        self.early = EarlyQuestions(run.task, run.specs)
        self._unbilled: dict[str, float] = {}
        """What calls under way have spent that is in no answer; charged when they end or are stopped."""

    def connect(self, unless_preempted: UnlessPreempted) -> None:
        """Let commands end what is under way."""
        self.unless_preempted = unless_preempted

    def dump(self) -> JsonObject:
        """All that `load` needs, as JSON."""
        return {
            "pending": self.pending.model_dump(mode="json"),
            "done": self.done.dump(),
            "cached": _RESULTS.dump_python(self.cached, mode="json"),
            "compaction": self.compaction.dump(),
            "fallbacks": self.fallbacks.dump(),
            "early": self.early.dump(),
        }

    def load(self, values: Any) -> None:
        """Go on as the execution before. Raises ValueError and the like for what is no dump."""
        self.pending = PendingEffect.model_validate(values["pending"])
        self.done.load(values["done"])
        self.cached = _RESULTS.validate_python(values["cached"])
        self.compaction.load(values["compaction"])
        self.fallbacks.load(values["fallbacks"])
        self.early.load(values["early"])

    # -- costs --------------------

    def add_unbilled(self, *amounts: dict[str, float]) -> None:
        """Note what was spent and is in no answer."""
        self._unbilled = added(self._unbilled, *amounts)

    def charge_unbilled(self, *amounts: dict[str, float]) -> None:
        """Count what was spent and is in no answer, with these amounts."""
        unbilled, self._unbilled = self._unbilled, {}
        self.run.charge(added(*amounts, unbilled))

    # -- performing --------------------

    def before_effect(self) -> None:
        """An effect is taken on: roles whose fallback was asked long enough have their own model again."""
        if not self.run.begun:
            self.log_models(self.fallbacks.end_expired(self.run.host.now()))

    def log_models(self, changes: Sequence[ModelChange]) -> bool:
        """Other models are asked from now on. True: the questions that failed are asked again."""
        for change in changes:
            self.run.log_event("ModelChanged", reason=change.text, about=change.model_dump(mode="json"))
        return any(change.asked for change in changes)

    def forget_failures(self) -> None:
        """People have changed something, or time has passed: what failed may work now."""
        self.compaction.try_again()

    def start_over(self) -> None:
        """The calls of the pending effect begin."""
        self.under_way.start_over()
        if not isinstance(self.run.suspension.asked, AskModel):
            self.add_unbilled(self.early.drop())

    def site(self, name: str, title: str = "", **more: Any) -> CallSite:
        """Where a call of the effect under way is made."""
        run = self.run
        return call_site(run.identity, self.under_way.since, name, title, run.host.now(), **more)

    def question_site(self, run_then: Suspension, name: str, effect: AskModel, now: float) -> CallSite:
        """Where a question is asked, with all messages that are sent; `effect` as it is asked."""
        sent = self.compaction.sent(run_then.snapshot.conversation, effect)
        return call_site(
            self.run.identity, run_then, name, effect.title, now, conversation=sent.add(*effect.say),
            requests=1 + self.spare_requests(run_then),
        )  # fmt: skip

    def spare_requests(self, run_then: Suspension) -> float:
        """How many requests a question may send beyond the one that is reserved: what is left; side by side,
        the share that all of them got when they began."""
        if isinstance(run_then.asked, Together):
            return self.under_way.spare_requests
        return left_requests(run_then, {})

    async def perform(self, call: HostCall, site: CallSite, name: str) -> Any:
        """What the host's call came to. A question whose reply came early has it already; a tool's call may
        bring the reply to the question after it."""
        if isinstance(call, AskModel):
            site, dropped = self.early.use_reply(call, site)
            self.add_unbilled(dropped)
        elif isinstance(call, ToolInput) and isinstance(self.prepared, CallTools):
            following = self.early.question_after(
                name, self.prepared, self.under_way.since, self.pending, self._ask_at_once
            )
            site = replace(site, next_question=following)
        answer = await self.run.host.perform(call, site)
        if isinstance(answer, ToolResult):
            answer, unanswered = self.early.take_early_reply(answer)
            self.add_unbilled(unanswered)
        return answer

    def _ask_at_once(
        self, after: Suspension, effect: AskModel, now: float
    ) -> tuple[AskModel, CallSite] | None:
        """How the machine's next question is asked; None: calls are held back, or a summary comes first."""
        asked = self.fallbacks.as_asked(effect, now)
        if self.under_way.is_held or self.compaction.is_due(after.snapshot.conversation, asked):
            return None
        return asked, self.question_site(after, after.snapshot.place, asked, now)

    def label_summary(self) -> None:
        """After a rollback: the summary of older messages may tell of what the run has left behind."""
        brings = self.compaction.labels(self.run.suspension.snapshot.conversation)
        if len(first_of_each((*self.run.labels, *brings))) > len(self.run.labels):
            text = (
                "the summary of older messages, which is still sent, was written when the run had this label"
            )
            self.run.log_event("Labelled", reason=text, brings=brings)

    async def ask_people(self, effect: AskPerson, name: str) -> PersonDecided:
        """Ask people the question of the machine; what they decide. Raises as `RunState.closed_request`."""
        with self.under_way.shown(f"asking a person: {cut(effect.text, 120)}"):
            return await self.run.ask_people(effect, name)

    # -- the end of an effect --------------------

    def forget_effect(self) -> None:
        """Another effect follows."""
        self._forget_calls()
        self.run.forget_effect()

    def _forget_calls(self) -> None:
        self.pending, self.prepared = PendingEffect(), None
        self.compaction.forget_question()
        self.fallbacks.given_up.clear()

    def abandon_effect(self, why: str) -> None:
        """The machine will not get an answer to the pending effect: withdraw requests, log the calls that
        were made, count what they cost."""
        run = self.run
        run.withdraw_requests(why)
        for name, result in self.pending.made.items():
            text = f"{result.tool} at {name}: {result.output[:MAX_LOGGED_CHARS]}"
            run.log_event("CallMade", reason=text)
        self.add_unbilled(self.early.drop())
        self.charge_unbilled(self.pending.spent)
        self._forget_calls()
        run.abandon_effect()

    def close(self, reason: str, error: str, by: str = "person") -> None:
        """End the run where it is; open requests are withdrawn."""
        self.abandon_effect(f"the run ended: {reason}")
        run = self.run
        run.adopt(close(run.suspension, reason, now=run.host.now(), error=error, by=by))

    @property
    def unknown_text(self) -> str:
        """What is unknown of the calls of a run that is stopped, and what its inner runs said."""
        names = ", ".join([*self.under_way.unsafe, *self.pending.unknown_outcomes])
        unknown = f"; outcome unknown: {names}" if names else ""
        return unknown + "".join(f"; its inner run: {one.text}" for one in self.pending.children_stopped)

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of the run's status about its calls."""
        effect, doing = self.prepared or self.run.suspension.effect, self.under_way.doing
        words, since = doing or (effect.title if effect else "", None)
        found: dict[str, Any] = {
            "doing": words,
            "doing_since": since,
            "children": tuple(self.under_way.children),
        }
        # of several calls, one that waits for its next attempt
        waiting = self.under_way.waiting.values()
        if (waits := max(waiting, key=lambda one: one.at or 0, default=None)) is not None:
            found |= {"failing": waits.text, "attempt": waits.attempt, "next_try": waits.at}
        return found


def left_requests(run_then: Suspension, spent: dict[str, float]) -> float:
    """Questions that the run may still ask."""
    ledger = run_then.ledger.charge(spent)
    return math.inf if "model_calls" in ledger.advice else ledger.left("model_calls")
