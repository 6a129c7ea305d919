"""Tool `http_get`: a text from the web, never from the worker's own network."""

from __future__ import annotations

import asyncio
import codecs
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv4Address, ip_address, ip_network
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from activities.tools import Tool, ToolCallContext, TransientError
from activities.trust import trusted

if TYPE_CHECKING:
    import httpx2

MAX_BYTES = 4 * 2**20
MAX_REDIRECTS = 5
CONNECT_SECONDS = 3.0
"""For one address. A name may have several, and not each of them answers."""
TRANSIENT_STATUS = (408, 425, 429, 500, 502, 503, 504)
TEXTUAL = ("json", "xml", "javascript", "ecmascript", "yaml", "toml", "csv", "x-www-form-urlencoded")
FOR_HOST_NAMES = ("punycode", "idna")
"""Encodings whose time grows with the square of the length."""
HEADERS = {"User-Agent": "ratchet", "Accept": "text/*, application/json", "Accept-Encoding": "identity"}

Resolver = Callable[[str, int], Awaitable[Iterable[str]]]
"""From a host name and a port to addresses; raises `OSError` or `ValueError`."""


class Params(BaseModel, frozen=True, extra="forbid"):
    """Fetch a text (a web page, JSON and the like) by HTTP GET; redirects are followed."""

    url: str = Field(max_length=4000, description="Begins with http:// or https://.")
    timeout_seconds: float = Field(default=20, gt=0, le=50, description="For the whole answer.")


class RequestRefused(Exception):
    """A request that is not made, or an answer that is not passed on."""


# -- which addresses a tool may connect to --------------------------------------------------------------


def any_address(address: str) -> bool:
    """Allows every address, private ones too."""
    return True


NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24", "192.88.99.0/24",  # protocol assignments, 6to4 relays
            "::/96", "64:ff9b:1::/48", "2001::/23", "2002::/16",  # carry IPv4, and the like
            "100::/64", "100:0:0:1::/64", "3fff::/20", "5f00::/16", "fec0::/10",
        ),
    )
)  # fmt: skip
"""Of the IANA special-purpose registries, what `is_global` lets through in some version of Python."""
NAT64 = ip_network("64:ff9b::/96")
"""RFC 6052: an IPv6-only network with DNS64 reaches the IPv4 address at the end by it."""


def is_public(address: str) -> bool:
    """Whether the address, in its canonical text form, belongs to the public Internet.

    False for private, loopback, link-local, multicast, reserved and unspecified addresses, and for
    IPv6 addresses that carry an IPv4 address: that could be a private one. Of NAT64's it is judged.
    """
    ip = ip_address(address)
    if ip in NAT64:
        ip = IPv4Address(ip.packed[-4:])
    if not ip.is_global or ip.is_multicast or ip.is_reserved or ip.is_unspecified:
        return False
    if any(ip in network for network in NOT_PUBLIC):
        return False
    return isinstance(ip, IPv4Address) or ip.ipv4_mapped is None


async def looked_up(host: str, port: int) -> list[str]:
    """The addresses that the system's resolver gives."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def checked_addresses(
    host: str, port: int, allowed: Callable[[str], bool] = is_public, resolve: Resolver = looked_up
) -> tuple[str, ...]:
    """The addresses of a host name, in the order to be tried.

    The caller connects to these very addresses: a second look-up could give others. Raises
    `RequestRefused` if a single one of them is not allowed, and `TransientError` if DNS is down.
    """
    try:
        addresses = tuple(dict.fromkeys(await resolve(host, port)))
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise TransientError(f"the name {host} cannot be looked up at the moment") from error
        raise RequestRefused(f"no such host: {host} ({error.strerror})") from None
    except (UnicodeError, OverflowError) as error:
        raise RequestRefused(f"{host[:80]!r} port {port} is not a usable address: {error}") from None
    refused = [address for address in addresses if not allowed(address)]
    if refused:
        raise RequestRefused(
            f"{host} is {refused[0]}, which is not a public address; "
            "the worker's setting RATCHET_HTTP_ALLOW_PRIVATE=true would allow it"
        )
    return addresses


# -- one request -----------------------------------------------------------------------------------------


async def run(params: Params, call: ToolCallContext) -> str:
    """A line with status, type and address, then the text.

    Raises `RequestRefused`, and `TransientError` for what may work later.
    """
    allowed = any_address if call.settings.http_allow_private else is_public
    try:
        async with asyncio.timeout(params.timeout_seconds):
            return await fetch(params.url, allowed)
    except TimeoutError:
        raise TransientError(
            f"{params.url[:200]} gave no complete answer within {params.timeout_seconds:g} s"
        ) from None


async def fetch(url: str, allowed: Callable[[str], bool], resolve: Resolver = looked_up) -> str:
    """The text at this address, redirects followed; each host's addresses must be `allowed`."""
    import httpx2

    try:
        async with (
            httpx2.AsyncClient(
                transport=_checked_transport(allowed, resolve),
                headers=HEADERS,
                trust_env=False,
                follow_redirects=True,
                max_redirects=MAX_REDIRECTS,
            ) as client,
            client.stream("GET", url.strip()) as response,
        ):
            return await _read(response)
    except httpx2.TooManyRedirects:
        raise RequestRefused(f"{url[:200]}: more than {MAX_REDIRECTS} redirects") from None
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, ValueError) as error:
        raise RequestRefused(f"{url[:200]!r} is or leads to an unusable address: {error}") from None


def _check(url: httpx2.URL) -> None:
    if url.userinfo:
        raise RequestRefused("addresses with a user name or password are not used")
    if url.scheme not in ("http", "https") or not url.host:
        raise RequestRefused(f"{str(url)[:200]!r} does not begin with http:// or https:// and a host")
    if url.port is not None and not 0 < url.port < 65536:
        raise RequestRefused(f"{str(url)[:200]!r} has an impossible port")


def _checked_transport(allowed: Callable[[str], bool], resolve: Resolver) -> httpx2.AsyncBaseTransport:
    import httpx2

    class CheckedTransport(httpx2.AsyncHTTPTransport):
        """Sends each request, those after redirects too, to an address that was checked.

        The name goes into the Host header and into TLS, so the answer to a second DNS look-up does
        not matter. Connections are not kept: two names at one address must not share them.
        """

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            _check(request.url)
            host = request.url.raw_host.decode("ascii")
            port = request.url.port or (443 if request.url.scheme == "https" else 80)
            failure: Exception | None = None
            for address in await checked_addresses(host, port, allowed, resolve):
                pinned = httpx2.Request(
                    request.method,
                    request.url.copy_with(host=address, fragment=None),
                    headers=request.headers,
                    extensions={
                        "sni_hostname": host,
                        "timeout": httpx2.Timeout(None, connect=CONNECT_SECONDS).as_dict(),
                    },
                )
                try:
                    return await super().handle_async_request(pinned)
                except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                    failure = error
            if "CERTIFICATE" in str(failure):
                raise RequestRefused(f"the certificate of {host} is not valid: {failure}")
            reason = str(failure) or f"no answer within {CONNECT_SECONDS:g} s"
            raise TransientError(f"cannot connect to {host} port {port}: {reason}")

    return CheckedTransport(
        verify=trusted(environment=False), trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0)
    )


async def _read(response: httpx2.Response) -> str:
    body, note = bytearray(), ""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):  # a small answer could unpack to any size
        raise RequestRefused(f"the answer is compressed by {encoding[:80]!r}, which was not asked for")
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MAX_BYTES:
            del body[MAX_BYTES:]
            note = f"\n[cut after {MAX_BYTES:,} bytes]"
            break
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    head = f"HTTP {response.status_code} {kind or 'no type'} {str(response.url)[:500]}"
    text = _decode(body, response.charset_encoding or "utf-8")
    if response.status_code in TRANSIENT_STATUS:
        raise TransientError(f"{head}: {text[:300]}")
    if response.status_code >= 400:
        raise RequestRefused(f"{head}: {text[:1000]}")
    textual = kind.startswith("text/") or any(word in kind for word in TEXTUAL)
    if not textual and (kind or b"\0" in body):
        raise RequestRefused(f"{head}: the answer is not text")
    return f"{head}\n\n{text}{note}"


def _decode(body: bytearray, encoding: str) -> str:
    try:
        if codecs.lookup(encoding).name in FOR_HOST_NAMES:
            encoding = "utf-8"
        return body.decode(encoding, errors="replace")
    except (LookupError, ValueError):  # the server names an encoding that does not exist
        return body.decode(errors="replace")


TOOL = Tool(
    name="http_get",
    params=Params,
    run=run,
    effect="read",
    brings=("untrusted",),
    sends="external",
)
