"""The calls of one effect: performed once each, in order or side by side; what the run has done outside.

An effect is one call or several: the runs of a `CallTools`, the members of a `Together`. What people decided
about a call and what came back is kept by activity id until the machine has the answer. So performing can be
stopped anywhere and begun again: a call that has ended is never made again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from activities.contracts import (
    MODEL_REFUSED,
    OUT_OF_REQUESTS,
    REFUSAL,
    AfterReset,
    Answers,
    AskModel,
    CallTools,
    Compensated,
    CompensateInput,
    EarlyReply,
    Effect,
    EffectFailed,
    JsonObject,
    MachineEnded,
    Message,
    ModelReplied,
    NotBegun,
    Reconciled,
    ReconcileInput,
    RunMachine,
    SingleAnswer,
    Together,
    ToolCall,
    ToolInput,
    ToolResult,
    ToolSpec,
    ToolsReturned,
    added,
    cost_of_tools,
)
from activities.text import problems_text
from workflows.api import AgentTask, RunResult
from workflows.engine.compaction import Compaction, Part
from workflows.engine.fallback import Fallbacks, ModelChange, is_unavailable
from workflows.gate.arguments import arguments_for
from workflows.gate.texts import edit_note, moment, result_without_call
from workflows.hosts import CallAnswer, CallSite, ChildRun, Host, Identity, NextQuestion
from workflows.kernel.log import members, tool_calls
from workflows.kernel.snapshot import Suspension
from workflows.kernel.transition import advance, steer
from workflows.people import DoneCall
from workflows.task import inner_task

__all__ = ["CallState", "Calls", "OutOfTime", "bounded"]

T = TypeVar("T")

AT_ONCE = 10
"""Calls of an effect that are performed side by side."""
DONE_CALLS = 1000
"""Calls that are kept for the report of what was done outside."""
OUTPUT = 500
"""Characters of an output, and of a long argument, in that report."""
REFUSED_CHARS = 2000
"""Characters of a model's refusal to answer."""
ID_BYTES = 800
"""Of an id; the server takes 1000, and some get a suffix."""
RETRIES = 3
"""Attempts of a reconciliation, and of a compensation whose tool may be repeated."""
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 600.0
"""Seconds before a call that was not begun is given out again; each pause is twice the one before."""
VOID = 100
"""Notes of one call that count for nothing; the oldest ones are dropped."""
STOPPING = {"unknown_outcome", "unknown_tool"}
"""Errors after which the next calls in the row are not made: the machine decides first (R-001-7)."""
SLOW = 60
"""Seconds: a tool that may take longer asks no model in its activity, whose death would repeat the tool."""
DROPS = 3
"""Early replies that a run may drop; a person's message causes one at times. Behind that it asks for no more:
its questions cannot be foreseen."""
LONG_VISIT = 20
"""Answers of a visit. To find the question behind a call the visit is run again over them, in the worker's
event loop: after a thousand calls of one block of code that takes 50 ms for each."""
TOO_LONG = "context_too_long"
"""Type of the failure of a question that the model's window cannot take in."""
NOT_MADE = {"rejected", "expired", "unknown_tool", "bad_arguments"}
HARMLESS = {"pure", "read"}


class OutOfTime(Exception):
    """A call waits to be begun, and the run's time is over."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that waits to be begun."""

    text: str
    """Which, and why; one line."""
    attempt: int
    """That comes next, or is under way."""
    at: float | None
    """When it comes, in seconds since 1970; None: it is under way."""


class CallState(BaseModel):
    """What is known about the calls of the pending effect, by activity id. Carried to a new execution."""

    begun: dict[str, float] = Field(default_factory=dict)
    """How many calls were begun, by counter; one that is made again counts again."""
    beyond_price: dict[str, float] = Field(default_factory=dict)
    """What the ledger holds for them beyond the effect's price, by counter."""
    approvals: dict[str, str] = Field(default_factory=dict)
    """Requests that were opened for calls."""
    passed: list[str] = Field(default_factory=list)
    """Calls that an earlier approval let pass."""
    arguments: dict[str, JsonObject] = Field(default_factory=dict)
    """Arguments that a person gave instead of the model's."""
    edited_by: dict[str, str] = Field(default_factory=dict)
    """Who gave them."""
    results: dict[str, ToolResult] = Field(default_factory=dict)
    """Tool calls that have ended, or are not to be made."""
    answers: dict[str, SingleAnswer] = Field(default_factory=dict)
    """All other calls that have ended."""
    void: dict[str, list[float]] = Field(default_factory=dict)
    """Of calls that were not begun: when their workers tried to note the beginning (`NotBegun.at`)."""
    reconciled: list[str] = Field(default_factory=list)
    """Calls whose tool has looked for the outcome."""
    made_again: dict[str, int] = Field(default_factory=dict)
    """How often a call is made again, because it did not take effect."""
    not_before: dict[str, float] = Field(default_factory=dict)
    """When a lost call is surely over, in seconds since 1970: before, it is not made again."""
    asked_again: dict[str, int] = Field(default_factory=dict)
    """How often a question to a model is asked again, because a person said so or changed it."""
    given_up: list[str] = Field(default_factory=list)
    """Questions that failed, and no other model is left to ask."""
    summaries: int = 0
    """How many summaries were asked for, to have the question fit into the model's window."""
    summary_failed: bool = False
    """The newest did not come: the question is sent as it is."""
    refused: bool = False
    """The model's server refused the question as too long."""
    limits_changed: int = 0
    """How often people changed limits while the effect was pending."""
    children_stopped: list[str] = Field(default_factory=list)
    """What inner runs said when a command stopped them."""


def bounded(name: str) -> str:
    """The id; where it is too long for the server, its end is replaced by a digest."""
    raw = name.encode()
    if len(raw) <= ID_BYTES:
        return name
    return f"{raw[: ID_BYTES - 40].decode(errors='ignore')}~{hashlib.sha256(raw).hexdigest()[:32]}"


def is_out_of_time(step: Suspension, now: float) -> bool:
    """The run has a limit of seconds, and has reached it."""
    ledger = step.ledger.at_least("seconds", now - step.snapshot.began)
    return ledger.breach({"seconds": 0}) is not None


def call_site(
    identity: Identity, step: Suspension, name: str, title: str, now: float, **more: Any
) -> CallSite:
    """Where a call is made; `now` in seconds since 1970."""
    s = step.snapshot
    activity_id = bounded(name)
    key = f"{identity.workflow_id}/{identity.root}/{s.branch}/{activity_id}"
    left = step.ledger.at_least("seconds", now - s.began).left("seconds")
    return CallSite(activity_id, key, " ".join(title.split())[:200], left, **more)


class Calls:
    """The calls of one run. `state` is about the pending effect, `done` about the whole run."""

    def __init__(
        self, host: Host, task: AgentTask, specs: Mapping[str, ToolSpec], identity: Identity
    ) -> None:
        self.host, self.task, self.identity, self.specs = host, task, identity, specs
        self.state = CallState()
        self.prepared_effect: Effect[Any] | None = None
        """The pending effect as `prepared` gave it last."""
        self.done: list[DoneCall] = []
        """What was done outside, oldest first."""
        self.cached: dict[str, ToolResult] = {}
        """Results of tools with `cache: run`, by call."""
        self.children: dict[str, dict[str, float]] = {}
        """Inner runs under way, by workflow id: what each may spend, by counter."""
        self.unbilled: dict[str, float] = {}
        """What calls have spent that no answer will say."""
        self._dropped = 0  # replies that came early to another question than the machine's
        self.early: EarlyReply | None = None
        """A reply to the question that should come next."""
        self.compaction = Compaction(task)
        """What of the run's conversation is sent."""
        self.fallbacks = Fallbacks(task.models)
        self.summary: AskModel | None = None
        """The question for a summary, while it is asked."""
        self.signed_ids: Callable[[], tuple[str, ...]] = tuple
        """Signed commands so far: inner runs must not obey them."""
        self.newest_step: Callable[[Suspension], Suspension] = lambda step: step
        """The step as it is now: people may change limits while a call waits."""
        self.tell_waiting: Callable[[str], object] = lambda text: None
        """Called when a call has to wait, with the reason."""
        self.waiting: dict[str, WaitingCall] = {}
        """Calls that wait to be begun."""
        self._start_over()

    # -- before and after --------------------

    def site(self, step: Suspension, name: str, title: str = "", **more: Any) -> CallSite:
        """Where a call is made."""
        return call_site(self.identity, step, name, title, self.host.now(), **more)

    def question_site(self, step: Suspension, name: str, effect: AskModel, now: float) -> CallSite:
        """Where a question is asked, with all messages that are sent."""
        sent = self.compaction.sent(step.snapshot.conversation, effect)
        return call_site(
            self.identity, step, name, effect.title, now, conversation=sent.add(*effect.say),
            requests=1 + self._spare_requests(step),
        )  # fmt: skip

    def _spare_requests(self, step: Suspension) -> float:
        """How many requests a question may send beyond the one that is reserved: what is left; side by side,
        the share that all of them got when they began."""
        if isinstance(step.asked, Together):
            return self._spare_share
        return math.inf if "model_calls" in step.ledger.advice else step.ledger.left("model_calls")

    def _even_share(self, step: Suspension, place: str, effect: Together) -> float:
        """What is left for further requests, evenly for the questions that have no answer; none beside inner
        runs, which share it."""
        ledger = step.ledger.charge(self.spent)
        left = math.inf if "model_calls" in ledger.advice else ledger.left("model_calls")
        kinds = [type(one) for name, one in members(effect, place) if name not in self.state.answers]
        if left == math.inf or AskModel not in kinds:
            return left
        return 0 if RunMachine in kinds else left // kinds.count(AskModel)

    def prepared(self, effect: Effect[Any], place: str) -> Effect[Any]:
        """The effect with each tool's arguments as they will be sent: brought to the tool's schema once, or
        as a person gave them. Calls that cannot be made get their result here. Questions go to the model
        that is asked now."""
        if isinstance(effect, Together):
            given = [self.prepared(member, name) for name, member in members(effect, place)]
            effect = effect.model_copy(update={"effects": tuple(given)})
        elif isinstance(effect, AskModel):
            effect = self.fallbacks.asked(effect)
        elif isinstance(effect, CallTools):
            runs = tuple(self._prepared_run(name, run) for name, run in tool_calls(effect, place).items())
            effect = effect.model_copy(update={"calls": runs})
        self.prepared_effect = effect
        return effect

    def _prepared_run(self, name: str, run: ToolCall) -> ToolCall:
        if name in self.state.arguments:
            given = {"arguments": self.state.arguments[name], "edited_by": self.state.edited_by.get(name, "")}
            return run.model_copy(update=given)
        spec = self.specs.get(run.tool)
        if spec is None:
            self.state.results.setdefault(
                name, result_without_call(run, "unknown_tool", f"Unknown tool: {run.tool}")
            )
            return run
        fitted = arguments_for(spec, run.arguments)
        if isinstance(fitted, str):
            self.state.results.setdefault(name, result_without_call(run, "bad_arguments", fitted))
            return run
        filled = tuple(argument for argument in fitted if argument not in run.arguments)
        return run.model_copy(update={"arguments": fitted, "filled": filled})

    def reset(self) -> None:
        """The machine has the answer, or will never get one."""
        self.state, self.prepared_effect = CallState(), None

    def unknown(self, effect: Effect[Any], place: str) -> tuple[str, ToolCall] | None:
        """The first tool call whose outcome is unknown."""
        for name, run in tool_calls(effect, place).items():
            if (result := self.state.results.get(name)) and result.error == "unknown_outcome":
                return name, run
        return None

    def failed_questions(self, effect: Effect[Any], place: str) -> dict[str, EffectFailed]:
        """Questions to models that failed permanently."""
        asked = {
            name: self.state.answers.get(name)
            for name, one in members(effect, place)
            if isinstance(one, AskModel)
        }
        return {n: a for n, a in asked.items() if isinstance(a, EffectFailed) and a.error == "fatal"}

    def fall_back(self, wanted: Effect[Any], effect: Effect[Any], place: str) -> list[ModelChange]:
        """Have questions asked again by other models, whose model failed for good; `effect` is `wanted`, as
        it was prepared."""
        changes: dict[str, ModelChange | None] = {}
        for (name, one), (_, asked) in zip(members(wanted, place), members(effect, place), strict=True):
            failure = self.state.answers.get(name)
            if not (isinstance(one, AskModel) and isinstance(asked, AskModel)):
                continue
            if name in self.state.given_up or not (
                isinstance(failure, EffectFailed) and is_unavailable(failure)
            ):
                continue
            role = self.fallbacks.role(one)
            if role not in changes:  # side by side they were all asked the same model
                changes[role] = self.fallbacks.after(one, asked, failure, self.host.now())
            if (change := changes[role]) and change.asked:
                self.ask_again(name)
            else:
                self.state.given_up.append(name)
        return [change for change in changes.values() if change]

    def edit_notes(
        self, effect: Effect[Any], place: str, results: Mapping[str, ToolResult]
    ) -> tuple[Message, ...]:
        """What the model hears beside the results: which calls a person has changed."""
        return tuple(
            Message(role="user", content=edit_note(run), from_run=True)
            for name, run in tool_calls(effect, place).items()
            if name in self.state.arguments and name in results and results[name].error not in NOT_MADE
        )

    def planned(self, effect: Effect[Any], place: str) -> dict[str, float]:
        """The calls that were begun and those that are to be made, by counter."""
        questions = [name for name, one in members(effect, place) if isinstance(one, AskModel)]
        pending: dict[str, float] = {
            "model_calls": sum(name not in self.state.answers for name in questions),
            "tool_calls": sum(name not in self.state.results for name in tool_calls(effect, place)),
        }
        return added(self.state.begun, pending)

    def _begin(self, counter: str, times: int = 1) -> None:
        begun = added(self.state.begun, {counter: times})
        self.state.begun = {name: count for name, count in begun.items() if count}

    def ask_again(self, name: str) -> None:
        """Forget what a question brought, not what it cost; it gets an activity id and a key of its own."""
        if answer := self.state.answers.pop(name, None):
            self.unbilled = added(self.unbilled, answer.cost)
        self.state.summary_failed = False
        self.compaction.try_again()
        self.state.given_up = [given_up for given_up in self.state.given_up if given_up != name]
        self.state.asked_again[name] = self.state.asked_again.get(name, 0) + 1

    def ask_to_the_limit(self, effect: Effect[Any], place: str) -> bool:
        """Ask each question again that may send no further request: so it meets the limit. False: none."""
        asked = [
            (name, self.state.answers.get(name))
            for name, one in members(effect, place)
            if isinstance(one, AskModel)
        ]
        stopped = [name for name, a in asked if isinstance(a, EffectFailed) and a.type == OUT_OF_REQUESTS]
        for name in stopped:
            self.ask_again(name)
        return bool(stopped)

    def make_again(self, name: str) -> None:
        """The call did not take effect: it is made again, under an id and a key of its own, once the lost one
        cannot go on. So a tool can see to it that the lost one takes no effect later."""
        self._forget(name)
        self.done[:] = [call for call in self.done if call.activity_id != bounded(self._newest(name))]
        self.state.made_again[name] = self.state.made_again.get(name, 0) + 1
        if name in self.state.reconciled:
            self.state.reconciled.remove(name)

    def acts_until(self, name: str) -> float | None:
        """Until when the worker that lost a call may go on with it; None: it cannot."""
        until = self.state.not_before.get(name)
        return until if until is not None and until > self.host.now() else None

    def _newest(self, name: str) -> str:
        """The id of a tool call as it was made last."""
        again = self.state.made_again.get(name, 0)
        return f"{name}+{again}" if again else name

    def take_result(self, name: str, result: ToolResult) -> None:
        """A call whose outcome was unknown returned this; the report says so, too."""
        self._forget(name)
        self.state.results[name] = result
        for number, call in enumerate(self.done):
            if call.activity_id == bounded(self._newest(name)):
                update = {"error": result.error, "output": result.output[:OUTPUT]}
                self.done[number] = call.model_copy(update=update)

    def _forget(self, name: str) -> None:
        if result := self.state.results.pop(name, None):
            self.unbilled = added(self.unbilled, cost_of_tools((result.tool, result.cost_usd)))

    def take_reconciled(self, name: str, found: Reconciled) -> bool:
        """Take over what the tool found out; True: the outcome is known now."""
        if found.outcome == "happened" and found.result is not None:
            self.take_result(name, found.result)
        elif found.outcome == "not_happened" and self.state.made_again.get(name, 0) < RETRIES:
            self.make_again(name)
        else:
            return False
        return True

    @property
    def made(self) -> tuple[tuple[str, ToolResult], ...]:
        """Tool calls of the pending effect that were made."""
        return tuple((n, r) for n, r in self.state.results.items() if r.error not in NOT_MADE)

    @property
    def spent(self) -> dict[str, float]:
        """What the calls have spent that have ended; the ledger gets it with the answer."""
        tools = cost_of_tools(*((result.tool, result.cost_usd) for result in self.state.results.values()))
        return added(tools, *(answer.cost for answer in self.state.answers.values()))

    def drop_early(self) -> dict[str, float]:
        """Forget a reply that came early; what it cost."""
        early, self.early = self.early, None
        return early.cost if early else {}

    def take_unbilled(self) -> dict[str, float]:
        """What was spent and is in no answer; it is given once."""
        spent, self.unbilled = self.unbilled, {}
        return spent

    # -- stopping --------------------

    def hold(self, held: bool) -> None:
        """Begin no further call, or go on to begin them."""
        self._held = held
        self._tell_waiting()

    def stop_now(self) -> None:
        """What is under way is being cancelled: an inner run that ends now was stopped."""
        self._held = self._cancelled = True

    @property
    def unknown_outcomes(self) -> str:
        """Calls whose outcome is unknown, in words; empty: none."""
        names = [f"{r.tool} at {n}" for n, r in self.state.results.items() if r.error == "unknown_outcome"]
        return ", ".join([*self.unsafe_under_way, *names])

    @property
    def unsafe_under_way(self) -> list[str]:
        """Unsafe calls that are being made, in words."""
        return [run.title for run in self._under_way.values() if not self.specs[run.tool].repeatable]

    # -- performing --------------------

    def perform(self, step: Suspension, effect: Effect[Any]) -> Coroutine[Any, Any, Any]:
        """The answer to the prepared effect. Raises asyncio.CancelledError when it was stopped before its
        end; what has ended by then is in `state`."""
        self._start_over()
        if not isinstance(effect, AskModel):
            self.unbilled = added(self.unbilled, self.drop_early())
        place = step.snapshot.place
        return (
            self._members(step, place, effect)
            if isinstance(effect, Together)
            else self._member(step, place, effect)
        )

    def _start_over(self) -> None:
        self._under_way: dict[str, ToolCall] = {}
        self._news = asyncio.Event()  # set, and replaced, when a call ends or the hold changes
        self._held = self._cancelled = False
        self._free = asyncio.Semaphore(AT_ONCE)
        # members that are inner runs and have not begun; calls under way
        self._siblings = self._running = 0
        self._spare_share = 0.0  # further requests of each question side by side

    async def _members(self, step: Suspension, place: str, effect: Together) -> Answers:
        named = members(effect, place)
        self._spare_share = self._even_share(step, place, effect)
        self._siblings = sum(
            isinstance(one, RunMachine) and name not in self.state.answers for name, one in named
        )
        return Answers(answers=tuple(await _all([self._member(step, name, one) for name, one in named])))

    async def _member(self, step: Suspension, name: str, effect: Effect[Any]) -> Any:
        if isinstance(effect, CallTools):
            return await self._tools(step, name, effect)
        if name not in self.state.answers:
            made = (
                self._run_child(step, name, effect)
                if isinstance(effect, RunMachine)
                else self._single(step, name, effect)
            )
            self.state.answers[name] = await self._when_free(made)
        return self.state.answers[name]

    async def _when_free(self, call: Coroutine[Any, Any, T]) -> T:
        """Make the call once it may begin. While calls are held back it waits for those under way: the hold
        may end before they do."""
        try:
            async with self._free:
                while self._held and self._running:
                    await self._news.wait()
                if self._held:
                    raise asyncio.CancelledError
                self._running += 1
                try:
                    return await call
                finally:
                    self._running -= 1
                    self._tell_waiting()
        finally:
            call.close()

    def _tell_waiting(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _once_begun(
        self,
        step: Suspension,
        name: str,
        title: str,
        give_out: Callable[[], Coroutine[Any, Any, T | NotBegun]],
        **more: bool,
    ) -> T:
        """What a call gives, once a worker could begin it: until then it is given out again and again. Raises
        what `_wait` raises, which gets `more`."""
        pause, attempt = FIRST_PAUSE, 1
        while isinstance(found := await give_out(), NotBegun):
            times, attempt = self.state.void.setdefault(name, []), attempt + 1
            times[:] = [*times, *([] if found.at is None else [found.at])][-VOID:]
            text = f"{title} was not begun, and waits: {found.reason}"
            if attempt == 2:
                self.tell_waiting(text)
            await self._wait(step, name, WaitingCall(text, attempt, self.host.now() + pause), **more)
            pause = min(2 * pause, LONGEST_PAUSE)
        self.waiting.pop(name, None)
        return found

    async def _wait(
        self, step: Suspension, name: str, call: WaitingCall, *, limited: bool = True, stoppable: bool = True
    ) -> None:
        """Wait until its time has come. Raises OutOfTime if it is `limited`; if it is `stoppable`,
        asyncio.CancelledError as soon as calls are held back: it is taken up again behind the pause."""
        assert call.at is not None
        self.waiting[name] = call
        while not (stoppable and self._held):
            now, newest = self.host.now(), self.newest_step(step)
            if now >= call.at:
                self.waiting[name] = replace(call, at=None)
                return
            if limited and is_out_of_time(newest, now):
                raise OutOfTime(call.text)
            left = self.site(newest, name).seconds if limited else math.inf
            seconds, caps = min(call.at - now, left or math.inf), newest.ledger.caps

            def is_over(caps: object = caps) -> bool:
                return (stoppable and self._held) or self.newest_step(step).ledger.caps != caps

            await self.host.wait(is_over, seconds, call.text)
        raise asyncio.CancelledError

    async def _lost_call_over(self, step: Suspension, name: str, run: ToolCall) -> None:
        """Wait until the call may be made again, if it was lost. Ends as `_wait` does."""
        if (until := self.acts_until(name)) is None:
            return
        text = f"{run.title} is made again at {moment(until)}: until then its lost worker may still make it"
        self.tell_waiting(text)
        await self._wait(step, name, WaitingCall(text, self.state.made_again[name] + 1, until))

    @property
    def waits(self) -> bool:
        """Calls wait to be begun, and none of those has been given out."""
        return bool(self.waiting) and all(call.at is not None for call in self.waiting.values())

    @property
    def under_way(self) -> str:
        """Tool calls that are being made, in words."""
        return "; ".join(run.title for run in self._under_way.values())

    async def _single(self, step: Suspension, name: str, effect: Any) -> Any:
        again = self.state.asked_again.get(name, 0)
        name = f"{name}+{again}" if again else name
        if not isinstance(effect, AskModel):
            return await self.host.perform(effect, self.site(step, name, effect.title))
        self._begin("model_calls")
        site = self.question_site(step, name, effect, self.host.now())
        early, self.early = self.early, None
        if early is not None and early.question == site.digest(effect):
            site = replace(site, reply=early.reply)
        elif early is not None:
            self.unbilled, self._dropped = added(self.unbilled, early.cost), self._dropped + 1
        return await self._asked(effect, site)

    async def _asked(self, effect: AskModel, site: CallSite) -> ModelReplied | EffectFailed:
        """What came of a question. A reply that is a refusal is a failure; it is paid all the same."""
        reply: Any = await self.host.perform(effect, site)
        stopped = self._cancelled or self.host.cancelled()
        if stopped and isinstance(reply, EffectFailed) and reply.type == "cancelled":
            self.unbilled = added(self.unbilled, reply.cost)
            raise asyncio.CancelledError
        self.compaction.learn(effect, site.conversation, reply)
        if isinstance(reply, ModelReplied) and reply.finish_reason == REFUSAL:
            self.unbilled = added(self.unbilled, reply.cost)
            text = f"the model refused: {reply.text.strip()[:REFUSED_CHARS] or '(without a word)'}"
            return EffectFailed(error="fatal", type=MODEL_REFUSED, message=text)
        return reply  # type: ignore[no-any-return]  # what a host answers to an AskModel

    def part_to_summarise(self, step: Suspension, effect: Effect[Any]) -> Part | None:
        """What shall be summarised before the question, if the effect is one that was not asked yet."""
        place = step.snapshot.place
        if not isinstance(effect, AskModel) or self.state.summary_failed or place in self.state.answers:
            return None
        return self.compaction.part(step.snapshot, effect, refused=self.state.refused)

    def ask_shorter(self, step: Suspension, effect: Effect[Any], answer: object) -> bool:
        """Ask a question again that the model's server refused as too long. False: it did not, or no summary
        can make the question shorter."""
        failed = isinstance(answer, EffectFailed) and answer.type == TOO_LONG
        if not failed or not isinstance(effect, AskModel):
            return False
        if self.state.refused and self.state.summary_failed:
            return False
        self.compaction.refused(step.snapshot.conversation, effect)
        if self.compaction.part(step.snapshot, effect, refused=True) is None:
            return False
        self.state.refused = True
        self.ask_again(step.snapshot.place)
        return True

    async def summarise(self, step: Suspension, effect: AskModel, part: Part) -> ModelReplied | EffectFailed:
        """Ask for a summary. It is a question beside the run's conversation."""
        self.summary = question = part.question(effect)
        again = f".{self.state.summaries}" if self.state.summaries else ""
        site = self.site(
            step, f"{step.snapshot.place}~compact{again}", question.title,
            conversation=part.conversation.add(*question.say), requests=1 + self._spare_requests(step),
        )  # fmt: skip
        self._begin("model_calls")
        try:
            return await self._asked(question, site)
        finally:
            self.summary = None

    def _next_question(
        self, step: Suspension, name: str, run: ToolCall, effect: CallTools
    ) -> NextQuestion | None:
        """What the machine will ask a model behind this call, if it is the last one of the effect."""
        spec, place = self.specs[run.tool], step.snapshot.place
        names = list(tool_calls(effect, place))
        can_be_last = name in names if effect.parallel else name == names[-1]
        is_quick = spec.timeout_seconds <= SLOW and len(step.snapshot.moments) <= LONG_VISIT
        is_wanted = self.task.fuse == "auto" and self._dropped < DROPS
        if not (is_wanted and spec.repeatable and is_quick and can_be_last):
            return None

        def question(result: ToolResult, now: float) -> tuple[AskModel, CallSite] | None:
            results = {**self.state.results, name: result}
            if self._held or result.error == "unknown_outcome" or not all(one in results for one in names):
                return None
            answer = ToolsReturned(results=tuple(results[one] for one in names))
            told = replace(step, live=None)
            for note in self.edit_notes(effect, place, results):
                told = steer(told, note, now=now, by="kernel")
            after = advance(told, answer, now=now, effect=effect)
            asked = after.effect
            if not isinstance(asked, AskModel) or after.breach is not None:
                return None
            asked = self.fallbacks.asked(asked, now)
            if self.compaction.is_due(after.snapshot.conversation, asked):
                return None  # a summary comes first
            return asked, self.question_site(after, after.snapshot.place, asked, now)

        return question

    async def _tools(self, step: Suspension, place: str, effect: CallTools) -> ToolsReturned:
        calls = tool_calls(effect, place).items()
        specs = [self.specs.get(run.tool) for run in effect.calls]
        if effect.parallel and all(spec is not None and spec.repeatable for spec in specs):
            found = await _all([self._tool(step, name, run, effect) for name, run in calls])
            return ToolsReturned(results=tuple(found))
        results: list[ToolResult] = []
        for name, run in calls:
            results.append(await self._tool(step, name, run, effect))
            if results[-1].error in STOPPING:
                break
        return ToolsReturned(results=tuple(results))

    async def _tool(self, step: Suspension, name: str, run: ToolCall, effect: CallTools) -> ToolResult:
        if name not in self.state.results:
            await self._lost_call_over(step, name, run)
            self.state.results[name] = await self._once_begun(
                step, name, run.title, lambda: self._when_free(self._call(step, name, run, effect))
            )
        return self.state.results[name]

    async def _call(
        self, step: Suspension, name: str, run: ToolCall, effect: CallTools
    ) -> ToolResult | NotBegun:
        spec = self.specs[run.tool]
        call = json.dumps(
            [run.tool, run.arguments, *(one.model_dump() for one in run.artifacts)], sort_keys=True
        )
        if spec.cache == "run" and call in self.cached:
            return self.cached[call].model_copy(update={"id": run.id, "attempts": 0, "cost_usd": 0})
        site = self.site(
            step, self._newest(name), run.title, next_question=self._next_question(step, name, run, effect)
        )
        attempts = effect.attempts if spec.repeatable else 1
        request = ToolInput(
            id=run.id,
            tool=run.tool,
            arguments=run.arguments,
            key=site.key,
            attempts=attempts,
            artifacts=run.artifacts,
            after_reset=self._after_reset(name, run),
            void=tuple(self.state.void.get(name, ())),
        )
        self._under_way[name] = run
        self._begin("tool_calls")
        result: Any = None
        try:
            result = await self.host.perform(request, site)
        finally:
            self._report(step, run, spec, site, result)
        del self._under_way[name]
        if isinstance(result, NotBegun):
            self._begin("tool_calls", -1)
            return result
        if result.acts_for is not None:
            self.state.not_before[name] = self.host.now() + result.acts_for
        if result.early is not None:
            self.early = result.early
        if result.unanswered:
            self.unbilled = added(self.unbilled, {"model_calls": result.unanswered})
        result = result.model_copy(update={"early": None, "unanswered": 0})
        if spec.cache == "run" and result.ok:
            self.cached[call] = result
        return result  # type: ignore[no-any-return]  # what a host answers to a ToolInput

    def _after_reset(self, name: str, run: ToolCall) -> AfterReset | None:
        """For a run that was reset. What is made again was looked up already."""
        me = self.identity
        if me.reset_since is None or name in self.state.made_again:
            return None
        same = (
            c
            for c in self.done
            if (c.tool, c.arguments) in ((run.tool, run.arguments), (run.tool, _cut(run.arguments)))
        )
        return AfterReset(
            since=me.reset_since, run=f"{me.workflow_id}/{me.root}/", keys=tuple(c.key for c in same)
        )

    # -- inner runs --------------------

    async def _run_child(
        self, step: Suspension, name: str, effect: RunMachine
    ) -> MachineEnded | EffectFailed:
        limit = self.task.limits.depth
        if self.task.depth + 1 > limit:
            text = f"{effect.machine} would be nested deeper than `limits.depth` allows: {limit}"
            return EffectFailed(error="recoverable", type="depth_limit", message=text)
        try:
            spent_usd = step.ledger.used("cost_usd") + self.spent["cost_usd"]
            task = inner_task(self.task, effect, self._share(step), spent_usd)
        except ValueError as error:
            problem = problems_text(error) if isinstance(error, ValidationError) else str(error)
            text = f"{effect.machine} cannot be run: {problem}"
            return EffectFailed(error="fatal", type="inner_machine", message=text)
        me = self.identity
        workflow_id = bounded(f"{me.workflow_id}/{me.root[:8]}/{name}")
        parents = (*me.parents, (me.workflow_id, me.origin))
        title, ids = effect.title[:200], self.signed_ids()
        child = ChildRun(workflow_id, task, title, parents, ids, me.reset_since, effect.roles)
        self.children[workflow_id] = {**task.limits.caps, "seconds": 0}
        try:
            result = await self.host.run_child(child)
        finally:
            del self.children[workflow_id]
        stopped = self._cancelled or self.host.cancelled()
        if isinstance(result, EffectFailed):
            return self._lost_child(step, workflow_id, result)
        self._inherit(step, workflow_id, result)
        if stopped and result.exit_reason == "cancelled":
            # A command stopped it. What it spent is spent.
            self.unbilled = added(self.unbilled, _ended(result, workflow_id).cost)
            self.state.children_stopped.append(result.error or "")
            raise asyncio.CancelledError
        if result.exit_reason in ("broken_rule", "bug", "refused"):
            return EffectFailed(
                error="fatal", type=result.raises or result.exit_reason,
                message=f"{workflow_id}: {result.error}", spent=result.counters,
            )  # fmt: skip
        return _ended(result, workflow_id)

    def _share(self, step: Suspension) -> dict[str, float]:
        """What an inner run may spend: an even share of what is left, without what its siblings have spent or
        may spend, for each of those that have not begun. All of them have the same time."""
        spent = added(self.spent, *self.children.values())
        ledger = step.ledger.at_least("seconds", self.host.now() - step.snapshot.began).charge(spent)
        shares = max(self._siblings, 1)
        self._siblings -= 1
        return {name: ledger.left(name) / (1 if name == "seconds" else shares) for name in ledger.caps}

    def _lost_child(self, step: Suspension, workflow_id: str, failure: EffectFailed) -> EffectFailed:
        """It ended without a result: what it did is unknown here."""
        if failure.error != "unknown_outcome":
            return failure
        s = step.snapshot
        self._keep(DoneCall(
            step=s.step, branch=s.branch, activity_id=workflow_id, tool="(inner run)", arguments={},
            effect="unsafe", error="outcome unknown; its own log may say what it did", key=workflow_id,
        ))  # fmt: skip
        return failure.model_copy(update={"error": "fatal"})

    def _inherit(self, step: Suspension, workflow_id: str, result: RunResult) -> None:
        """Report what an inner run did outside as done in the step that ran it."""
        s = step.snapshot
        for call in result.calls:
            activity_id = bounded(f"{workflow_id}: {call.activity_id}")
            self._keep(
                call.model_copy(update={"step": s.step, "branch": s.branch, "activity_id": activity_id})
            )

    # -- what was done outside --------------------

    def _report(
        self,
        step: Suspension,
        run: ToolCall,
        spec: ToolSpec,
        site: CallSite,
        result: ToolResult | NotBegun | None,
    ) -> None:
        """Keep a call with outside effects; None: it was stopped, and its outcome is unknown."""
        if spec.effect in HARMLESS or isinstance(result, NotBegun):
            return
        if result is not None and result.error in NOT_MADE:
            return
        s = step.snapshot
        output = result.output if result else ""
        self._keep(DoneCall(
            step=s.step, branch=s.branch, activity_id=site.activity_id, tool=run.tool,
            arguments=run.arguments if spec.compensates else _cut(run.arguments), effect=spec.effect,
            output=output if spec.compensates else output[:OUTPUT],
            error=result.error if result else "stopped: outcome unknown",
            key=site.key, undoable=spec.compensates,
        ))  # fmt: skip

    def _keep(self, call: DoneCall) -> None:
        self.done[:] = [*(one for one in self.done if one.key != call.key), call][-DONE_CALLS:]

    def since(self, step: int) -> tuple[DoneCall, ...]:
        """Calls of this step and later ones, oldest first, on all branches, those undone included."""
        return tuple(call for call in self.done if call.step >= step)

    async def reconcile(self, step: Suspension, name: str, run: ToolCall) -> Reconciled | None:
        """What the tool finds out about the call's outcome; None: it cannot, or has looked already."""
        spec = self.specs[run.tool]
        if name in self.state.reconciled or not spec.reconciles:
            return None
        name_of_call = self._newest(name)
        site = self.site(step, f"{name_of_call}?", f"find the outcome of {run.title}")
        request = ReconcileInput(
            id=run.id,
            tool=run.tool,
            arguments=run.arguments,
            key=self.site(step, name_of_call).key,
            attempts=RETRIES,
            artifacts=run.artifacts,
            after_reset=self._after_reset(name, run),
        )
        found = await self._once_begun(
            step, name, site.title, lambda: self.host.perform(request, site), limited=False
        )
        self.state.reconciled.append(name)
        return found if isinstance(found, Reconciled) else None

    async def compensate(self, step: Suspension, call: DoneCall) -> str:
        """Undo a call; what came of it, for a person."""
        site = self.site(step, f"undo:{call.activity_id}", f"undo {call.tool} of {call.activity_id}")
        request = CompensateInput(
            tool=call.tool, arguments=call.arguments, output=call.output, key=call.key, attempts=RETRIES
        )
        void = self.state.void

        def give_out() -> Coroutine[Any, Any, CallAnswer]:
            times = tuple(void.get(site.activity_id, ()))
            return self.host.perform(request.model_copy(update={"void": times}), site)

        done = await self._once_begun(
            step, site.activity_id, site.title, give_out, limited=False, stoppable=False
        )
        assert isinstance(done, Compensated)
        self.unbilled = added(self.unbilled, cost_of_tools((call.tool, done.cost_usd)))
        text = f"{'undone' if done.ok else 'not undone'}: {done.text}"
        if done.ok:
            at = self.done.index(call)
            self.done[at] = call.model_copy(update={"undone": text})
        return text


def _ended(result: RunResult, workflow_id: str) -> MachineEnded:
    """What an inner run's result is to the outer machine."""
    return MachineEnded(
        machine=result.machine,
        ok=result.ok,
        exit_reason=result.exit_reason,
        answer=result.answer,
        error=result.error,
        outcome=result.outcome,
        spent=result.counters,
        workflow_id=workflow_id,
    )


def _cut(arguments: JsonObject) -> JsonObject:
    cut: JsonObject = {}
    for name, value in arguments.items():
        text = json.dumps(value, ensure_ascii=False)
        cut[name] = value if len(text) <= OUTPUT else f"{text[:OUTPUT]} [... {len(text):,} characters]"
    return cut


async def _all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What all of them gave, once all have ended; raises what the first of them raised."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if not isinstance(one, BaseException)]
