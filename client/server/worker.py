"""A worker as its settings say: how much it does at a time, how soon it notices things, which build it is."""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import (
    PollerBehaviorAutoscaling,
    ResourceBasedSlotConfig,
    Worker,
    WorkerDeploymentConfig,
    WorkerTuner,
)

from activities.settings import Settings
from workflows.api import TASK_QUEUE

__all__ = ["build_worker"]


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
