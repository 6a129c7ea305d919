"""Files that this process has read as its configuration: what they say is run, so no tool writes them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["is_configuration", "read_configuration"]

_read: set[Path] = set()


def read_configuration(path: Path, most: int = -1) -> bytes:
    """The first bytes of a configuration file, `most` at most; -1: all of it. Raises OSError."""
    _read.add(Path(os.path.realpath(path)))
    with path.open("rb") as file:
        return file.read(most)


def is_configuration(path: Path) -> bool:
    """The path leads to a file that this process has read as configuration, under whatever name."""
    if path in _read:  # also where it is not there yet, or no more
        return True
    for known in tuple(_read):
        with suppress(OSError):
            if path.samefile(known):
                return True
    return False
