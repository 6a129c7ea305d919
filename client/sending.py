"""Messages to runs: by update, which answers at once, or by signal, which waits for a worker."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypeVar

from pydantic import BaseModel
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.contracts import Frozen, JsonObject
from client.errors import RatchetError, Refused
from client.rpc import ABORTED, CLOSING

__all__ = ["NoAnswer", "Sent", "by_signal", "by_update"]

A = TypeVar("A")
ACCEPT_SECONDS = 10
"""A worker that is there takes a message within so long."""
CROWD_SECONDS = 60
"""How long others' messages to the same run are waited for: the server takes ten at a time."""
LOST = "AcceptedUpdateCompletedWorkflow"
"""The run went on with an empty history, or ended, before it could answer."""
TRIES = 3


class NoAnswer(Exception):
    """No worker took the message in time; it may still come to the run."""


class Sent(Frozen):
    """A message that went as a signal: it takes effect when a worker takes it, and nobody has answered."""

    run: str
    message: Literal["decide", "command"]
    id: str
    """Of the decision or command."""
    body: JsonObject
    """What was sent."""
    text: str
    """For a person."""


async def by_update(
    temporal: Client, run_id: str, name: Literal["decide", "command"], body: BaseModel, answer: type[A]
) -> A:
    """Send a Decision or Command whose id is the update's; what the run answers.

    Raises:
        Refused: the run does not take it; the message says why.
        NoAnswer: no worker took it in time.
        RatchetError: the run ended before it could answer.
        RPCError: of the server.
    """
    for _ in range(TRIES):
        try:
            return await _update(temporal, run_id, name, body, answer)
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            kind = cause.type if isinstance(cause, ApplicationError) else None
            if kind == LOST and await _goes_on(temporal, run_id):
                continue  # with an empty history; a repeat of the same id is harmless
            if kind == "Refused":
                raise Refused(f"run {run_id} refused: {_said(cause)}") from error
            raise RatchetError(f"run {run_id} could not take the message: {_said(cause)}") from error
        except RPCError as error:
            lost = CLOSING in error.message or ABORTED in error.message
            if not lost or not await _goes_on(temporal, run_id):
                raise
    raise RatchetError(f"run {run_id} took the message but did not answer; `ratchet log {run_id}` has it")


async def by_signal(
    temporal: Client, run_id: str, name: Literal["decide", "command"], body: BaseModel, why: str
) -> Sent:
    """Send the same as a signal; `why` begins what a person is told."""
    await _inline(temporal).get_workflow_handle(run_id).signal(name, body)
    sent: JsonObject = body.model_dump(mode="json", exclude_defaults=True)
    text = f"{why}; it takes effect when a worker takes it, and what is unusable is recorded in the log"
    return Sent(run=run_id, message=name, id=str(sent.get("id", "")), body=sent, text=text)


async def _update(temporal: Client, run_id: str, name: str, body: Any, answer: type[A]) -> A:
    until, whole = time.monotonic() + CROWD_SECONDS, _inline(temporal)
    while True:
        try:
            handle = await whole.get_workflow_handle(run_id).start_update(
                name,
                body,
                wait_for_stage=WorkflowUpdateStage.ACCEPTED,
                id=body.id or None,
                result_type=answer,
                rpc_timeout=timedelta(seconds=ACCEPT_SECONDS),
            )
            done: A = await handle.result()
            return done
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            this = asyncio.current_task()
            if this is not None and this.cancelling():
                # The SDK hides a cancellation of ours behind the same error.
                raise asyncio.CancelledError from error
            raise NoAnswer from error
        except RPCError as error:
            if error.status is not RPCStatusCode.RESOURCE_EXHAUSTED or time.monotonic() > until:
                raise
            await asyncio.sleep(random.uniform(0.05, 0.3))


def _inline(temporal: Client) -> Client:
    """The client, sending long messages as they are: one that lay in a store which the workers do not share
    would stop the run until they do."""
    config = temporal.config()
    config["plugins"] = []
    config["data_converter"] = replace(temporal.data_converter, external_storage=None)
    return Client(**config)


async def _goes_on(temporal: Client, run_id: str) -> bool:
    about = await temporal.get_workflow_handle(run_id).describe()
    return about.status is WorkflowExecutionStatus.RUNNING


def _said(cause: BaseException | None) -> str:
    return cause.message if isinstance(cause, ApplicationError) else str(cause)
