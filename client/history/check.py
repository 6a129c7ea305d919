"""`check`: which waiting runs would a deploy of today's code break?

A run that any worker may take is replayed: today's code must do what the run did. A run that is pinned to its
worker's build comes to today's code only before a step; then its state and data must fit.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Literal

from temporalio.api.enums.v1 import VersioningBehavior
from temporalio.client import WorkflowExecution, WorkflowHistory
from temporalio.common import RawValue
from temporalio.converter import DataConverter

from activities.contracts import Frozen
from activities.store.blobs import StoreError
from activities.store.converter import data_converter
from activities.store.encryption import KeyMissing, NotDecrypted
from client.agents.catalog import Catalog
from client.errors import MachineBug, NoWorker, RatchetError, StoreNotShared, UsageError, clear_errors
from client.history.recorded import begun, payloads_in, workflow_id_of
from client.history.replayer import Replayed, explained, plugin_of, replayed
from client.plugin import RatchetPlugin
from client.runs.connected import ConnectedReader
from client.runs.listing import list_filter
from workflows.api import AgentTask
from workflows.kernel.errors import KernelError, NotRestored
from workflows.kernel.log import Record
from workflows.kernel.rollback import restored
from workflows.task import InvalidTask, program_for

__all__ = ["Checked", "check_history", "check_runs", "history_json", "read_history"]


class Checked(Frozen):
    """What would become of one run."""

    run: str
    """The workflow id."""
    machine: str = ""
    version: str = ""
    """As the run began with it; empty: the oldest that is loaded."""
    state: str = ""
    """Where the run is; empty: not known."""
    build: str = ""
    """The build of workers that it is pinned to."""
    verdict: Literal["goes on", "breaks", "unknown"]
    reason: str = ""
    """Why it breaks, or why nothing is known."""


async def check_runs(agents: ConnectedReader) -> AsyncIterator[tuple[Checked, WorkflowHistory]]:
    """Check all runs that are not over, each with the history of its newest execution.

    Raises:
        UsageError: a module of the settings cannot be loaded.
    """
    tools = {tool.name for tool in Catalog.load(agents.connection.settings).tools}
    async with clear_errors(agents.where):
        async for run in agents.temporal.list_workflows(list_filter(running=True)):
            history = await agents.temporal.get_workflow_handle(run.id).fetch_history()
            try:
                task = (await begun(agents.temporal.data_converter, history.events[0])).task
                checked = await _check_run(agents, run, history, task, tools)
            except (KeyMissing, NotDecrypted) as error:
                checked = _verdict(run.id, None, "", str(error), "unknown")
            yield checked, history


async def check_history(plugin: RatchetPlugin, history: WorkflowHistory) -> Checked:
    """Check one run by a history of it.

    Raises:
        UsageError: a module of the settings cannot be loaded.
    """
    tools = {tool.name for tool in Catalog.load(plugin.settings).tools}
    stores = plugin.stores
    converter = data_converter((stores.blobs, stores.secret), stores.keys)
    try:
        task = (await begun(converter, history.events[0])).task
    except (KeyMissing, NotDecrypted) as error:
        return _verdict(history.workflow_id, None, "", str(error), "unknown")
    found = await replayed(plugin, history)
    return _by_replay(history.workflow_id, task, found, _lacks(task, tools))


async def _check_run(
    agents: ConnectedReader,
    run: WorkflowExecution,
    history: WorkflowHistory,
    task: AgentTask | None,
    tools: set[str],
) -> Checked:
    missing, info = _lacks(task, tools), (await agents.description(run.id)).raw_description
    pinned = info.workflow_execution_info.versioning_info
    if pinned.behavior == VersioningBehavior.VERSIONING_BEHAVIOR_PINNED:
        checked = await _by_log(agents, run.id, task, missing)
        return checked.model_copy(update={"build": pinned.deployment_version.build_id})
    found = await replayed(plugin_of(agents.temporal), history)
    checked = _by_replay(run.id, task, found, missing)
    if checked.verdict == "breaks" and found.failure is not None and not missing:
        fits = await _by_log(agents, run.id, task, "")
        return checked.model_copy(
            update={"state": fits.state, "reason": f"{checked.reason}; {_way_out(fits)}"}
        )
    return checked


def _by_replay(run: str, task: AgentTask | None, found: Replayed, missing: str) -> Checked:
    """The verdict of Temporal's own replay."""
    drive = found.instance.drive if found.instance else None
    state = drive.run.suspension.snapshot.state if drive else ""
    if found.failure is None:  # where the newest task is not over, it may fail all the same
        return _verdict(run, task, state, explained(found) or missing)
    return _verdict(run, task, "", explained(found))


async def _by_log(agents: ConnectedReader, run: str, task: AgentTask | None, missing: str) -> Checked:
    """Whether today's machine can go on from what the run's log says."""
    try:
        records = await agents.records(run, full=True)
    except NoWorker:
        text = "its state and data are not known, because no worker serves it"
        return _verdict(run, task, "", missing or text, "breaks" if missing else "unknown")
    except (MachineBug, StoreNotShared) as error:
        text = f"its state and data are not known: {error}"
        return _verdict(run, task, "", missing or text, "breaks" if missing else "unknown")
    state = next((record.to for record in reversed(records) if record.to), "")
    return _verdict(run, task, state, missing or _misfit(run, task, records))


def _misfit(run: str, task: AgentTask | None, records: Iterable[Record]) -> str:
    """Why today's machine cannot go on from this log; empty: it can."""
    if task is None:
        return "its task cannot be read"
    try:
        program = program_for(task, None, run)
        snapshot = restored(program, records)
    except NotRestored as error:
        return f"its log does not fit today's {task.machine}: {error}"
    except (InvalidTask, KernelError) as error:
        return str(error)
    if snapshot.state not in program.machine.rows:
        return (
            f"today's {task.machine} has no state {snapshot.state}; it has {', '.join(program.machine.rows)}"
        )
    return ""


def _way_out(fits: Checked) -> str:
    if fits.verdict == "goes on":
        return f"its state and data fit: `ratchet fork {fits.run} --step N` goes on with them in a new run"
    return fits.reason


def _lacks(task: AgentTask | None, tools: set[str]) -> str:
    lacking = [name for name in task.tools if name not in tools] if task else []
    return f"there is no tool {', '.join(lacking)} any more" if lacking else ""


def _verdict(
    run: str,
    task: AgentTask | None,
    state: str,
    reason: str,
    otherwise: Literal["breaks", "unknown"] = "breaks",
) -> Checked:
    return Checked(
        run=run,
        machine=task.machine if task else "",
        version=(task.machine_version or "") if task else "",
        state=state,
        verdict=otherwise if reason else "goes on",
        reason=reason,
    )


# -- histories in files --------------------


def read_history(path: Path) -> WorkflowHistory:
    """A history from a file, as `history_json` or `temporal workflow show -o json` writes it.

    Raises:
        UsageError: the file cannot be read or holds no history.
    """
    try:
        history = WorkflowHistory.from_json("", path.read_text(encoding="utf-8"))
        return WorkflowHistory(workflow_id_of(history) or path.stem, history.events)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{path} holds no history of a run: {error}") from error


async def history_json(converter: DataConverter, history: WorkflowHistory) -> str:
    """A history as JSON. Values that are kept outside of it stand in their place: it replays anywhere.

    Raises:
        RatchetError: a value is not in the store.
    """
    try:
        for event in history.events:
            for payload in payloads_in(event):
                (raw,) = await converter.decode([payload], [RawValue])
                payload.CopyFrom(raw.payload)
    except (StoreError, RuntimeError) as error:
        raise RatchetError(f"the history of {history.workflow_id} is not whole: {error}") from error
    return json.dumps(history.to_json_dict(), indent=1)
