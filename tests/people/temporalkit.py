"""People who have nothing but Temporal: its own command line, and the SDK's plain handles."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer

from activities.contracts import ScriptedReply, ToolCall
from activities.settings import Settings
from client.plugin import RatchetPlugin
from client.serverprocess import temporal_binary
from tests.workflows.trials import act, begin, final, log_of, task
from workflows.api import AgentResult, AgentTask
from workflows.kernel.log import Record
from workflows.people import Approvals, People, Request, RequestsPage

__all__ = [
    "Handle", "Person", "asking_task", "begun", "calls", "decision", "hears", "listed", "marks", "noted",
    "reached", "refusal", "replayed", "requests", "waits_for",
]  # fmt: skip

Handle = WorkflowHandle[Any, AgentResult]
PATIENCE = 30
"""Seconds; the machine may be busy."""


def asking_task(line: str, *more_replies: Any, **more: Any) -> AgentTask:
    """A run that makes one unsafe call, which people are asked about, and then whatever else is wanted."""
    values = {"people": People(), "approvals": Approvals(), "tools": ("mark_once", "mark"), **more}
    replies = more_replies or (final("done"),)
    return task(act("mark_once", line=line), *replies, **values)


def marks(settings: Settings) -> list[str]:
    """The lines that calls have written, in order."""
    path = settings.files_root / "marks.txt"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


async def reached(holds: Callable[[], Awaitable[Any]]) -> Any:
    """Wait until what it gives is true; gives it."""
    async with asyncio.timeout(PATIENCE):
        while not (found := await holds()):  # noqa: ASYNC110  # the run is in another process
            await asyncio.sleep(0.03)
        return found


async def requests(handle: Handle) -> tuple[Request, ...]:
    """What the run asks now."""
    page: RequestsPage = await handle.query("requests", result_type=RequestsPage)
    return page.open


async def waits_for(handle: Handle, kind: str = "approval", *, besides: str = "") -> Request:
    """Wait until the run asks this, and not only the request `besides`."""

    async def asked() -> Request | None:
        found = [r for r in await requests(handle) if r.kind == kind and r.id != besides]
        return found[0] if found else None

    request: Request = await reached(asked)
    return request


async def begun(client: Client, given: AgentTask, kind: str = "approval") -> tuple[Handle, Request]:
    """A run, and the first thing that it asks."""
    handle = await begin(client, given)
    return handle, await waits_for(handle, kind)


def hears(text: str, reply: Any) -> ScriptedReply:
    """A reply of the model that is only given when the newest message says this."""
    return ScriptedReply(expect=text, reply=reply)


def calls(tool: str, *lines: str) -> ScriptedReply:
    """A reply of the machine `tools` that calls a tool so often."""
    made = [(f"c{n}", {"line": line}) for n, line in enumerate(lines)]
    return ScriptedReply(
        reply="",
        tool_calls=tuple(ToolCall(id=i, name=tool, arguments=json.dumps(given)) for i, given in made),
    )


def decision(request: Request, verb: str, **more: Any) -> dict[str, Any]:
    """What somebody types who has read the request."""
    return {"request": request.id, "digest": request.digest, "decision": verb, "by": "ann", **more}


async def refusal(handle: Handle, name: str, value: Any) -> str:
    """Send an update that must be refused; the reason. It must cost the history nothing."""
    before = await _updates(handle)
    with pytest.raises(WorkflowUpdateFailedError) as failed:
        await handle.execute_update(name, value)
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "Refused", cause
    assert await _updates(handle) == before, "a refusal by the validator is no event"
    return cause.message


async def _updates(handle: Handle) -> int:
    """Events of updates in the history."""
    kinds = {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED,
    }
    return sum(event.event_type in kinds for event in (await handle.fetch_history()).events)


async def noted(handle: Handle, event: str) -> list[Record]:
    """The log's records of one event."""
    return [record for record in await log_of(handle) if record.event == event]


async def replayed(handle: Handle, settings: Settings) -> None:
    """The history gives the same commands with today's code."""
    plugins = [RatchetPlugin(settings)]
    await Replayer(workflows=[], plugins=plugins).replay_workflow(await handle.fetch_history())


async def listed(client: Client, query: str, wanted: Handle, *, there: bool = True) -> None:
    """Wait until Temporal's list has the run, or has it no more."""

    async def found() -> bool:
        ids = [run.id async for run in client.list_workflows(query)]
        return (wanted.id in ids) == there

    await reached(found)


@dataclass(frozen=True)
class Said:
    """What a command of Temporal's own printed."""

    code: int
    out: str
    problem: str

    @property
    def json(self) -> Any:
        """Its output as JSON."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Person:
    """Somebody at Temporal's own command line."""

    address: str

    @classmethod
    def of(cls, client: Client) -> Person:
        """At the server of this client."""
        return cls(client.service_client.config.target_host)

    async def temporal(self, *words: str) -> Said:
        """Run `temporal ...`; whether it worked is in what it said."""
        command = [temporal_binary(), *words, "--address", self.address]
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            cwd=Path("/"),
        )
        return Said(done.returncode, done.stdout, done.stderr)

    async def signal(self, handle: Handle, name: str, value: Any) -> None:
        """`temporal workflow signal`, which only says that it was sent."""
        words = ("workflow", "signal", "-w", handle.id, "--name", name, "--input", json.dumps(value))
        said = await self.temporal(*words)
        assert said.code == 0, said.problem

    async def update(self, handle: Handle, name: str, value: Any) -> Any:
        """`temporal workflow update execute`; the answer, or the words of the refusal."""
        words = ("workflow", "update", "execute", "-w", handle.id, "--name", name)
        said = await self.temporal(*words, "--input", json.dumps(value), "-o", "json")
        return said.json["result"] if said.code == 0 else said.problem

    async def query(self, handle: Handle, kind: str, value: Any = None) -> Any:
        """`temporal workflow query`; the answer as JSON."""
        given = () if value is None else ("--input", json.dumps(value))
        said = await self.temporal("workflow", "query", "-w", handle.id, "--type", kind, *given, "-o", "json")
        assert said.code == 0, said.problem
        (answer,) = said.json["queryResult"]
        return answer

    async def listed(self, query: str) -> list[dict[str, Any]]:
        """`temporal workflow list`."""
        said = await self.temporal("workflow", "list", "--query", query, "-o", "json")
        assert said.code == 0, said.problem
        found: list[dict[str, Any]] = said.json
        return found
