"""The same script gives the same log on the real server, on replay, and without Temporal at all.

Each scenario runs on the server; then its machine runs again as a pure function, fed with what the
activities answered, and both logs must be the same but for times, ids and hashes.
"""

from __future__ import annotations

import itertools
import json
import re
from contextlib import suppress
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ActivityError
from temporalio.worker import Replayer

from activities.contracts import (
    AskPerson,
    CallModel,
    CallModels,
    CallTools,
    Effect,
    ModelReplied,
    ModelsReplied,
    PersonDecided,
    RunMachine,
    ToolResult,
    ToolsReturned,
)
from activities.contracts_artifacts import ArtifactsRead, ReadArtifacts
from activities.contracts_code import CodeStepped, RunCode
from activities.settings import Settings
from activities.toolbox import Toolbox
from client.plugin import RatchetPlugin
from tests.workflows.record import SCENARIOS
from tests.workflows.trials import log_of
from workflows.api import AgentResult, AgentTask
from workflows.child import ended
from workflows.intake import begin, build, nesting
from workflows.kernel.ledger import Ledger
from workflows.kernel.log import Record
from workflows.kernel.stack import Stack, answered, began
from workflows.perform_tools import tool_failure
from workflows.retries import failure_of

PEOPLE = {name for name in SCENARIOS if name.startswith("people-")}
DISTURBED = PEOPLE | {name for name in SCENARIOS if "cancelled" in name or "signalled" in name}
"""A person's message comes from outside the script."""
ANSWERS: dict[type[Effect], Any] = {
    CallModel: ModelReplied,
    RunCode: CodeStepped,
    ReadArtifacts: ArtifactsRead,
}
TIMES = re.compile(r"seconds|timestamp|started|finished|^ended$|elapsed|duration|(^|_)at$")
HASH = re.compile(r"[0-9a-f]{32,64}|(inline|digest):\S+")


class Recorded:
    """What the activities of a run answered, by activity id."""

    def __init__(self, handle: WorkflowHandle[Any, Any], client: Client) -> None:
        self.handle, self.client = handle, client
        self.payloads: dict[str, Any] = {}
        self.failures: dict[str, Failure] = {}

    async def load(self) -> Recorded:
        """Read the whole history."""
        ids: dict[int, str] = {}
        async for event in self.handle.fetch_history_events():
            scheduled = event.activity_task_scheduled_event_attributes
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                ids[event.event_id] = scheduled.activity_id
            elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                done = event.activity_task_completed_event_attributes
                self.payloads[ids[done.scheduled_event_id]] = done.result.payloads
            elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
                broken = event.activity_task_failed_event_attributes
                self.failures[ids[broken.scheduled_event_id]] = broken.failure
        return self

    async def answer(self, effect: Effect, place: str, specs: dict[str, Any]) -> Any:
        """What the world said to this effect."""
        if isinstance(effect, CallTools):
            return await self._tools(effect, place, specs)
        if isinstance(effect, CallModels):
            calls = enumerate(effect.calls)
            return ModelsReplied(
                replies=tuple([await self.answer(call, f"{place}.{n}", specs) for n, call in calls])
            )
        if isinstance(effect, AskPerson):
            return PersonDecided(decision="unavailable", text="no person can be asked")
        if isinstance(effect, RunMachine):
            child = f"{self.handle.id}/{str(self.handle.result_run_id)[:8]}/{place}"
            return ended(
                await self.client.get_workflow_handle(child, result_type=AgentResult).result(), child
            )
        activity = f"{place}+all" if f"{place}+all" in self.payloads else place
        if activity in self.failures:
            return failure_of(await self._error(activity))
        return await self._value(activity, ANSWERS[type(effect)])

    async def _tools(self, effect: CallTools, place: str, specs: dict[str, Any]) -> ToolsReturned:
        results: list[ToolResult] = []
        names = [f"{place}.{n}" for n in range(len(effect.runs))] if len(effect.runs) > 1 else [place]
        for run, name in zip(effect.runs, names, strict=True):
            if run.tool not in specs:
                text = f"Unknown tool: {run.tool}"
                results.append(ToolResult(id=run.id, tool=run.tool, output=text, error="unknown_tool"))
            elif name in self.payloads:
                results.append(await self._value(name, ToolResult))
            else:
                results.append(tool_failure(run, specs[run.tool], await self._error(name)))
            if results[-1].error in ("unknown_outcome", "unknown_tool"):
                break
        return ToolsReturned(results=tuple(results))

    async def _value(self, activity: str, kind: type) -> Any:
        return (await self.client.data_converter.decode(self.payloads[activity], [kind]))[0]

    async def _error(self, activity: str) -> ActivityError:
        error = ActivityError(
            "failed", scheduled_event_id=0, started_event_id=0, identity="", activity_type="",
            activity_id=activity, retry_state=None,
        )  # fmt: skip
        error.__cause__ = await self.client.data_converter.decode_failure(self.failures[activity])
        return error


async def alone(task: AgentTask, recorded: Recorded, settings: Settings) -> list[Record]:
    """The log of the same run without Temporal."""
    specs = tuple(spec for spec in Toolbox.load(settings).specs if spec.name in task.tools)
    specs = tuple(sorted(specs, key=lambda spec: task.tools.index(spec.name)))
    design, machine, options = build(task)
    inner = nesting(task, specs, recorded.handle.id)
    caps = {k: v for k, v in task.limits.model_dump().items() if v and k not in ("max_transitions", "depth")}
    clock = itertools.count(1.0)
    context = begin(design, options, task, specs, recorded.handle.id)
    stack: Stack = began(machine, context, inner, now=next(clock), ledger=Ledger(caps=caps), tools=task.tools)
    records = list(stack.records)
    while (effect := stack.effect) is not None:
        answer = await recorded.answer(effect, stack.top.place, {spec.name: spec for spec in specs})
        stack = answered(stack, answer, inner, now=next(clock))
        records += stack.records
    return records


def timeless(value: Any, key: str = "") -> Any:
    """The value without times, ids and hashes."""
    if TIMES.search(key) and not isinstance(value, dict | list):
        return 0
    if isinstance(value, dict):
        return {name: timeless(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [timeless(item) for item in value]
    return HASH.sub("#", value) if isinstance(value, str) else value


def told(records: list[Record]) -> list[Any]:
    """The log as it can be compared."""
    return [timeless(record.model_dump(mode="json")) for record in records]


@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - DISTURBED))
async def test_a_scenario_gives_the_same_log_on_the_server_on_replay_and_alone(
    working: Client, settings: Settings, name: str
) -> None:
    handle = await SCENARIOS[name](working)
    with suppress(WorkflowFailureError):  # a machine may end by raising
        await handle.result()
    on_server = await log_of(handle)
    first = await anext(aiter(handle.fetch_history_events()))
    payloads = first.workflow_execution_started_event_attributes.input.payloads
    given: Any = (await working.data_converter.decode(payloads))[0]
    task = AgentTask.model_validate(given)
    recorded = await Recorded(handle, working).load()
    assert told(await alone(task, recorded, settings)) == told(on_server)
    replayer = Replayer(workflows=[], plugins=[RatchetPlugin(settings)])
    await replayer.replay_workflow(await handle.fetch_history())
    assert json.dumps(told(on_server))
