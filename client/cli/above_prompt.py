"""What is printed while a person is asked stands above the prompt, which is drawn again below it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import copy_context

from prompt_toolkit.patch_stdout import StdoutProxy

__all__ = ["printing_above"]


class _Above(StdoutProxy):
    """Its thread has the context of the prompt: prompt_toolkit looks there for what it has to draw again, and
    a thread begins with an empty one."""

    def _start_write_thread(self) -> threading.Thread:
        thread = threading.Thread(target=copy_context().run, args=(self._write_thread,), daemon=True)
        thread.start()
        return thread


@contextmanager
def printing_above() -> Iterator[None]:
    """Meanwhile standard output and standard error are printed above the prompt of this context."""
    with _Above(raw=True) as above, redirect_stdout(above), redirect_stderr(above):
        yield
