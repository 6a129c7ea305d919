"""The worker: connect, check, register, run until told to stop. `python worker.py`

It connects by Temporal's own configuration (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, profiles) and is
configured by RATCHET_... (see `activities/settings.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta

from pydantic import ValidationError
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.extensions import ExtensionError
from activities.logs import configure
from activities.settings import Settings
from client.namespace import missing_attributes
from client.plugin import connect
from workflows.api import TASK_QUEUE

__all__ = ["build_worker", "main"]


def build_worker(client: Client, settings: Settings) -> Worker:
    """A worker on the queue `ratchet`; the client must carry `RatchetPlugin`. Use with `async with`."""
    return Worker(
        client,
        task_queue=TASK_QUEUE,
        # A cancellation and the text so far travel with heartbeats: by default 8 s late.
        max_heartbeat_throttle_interval=timedelta(seconds=1),
        default_heartbeat_throttle_interval=timedelta(seconds=1),
        # A run whose worker died is offered to the others after so long; by default after 10 s.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=3),
        graceful_shutdown_timeout=timedelta(seconds=settings.shutdown_seconds),
    )


async def run(settings: Settings) -> int:
    """Work until SIGTERM or SIGINT; gives the exit code."""
    try:
        config = {"target_host": "localhost:7233", **ClientConfig.load_client_connect_config()}
    except RuntimeError as error:
        return _refuse(f"Temporal's configuration (TEMPORAL_..., temporal.toml) is unusable: {error}")
    try:
        client = await connect(settings, **config)
    except RuntimeError as error:
        return _refuse(f"the Temporal server at {config['target_host']} does not answer: {error}")
    missing = await missing_attributes(client)
    if missing:
        return _refuse(
            f"the namespace {client.namespace} lacks the search attributes {', '.join(missing)}; "
            "register them with `ratchet doctor --fix`, then start the worker again"
        )
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with build_worker(client, settings):
        await stop.wait()
    return 0


def _refuse(problem: str) -> int:
    sys.stderr.write(f"worker: {problem}\n")
    return 1


def main() -> None:
    """Entry point of `python worker.py`."""
    try:
        settings = Settings()
        configure(settings)
        code = asyncio.run(run(settings))
    except (ValidationError, ExtensionError, RPCError, OSError, ValueError) as error:
        code = _refuse(str(error))
    sys.stderr.flush()
    os._exit(code)  # the SDK's threads can abort the interpreter's own exit (sdk-python issue 300)


if __name__ == "__main__":
    main()
