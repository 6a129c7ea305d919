"""Entry point of the command `ratchet`."""

from __future__ import annotations

import signal
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line and leave with its exit code.

    While modules are imported, Ctrl-C ends the process at once and without a traceback. Commands then take it
    as Python does (`client/cli/options.py`).
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from client.cli.app import main as command_line

    command_line()
