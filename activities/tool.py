"""The activities `call_tool` and `describe_tools`: run a tool, and say which tools there are.

Everything that a tool can do wrong comes back as a `ToolResult` in words for the model. Only a
transient failure of a tool that may be repeated is raised, so that Temporal tries again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.contracts import TRANSIENT, ToolRequest, ToolResult, ToolsDescribed, ToolsWanted
from activities.heartbeat import beating
from activities.settings import Settings
from activities.tool_input import TRANSIENT_ERRORS, message_of, parsed, words_of
from activities.tool_output import encode
from activities.tool_result import Keep, Verdict, result_of
from activities.tool_run import Outcome, call_context, perform
from activities.toolbox import Tool, Toolbox

__all__ = ["ToolActivities"]

log = structlog.get_logger(__name__)


class ToolActivities:
    """The activities around one toolbox; `keep_whole` stores an output and answers its digest."""

    def __init__(self, toolbox: Toolbox, settings: Settings, keep_whole: Keep | None = None) -> None:
        self.toolbox = toolbox
        self.settings = settings
        self.keep_whole = keep_whole

    @activity.defn(name="describe_tools")
    async def describe_tools(self, wanted: ToolsWanted) -> ToolsDescribed:
        """The specs of the tools wanted, in that order, and the names that are missing."""
        found = [(name, self.toolbox.get(name)) for name in wanted.names]
        missing = tuple(name for name, tool in found if tool is None)
        return ToolsDescribed(
            tools=tuple(tool.spec() for _, tool in found if tool is not None),
            missing=missing,
            available=self.toolbox.names if missing else (),
        )

    @activity.defn(name="call_tool")
    async def call_tool(self, request: ToolRequest) -> ToolResult:
        """Run one tool; raises `ApplicationError` of type `Transient` to be called again."""
        started = time.monotonic()
        progress: deque[str] = deque(maxlen=1)
        async with beating(lambda: progress[-1] if progress else request.tool):
            verdict = await self._verdict(request, progress.append)
            result = await result_of(request, verdict, self.settings.output_cap, self.keep_whole)
        seconds = time.monotonic() - started
        log.info("tool.returned", tool=request.tool[:64], seconds=round(seconds, 3), error=verdict.error)
        return result.model_copy(update={"seconds": seconds})

    async def _verdict(self, request: ToolRequest, report: Callable[[str], None]) -> Verdict:
        tool = self.toolbox.get(request.tool)
        if tool is None:
            return Verdict(encode(f"Unknown tool: {request.tool}"), "unknown_tool")
        attempt = activity.info().attempt
        if attempt > 1 and not tool.repeatable:
            return Verdict(encode(_LOST.format(tool=tool.name)), "unknown_outcome", attempt)
        params = parsed(tool, request.arguments)
        if isinstance(params, str):
            return Verdict(encode(f"{params}. The tool was not run."), "bad_arguments", attempt)
        with call_context(self.settings, request.key, report) as call:
            outcome = await perform(tool, params, call)
        return _judged(tool, outcome, attempt, last=attempt >= request.attempts)


_LOST = (
    "{tool} was started before and its worker was lost, so nobody knows whether it took effect. "
    "It was not run again."
)


def _judged(tool: Tool[Any], outcome: Outcome, attempt: int, last: bool) -> Verdict:
    cost, marks = outcome.cost_usd, outcome.marks
    if outcome.output is not None:
        return Verdict(outcome.output, None, attempt, cost, marks)
    if outcome.timed_out:
        return _late(tool, attempt)
    error = outcome.error or RuntimeError("the tool returned nothing that could be read")
    if isinstance(error, TRANSIENT_ERRORS):
        return _failed_for_now(tool, error, attempt, last)
    return Verdict(encode(words_of(error)), "failed", attempt, cost, marks)


def _late(tool: Tool[Any], attempt: int) -> Verdict:
    words = f"{tool.name} did not finish within {tool.timeout_seconds:g} s"
    if tool.repeatable:
        return Verdict(encode(f"{words} and was stopped."), "timeout", attempt)
    lost = f"{words}; nobody knows whether it took effect. It is not run again."
    return Verdict(encode(lost), "unknown_outcome", attempt)


def _failed_for_now(tool: Tool[Any], error: BaseException, attempt: int, last: bool) -> Verdict:
    message = message_of(error) or type(error).__name__
    if tool.repeatable and not last:
        log.info("tool.retried", tool=tool.name, attempt=attempt, cause=type(error).__name__)
        raise ApplicationError(message[:2000], type=TRANSIENT)
    times = "1 attempt" if attempt == 1 else f"{attempt} attempts"
    return Verdict(encode(f"Error after {times}: {message}"), "transient", attempt)
