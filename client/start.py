"""Entry point of the command `ratchet`."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line and leave with its exit code.

    While modules are imported, Ctrl-C ends the process at once and without a traceback. Commands then take it
    as Python does (`client/cli/options.py`).
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from client.cli.app import main as command_line
    except ModuleNotFoundError as error:
        package = sys.modules.get((error.name or "").partition(".")[0])
        if package is None or package.__name__ not in ("activities", "workflows"):
            raise
        sys.exit(
            f"ratchet: {', '.join(package.__path__)} hides Ratchet's package {package.__name__!r}; take its "
            "folder out of PYTHONPATH (docs/embedding.md)"
        )
    command_line()
