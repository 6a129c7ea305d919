"""Tool calls as activities: made once each, in order or side by side; found out about; undone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, MutableMapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from activities.contracts import CallTools, ToolRequest, ToolResult, ToolRun, ToolSpec, ToolsReturned
from activities.contracts_people import Compensated, CompensateRequest, Reconciled, ReconcileRequest
from workflows.people import DoneCall
from workflows.retries import CRASHES, WAIT, all_of, attempts_of, failure_of
from workflows.where import Where

__all__ = ["ToolCalls", "tool_failure"]

MARGIN = 15
"""Seconds that an activity gets beyond the time limit it keeps itself."""
STOPPING = {"unknown_outcome", "unknown_tool"}
"""Errors behind which calls of the same reply are not run: nobody knows what the world looks like now,
or the worker lacks a tool that the task had (R-001-7)."""
ASKED = 3
"""Times that a tool is asked what became of a call, and that an undoing is tried if it may be."""


class ToolCalls:
    """The tools of a run, and which of its calls are under way."""

    def __init__(
        self,
        specs: Sequence[ToolSpec],
        heartbeat_seconds: float,
        key: Callable[[Where, str], str],
        remembered: dict[str, ToolResult],
    ) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.remembered = remembered
        """Results of tools with `cache: run`, by call."""
        self._heartbeat = timedelta(seconds=heartbeat_seconds)
        self._key = key
        self._under_way: dict[str, ToolRun] = {}
        self._stop = False

    # -- calls --------------------

    async def make(
        self,
        effect: CallTools,
        where: Where,
        within: timedelta | None,
        settled: MutableMapping[str, ToolResult],
    ) -> ToolsReturned:
        """In order, or side by side where that is asked for and every call may be repeated.

        What is settled is not called; each call that ends is settled. Raises a cancellation when it is
        stopped in the middle.
        """
        self._under_way.clear()
        self._stop = False
        names = where.calls(effect)

        async def one(run: ToolRun, name: str) -> ToolResult:
            if name not in settled:
                settled[name] = await self._call(effect, run, where, name, within)
            return settled[name]

        specs = [self.specs.get(run.tool) for run in effect.runs if run.tool in where.tools]
        if effect.parallel and len(specs) == len(names) and all(s and s.repeatable for s in specs):
            calls = [one(run, name) for run, name in zip(effect.runs, names, strict=True)]
            return ToolsReturned(results=tuple(await all_of(calls)))
        results: list[ToolResult] = []
        for run, name in zip(effect.runs, names, strict=True):
            if self._stop and name not in settled:
                raise asyncio.CancelledError
            results.append(await one(run, name))
            if results[-1].error in STOPPING:
                break  # the machine decides first
        return ToolsReturned(results=tuple(results))

    async def _call(
        self, effect: CallTools, run: ToolRun, where: Where, name: str, within: timedelta | None
    ) -> ToolResult:
        spec = self.specs.get(run.tool) if run.tool in where.tools else None
        if spec is None:
            return ToolResult(
                id=run.id, tool=run.tool, output=f"Unknown tool: {run.tool}", error="unknown_tool"
            )
        asked = [run.tool, run.arguments, *(wanted.model_dump() for wanted in run.artifacts)]
        memory = json.dumps(asked, sort_keys=True)
        if spec.cache == "run" and memory in self.remembered:
            return self.remembered[memory].model_copy(update={"id": run.id, "attempts": 0, "cost_usd": 0})
        self._under_way[name] = run
        result = await self._activity(effect, run, spec, where, name, within)
        self._under_way.pop(name, None)
        if spec.cache == "run" and result.ok:
            self.remembered[memory] = result
        return result

    async def _activity(
        self,
        effect: CallTools,
        run: ToolRun,
        spec: ToolSpec,
        where: Where,
        name: str,
        within: timedelta | None,
    ) -> ToolResult:
        attempts = effect.attempts if spec.repeatable else 1
        request = ToolRequest(
            id=run.id,
            tool=run.tool,
            arguments=run.arguments,
            key=self._key(where, name),
            attempts=attempts,
            artifacts=run.artifacts,
        )
        try:
            result: ToolResult = await workflow.execute_activity(
                "call_tool",
                request,
                result_type=ToolResult,
                activity_id=name,
                summary=run.title[:200],
                # An unsafe call is not cut off in the middle: nobody would know what it did.
                schedule_to_close_timeout=within if spec.repeatable else None,
                start_to_close_timeout=timedelta(seconds=spec.timeout_seconds + MARGIN),
                cancellation_type=WAIT,
                heartbeat_timeout=self._heartbeat,
                retry_policy=attempts_of(attempts + CRASHES if spec.repeatable else 1),
            )
        except ActivityError as error:
            return tool_failure(run, spec, error)
        return result

    # -- stopping --------------------

    def stop_soon(self) -> bool:
        """Begin no further call; True while one is under way that must not be cut off."""
        self._stop = True
        return bool(self.in_doubt())

    def under_way(self) -> tuple[str, ...]:
        """Activity ids of calls that were begun and have not ended."""
        return tuple(self._under_way)

    def in_doubt(self) -> str:
        """The unsafe ones among them, in words."""
        found = [run for run in self._under_way.values() if not self.specs[run.tool].repeatable]
        return ", ".join(run.title for run in found)

    # -- afterwards --------------------

    async def reconcile(self, run: ToolRun, where: Where, name: str) -> Reconciled | None:
        """Ask the tool what became of a call; None: it cannot find out."""
        spec = self.specs.get(run.tool)
        if spec is None or not spec.reconciles:
            return None
        try:
            found: Reconciled = await workflow.execute_activity(
                "reconcile_tool",
                ReconcileRequest(
                    id=run.id,
                    tool=run.tool,
                    arguments=run.arguments,
                    key=self._key(where, name),
                    attempts=ASKED,
                    artifacts=run.artifacts,
                ),
                result_type=Reconciled,
                activity_id=f"{name}?",
                summary=f"what became of {run.title}?"[:200],
                start_to_close_timeout=timedelta(seconds=spec.timeout_seconds + MARGIN),
                cancellation_type=WAIT,
                heartbeat_timeout=self._heartbeat,
                retry_policy=attempts_of(ASKED + CRASHES),
            )
        except ActivityError as error:
            return Reconciled(outcome="unknown", text=failure_of(error).message)
        return found

    async def compensate(self, call: DoneCall) -> Compensated:
        """Undo a call. One that must not be repeated is tried once."""
        spec = self.specs.get(call.tool)
        if spec is None or not spec.compensates:
            return Compensated(ok=False, text="the tool cannot undo it")
        attempts = ASKED + CRASHES if spec.repeatable else 1
        try:
            done: Compensated = await workflow.execute_activity(
                "compensate_tool",
                CompensateRequest(
                    tool=call.tool, arguments=call.arguments, output=call.output, key=call.key, attempts=ASKED
                ),
                result_type=Compensated,
                activity_id=f"undo:{call.place}",
                summary=f"undo {call.tool} of {call.place}"[:200],
                start_to_close_timeout=timedelta(seconds=spec.timeout_seconds + MARGIN),
                cancellation_type=WAIT,
                heartbeat_timeout=self._heartbeat,
                retry_policy=attempts_of(attempts),
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            text = f"nobody knows whether it is undone: {failure_of(error).message}"
            return Compensated(ok=False, text=text)
        return done


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
    cause: Any = error.cause
    if isinstance(cause, ApplicationError):
        text = f"{cause.type or 'error'}: {cause.message}"
        return ToolResult(id=run.id, tool=run.tool, output=text, error="failed")
    text = f"{run.title} did not answer, although it was tried several times"
    return ToolResult(id=run.id, tool=run.tool, output=text, error="timeout")
