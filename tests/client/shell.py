"""The command line for tests with many commands: one process runs them one after the other.

Starting a process for each would take most of the time of such tests; what only a process of its own shows
(signals, terminals, closed outputs) is tried elsewhere.
"""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.client.conftest import ROOT, bare_environment

__all__ = ["Said", "Shell"]


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


class Shell:
    """A process that runs commands at a data directory."""

    def __init__(self, data_dir: Path) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.client.shell", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env=bare_environment(RATCHET_DATA_DIR=str(data_dir), RATCHET_BY="tester"),
            )
        with ours:
            self._lines = ours.makefile("rw", encoding="utf-8")

    def run(self, *words: str, stdin: str = "", **environment: str) -> Said:
        """Run `ratchet WORDS` with these variables besides."""
        self._lines.write(json.dumps([words, stdin, environment]) + "\n")
        self._lines.flush()
        return Said(*json.loads(self._lines.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lines.close()
        self._process.wait(30)


def serve(descriptor: int) -> None:
    """Run what comes until the other side is closed."""
    from client.cli import execute

    with socket.socket(fileno=descriptor) as other, other.makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            words, stdin, environment = json.loads(line)
            out, err = io.StringIO(), io.StringIO()
            with _variables(environment), redirect_stdout(out), redirect_stderr(err):
                sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
                code = execute(words)
            lines.write(json.dumps([code, out.getvalue(), err.getvalue()]) + "\n")
            lines.flush()


@contextmanager
def _variables(more: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        for name in more:
            os.environ.pop(name)
        os.environ.update(before)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # as the command does: the Temporal core's threads sometimes abort Python's own end
