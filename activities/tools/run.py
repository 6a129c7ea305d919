"""Run tools: schema, time limit, kinds of failure, caps. The same code with and without Temporal.

Everything that a tool can do wrong comes back as data, in words for the model or for people. Only a
transient failure of a call that may be repeated is raised, so that the caller tries again.

`ToolRunner` knows nothing of Temporal. `ToolActivities` gives it attempts and heartbeats.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import hashlib
import inspect
import json
import os
import re
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import httpx2
import structlog
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.contracts import (
    NOT_BEGUN,
    QUOTED_CHARS,
    TRANSIENT,
    UNKNOWN_TOOLS,
    CallBlocked,
    Compensated,
    CompensateInput,
    Digests,
    JsonObject,
    MachineNamed,
    NotBegun,
    Reconciled,
    ReconcileInput,
    ToolError,
    ToolInput,
    ToolResult,
    ToolsDescribed,
    ToolSpec,
    ToolsWanted,
)
from activities.handover import with_early_reply
from activities.heartbeat import failures_before, heartbeats, pause_after
from activities.images import Images
from activities.mcp.servers import McpServers, Unusable
from activities.model import ModelActivities, named_specs
from activities.provider import RequestCount
from activities.settings import Settings
from activities.store.blobs import BlobStore, StoreError, StoreUnavailable
from activities.store.call_store import CallsMade, KnownCall
from activities.telemetry.attempts import ToolAttempt, ToolPart
from activities.telemetry.report import Telemetry
from activities.text import problems_text, readable
from activities.tools import (
    Happened,
    NotHappened,
    OutcomeUnknown,
    Tool,
    ToolCallContext,
    ToolReturn,
    TransientError,
    parameter_count,
)
from activities.tools.artifacts import Output, artifacts_of, encode, shown
from activities.tools.resources import ResourceNotOpen, Resources

__all__ = ["CallNotBegun", "DigestsOf", "ToolActivities", "ToolRunner"]

OUTSIDE_EFFECTS = ("keyed", "unsafe")
"""Effects of tools whose calls the call store knows."""
TITLE_CHARS = 300
"""Characters of a call's arguments, in words for people."""
STORE_SECONDS = 12.0
"""How long a call waits for the call store, before and after it; `hosts/activities.py` has time for both."""
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 600.0
"""Seconds before a result is written again; each pause is twice the one before."""
SMALL_CHARS = 20_000
"""Characters of an output that is encoded at once: a thread costs more."""
GRACE_SECONDS = 2.0
"""A cancelled asynchronous tool may clean up for so long."""
TEXT_CHARS = 2000
"""The most that people are shown of what a tool says."""
UNDO_SUFFIX = "/undo"
"""At the end of a call's key: the key of its compensation."""
SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$", re.IGNORECASE)
"""Names of environment variables whose values no error may repeat."""
TRANSIENT_ERRORS = (TransientError, ConnectionError, TimeoutError, httpx2.TransportError)
"""What a tool raises for a failure that goes away by itself."""

log = structlog.get_logger("ratchet")
Q = TypeVar("Q", ToolInput, ReconcileInput, CompensateInput)
R = TypeVar("R")
Request = ToolInput | CompensateInput
Heartbeat = Callable[[str], None]
"""Called with what a tool says about its progress."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """How a function of a tool ended: its output, or an error whose words are the output."""

    output: Output
    error: ToolError | None = None
    cost_usd: float = 0
    marks: tuple[str, ...] = ()
    images: tuple[bytes, ...] = ()
    happened: bool | None = None
    """What `reconcile` found; None: nothing."""
    begun: bool = False
    """The call store has noted that the call was begun, and will get its result."""
    acts_for: float | None = None
    """As in `ToolResult`."""
    known: JsonObject | None = None
    """The call was made before: its result, as the call store has it."""

    @property
    def text(self) -> str:
        """For people."""
        return self.output.text[:TEXT_CHARS]


def _error(error: ToolError, text: str) -> ToolOutcome:
    return ToolOutcome(encode(text), error)


@dataclass(frozen=True, slots=True)
class ReadyCall:
    """A call that can be made."""

    tool: Tool[Any]
    function: Callable[..., object]
    params: BaseModel
    seconds: float
    """What the call may take."""


class CallNotBegun(Exception):
    """The call store is away, so the call was not begun."""

    def __init__(self, reason: str, at: float | None = None) -> None:
        super().__init__(reason)
        self.answer = NotBegun(reason=reason, at=at)


def _no_heartbeat(text: str) -> None:
    """Nobody watches."""


class ToolRunner:
    """Runs the `tools`, by name. `blobs` keeps whole outputs and artifacts, `calls` knows which calls with
    outside effects were made.

    Each method makes one attempt, counted from 1; by default all before it have failed. It raises
    `TransientError` when another should follow, and `CallNotBegun` while the call store is away.
    """

    def __init__(  # noqa: PLR0913  # one for each thing that tools need
        self,
        tools: Mapping[str, Tool[Any]],
        settings: Settings,
        blobs: BlobStore | None = None,
        calls: CallsMade | None = None,
        mcp: McpServers | None = None,
        images: Images | None = None,
        *,
        resources: Resources | None = None,
    ) -> None:
        """`mcp`: servers whose tools are there beside the `tools`; `resources`: what tools share."""
        self.tools = tools
        self.specs = {name: tool.spec() for name, tool in tools.items()}
        self.settings = settings
        self.blobs = blobs
        self.calls = calls
        self.mcp = mcp or McpServers({})
        self.images = images
        self.resources = resources or Resources()
        self._writing: set[asyncio.Task[None]] = set()
        """Results that the call store does not have yet."""

    async def describe(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """The specs of these tools; of those that MCP servers have, as they are now.

        Raises `ApplicationError` of type `UNKNOWN_TOOLS`, and TransientError while a server is away.
        """
        try:
            found = await self.mcp.tools(name for name in names if name not in self.tools)
        except Unusable as error:
            raise ApplicationError(str(error), type=UNKNOWN_TOOLS, non_retryable=True) from None
        self.specs.update({name: tool.spec() for name, tool in found.items()})
        return named_specs(self.specs, names)

    async def run_tool(
        self,
        request: ToolInput,
        attempt: int = 1,
        heartbeat: Heartbeat = _no_heartbeat,
        failures: int | None = None,
    ) -> ToolResult:
        """What the tool returned, or what went wrong. A call that is known to have been made is not made
        again."""
        started = time.monotonic()
        failures = attempt - 1 if failures is None else failures
        outcome = await self._outcome("run", request, attempt, heartbeat, failures)
        if outcome.known is not None:
            return ToolResult.model_validate({**outcome.known, "id": request.id})
        if outcome.error == "transient":
            times = f"{failures + 1} attempts" if failures else "1 attempt"
            outcome = replace(outcome, output=encode(f"Error after {times}: {outcome.output.text}"))
        result = await self._result(request, outcome, attempt)
        seconds = time.monotonic() - started
        log.info("tool.returned", tool=request.tool[:64], seconds=round(seconds, 3), error=outcome.error)
        result = result.model_copy(update={"seconds": seconds})
        await self._store_answer(request.key, outcome, result)
        return result

    async def reconcile_tool(
        self,
        request: ReconcileInput,
        attempt: int = 1,
        heartbeat: Heartbeat = _no_heartbeat,
        failures: int | None = None,
    ) -> Reconciled:
        """Whether a call took effect, as far as the tool can tell.

        That it did not is believed when the tool's time limit is over, and it has looked once more: until
        then a worker that nobody hears may go on with the lost attempt.
        """
        failures = attempt - 1 if failures is None else failures
        try:
            known = await self._note_begin(request, request.key, time.time())
        except StoreUnavailable as error:
            raise CallNotBegun(str(error)) from error
        except StoreError as error:
            return Reconciled(outcome="unknown", text=str(error)[:TEXT_CHARS])
        if known is not None and (known.key, known.call) != (request.key, _digest(request)):
            return Reconciled(
                outcome="unknown", text=f"another call was made here: {known.title}"[:TEXT_CHARS]
            )
        outcome = await self._outcome("reconcile", request, attempt, heartbeat, failures)
        if outcome.happened is False and self.calls is not None:
            # from now on, as each worker has a clock of its own
            seconds = self.tools[request.tool].timeout_seconds
            heartbeat(
                f"the lost call of {request.tool} may go on for {seconds:g} s; then it is looked up again"
            )
            await asyncio.sleep(seconds)
            outcome = await self._outcome("reconcile", request, attempt, heartbeat, failures)
        if outcome.happened:
            result = await self._result(request, outcome, 1)
            found = Reconciled(outcome="happened", result=result, text="the call took effect")
        elif outcome.happened is False:
            found = Reconciled(outcome="not_happened", text=outcome.text or "the call took no effect")
        else:
            reason = outcome.text or "it cannot tell whether the call took effect"
            found = Reconciled(outcome="unknown", text=f"{request.tool}: {reason}"[:TEXT_CHARS])
        log.info("tool.reconciled", tool=request.tool[:64], outcome=found.outcome)
        return found

    async def block_call(self, request: ToolInput) -> CallBlocked:
        """Keep a lost attempt from beginning, and tell when it has begun. Raises CallNotBegun."""
        try:
            known = await self._note_begin(request, request.key, time.time())
        except StoreUnavailable as error:
            raise CallNotBegun(str(error)) from error
        except StoreError:
            return CallBlocked(begun=True)  # for all that is known
        # without one of this call, an attempt that wants to begin finds the note that was just written
        return CallBlocked(begun=known is not None and known.key == request.key)

    async def compensate_tool(
        self,
        request: CompensateInput,
        attempt: int = 1,
        heartbeat: Heartbeat = _no_heartbeat,
        failures: int | None = None,
    ) -> Compensated:
        """What the tool did to undo a call."""
        failures = attempt - 1 if failures is None else failures
        outcome = await self._outcome("compensate", request, attempt, heartbeat, failures)
        if outcome.known is not None:
            return Compensated.model_validate(outcome.known)
        log.info("tool.compensated", tool=request.tool[:64], ok=outcome.error is None)
        text = "undone" if outcome.text in ("", "null") else outcome.text
        if outcome.error is not None:
            text = f"{request.tool}: {text}"[:TEXT_CHARS]
        done = Compensated(ok=outcome.error is None, text=text, cost_usd=outcome.cost_usd)
        # one that failed can be tried again, once its cause is gone
        await self._store_answer(request.key + UNDO_SUFFIX, outcome, done if done.ok else None)
        return done

    async def _outcome(
        self, part: ToolPart, request: Request, attempt: int, heartbeat: Heartbeat, failures: int
    ) -> ToolOutcome:
        """Make one attempt of a tool's function. `failures`: attempts before it that failed."""
        is_last = failures + 1 >= request.attempts
        ready = await self._with_resources(part, request, attempt, is_last)
        if isinstance(ready, ToolOutcome):
            return ready
        tool, function = ready.tool, ready.function
        repeatable = tool.repeatable or part == "reconcile"
        key = request.key + UNDO_SUFFIX if part == "compensate" else request.key
        begins = self.calls is not None and part != "reconcile" and tool.effect in OUTSIDE_EFFECTS
        if begins and (before := await self._begin_outside_call(key, request, tool)) is not None:
            return before
        ended = threading.Event()
        call = ToolCallContext(
            key=key,
            settings=self.settings,
            attempt=attempt,
            heartbeat=lambda text: heartbeat(readable(str(text)[:500])),
            cancelled=ended.is_set,
            undoes=request.key if part == "compensate" else "",
        )
        try:
            arguments = _arguments(function, request, ready.params, call)
            outcome = await _performed(part, function, arguments, ready.seconds)
        finally:
            ended.set()
        if outcome.error == "timeout":
            late = f"{tool.name} did not finish within {tool.timeout_seconds:g} s"
            if repeatable:
                return _error("timeout", f"{late} and was stopped.")
            return _error("unknown_outcome", f"{late}; the outcome is unknown. It is not run again.")
        if outcome.error == "unknown_outcome":
            if not repeatable:
                return _error(
                    "unknown_outcome", f"{outcome.text}; the outcome is unknown. It is not run again."
                )
            outcome = replace(outcome, error="transient")
        if outcome.error == "transient" and repeatable and not is_last:
            log.info("tool.retried", tool=tool.name, attempt=attempt)
            raise TransientError(outcome.text)
        return replace(outcome, begun=begins and (outcome.error is None or not repeatable))

    async def _resolved(
        self, part: ToolPart, request: Request, attempt: int, is_last: bool
    ) -> ReadyCall | ToolOutcome:
        """The call without its resources; a ToolOutcome: it cannot be made. Raises TransientError where
        another attempt may find an MCP server."""
        try:
            tool = self.tools.get(request.tool) or await self.mcp.tool(request.tool)
        except (TransientError, Unusable) as error:
            if isinstance(error, TransientError) and not is_last:
                raise
            return _error("transient", str(error))
        if tool is None:
            return _error("unknown_tool", f"Unknown tool: {request.tool}")
        function = getattr(tool, part)
        if function is None:
            return _error("failed", f"{tool.name} declares no `{part}`")
        if attempt > 1 and not (tool.repeatable or part == "reconcile"):
            lost = _error(
                "unknown_outcome",
                f"The outcome of this call is unknown: `{part}` of {tool.name} was started before and its "
                "worker was lost. It was not run again.",
            )
            return replace(lost, acts_for=tool.timeout_seconds)
        params = _params(tool, request.arguments)
        if isinstance(params, str):
            return _error("bad_arguments", f"{params}. The tool was not run.")
        return ReadyCall(tool, function, params, tool.timeout_seconds)

    async def _with_resources(
        self, part: ToolPart, request: Request, attempt: int, is_last: bool
    ) -> ReadyCall | ToolOutcome:
        """As `_resolved`, with the resources opened. Opening counts against the tool's seconds. Raises
        TransientError where another attempt may open them."""
        ready = await self._resolved(part, request, attempt, is_last)
        if isinstance(ready, ToolOutcome):
            return ready
        tool, function = ready.tool, ready.function
        try:
            given, seconds = await self.resources.of(function, ready.seconds)
        except ResourceNotOpen as error:
            cause = error.__cause__ or error
            log.warning("resource.not_opened", tool=tool.name, resource=str(error), at=_places(cause))
            text = (
                f"The resource {error} of {tool.name} could not be opened: {_words(cause)}. The tool was not "
                "run; the next call tries again."
            )
            is_transient = isinstance(cause, TRANSIENT_ERRORS)
            if is_transient and not is_last and (tool.repeatable or part == "reconcile"):
                raise TransientError(text) from error
            return _error("transient" if is_transient else "failed", text)
        function = functools.partial(function, **given) if given else function
        return replace(ready, function=function, seconds=seconds)

    async def _begin_outside_call(self, key: str, request: Request, tool: Tool[Any]) -> ToolOutcome | None:
        """Note that the call begins. Returns an outcome if it must not be made. Raises CallNotBegun."""
        began = time.time()
        try:
            known = await self._note_begin(request, key, began)
        except StoreUnavailable as error:
            log.warning("tool.not_begun", tool=tool.name, error=str(error))
            raise CallNotBegun(str(error), began) from error
        except StoreError as error:
            return _error(
                "unknown_outcome", f"The call was not made: {error}. Look up whether it was before."
            )
        if known is None:
            return None
        at = datetime.fromtimestamp(known.begun, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        if (known.key, known.call) != (key, _digest(request)):
            where = "in its place" if known.key == key else f"as {known.key}"
            return _error(
                "unknown_outcome",
                f"The call was not made: at {at}, before the run was reset, it made {known.title} {where}. "
                "Shall this one be made as well?",
            )
        if known.result is None and not tool.repeatable:
            lost = _error(
                "unknown_outcome",
                f"The outcome of this call is unknown: it was begun at {at}. It was not made again.",
            )
            return replace(lost, acts_for=tool.timeout_seconds)
        return None if known.result is None else ToolOutcome(encode(""), known=known.result)

    async def _note_begin(self, request: Request, key: str, at: float) -> KnownCall | None:
        """What the store knows of the call; notes that it was begun at this time. Raises `StoreError`."""
        if self.calls is None:
            return None
        calls, reset = self.calls, None if isinstance(request, CompensateInput) else request.after_reset
        title = f"{request.tool}({readable(json.dumps(request.arguments, ensure_ascii=False))[:TITLE_CHARS]})"

        def begin() -> KnownCall | None:
            return calls.begin(key, _digest(request), title, reset, at=at, void=request.void)

        try:
            async with asyncio.timeout(STORE_SECONDS):
                return await _in_thread(begin)
        except TimeoutError as error:
            where = calls.database.where
            text = f"{where}: no answer within {STORE_SECONDS:g} s. Check that it runs and is not locked."
            raise StoreUnavailable(text) from error

    async def _store_answer(self, key: str, outcome: ToolOutcome, result: BaseModel | None) -> None:
        """Write down the answer of a call; None: it may be made again. The tool has run and its answer must
        not be lost, so a store that is away is tried again in the background, until it is back. A worker that
        stops before leaves the outcome unknown there, for runs that are reset."""
        if self.calls is None or not outcome.begun or outcome.error == "unknown_outcome":
            return
        calls, tried = self.calls, asyncio.Event()

        def write() -> None:
            if result is None:
                calls.forget(key)
            else:
                calls.end(key, result.model_dump(mode="json"))

        writing = asyncio.create_task(_write_result(write, tried))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        with suppress(TimeoutError):
            async with asyncio.timeout(STORE_SECONDS):
                await tried.wait()

    async def _result(self, request: ToolInput, outcome: ToolOutcome, attempt: int) -> ToolResult:
        output, specs = outcome.output, request.artifacts if outcome.error is None else ()
        cap = self.settings.output_cap
        keeps = bool(specs) or not output.is_text or len(output.text) > cap
        place = asyncio.to_thread if keeps else _inline  # a thread costs more than a short text
        text, whole = await place(shown, output, cap, self.blobs)
        if outcome.images:
            text = "\n".join(
                (text, *await asyncio.to_thread(self._kept_images, request.tool, outcome.images))
            )
        return ToolResult(
            id=request.id,
            tool=request.tool,
            output=text,
            error=outcome.error,
            attempts=attempt,
            cost_usd=outcome.cost_usd,
            bytes=len(output.whole),
            whole=whole,
            marks=outcome.marks,
            acts_for=outcome.acts_for,
            artifacts=await place(artifacts_of, output, specs, self.blobs),
        )

    def _kept_images(self, tool: str, images: Sequence[bytes]) -> list[str]:
        """A mark for each image; words where one cannot be shown."""
        marks = []
        for number, image in enumerate(images, 1):
            try:
                if self.images is None:
                    raise StoreError("there is no store for images here")
                marks.append(self.images.keep(image, f"{tool}-{number}"))
            except (ValueError, StoreError) as error:
                marks.append(f"[image {number} cannot be shown: {error}]")
        return marks


DigestsOf = Callable[[MachineNamed, Sequence[ToolSpec]], Digests | None]
"""What a machine and its tools are here, in digests; None: it is not here."""


class ToolActivities:
    """The activities around a runner: attempts, heartbeats and retries are Temporal's."""

    def __init__(
        self,
        runner: ToolRunner,
        models: ModelActivities | None = None,
        telemetry: Telemetry | None = None,
        digests: DigestsOf = lambda machine, specs: None,
    ) -> None:
        """`models` keep outputs for the question after a call, and ask it where the workflow has handed it
        over. `digests` are those of a machine with such tools."""
        self.runner, self._digests = runner, digests
        self._models, self._telemetry = models, telemetry or Telemetry()

    @activity.defn(name="describe_tools")
    async def describe_tools(self, wanted: ToolsWanted) -> ToolsDescribed:
        """The specs of the tools. Raises `ApplicationError` of type `UNKNOWN_TOOLS`, or `TRANSIENT` while an
        MCP server is away."""
        try:
            tools = await self.runner.describe(wanted.names)
        except TransientError as error:
            raise ApplicationError(str(error), type=TRANSIENT) from None
        if wanted.machine is None:
            return ToolsDescribed(tools=tools)
        found = await asyncio.to_thread(self._digests, wanted.machine, tools)
        return ToolsDescribed(tools=tools, machine=found)

    @activity.defn(name="call_tool")
    async def call_tool(self, request: ToolInput) -> ToolResult:
        """Run one tool, and ask the question after it if the workflow has handed it over.

        Raises `ApplicationError` of type `Transient` to be called again."""
        began, models = time.monotonic(), self._models
        result = await self._run_attempt("run", self.runner.run_tool, request)
        if models is None:
            return result
        requests = RequestCount()
        result = await with_early_reply(
            request.key, result, lambda question: models.ask_after_call(question, began, requests)
        )
        if result.early is None and requests.sent:
            result = result.model_copy(update={"unanswered": requests.sent})
        if result.early is None and len(result.output) >= QUOTED_CHARS:
            models.cache.save_output(result.output)
        return result

    @activity.defn(name="reconcile_tool")
    async def reconcile_tool(self, request: ReconcileInput) -> Reconciled:
        """Did a call take effect? Raises `ApplicationError` of type `Transient` to be called again."""
        return await self._run_attempt("reconcile", self.runner.reconcile_tool, request)

    @activity.defn(name="block_call")
    async def block_call(self, request: ToolInput) -> CallBlocked:
        """Keep a lost attempt from beginning. Raises `ApplicationError` of type `Transient` while the call
        store is away."""
        async with heartbeats():
            try:
                return await self.runner.block_call(request)
            except CallNotBegun as error:
                raise ApplicationError(str(error), type=TRANSIENT) from None

    @activity.defn(name="compensate_tool")
    async def compensate_tool(self, request: CompensateInput) -> Compensated:
        """Undo a call; raises `ApplicationError` of type `Transient` to be called again."""
        return await self._run_attempt("compensate", self.runner.compensate_tool, request)

    async def _run_attempt(
        self,
        part: ToolPart,
        function: Callable[[Q, int, Heartbeat, int], Awaitable[R]],
        request: Q,
    ) -> R:
        """Raises `ApplicationError`: of type `TRANSIENT`, for the next attempt, or `NOT_BEGUN`."""
        newest, info, failures = [""], activity.info(), failures_before()
        attempt = ToolAttempt(
            key=request.key, request=request, part=part, is_known=request.tool in self.runner.specs
        )
        async with heartbeats(lambda: (newest[0], failures) if failures else (newest[0],)):
            try:
                with self._telemetry.calling(attempt):
                    attempt.result = result = await function(
                        request, info.attempt, lambda text: newest.__setitem__(0, text), failures
                    )
                    return result
            except TransientError as error:
                activity.heartbeat(newest[0], failures + 1)
                wait = pause_after(failures + 1)
                raise ApplicationError(str(error), type=TRANSIENT, next_retry_delay=wait) from None
            except CallNotBegun as error:
                raise ApplicationError(
                    error.answer.reason, error.answer.at, type=NOT_BEGUN, non_retryable=True
                ) from None


async def _write_result(write: Callable[[], None], tried: asyncio.Event) -> None:
    """Write a result; `tried` is set after the first try."""
    pause = FIRST_PAUSE
    while True:
        try:
            await _in_thread(write)
        except StoreUnavailable as error:
            log.warning("tool.result_not_written", error=str(error), again_in_seconds=pause)
        except StoreError as error:
            log.error("tool.result_not_written", error=str(error))
            return
        else:
            return
        finally:
            tried.set()
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _digest(request: Request) -> str:
    """Digest of tool and arguments."""
    called = json.dumps([request.tool, request.arguments], sort_keys=True)
    return hashlib.sha256(called.encode()).hexdigest()


def _params(tool: Tool[Any], arguments: JsonObject) -> BaseModel | str:
    """The arguments as the tool's model, or what is wrong with them."""
    try:
        # From JSON, so that strict fields accept dates and the like in their JSON form.
        params: BaseModel = tool.params.model_validate_json(to_json(arguments))
    except ValidationError as error:
        return f"The arguments do not fit {tool.name}: {problems_text(error)}"
    except Exception as error:  # noqa: BLE001  # a validator of the tool's own may raise anything
        return f"The arguments do not fit {tool.name}: {_words(error)}"
    return params


def _arguments(
    function: Callable[..., object], request: Request, params: BaseModel, call: ToolCallContext
) -> tuple[object, ...]:
    """What the function is called with; the context comes last, if it takes that."""
    arguments: tuple[object, ...] = (params,)
    if isinstance(request, ReconcileInput):
        arguments = (request.key, params)
    elif isinstance(request, CompensateInput):
        arguments = (params, request.output)
    return (*arguments, call) if parameter_count(function) > len(arguments) else arguments


async def _performed(
    part: ToolPart, function: Callable[..., object], arguments: tuple[object, ...], seconds: float
) -> ToolOutcome:
    """Call a function of a tool. Only a cancellation from outside is raised.

    When it is cancelled or late, an asynchronous function is cancelled. A synchronous one cannot be
    stopped: it goes on in its thread, where `call.cancelled()` tells it.
    """
    task = asyncio.create_task(_call_function(part, function, arguments))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _stop(task)
        raise
    if not done:
        await _stop(task)
        return _error("timeout", "")
    if task.cancelled():
        return _error("failed", "CancelledError: the tool cancelled itself")
    return task.result()


async def _call_function(
    part: ToolPart, function: Callable[..., object], arguments: tuple[object, ...]
) -> ToolOutcome:
    try:
        call = getattr(function, "__call__", None)  # noqa: B004  # an object with an asynchronous __call__
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
            value: object = function(*arguments)
        else:
            value = await _in_thread(function, *arguments)
        if inspect.isawaitable(value):
            value = await value
        if isinstance(value, str) and len(value) <= SMALL_CHARS:
            return _outcome_of(part, value)
        return await _in_thread(_outcome_of, part, value)
    except asyncio.CancelledError:
        raise
    except TRANSIENT_ERRORS as error:
        return _error("transient", _message(error) or type(error).__name__)
    except OutcomeUnknown as error:
        return _error("unknown_outcome", _message(error) or type(error).__name__)
    except BaseException as error:  # noqa: BLE001  # a tool's SystemExit must not end the worker
        # where to look is for the one who wrote the tool; the text is for the model: it may repeat arguments
        log.warning("tool.raised", error=type(error).__name__, at=_places(error))
        return _error("failed", _words(error))


def _places(error: BaseException) -> list[str]:
    """The lines that the error passed outside of this file, the deepest last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{one.filename}, line {one.lineno}, in {one.name}" for one in frames if one.filename != __file__]


async def _in_thread(function: Callable[..., R], *arguments: object) -> R:
    """What the function returns, or raises, in a thread of its own.

    Not in a pool: tools that hang, and a locked call store, would use it up, and the process would wait for
    them at its end.
    """
    future: concurrent.futures.Future[tuple[Any, BaseException | None]] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # so that a caller who is cancelled does not cancel it
    context = contextvars.copy_context()

    def work() -> None:
        try:
            future.set_result((context.run(function, *arguments), None))
        except BaseException as error:  # noqa: BLE001  # raised again where it is awaited
            future.set_result((None, error))

    threading.Thread(target=work, name="tool", daemon=True).start()
    value, error = await asyncio.wrap_future(future)
    if error is not None:
        raise error
    returned: R = value
    return returned


async def _inline(function: Callable[..., R], *arguments: object) -> R:
    return function(*arguments)


async def _stop(task: asyncio.Task[Any]) -> None:
    task.cancel()
    _, pending = await asyncio.wait({task}, timeout=GRACE_SECONDS)
    _left_behind.update(pending)
    for left in pending:
        left.add_done_callback(_left_behind.discard)


_left_behind: set[asyncio.Task[Any]] = set()
"""Tasks that ignored their cancellation: asyncio needs a reference to them until they end."""


def _outcome_of(part: ToolPart, value: object) -> ToolOutcome:
    """What a function of a tool returned; in a thread, because encoding may take long."""
    happened = None
    if part == "reconcile":
        match value:
            case None:
                value = ""
            case Happened():
                happened, value = True, value.output
            case NotHappened():
                happened, value = False, value.why
            case _:
                kinds = "Happened(...), NotHappened() or None"
                return _error("failed", f"TypeError: reconcile returned {type(value).__name__}, not {kinds}")
    full = value if isinstance(value, ToolReturn) else ToolReturn(value)
    try:
        output = encode(full.output)
        if full.whole is not None:
            output = Output(output.text, full.whole, is_text=False)
        return ToolOutcome(
            output, "failed" if full.failed else None, full.cost_usd, full.marks, full.images, happened
        )
    except BaseException as error:  # noqa: BLE001  # encoding runs code of the tool's own types
        unusable = TypeError(f"the tool ran, but what it returned cannot be shown: {_message(error)}")
        return ToolOutcome(encode(_words(unusable)), "failed", full.cost_usd, full.marks, (), happened)


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
