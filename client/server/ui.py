"""What stands in front of Temporal's Web UI: it refuses what other web pages send.

The UI answers any Host and asks nobody who they are: a page whose name was made to lead to this machine (DNS
rebinding) could read all runs and send signals. So the UI itself is on a port to which no browser connects
(`UNREACHABLE`), and this process passes on what a person or the UI's own pages ask of its own address.

A program of its own, of the standard library alone. `python -I ui.py UI PORT` listens on all addresses, for a
container; UI is `HOST:PORT`. The embedded server's is `python -I ui.py UI LISTENER LIFELINE`: it inherits the
listening socket, and ends with the server, which holds the other end of the pipe LIFELINE.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

__all__ = ["LOCAL_NAMES", "UNREACHABLE", "check_page"]

UNREACHABLE = (
    1719, 1720, 3659, 4045, 4190, 5060, 5061, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080,
)  # fmt: skip
"""Ports that browsers refuse (WHATWG Fetch, section "Port blocking"), and that others rarely use."""
HEAD_BYTES, HEAD_SECONDS = 2**16, 30
REQUEST = re.compile(r"(?P<method>[A-Z]+) /\S* HTTP/1\.[01]")
FIELD = re.compile(r"([!#-'*+\-.0-9A-Z^-z|~]+):([^\r\n\0]*)")
HOST = re.compile(r"([^:\[\]]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?")
LOCAL_NAMES = ("localhost", "127.0.0.1")
OF_A_CONNECTION = ("connection", "keep-alive", "upgrade")

Fields = list[tuple[str, str]]


def _parsed(head: str) -> tuple[str, str, Fields]:
    """Request line, its method, and the header fields. Raises ValueError."""
    line, *rest = head.removesuffix("\r\n\r\n").split("\r\n")
    request, fields = REQUEST.fullmatch(line), [FIELD.fullmatch(one) for one in rest]
    if request is None or None in fields:
        raise ValueError("the request is malformed")
    return line, request["method"], [(one[1].lower(), one[2].strip(" \t")) for one in fields if one]


def check_page(
    method: str, fields: Fields, names: Sequence[str] = LOCAL_NAMES, origins: Sequence[str] | None = None
) -> None:
    """Raise ValueError for a request that another web page may have made.

    Args:
        fields: of the header, names in lower case.
        names: under which the server is open, without ports.
        origins: of the pages that may ask; default: the server's own.
    """
    values: dict[str, list[str]] = {}
    for name, value in fields:
        values.setdefault(name, []).append(value)
    host = values.get("host", [])
    found = HOST.fullmatch(host[0]) if len(host) == 1 else None
    if found is None or found[1].lower() not in {name.lower() for name in names}:
        raise ValueError(f"it is open under the names {' and '.join(names)} alone")
    own = (f"http://{host[0]}", f"https://{host[0]}")  # https: behind a proxy
    asking = values.get("origin", [])
    if any(origin not in (own if origins is None else origins) for origin in asking):
        raise ValueError("the request comes from another web page")
    if origins is not None and asking:
        return  # a browser does not let pages choose their origin
    of_others = set(values.get("sec-fetch-site", [])) - {"same-origin", "none"}
    followed = (method, values.get("sec-fetch-mode"), values.get("sec-fetch-dest"))
    if of_others and followed != ("GET", ["navigate"], ["document"]):  # a link may lead here
        raise ValueError("the request comes from another web page")


async def _answer(ui: tuple[str, int], reader: StreamReader, writer: StreamWriter) -> None:
    """Pass one request on; the connection ends with it, so that each request is checked."""
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
        async with asyncio.timeout(HEAD_SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        try:
            line, method, fields = _parsed(head)
            check_page(method, fields)
            inner, outer = await asyncio.open_connection(*ui)
        except (ValueError, OSError) as error:
            status = "403 Forbidden" if isinstance(error, ValueError) else "502 Bad Gateway"
            text = f"This is Temporal's Web UI of Ratchet; {error}.\n".encode()
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + text
            )
            await writer.drain()
        else:
            kept = [f"{name}: {value}" for name, value in fields if name not in OF_A_CONNECTION]
            outer.write("\r\n".join([line, *kept, "connection: close", "", ""]).encode("latin-1"))
            sending = asyncio.create_task(_copy(reader, outer))
            await _copy(inner, writer)
            sending.cancel()
            outer.close()
    writer.close()


async def _copy(source: StreamReader, target: StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(HEAD_BYTES):
            target.write(data)
            await target.drain()


async def _serve(ui: str, listener: int, lifeline: int | None = None) -> None:
    host, _, port = ui.rpartition(":")
    answer = partial(_answer, (host, int(port)))
    if lifeline is None:
        server = await asyncio.start_server(answer, port=listener, limit=HEAD_BYTES)
        await server.serve_forever()
        return
    end = StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(end), os.fdopen(lifeline, "rb"))
    await asyncio.start_server(answer, sock=socket.socket(fileno=listener), limit=HEAD_BYTES)
    await end.read()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], *map(int, sys.argv[2:])))
