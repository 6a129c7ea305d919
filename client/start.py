"""Entry point of the command `ratchet`: an interrupt is quiet from its first moment on."""

from __future__ import annotations

import signal
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line and leave with its exit code.

    While modules are imported an interrupt ends the process at once, without a traceback; a
    command then takes interrupts as Python does (`client.place`).
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from client.cli import main as command_line

    command_line()
