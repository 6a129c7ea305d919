"""Messages to runs: by update, which is answered at once, or by signal, which waits for a worker."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from datetime import timedelta
from typing import Literal, TypeVar

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.contracts import Frozen, JsonObject
from client.errors import UPDATE_ABORTED, RatchetError, Refused
from workflows.people import Command, Decision

__all__ = ["NoAnswer", "SentSignal", "by_signal", "by_update"]

A = TypeVar("A")
MessageName = Literal["decide", "command"]
ACCEPT_SECONDS = 10
"""A worker that runs takes a message within this time."""
CROWD_SECONDS = 60
"""How long a message waits for others to the same run: the server takes ten at a time."""
LOST = ("AcceptedUpdateCompletedWorkflow", "closing workflow", UPDATE_ABORTED)
"""In the error when the run continued as new, or ended, before it could answer."""


class NoAnswer(Exception):
    """No worker took the message in time; it may still reach the run."""


class SentSignal(Frozen):
    """A message that went as a signal: it takes effect when a worker takes it, and nobody has answered."""

    run: str
    """Its id."""
    message: MessageName
    """What was sent."""
    id: str
    """Of the decision or the command."""
    body: JsonObject
    """What was sent."""
    text: str
    """For a person."""


async def by_update(
    temporal: Client, run: str, name: MessageName, body: Decision | Command, answer: type[A]
) -> A:
    """Send a decision or a command as an update of the same id; what the run answers.

    An update that the server lost is sent again: a repeat of an id counts once.

    Raises:
        Refused: the run does not take it; the message says why.
        NoAnswer: no worker took it in time.
        RatchetError: the run could not take it.
        RPCError: the server's own error.
    """
    handle = _without_store(temporal).get_workflow_handle(run)
    until = time.monotonic() + CROWD_SECONDS
    while True:
        try:
            update = await handle.start_update(
                name,
                body,
                wait_for_stage=WorkflowUpdateStage.ACCEPTED,
                id=body.id or None,
                result_type=answer,
                rpc_timeout=timedelta(seconds=ACCEPT_SECONDS),
            )
            result: A = await update.result()
            return result
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            this = asyncio.current_task()
            if this is not None and this.cancelling():
                # the SDK raises the same error when this task is cancelled
                raise asyncio.CancelledError from error
            raise NoAnswer from error
        except (WorkflowUpdateFailedError, RPCError) as error:
            if time.monotonic() > until or not await _may_succeed_later(temporal, run, error):
                if isinstance(error, RPCError):
                    raise
                raise _refusal(run, error) from error
            await asyncio.sleep(random.uniform(0.05, 0.3))


async def by_signal(
    temporal: Client, run: str, name: MessageName, body: Decision | Command, text: str
) -> SentSignal:
    """Send the same as a signal; `text` says to a person why, and when it takes effect. Raises RPCError."""
    await _without_store(temporal).get_workflow_handle(run).signal(name, body)
    sent: JsonObject = body.model_dump(mode="json", exclude_defaults=True)
    return SentSignal(run=run, message=name, id=body.id, body=sent, text=text)


async def _may_succeed_later(temporal: Client, run: str, error: WorkflowUpdateFailedError | RPCError) -> bool:
    """The update was lost while the run goes on, or there are too many at once."""
    if isinstance(error, RPCError) and error.status is RPCStatusCode.RESOURCE_EXHAUSTED:
        return True
    text = error.message if isinstance(error, RPCError) else getattr(error.cause, "type", None) or ""
    if not any(words in text for words in LOST):
        return False
    status = (await temporal.get_workflow_handle(run).describe()).status
    return status is WorkflowExecutionStatus.RUNNING


def _refusal(run: str, error: WorkflowUpdateFailedError) -> RatchetError:
    reason = getattr(error.cause, "message", str(error.cause))
    if getattr(error.cause, "type", None) == "Refused":
        return Refused(f"run {run} refused: {reason}")
    return RatchetError(f"run {run} could not take the message: {reason}")


def _without_store(temporal: Client) -> Client:
    """The client, sending long messages as they are: one in a store that the workers do not share would stop
    the run."""
    config = temporal.config()
    config["plugins"] = []
    config["data_converter"] = replace(temporal.data_converter, external_storage=None)
    return Client(**config)
