"""Run a tool's functions with their time limit, so that whatever they do the worker lives on."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel
from temporalio import activity

from activities.settings import Settings
from activities.tool_output import Output, encode, readable
from activities.toolbox import Happened, NotHappened, Tool, ToolCallContext, ToolReturn

__all__ = ["Outcome", "call_context", "find_out", "perform", "undo"]

GRACE_SECONDS = 2.0
"""How long a cancelled asynchronous tool may take to clean up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a function of a tool ended: with an output, with an error, or not in time."""

    output: Output | None = None
    cost_usd: float = 0
    marks: tuple[str, ...] = ()
    error: BaseException | None = None
    timed_out: bool = False
    happened: bool | None = None
    """What `reconcile` found out; None: nothing."""


@contextmanager
def call_context(
    settings: Settings, key: str, report: Callable[[str], None], undoes: str = ""
) -> Iterator[ToolCallContext]:
    """What a tool sees of its call; `cancelled` says so once the block has ended."""
    stopped = threading.Event()
    try:
        yield ToolCallContext(
            key=key,
            files_root=settings.files_root,
            settings=settings,
            attempt=activity.info().attempt,
            heartbeat=lambda words: report(readable(str(words)[:500])),
            cancelled=stopped.is_set,
            undoes=undoes,
        )
    finally:
        stopped.set()


async def perform(tool: Tool[Any], params: BaseModel, call: ToolCallContext) -> Outcome:
    """Run the tool and encode what it returned; only a cancellation from outside is raised.

    A tool that is cancelled or late is cancelled if it is asynchronous. A synchronous one cannot be
    stopped: it is left behind in its thread, where `call.cancelled()` tells it.
    """
    return await _limited(tool, _returned(tool.run, lambda: tool.call(params, call)))


async def undo(tool: Tool[Any], params: BaseModel, output: str, call: ToolCallContext) -> Outcome:
    """Run the tool's `compensate` in the same way."""
    assert tool.compensate is not None
    return await _limited(tool, _returned(tool.compensate, lambda: tool.undo(params, output, call)))


async def find_out(tool: Tool[Any], params: BaseModel, call: ToolCallContext) -> Outcome:
    """Run the tool's `reconcile` in the same way; `happened` and `output` are what it says."""
    return await _limited(tool, _found(tool, params, call))


async def _limited(tool: Tool[Any], work: Coroutine[Any, Any, Outcome]) -> Outcome:
    task = asyncio.create_task(_guarded(work))
    try:
        done, _ = await asyncio.wait({task}, timeout=tool.timeout_seconds)
    except asyncio.CancelledError:
        await _stop(task)
        raise
    if not done:
        await _stop(task)
        return Outcome(timed_out=True)
    if task.cancelled():
        return Outcome(error=RuntimeError("the tool cancelled itself"))
    return task.result()


async def _stop(task: asyncio.Task[Outcome]) -> None:
    task.cancel()
    _, pending = await asyncio.wait({task}, timeout=GRACE_SECONDS)
    _left_behind.update(pending)
    for left in pending:
        left.add_done_callback(_left_behind.discard)


_left_behind: set[asyncio.Task[Outcome]] = set()
"""Tasks that swallowed their cancellation: referenced until they end, as asyncio asks for."""


async def _guarded(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    try:
        return await work
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # a tool's SystemExit must not end the worker
        return Outcome(error=error)


async def _returned(function: Callable[..., object], call: Callable[[], object]) -> Outcome:
    return await _encoded(await _value(function, call))


async def _found(tool: Tool[Any], params: BaseModel, call: ToolCallContext) -> Outcome:
    assert tool.reconcile is not None
    value = await _value(tool.reconcile, lambda: tool.find_out(params, call))
    match value:
        case None:
            return Outcome()
        case NotHappened():
            return replace(await _encoded(value.why), happened=False)
        case Happened():
            return replace(await _encoded(value.output), happened=True)
    returned = f"reconcile returned {type(value).__name__}"
    return Outcome(error=TypeError(f"{returned}, expected Happened(output), NotHappened() or None"))


async def _encoded(value: object) -> Outcome:
    rich = value if isinstance(value, ToolReturn) else ToolReturn(value)
    try:
        output = await _in_thread(lambda: encode(rich.output))
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  # encoding runs code of the tool's own types
        unusable = TypeError(f"the tool ran, but what it returned cannot be shown: {error}")
        return Outcome(error=unusable, cost_usd=rich.cost_usd, marks=rich.marks)
    return Outcome(output=output, cost_usd=rich.cost_usd, marks=rich.marks)


async def _value(function: Callable[..., object], call: Callable[[], object]) -> object:
    value = call() if _is_async(function) else await _in_thread(call)
    return await value if inspect.isawaitable(value) else value


def _is_async(run: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(
        getattr(run, "__call__", None)  # noqa: B004  # an object with an asynchronous __call__
    )


async def _in_thread(function: Callable[[], Any]) -> Any:
    """The function's value, from a thread of its own.

    Not a pool: tools that hang would use it up, and the process would wait for them at its end.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_result((value, error))

    def work() -> None:
        value, raised = None, None
        try:
            value = context.run(function)
        except BaseException as error:  # noqa: BLE001  # raised again where it is awaited
            raised = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, value, raised)

    threading.Thread(target=work, name="tool", daemon=True).start()
    value, error = await future
    if isinstance(error, KeyboardInterrupt):  # a person's would arrive in the main thread
        raise RuntimeError("the tool raised KeyboardInterrupt")
    if error is not None:
        raise error
    return value
