"""The network between a worker and its server, for tests that cut it, slow it or swallow what is sent."""

from __future__ import annotations

import asyncio
import sys
from asyncio import StreamReader, StreamWriter
from contextlib import suppress

from temporalio.client import Client

__all__ = ["Link", "port_of"]

PIECE = 65_536
"""Bytes that are passed on at once."""


class Link:
    """Passes connections on to a server, while it is entered."""

    def __init__(self, port: int, *pieces: int) -> None:
        """The first connections are cut after so many `pieces` from the worker."""
        self.port, self.pieces = port, list(pieces)
        self.seconds = 0.0
        """How long each piece takes."""
        self.passes = asyncio.Event()
        """Clear: what is sent goes nowhere, and nobody learns of it."""
        self.passes.set()
        self._open: set[StreamWriter] = set()

    async def __aenter__(self) -> Link:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        for writer in self._open:
            writer.close()

    async def _pass(self, reader: StreamReader, writer: StreamWriter) -> None:
        left = self.pieces.pop(0) if self.pieces else sys.maxsize
        with suppress(OSError):
            inner, outer = await asyncio.open_connection("127.0.0.1", self.port)
            self._open |= {writer, outer}
            there = asyncio.create_task(self._copy(reader, outer, left))
            back = asyncio.create_task(self._copy(inner, writer, sys.maxsize))
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            there.cancel()
            back.cancel()
            outer.close()
            self._open -= {writer, outer}
        writer.close()

    async def _copy(self, source: StreamReader, target: StreamWriter, left: int) -> None:
        with suppress(OSError):
            while left and (data := await source.read(PIECE)):
                await asyncio.sleep(self.seconds)
                await self.passes.wait()
                target.write(data)
                await target.drain()
                left -= 1


def port_of(client: Client) -> int:
    """The port of a client's server."""
    return int(client.service_client.config.target_host.rpartition(":")[2])
