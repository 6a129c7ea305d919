"""Standard streams that take any text, and that say so when what is printed cannot be kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from client.errors import RatchetError

__all__ = ["open_streams"]


def open_streams() -> None:
    """Take over standard output and error of this process.

    One that is closed takes all; a terminal without a character gets `?` for it. Writing to
    standard output raises `RatchetError` when its disk is full; when its reader has gone away,
    `BrokenPipeError` as ever.
    """
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    if isinstance(sys.stdout, TextIOWrapper):
        was = sys.stdout
        sys.stdout = _Output(
            was.detach(),
            encoding=was.encoding,
            errors="replace",
            line_buffering=was.line_buffering,
            write_through=was.write_through,
        )


class _Output(TextIOWrapper):
    def write(self, text: str, /) -> int:
        with _named():
            return super().write(text)

    def flush(self) -> None:
        with _named():
            super().flush()


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RatchetError(f"standard output cannot be written: {error.strerror or error}") from error


def _nowhere() -> TextIOWrapper:
    return Path(os.devnull).open("w", encoding="utf-8")
