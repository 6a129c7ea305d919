"""Tasks for the scripted provider, and how to run them on the real server."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError
from temporalio.worker import Replayer

from activities.contracts import ModelSpec, NativeCall, ScriptedReply
from client.history.recorded import executions_of, recorded_calls
from client.plugin import RatchetPlugin
from workflows.api import (
    TASK_QUEUE,
    WORKFLOW_TYPE,
    AgentTask,
    LogPage,
    PageQuery,
    RunResult,
    RunStatus,
)
from workflows.kernel.log import LoggedCall, Record
from workflows.people import Approvals, Command, CommandDone, Decided, People, Request, RequestsPage

__all__ = [
    "FREELY",
    "UNATTENDED",
    "begin",
    "boundaries",
    "calls",
    "command",
    "decide",
    "eventually",
    "failed_tasks",
    "log_of",
    "open_request",
    "replayed",
    "reset",
    "scripted",
    "task",
    "told_by_history",
    "tool_calls",
    "until",
]

T = TypeVar("T")
PATIENCE = 180
"""Seconds after which something that is waited for counts as lost."""
Run = WorkflowHandle[Any, RunResult]
UNATTENDED = People(unattended=True)
"""Nobody can be asked."""
FREELY = Approvals(effects={"unsafe": "never"})
"""No call needs a person."""


def calls(*made: tuple[str, dict[str, Any]]) -> ScriptedReply:
    """A reply with native calls of these tools."""
    named = (
        NativeCall(id=f"c{uuid.uuid4().hex[:8]}", name=tool, arguments=json.dumps(arguments))
        for tool, arguments in made
    )
    return ScriptedReply(reply="", tool_calls=tuple(named))


def scripted(*replies: Any, delay_seconds: float = 0) -> ModelSpec:
    """A scripted model that gives these replies, each after a delay."""
    script = tuple(
        one if isinstance(one, ScriptedReply) else ScriptedReply(reply=one, delay_seconds=delay_seconds)
        for one in replies
    )
    return ModelSpec(provider="scripted", name="script", script=script)


def task(*replies: Any, tools: tuple[str, ...] = ("mark",), **more: Any) -> AgentTask:
    """A run of the machine `tools` with a script; nobody is asked unless `people` and `approvals` say so."""
    given = {
        "goal": "try it",
        "machine": "tools",
        "tools": tools,
        "models": {"default": scripted(*replies)},
        "heartbeat_seconds": 3,
        "people": UNATTENDED,
        "approvals": FREELY,
    }
    return AgentTask(**{**given, **more})


async def begin(client: Client, given: Any, **more: Any) -> Run:
    """Start a run under a new id."""
    queue = more.pop("task_queue", TASK_QUEUE)
    return await client.start_workflow(
        WORKFLOW_TYPE,
        given,
        id=f"trial-{uuid.uuid4().hex[:12]}",
        task_queue=queue,
        result_type=RunResult,
        **more,
    )


async def eventually(check: Callable[[], Awaitable[T | None]], patience: float = PATIENCE) -> T:
    """Wait until the check gives something true; often at first, then less. Raises TimeoutError after so many
    seconds."""
    pause = 0.01
    async with asyncio.timeout(patience):
        while not (found := await check()):
            await asyncio.sleep(pause)
            pause = min(1.3 * pause, 0.2)
    return found


async def until(run: Run, reached: Callable[[RunStatus], bool], patience: float = PATIENCE) -> RunStatus:
    """Wait until the run's status is as wanted."""
    seen: list[RunStatus] = []

    async def check() -> RunStatus | None:
        with suppress(WorkflowQueryFailedError, RPCError):  # it has not begun
            seen[:] = [await run.query("status", result_type=RunStatus)]
            return seen[0] if reached(seen[0]) else None
        return None

    try:
        return await eventually(check, patience)
    except TimeoutError:
        raise AssertionError(f"{run.id} did not come so far; it is at {seen}") from None


async def open_request(run: Run, kind: str = "") -> Request:
    """Wait for an open request, of this kind if one is named."""

    async def asked() -> Request | None:
        with suppress(WorkflowQueryFailedError, RPCError):  # it has not begun, or its worker was killed
            page: RequestsPage = await run.query("requests", PageQuery(), result_type=RequestsPage)
            return next((one for one in page.open if kind in ("", one.kind)), None)
        return None

    return await eventually(asked)


async def decide(run: Run, verb: str, request: Request | None = None, **more: Any) -> Decided:
    """Decide a request by update, the first open one if none is named."""
    request = request or await open_request(run)
    decision = {"request": request.id, "digest": request.digest, "decision": verb, "by": "ann", **more}
    decided: Decided = await run.execute_update("decide", decision, result_type=Decided)
    return decided


async def command(run: Run, name: Any, **more: Any) -> CommandDone:
    """Give a command by update."""
    done: CommandDone = await run.execute_update(
        "command", Command(command=name, by="ann", **more), result_type=CommandDone
    )
    return done


async def told_by_history(client: Client, run: Run) -> tuple[Record, ...]:
    """What Temporal's history alone says of a run's calls."""
    return await recorded_calls(client, await executions_of(client, run.id), ())


def tool_calls(records: Iterable[Record]) -> list[LoggedCall]:
    """Each tool's call that has ended, without what history does not tell as the log: its model's id for it,
    and whether an argument was given or is the tool's default."""
    every = (one for record in records for one in record.answered if one.kind == "call_tools")
    return [one.model_copy(update={"call": "", "arguments": {}}) for one in every]


async def log_of(run: Run) -> list[Record]:
    """The whole log of the newest execution, page by page."""
    records: list[Record] = []
    while True:
        since = records[-1].seq + 1 if records else 0
        page: LogPage = await run.query("log", PageQuery(since=since, full=True), result_type=LogPage)
        records += page.records
        if page.next >= page.total:
            return records


async def failed_tasks(run: Run) -> int:
    """How many workflow tasks have failed, but for those that a busy machine took more than 2 s for."""
    events = (await run.fetch_history()).events
    failed = [
        event.workflow_task_failed_event_attributes.failure.message
        for event in events
        if event.HasField("workflow_task_failed_event_attributes")
    ]
    return sum("TMPRL1101" not in message for message in failed)


async def replayed(run: Run, settings: Any) -> None:
    """The run's history replays; raises what does not."""
    history = await run.fetch_history()
    await Replayer(workflows=[], plugins=[RatchetPlugin(settings)]).replay_workflow(history)


async def reset(run: Run, client: Client, event: int) -> Run:
    """Reset an execution, as Temporal's UI and command line do."""
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(
                workflow_id=run.id, run_id=run.run_id or run.first_execution_run_id or ""
            ),
            reason="a test",
            identity="a person",
            workflow_task_finish_event_id=event,
            request_id=uuid.uuid4().hex,
        ),
        retry=True,
    )
    return client.get_workflow_handle(run.id, run_id=answer.run_id, result_type=RunResult)


async def boundaries(run: Run) -> list[int]:
    """Events to which a run can be reset."""
    events = (await run.fetch_history()).events
    return [one.event_id for one in events if one.HasField("workflow_task_completed_event_attributes")]
