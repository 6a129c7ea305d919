"""Connecting: Temporal's own configuration, else the embedded server; and a worker of our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.envconfig import ClientConfig

from activities.settings import Settings
from client.agent import AgentClient
from client.archived import ArchivedRuns
from client.errors import RatchetError, ServerError, UsageError
from client.rpc import unreachable
from client.server import EmbeddedServer, Ports
from client.workerconfig import load_settings

__all__ = ["connected", "remote_config", "working"]

CONNECT_TIMEOUT = timedelta(seconds=10)


def remote_config(
    address: str | None = None, namespace: str | None = None, profile: str | None = None
) -> dict[str, Any] | None:
    """How to connect to a server elsewhere; None when none is named, so that ours is used.

    Raises:
        UsageError: Temporal's configuration file cannot be read.
    """
    try:
        config: dict[str, Any] = dict(ClientConfig.load_client_connect_config(profile))
    except Exception as error:  # the loader raises plain RuntimeErrors
        raise UsageError(f"Temporal's configuration cannot be read: {error}") from error
    if address is not None:
        config["target_host"] = address
    if namespace is not None:
        config["namespace"] = namespace
    return config if config.get("target_host") else None


@asynccontextmanager
async def connected(
    *,
    settings: Settings | None = None,
    remote: dict[str, Any] | None = None,
    ports: Ports | None = None,
    worker: bool = False,
) -> AsyncIterator[AgentClient]:
    """A client of the server in `remote` (default: `remote_config()`), else of the embedded one.

    Args:
        settings: data directory, tools and servers; default: from the environment, with what was
            named for earlier runs of the directory, so that they can go on.
        ports: of the embedded server.
        worker: run a worker in this process for as long as the client is open.

    Raises:
        UsageError: the address is none.
        Unreachable: the server does not answer.
        ServerError: the embedded server does not start.
    """
    settings = settings or load_settings()
    remote = remote or remote_config()
    async with AsyncExitStack() as stack:
        server: EmbeddedServer | None = None
        if remote is None:
            server = await stack.enter_async_context(
                await EmbeddedServer.attach(settings.data_dir, ports or Ports())
            )
            await stack.enter_async_context(_while_alive(server))
        where = server.address if server else str((remote or {})["target_host"])
        temporal = await _client(settings, where, remote or {"target_host": where})
        agents = AgentClient(
            temporal,
            ArchivedRuns(settings.data_dir / "archive.db"),
            ui=server.ui if server else None,
            where=where,
        )
        if worker:
            await stack.enter_async_context(working(agents, settings))
        yield agents


async def _client(settings: Settings, where: str, config: dict[str, Any]) -> Client:
    from client.plugin import connect

    try:
        return await connect(settings, connect_timeout=CONNECT_TIMEOUT, **config)
    except ValueError as error:
        raise UsageError(
            f"{where!r} is no address of a Temporal server: {error}; expected HOST:PORT "
            "(TEMPORAL_ADDRESS, --address, profile)"
        ) from error
    except RuntimeError as error:
        raise unreachable(where, str(error)) from error


@asynccontextmanager
async def working(agents: AgentClient, settings: Settings) -> AsyncIterator[None]:
    """A worker in this process."""
    from worker import build_worker

    # A person waits at the terminal: calls in flight get a moment to end, not half a minute.
    async with build_worker(agents.temporal, settings.model_copy(update={"shutdown_seconds": 5})):
        agents.worker_here = True
        try:
            yield
        finally:
            agents.worker_here = False


@asynccontextmanager
async def _while_alive(server: EmbeddedServer) -> AsyncIterator[None]:
    """Stop what is inside when the embedded server dies, instead of letting it wait for ever."""
    inside = asyncio.current_task()
    lost = False

    async def look() -> None:
        nonlocal lost
        while server.alive():  # noqa: ASYNC110  # another process has no event to wait for
            await asyncio.sleep(0.5)
        lost = True
        if inside is not None:
            inside.cancel()

    looking = asyncio.create_task(look())
    try:
        yield
    except (asyncio.CancelledError, RatchetError):
        if not lost:
            raise
        stopped = server.stopped()
        how = "was stopped (`ratchet down`)" if stopped else "has ended"
        raise ServerError(
            f"the embedded server {how}; runs that were going on are interrupted, and "
            f"`ratchet run --resume` goes on with them{'' if stopped else f'. {server.log_end()}'}"
        ) from None
    finally:
        looking.cancel()
