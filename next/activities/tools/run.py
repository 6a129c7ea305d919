"""Run tools: schema, time limit, kinds of failure, caps. The same code with and without Temporal.

Everything that a tool can do wrong comes back as data, in words for the model or for people. Only a
transient failure of a call that may be repeated is raised, so that the caller tries again.

`ToolRunner` knows nothing of Temporal. `ToolActivities` gives it attempts and heartbeats.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import httpx2
import structlog
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.contracts import (
    TRANSIENT,
    Compensated,
    CompensateRequest,
    JsonObject,
    Reconciled,
    ReconcileRequest,
    ToolError,
    ToolRequest,
    ToolResult,
    ToolsDescribed,
    ToolsWanted,
)
from activities.heartbeat import heartbeats
from activities.settings import Settings
from activities.tools import (
    Happened,
    NotHappened,
    Tool,
    Toolbox,
    ToolCallContext,
    ToolReturn,
    TransientError,
    parameter_count,
)
from activities.tools.artifacts import Blobs, Output, artifacts_of, encode, readable, shown

__all__ = ["UNDO", "ToolActivities", "ToolRunner"]

GRACE_SECONDS = 2.0
"""A cancelled asynchronous tool may clean up for so long."""
TEXT_CHARS = 2000
"""The most that people are shown of what a tool says, and that an error message has."""
SMALL_VALUES, SMALL_TEXT = 100, 100_000
"""A larger value, or a longer text, is encoded in a thread."""
PLAIN = (int, float, bool, type(None), NotHappened)
UNDO = "/undo"
"""At the end of a call's key: the key of its compensation."""
SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$", re.IGNORECASE)
"""Names of environment variables whose values no error may repeat."""
TRANSIENT_ERRORS = (TransientError, ConnectionError, TimeoutError, httpx2.TransportError)
"""What a tool raises for a failure that goes away by itself."""

log = structlog.get_logger(__name__)
Q = TypeVar("Q")
R = TypeVar("R")
Heartbeat = Callable[[str], None]
"""Called with what a tool says about its progress."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended: its output, or an error whose words are the output."""

    output: Output
    error: ToolError | None = None
    cost_usd: float = 0
    marks: tuple[str, ...] = ()
    happened: bool | None = None
    """What `reconcile` found; None: nothing."""

    @property
    def text(self) -> str:
        """For people."""
        return self.output.text[:TEXT_CHARS]


def _error(error: ToolError, text: str) -> Outcome:
    return Outcome(encode(text), error)


def _no_heartbeat(text: str) -> None:
    """Nobody watches."""


class ToolRunner:
    """Runs the tools of one toolbox. `blobs` keeps whole outputs and artifacts.

    `attempt` counts from 1.
    """

    def __init__(self, toolbox: Toolbox, settings: Settings, blobs: Blobs | None = None) -> None:
        self.toolbox = toolbox
        self.settings = settings
        self.blobs = blobs

    def describe_tools(self, wanted: ToolsWanted) -> ToolsDescribed:
        """The specs of the tools, in the order of the request, and the names that are missing."""
        found = [(name, self.toolbox.get(name)) for name in wanted.names]
        missing = tuple(name for name, tool in found if tool is None)
        return ToolsDescribed(
            tools=tuple(tool.spec() for _, tool in found if tool is not None),
            missing=missing,
            available=self.toolbox.names if missing else (),
        )

    async def run_tool(
        self, request: ToolRequest, attempt: int = 1, heartbeat: Heartbeat = _no_heartbeat
    ) -> ToolResult:
        """The result of one attempt. Raises `TransientError` when another attempt should follow."""
        started = time.monotonic()
        outcome = await self._outcome(request, attempt, heartbeat)
        result = await self._result(request, outcome, attempt)
        seconds = time.monotonic() - started
        log.info("tool.returned", tool=request.tool[:64], seconds=round(seconds, 3), error=outcome.error)
        return result.model_copy(update={"seconds": seconds})

    async def _outcome(self, request: ToolRequest, attempt: int, heartbeat: Heartbeat) -> Outcome:
        tool = self.toolbox.get(request.tool)
        if tool is None:
            return _error("unknown_tool", f"Unknown tool: {request.tool}")
        if attempt > 1 and not tool.repeatable:
            return _error(
                "unknown_outcome",
                f"The outcome of this call is unknown: {tool.name} was started before and its worker was "
                "lost. It was not run again.",
            )
        params = _params(tool, request.arguments)
        if isinstance(params, str):
            return _error("bad_arguments", f"{params}. The tool was not run.")
        with self._call(request.key, attempt, heartbeat) as call:
            outcome = await _performed(tool.run, (params,), call, tool.timeout_seconds)
        if outcome.error == "transient":
            return _after_transient(tool, outcome, attempt, request.attempts)
        if outcome.error == "timeout":
            late = f"{tool.name} did not finish within {tool.timeout_seconds:g} s"
            if tool.repeatable:
                return _error("timeout", f"{late} and was stopped.")
            return _error("unknown_outcome", f"{late}. The outcome is unknown; it is not run again.")
        return outcome

    async def _result(self, request: ToolRequest, outcome: Outcome, attempt: int) -> ToolResult:
        text, whole = await shown(outcome.output, self.settings.output_cap, self.blobs)
        specs = request.artifacts if outcome.error is None else ()
        return ToolResult(
            id=request.id,
            tool=request.tool,
            output=text,
            error=outcome.error,
            attempts=attempt,
            cost_usd=outcome.cost_usd,
            bytes=len(outcome.output.whole),
            whole=whole,
            marks=outcome.marks,
            artifacts=await artifacts_of(outcome.output, specs, self.blobs),
        )

    async def reconcile_tool(
        self, request: ReconcileRequest, attempt: int = 1, heartbeat: Heartbeat = _no_heartbeat
    ) -> Reconciled:
        """Ask the tool whether a call took effect. Raises `TransientError` to be called again."""
        ready = self._ready(request, "reconcile")
        if isinstance(ready, str):
            return Reconciled(outcome="unknown", text=ready)
        tool, params = ready
        assert tool.reconcile is not None
        with self._call(request.key, attempt, heartbeat) as call:
            outcome = await _performed(
                tool.reconcile, (request.key, params), call, tool.timeout_seconds, _finding
            )
        if outcome.error == "transient" and attempt < request.attempts:
            raise TransientError(outcome.text)
        reconciled = Reconciled(outcome="unknown", text=_why_unknown(tool, outcome))
        if outcome.happened is False:
            reason = outcome.text or "the call took no effect"
            reconciled = Reconciled(outcome="not_happened", text=reason)
        elif outcome.happened:
            result = await self._result(request, outcome, 1)
            reconciled = Reconciled(outcome="happened", result=result, text="the call took effect")
        log.info("tool.reconciled", tool=tool.name, outcome=reconciled.outcome)
        return reconciled

    async def compensate_tool(
        self, request: CompensateRequest, attempt: int = 1, heartbeat: Heartbeat = _no_heartbeat
    ) -> Compensated:
        """Have the tool undo a call. Raises `TransientError` to be called again."""
        ready = self._ready(request, "compensate")
        if isinstance(ready, str):
            return Compensated(ok=False, text=ready)
        tool, params = ready
        assert tool.compensate is not None
        if attempt > 1 and not tool.repeatable:
            return Compensated(
                ok=False,
                text=f"The outcome is unknown: undoing a call of {tool.name} was started before and its "
                "worker was lost. It was not tried again.",
            )
        with self._call(request.key + UNDO, attempt, heartbeat, undoes=request.key) as call:
            arguments = (params, request.output)
            outcome = await _performed(tool.compensate, arguments, call, tool.timeout_seconds)
        if outcome.error == "transient" and tool.repeatable and attempt < request.attempts:
            raise TransientError(outcome.text)
        text = "undone" if outcome.text in ("", "null") else outcome.text
        if outcome.error == "timeout":
            text = (
                f"{tool.name} did not undo the call within {tool.timeout_seconds:g} s; the outcome is unknown"
            )
        elif outcome.error:
            text = f"{tool.name}: {outcome.text}"[:TEXT_CHARS]
        log.info("tool.compensated", tool=tool.name, ok=outcome.error is None)
        return Compensated(ok=outcome.error is None, text=text, cost_usd=outcome.cost_usd)

    def _ready(
        self, request: ReconcileRequest | CompensateRequest, function: Literal["reconcile", "compensate"]
    ) -> tuple[Tool[Any], BaseModel] | str:
        """The tool and its arguments, or why the function cannot be called."""
        tool = self.toolbox.get(request.tool)
        if tool is None:
            return f"this worker has no tool {request.tool}; name its module with RATCHET_MODULES"
        if getattr(tool, function) is None:
            return f"{tool.name} declares no `{function}`"
        params = _params(tool, request.arguments)
        return params if isinstance(params, str) else (tool, params)

    @contextmanager
    def _call(
        self, key: str, attempt: int, heartbeat: Heartbeat, undoes: str = ""
    ) -> Iterator[ToolCallContext]:
        """What a tool sees of its call; `cancelled` is true once the block has ended."""
        ended = threading.Event()
        try:
            yield ToolCallContext(
                key=key,
                settings=self.settings,
                attempt=attempt,
                heartbeat=lambda text: heartbeat(readable(str(text)[:500])),
                cancelled=ended.is_set,
                undoes=undoes,
            )
        finally:
            ended.set()


class ToolActivities:
    """The activities around a runner: attempts, heartbeats and retries are Temporal's."""

    def __init__(self, runner: ToolRunner) -> None:
        self.runner = runner

    @activity.defn(name="describe_tools")
    async def describe_tools(self, wanted: ToolsWanted) -> ToolsDescribed:
        """The specs of the tools, in the order of the request, and the names that are missing."""
        return self.runner.describe_tools(wanted)

    @activity.defn(name="call_tool")
    async def call_tool(self, request: ToolRequest) -> ToolResult:
        """Run one tool; raises `ApplicationError` of type `Transient` to be called again."""
        return await _attempted(self.runner.run_tool, request, request.tool)

    @activity.defn(name="reconcile_tool")
    async def reconcile_tool(self, request: ReconcileRequest) -> Reconciled:
        """Did a call take effect? Raises `ApplicationError` of type `Transient` to be called again."""
        title = f"{request.tool}: did the call take effect?"
        return await _attempted(self.runner.reconcile_tool, request, title)

    @activity.defn(name="compensate_tool")
    async def compensate_tool(self, request: CompensateRequest) -> Compensated:
        """Undo a call; raises `ApplicationError` of type `Transient` to be called again."""
        return await _attempted(self.runner.compensate_tool, request, f"{request.tool}: undo the call")


async def _attempted(function: Callable[[Q, int, Heartbeat], Awaitable[R]], request: Q, title: str) -> R:
    newest = [title]
    async with heartbeats(lambda: newest[0]):
        try:
            return await function(request, activity.info().attempt, lambda text: newest.__setitem__(0, text))
        except TransientError as error:
            raise ApplicationError(str(error), type=TRANSIENT) from None


def _after_transient(tool: Tool[Any], outcome: Outcome, attempt: int, attempts: int) -> Outcome:
    """Raises `TransientError` when the call may be repeated; else the error with the number of attempts."""
    if tool.repeatable and attempt < attempts:
        log.info("tool.retried", tool=tool.name, attempt=attempt)
        raise TransientError(outcome.text)
    times = "1 attempt" if attempt == 1 else f"{attempt} attempts"
    return replace(outcome, output=encode(f"Error after {times}: {outcome.output.text}"))


def _why_unknown(tool: Tool[Any], outcome: Outcome) -> str:
    if outcome.error == "timeout":
        return f"{tool.name} did not find out within {tool.timeout_seconds:g} s"
    if outcome.error:
        return f"{tool.name} did not find out: {outcome.text}"[:TEXT_CHARS]
    return f"{tool.name} cannot tell whether the call took effect"


def _params(tool: Tool[Any], arguments: JsonObject) -> BaseModel | str:
    """The arguments as the tool's model, or what is wrong with them."""
    try:
        # From JSON, so that strict fields accept dates and the like in their JSON form.
        params: BaseModel = tool.params.model_validate_json(to_json(arguments))
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)[:10]
        return f"The arguments do not fit {tool.name}: {'; '.join(_problem(dict(one)) for one in details)}"
    except Exception as error:  # noqa: BLE001  # a validator of the tool's own may raise anything
        return f"The arguments do not fit {tool.name}: {_words(error)}"
    return params


def _problem(detail: dict[str, Any]) -> str:
    field = ".".join(str(part) for part in detail["loc"]) or "arguments"
    text = readable(f"{field}: {detail['msg']}")
    if detail["type"] in ("missing", "extra_forbidden") or not detail["loc"]:
        return text
    return f"{text}, got {readable(repr(detail['input'])[:60])}"


async def _performed(
    function: Callable[..., object],
    arguments: tuple[object, ...],
    call: ToolCallContext,
    seconds: float,
    read: Callable[[object], Outcome] | None = None,
) -> Outcome:
    """Call a function of a tool, with the context if it takes that, and `read` what it returned.

    Only a cancellation from outside is raised. When the function is cancelled or late, an asynchronous
    one is cancelled. A synchronous one cannot be stopped: it goes on in its thread, where
    `call.cancelled()` tells it.
    """
    if parameter_count(function) > len(arguments):
        arguments = (*arguments, call)
    task = asyncio.create_task(_ended(function, arguments, read or _output))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _stop(task)
        raise
    if not done:
        await _stop(task)
        return _error("timeout", "")
    if task.cancelled():
        return _error("failed", "RuntimeError: the tool cancelled itself")
    outcome, error = task.result()
    if isinstance(error, TRANSIENT_ERRORS):
        return _error("transient", _message(error) or type(error).__name__)
    if error is not None:
        return _error("failed", _words(error))
    assert outcome is not None
    return outcome


Ended = tuple[R | None, BaseException | None]
"""What a function returned, or what it raised."""


async def _ended(
    function: Callable[..., object], arguments: tuple[object, ...], read: Callable[[object], Outcome]
) -> Ended[Outcome]:
    try:
        call = getattr(function, "__call__", None)  # noqa: B004  # an object with an asynchronous __call__
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
            value: object = function(*arguments)
        else:
            value, error = await _in_thread(function, *arguments)
            if error is not None:
                return None, error
        if inspect.isawaitable(value):
            value = await value
        return _tried(read, value) if _is_small(value) else await _in_thread(read, value)
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # a tool's SystemExit must not end the worker
        return None, error


def _tried(function: Callable[..., R], *arguments: object) -> Ended[R]:
    try:
        return function(*arguments), None
    except BaseException as error:  # noqa: BLE001  # whatever a tool raises is data here
        return None, error


async def _in_thread(function: Callable[..., R], *arguments: object) -> Ended[R]:
    """As `_tried`, in a thread of its own.

    Not in a pool: tools that hang would use it up, and the process would wait for them at its end.
    """
    future: concurrent.futures.Future[Ended[R]] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # so that a caller who is cancelled does not cancel it
    context = contextvars.copy_context()

    def work() -> None:
        future.set_result(context.run(_tried, function, *arguments))

    threading.Thread(target=work, name="tool", daemon=True).start()
    return await asyncio.wrap_future(future)


async def _stop(task: asyncio.Task[Any]) -> None:
    task.cancel()
    _, pending = await asyncio.wait({task}, timeout=GRACE_SECONDS)
    _left_behind.update(pending)
    for left in pending:
        left.add_done_callback(_left_behind.discard)


_left_behind: set[asyncio.Task[Any]] = set()
"""Tasks that ignored their cancellation: asyncio needs a reference to them until they end."""


def _output(value: object) -> Outcome:
    """What `run` or `compensate` returned."""
    full = value if isinstance(value, ToolReturn) else ToolReturn(value)
    try:
        return Outcome(encode(full.output), None, full.cost_usd, full.marks)
    except BaseException as error:  # noqa: BLE001  # encoding runs code of the tool's own types
        unusable = TypeError(f"the tool ran, but what it returned cannot be shown: {_message(error)}")
        return Outcome(encode(_words(unusable)), "failed", full.cost_usd, full.marks)


def _finding(value: object) -> Outcome:
    """What `reconcile` returned."""
    match value:
        case None:
            return Outcome(encode(""))
        case NotHappened():
            return replace(_output(value.why), happened=False)
        case Happened():
            return replace(_output(value.output), happened=True)
    name = type(value).__name__
    return _error("failed", f"TypeError: reconcile returned {name}, not Happened(...), NotHappened() or None")


def _is_small(value: object) -> bool:
    """Encoding it is not worth a thread: a text, a plain value, or a flat list or object of few of them."""
    inner = value.output if isinstance(value, (ToolReturn, Happened)) else value
    flat = inner.values() if type(inner) is dict else inner if type(inner) in (list, tuple) else (inner,)
    assert isinstance(flat, Collection)
    return len(flat) <= SMALL_VALUES and all(
        len(one) <= SMALL_TEXT if isinstance(one, (str, bytes)) else type(one) in PLAIN for one in flat
    )


def _words(error: BaseException) -> str:
    """Type and text of what a tool raised."""
    message = _message(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _message(error: BaseException) -> str:
    """Its text without the worker's secrets; empty when it has none."""
    try:
        text = readable(str(error))
    except BaseException as broken:  # noqa: BLE001  # an exception of the tool's own, whose text fails
        return f"(its text cannot be read: {type(broken).__name__})"
    for name, value in os.environ.items():
        if len(value) >= 8 and SECRET.search(name):
            text = text.replace(value, f"[{name}]")
    return text
