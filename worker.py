"""The worker: connect, check, register, run until it is stopped. `python worker.py`

It connects by Temporal's own configuration (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, profiles) and is
configured by RATCHET_... (see `activities/settings.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import structlog
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import (
    PollerBehaviorAutoscaling,
    ResourceBasedSlotConfig,
    Worker,
    WorkerDeploymentConfig,
    WorkerTuner,
)

from activities.extensions import ExtensionError
from activities.logs import configure
from activities.settings import Settings
from activities.store.blobs import StoreError
from client.agents.catalog import Catalog
from client.errors import RatchetError, Unreachable, clear_errors, unreachable
from client.server.connection import open_client
from client.server.namespace import missing_attributes
from client.server.remote import remote_config
from client.server.telemetry import set_runtime
from client.server.workerconfig import settings_from_environment
from workflows.api import TASK_QUEUE

__all__ = ["build_worker", "main"]

FIRST_PAUSE, LONGEST_PAUSE = 1, 30
"""Seconds between tries to reach the server; each pause is twice the one before."""

log = structlog.get_logger(__name__)


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
        deployment_config=_deployment(settings),
    )


def _deployment(settings: Settings) -> WorkerDeploymentConfig | None:
    """Which build the worker is (docs/versions.md); None: any worker may take its runs."""
    if settings.build_id is None:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(settings.deployment, settings.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior[settings.versioning.upper()],
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
    """Work until SIGTERM or SIGINT. A server that does not answer is waited for.

    Raises:
        RatchetError: the server refuses the worker, or its namespace lacks search attributes.
    """
    config = remote_config() or remote_config("localhost:7233") or {}
    stop, pause = asyncio.Event(), FIRST_PAUSE
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    stopping = asyncio.create_task(stop.wait())
    while not stop.is_set():
        starting = asyncio.create_task(_start(settings, config))
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            break
        try:
            worker, running = starting.result()
        except Unreachable as error:
            log.warning("worker.waiting", reason=str(error), seconds=pause)
            await asyncio.wait({stopping}, timeout=pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await worker.shutdown()
            await running
            break


async def _start(settings: Settings, config: Mapping[str, Any]) -> tuple[Worker, asyncio.Task[None]]:
    """A worker that has started, and the task in which it runs.

    Raises:
        RatchetError: as `run`; Unreachable: the server does not answer.
    """
    where = str(config["target_host"])
    client = await open_client(settings, dict(config))
    async with clear_errors(where):
        missing = await missing_attributes(client)
    if missing:
        raise RatchetError(
            f"the namespace {client.namespace} lacks the search attributes {', '.join(missing)}; "
            "register them with `ratchet doctor --fix`, then start the worker again"
        )
    worker = build_worker(client, settings)
    running = asyncio.create_task(worker.run())
    try:
        while not (worker.is_running or running.done()):  # noqa: ASYNC110  # the SDK has no event for it
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        running.cancel()
        raise
    if running.done():
        async with clear_errors(where):
            try:
                running.result()
            except RuntimeError as error:  # of the SDK's core, which looks for the namespace first
                raise unreachable(where, str(error)) from error
    found = Catalog.load(settings)
    log.info(
        "worker.started",
        server=where,
        namespace=client.namespace,
        task_queue=worker.task_queue,
        machines=[machine.name for machine in found.machines],
        tools=[tool.name for tool in found.tools],
    )
    return worker, running


def main() -> None:
    """Entry point of `python worker.py`."""
    code = 0
    try:
        settings = settings_from_environment()
        configure(settings)
        set_runtime(settings)
        asyncio.run(run(settings))
    except (RatchetError, StoreError, ExtensionError, OSError, ValueError) as error:
        sys.stderr.write(f"worker: {error}\n")
        code = 1
    sys.stderr.flush()
    os._exit(code)  # the SDK's threads can abort the interpreter's own exit (sdk-python issue 300)


if __name__ == "__main__":
    main()
