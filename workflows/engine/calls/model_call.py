"""A question to a model: shortened where it is too long, asked of the model that is available, and asked
again where that helps, or where people have fixed what was wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from activities.contracts import (
    MODEL_REFUSED,
    OUT_OF_REQUESTS,
    REFUSAL,
    AskModel,
    EffectFailed,
    JsonObject,
    ModelReplied,
    added,
)
from workflows.engine.calls.call import Call
from workflows.engine.calls.call_site import call_site
from workflows.engine.calls.records import AnswerRecord
from workflows.engine.calls.run_calls import MAX_LOGGED_CHARS
from workflows.engine.compaction import MessageSpan
from workflows.engine.fallback import ModelChange, is_unavailable
from workflows.engine.run_state import Preempted
from workflows.gate import texts
from workflows.hosts import CallSite
from workflows.kernel.ledger import Breach
from workflows.kernel.snapshot import Suspension
from workflows.status import ASKING

__all__ = ["PendingModelCall", "recover_model_calls"]

TOO_LONG = "context_too_long"
"""Type of the failure of a question that the model's window cannot take in."""
MAX_REFUSAL_CHARS = 2000
"""Of a model's refusal to answer."""


class PendingModelCall(Call[AnswerRecord]):
    """One `AskModel`."""

    kind = AnswerRecord
    wanted: AskModel

    @property
    def effect(self) -> AskModel:
        """As it is asked: of the model that is available."""
        return self.calls.fallbacks.as_asked(self.wanted)

    @property
    def failure(self) -> EffectFailed | None:
        """How it failed."""
        answer = self.record.answer
        return answer if isinstance(answer, EffectFailed) else None

    # -- before: a summary in the place of older messages --------------------

    async def shorten(self) -> Breach | None:
        """Have older messages summarised before a question that would fill too much of the model's window.

        A summary is a question like any other: it counts, and meets the limits before and after. A Breach: of
        the limit that it meets. Without a usable summary the question is sent as it is, and also if it is the
        last call that the run may make, unless it was refused.
        """
        run, breach = self.run, None
        while breach is None and (span := self._span()) is not None:
            with_summary = added(run.begun, {"model_calls": 2})
            if (breach := run.reserve(with_summary, self.calls.pending.spent)) is not None:
                is_last = breach.counter == "model_calls" and not self.calls.compaction.shortening.refused
                return None if is_last else breach
            if run.paused:
                raise Preempted
            try:
                reply = await self.calls.unless_preempted(self._summary(span, run.suspension))
            finally:
                self.calls.charge_unbilled()
            if run.host.cancelled() and isinstance(reply, EffectFailed):
                raise asyncio.CancelledError
            run.charge(reply.cost)
            self._take_summary(span, reply)
            ledger, price = run.suspension.ledger, self.effect.price
            breach = ledger.breach({counter: 0 for counter, amount in price.items() if not amount})
        return breach

    def _span(self) -> MessageSpan | None:
        """What shall be summarised before it is asked."""
        compaction = self.calls.compaction
        if compaction.shortening.failed or self.record.answer is not None:
            return None
        snapshot = self.run.suspension.snapshot
        return compaction.span(snapshot, self.effect, refused=compaction.shortening.refused)

    async def _summary(self, span: MessageSpan, run_then: Suspension) -> ModelReplied | EffectFailed:
        """The reply to the question for a summary, which is beside the run's conversation."""
        run, calls = self.run, self.calls
        question = span.question(self.effect)
        times = calls.compaction.shortening.summaries
        name = f"{self.name}~compact" + (f".{times}" if times else "")
        site = call_site(
            run.identity, run_then, name, question.title, run.host.now(),
            conversation=span.conversation.add(*question.say), requests=1 + calls.spare_requests(run_then),
        )  # fmt: skip
        run.begin("model_calls")
        with calls.under_way.shown(f"{ASKING} to {question.title}"):
            reply: Any = await run.host.perform(question, site)
        return self._reply_or_failure(question, site, reply)

    def _take_summary(self, span: MessageSpan, reply: ModelReplied | EffectFailed) -> None:
        """Send it from now on, or the question as it is; log which."""
        compaction, snapshot = self.calls.compaction, self.run.suspension.snapshot
        compaction.shortening.summaries += 1
        text = "" if isinstance(reply, EffectFailed) else reply.text.strip()
        name = f"messages {span.start + 1} to {span.end}"
        about: JsonObject = {"start": span.start, "end": span.end, "tokens_before": span.tokens}
        if text and compaction.replace(span, text, snapshot, self.run.requests.closed_requests):
            after = compaction.tokens(snapshot.conversation, self.effect)
            sizes = f"the question has about {after:,} tokens instead of {span.tokens:,}"
            reason = f"{name} are sent as a summary from now on; {sizes}:\n{text[:MAX_LOGGED_CHARS]}"
            about |= {"tokens_after": after, "summary": text}
            brings = compaction.labels(snapshot.conversation)
            self.run.log_event("Compacted", reason=reason, about=about, brings=brings)
            return
        compaction.failed(snapshot.conversation, self.effect)
        problem = "the summary is no shorter than the messages" if text else "the summary is empty"
        if isinstance(reply, EffectFailed):
            problem = f"{reply.type}: {reply.message[:MAX_LOGGED_CHARS]}"
        self.run.log_event("NotCompacted", reason=f"{name} are sent as they are: {problem}", about=about)

    # -- asking --------------------

    async def perform(self) -> ModelReplied | EffectFailed:
        """Ask."""
        effect, calls = self.effect, self.calls
        self.run.begin("model_calls")
        now = self.run.host.now()
        site = calls.question_site(calls.under_way.since, self.activity_id, effect, now)
        with calls.under_way.shown(ASKING):
            reply = await calls.perform(effect, site, self.name)
        return self._reply_or_failure(effect, site, reply)

    def _reply_or_failure(
        self, effect: AskModel, site: CallSite, reply: ModelReplied | EffectFailed
    ) -> ModelReplied | EffectFailed:
        """What came of a question. A reply that is a refusal is a failure; it is paid all the same."""
        cancelled = isinstance(reply, EffectFailed) and reply.type == "cancelled"
        if cancelled and self.calls.under_way.is_stopped:
            self.calls.add_unbilled(reply.cost)
            raise asyncio.CancelledError
        self.calls.compaction.learn(effect, site.conversation, reply)
        if isinstance(reply, ModelReplied) and reply.finish_reason == REFUSAL:
            self.calls.add_unbilled(reply.cost)
            text = f"the model refused: {reply.text.strip()[:MAX_REFUSAL_CHARS] or '(without a word)'}"
            return EffectFailed(error="fatal", type=MODEL_REFUSED, message=text)
        return reply

    # -- afterwards --------------------

    def make_again(self) -> None:
        """Ask again; what was tried in vain may work now."""
        super().make_again()
        self.calls.fallbacks.given_up.pop(self.name, None)
        self.calls.compaction.try_again()

    def make_shorter(self) -> bool:
        """Ask again if the model's server has refused it as too long. False: it did not, or no summary can
        make it shorter, or it was asked beside others."""
        compaction, shortening = self.calls.compaction, self.calls.compaction.shortening
        is_too_long = self.failure is not None and self.failure.type == TOO_LONG
        is_alone = self.name == self.run.place
        if not (is_too_long and is_alone) or (shortening.refused and shortening.failed):
            return False
        snapshot = self.run.suspension.snapshot
        compaction.refused(snapshot.conversation, self.effect)
        if compaction.span(snapshot, self.effect, refused=True) is None:
            return False
        shortening.refused = True
        self.make_again()
        return True


async def recover_model_calls(model_calls: Sequence[PendingModelCall]) -> bool:
    """Have questions of one effect that failed asked again: shorter, or of another model, or once people have
    fixed the cause. One that may send no further request is asked again, too: so it meets the limit. What
    helps without people is tried for all of them first."""
    failed = [(one, one.failure) for one in model_calls if one.failure is not None]
    if not failed:
        return False
    if stopped := [one for one, failure in failed if failure.type == OUT_OF_REQUESTS]:
        for one in stopped:
            one.make_again()
        return True
    return model_calls[0].make_shorter() or _change_models(failed) or await _fix_cause(failed)


def _change_models(failed: Sequence[tuple[PendingModelCall, EffectFailed]]) -> bool:
    """Have other models asked whose model failed for good. True: some are."""
    changes: dict[str, ModelChange | None] = {}
    calls = failed[0][0].calls
    for one, failure in failed:
        if one.name in calls.fallbacks.given_up or not is_unavailable(failure):
            continue
        role = calls.fallbacks.role(one.wanted)
        if role not in changes:  # side by side they were all asked the same model
            changes[role] = calls.fallbacks.switch_model(one.wanted, one.effect, failure, one.run.host.now())
        if (change := changes[role]) and change.asked:
            one.make_again()
        else:
            calls.fallbacks.given_up[one.name] = failure.type
    return calls.log_models([change for change in changes.values() if change])


async def _fix_cause(failed: Sequence[tuple[PendingModelCall, EffectFailed]]) -> bool:
    """Questions failed permanently: people may fix the cause. True: they have."""
    fatal = [(one, failure) for one, failure in failed if failure.error == "fatal"]
    run = failed[0][0].run
    if not fatal or run.people.on_trouble != "ask" or run.host.cancelled():
        return False
    first, failure = fatal[0]
    request = await run.ask(texts.trouble(failure), first.activity_id)
    if request is None or (request.outcome != "retried" and request.expiry != "approve"):
        return False
    for one, _ in fatal:
        one.make_again()
    return True
