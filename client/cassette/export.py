"""A run as a cassette: replayed from its history with today's code, and recorded as it goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from pydantic import SecretStr
from temporalio import workflow

from client.cassette.file import Cassette, cassette_of
from client.cassette.recording import Recorder
from client.cassette.secrets import secrets_of_environment
from client.errors import RatchetError, UnknownRun, clear_errors
from client.history.recorded import Execution, archived_executions, executions_of
from client.history.replayer import explained, plugin_of, replayed
from client.runs.connected import ConnectedReader
from client.server.workerconfig import register_modules

__all__ = ["exported"]


async def exported(agents: ConnectedReader, run: str, remove: Sequence[str] = ()) -> Cassette:
    """A run, live or over, with its inner runs: from Temporal, or the archive if Temporal has forgotten it.

    Args:
        remove: patterns of more secrets, see `without_secrets`.

    Raises:
        UnknownRun: neither has the history of the run, or of an inner run.
        RatchetError: today's code cannot replay it, or a module of the settings cannot be loaded.
    """
    settings = agents.connection.settings
    register_modules(settings.modules)
    recorder = Recorder(lambda: workflow.info().get_current_history_length())
    await _record(agents, recorder, run)
    if not recorder.drives:
        raise RatchetError(f"run {run} never began, so there is nothing to export; `ratchet show {run}`")
    values = (getattr(settings, name) for name in type(settings).model_fields)
    several = chain.from_iterable(
        value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else (value,)
        for value in values
    )
    own = [value.get_secret_value() for value in several if isinstance(value, SecretStr)]
    return cassette_of(recorder, known=(*secrets_of_environment(), *own), patterns=remove)


async def _record(agents: ConnectedReader, recorder: Recorder, run: str) -> None:
    executions = await _executions(agents, run)
    for execution in executions:
        found = await replayed(plugin_of(agents.temporal), execution.history, recorder)
        if found.failure is not None:
            is_refused = found.instance is not None and found.instance.problem
            raise RatchetError(
                f"run {run} cannot be replayed here, so it cannot be exported: {explained(found)}. "
                "Export it with the code that it ran with"
                + ("; name a file that is not loaded with RATCHET_MODULES='[\"FILE\"]'" if is_refused else "")
            )
    for execution in executions:
        for event in execution.history.events:
            if event.HasField("child_workflow_execution_started_event_attributes"):
                child = event.child_workflow_execution_started_event_attributes.workflow_execution
                await _record(agents, recorder, child.workflow_id)


async def _executions(agents: ConnectedReader, run: str) -> tuple[Execution, ...]:
    found: tuple[Execution, ...] = ()
    try:
        async with clear_errors(agents.where, run):
            found = await executions_of(agents.temporal, run)
    except UnknownRun:
        pass
    if not found or found[0].beginning.continues:
        found = await archived_executions(agents.temporal, agents.archive, run)
    if not found or found[0].beginning.continues:
        raise UnknownRun(
            f"neither Temporal nor the archive has the whole history of run {run}: there is no such run, or "
            f"its retention is over and no worker kept it. `ratchet log {run}` may still show what it did"
        )
    return found
