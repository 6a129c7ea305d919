"""Entry point of the command `ratchet`."""

from __future__ import annotations

import gc
import signal
import sys
from importlib.util import find_spec
from typing import NoReturn

from client.cli import quick

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line and leave with its exit code.

    While modules are imported, Ctrl-C ends the process at once and without a traceback. Commands then take it
    as Python does (`client/cli/options.py`).
    """
    gc.set_threshold(50_000)
    quick.begin("".join(sys.argv[1:2]))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for package in ("activities.contracts", "workflows.kernel"):
        if find_spec(package) is None:
            folder = package.partition(".")[0]
            where = ", ".join(sys.modules[folder].__path__)
            sys.exit(
                f"ratchet: {where} hides Ratchet's package {folder!r}; take its folder out of PYTHONPATH "
                "(docs/embedding.md)"
            )
    from client.cli.app import main as command_line

    command_line()
