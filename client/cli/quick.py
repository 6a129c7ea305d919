"""A quick start: what a command does without while modules are imported, and one that reads runs to its end.

To look for garbage among modules takes a tenth of a start, and so does pydantic's search for plugins in all
installed packages; asyncio takes a sixth. Only a process that is a command begins so (`client/start.py`), no
program that calls one.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

__all__ = ["READS", "begin", "end"]

READS = frozenset({"costs", "inbox", "list", "log", "result", "show", "steps"})
"""Commands that read runs from files. Where they connect to a server, they get an event loop and the rest."""
NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
_undo: list[Callable[[], object]] = []


def begin(name: str) -> None:
    """Begin the command of this name; any other word will do, too."""
    gc.disable()
    _undo.append(gc.enable)
    if name in READS and NO_PLUGINS not in os.environ:
        os.environ[NO_PLUGINS] = "__all__"
        _undo.append(lambda: os.environ.pop(NO_PLUGINS, None))


def end() -> None:
    """The command works for long from here on: give it what it began without."""
    while _undo:
        _undo.pop()()
