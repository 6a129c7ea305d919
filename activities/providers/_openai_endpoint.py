"""Which server a call goes to, with which key, over which connections.

The worker's key goes to one server: `OPENAI_BASE_URL`, or OpenAI itself. A task may name other
servers only if the worker's settings list them, and those are sent a placeholder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import httpx2
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic import SecretStr

from activities.contracts import ModelSpec
from activities.provider import ProviderError
from activities.providers._openai_errors import ReplyTooLarge, Server

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = ["OFFICIAL_URL", "Endpoint", "Endpoints"]

OFFICIAL_URL = "https://api.openai.com/v1"
PLACEHOLDER = "none-needed"
"""Sent where no key belongs; many servers want to see the header."""
PLAIN_HEADERS = frozenset(
    ("accept", "accept-encoding", "authorization", "connection", "content-length", "content-type",
     "host", "idempotency-key", "transfer-encoding", "user-agent", "x-stainless-raw-response")
)  # fmt: skip
"""All that a listed server is sent: the client adds others from the environment (OPENAI_...). The
last one is how the client tells itself, by the request, that a caller wants the raw response."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a call goes, and with which key."""

    url: str
    configured: bool
    key: str = field(repr=False)

    def server(self, model: str) -> Server:
        """What may be said of it in messages."""
        parts = httpx2.URL(self.url)
        secrets = [parts.password, self.key if self.key != PLACEHOLDER else ""]
        shown = str(parts.copy_with(userinfo=b"", query=None, fragment=None))
        return Server(shown, model, tuple(secret for secret in secrets if secret), self.configured)


class Endpoints:
    """The servers that this worker may talk to; one client each per event loop."""

    def __init__(
        self, key: SecretStr | None, base_url: str | None, allowed: Iterable[str], max_reply_bytes: int
    ) -> None:
        self._max_reply_bytes = max_reply_bytes
        self._key = key.get_secret_value().strip() if key else ""
        self._base_url = _normal(base_url, "OPENAI_BASE_URL") if base_url else None
        self._allowed = frozenset(_normal(url, "RATCHET_BASE_URLS") for url in allowed)
        self._clients: WeakKeyDictionary[AbstractEventLoop, dict[Endpoint, AsyncOpenAI]] = WeakKeyDictionary()

    def of(self, spec: ModelSpec) -> Endpoint:
        """The server for a model. Raises a fatal `ProviderError` if it may not be used."""
        configured = self._base_url or OFFICIAL_URL
        wanted = _normal(spec.base_url, "base_url") if spec.base_url else configured
        if wanted != configured:
            if wanted not in self._allowed:
                raise _not_allowed(wanted)
            return Endpoint(wanted, configured=False, key=PLACEHOLDER)
        if not self._key and configured == OFFICIAL_URL:
            raise ProviderError(
                "fatal",
                "no_key",
                f"model {spec.name} needs a key: set OPENAI_API_KEY, or name your own server with "
                "--base-url or OPENAI_BASE_URL (Ollama: http://localhost:11434/v1); "
                "--model scripted needs neither",
            )
        if not (self._key.isascii() and self._key.isprintable() and " " not in self._key):
            raise ProviderError(
                "fatal",
                "no_key",
                "OPENAI_API_KEY holds spaces or characters that no key has; set it again",
            )
        return Endpoint(wanted, configured=True, key=self._key or PLACEHOLDER)

    def client(self, endpoint: Endpoint) -> AsyncOpenAI:
        """The client of the running event loop for a server; it never retries by itself."""
        clients = self._clients.setdefault(asyncio.get_running_loop(), {})
        if endpoint not in clients:
            asked = [] if endpoint.configured else [_keep_plain_headers]
            hooks: dict[str, list[Any]] = {"request": asked, "response": [self._bound]}
            clients[endpoint] = AsyncOpenAI(
                api_key=endpoint.key,
                base_url=endpoint.url,
                max_retries=0,
                http_client=DefaultAsyncHttpxClient(follow_redirects=False, event_hooks=hooks),
            )
        return clients[endpoint]

    async def _bound(self, response: httpx2.Response) -> None:
        response.stream = _Bounded(response, self._max_reply_bytes)

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        for client in self._clients.pop(asyncio.get_running_loop(), {}).values():
            await client.close()


class _Bounded(httpx2.AsyncByteStream):
    """A body that is not read on for ever: a server that never ends would use up the memory."""

    def __init__(self, response: httpx2.Response, limit: int) -> None:
        self._stream, self._limit = response.stream, limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._stream, httpx2.AsyncByteStream)  # the client is an asynchronous one
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > self._limit:
                raise ReplyTooLarge(f"more than {self._limit:,} bytes")
            yield piece

    async def aclose(self) -> None:
        assert isinstance(self._stream, httpx2.AsyncByteStream)
        await self._stream.aclose()


async def _keep_plain_headers(request: httpx2.Request) -> None:
    for name in list(request.headers):
        if name.lower() not in PLAIN_HEADERS:
            del request.headers[name]
    request.headers["Authorization"] = f"Bearer {PLACEHOLDER}"


def _normal(url: str, where: str) -> str:
    """The URL in the one form in which URLs are compared. Raises `ProviderError`."""
    try:
        parsed = httpx2.URL(url.strip())
    except (httpx2.InvalidURL, ValueError):
        parsed = httpx2.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ProviderError(
            "fatal", "bad_base_url", f"{where} is no http(s) URL, such as http://localhost:8000/v1"
        )
    return str(parsed.copy_with(fragment=None)).rstrip("/")


def _not_allowed(url: str) -> ProviderError:
    shown = httpx2.URL(url).copy_with(userinfo=b"", query=None)
    return ProviderError(
        "fatal",
        "base_url_not_allowed",
        f"this worker may not send to {shown}: add it to RATCHET_BASE_URLS (a JSON list) or make "
        "it OPENAI_BASE_URL where the worker runs",
    )
