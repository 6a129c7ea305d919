"""One call as one Temporal activity: its id, timeouts and retries, and what a failure means."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    RetryState,
    TimeoutError,
    is_cancelled_exception,
)

from activities.contracts import (
    CONVERSATION_MISSING,
    FATAL,
    NOT_BEGUN,
    QUOTED_CHARS,
    RECOVERABLE,
    TRANSIENT,
    UNKNOWN_TOOLS,
    ArtifactsRead,
    ArtifactText,
    AskModel,
    CallBlocked,
    CodeStepped,
    Compensated,
    CompensateInput,
    Digests,
    EffectFailed,
    ErrorClass,
    MachineNamed,
    ModelInput,
    ModelReplied,
    ModelSpec,
    NotBegun,
    Quote,
    ReadArtifacts,
    Reconciled,
    ReconcileInput,
    RunCode,
    Setup,
    ToolInput,
    ToolResult,
    ToolsDescribed,
    ToolSpec,
    ToolsWanted,
    text_digest,
)
from activities.contracts.titles import THEN_THE_MODEL
from activities.handover import Handover, NextPrompt, handed_over
from workflows import registry
from workflows.api import AgentTask
from workflows.engine.waiting import wait_until_done
from workflows.gate.approvals import problem_text, unchecked_paths
from workflows.hosts import CallAnswer, CallSite, HostCall
from workflows.task import InvalidTask

__all__ = ["CRASH_ATTEMPTS", "Performer", "answer_of", "retries", "until_done"]

R = TypeVar("R")

UNLIMITED_ATTEMPTS = 0
"""Attempts, for Temporal."""
CRASH_ATTEMPTS = 10
"""Attempts beyond the declared ones, for those that died with their worker."""
DIGEST_CHARS = 6
"""Hexadecimal characters of a call's digest."""
TIMEOUT_MARGIN_SECONDS = 15
"""Seconds that an activity gets beyond the time limit that it keeps itself."""
STORE_MARGIN_SECONDS = 15
"""Seconds beyond that for the call store, into which a worker writes before and after a tool runs."""
QUEUE_SECONDS = 600
"""Seconds that a block of code may wait for a free interpreter; a heartbeat tells of a dead worker."""
RATE_LIMIT_SECONDS = 3600
"""Seconds that a question may wait for a rate limit of its worker; then the attempt fails and says so."""
MAX_CARRIED_DIGESTS = 50
"""Digests that are carried to the next execution of the chain; outputs that a question may quote."""
CANCEL_AND_WAIT = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
"""A cancelled call is told so and ends first; an answer that came before is taken."""
STORE_ERRORS = {"KeyMissing", "NotDecrypted", "BlobMissing", "BlobDamaged", "StoreUnavailable"}
"""Types of errors with which a worker that cannot read a value fails; see `activities/store`."""
BLOB_ERRORS = {"BlobMissing", "BlobDamaged"}
"""Errors about a blob that somebody must restore. Activities raise them, too."""
CLASSES: dict[str, ErrorClass] = {TRANSIENT: "transient", RECOVERABLE: "recoverable", FATAL: "fatal"}


def call_digest(call: HostCall) -> str:
    """Of what the call does. What a model reads is not in it: runs that wait go on when a prompt changes."""
    asked: Any
    match call:
        case AskModel():
            asked = [call.role, call.offer]
        case ToolInput():
            asked = [call.tool, call.arguments, [one.model_dump(mode="json") for one in call.artifacts]]
        case CompensateInput():
            asked = [call.tool, call.arguments]
        case RunCode():
            asked = [call.block, call.constants]
        case ReadArtifacts():
            asked = [call.chars, [one.model_dump(mode="json") for one in call.reads]]
    text = json.dumps([type(call).__name__, asked], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


class Performer:
    """Performs a run's calls, and knows which part of the conversation the store holds."""

    def __init__(self, task: AgentTask, specs: dict[str, ToolSpec], held: Iterable[str] = ()) -> None:
        """`specs` by name; empty until they are known, and then filled."""
        self.task, self.specs = task, specs
        self._heartbeat = timedelta(seconds=task.heartbeat_seconds)
        self._held: dict[str, None] = dict.fromkeys(held)
        """Digests that the store holds, oldest first (a set would have no order)."""
        self._handovers: list[Handover] = []
        self._outputs: dict[str, str] = {}
        """Of the tools since the last question, by digest."""
        self._setups: dict[tuple[str, tuple[str, ...], str], tuple[Setup, str]] = {}

    @property
    def held(self) -> tuple[str, ...]:
        """The newest digests, for the next execution of the chain."""
        return tuple(self._held)[-MAX_CARRIED_DIGESTS:]

    async def perform(self, call: HostCall, site: CallSite) -> CallAnswer:
        """See `Host.perform`. The activity's id ends with a digest of the call: a replay compares ids, so a
        machine that asks for another call is found out where it does so."""
        site = replace(site, activity_id=f"{site.activity_id}@{call_digest(call)}")
        match call:
            case AskModel():
                return await self._ask_model(call, site)
            case ReconcileInput():  # before ToolInput, its base class
                return await self._reconcile(call, site)
            case ToolInput():
                return await self._call_tool(call, site)
            case CompensateInput():
                return await self._compensate(call, site)
            case RunCode():
                return await self._run_code(call, site)
            case ReadArtifacts():
                return await self._read_artifacts(call, site)

    # -- the model ----------------------------------------------------------------------------------

    async def _ask_model(self, effect: AskModel, site: CallSite) -> ModelReplied | EffectFailed:
        """Send what the store lacks; when it has lost what it held, send everything once."""
        model = self._model(effect)
        outputs, self._outputs = self._outputs, {}
        knew_tools = self.knows_tools
        if site.reply is not None:
            self._held |= {self._setup(effect, model)[1]: None, site.reply.conversation: None}
            return site.reply
        try:
            reply = await self._ask(effect, model, site, site.activity_id, outputs)
        except ActivityError as error:
            if problem := _unknown_tools(error):
                raise InvalidTask(problem) from error
            if not _is(error, CONVERSATION_MISSING):
                failed = failure(error, site)
                if not knew_tools:
                    await self.describe_tools()
                return failed
            self._held.clear()
            try:
                reply = await self._ask(effect, model, site, f"{site.activity_id}+all", {})
            except ActivityError as again:
                return failure(again, site)
        if not knew_tools:
            self._learn(reply.tools)
            reply = reply.model_copy(update={"tools": ()})
        self._held |= {self._setup(effect, model)[1]: None, reply.conversation: None}
        return reply

    @property
    def knows_tools(self) -> bool:
        """The specs are known."""
        return bool(self.specs) or not self.task.tools

    async def describe_tools(self) -> Digests | None:
        """Learn the specs of the task's tools. They enter the history and go on with the run, so that a tool
        that changes later cannot break it. Returns the worker's digests if the task has a certificate and the
        worker has its machine. Raises InvalidTask.

        An activity of its own is needed only where no question brings them. Never a local one: where a query
        or message comes while one is under way, Temporal replays its end elsewhere, and the run would not
        replay (design 6). When cancelled it stops, and raises asyncio.CancelledError.
        """
        try:
            raw: RawValue | None = await _execute_when_readable(
                "describe_tools",
                ToolsWanted(names=self.task.tools, machine=self._machine_to_compare),
                result_type=RawValue,
                activity_id="describe-tools",
                start_to_close_timeout=timedelta(seconds=90),  # MCP servers may have to be started
                retry_policy=retries(CRASH_ATTEMPTS),
                summary="describe the agent's tools",
            )
            found = answer_of(raw, ToolsDescribed, "describe_tools", "describe-tools")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise asyncio.CancelledError from error
            problem = _unknown_tools(error) or f"the worker cannot describe its tools: {error.cause}"
            raise InvalidTask(problem) from error
        self._learn(found.tools)
        return found.machine

    @property
    def _machine_to_compare(self) -> MachineNamed | None:
        task = self.task
        if task.certificate is None or task.carry is not None:
            return None
        return MachineNamed(name=task.machine, version=task.machine_version, options=task.options)

    def _learn(self, tools: Iterable[ToolSpec]) -> None:
        self.specs.update({spec.name: self.task.labels.labelled(spec) for spec in tools})
        if found := unchecked_paths(self.task.approvals, self.specs.values()):
            fields = {"problem": problem_text(found)}
            workflow.logger.warning("approvals.unchecked_path", extra={"ratchet": fields})

    def _model(self, effect: AskModel) -> ModelSpec:
        return self.task.models.get(effect.role) or self.task.models["default"]

    async def _ask(
        self, effect: AskModel, model: ModelSpec, site: CallSite, activity_id: str, outputs: Mapping[str, str]
    ) -> ModelReplied:
        request = quoting(self._model_request(effect, model, site), outputs)
        return await self._activity(
            "ask_model", request, ModelReplied, site, activity_id=activity_id,
            seconds=model.timeout_seconds + RATE_LIMIT_SECONDS + TIMEOUT_MARGIN_SECONDS,
            attempts=request.attempts + CRASH_ATTEMPTS,
        )  # fmt: skip

    def _model_request(self, effect: AskModel, model: ModelSpec, site: CallSite) -> ModelInput:
        setup, digest = self._setup(effect, model)
        wanted = {} if self.knows_tools else {"describe": self.task.tools, "offer": effect.offer}
        digests = site.conversation.digests
        known = next((n for n in range(len(digests) - 1, 0, -1) if digests[n] in self._held), 0)
        return ModelInput(
            role=effect.role,
            setup=digest,
            full_setup=None if digest in self._held else setup,
            base=digests[known] if known else None,
            messages=site.conversation.messages[known:],
            skip=effect.skip,
            tool_choice=effect.tool_choice,
            # of the question, too: after a tool's second run it may be another one at the same place
            key=f"{site.key}/{site.digest(effect)}",
            attempts=model.attempts or effect.attempts,
            most_requests=None if site.requests == math.inf else int(site.requests),
            **wanted,
        )

    def _setup(self, effect: AskModel, model: ModelSpec) -> tuple[Setup, str]:
        """The setup of a call and its digest, computed once: it may be large."""
        if not self.knows_tools:  # the activity adds them
            setup = Setup(model=model, response_schema=effect.response_schema)
            return setup, setup.digest
        known = (effect.role, effect.offer, json.dumps(effect.response_schema, sort_keys=True))
        if known not in self._setups:
            offered = tuple(self.specs[name] for name in effect.offer if name in self.specs)
            setup = Setup(model=model, tools=offered, response_schema=effect.response_schema)
            self._setups[known] = (setup, setup.digest)
        return self._setups[known]

    # -- tools --------------------------------------------------------------------------------------

    async def _call_tool(self, request: ToolInput, site: CallSite) -> ToolResult | NotBegun:
        spec = self.specs[request.tool]
        seconds = self._tool_seconds(request.tool)
        asking = _question_seconds(self.task)
        early = site.next_question is not None and seconds + asking < site.seconds
        title = f"{site.title[:180]}{THEN_THE_MODEL}" if early else site.title
        with self._handed_over(site.key, self._question_after(site)) if early else nullcontext():
            try:
                result = await self._activity(
                    "call_tool", request, ToolResult, replace(site, title=title),
                    seconds=seconds + asking if early else seconds,
                    attempts=request.attempts + CRASH_ATTEMPTS if spec.repeatable else 1,
                    # An unsafe call is not ended in the middle: its outcome would be unknown.
                    limited=spec.repeatable,
                )  # fmt: skip
            except ActivityError as error:
                if (waits := not_begun(error)) is not None:
                    return waits
                result = tool_failure(request, spec, error)
                if result.error == "unknown_outcome":
                    begun = await self._block_lost_attempt(request, site)
                    result = result.model_copy(update={"acts_for": spec.timeout_seconds if begun else None})
                return result
        if len(result.output) >= QUOTED_CHARS:
            self._outputs[text_digest(result.output)] = result.output
            if len(self._outputs) > MAX_CARRIED_DIGESTS:  # without a question after them
                del self._outputs[next(iter(self._outputs))]
        return result

    async def _block_lost_attempt(self, request: ToolInput, site: CallSite) -> bool:
        """Keep the lost attempt from beginning, however late its worker wakes up. True: it has begun before,
        and may go on."""
        title = f"keep the lost {request.tool} from beginning"
        place = replace(site, activity_id=f"{site.activity_id}!", title=title)
        try:
            blocked = await self._activity(
                "block_call", request, CallBlocked, place,
                seconds=TIMEOUT_MARGIN_SECONDS + STORE_MARGIN_SECONDS,
                attempts=UNLIMITED_ATTEMPTS, limited=False,
            )  # fmt: skip
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return True  # for all that is known
        return blocked.begun

    def _tool_seconds(self, tool: str) -> float:
        """The most that one attempt takes."""
        return self.specs[tool].timeout_seconds + TIMEOUT_MARGIN_SECONDS + STORE_MARGIN_SECONDS

    def _question_after(self, call: CallSite) -> Callable[[ToolResult, float], NextPrompt | None]:
        """How an activity finds what to ask after this call."""

        def question(result: ToolResult, now: float) -> NextPrompt | None:
            assert call.next_question is not None
            if (found := call.next_question(result, now)) is None:
                return None
            effect, site = found
            return NextPrompt(site.digest(effect), self._model_request(effect, self._model(effect), site))

        return question

    @contextmanager
    def _handed_over(
        self, key: str, question: Callable[[ToolResult, float], NextPrompt | None]
    ) -> Iterator[None]:
        """Let the activity with this key ask the question after it, if it runs in this process."""
        # users' code runs under the sandbox's rules, and in the workflow's own thread: never in an activity
        if workflow.unsafe.is_replaying() or not registry.is_shipped(self.task.machine, self.task.options):
            yield
            return
        handover = Handover(question)
        self._handovers.append(handover)
        try:
            with handed_over(key, handover):
                yield
        finally:
            self._handovers.remove(handover)

    def stop_early_questions(self) -> None:
        """Calls under way in this process return what their tools returned."""
        for handover in self._handovers:
            handover.stop()

    async def _reconcile(self, request: ReconcileInput, site: CallSite) -> Reconciled | NotBegun:
        try:
            return await self._activity(
                "reconcile_tool", request, Reconciled, site, limited=False,
                # it may look, wait as long as the lost call may go on, and look again
                seconds=self._tool_seconds(request.tool) + 2 * self.specs[request.tool].timeout_seconds,
                attempts=request.attempts + CRASH_ATTEMPTS,
            )  # fmt: skip
        except ActivityError as error:
            return not_begun(error) or Reconciled(outcome="unknown", text=failure(error, site).message)

    async def _compensate(self, request: CompensateInput, site: CallSite) -> Compensated | NotBegun:
        spec = self.specs[request.tool]
        try:
            return await self._activity(
                "compensate_tool", request, Compensated, site, seconds=self._tool_seconds(request.tool),
                attempts=request.attempts + CRASH_ATTEMPTS if spec.repeatable else 1, limited=False,
            )  # fmt: skip
        except ActivityError as error:
            if (waits := not_begun(error)) is not None:
                return waits
            failed = failure(error, site, repeatable=spec.repeatable)
            text = f"outcome unknown: the compensation did not end: {failed.message}"
            return Compensated(ok=False, text=text)

    # -- code and artifacts -------------------------------------------------------------------------

    async def _run_code(self, effect: RunCode, site: CallSite) -> CodeStepped | EffectFailed:
        """Run a block to its next outside call. It changes nothing, so it may be repeated."""
        seconds = effect.limits.seconds + QUEUE_SECONDS
        try:
            return await self._activity(
                "run_code", effect, CodeStepped, site, seconds=seconds, attempts=3 + CRASH_ATTEMPTS
            )
        except ActivityError as error:
            return failure(error, site)

    async def _read_artifacts(self, effect: ReadArtifacts, site: CallSite) -> ArtifactsRead:
        """Reading never fails a run: a failure is the problem of every text."""
        try:
            return await self._activity(
                "read_artifacts", effect, ArtifactsRead, site, seconds=60, attempts=CRASH_ATTEMPTS
            )
        except ActivityError as error:
            problem = f"it could not be read: {failure(error, site).message}"
            return ArtifactsRead(texts=tuple(ArtifactText(problem=problem) for _ in effect.reads))

    # -- one activity -------------------------------------------------------------------------------

    async def _activity(  # noqa: PLR0913  # what differs between the kinds of calls
        self,
        name: str,
        request: BaseModel,
        result: type[R],
        site: CallSite,
        *,
        seconds: float,
        attempts: int,
        limited: bool = True,
        activity_id: str = "",
    ) -> R:
        """`seconds` for one attempt; `limited`: what the run's limit leaves is a limit for all of them."""
        within = site.seconds if limited else math.inf
        named = activity_id or site.activity_id
        # the run's loop gives these out again: people can pause and abort the run while they wait
        of_tools = isinstance(request, ToolInput | CompensateInput)
        execute = workflow.execute_activity if of_tools else _execute_when_readable
        raw: RawValue | None = await execute(
            name,
            request,
            result_type=RawValue,
            activity_id=named,
            summary=site.title[:200],
            schedule_to_close_timeout=None if within == math.inf else timedelta(seconds=max(within, 0.1)),
            start_to_close_timeout=timedelta(seconds=seconds),
            cancellation_type=CANCEL_AND_WAIT,
            heartbeat_timeout=None if name == "read_artifacts" else self._heartbeat,
            retry_policy=retries(attempts),
        )
        return answer_of(raw, result, name, named)


async def _execute_when_readable(name: str, request: BaseModel, **more: Any) -> Any:
    """Execute an activity; give it out again while its worker lacks a key or a blob.
    `schedule_to_close_timeout` limits all of it, then it fails as `deadline`."""
    pause, began = 2.0, workflow.now()
    within: timedelta | None = more.pop("schedule_to_close_timeout", None)
    left = within
    while True:
        try:
            return await workflow.execute_activity(name, request, schedule_to_close_timeout=left, **more)
        except ActivityError as error:
            if not _was_unread(error):
                raise
            unread = error
        over = math.inf if within is None else (began + within - workflow.now()).total_seconds()
        await workflow.sleep(max(min(pause, over), 0.001), summary="its worker cannot read the request")
        if within is not None and (left := began + within - workflow.now()) <= timedelta():
            text = "its worker cannot read the request; the time that the run had left is over"
            raise unread from ApplicationError(text, {"type": "deadline"}, type=TRANSIENT)
        pause = min(2 * pause, 600)


def not_begun(error: ActivityError) -> NotBegun | None:
    """Why the worker could not begin the call; None: that is not what failed."""
    cause = error.cause
    if _was_unread(error):
        return NotBegun(reason="its worker cannot read the request; the worker's log says why")
    if not isinstance(cause, ApplicationError) or cause.type != NOT_BEGUN:
        return None
    at = cause.details[0] if cause.details else None
    return NotBegun(reason=cause.message, at=at if isinstance(at, float) else None)


def _was_unread(error: ActivityError) -> bool:
    """The worker could not read what it was given, or what that refers to, for want of a key or a blob."""
    failed = error.cause
    if not isinstance(failed, ApplicationError):
        return False
    if failed.type in BLOB_ERRORS:
        return True
    cause = failed.cause if failed.message.startswith("Failed decoding") else None
    return isinstance(cause, ApplicationError) and cause.type in STORE_ERRORS


def answer_of(raw: RawValue | None, wanted: type[R], name: str, activity_id: str) -> R:
    """What an activity returned. Anybody can complete one, with anything (`temporal activity complete`): what
    is no answer is a failure of the activity. Raises ActivityError; and the store's error, so that the task
    is tried again, for what this worker alone cannot read."""
    try:
        if raw is None:
            raise ValueError("it is empty")
        answer: R = workflow.payload_converter().from_payloads([raw.payload], [wanted])[0]
    except (ApplicationError, ValueError, TypeError, LookupError, RuntimeError) as error:
        text = f"it was completed with what is no {wanted.__name__}: {getattr(error, 'message', error)}"
        failed = ActivityError(
            text, scheduled_event_id=0, started_event_id=0, identity="", activity_type=name,
            activity_id=activity_id, retry_state=None,
        )  # fmt: skip
        raise failed from ApplicationError(text, type="WrongAnswer", non_retryable=True)
    return answer


async def until_done(work: asyncio.Future[Any]) -> bool:
    """Wait until it has ended, also when the run is cancelled meanwhile. True: it was."""
    return await wait_until_done(work.done, lambda: workflow.wait([work]))


def _question_seconds(task: AgentTask) -> float:
    """The most that one attempt of a question takes."""
    return max(model.timeout_seconds for model in task.models.values()) + TIMEOUT_MARGIN_SECONDS


def quoting(request: ModelInput, outputs: Mapping[str, str]) -> ModelInput:
    """The request with these tool outputs by reference: history holds each already."""
    messages, quotes = list(request.messages), []
    forms = [(digest, output, False) for digest, output in outputs.items()]
    forms += [(digest, Quote.escape(output), True) for digest, output in outputs.items()]
    for number, message in enumerate(messages):
        for digest, text, escaped in forms:
            before, found, after = message.content.partition(text)
            if found:
                messages[number] = message.model_copy(update={"content": before + after})
                quotes.append(Quote(message=number, at=len(before), output=digest, escaped=escaped))
                break
    return request.model_copy(update={"messages": tuple(messages), "quotes": tuple(quotes)})


def retries(attempts: int) -> RetryPolicy:
    """Waits of 1 s, 2 s, 4 s, ... up to a minute (spec 1.5); a provider's `Retry-After` overrides a wait."""
    return RetryPolicy(
        initial_interval=timedelta(seconds=1),
        backoff_coefficient=2,
        maximum_interval=timedelta(minutes=1),
        maximum_attempts=attempts,
    )


def _lost_while_stopping(error: ActivityError) -> bool:
    """It was told to stop, and then its worker was lost, or the attempt failed for now: Temporal gives out no
    further attempt, so that it has not failed for good."""
    for_now = isinstance(error.cause, TimeoutError) or not getattr(error.cause, "non_retryable", True)
    return for_now and error.retry_state is RetryState.CANCEL_REQUESTED


def failure(error: ActivityError, site: CallSite, *, repeatable: bool = True) -> EffectFailed:
    """What an activity that failed for good means to the machine. Raises asyncio.CancelledError."""
    if is_cancelled_exception(error) or (repeatable and _lost_while_stopping(error)):
        raise asyncio.CancelledError from error
    cause = error.cause
    if isinstance(cause, ApplicationError):
        details: Any = cause.details[0] if cause.details else None
        found = details if isinstance(details, dict) else {}
        sent = found.get("requests")
        further = sent - 1 if isinstance(sent, int) else 0
        return EffectFailed(
            error=CLASSES.get(cause.type or "", "fatal"),
            type=str(found.get("type") or cause.type or "error"),
            message=cause.message,
            spent={"model_calls": further} if further > 0 else {},
        )
    if isinstance(cause, TimeoutError):
        return EffectFailed(error="transient", type="timeout", message=_timeout(cause, site))
    return EffectFailed(error="fatal", type=type(cause).__name__, message=str(cause or error))


def _timeout(error: TimeoutError, site: CallSite) -> str:
    name = error.type.name if error.type else ""
    if name == "SCHEDULE_TO_CLOSE" and site.seconds != math.inf:
        return f"the run's limit of seconds left {site.seconds:.0f} s for this call, and it took longer"
    if name == "HEARTBEAT":
        return "the worker stopped during the call, each time it was tried"
    return "the call took longer than allowed, each time it was tried"


def tool_failure(request: ToolInput, spec: ToolSpec, error: ActivityError) -> ToolResult:
    """A tool whose activity failed: an unsafe one may have taken effect. Raises asyncio.CancelledError."""
    if is_cancelled_exception(error):
        raise asyncio.CancelledError from error
    if not spec.repeatable:
        # The activity answers what an unsafe tool did. When the activity itself failed, its worker was
        # lost or stopped in the middle of the call, or somebody ended the activity from outside.
        ended = error.cause.message if isinstance(error.cause, ApplicationError) else ""
        happened = (
            f"{request.tool} was ended from outside: {ended}"
            if ended
            else (f"the worker stopped while running {request.tool}")
        )
        text = f"outcome unknown: {happened}. The tool is `unsafe`, so it is not run again"
        return ToolResult(id=request.id, tool=request.tool, output=text, error="unknown_outcome")
    if _lost_while_stopping(error):
        raise asyncio.CancelledError from error
    cause = error.cause
    if isinstance(cause, ApplicationError):
        text = f"{cause.type or 'error'}: {cause.message}"
        return ToolResult(id=request.id, tool=request.tool, output=text, error="failed")
    text = f"{request.tool} did not answer in any of its attempts"
    return ToolResult(id=request.id, tool=request.tool, output=text, error="timeout")


def _unknown_tools(error: ActivityError) -> str:
    """Which tools the worker lacks, in words; empty: that is not what failed."""
    cause = error.cause
    return cause.message if isinstance(cause, ApplicationError) and cause.type == UNKNOWN_TOOLS else ""


def _is(error: ActivityError, kind: str) -> bool:
    return isinstance(error.cause, ApplicationError) and error.cause.type == kind
