"""Which network addresses a tool may connect to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address

from activities.toolbox import TransientError

__all__ = ["AddressRefused", "checked_addresses", "is_public"]


class AddressRefused(Exception):
    """A host that there is not, or that a tool must not reach."""


def is_public(address: str) -> bool:
    """Whether the address, in its canonical text form, belongs to the public Internet.

    False for private, loopback, link-local, multicast, reserved and unspecified ones, and for IPv6
    addresses that carry an IPv4 address in them: those could carry a private one.
    """
    ip = ip_address(address)
    if not ip.is_global or ip.is_multicast or ip.is_reserved or ip.is_unspecified:
        return False
    return isinstance(ip, IPv4Address) or not _special(ip)


def _special(ip: IPv6Address) -> bool:
    embedded = ip.ipv4_mapped or ip.sixtofour or ip.teredo
    return embedded is not None or ip.is_site_local


async def checked_addresses(
    host: str, port: int, allowed: Callable[[str], bool] = is_public
) -> tuple[str, ...]:
    """What the host name stands for, in the order to be tried.

    The caller connects to these very addresses: a second look-up could answer others. Raises
    `AddressRefused` if a single one of them is not allowed, and `TransientError` if DNS is down.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise TransientError(f"the name {host} cannot be looked up just now") from error
        raise AddressRefused(f"there is no host {host}: {error.strerror}") from None
    except (UnicodeError, OverflowError) as error:
        raise AddressRefused(f"{host[:80]!r} port {port} is no usable address: {error}") from None
    addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
    refused = [address for address in addresses if not allowed(address)]
    if refused:
        raise AddressRefused(
            f"{host} is {refused[0]}, which is no public address; "
            "the worker's setting RATCHET_HTTP_ALLOW_PRIVATE=true would allow it"
        )
    return addresses
