"""A tool call: brought to the tool's schema, approved by people where a rule says so, made once. If nobody
knows whether it took effect, its tool looks for the outcome, then people say what happened."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from activities.contracts import (
    AfterReset,
    JsonObject,
    NotBegun,
    Reconciled,
    ReconcileInput,
    ToolCall,
    ToolError,
    ToolInput,
    ToolResult,
    ToolSpec,
    cost_of_tools,
)
from workflows.engine.calls.call import Call
from workflows.engine.calls.call_site import call_site
from workflows.engine.calls.done import cut_arguments
from workflows.engine.calls.records import NOT_MADE, ToolCallRecord
from workflows.engine.calls.run_calls import RunCalls
from workflows.engine.calls.under_way import CallToBegin
from workflows.engine.run_state import Preempted
from workflows.gate import texts
from workflows.gate.approvals import RequiredApproval
from workflows.gate.arguments import TooMuch, arguments_for
from workflows.kernel.canonical import canonical
from workflows.kernel.labels import names
from workflows.kernel.snapshot import Suspension
from workflows.people import Request

__all__ = ["PendingToolCall"]

TI = TypeVar("TI", bound=ToolInput)

MAX_RETRIES = 3
"""How often a call is made again by itself, because it did not take effect; attempts to find that out."""


class PendingToolCall(Call[ToolCallRecord]):
    """One call of a `CallTools`."""

    kind = ToolCallRecord

    def __init__(self, calls: RunCalls, name: str, wanted: ToolCall, attempts: int) -> None:
        super().__init__(calls, name, wanted)
        self._attempts = attempts
        self.call = wanted
        """As it is made: see `fit`."""

    @property
    def spec(self) -> ToolSpec:
        """Of its tool."""
        return self.run.specs[self.call.tool]

    # -- before: its arguments, and its approval --------------------

    def fit(self) -> None:
        """Bring its arguments to the tool's schema, or take those that a person gave. A call that cannot be
        made gets its result here."""
        wanted, record = self.wanted, self.record
        spec = self.run.specs.get(wanted.tool)
        fitted = None if spec is None else arguments_for(spec, wanted.arguments)
        if isinstance(fitted, dict):
            filled = tuple(argument for argument in fitted if argument not in wanted.arguments)
            self.call = wanted.model_copy(update={"arguments": fitted, "filled": filled})
        if record.request and record.answer is None:
            self._forget_stale_request(fitted)
        if record.arguments is not None:
            given = {"arguments": record.arguments, "edited_by": record.edited_by}
            self.call = wanted.model_copy(update=given)
        elif fitted is None:
            self._leave_out("unknown_tool", f"Unknown tool: {wanted.tool}")
        elif isinstance(fitted, str):
            self._leave_out("bad_arguments", fitted)

    def _forget_stale_request(self, fitted: JsonObject | str | None) -> None:
        """After new code has changed the call, what people were asked, and have decided, is about another."""
        run, record = self.run, self.record
        asked = run.requests.get(record.request)
        if canonical([asked.tool, asked.arguments]) != canonical([self.wanted.tool, fitted]):
            run.withdraw_requests("the call has changed", only=record.request)
            record.request, record.arguments, record.edited_by = "", None, ""

    def _leave_out(self, error: ToolError, text: str) -> None:
        """It is not made; the model is told why."""
        if self.record.answer is None:
            self.calls.pending.end(self.name, texts.result_without_call(self.call, error, text))

    def request_approval(self) -> None:
        """Let it pass, ask for it, or say why it is not made."""
        run, record = self.run, self.record
        if record.answer is not None or record.request:
            return
        spent_usd = run.task.spent_above_usd + run.suspension.ledger.used("cost_usd")
        facts: Any = {"spent_usd": spent_usd, "labels": names(run.labels)}
        try:
            required, earlier, policy = run.requests.approval_for(self.call, activity_id=self.name, **facts)
        except TooMuch as problem:
            run.bounds.give_back(self.name)
            text = f"The arguments do not fit {self.call.tool}: {problem} against the approval rules"
            self._leave_out("bad_arguments", f"{text}; give shorter ones")
            return
        if required is None:
            if earlier and not record.passed:
                record.passed = True
                text = f"{self.call.title} was approved before, by {', '.join(earlier.approvers)}"
                about = {"activity_id": self.name, "tool": self.call.tool, "rule": policy.rule}
                run.log_event("ApprovedBefore", reason=text, about={**about, "granted": earlier.request})
            record.policy = policy if earlier or policy.rule in run.bounds.rules else None
            self._take_share(policy.rule)
            return
        run.bounds.give_back(self.name)
        if required.mode == "reject":
            self._reject(required)
        elif run.people.unattended:
            self._leave_out("rejected", texts.unattended_text(self.call.tool, required.bound))
        else:
            record.request = run.open(texts.approval(self.call, required.bound), self.name, required).id

    def _take_share(self, entry: str) -> None:
        """It passes unasked: have it counted where its rule has bounds."""
        run, call = self.run, self.call
        if run.bounds.rules and run.bounds.take(self.name, entry, call.arguments):
            run.log_bounds(f"{call.title} may pass unasked", self.name, run.bounds.state(entry))

    def _reject(self, required: RequiredApproval) -> None:
        """Its rule has it not made, and has nobody asked."""
        run, tool, bound = self.run, self.call.tool, required.bound
        about: JsonObject = {"activity_id": self.name, "tool": tool, "rule": required.rule}
        if bound is not None:
            text = texts.beyond_bound(tool, bound)
            self._leave_out("rejected", text)
            run.log_event("BeyondBound", reason=text, about={**about, "bound": bound.model_dump(mode="json")})
        else:
            text = texts.rule_rejection(tool, required.rule, run.labels)
            self._leave_out("rejected", text)
            run.log_event("RejectedByRule", reason=text, about=about)

    def apply_decision(self, request: Request) -> None:
        """Take over what was decided about it."""
        vote = request.deciding_vote
        if request.outcome == "edited" and vote is not None and vote.arguments is not None:
            self.record.arguments, self.record.edited_by = vote.arguments, texts.decided_by(request)
        elif request.expiry and request.expiry != "approve":
            self._leave_out("expired", f"This call was not made: {texts.expiry(request)}.")
        elif request.outcome == "rejected":
            self._leave_out("rejected", texts.rejection(request))

    # -- making it --------------------

    async def make(self) -> ToolResult:
        """Its result; it is made unless it has ended. While no worker can begin it, it waits."""
        under_way, record, answer = self.calls.under_way, self.record, self.record.answer
        if answer is None:
            to_begin = CallToBegin(self.name, self.call.title, record.void)
            if (until := self.acts_until) is not None:
                lost = "until then its lost worker may still make it"
                text = f"{self.call.title} is made again at {texts.utc_text(until)}: {lost}"
                await under_way.wait_for_lost(to_begin, text, record.again + 1, until)
            answer = await under_way.once_begun(to_begin, lambda: under_way.when_free(self.perform()))
            self.calls.pending.end(self.name, answer)
        return answer

    async def perform(self) -> ToolResult | NotBegun:
        """Make it, unless the run has made the same one before and its tool allows that."""
        call, calls, under_way = self.call, self.calls, self.calls.under_way
        cache_key = self._cache_key
        if cache_key and (cached := calls.cached.get(cache_key)) is not None:
            return cached.model_copy(update={"id": call.id, "attempts": 0, "cost_usd": 0})
        site = calls.site(self.activity_id, title := call.title)
        attempts = self._attempts if self.spec.repeatable else 1
        request = self._input(ToolInput, site.key, attempts, void=tuple(self.record.void))
        under_way.tool_calls[self.name] = call
        self.run.begin("tool_calls")
        self.run.bounds.begin(self.name)
        result: Any = None
        try:
            with under_way.shown(f"calling {title}"):
                result = await calls.perform(request, site, self.name)
        finally:
            if not isinstance(result, NotBegun):
                calls.done.report(call, site, result)
        del under_way.tool_calls[self.name]
        if isinstance(result, NotBegun) or result.error in NOT_MADE:
            self.run.bounds.begin(self.name, -1)
        if isinstance(result, NotBegun):
            self.run.begin("tool_calls", -1)
            return result
        if result.acts_for is not None:
            self.record.not_before = self.run.host.now() + result.acts_for
        if cache_key and result.ok:
            calls.cached[cache_key] = result
        return result  # type: ignore[no-any-return]  # what a host answers to a ToolInput

    @property
    def _cache_key(self) -> str:
        """Under which its result is kept for the run; empty: its tool does not allow that."""
        if self.spec.cache != "run":
            return ""
        artifacts = [one.model_dump() for one in self.call.artifacts]
        return json.dumps([self.call.tool, self.call.arguments, *artifacts], sort_keys=True)

    def _input(self, kind: type[TI], key: str, attempts: int, **more: Any) -> TI:
        """What its worker is given."""
        call = self.call
        return kind(
            id=call.id, tool=call.tool, arguments=call.arguments, key=key, attempts=attempts,
            artifacts=call.artifacts, after_reset=self._after_reset(), **more,
        )  # fmt: skip

    def _after_reset(self) -> AfterReset | None:
        """For a run that was reset. What is made again was looked up already."""
        me = self.run.identity
        if me.reset_since is None or self.record.again:
            return None
        forms = (self.call.arguments, cut_arguments(self.call.arguments))
        keys = tuple(
            one.key for one in self.calls.done.calls if one.tool == self.call.tool and one.arguments in forms
        )
        return AfterReset(since=me.reset_since, run=f"{me.workflow_id}/{me.root}/", keys=keys)

    # -- afterwards: an unknown outcome --------------------

    @property
    def is_unknown(self) -> bool:
        """Nobody knows whether it took effect."""
        return self.record.answer is not None and self.record.answer.error == "unknown_outcome"

    @property
    def acts_until(self) -> float | None:
        """Until when the worker that lost it may go on with it; None: it cannot."""
        until = self.record.not_before
        return until if until is not None and until > self.run.host.now() else None

    async def reconcile(self) -> bool:
        """Have its tool look for an unknown outcome, once for each time that it is made. True: it is known
        now."""
        if self.record.reconciled:
            return False
        if self.run.paused:
            raise Preempted
        found = await self.calls.unless_preempted(self._reconciliation(self.run.suspension))
        if found is None:
            return False
        details = f", {found.text}" if found.text else ""
        self.run.log_event("Reconciled", reason=f"{self.call.title}: {found.outcome}{details}")
        if found.outcome == "happened" and found.result is not None:
            self._take_result(found.result)
        elif found.outcome == "not_happened" and self.record.again < MAX_RETRIES:
            self.make_again()
        else:
            return False
        return True

    async def _reconciliation(self, run_then: Suspension) -> Reconciled | None:
        """What its tool finds out; None: it cannot."""
        if not self.spec.reconciles:
            return None
        run, title = self.run, f"find the outcome of {self.call.title}"
        now = run.host.now()
        made = call_site(run.identity, run_then, self.activity_id, "", now)
        site = call_site(run.identity, run_then, f"{self.activity_id}?", title, now)
        request = self._input(ReconcileInput, made.key, MAX_RETRIES)
        to_begin = CallToBegin(self.name, site.title, self.record.void, limited=False)
        under_way = self.calls.under_way
        with under_way.shown(f"finding the outcome of {self.call.title}"):
            found = await under_way.once_begun(to_begin, lambda: run.host.perform(request, site))
        self.record.reconciled = True
        return found if isinstance(found, Reconciled) else None

    async def ask_people(self) -> bool:
        """Who may let a call happen may say whether it did. True: they have."""
        run, call, record = self.run, self.call, self.record
        assert record.answer is not None
        required = None
        if "outcome" not in run.people.kinds:
            required = run.requests.approval_of(record.request) if record.request else record.policy
        topic = texts.outcome_unknown(call, record.answer.output, self.acts_until)
        request = await run.ask(topic, self.activity_id, required)
        if request is None:
            return False
        if request.outcome == "retried":
            self.make_again()
        elif request.outcome == "answered" and request.deciding_vote is not None:
            by, text = texts.decided_by(request), request.deciding_vote.text
            output = f"(Reported by {by}, who looked up the outcome:)\n{text}"
            size = len(output.encode())
            self._take_result(ToolResult(id=call.id, tool=call.tool, output=output, bytes=size))
        return request.outcome in ("retried", "answered")

    def _take_result(self, result: ToolResult) -> None:
        """The call whose outcome was unknown returned this; the report says so, too."""
        self._forget()
        self.calls.pending.end(self.name, result)
        self.calls.done.correct(self.activity_id, result)

    def make_again(self) -> None:
        """It did not take effect: it is made again, under an id and a key of its own, once the lost one
        cannot go on. So a tool can see to it that the lost one takes no effect later."""
        self._forget()
        self.calls.done.forget(self.activity_id)
        self.record.again += 1
        self.record.reconciled = False

    def _forget(self) -> None:
        """Forget its result, not what it cost."""
        if (result := self.record.answer) is not None:
            self.run.charge(cost_of_tools((result.tool, result.cost_usd)))
        self.record.answer = None
