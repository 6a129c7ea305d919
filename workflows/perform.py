"""Effect -> activity: id, timeouts, retry policy and what an error means, in one place."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from activities.contracts import (
    TRANSCRIPT_MISSING,
    CallModel,
    CallModels,
    CallTools,
    Effect,
    EffectFailed,
    ModelReplied,
    ModelRequest,
    ModelSpec,
    ModelsReplied,
    RunMachine,
    Setup,
    ToolResult,
    ToolSpec,
)
from activities.contracts_artifacts import ArtifactsRead, ArtifactText, ReadArtifacts
from activities.contracts_code import CodeStepped, RunCode
from workflows.api import AgentTask
from workflows.child import Children
from workflows.perform_tools import MARGIN, ToolCalls
from workflows.retries import CRASHES, WAIT, all_of, attempts_of, failure_of
from workflows.where import Where

__all__ = ["Performer"]

QUEUEING = 600
"""Seconds that a block of code may wait for a free interpreter; a dead worker is noticed by its heartbeat."""
AT_ONCE = 10
"""Model calls of one effect that run side by side."""
HELD = 50
"""Digests that are carried to the next run of the chain."""


class Performer:
    """Performs a run's effects, and knows what of the conversation the store holds."""

    def __init__(self, task: AgentTask, specs: Sequence[ToolSpec], origin_run_id: str) -> None:
        self.task = task
        self.specs = {spec.name: spec for spec in specs}
        self.origin = origin_run_id
        self._workflow_id = workflow.info().workflow_id
        self._within: timedelta | None = None
        carry = task.carry
        self._held: dict[str, None] = dict.fromkeys(carry.held if carry else ())
        """Digests that the store holds, oldest first (a set would have no order)."""
        remembered = {k: ToolResult.model_validate(v) for k, v in (carry.remembered if carry else {}).items()}
        self.tools = ToolCalls(specs, task.heartbeat_seconds, self.key, remembered)
        self.children = Children(task, origin_run_id)
        self._setups: dict[tuple[str, tuple[str, ...], str], tuple[Setup, str]] = {}

    def carry(self) -> dict[str, Any]:
        """What the next run of the chain should know."""
        remembered = {key: result.model_dump(mode="json") for key, result in self.tools.remembered.items()}
        return {"held": tuple(self._held)[-HELD:], "remembered": remembered}

    async def perform(self, effect: Effect, where: Where, settled: MutableMapping[str, Any]) -> BaseModel:
        """Do it, within what the run's limit leaves of seconds; see `World.perform` for `settled`.

        Raises a cancellation when it is stopped, and the call did not end before that.
        """
        seconds = where.ledger.left("seconds")
        self._within = None if seconds == math.inf else timedelta(seconds=max(seconds, 0.1))
        match effect:
            case CallModel():
                return await self._call_model(effect, where)
            case CallModels():
                return await self._call_models(effect, where, settled)
            case CallTools():
                return await self.tools.make(effect, where, self._within, settled)
            case RunCode():
                return await self._run_code(effect, where)
            case ReadArtifacts():
                return await self._read_artifacts(effect, where)
            case RunMachine():
                return await self.children.run(effect, where)
        raise ApplicationError(f"no activity performs {effect.kind!r}", type="Bug", non_retryable=True)

    def key(self, where: Where, activity_id: str) -> str:
        """The idempotency key of a call: stable over attempts, crashes and continue-as-new."""
        return f"{self._workflow_id}/{self.origin}/{where.branch}/{activity_id}"

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

    async def _call_models(
        self, effect: CallModels, where: Where, settled: MutableMapping[str, ModelReplied | EffectFailed]
    ) -> ModelsReplied:
        """Side by side, a few at a time: each is an activity of its own. Those that are `settled` are not
        asked again."""
        free = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, call: CallModel) -> ModelReplied | EffectFailed:
            place = replace(where, activity_id=f"{where.activity_id}.{number}")
            if place.activity_id not in settled:
                async with free:
                    settled[place.activity_id] = await self._call_model(call, place)
            return settled[place.activity_id]

        calls = [one(number, call) for number, call in enumerate(effect.calls)]
        return ModelsReplied(replies=tuple(await all_of(calls)))

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
            key=self.key(where, where.activity_id),
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
            retry_policy=attempts_of(attempts + CRASHES),
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
                retry_policy=attempts_of(3 + CRASHES),
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
                retry_policy=attempts_of(CRASHES),
            )
        except ActivityError as error:
            problem = f"it could not be read: {failure_of(error).message}"
            return ArtifactsRead(texts=tuple(ArtifactText(problem=problem) for _ in effect.reads))
        return found


def _is(error: ActivityError, kind: str) -> bool:
    return isinstance(error.cause, ApplicationError) and error.cause.type == kind
