"""Exits with 0 when the worker on this host asks Temporal for work, else with 1 and the reason.

A container's health check. A worker that hangs or lost its server stops polling, although its process still
exists: so the server is asked who polls. A worker's identity ends in the name of its host, and each container
has its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig

from workflows.api import TASK_QUEUE

FRESH = timedelta(seconds=150)
"""A poll lasts up to a minute, so a worker that was silent for longer than this hangs."""
PATIENCE = 10
"""Seconds that the server has to answer."""


async def problem(host: str, queue: str = TASK_QUEUE) -> str | None:
    """What is wrong with the worker on `host`, in words; None when it polls `queue`."""
    connect = ClientConfig.load_client_connect_config()
    connect.setdefault("target_host", "localhost:7233")
    try:
        async with asyncio.timeout(PATIENCE):
            client = await Client.connect(**connect)
            pollers = await _pollers(client, queue)
    except TimeoutError:
        return f"the Temporal server did not answer within {PATIENCE} s"
    except RuntimeError as error:  # RPCError and the failure to connect
        return f"the Temporal server cannot be asked: {error}"
    if not polls(pollers, host, datetime.now(UTC)):
        return f"no worker on host {host} polls the task queue {queue}"
    return None


def polls(pollers: Iterable[PollerInfo], host: str, now: datetime) -> bool:
    """One of the pollers is on `host` and polled lately."""
    return any(
        poller.identity.endswith(f"@{host}") and now - poller.last_access_time.ToDatetime(tzinfo=UTC) < FRESH
        for poller in pollers
    )


async def _pollers(client: Client, queue: str) -> list[PollerInfo]:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    answer = await client.workflow_service.describe_task_queue(request)
    return list(answer.pollers)


def main() -> None:
    """Print what is wrong, if anything is, and exit."""
    found = asyncio.run(problem(socket.gethostname()))
    if found is not None:
        sys.stderr.write(f"unhealthy: {found}\n")
        sys.stderr.flush()
    os._exit(0 if found is None else 1)  # the SDK's threads can abort the interpreter's own exit


if __name__ == "__main__":
    main()
