"""What the tests of tools share: settings on a folder, and a call without and with Temporal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel
from temporalio.testing import ActivityEnvironment

from activities.contracts import ToolEffect, ToolInput, ToolResult
from activities.settings import Settings
from activities.store.blobs import BlobStore
from activities.tools import Tool, ToolCallContext
from activities.tools.run import ToolActivities, ToolRunner

KEY = "run/0/action#1:0"


class NoParams(BaseModel, frozen=True, extra="forbid"):
    """Do something for a test."""


class Memory(BlobStore):
    """A store of blobs in memory."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.bodies: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        """Keep the bytes."""
        digest = sha256(data).hexdigest()
        self.bodies[digest] = data
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes."""
        return self.bodies[digest]


class FullDisk(Memory):
    """A store that cannot keep anything."""

    def put(self, data: bytes) -> str:
        """Always fails."""
        raise OSError("disk full")


def settings_on(folder: Path, **more: Any) -> Settings:
    """Settings of a worker whose file tools work in `folder`."""
    return Settings(files_root=folder, data_dir=folder / ".ratchet", **more)


def context_on(folder: Path, *, cancelled: bool = False, **more: Any) -> ToolCallContext:
    """What a tool sees of its call."""
    return ToolCallContext(
        key=KEY,
        settings=settings_on(folder, **more),
        attempt=1,
        heartbeat=lambda text: None,
        cancelled=lambda: cancelled,
    )


def runner_of(*tools: Tool[Any], blobs: Memory | None = None, **settings: Any) -> ToolRunner:
    """A runner of just these tools."""
    return ToolRunner({tool.name: tool for tool in tools}, Settings(**settings), blobs)


def activities_of(*tools: Tool[Any]) -> ToolActivities:
    """The activities around just these tools."""
    return ToolActivities(runner_of(*tools))


def environment(attempt: int = 1, heartbeat: Sequence[Any] = ()) -> ActivityEnvironment:
    """An activity environment at this attempt; `heartbeat` is the newest one of those before."""
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(
        ActivityEnvironment.default_info(), attempt=attempt, heartbeat_details=heartbeat
    )
    return environment


def request_for(tool: str, attempts: int = 3, **arguments: Any) -> ToolInput:
    """A request as the workflow makes it."""
    return ToolInput(id="call-1", tool=tool, arguments=arguments, key=KEY, attempts=attempts)


async def result_of(tool: Tool[Any], attempt: int = 1, **arguments: Any) -> ToolResult:
    """The result of one attempt of a tool."""
    return await runner_of(tool).run_tool(request_for(tool.name, **arguments), attempt)


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
