"""The calls of the pending effect together: made in order or side by side, while nothing holds them back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from activities.contracts import (
    Answers,
    AskModel,
    AskPerson,
    CallTools,
    Effect,
    ReadArtifacts,
    RunCode,
    RunMachine,
    Together,
    ToolsReturned,
    added,
)
from workflows.engine.calls.call import Call, PersonsAnswer, SandboxCall
from workflows.engine.calls.inner_run import InnerRun
from workflows.engine.calls.model_call import PendingModelCall, recover_model_calls
from workflows.engine.calls.run_calls import RunCalls, left_requests
from workflows.engine.calls.tool_call import PendingToolCall
from workflows.engine.calls.under_way import time_breach
from workflows.kernel.activity_ids import members, tool_calls
from workflows.kernel.ledger import Breach

__all__ = ["EffectCalls"]

T = TypeVar("T")

STOPPING = {"unknown_outcome", "unknown_tool"}
"""Errors after which the next calls in the row are not made: the machine decides first (R-001-7)."""


class ToolCalls:
    """Those of one `CallTools`."""

    def __init__(self, calls: RunCalls, name: str, effect: CallTools) -> None:
        self._wanted = effect
        self.calls = [
            PendingToolCall(calls, one, call, effect.attempts)
            for one, call in tool_calls(effect, name).items()
        ]

    @property
    def effect(self) -> CallTools:
        """With each call as it is made."""
        return self._wanted.model_copy(update={"calls": tuple(one.call for one in self.calls)})

    async def make(self) -> ToolsReturned:
        """Their results: side by side if the machine wants that and all may be repeated, else in order."""
        specs = [one.run.specs.get(one.call.tool) for one in self.calls]
        if self._wanted.parallel and all(spec is not None and spec.repeatable for spec in specs):
            return ToolsReturned(results=tuple(await _all(one.make() for one in self.calls)))
        results = []
        for one in self.calls:
            results.append(await one.make())
            if results[-1].error in STOPPING:
                break
        return ToolsReturned(results=tuple(results))


class EffectCalls:
    """The calls of the run's pending effect, with their records."""

    def __init__(self, calls: RunCalls) -> None:
        """Created each time the effect is resumed: a person's message may have changed it."""
        self.calls, self.run = calls, calls.run
        effect = self.run.suspension.effect
        assert effect is not None
        self._wanted = self.effect = effect
        """As the machine wants it; and with arguments as they are sent, and the models that are asked."""
        self._is_several = isinstance(effect, Together)
        self._members = [_member(calls, name, one) for name, one in members(effect, self.run.place)]
        self.model_calls = [one for one in self._members if isinstance(one, PendingModelCall)]
        self.tool_calls = [call for one in self._members if isinstance(one, ToolCalls) for call in one.calls]

    # -- before --------------------

    async def ready(self) -> None:
        """Ask people: first what the machine asks beside its calls, then for all calls that need approval, at
        once. Raises Preempted and RunEnds."""
        self.calls.before_effect()
        for one in self._members:
            if isinstance(one, PersonsAnswer):
                await one.ask()
        self.prepare()
        for call in self.tool_calls:
            call.request_approval()
        asked = [call for call in self.tool_calls if call.record.request]

        def is_settled() -> bool:
            requests = [self.run.requests.get(call.record.request) for call in asked]
            return any(one.expiry == "abort" for one in requests) or not any(one.is_open for one in requests)

        await self.run.wait_until(is_settled, "approval")
        for call in asked:
            call.apply_decision(self.run.closed_request(call.record.request))
        if any(call.record.arguments is not None for call in self.tool_calls):  # a person gave others
            self.prepare()

    def prepare(self) -> None:
        """Bring calls to the form in which they are made."""
        for call in self.tool_calls:
            call.fit()
        given = tuple(one.effect for one in self._members)
        self.effect = self._wanted.model_copy(update={"effects": given}) if self._is_several else given[0]
        self.calls.prepared = self.effect

    async def breach(self) -> Breach | None:
        """Shorten a question that is too long, reserve the calls. A Breach: of a limit that this meets."""
        is_missing = any(one.answer is None for one in self.calls.pending.calls.values())
        begins = is_missing and not self.is_unknown  # an unknown outcome is recovered first
        if begins and (breach := time_breach(self.run.suspension, self.run.host.now())):
            return breach  # people may have taken their time
        only = self._members[0]
        if isinstance(only, PendingModelCall) and not self._is_several and (breach := await only.shorten()):
            return breach
        pending: dict[str, float] = {
            "model_calls": sum(one.record.answer is None for one in self.model_calls),
            "tool_calls": sum(one.record.answer is None for one in self.tool_calls),
        }
        return self.run.reserve(added(self.run.begun, pending), self.calls.pending.spent)

    # -- making them --------------------

    def make(self) -> Coroutine[Any, Any, Any]:
        """The answer to the effect. Raises asyncio.CancelledError when it was stopped before its end; what
        has ended by then is in the records."""
        self.calls.start_over()
        return self._side_by_side() if self._is_several else self._members[0].make()

    async def _side_by_side(self) -> Answers:
        under_way = self.calls.under_way
        missing = [one for one in self._members if isinstance(one, ToolCalls) or one.record.answer is None]
        under_way.siblings = sum(isinstance(one, InnerRun) for one in missing)
        under_way.spare_requests = self._even_share(missing)
        return Answers(answers=tuple(await _all(one.make() for one in self._members)))

    def _even_share(self, missing: Sequence[Call[Any] | ToolCalls]) -> float:
        """What is left for further requests, evenly for the questions that have no answer; none beside inner
        runs, which share it."""
        left = left_requests(self.calls.under_way.since, self.calls.pending.spent)
        model_calls = sum(isinstance(one, PendingModelCall) for one in missing)
        if left == math.inf or not model_calls:
            return left
        return 0 if any(isinstance(one, InnerRun) for one in missing) else left // model_calls

    # -- afterwards --------------------

    @property
    def is_unknown(self) -> bool:
        """The outcome of a tool call is unknown."""
        return any(call.is_unknown for call in self.tool_calls)

    async def recover(self) -> bool:
        """Do what can be done about outcomes that are unknown, then about questions that failed. True: some
        are made again, or have another answer now. Tools look before people are asked to."""
        unknown = [call for call in self.tool_calls if call.is_unknown]
        for call in unknown:
            if await call.reconcile():
                return True
        for call in unknown:
            if await call.ask_people():
                return True
        return await recover_model_calls(self.model_calls)

    def make_again(self) -> None:
        """Give the effect up, and make it again: its question has changed, or its time was over."""
        self.calls.forget_failures()
        if not self._is_several and isinstance(only := self._members[0], Call):
            only.make_again()


def _member(calls: RunCalls, name: str, effect: Effect[Any]) -> Call[Any] | ToolCalls:
    """A single effect as calls."""
    match effect:
        case AskModel():
            return PendingModelCall(calls, name, effect)
        case CallTools():
            return ToolCalls(calls, name, effect)
        case RunMachine():
            return InnerRun(calls, name, effect)
        case AskPerson():
            return PersonsAnswer(calls, name, effect)
        case RunCode() | ReadArtifacts():
            return SandboxCall(calls, name, effect)
    raise TypeError(f"no host performs a {type(effect).__name__}")


async def _all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What all of them gave, once all have ended; raises what the first of them raised."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if not isinstance(one, BaseException)]
