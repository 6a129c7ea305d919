"""Run one tool with its time limit, so that whatever it does the worker lives on."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from activities.tool_output import Output, encode
from activities.toolbox import Tool, ToolCallContext, ToolReturn

__all__ = ["Outcome", "perform"]

GRACE_SECONDS = 2.0
"""How long a cancelled asynchronous tool may take to clean up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run of a tool ended: with an output, with an error, or not in time."""

    output: Output | None = None
    cost_usd: float = 0
    marks: tuple[str, ...] = ()
    error: BaseException | None = None
    timed_out: bool = False


async def perform(tool: Tool[Any], params: BaseModel, call: ToolCallContext) -> Outcome:
    """Run the tool and encode what it returned; only a cancellation from outside is raised.

    A tool that is cancelled or late is cancelled if it is asynchronous. A synchronous one cannot be
    stopped: it is left behind in its thread, where `call.cancelled()` tells it.
    """
    task = asyncio.create_task(_outcome(tool, params, call))
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


async def _outcome(tool: Tool[Any], params: BaseModel, call: ToolCallContext) -> Outcome:
    try:
        value = await _value(tool, params, call)
        rich = value if isinstance(value, ToolReturn) else ToolReturn(value)
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # a tool's SystemExit must not end the worker
        return Outcome(error=error)
    try:
        output = await _in_thread(lambda: encode(rich.output))
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  # encoding runs code of the tool's own types
        unusable = TypeError(f"the tool ran, but what it returned cannot be shown: {error}")
        return Outcome(error=unusable, cost_usd=rich.cost_usd, marks=rich.marks)
    return Outcome(output=output, cost_usd=rich.cost_usd, marks=rich.marks)


async def _value(tool: Tool[Any], params: BaseModel, call: ToolCallContext) -> object:
    if _is_async(tool.run):
        value = tool.call(params, call)
    else:
        value = await _in_thread(lambda: tool.call(params, call))
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
