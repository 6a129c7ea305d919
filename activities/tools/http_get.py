"""Tool `http_get`: a text from the web, never from the worker's own network."""

from __future__ import annotations

import asyncio
import codecs
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import cache

import httpx2
from pydantic import BaseModel, Field

from activities.addresses import checked_addresses, is_public
from activities.toolbox import Tool, ToolCallContext, TransientError

MAX_BYTES = 4 * 1024 * 1024
MAX_REDIRECTS = 5
CONNECT_SECONDS = 3.0
"""For one address; a name may have more, and not all of them need answer."""
PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Statuses that go away by themselves."""
TEXTUAL = (
    "json",
    "xml",
    "javascript",
    "ecmascript",
    "yaml",
    "toml",
    "csv",
    "x-www-form-urlencoded",
)
FOR_NAMES = ("punycode", "idna")
"""Encodings of host names, whose time grows with the square of the length."""
HEADERS = {
    "User-Agent": "ratchet",
    "Accept": "text/*, application/json",
    "Accept-Encoding": "identity",
}


class Params(BaseModel, frozen=True, extra="forbid"):
    """Fetch a text (a web page, JSON and the like) by HTTP GET; redirects are followed."""

    url: str = Field(max_length=4000, description="Begins with http:// or https://.")
    timeout_seconds: float = Field(default=20, gt=0, le=50, description="For the whole answer.")


class RequestRefused(Exception):
    """A request that is not made, or an answer that is not passed on."""


async def run(params: Params, call: ToolCallContext) -> str:
    """A line with status, type and address, then the text.

    Raises `RequestRefused`, `AddressRefused`, and `TransientError` for what may work later.
    """
    allowed = _any_address if call.settings.http_allow_private else is_public
    try:
        async with asyncio.timeout(params.timeout_seconds):
            return await fetch(params.url, allowed)
    except TimeoutError:
        raise TransientError(
            f"{params.url[:200]} gave no complete answer within {params.timeout_seconds:g} s"
        ) from None


def _any_address(address: str) -> bool:
    return True


async def fetch(address: str, allowed: Callable[[str], bool]) -> str:
    """The text at this address, redirects followed; each host's addresses must be `allowed`."""
    url = _parsed(address)
    for _ in range(MAX_REDIRECTS + 1):
        async with AsyncExitStack() as stack:
            response = await _answer(url, allowed, stack)
            if not response.has_redirect_location:
                return await _read(url, response)
            target = response.headers["location"]
        try:
            url = _checked(url.join(target))
        except (httpx2.InvalidURL, ValueError) as error:
            raise RequestRefused(f"redirected to {target[:200]!r}, no usable address") from error
    raise RequestRefused(f"more than {MAX_REDIRECTS} redirects; the last led to {str(url)[:200]}")


def _parsed(text: str) -> httpx2.URL:
    try:
        url = httpx2.URL(text.strip())
    except (httpx2.InvalidURL, ValueError) as error:
        raise RequestRefused(f"{text[:200]!r} is no usable address: {error}") from None
    return _checked(url)


def _checked(url: httpx2.URL) -> httpx2.URL:
    if url.scheme not in ("http", "https") or not url.host:
        raise RequestRefused(f"{str(url)[:200]!r} does not begin with http:// or https:// and a host")
    if url.port is not None and not 0 < url.port < 65536:
        raise RequestRefused(f"{str(url)[:200]!r} names a port that there is not")
    if url.userinfo:
        raise RequestRefused("an address with a user name or password in it is not used")
    return url


async def _answer(url: httpx2.URL, allowed: Callable[[str], bool], stack: AsyncExitStack) -> httpx2.Response:
    """The answer's head, from the first address that can be connected to.

    The request goes to the address that was checked, with the name in the Host header and in TLS:
    so what a second DNS look-up would say does not matter.
    """
    host, port = url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)
    # A client for each request: connections to one address must not be shared by several names.
    client = await stack.enter_async_context(
        httpx2.AsyncClient(
            verify=_trust(), trust_env=False, timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS)
        )
    )
    failure: Exception | None = None
    for address in await checked_addresses(host, port, allowed):
        request = client.build_request(
            "GET",
            url.copy_with(host=address, fragment=None),
            headers={"Host": url.netloc.decode("ascii"), **HEADERS},
            extensions={"sni_hostname": host},
        )
        try:
            response = await client.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            failure = error
            continue
        stack.push_async_callback(response.aclose)
        return response
    if "CERTIFICATE" in str(failure):
        raise RequestRefused(f"the certificate of {host} is not valid: {failure}")
    why = str(failure) or f"no answer within {CONNECT_SECONDS:g} s"
    raise TransientError(f"cannot connect to {host} port {port}: {why}")


@cache
def _trust() -> ssl.SSLContext:
    return httpx2.create_ssl_context(trust_env=False)


async def _read(url: httpx2.URL, response: httpx2.Response) -> str:
    body, complete = await _body(response)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    head = f"HTTP {response.status_code} {kind or 'no type'} {str(url)[:500]}"
    if response.status_code in PASSING:
        raise TransientError(f"{head}: {_text(response, body)[:300]}")
    if response.status_code >= 400:
        raise RequestRefused(f"{head}: {_text(response, body)[:1000]}")
    if not _is_text(kind, body):
        raise RequestRefused(f"{head}: the answer is no text")
    note = "" if complete else f"\n[cut after {MAX_BYTES:,} bytes]"
    return f"{head}\n\n{_text(response, body)}{note}"


async def _body(response: httpx2.Response) -> tuple[bytes, bool]:
    """At most `MAX_BYTES` of the body, and whether that is all of it."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > MAX_BYTES:
            return bytes(body[:MAX_BYTES]), False
    return bytes(body), True


def _is_text(kind: str, body: bytes) -> bool:
    if kind.startswith("text/") or any(word in kind for word in TEXTUAL):
        return True
    return not kind and b"\0" not in body


def _text(response: httpx2.Response, body: bytes) -> str:
    name = response.charset_encoding or "utf-8"
    try:
        if codecs.lookup(name).name not in FOR_NAMES:
            return body.decode(name, errors="replace")
    except (LookupError, ValueError):  # the server names an encoding that there is not
        pass
    return body.decode(errors="replace")


TOOL = Tool(name="http_get", params=Params, run=run, effect="read")
