"""The console's app: its routes, and the server that runs it beside other work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from client.console import agents, inbox, runs
from client.console.page import Console, Handler
from client.console.security import Guard
from client.errors import RatchetError
from client.keys import Signer
from client.sdk.agent import AgentClient
from client.server.ui import LOCAL_NAMES
from client.server.web import serving

__all__ = ["PORT", "build", "serving_console"]

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
        page = console.page(request, "error.html", title=what, status=status, error=detail)
        page.headers.update(getattr(error, "headers", None) or {})
        return page

    routes = [
        route(path, handler, method)
        for module in (inbox, runs, agents)
        for method, path, handler in module.ROUTES
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: lost, 500: lost})
    app.router.redirect_slashes = False  # it knows nothing of the secret path, and leads out of it
    app.mount("/static", StaticFiles(directory=STATIC))
    return Guard(app, names)


@asynccontextmanager
async def serving_console(
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
    ports = (port,) if port is not None else (PORT, 0)
    async with serving("the console", guard, host, ports, "name another address or port") as at:
        yield f"http://{names[0]}:{at}/login?token={guard.token}"
