"""Texts that commands read from standard input."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import Future

from client.errors import UsageError

__all__ = ["read_text"]

STDIN_BYTES = 2_000_000


async def read_text(given: str | None, what: str) -> str:
    """A text from the command line, or from standard input when it is `-`.

    Args:
        given: the argument; None: it was left out.
        what: how messages name it, such as `goal`.

    Raises:
        UsageError: there is none, or standard input is not UTF-8.
    """
    if given is None:
        raise UsageError(f"the {what} is missing; write it in quotes, or - to read it from standard input")
    if given != "-":
        return given
    try:
        return (await _standard_input(what)).decode().strip()
    except UnicodeDecodeError as error:
        raise UsageError(f"the {what} on standard input is not UTF-8 text: {error}") from error
    except OSError as error:
        message = f"the {what} cannot be read from standard input: {error.strerror or error}"
        raise UsageError(message) from error


async def _standard_input(what: str) -> bytes:
    """All of standard input. A thread of its own reads it, so that Ctrl-C need not wait for it."""
    if sys.stdin is None:
        raise UsageError(f"the {what} cannot be read from standard input: it is closed")
    content: Future[bytes] = Future()

    def read() -> None:
        content.set_running_or_notify_cancel()
        try:
            content.set_result(sys.stdin.buffer.read(STDIN_BYTES))
        except (OSError, ValueError) as error:
            content.set_exception(error)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return await asyncio.wrap_future(content)
