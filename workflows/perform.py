"""Effect -> activity: id, timeouts, retry policy and what an error means, in one place."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, is_cancelled_exception

from activities.contracts import (
    FATAL,
    RECOVERABLE,
    TRANSCRIPT_MISSING,
    TRANSIENT,
    Answer,
    AskPerson,
    CallModel,
    CallModels,
    CallTools,
    Effect,
    EffectFailed,
    ErrorClass,
    ModelReplied,
    ModelRequest,
    ModelSpec,
    ModelsReplied,
    PersonDecided,
    RunMachine,
    Setup,
    ToolRequest,
    ToolResult,
    ToolRun,
    ToolSpec,
    ToolsReturned,
)
from activities.contracts_artifacts import ArtifactsRead, ArtifactText, ReadArtifacts
from activities.contracts_code import CodeStepped, RunCode
from workflows.api import AgentTask
from workflows.child import run_child
from workflows.where import Where

__all__ = ["Performer", "failure_of", "tool_failure"]

CRASHES = 10
"""Attempts beyond the declared ones, for those that died with their worker."""
QUEUEING = 600
"""Seconds that a block of code may wait for a free interpreter; a dead worker is noticed by its heartbeat."""
MARGIN = 15
"""Seconds that an activity gets beyond the time limit it keeps itself."""
STOPPING = {"unknown_outcome", "unknown_tool"}
"""Errors behind which calls of the same reply are not run: nobody knows what the world looks like now,
or the worker lacks a tool that the task had (R-001-7)."""
AT_ONCE = 10
"""Model calls of one effect that run side by side."""
HELD = 50
"""Digests that are carried to the next run of the chain."""
WAIT = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
"""An answer that came before the cancellation is taken; a call in flight is told, and ends first."""
_CLASSES: dict[str, ErrorClass] = {TRANSIENT: "transient", RECOVERABLE: "recoverable", FATAL: "fatal"}


class Performer:
    """Performs a run's effects, and knows what of the conversation the store holds."""

    def __init__(self, task: AgentTask, specs: Sequence[ToolSpec], origin_run_id: str) -> None:
        self.task = task
        self.specs = {spec.name: spec for spec in specs}
        self.origin = origin_run_id
        self._within: timedelta | None = None
        carry = task.carry
        self._held: dict[str, None] = dict.fromkeys(carry.held if carry else ())
        """Digests that the store holds, oldest first (a set would have no order)."""
        self._remembered = {
            k: ToolResult.model_validate(v) for k, v in (carry.remembered if carry else {}).items()
        }
        self._setups: dict[tuple[str, tuple[str, ...], str], tuple[Setup, str]] = {}

    def carry(self) -> dict[str, Any]:
        """What the next run of the chain should know."""
        remembered = {key: result.model_dump(mode="json") for key, result in self._remembered.items()}
        return {"held": tuple(self._held)[-HELD:], "remembered": remembered}

    def unsafe(self, effect: Effect) -> str:
        """The calls of an effect whose outcome nobody knows when they are interrupted, in words."""
        runs = effect.runs if isinstance(effect, CallTools) else ()
        return ", ".join(r.title for r in runs if (spec := self.specs.get(r.tool)) and not spec.repeatable)

    async def perform(self, effect: Effect, where: Where) -> Answer | CodeStepped | ArtifactsRead:
        """Do it, within what the run's limit leaves of seconds.

        Raises a cancellation when the run is cancelled, and the call did not end before it.
        """
        seconds = where.ledger.left("seconds")
        self._within = None if seconds == math.inf else timedelta(seconds=max(seconds, 0.1))
        match effect:
            case CallModel():
                return await self._call_model(effect, where)
            case CallModels():
                return await self._call_models(effect, where)
            case CallTools():
                return await self._call_tools(effect, where)
            case RunCode():
                return await self._run_code(effect, where)
            case ReadArtifacts():
                return await self._read_artifacts(effect, where)
            case RunMachine():
                return await run_child(self.task, effect, where, self.origin)
            case AskPerson():
                return PersonDecided(decision="unavailable", text="no person can be asked")
        raise ApplicationError(f"no activity performs {effect.kind!r}", type="Bug", non_retryable=True)

    def _key(self, where: Where, activity_id: str) -> str:
        return f"{workflow.info().workflow_id}/{self.origin}/{where.branch}/{activity_id}"

    # -- the model --------------------

    async def _call_model(self, effect: CallModel, where: Where) -> ModelReplied | EffectFailed:
        """Send what the store does not hold; when it lost what it held, send everything once."""
        offered = tuple(name for name in effect.offer if name in where.tools)
        if offered != effect.offer:
            effect = effect.model_copy(update={"offer": offered})
        try:
            reply = await self._ask(effect, where, where.activity_id)
        except ActivityError as error:
            if not _is(error, TRANSCRIPT_MISSING):
                return failure_of(error)
            self._held.clear()
            try:
                reply = await self._ask(effect, where, f"{where.activity_id}+all")
            except ActivityError as again:
                return failure_of(again)
        self._held[reply.transcript] = None
        return reply

    async def _call_models(self, effect: CallModels, where: Where) -> ModelsReplied:
        """Side by side, a few at a time: each is an activity of its own."""
        free = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, call: CallModel) -> ModelReplied | EffectFailed:
            async with free:
                place = replace(where, activity_id=f"{where.activity_id}.{number}")
                return await self._call_model(call, place)

        calls = [one(number, call) for number, call in enumerate(effect.calls)]
        return ModelsReplied(replies=tuple(await asyncio.gather(*calls)))

    async def _ask(self, effect: CallModel, where: Where, activity_id: str) -> ModelReplied:
        model = self.task.models.get(effect.role) or self.task.models["default"]
        setup, digest = self._setup(effect, model)
        digests = effect.transcript.digests
        known = next((n for n in range(len(digests) - 1, 0, -1) if digests[n] in self._held), 0)
        attempts = model.attempts or effect.attempts
        request = ModelRequest(
            role=effect.role,
            setup=digest,
            full_setup=None if digest in self._held else setup,
            base=digests[known] if known else None,
            messages=effect.transcript.messages[known:],
            tool_choice=effect.tool_choice,
            key=self._key(where, where.activity_id),
            attempts=attempts,
        )
        reply: ModelReplied = await workflow.execute_activity(
            "call_model",
            request,
            result_type=ModelReplied,
            activity_id=activity_id,
            summary=effect.title[:200],
            schedule_to_close_timeout=self._within,
            start_to_close_timeout=timedelta(seconds=model.timeout_seconds + MARGIN),
            cancellation_type=WAIT,
            heartbeat_timeout=timedelta(seconds=self.task.heartbeat_seconds),
            retry_policy=_policy(attempts + CRASHES),
        )
        self._held[digest] = None
        return reply

    def _setup(self, effect: CallModel, model: ModelSpec) -> tuple[Setup, str]:
        """The set-up of a call and its digest, worked out once: it may be large."""
        schema = json.dumps(effect.response_schema, sort_keys=True)
        known = (effect.role, effect.offer, schema)
        if known not in self._setups:
            offered = tuple(self.specs[name] for name in effect.offer if name in self.specs)
            setup = Setup(model=model, tools=offered, response_schema=effect.response_schema)
            self._setups[known] = (setup, setup.digest)
        return self._setups[known]

    # -- code --------------------

    async def _run_code(self, effect: RunCode, where: Where) -> CodeStepped | EffectFailed:
        """Run a block to its next call outside; it changes nothing, so it may be repeated."""
        seconds = effect.limits.seconds + QUEUEING
        try:
            stepped: CodeStepped = await workflow.execute_activity(
                "run_code",
                effect,
                result_type=CodeStepped,
                activity_id=where.activity_id,
                summary=effect.title[:200],
                schedule_to_close_timeout=self._within,
                start_to_close_timeout=timedelta(seconds=seconds),
                cancellation_type=WAIT,
                heartbeat_timeout=timedelta(seconds=self.task.heartbeat_seconds),
                retry_policy=_policy(3 + CRASHES),
            )
        except ActivityError as error:
            return failure_of(error)
        return stepped

    # -- artifacts --------------------

    async def _read_artifacts(self, effect: ReadArtifacts, where: Where) -> ArtifactsRead:
        """Texts of artifacts; reading never fails a run, so a failure is the problem of every text."""
        try:
            found: ArtifactsRead = await workflow.execute_activity(
                "read_artifacts",
                effect,
                result_type=ArtifactsRead,
                activity_id=where.activity_id,
                summary=effect.title[:200],
                schedule_to_close_timeout=self._within,
                start_to_close_timeout=timedelta(seconds=60),
                cancellation_type=WAIT,
                retry_policy=_policy(CRASHES),
            )
        except ActivityError as error:
            problem = f"it could not be read: {failure_of(error).message}"
            return ArtifactsRead(texts=tuple(ArtifactText(problem=problem) for _ in effect.reads))
        return found

    # -- tools --------------------

    async def _call_tools(self, effect: CallTools, where: Where) -> Answer:
        """In order, or side by side where that is asked for and every call may be repeated."""
        several = len(effect.runs) > 1
        names = [
            f"{where.activity_id}.{n}" if several else where.activity_id for n in range(len(effect.runs))
        ]
        specs = [self.specs.get(run.tool) for run in effect.runs if run.tool in where.tools]
        if effect.parallel and len(specs) == len(names) and all(s and s.repeatable for s in specs):
            calls = [
                self._call_tool(effect, run, where, name)
                for run, name in zip(effect.runs, names, strict=True)
            ]
            return ToolsReturned(results=tuple(await asyncio.gather(*calls)))
        results: list[ToolResult] = []
        for run, name in zip(effect.runs, names, strict=True):
            results.append(await self._call_tool(effect, run, where, name))
            if results[-1].error in STOPPING:
                break  # the machine decides first
        return ToolsReturned(results=tuple(results))

    async def _call_tool(self, effect: CallTools, run: ToolRun, where: Where, activity_id: str) -> ToolResult:
        spec = self.specs.get(run.tool) if run.tool in where.tools else None
        if spec is None:
            return ToolResult(
                id=run.id, tool=run.tool, output=f"Unknown tool: {run.tool}", error="unknown_tool"
            )
        asked = [run.tool, run.arguments, *(wanted.model_dump() for wanted in run.artifacts)]
        memory = json.dumps(asked, sort_keys=True)
        if spec.cache == "run" and memory in self._remembered:
            return self._remembered[memory].model_copy(update={"id": run.id, "attempts": 0, "cost_usd": 0})
        attempts = effect.attempts if spec.repeatable else 1
        try:
            result: ToolResult = await workflow.execute_activity(
                "call_tool",
                ToolRequest(
                    id=run.id,
                    tool=run.tool,
                    arguments=run.arguments,
                    key=self._key(where, activity_id),
                    attempts=attempts,
                    artifacts=run.artifacts,
                ),
                result_type=ToolResult,
                activity_id=activity_id,
                summary=run.title[:200],
                # An unsafe call is not cut off in the middle: nobody would know what it did.
                schedule_to_close_timeout=self._within if spec.repeatable else None,
                start_to_close_timeout=timedelta(seconds=spec.timeout_seconds + MARGIN),
                cancellation_type=WAIT,
                heartbeat_timeout=timedelta(seconds=self.task.heartbeat_seconds),
                retry_policy=_policy(attempts + CRASHES if spec.repeatable else 1),
            )
        except ActivityError as error:
            return tool_failure(run, spec, error)
        if spec.cache == "run" and result.ok:
            self._remembered[memory] = result
        return result


def _policy(attempts: int) -> RetryPolicy:
    """Waits of 1 s, 2 s, 4 s, ... up to a minute (spec 1.5); Retry-After overrides a wait."""
    return RetryPolicy(
        initial_interval=timedelta(seconds=1),
        backoff_coefficient=2,
        maximum_interval=timedelta(minutes=1),
        maximum_attempts=attempts,
    )


def _is(error: ActivityError, kind: str) -> bool:
    return isinstance(error.cause, ApplicationError) and error.cause.type == kind


def failure_of(error: ActivityError) -> EffectFailed:
    """What the machine is told of an activity that failed for good."""
    if is_cancelled_exception(error):
        raise error
    cause = error.cause
    if isinstance(cause, ApplicationError):
        details = cause.details[0] if cause.details and isinstance(cause.details[0], dict) else {}
        return EffectFailed(
            error=_CLASSES.get(cause.type or "", "fatal"),
            type=str(details.get("type") or cause.type or "error"),
            message=cause.message,
        )
    if isinstance(cause, TimeoutError):
        text = "the call timed out, or its worker died, again and again"
        return EffectFailed(error="transient", type="timeout", message=text)
    return EffectFailed(error="fatal", type=type(cause).__name__, message=str(cause or error))


def tool_failure(run: ToolRun, spec: ToolSpec, error: ActivityError) -> ToolResult:
    """A tool whose activity failed: nobody can say what an `unsafe` one has done."""
    if is_cancelled_exception(error):
        raise error
    if not spec.repeatable:
        # The activity answers what an unsafe tool did; when it failed itself, its worker was lost
        # or stopped in the middle of the call.
        text = (
            f"nobody knows whether {run.title} took effect: its worker died or was stopped in the middle. "
            f"The tool is `unsafe`, so it is not run again; look at what it did, then start a new run"
        )
        return ToolResult(id=run.id, tool=run.tool, output=text, error="unknown_outcome")
    cause = error.cause
    if isinstance(cause, ApplicationError):
        text = f"{cause.type or 'error'}: {cause.message}"
        return ToolResult(id=run.id, tool=run.tool, output=text, error="failed")
    text = f"{run.title} did not answer, although it was tried several times"
    return ToolResult(id=run.id, tool=run.tool, output=text, error="timeout")
