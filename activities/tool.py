"""The activities `call_tool` and `describe_tools`: run a tool, and say which tools there are.

Everything that a tool can do wrong comes back as a `ToolResult` in words for the model. Only a
transient failure of a tool that may be repeated is raised, so that Temporal tries again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import structlog
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.artifacts import artifacts_of
from activities.contracts import (
    TRANSIENT,
    JsonObject,
    ToolError,
    ToolRequest,
    ToolResult,
    ToolsDescribed,
    ToolsWanted,
)
from activities.heartbeat import beating
from activities.settings import Settings
from activities.tool_output import MAX_KEPT_BYTES, Output, encode, readable
from activities.tool_run import Outcome, perform
from activities.toolbox import Tool, Toolbox, ToolCallContext, TransientError

__all__ = ["ToolActivities"]


TRANSIENT_ERRORS = (TransientError, ConnectionError, TimeoutError, httpx2.TransportError)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What became of a call, before its output is cut."""

    output: Output
    error: ToolError | None = None
    attempts: int = 1
    cost_usd: float = 0
    marks: tuple[str, ...] = ()


class ToolActivities:
    """The activities around one toolbox; `keep_whole` stores an output and answers its digest."""

    def __init__(
        self,
        toolbox: Toolbox,
        settings: Settings,
        keep_whole: Callable[[bytes], Awaitable[str]] | None = None,
    ) -> None:
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
            shown, whole = await self._shown(verdict)
            wanted = request.artifacts if verdict.error is None else ()
            artifacts = await artifacts_of(verdict.output, wanted, self.keep_whole)
        seconds = time.monotonic() - started
        log.info("tool.returned", tool=request.tool[:64], seconds=round(seconds, 3), error=verdict.error)
        return ToolResult(
            id=request.id,
            tool=request.tool,
            output=shown,
            error=verdict.error,
            attempts=verdict.attempts,
            seconds=seconds,
            cost_usd=verdict.cost_usd,
            bytes=len(verdict.output.whole),
            whole=whole,
            marks=verdict.marks,
            artifacts=artifacts,
        )

    async def _verdict(self, request: ToolRequest, report: Callable[[str], None]) -> _Verdict:
        tool = self.toolbox.get(request.tool)
        if tool is None:
            return _Verdict(encode(f"Unknown tool: {request.tool}"), "unknown_tool")
        attempt = activity.info().attempt
        if attempt > 1 and not tool.repeatable:
            return _Verdict(encode(_LOST.format(tool=tool.name)), "unknown_outcome", attempt)
        params = _parsed(tool, request.arguments)
        if isinstance(params, str):
            return _Verdict(encode(params), "bad_arguments", attempt)
        stop = _Stop()
        try:
            outcome = await perform(tool, params, self._context(request.key, report, stop))
        finally:
            stop.asked = True
        return _judged(tool, outcome, attempt, last=attempt >= request.attempts)

    def _context(self, key: str, report: Callable[[str], None], stop: _Stop) -> ToolCallContext:
        return ToolCallContext(
            key=key,
            files_root=self.settings.files_root,
            settings=self.settings,
            attempt=activity.info().attempt,
            heartbeat=lambda words: report(readable(str(words)[:500])),
            cancelled=lambda: stop.asked,
        )

    async def _shown(self, verdict: _Verdict) -> tuple[str, str | None]:
        """What the model is shown, and the digest of the whole if that is less."""
        output, cap = verdict.output, self.settings.output_cap
        if output.is_text and len(output.text) <= cap:
            return output.text, None
        whole, fate = None, "the rest is not kept"
        if self.keep_whole is not None:
            try:
                whole = await self.keep_whole(output.whole[:MAX_KEPT_BYTES])
                kept_all = len(output.whole) <= MAX_KEPT_BYTES
                fate = "the whole is kept" if kept_all else "the first 64 MiB are kept"
            except Exception as error:  # the tool has run: its answer must not be lost
                log.error("tool.output_not_kept", exc_info=error)
                fate = "the rest could not be kept"
        return output.capped(cap, fate), whole


@dataclass(slots=True)
class _Stop:
    asked: bool = False


_LOST = (
    "{tool} was started before and its worker was lost, so nobody knows whether it took effect. "
    "It was not run again."
)


def _parsed(tool: Tool[Any], arguments: JsonObject) -> BaseModel | str:
    """The arguments as the tool's model, or what is wrong with them."""
    try:
        # From JSON, so that strict fields accept dates and the like in their JSON form.
        params: BaseModel = tool.params.model_validate_json(to_json(arguments))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        problems = "; ".join(_problem(dict(one)) for one in found[:10])
        return f"The arguments do not fit {tool.name}: {problems}. The tool was not run."
    except Exception as error:  # noqa: BLE001  # a validator of the tool's own may raise anything
        return f"The arguments do not fit {tool.name}: {_words(error)}. The tool was not run."
    return params


def _problem(found: dict[str, Any]) -> str:
    field = ".".join(str(part) for part in found["loc"]) or "arguments"
    words = f"{field}: {found['msg']}"
    if found["type"] in ("missing", "extra_forbidden") or not found["loc"]:
        return words
    return f"{words}, got {repr(found['input'])[:60]}"


def _words(error: BaseException) -> str:
    message = _message(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _message(error: BaseException) -> str:
    try:
        return readable(str(error))
    except BaseException as broken:  # noqa: BLE001  # an exception of the tool's own, whose text fails
        return f"(its text cannot be read: {type(broken).__name__})"


def _judged(tool: Tool[Any], outcome: Outcome, attempt: int, last: bool) -> _Verdict:
    cost, marks = outcome.cost_usd, outcome.marks
    if outcome.output is not None:
        return _Verdict(outcome.output, None, attempt, cost, marks)
    if outcome.timed_out:
        return _late(tool, attempt)
    error = outcome.error or RuntimeError("the tool returned nothing that could be read")
    if isinstance(error, TRANSIENT_ERRORS):
        return _failed_for_now(tool, error, attempt, last)
    return _Verdict(encode(_words(error)), "failed", attempt, cost, marks)


def _late(tool: Tool[Any], attempt: int) -> _Verdict:
    words = f"{tool.name} did not finish within {tool.timeout_seconds:g} s"
    if tool.repeatable:
        return _Verdict(encode(f"{words} and was stopped."), "timeout", attempt)
    lost = f"{words}; nobody knows whether it took effect. It is not run again."
    return _Verdict(encode(lost), "unknown_outcome", attempt)


def _failed_for_now(tool: Tool[Any], error: BaseException, attempt: int, last: bool) -> _Verdict:
    message = _message(error) or type(error).__name__
    if tool.repeatable and not last:
        log.info("tool.retried", tool=tool.name, attempt=attempt, cause=type(error).__name__)
        raise ApplicationError(message[:2000], type=TRANSIENT)
    times = "1 attempt" if attempt == 1 else f"{attempt} attempts"
    return _Verdict(encode(f"Error after {times}: {message}"), "transient", attempt)
