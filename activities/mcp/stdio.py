"""A connection to an MCP server that is a process: the SDK's own reads a message of any size into memory."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["ServerProcess"]

EXIT_SECONDS = 2.0
"""For the server to end by itself when its input is closed, and again after SIGTERM."""
READ_BYTES = 65_536
LINE_CHARS = 300
PIPE = asyncio.subprocess.PIPE


class ServerProcess:
    """A server's process. `on_end` hears how it ended by itself, or that a message was longer than
    `max_bytes`."""

    def __init__(
        self, command: str, args: Sequence[str], max_bytes: int, on_end: Callable[[str], None]
    ) -> None:
        self.command, self.args, self.max_bytes, self.on_end = command, args, max_bytes, on_end
        self.errors = deque[str](maxlen=3)
        """The newest lines of its standard error."""
        self._closes = False

    @asynccontextmanager
    async def streams(self, env: Mapping[str, str], cwd: Path | None) -> AsyncIterator[Any]:
        """Start it; the streams that the SDK's client speaks through. In the end the process and its children
        are gone. Raises OSError where it cannot be started."""
        import anyio
        from mcp.shared.message import SessionMessage

        process = await asyncio.create_subprocess_exec(
            self.command, *self.args, env=dict(env), cwd=cwd, stdin=PIPE, stdout=PIPE, stderr=PIPE,
            limit=self.max_bytes, start_new_session=True,
        )  # fmt: skip
        to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        to_server, from_client = anyio.create_memory_object_stream[SessionMessage](0)
        reads_errors = asyncio.create_task(self._read_errors(process.stderr))
        reads = asyncio.create_task(self._read(process, to_client, reads_errors))
        writes = asyncio.create_task(self._write(process.stdin, from_client, reads))
        tasks = (reads_errors, reads, writes)
        try:
            yield from_server, to_server
        finally:
            self._closes = True
            for stream in (from_server, to_server, to_client, from_client):
                stream.close()
            await asyncio.shield(_stop(process))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(TimeoutError):  # a pipe that is not read to its end stays open
                async with asyncio.timeout(EXIT_SECONDS):
                    while process.stdout is not None and await process.stdout.read(READ_BYTES):
                        pass

    async def _read(
        self, process: asyncio.subprocess.Process, to_client: Any, reads_errors: asyncio.Task[None]
    ) -> None:
        import anyio
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        assert process.stdout is not None
        async with to_client:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                while line := await _line(process.stdout):
                    # what a server prints besides is nothing of the protocol
                    with suppress(ValueError):
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                        await to_client.send(SessionMessage(message))
                how = await _end(process)
                if line is None:
                    how = f"it sent a message of more than {self.max_bytes:,} bytes"
                # what it said last may still be in the pipe; a child of it may hold that open
                await asyncio.wait([reads_errors], timeout=EXIT_SECONDS)
                said = f". Its last words: {' / '.join(self.errors)}" if self.errors else ""
                if not self._closes:
                    self.on_end(f"{how}{said}")  # before the client learns that it is gone

    async def _read_errors(self, stream: Any) -> None:
        rest = b""
        while piece := await stream.read(READ_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[-READ_BYTES:]
            self.errors.extend(_shortened(line) for line in lines if line.strip())
        if rest.strip():
            self.errors.append(_shortened(rest))

    async def _write(self, stream: Any, from_client: Any, reads: asyncio.Task[None]) -> None:
        async with from_client:
            try:
                async for message in from_client:
                    data = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    stream.write(data.encode() + b"\n")
                    await stream.drain()
            except OSError:  # who reads knows how it ended; the client shall not see a closed stream before
                await asyncio.wait([reads], timeout=2 * EXIT_SECONDS)


def _shortened(line: bytes) -> str:
    return line.decode(errors="replace").strip()[:LINE_CHARS]


async def _line(stream: asyncio.StreamReader) -> bytes | None:
    """The next line; empty at the end; None: it is too long."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError:
        return None


async def _end(process: asyncio.subprocess.Process) -> str:
    """How it ended, once its output is closed."""
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), EXIT_SECONDS / 4)
    code = process.returncode
    if code is None:
        return "it closed its output"
    if code >= 0:
        return f"it ended with exit code {code}"
    names = {one.value: one.name for one in signal.Signals}
    return f"it was ended by {names.get(-code, f'signal {-code}')}"


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Close its input, and end it and its children where that is not enough."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), EXIT_SECONDS)
            break
        _kill_group(process.pid, number)
    _kill_group(process.pid, signal.SIGKILL)  # children that outlived it
    await process.wait()


def _kill_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
