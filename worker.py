"""The worker: connect, check, register, run until it is stopped. `python worker.py`

It connects by Temporal's own configuration (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, profiles) and is
configured by RATCHET_... (see `activities/settings.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta

from temporalio.client import Client
from temporalio.worker import PollerBehaviorAutoscaling, ResourceBasedSlotConfig, Worker, WorkerTuner

from activities.extensions import ExtensionError
from activities.logs import configure
from activities.settings import Settings
from client.connection import open_client, remote_config
from client.errors import RatchetError, clear_errors
from client.namespace import missing_attributes
from client.workerconfig import settings_from_environment
from workflows.api import TASK_QUEUE

__all__ = ["build_worker", "main"]


def build_worker(client: Client, settings: Settings, queue: str = TASK_QUEUE) -> Worker:
    """A worker on a task queue; the client must carry `RatchetPlugin`. Use with `async with`."""
    return Worker(
        client,
        task_queue=queue,
        tuner=_tuner(settings),
        max_cached_workflows=settings.max_cached_runs,
        # as many as the server advises: five, the SDK's default, are few where a poll crosses a network
        workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
        activity_task_poller_behavior=PollerBehaviorAutoscaling(),
        # a cancellation and the text so far travel with heartbeats: by default 8 s late
        max_heartbeat_throttle_interval=timedelta(seconds=1),
        default_heartbeat_throttle_interval=timedelta(seconds=1),
        # after this time without its worker a run is offered to the others; by default 10 s
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=3),
        graceful_shutdown_timeout=timedelta(seconds=settings.shutdown_seconds),
    )


def _tuner(settings: Settings) -> WorkerTuner:
    """How much the worker does at a time."""
    tasks, calls = settings.max_workflow_tasks, settings.max_activities
    if settings.target_memory is None and settings.target_cpu is None:
        return WorkerTuner.create_fixed(workflow_slots=tasks, activity_slots=calls)
    return WorkerTuner.create_resource_based(
        target_memory_usage=settings.target_memory or 0.8,
        target_cpu_usage=settings.target_cpu or 0.9,
        workflow_config=ResourceBasedSlotConfig(minimum_slots=min(5, tasks), maximum_slots=tasks),
        # above the minimum the SDK begins one call in 50 ms, which would slow down small tools
        activity_config=ResourceBasedSlotConfig(minimum_slots=min(20, calls), maximum_slots=calls),
    )


async def run(settings: Settings) -> None:
    """Work until SIGTERM or SIGINT.

    Raises:
        RatchetError: the server does not answer, or its namespace lacks search attributes.
    """
    config = remote_config() or remote_config("localhost:7233") or {}
    client = await open_client(settings, config)
    async with clear_errors(config["target_host"]):
        missing = await missing_attributes(client)
    if missing:
        raise RatchetError(
            f"the namespace {client.namespace} lacks the search attributes {', '.join(missing)}; "
            "register them with `ratchet doctor --fix`, then start the worker again"
        )
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with build_worker(client, settings):
        await stop.wait()


def main() -> None:
    """Entry point of `python worker.py`."""
    code = 0
    try:
        settings = settings_from_environment()
        configure(settings)
        asyncio.run(run(settings))
    except (RatchetError, ExtensionError, OSError, ValueError) as error:
        sys.stderr.write(f"worker: {error}\n")
        code = 1
    sys.stderr.flush()
    os._exit(code)  # the SDK's threads can abort the interpreter's own exit (sdk-python issue 300)


if __name__ == "__main__":
    main()
