"""A connection to an MCP server over HTTP: bounded answers, and what became of each request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx2

from activities.trust import trusted

__all__ = ["Sent", "http_client", "sent"]

CONNECT_SECONDS = 15.0


@dataclass(slots=True)
class Sent:
    """What became of the requests of one call; the SDK's errors do not say it."""

    problem: str = ""
    refused: bool = False
    """The server cannot have taken the call: nobody listens, or it answered with a status 4xx."""


sent: ContextVar[Sent | None] = ContextVar("sent", default=None)
"""Of the call that is under way in this task; the SDK sends its requests in the same context."""


def http_client(headers: Mapping[str, str], max_bytes: int) -> httpx2.AsyncClient:
    """A client whose answers are bounded; how long one may take is up to the caller."""
    return httpx2.AsyncClient(
        transport=_Watched(max_bytes),
        headers={"Accept-Encoding": "identity", **headers},
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
    )


class _Watched(httpx2.AsyncHTTPTransport):
    """Notes what became of each request, and bounds what it brings."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(verify=trusted())
        self.max_bytes = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """See httpx2."""
        made = sent.get() or Sent()
        if request.method != "POST":  # a broken answer is taken up again: the server has had the call
            made = Sent()
        try:
            response = await super().handle_async_request(request)
        except httpx2.TransportError as error:
            made.problem = str(error) or type(error).__name__
            made.refused = isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
            raise
        if response.status_code >= 400:
            made.problem = f"it answered with HTTP status {response.status_code}"
            made.refused = response.status_code < 500
        # a small compressed answer could unpack to any size, and was not asked for
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            await response.aclose()
            made.problem = "its answer is compressed, which was not asked for"
            raise httpx2.ReadError(made.problem)
        # each event of a stream is bounded by the SDK; a stream itself may go on for ever
        if "event-stream" not in response.headers.get("content-type", ""):
            response.stream = _Bounded(response.stream, self.max_bytes, made)
        return response


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, limit: int, made: Sent) -> None:
        self.stream, self.limit, self.made = stream, limit, made

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self.stream:
            size += len(piece)
            if size > self.limit:
                self.made.problem = f"its answer has more than {self.limit:,} bytes"
                raise httpx2.ReadError(self.made.problem)
            yield piece

    async def aclose(self) -> None:
        await self.stream.aclose()
