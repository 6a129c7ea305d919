"""The worker: connect, check, register, run until it is stopped. `python -m ratchet.worker`

It connects by Temporal's own configuration (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, profiles) and is
configured by RATCHET_... (see `activities/settings.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import structlog
from temporalio.worker import Worker

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
from client.server.worker import build_worker
from client.server.workerconfig import settings_from_environment

__all__ = ["build_worker", "main"]

FIRST_PAUSE, LONGEST_PAUSE = 1, 30
"""Seconds between tries to reach the server; each pause is twice the one before."""

log = structlog.get_logger("ratchet")


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
    """Entry point of `python -m ratchet.worker`."""
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
