"""Monitoring of a worker of this process: what its activities report, and what Temporal itself knows."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import structlog
from temporalio.client import Client, WorkflowExecution
from temporalio.common import SearchAttributeKey
from temporalio.runtime import LoggingConfig, PrometheusConfig, Runtime, TelemetryConfig

from activities.settings import Settings
from activities.telemetry.report import Telemetry, telemetry_of
from client.errors import UsageError
from client.runs.listing import list_filter

if TYPE_CHECKING:
    from activities.telemetry.metrics import Metrics

__all__ = ["set_runtime", "showing_waiting", "worker_telemetry"]

WAITING = SearchAttributeKey.for_keyword("AgentWaiting")
SINCE = SearchAttributeKey.for_datetime("AgentWaitingSince")
PAUSE_SECONDS = 10
"""Seconds between two looks at what waits for people."""

log = structlog.get_logger("ratchet")


def worker_telemetry(settings: Settings) -> Telemetry:
    """What the settings turn on. Raises UsageError."""
    from client.cassette.secrets import secrets_of_environment, without_secrets

    def redact(texts: dict[str, Any]) -> dict[str, Any]:
        return without_secrets(texts, known=secrets_of_environment())[0]

    try:
        return telemetry_of(settings, redact)
    except ValueError as error:
        raise UsageError(str(error)) from error


@contextmanager
def showing_waiting(client: Client, metrics: Metrics) -> Iterator[None]:
    """Meanwhile metrics say what waits for people."""
    watching = asyncio.create_task(_watch(client, metrics))
    try:
        yield
    finally:
        watching.cancel()


async def _watch(client: Client, metrics: Metrics) -> None:
    """Show what waits for people, as Temporal's lists know it: the same for each worker of a namespace."""
    while True:
        try:
            query = list_filter(running=True, waiting=True)
            found = [run async for run in client.list_workflows(query)]
            metrics.show_waiting(map(_waiting_of, found))
        except Exception as error:  # noqa: BLE001  # the server may be away for a while
            log.info("metrics.not_read", error=str(error))
        await asyncio.sleep(PAUSE_SECONDS)


def _waiting_of(run: WorkflowExecution) -> tuple[str, float]:
    """What a run waits for, and since when, in seconds since 1970."""
    found = run.typed_search_attributes
    return found.get(WAITING, ""), (found.get(SINCE) or run.start_time).timestamp()


def set_runtime(settings: Settings, logging: LoggingConfig | None = None) -> None:
    """Set how Temporal's core logs. Where metrics are on, the core serves its own at the next higher port,
    and ours include them. Call this before a client connects."""
    metrics = None
    if settings.metrics_address is not None:
        address = ("127.0.0.1", settings.metrics_address[1] + 1)
        with suppress(OSError), socket.create_server(address):  # another worker of this host may have it
            metrics = PrometheusConfig(
                bind_address="{}:{}".format(*address),
                counters_total_suffix=True,
                unit_suffix=True,
                durations_as_seconds=True,
            )
    if logging is not None or metrics is not None:
        telemetry = TelemetryConfig(logging=logging or LoggingConfig.default, metrics=metrics)
        Runtime.set_default(Runtime(telemetry=telemetry), error_if_already_set=False)
