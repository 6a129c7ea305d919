"""Which network addresses a tool may connect to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import IPv4Address, ip_address

from activities.tools import TransientError

__all__ = ["AddressRefused", "Resolver", "any_address", "checked_addresses", "is_public", "looked_up"]

Resolver = Callable[[str, int], Awaitable[Iterable[str]]]
"""From a host name and a port to addresses; raises `OSError` or `ValueError`."""


class AddressRefused(Exception):
    """A host that does not exist, or that a tool must not reach."""


def any_address(address: str) -> bool:
    """Allows every address, private ones too."""
    return True


def is_public(address: str) -> bool:
    """Whether the address, in its canonical text form, belongs to the public Internet.

    False for private, loopback, link-local, multicast, reserved and unspecified addresses, and for
    IPv6 addresses that carry an IPv4 address: that could be a private one.
    """
    ip = ip_address(address)
    if not ip.is_global or ip.is_multicast or ip.is_reserved or ip.is_unspecified:
        return False
    if isinstance(ip, IPv4Address):
        return True
    return not (ip.ipv4_mapped or ip.sixtofour or ip.teredo or ip.is_site_local)


async def looked_up(host: str, port: int) -> list[str]:
    """The addresses that the system's resolver gives."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def checked_addresses(
    host: str, port: int, allowed: Callable[[str], bool] = is_public, resolve: Resolver = looked_up
) -> tuple[str, ...]:
    """The addresses of a host name, in the order to be tried.

    The caller connects to these very addresses: a second look-up could give others. Raises
    `AddressRefused` if a single one of them is not allowed, and `TransientError` if DNS is down.
    """
    try:
        addresses = tuple(dict.fromkeys(await resolve(host, port)))
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise TransientError(f"the name {host} cannot be looked up at the moment") from error
        raise AddressRefused(f"no such host: {host} ({error.strerror})") from None
    except (UnicodeError, OverflowError) as error:
        raise AddressRefused(f"{host[:80]!r} port {port} is not a usable address: {error}") from None
    refused = [address for address in addresses if not allowed(address)]
    if refused:
        raise AddressRefused(
            f"{host} is {refused[0]}, which is not a public address; "
            "the worker's setting RATCHET_HTTP_ALLOW_PRIVATE=true would allow it"
        )
    return addresses
