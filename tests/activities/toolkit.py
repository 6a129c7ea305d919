"""What the tests of tools share: settings on a folder, and a call as Temporal would make it."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel
from temporalio.testing import ActivityEnvironment

from activities.contracts import ToolEffect, ToolRequest, ToolResult
from activities.settings import Settings
from activities.tool import ToolActivities
from activities.toolbox import Tool, Toolbox, ToolCallContext


class NoParams(BaseModel, frozen=True, extra="forbid"):
    """Do something for a test."""


def settings_on(folder: Path, **more: Any) -> Settings:
    """Settings of a worker whose file tools work in `folder`."""
    return Settings(files_root=folder, data_dir=folder / ".ratchet", **more)


def context_on(folder: Path, **more: Any) -> ToolCallContext:
    """What a tool sees of its call."""
    return ToolCallContext(
        key="run/0/action#1:0",
        files_root=folder,
        settings=settings_on(folder, **more),
        attempt=1,
        heartbeat=lambda words: None,
        cancelled=lambda: False,
    )


def activities_of(
    *tools: Tool[Any],
    output_cap: int = 16_000,
    keep_whole: Callable[[bytes], Awaitable[str]] | None = None,
) -> ToolActivities:
    """The activities around just these tools."""
    return ToolActivities(Toolbox(tools), Settings(output_cap=output_cap), keep_whole)


def environment(attempt: int = 1) -> ActivityEnvironment:
    """An activity environment at this attempt."""
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(ActivityEnvironment.default_info(), attempt=attempt)
    return environment


def request_for(tool: str, attempts: int = 3, **arguments: Any) -> ToolRequest:
    """A request as the workflow makes it."""
    return ToolRequest(id="call-1", tool=tool, arguments=arguments, key="run/0/action#1:0", attempts=attempts)


async def called(activities: ToolActivities, tool: str, **arguments: Any) -> ToolResult:
    """The result of a first attempt."""
    return await environment().run(activities.call_tool, request_for(tool, **arguments))


def probe(
    run: Callable[..., object], effect: ToolEffect = "read", timeout_seconds: float = 10
) -> Tool[NoParams]:
    """A tool named `probe` without parameters."""
    return Tool("probe", NoParams, run, effect=effect, timeout_seconds=timeout_seconds)


def returning(value: object) -> Tool[NoParams]:
    """A tool that returns this."""
    return probe(lambda params: value)


def raising(error: BaseException, effect: ToolEffect = "read") -> Tool[NoParams]:
    """A tool that raises this."""

    def run(params: NoParams) -> NoReturn:
        raise error

    return probe(run, effect)
