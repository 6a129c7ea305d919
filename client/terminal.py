"""A person at the terminal of this process: lines that they type, and a yes."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from typing import TextIO

from client.errors import NotConfirmed

__all__ = ["confirm", "person_here", "read_line"]


def person_here(shown: TextIO | None = None) -> bool:
    """Somebody can read what we print (there; else on standard output) and type an answer: a terminal, and we
    are in its foreground."""
    if sys.stdin is None or not (sys.stdin.isatty() and (shown or sys.stdout).isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return False


async def read_line() -> str | None:
    """The next line that is typed, None for the end of input (Ctrl-D). What was typed before is dropped:
    it was no answer to what is asked now. May be cancelled. Raises OSError when the terminal is gone."""
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
    termios.tcflush(fd, termios.TCIFLUSH)
    typed: asyncio.Future[bytes] = loop.create_future()

    def ready() -> None:
        if typed.done():
            return
        try:
            typed.set_result(os.read(fd, 65536))
        except OSError as error:  # the terminal is gone
            typed.set_exception(error)

    loop.add_reader(fd, ready)
    try:
        line = await typed
    finally:
        loop.remove_reader(fd)
    return line.decode(errors="replace").strip() if line else None


async def confirm(question: str) -> None:
    """Ask for a yes on the terminal.

    Raises:
        NotConfirmed: anything else was said, or there is no terminal.
    """
    if not person_here(sys.stderr):
        raise NotConfirmed("nobody can be asked here, so nothing was done; say --yes to do it all the same")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if (await read_line() or "").lower() not in ("y", "yes"):
        raise NotConfirmed("nothing was done")
