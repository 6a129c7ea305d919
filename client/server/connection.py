"""Connecting: Temporal's own configuration, else the embedded server; and a worker of this process."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from temporalio.api.enums.v1 import TaskQueueType, WorkerStatus
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, ListWorkersRequest
from temporalio.client import Client
from temporalio.service import RPCError

from activities.settings import Settings
from activities.store.blobs import StoreError
from activities.store.stores import Stores
from client.errors import RatchetError, ServerError, UsageError, unreachable
from client.runs.attributes import accept_new_statuses
from client.server.embedded import EmbeddedServer, Ports, data_directory
from client.server.remote import remote_config
from client.server.workerconfig import load_settings
from workflows.api import TASK_QUEUE

__all__ = ["Connection", "connected", "has_worker", "open_client", "while_alive"]

CONNECT_TIMEOUT = timedelta(seconds=10)
POLL_SECONDS = 90
"""A live worker polls again at least every 70 seconds."""
LEAVING = {WorkerStatus.WORKER_STATUS_SHUTTING_DOWN, WorkerStatus.WORKER_STATUS_SHUTDOWN}


@dataclass
class Connection:
    """A client of a Temporal server that speaks as Ratchet does, and where that server is."""

    temporal: Client
    settings: Settings
    where: str
    """Address of the server, for messages."""
    ui: str | None = None
    """Address of Temporal's Web UI; known of the embedded server only."""
    queues: tuple[str, ...] = ()
    """Task queues that a worker of this process polls."""

    @cached_property
    def stores(self) -> Stores:
        """What is kept beside Temporal."""
        return Stores(self.settings)

    @asynccontextmanager
    async def working(self, *queues: str) -> AsyncIterator[None]:
        """Run a worker in this process: one for each task queue; default: that which all workers share."""
        from client.server.worker import build_worker

        queues = queues or (TASK_QUEUE,)
        # a person waits at the terminal: calls under way get 5 seconds to end, not half a minute
        settings = self.settings.model_copy(update={"shutdown_seconds": 5})
        async with AsyncExitStack() as stack:
            for queue in queues:
                await stack.enter_async_context(build_worker(self.temporal, settings, queue))
            self.queues += queues
            try:
                yield
            finally:
                self.queues = tuple(queue for queue in self.queues if queue not in queues)


async def open_client(settings: Settings, config: dict[str, Any], stores: Stores | None = None) -> Client:
    """A Temporal client with Ratchet's plugin; `config` is what `remote_config` gave.

    Raises:
        UsageError: the address is wrong, or that of a store.
        Unreachable: the server does not answer.
    """
    from client.plugin import RatchetPlugin

    where = str(config["target_host"])
    data_directory(settings.data_dir)
    accept_new_statuses()
    try:
        plugin = RatchetPlugin(settings, stores)
        return await Client.connect(**{"connect_timeout": CONNECT_TIMEOUT, **config}, plugins=[plugin])
    except StoreError as error:
        raise UsageError(str(error)) from error
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"cannot connect to a Temporal server at {where!r}: {error}; expected HOST:PORT "
            "(TEMPORAL_ADDRESS, --address, profile)"
        ) from error
    except RuntimeError as error:
        # the SDK's core nests the causes of an error as Rust prints them; the innermost says it
        messages: list[str] = re.findall(r'(?:message|error): "([^"]+)"', str(error))
        raise unreachable(where, messages[-1].lower() if messages else str(error)) from error


@asynccontextmanager
async def connected(
    *,
    settings: Settings | None = None,
    remote: dict[str, Any] | None = None,
    ports: Ports | None = None,
    worker: bool = False,
) -> AsyncIterator[Connection]:
    """A connection to the server in `remote` (default: `remote_config()`), else to the embedded one.

    Args:
        settings: data directory, tools and model servers; default: from the environment, with what earlier
            commands of the directory named, so that their runs can go on.
        remote: from `remote_config`.
        ports: of the embedded server.
        worker: run a worker in this process for as long as the connection is open.

    Raises:
        UsageError: the address is wrong.
        Unreachable: the server does not answer.
        ServerError: the embedded server does not start, or has ended.
    """
    settings = settings or load_settings()
    remote = remote or remote_config()
    async with AsyncExitStack() as stack:
        ui = None
        if remote is None:
            server = await stack.enter_async_context(await EmbeddedServer.attach(settings.data_dir, ports))
            await stack.enter_async_context(while_alive(server))
            remote, ui = {"target_host": server.record.address}, server.record.ui
        stores = Stores(settings)
        stack.callback(stores.close)
        temporal = await open_client(settings, remote, stores)
        connection = Connection(temporal, settings, str(remote["target_host"]), ui)
        connection.stores = stores
        if worker:
            await stack.enter_async_context(connection.working())
        yield connection


async def has_worker(temporal: Client, queue: str = TASK_QUEUE) -> bool:
    """Some worker polled the task queue lately and did not announce its end since.

    A killed worker announces nothing: it counts for up to `POLL_SECONDS` more.
    """
    described = await temporal.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=temporal.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    oldest = datetime.now(UTC) - timedelta(seconds=POLL_SECONDS)
    polls = [
        (poller.last_access_time.ToDatetime(tzinfo=UTC), poller.identity) for poller in described.pollers
    ]
    for at, identity in sorted(polls, reverse=True):
        if at > oldest and not await _announced_end(temporal, queue, identity, at):
            return True
    return False


async def _announced_end(temporal: Client, queue: str, identity: str, polled: datetime) -> bool:
    """All workers of this identity on the queue told the server, after this poll, that they stop.

    Their pollers stay listed. One that has just begun in the same process has the same identity, and is not
    among the workers for a minute.
    """
    name = identity.replace("'", "''")
    query = ListWorkersRequest(namespace=temporal.namespace, query=f"WorkerIdentity = '{name}'")
    try:
        workers = (await temporal.workflow_service.list_workers(query)).workers_info
    except RPCError:
        return False  # a server that keeps no list of workers
    beats = [beat for worker in workers if (beat := worker.worker_heartbeat).task_queue == queue]
    if any(beat.status not in LEAVING for beat in beats):
        return False
    return any(beat.heartbeat_time.ToDatetime(tzinfo=UTC) > polled for beat in beats)


@asynccontextmanager
async def while_alive(server: EmbeddedServer) -> AsyncIterator[None]:
    """Cancel the body when the embedded server dies: it would wait for ever."""
    body = asyncio.current_task()
    assert body is not None
    lost = False

    async def watch() -> None:
        nonlocal lost
        while server.alive():  # noqa: ASYNC110  # another process has no event to wait for
            await asyncio.sleep(0.5)
        lost = True
        body.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except (asyncio.CancelledError, RatchetError):
        if not lost:
            raise
        body.uncancel()
        end = "was stopped (`ratchet down`)" if server.stopped() else f"ended. {server.log_end()}\n"
        raise ServerError(
            f"the embedded server {end}; its runs are interrupted, and `ratchet run --resume` continues them"
        ) from None
    finally:
        watching.cancel()
