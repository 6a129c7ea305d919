"""Tools for trials: they count their runs in a file, fail, hang, or return too much."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import BaseModel, Field

from activities.tools import Happened, NotHappened, Tool, ToolCallContext, TransientError


class Marked(BaseModel):
    """Append a line to a file."""

    line: str
    file: str = "marks.txt"
    seconds: float = Field(default=0, description="to wait before")
    until: str = Field(default="", description="a file that ends the call once it is there")
    text: str = "done"


def _mark(params: Marked, call: ToolCallContext) -> Path:
    path = call.files_root / params.file
    with path.open("a") as marks:
        marks.write(f"{params.line} {call.key} {call.attempt}\n")
    return path


async def mark(params: Marked, call: ToolCallContext) -> str:
    """Write the line, then wait: a crash in the middle leaves the line behind."""
    _mark(params, call)
    await asyncio.sleep(params.seconds)
    while params.until and not (call.files_root / params.until).exists():  # noqa: ASYNC110  # a file has no event
        await asyncio.sleep(0.02)
    return f"{params.text} {params.line}"


class Lines(BaseModel):
    """Append lines to a file."""

    lines: list[str]


def mark_all(params: Lines, call: ToolCallContext) -> str:
    """Write them."""
    for line in params.lines:
        _mark(Marked(line=line), call)
    return "done"


async def pay(params: Marked, call: ToolCallContext) -> str:
    """Write the line, unless a call with this key has written it; then wait, at the first attempt."""
    path = call.files_root / params.file
    if not path.exists() or call.key not in path.read_text():
        _mark(params, call)
    await asyncio.sleep(params.seconds if call.attempt == 1 else 0)
    return f"paid {params.line}"


async def flaky(params: Marked, call: ToolCallContext) -> str:
    """Fail for now until the third attempt."""
    _mark(params, call)
    if call.attempt < 3:
        raise TransientError(f"not yet, attempt {call.attempt}")
    return "at last"


async def broken(params: Marked, call: ToolCallContext) -> str:
    """Fail for now, always."""
    await mark(params, call)
    raise TransientError("never")


async def crash(params: Marked, call: ToolCallContext) -> str:
    """Raise what nobody expects."""
    _mark(params, call)
    raise RuntimeError("boom")


async def huge(params: Marked) -> str:
    """Return ten megabytes."""
    return "x" * 10_000_000


class Booked(Marked):
    """Book something, which can be looked up and undone."""

    found: Literal["happened", "not_happened", "unknown"] = "unknown"


def _look_up(key: str, params: Booked) -> Happened | NotHappened | None:
    """What the arguments say that it finds."""
    if params.found == "happened":
        return Happened(f"booked {params.line}")
    return NotHappened("no entry") if params.found == "not_happened" else None


def _cancel(params: Booked, output: str, call: ToolCallContext) -> str:
    """Write that it is undone."""
    _mark(params.model_copy(update={"line": f"undo:{params.line}"}), call)
    return f"{params.line} is cancelled"


def _example(name: str) -> ModuleType:
    """An example's module."""
    path = Path(__file__).parents[2] / "examples" / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"trial_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


bank = _example("transfer")


def order(params: Any, call: ToolCallContext) -> str:
    """Pay at the example's bank once it is open; files tell that the order is on its way, and that the bank
    refused it."""
    (call.files_root / "ordered.txt").touch()
    while not (call.files_root / "open.txt").exists():
        time.sleep(0.05)
    try:
        return str(bank.run(params, call))
    except ValueError:
        (call.files_root / "refused.txt").touch()
        raise


TOOLS = [
    dataclasses.replace(bank.TOOL, run=order, timeout_seconds=5),
    Tool(name="mark", params=Marked, run=mark, effect="idempotent"),
    Tool(name="mark_once", params=Marked, run=mark, effect="unsafe"),
    Tool(name="mark_slowly", params=Marked, run=mark, effect="idempotent", timeout_seconds=61),
    Tool(name="pay", params=Marked, run=pay, effect="keyed"),
    Tool(name="flaky", params=Marked, run=flaky, effect="read"),
    Tool(name="broken", params=Marked, run=broken, effect="read"),
    Tool(name="broken_once", params=Marked, run=broken, effect="unsafe"),
    Tool(name="crash", params=Marked, run=crash, effect="read"),
    Tool(
        name="book",
        params=Booked,
        run=mark,
        effect="unsafe",
        timeout_seconds=0.5,
        reconcile=_look_up,
        compensate=_cancel,
    ),
    Tool(name="huge", params=Marked, run=huge, effect="read"),
    Tool(name="mark_all", params=Lines, run=mark_all, effect="unsafe"),
]
