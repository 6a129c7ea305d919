"""The activities `reconcile_tool` and `compensate_tool`: what comes after a call.

A tool may find out whether a call took effect whose worker died, and it may undo a call. Everything
that it can do wrong comes back as data; only a transient failure is raised, so that Temporal tries
again: of a `reconcile` always, since it only looks, of a `compensate` if the tool may be repeated.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import structlog
from pydantic import BaseModel
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.contracts import TRANSIENT
from activities.contracts_people import Compensated, CompensateRequest, Reconciled, ReconcileRequest
from activities.heartbeat import beating
from activities.settings import Settings
from activities.tool_input import TRANSIENT_ERRORS, message_of, parsed, words_of
from activities.tool_output import encode
from activities.tool_result import Keep, Verdict, result_of
from activities.tool_run import Outcome, call_context, find_out, undo
from activities.toolbox import Tool, Toolbox

__all__ = ["AfterActivities"]

WORDS = 2000
"""Characters that people are shown of what a tool says."""
UNDO = "/undo"
"""Behind the key of a call: the key of its undoing."""

log = structlog.get_logger(__name__)


class AfterActivities:
    """The activities around one toolbox; `keep_whole` stores an output and answers its digest."""

    def __init__(self, toolbox: Toolbox, settings: Settings, keep_whole: Keep | None = None) -> None:
        self.toolbox = toolbox
        self.settings = settings
        self.keep_whole = keep_whole

    @activity.defn(name="reconcile_tool")
    async def reconcile_tool(self, request: ReconcileRequest) -> Reconciled:
        """Ask the tool whether a call took effect; raises `ApplicationError` of type `Transient`."""
        progress = deque([f"{request.tool}: did the call take effect?"], maxlen=1)
        async with beating(lambda: progress[-1]):
            ready = self._ready(request, "reconcile")
            if isinstance(ready, str):
                return Reconciled(outcome="unknown", text=ready)
            with call_context(self.settings, request.key, progress.append) as call:
                outcome = await find_out(*ready, call)
            _raise_to_repeat(outcome, request.attempts)
            reconciled = await self._reconciled(request, ready[0], outcome)
        log.info("tool.reconciled", tool=request.tool, outcome=reconciled.outcome)
        return reconciled

    @activity.defn(name="compensate_tool")
    async def compensate_tool(self, request: CompensateRequest) -> Compensated:
        """Have the tool undo a call; raises `ApplicationError` of type `Transient`."""
        progress = deque([f"{request.tool}: undo the call"], maxlen=1)
        async with beating(lambda: progress[-1]):
            ready = self._ready(request, "compensate")
            if isinstance(ready, str):
                return Compensated(ok=False, text=ready)
            tool, params = ready
            if activity.info().attempt > 1 and not tool.repeatable:
                return Compensated(ok=False, text=_LOST.format(tool=tool.name))
            key = request.key + UNDO
            with call_context(self.settings, key, progress.append, undoes=request.key) as call:
                outcome = await undo(tool, params, request.output, call)
            if tool.repeatable:
                _raise_to_repeat(outcome, request.attempts)
        compensated = _compensated(tool, outcome)
        log.info("tool.compensated", tool=tool.name, ok=compensated.ok)
        return compensated

    def _ready(
        self, request: ReconcileRequest | CompensateRequest, way: Literal["reconcile", "compensate"]
    ) -> tuple[Tool[Any], BaseModel] | str:
        """The tool and its arguments, or why it cannot be asked."""
        tool = self.toolbox.get(request.tool)
        if tool is None:
            return f"this worker has no tool {request.tool}; name its module with RATCHET_MODULES"
        if getattr(tool, way) is None:
            return f"{tool.name} declares no `{way}`"
        params = parsed(tool, request.arguments)
        return params if isinstance(params, str) else (tool, params)

    async def _reconciled(self, request: ReconcileRequest, tool: Tool[Any], outcome: Outcome) -> Reconciled:
        if outcome.happened is None:
            return Reconciled(outcome="unknown", text=_not_found(tool, outcome))
        said = outcome.output.text[:WORDS] if outcome.output else ""
        if not outcome.happened:
            return Reconciled(outcome="not_happened", text=said or "the call took no effect")
        cost, marks = outcome.cost_usd, outcome.marks
        if outcome.output is not None:
            verdict = Verdict(outcome.output, cost_usd=cost, marks=marks)
        else:
            words = words_of(outcome.error or RuntimeError("the output cannot be read"))
            verdict = Verdict(encode(words), "failed", cost_usd=cost, marks=marks)
        result = await result_of(request, verdict, self.settings.output_cap, self.keep_whole)
        return Reconciled(outcome="happened", result=result, text="the call took effect")


_LOST = (
    "undoing a call of {tool} was started before and its worker was lost, so nobody knows whether the "
    "call is undone; it was not tried again"
)


def _raise_to_repeat(outcome: Outcome, attempts: int) -> None:
    if isinstance(outcome.error, TRANSIENT_ERRORS) and activity.info().attempt < attempts:
        message = message_of(outcome.error) or type(outcome.error).__name__
        raise ApplicationError(message[:WORDS], type=TRANSIENT)


def _not_found(tool: Tool[Any], outcome: Outcome) -> str:
    if outcome.timed_out:
        return f"{tool.name} did not find out within {tool.timeout_seconds:g} s"
    if outcome.error is not None:
        return f"{tool.name} did not find out: {words_of(outcome.error)}"[:WORDS]
    return f"{tool.name} cannot tell whether the call took effect"


def _compensated(tool: Tool[Any], outcome: Outcome) -> Compensated:
    if outcome.output is not None:
        said = outcome.output.text[:WORDS]
        return Compensated(
            ok=True, text="undone" if said in ("", "null") else said, cost_usd=outcome.cost_usd
        )
    if outcome.timed_out:
        why = (
            f"undoing did not end within {tool.timeout_seconds:g} s; nobody knows whether the call is undone"
        )
    else:
        why = words_of(outcome.error or RuntimeError("what it returned cannot be read"))
    return Compensated(ok=False, text=f"{tool.name}: {why}"[:WORDS], cost_usd=outcome.cost_usd)
