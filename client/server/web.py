"""How this process serves web pages and requests beside its other work: the console, and the codec server.

Each app has its own guard, which begins with `check_page` (`client/server/ui.py`). What all of them bound is
here: how long a connection may stay silent, and how long and how large a request's body may be.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from client.errors import UsageError

__all__ = ["CLOSE", "body_of", "fields_of", "serving"]

SILENT_SECONDS, BODY_SECONDS = 30, 30
"""How long a connection may send nothing before its request has come; how long a whole body may take."""
MAX_WAITING_CONNECTIONS = 100
"""Connections that wait to be accepted."""
CLOSE = {"connection": "close"}
"""Of an answer to a request whose body is not read."""


class _Server(uvicorn.Server):
    """Beside other work of the process, whose own handlers take Ctrl-C."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(H11Protocol):
    """uvicorn's own, which waits for a request without end unless there was one on the connection before."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._end_if_silent()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.timeout_keep_alive_task is None and (self.cycle is None or self.cycle.response_complete):
            self._end_if_silent()  # only a part of a request's head has come

    def _end_if_silent(self) -> None:
        handler, seconds = self.timeout_keep_alive_handler, self.timeout_keep_alive
        self.timeout_keep_alive_task = self.loop.call_later(seconds, handler)


@asynccontextmanager
async def serving(
    what: str,
    app: ASGIApp,
    host: str,
    ports: Sequence[int],
    advice: str,
    silent_seconds: int = SILENT_SECONDS,
) -> AsyncIterator[int]:
    """Serve the app during the body, at the first of these ports that is free (0 is any); gives the port.

    A connection is closed when it sends nothing for `silent_seconds` while no request is answered.

    Raises:
        UsageError: the address cannot be used; `what` and `advice` are parts of the message.
    """
    listener = _listener(what, host, ports, advice)
    config = uvicorn.Config(
        app, http=_Protocol, log_config=None, log_level="warning", access_log=False, lifespan="off",
        ws="none", proxy_headers=False, server_header=False, timeout_graceful_shutdown=1,
        timeout_keep_alive=silent_seconds,
    )  # fmt: skip
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


def _listener(what: str, host: str, ports: Sequence[int], advice: str) -> socket.socket:
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(MAX_WAITING_CONNECTIONS)
        except OSError as error:
            listener.close()
            problem = error
        else:
            return listener
    raise UsageError(f"{what} cannot listen at {host}:{ports[0]}: {problem.strerror or problem}; {advice}")


def fields_of(scope: Scope) -> list[tuple[str, str]]:
    """The header fields of a request, names in lower case."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]


async def body_of(request: Request, most: int, seconds: float = BODY_SECONDS) -> bytes:
    """The body of a request.

    Raises:
        HTTPException: it is longer than `most` bytes, or takes too long.
    """
    too_long = HTTPException(413, f"a request has at most {most:,} bytes", CLOSE)
    if int(request.headers.get("content-length", 0)) > most:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise too_long
    except TimeoutError:
        raise HTTPException(408, "the request takes too long", CLOSE) from None
    return bytes(body)
