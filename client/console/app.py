"""The console's app: its routes, and the server that runs it beside other work."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from client.console import catalog, inbox, runs
from client.console.page import Console, Handler
from client.console.security import Guard
from client.errors import RatchetError, UsageError
from client.keys import Signer
from client.sdk.agent import AgentClient
from client.server.ui import LOCAL_NAMES

__all__ = ["PORT", "build", "serving"]

PORT = 8260
"""Of the console, if it is free and none is named."""
STATIC = Path(__file__).parent / "static"


def build(console: Console, names: Sequence[str] = LOCAL_NAMES) -> Guard:
    """The app behind its guard."""

    def route(path: str, handler: Handler, method: str = "GET") -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return await handler(console, request)
            except RatchetError as error:
                return console.failure(request, error)

        return Route(path, endpoint, methods=[method])

    async def lost(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if request.url.path.startswith("/static/"):  # open to all: no name, no note
            return Response(status_code=status)
        what = "There is no such page" if status == 404 else "The console cannot do that"
        detail = error.detail if isinstance(error, HTTPException) else "An unexpected error; the log has it."
        return console.page(request, "error.html", title=what, status=status, error=detail)

    routes = [
        route(path, handler, method)
        for module in (inbox, runs, catalog)
        for method, path, handler in module.ROUTES
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: lost, 500: lost})
    app.mount("/static", StaticFiles(directory=STATIC))
    return Guard(app, names)


class _Server(uvicorn.Server):
    """Beside other work of the process, whose own handlers take Ctrl-C."""

    @contextmanager
    def capture_signals(self) -> Any:
        yield


@asynccontextmanager
async def serving(
    agents: AgentClient, signer: Signer, *, host: str = "127.0.0.1", port: int | None = None,
    names: Sequence[str] = LOCAL_NAMES,
) -> AsyncIterator[str]:  # fmt: skip
    """Serve the console meanwhile; gives the link that opens it.

    Args:
        host: address to listen at.
        port: default: 8260, else one that is free.
        names: under which browsers reach it; the link names the first.

    Raises:
        UsageError: the address cannot be used.
    """
    guard = build(Console(agents, signer), names)
    listener = _listener(host, port)
    config = uvicorn.Config(
        guard, log_config=None, log_level="warning", access_log=False, lifespan="off", ws="none",
        proxy_headers=False, server_header=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://{names[0]}:{listener.getsockname()[1]}/login?token={guard.token}"
    finally:
        server.should_exit = True
        await task


def _listener(host: str, port: int | None) -> socket.socket:
    for choice in (port,) if port is not None else (PORT, 0):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, choice))
        except OSError as error:
            listener.close()
            problem = error
        else:
            return listener
    raise UsageError(
        f"the console cannot listen at {host}:{port or PORT}: {problem.strerror or problem}; name another "
        "address or port"
    )
